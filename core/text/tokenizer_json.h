/* tokenizer_json.h: what a tokenizer is made of, read from a tokenizer.json; tokenizer.c uses it. */
#pragma once

#include "core/text/added_tokens.h"
#include "core/text/bpe.h"
#include "core/text/pattern.h"

#include <jansson.h>

enum { CUT_STEPS = 8 };

/* A step of the pre-tokenizer: Split, Digits, and ByteLevel's own expression. Matches and the text between them are
 * words. Without a pattern it is ByteLevel's add_prefix_space: a space before a word that has none. */
struct cut {
    struct pattern *pattern; /* own */
    bool drop_matches;       /* behavior Removed: matches are left out, or with `invert` the text between them */
    bool drop_others;
};

struct tokenizer {
    struct added_tokens added;
    bool nfc;                   /* the normalizer; false: none */
    struct cut cuts[CUT_STEPS]; /* one after the other; each cuts what the one before it has left */
    int cut_count;
    struct bpe bpe;
    struct token_list before, after; /* what the post-processor puts around a text */
    int32_t bos, eos;                /* -1: not known */
    bool splits_special;             /* special tokens are not looked for in a text */
};

/* Makes a tokenizer of the contents of a tokenizer.json. `where` names the file in messages. */
enum status tokenizer_from_json(const json_t *json, const char *where, struct tokenizer **out, struct error *err);
