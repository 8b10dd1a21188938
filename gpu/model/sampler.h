/* SPDX-License-Identifier: Apache-2.0 */
/* sampler.h: the choice of the next token from the logits of a language model.
 *
 * In the order of transformers' generate: the logits are divided by the temperature; the top_k highest stay (and those
 * that equal the last of them); of these, the most probable ones stay whose probabilities together reach top_p; the
 * token is drawn from what is left. Temperature 0 takes the highest logit, of equal ones the first. Random numbers are
 * counter-based (philox.h): the token depends only on the logits, the settings and the number of the draw. */
#pragma once

#include "core/status.h"

#include <stdint.h>

struct sampler_settings {
    double temperature; /* 0: greedy */
    int64_t top_k;      /* 0: all */
    double top_p;       /* above 0; 1: all */
    uint64_t seed;
};

struct sampler;

/* A sampler for `count` logits. */
struct sampler *sampler_new(const struct sampler_settings *settings, int64_t count);
void sampler_free(struct sampler *sampler); /* NULL is allowed */
RELEASER(sampler_drop, struct sampler, sampler_free)

/* Returns draw number `index` from logits (count); -1 if one is NaN or positive infinity. */
int64_t sampler_choose(struct sampler *sampler, const float *logits, uint64_t index);
