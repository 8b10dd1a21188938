/* transformer_cache.h: the keys and values of a sequence that is being generated, so that a new token is computed
 * without the tokens before it.
 *
 *     first pass     the prompt, by ordinary attention; its keys and values are stored
 *     later passes   a token each: stored, and attention over all that is stored
 *
 * They are stored as attention reads them, after norms and RoPE, so that positions are those of the tokens. */
#pragma once

#include "gpu/model/transformer_unit.h"

/* Attention of a block in a pass that has a cache. */
void cached_attention(const struct pass *pass, int64_t block, const struct attention_fwd_args *args);
