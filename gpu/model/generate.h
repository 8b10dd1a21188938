/* SPDX-License-Identifier: Apache-2.0 */
/* generate.h: the next token's logits, by a transformer and the keys and values of the sequence that it continues.
 * Calls: generator_new, generator_layout (twice: arena.h), generator_reset, generator_feed of the prompt and of each
 * token, which the caller chooses (gpu/model/sampler.h).
 *
 * The transformer may be training: generation changes nothing that a step reads. Each call reads all parameters in the
 * order of an evaluation; ranks that share them make the same calls. */
#pragma once

#include "gpu/model/transformer.h"

struct generator;

/* For sequences of up to `capacity` tokens, prompt included; at most the transformer's max_position. The transformer is
 * borrowed; its model is a causal language model. */
struct generator *generator_new(struct transformer *transformer, int64_t capacity);
void generator_free(struct generator *generator); /* NULL is allowed */

/* Takes the memory of the keys and values: layers · 2 · capacity · num_kv_heads · head_dim elements of the
 * transformer's dtype. */
void generator_layout(struct generator *generator, struct arena *arena);

/* Forgets the sequence. */
void generator_reset(struct generator *generator);

/* Appends `count` tokens (ids of the vocabulary; at most the transformer's max_tokens and max_seq) and sets *logits
 * (vocab_size), which the generator owns, to those of the token that comes after them, with the model's multiplier and
 * soft cap. Waits for the device. */
enum status generator_feed(struct generator *generator, const int32_t *tokens, int64_t count,
                           const struct param_verbs *verbs, struct stream *stream, float **logits, struct error *err);
