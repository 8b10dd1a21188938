/* tokenizer_folder.h: the files of a folder that say something about its tokenizer, read as transformers' AutoTokenizer
 * reads them: tokenizer.json or vocab.json and merges.txt, tokenizer_config.json, where that has no
 * added_tokens_decoder also special_tokens_map.json and added_tokens.json, and config.json for the class of a folder
 * that names none.
 *
 * All of it is put into the form of a tokenizer.json, which tokenizer_json.h reads. */
#pragma once

#include "core/status.h"

#include <jansson.h>
#include <stdbool.h>

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
