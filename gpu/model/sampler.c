/* SPDX-License-Identifier: Apache-2.0 */
/* sampler.c: see sampler.h. All is computed in double. */
#include "gpu/model/sampler.h"

#include "core/memory.h"
#include "core/training/philox.h"

enum { SAMPLER_STREAM = 0x73616d70 }; /* of philox.h: other random numbers than those of training with the same seed */

struct candidate {
    double weight; /* first (the logit - the highest) / temperature, which is at most 0; then exp() of that */
    int64_t token;
};

struct sampler {
    struct sampler_settings settings;
    int64_t count;
    struct candidate *candidates; /* owned (count) */
};

struct sampler *sampler_new(const struct sampler_settings *settings, int64_t count)
{
    struct sampler *s = memory_zeroed(1, sizeof *s);
    s->settings = *settings;
    s->count = count;
    s->candidates = memory_zeroed((size_t)count, sizeof *s->candidates);
    return s;
}

void sampler_free(struct sampler *sampler)
{
    if (sampler) free(sampler->candidates);
    free(sampler);
}

static int sampler_by_token(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    return x->token < y->token ? -1 : x->token > y->token;
}

/* The most probable first; of equal ones the lower token. */
static int sampler_by_weight(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    return x->weight != y->weight ? (x->weight > y->weight ? -1 : 1) : sampler_by_token(a, b);
}

/* Keeps the k first of n candidates, and those that equal the last of them: the list is in order afterwards. */
static int64_t sampler_keep_top_k(struct candidate *candidates, int64_t n, int64_t k)
{
    if (k == 0 || k >= n) return n;
    qsort(candidates, (size_t)n, sizeof *candidates, sampler_by_weight);
    while (k < n && candidates[k].weight == candidates[k - 1].weight) k++;
    return k;
}

/* Keeps the most probable ones whose probabilities reach p: as in transformers, those go that, with all less probable
 * ones, have a probability of at most 1 - p. */
static int64_t sampler_keep_top_p(struct candidate *candidates, int64_t n, double p)
{
    double sum = 0, tail = 0;
    if (p >= 1) return n;
    for (int64_t i = 0; i < n; i++) sum += candidates[i].weight;
    /* all that are less probable than (1 - p) / n go in any case: together they have less than 1 - p */
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++) {
        if (candidates[i].weight >= (1 - p) / (double)n * sum)
            candidates[kept++] = candidates[i];
        else
            tail += candidates[i].weight;
    }
    qsort(candidates, (size_t)kept, sizeof *candidates, sampler_by_weight);
    while (kept > 1 && tail + candidates[kept - 1].weight <= (1 - p) * sum) tail += candidates[--kept].weight;
    return kept;
}

/* Draws one of n candidates by their weights, in the order of tokens. */
static int64_t sampler_draw(struct candidate *candidates, int64_t n, uint64_t seed, uint64_t index)
{
    const double uniform = (double)(philox_u64(seed, SAMPLER_STREAM, index) >> 11) / 9007199254740992.0; /* 2^53 */
    double sum = 0, reached = 0;
    bool in_order = true;
    for (int64_t i = 0; i < n; i++) {
        sum += candidates[i].weight;
        in_order = in_order && (i == 0 || candidates[i - 1].token < candidates[i].token);
    }
    if (!in_order) qsort(candidates, (size_t)n, sizeof *candidates, sampler_by_token);
    for (int64_t i = 0; i < n; i++) {
        reached += candidates[i].weight;
        if (uniform * sum < reached) return candidates[i].token;
    }
    return candidates[n - 1].token;
}

int64_t sampler_choose(struct sampler *s, const float *logits, uint64_t index)
{
    int64_t best = 0, n = 0;
    for (int64_t i = 0; i < s->count; i++) {
        if (isnan(logits[i]) || logits[i] == INFINITY) return -1;
        best = logits[i] > logits[best] ? i : best;
    }
    if (s->settings.temperature == 0 || logits[best] == -INFINITY) /* so are all the others */
        return best;
    /* Without the highest, a tiny temperature would make infinities of several logits, which nothing tells apart. */
    const double highest = logits[best];
    for (int64_t i = 0; i < s->count; i++)
        if (logits[i] > -INFINITY)
            s->candidates[n++] = (struct candidate){((double)logits[i] - highest) / s->settings.temperature, i};
    n = sampler_keep_top_k(s->candidates, n, s->settings.top_k);
    for (int64_t i = 0; i < n; i++) s->candidates[i].weight = exp(s->candidates[i].weight);
    n = sampler_keep_top_p(s->candidates, n, s->settings.top_p);
    return sampler_draw(s->candidates, n, s->settings.seed, index);
}
