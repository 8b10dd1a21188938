/* SPDX-License-Identifier: Apache-2.0 */
/* end_tokens.h: the tokens that end a text and the one that begins an empty one, as transformers' generate has them. */
#pragma once

#include "core/status.h"

#include <jansson.h>

enum { END_TOKENS_MAX = 64 };

struct end_tokens {
    int64_t ids[END_TOKENS_MAX];
    int count;
    int64_t begin; /* bos_token_id; -1: there is none */
};

/* Reads eos_token_id, one id or a list, and bos_token_id of <dir>/generation_config.json, or where there is no such
 * file (or dir is NULL), of `config`, a model's config.json. STATUS_DATA: it is no id, or the file is damaged. */
enum status end_tokens_read(const char *dir, const json_t *config, struct end_tokens *tokens, struct error *err);

bool end_tokens_have(const struct end_tokens *tokens, int64_t id);
