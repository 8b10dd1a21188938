/* SPDX-License-Identifier: Apache-2.0 */
/* engine_samples.h: train.samples: the prompts that the model continues, greedily, at each evaluation. Generation uses
 * the transformer's activations between two steps: the bits of training do not change. */
#pragma once

#include "core/model/end_tokens.h"
#include "core/model/model_config.h"
#include "core/spec/spec.h"
#include "core/text/tokenizer.h"
#include "gpu/model/generate.h"

struct engine_samples {
    int count;
    struct token_list *prompts;  /* owned (count) */
    struct tokenizer *tokenizer; /* owned; NULL: all prompts are token ids */
    struct end_tokens ends;
    int64_t max_tokens;          /* of a continuation */
    int64_t capacity;            /* tokens of the longest prompt with its continuation */
    struct generator *generator; /* owned; made when the transformer is */
};

/* Reads the prompts of the spec; *samples NULL: it has none. STATUS_USAGE, with the prompt's number: a text without a
 * tokenizer; an id outside the vocabulary; a prompt that fills data.seq_length; no causal language model. */
enum status engine_samples_new(const struct run_spec *spec, const struct model_desc *desc,
                               struct engine_samples **samples, struct error *err);

void engine_samples_free(struct engine_samples *samples); /* NULL is allowed */
