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

/* ---- between tokenizer_json.c and tokenizer_model.c ---------------------- */

struct tokenizer_source {
    const char *where; /* the file */
    struct error *err;
};

/* "'FILE' has the WHAT NAME, and …": STATUS_USAGE. */
enum status tokenizer_refuse(const struct tokenizer_source *source, const char *what, const char *name);

/* STATUS_DATA with a message about the file. */
__attribute__((format(printf, 2, 3))) enum status tokenizer_damaged(const struct tokenizer_source *source,
                                                                    const char *format, ...);

/* A member that is true or false; absent or null: `absent`. */
enum status tokenizer_flag(const struct tokenizer_source *source, const json_t *object, const char *key, bool absent,
                           bool *out);

enum status tokenizer_read_model(const struct tokenizer_source *source, const json_t *model, struct bpe *bpe);
