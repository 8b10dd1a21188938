/* tokenizer_config.h: what the files beside tokenizer.json say about a tokenizer, read as transformers' AutoTokenizer
 * reads them: tokenizer_config.json, where that has no added_tokens_decoder also special_tokens_map.json and
 * added_tokens.json, and config.json for the class of a folder that names none.
 *
 * All of it is put into the form of a tokenizer.json, which tokenizer_json.h reads. */
#pragma once

#include "core/status.h"

#include <jansson.h>
#include <stdbool.h>

struct tokenizer_class;

/* {0} is empty. */
struct tokenizer_config {
    const char *folder;                   /* borrowed */
    json_t *values;                       /* own: keys of tokenizer_config.json; {}: there is no such file */
    json_t *model;                        /* own: those of config.json */
    bool legacy;                          /* without added_tokens_decoder */
    const struct tokenizer_class *class_; /* of vocab.json and merges.txt; NULL: there is a tokenizer.json */
};

/* Reads a JSON file of at most 256 MiB into *out (new reference); flags: of jansson. STATUS_DATA. */
enum status tokenizer_read_file(const char *path, size_t flags, json_t **out, struct error *err);

/* Reads the folder's settings. */
enum status tokenizer_config_read(const char *folder, struct tokenizer_config *config, struct error *err);
void tokenizer_config_release(struct tokenizer_config *config);

/* Chooses the class of a folder without tokenizer.json; one that names none has GPT-2's. STATUS_USAGE: it names one
 * that this reader does not know. */
enum status tokenizer_config_choose_class(struct tokenizer_config *config, struct error *err);

/* Makes a tokenizer.json (new reference) of a vocabulary and merges, references that it takes, with what the chosen
 * class has beside them. */
json_t *tokenizer_config_parts(const struct tokenizer_config *config, json_t *vocabulary, json_t *merges);

/* Adds the folder's tokens to the "added_tokens" of a tokenizer.json, and what its class puts around or before a text.
 * A tokenizer.json that is damaged stays as it is. STATUS_DATA: a token's id is not the one that it would get. */
enum status tokenizer_config_apply(const struct tokenizer_config *config, json_t *parts, struct error *err);

/* The text of bos_token, eos_token, …; NULL: there is none. Lives as long as the config. */
const char *tokenizer_config_token(const struct tokenizer_config *config, const char *key);

/* Whether special tokens are not looked for in a text. */
bool tokenizer_config_splits_special(const struct tokenizer_config *config);
