/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/model/generate.h"

#include "core/memory.h"
#include "gpu/model/transformer_delta.h"

struct generator {
    struct transformer *transformer; /* borrowed */
    struct kv_cache cache;           /* its memory lies in the arena */
    int32_t *positions, *no_targets; /* owned (capacity): 0, 1, 2 …, and -1 for each token */
    void *raw;                       /* owned (V) of the transformer's logits_dtype */
    float *logits;                   /* owned (V) */
};

struct generator *generator_new(struct transformer *t, int64_t capacity)
{
    ASSERT(capacity > 0 && capacity <= t->config.max_position && capacity <= INT32_MAX);
    ASSERT(!t->config.desc->bidirectional && t->config.desc->num_labels == 0);
    struct generator *g = memory_zeroed(1, sizeof *g);
    g->transformer = t;
    g->cache.capacity = capacity;
    g->positions = memory_alloc((size_t)capacity * sizeof *g->positions);
    g->no_targets = memory_alloc((size_t)capacity * sizeof *g->no_targets);
    g->raw = memory_alloc((size_t)t->V * dtype_size(t->logits_dtype));
    g->logits = memory_alloc((size_t)t->V * sizeof *g->logits);
    for (int64_t i = 0; i < capacity; i++) {
        g->positions[i] = (int32_t)i;
        g->no_targets[i] = -1;
    }
    return g;
}

void generator_free(struct generator *g)
{
    if (!g) return;
    free(g->positions);
    free(g->no_targets);
    free(g->raw);
    free(g->logits);
    free(g);
}

void generator_layout(struct generator *g, struct arena *arena)
{
    const struct transformer *t = g->transformer;
    const struct delta_desc *delta = &t->config.desc->delta;
    size_t rules = 0;
    for (int64_t block = 0; block < t->L; block++) rules += t->config.desc->layers[block].delta;
    const size_t elements = (size_t)transformer_keys_before(t, t->L) * (size_t)g->cache.capacity;
    g->cache.inputs_bytes = rules * (size_t)(delta->taps * delta_channels(delta)) * dtype_size(t->dtype);
    g->cache.states_bytes = rules * (size_t)(delta->key_dim * delta_values(delta)) * sizeof(float);
    g->cache.inputs = arena_take(arena, MEM_ACTIVATIONS, g->cache.inputs_bytes);
    g->cache.states = arena_take(arena, MEM_ACTIVATIONS, g->cache.states_bytes);
    g->cache.keys = arena_take(arena, MEM_ACTIVATIONS, elements * dtype_size(t->dtype));
    g->cache.values = arena_take(arena, MEM_ACTIVATIONS, elements * dtype_size(t->dtype));
}

void generator_reset(struct generator *g)
{
    g->cache.held = 0;
}

/* From the head's product to the values whose softmax is the distribution of the next token. */
static void finish_logits(struct generator *g)
{
    const struct transformer *t = g->transformer;
    const float scale = (float)t->config.desc->logit_multiplier, cap = (float)t->config.desc->logit_softcap;
    for (int64_t i = 0; i < t->V; i++) {
        const float x = dtype_load(g->raw, i, t->logits_dtype) * scale;
        g->logits[i] = cap > 0 ? cap * tanhf(x / cap) : x;
    }
}

enum status generator_feed(struct generator *g, const int32_t *tokens, int64_t count, const struct param_verbs *verbs,
                           struct stream *stream, float **logits, struct error *err)
{
    const int32_t seq_start[] = {0, (int32_t)count};
    ASSERT(count > 0 && g->cache.held + count <= g->cache.capacity);
    const struct batch batch = {
        .num_seqs = 1,
        .max_seq = (int32_t)count,
        .num_tokens = count,
        .tokens = tokens,
        .targets = g->no_targets,
        .positions = g->positions + g->cache.held,
        .seq_start = seq_start,
    };
    if (g->cache.held == 0) {
        stream_fill_zero(stream, g->cache.inputs, g->cache.inputs_bytes);
        stream_fill_zero(stream, g->cache.states, g->cache.states_bytes);
    }
    TRY(transformer_continue(g->transformer, &batch, &g->cache, verbs, stream, g->raw, err));
    g->cache.held += count;
    stream_sync(stream);
    TRY(device_check(g->transformer->device, err));
    finish_logits(g);
    *logits = g->logits;
    return STATUS_OK;
}
