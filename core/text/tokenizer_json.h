/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_json.h: what a tokenizer is made of, read from a tokenizer.json and the files beside it; tokenizer.c uses
 * it. A folder is read as transformers' AutoTokenizer reads it: tokenizer.json or vocab.json and merges.txt,
 * tokenizer_config.json, where that has no added_tokens_decoder also special_tokens_map.json and added_tokens.json, and
 * config.json for a class that is not named. tokenizer_folder.c makes a tokenizer.json of all of it. */
#pragma once

#include "core/text/added_tokens.h"
#include "core/text/bpe.h"
#include "core/text/pattern.h"

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
    struct cut cuts[CUT_STEPS]; /* each cuts what the one before it has left */
    int cut_count;
    struct bpe bpe;
    struct token_list before, after; /* what the post-processor puts around a text */
    bool splits_special;             /* special tokens are not looked for in a text */
};

/* Makes a tokenizer of the contents of a tokenizer.json. `where` names the file in messages. */
enum status tokenizer_from_json(const json_t *json, const char *where, struct tokenizer **out, struct error *err);

struct tokenizer_folder {
    const char *path;                    /* borrowed */
    json_t *values;                      /* own: keys of tokenizer_config.json; {}: there is no such file */
    json_t *model;                       /* own: those of config.json */
    bool legacy;                         /* without added_tokens_decoder */
    const struct tokenizer_class *class; /* of vocab.json and merges.txt; NULL: there is a tokenizer.json */
};

/* Adds the folder's tokens to the "added_tokens" of a tokenizer.json, and what its class puts around or before a text.
 * A tokenizer.json that is damaged stays as it is. STATUS_DATA: a token's id is not the one that it would get. */
enum status tokenizer_folder_apply(const struct tokenizer_folder *folder, json_t *parts, struct error *err);
