/* tokenizer_json.h: what a tokenizer is made of, read from a tokenizer.json; tokenizer.c uses it. */
#pragma once

#include "core/text/added_tokens.h"
#include "core/text/bpe.h"
#include "core/text/pre_tokenizer.h"

#include <jansson.h>

struct tokenizer {
    struct added_tokens added;
    bool nfc; /* the normalizer; false: none */
    struct pre_tokenizer cutter;
    struct bpe bpe;
    struct token_list before, after; /* what the post-processor puts around a text */
    int32_t bos, eos;                /* -1: not known */
    bool splits_special;             /* special tokens are not looked for in a text */
};

/* Makes a tokenizer of the contents of a tokenizer.json. `where` names the file in messages. */
enum status tokenizer_from_json(const json_t *json, const char *where, struct tokenizer **out, struct error *err);
