/* activation_store_case.h: micro-batches that only keep and fetch, for the tests of the activation store: "forward"
 * writes a block's input into its buffer, "backward" copies it to the results. */
#pragma once

#include "gpu/activation_store.h"
#include "gpu/device.h"

#include <stdlib.h>
#include <string.h>

enum { STORE_BUFFERS = 3, STORE_MOST_BLOCKS = 9, STORE_BYTES = 1 << 16 };

struct store_case {
    struct device *device;
    struct stream *compute;
    struct activation_store *store;
    int64_t blocks;
    char *memory; /* device: the buffers, the sources and the results */
    char *buffers, *sources, *results;
    size_t memory_bytes, host_bytes;
    void *host;
    char *expected, *got; /* host: (blocks, STORE_BYTES) */
};

/* Returns false on an error. */
static inline bool store_case_open(struct store_case *c, struct device *device, int64_t blocks)
{
    struct error err;
    struct arena host;
    void *memory;
    *c = (struct store_case){.device = device, .blocks = blocks};
    if (stream_new(device, STREAM_COMPUTE, &c->compute, &err) != STATUS_OK ||
        activation_store_new(device, blocks, STORE_BYTES, &c->store, &err) != STATUS_OK)
        return false;
    arena_init_dry(&host);
    activation_store_layout(c->store, &host);
    c->host_bytes = host.used;
    arena_init(&host, NULL, 0);
    if (c->host_bytes) {
        if (device_alloc_host(device, c->host_bytes, &c->host, &err) != STATUS_OK)
            return false;
        arena_init(&host, c->host, c->host_bytes);
    }
    activation_store_layout(c->store, &host);
    arena_finish(&host);
    size_t inputs = (size_t)blocks * STORE_BYTES;
    c->memory_bytes = (size_t)STORE_BUFFERS * STORE_BYTES + 2 * inputs;
    if (device_alloc(device, c->memory_bytes, &memory, &err) != STATUS_OK)
        return false;
    c->memory = c->buffers = memory;
    c->sources = c->buffers + (size_t)STORE_BUFFERS * STORE_BYTES;
    c->results = c->sources + inputs;
    c->expected = malloc(inputs);
    c->got = malloc(inputs);
    return c->expected && c->got;
}

static inline void store_case_close(struct store_case *c)
{
    activation_store_free(c->store);
    device_free(c->device, c->memory, c->memory_bytes);
    if (c->host)
        device_free_host(c->device, c->host, c->host_bytes);
    stream_free(c->compute);
    free(c->expected);
    free(c->got);
}

/* A micro-batch whose inputs have this many bytes; returns whether backward saw the inputs of forward. */
static inline bool store_case_micro(struct store_case *c, unsigned seed, size_t bytes)
{
    const struct activation_verbs *verbs = activation_store_verbs(c->store);
    size_t inputs = (size_t)c->blocks * STORE_BYTES;
    for (size_t i = 0; i < inputs; i++)
        c->expected[i] = (char)((i * 2654435761U + seed * 40503U + i / STORE_BYTES) >> 7);
    stream_copy(c->compute, c->sources, c->expected, inputs);
    stream_fill_zero(c->compute, c->results, inputs);
    for (int64_t l = 0; l < c->blocks; l++) {
        char *buffer = c->buffers + (size_t)(l % verbs->buffers) * STORE_BYTES;
        stream_copy(c->compute, buffer, c->sources + (size_t)l * STORE_BYTES, bytes);
        verbs->keep(verbs->self, l, buffer, bytes, c->compute);
    }
    for (int64_t l = c->blocks - 1; l >= 0; l--) {
        char *buffer = c->buffers + (size_t)(l % verbs->buffers) * STORE_BYTES;
        verbs->fetch(verbs->self, l, buffer, bytes, c->compute);
        stream_copy(c->compute, c->results + (size_t)l * STORE_BYTES, buffer, bytes);
    }
    stream_copy(c->compute, c->got, c->results, inputs);
    stream_sync(c->compute);
    bool same = true;
    for (int64_t l = 0; l < c->blocks; l++)
        same = same && memcmp(c->got + (size_t)l * STORE_BYTES, c->expected + (size_t)l * STORE_BYTES, bytes) == 0;
    return same;
}
