/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/activation_store.h"

#include "core/memory.h"

/* With two, forward would wait for each copy down to end before the next block could begin. */
enum { BUFFERS = 3 };

struct buffer {
    void *memory;       /* borrowed: as keep was called with it */
    struct event *down; /* the input that keep was last called for is in host memory (the store's stream) */
    struct event *up;   /* the input that is to be read next is here (the store's stream) */
};

struct activation_store {
    struct device *device; /* borrowed */
    struct activation_verbs verbs;
    int64_t first, blocks;
    size_t bytes; /* of the largest input */
    char *host;   /* (copied_blocks(), bytes), borrowed from the arena */
    struct stream *stream;
    struct event *computed; /* a point of the compute stream that the store's stream waits for */
    struct buffer buffers[BUFFERS];
};

static bool is_copied(const struct activation_store *s, int64_t block)
{
    return block >= s->first && block < s->blocks - BUFFERS;
}

static int64_t copied_blocks(const struct activation_store *s)
{
    return s->blocks - BUFFERS > s->first ? s->blocks - BUFFERS - s->first : 0;
}

static char *host_input(const struct activation_store *s, int64_t block)
{
    return s->host + (size_t)(block - s->first) * s->bytes;
}

static void follow(struct activation_store *s, struct stream *stream)
{
    event_record(s->computed, stream);
    stream_wait(s->stream, s->computed);
}

static void store_keep(void *self, int64_t block, void *memory, size_t bytes, struct stream *stream)
{
    struct activation_store *s = self;
    struct buffer *buffer = &s->buffers[block % BUFFERS];
    ASSERT(bytes <= s->bytes && block < s->blocks);
    buffer->memory = memory;
    if (is_copied(s, block)) {
        follow(s, stream);
        stream_copy(s->stream, host_input(s, block), memory, bytes);
        event_record(buffer->down, s->stream);
    }
    if (block + 1 >= BUFFERS && block + 1 < s->blocks) /* the next block's buffer holds an input that goes down */
        stream_wait(stream, s->buffers[(block + 1) % BUFFERS].down);
}

static void store_fetch(void *self, int64_t block, void *memory, size_t bytes, struct stream *stream)
{
    struct activation_store *s = self;
    const struct buffer *buffer = &s->buffers[block % BUFFERS];
    ASSERT(bytes <= s->bytes && block < s->blocks && memory == buffer->memory);
    if (is_copied(s, block)) stream_wait(stream, buffer->up);
    int64_t next = block + 1 - BUFFERS; /* shares its buffer with the block whose backward was enqueued before */
    if (!is_copied(s, next)) return;
    const struct buffer *freed = &s->buffers[next % BUFFERS];
    follow(s, stream);
    stream_copy_in_order(s->stream, freed->memory, host_input(s, next), bytes);
    event_record(freed->up, s->stream);
}

enum status activation_store_new(struct device *device, int64_t first, int64_t blocks, size_t bytes,
                                 struct activation_store **store, struct error *err)
{
    *store = NULL;
    RELEASED(activation_store_drop) struct activation_store *s = memory_zeroed(1, sizeof *s);
    s->device = device;
    s->first = first;
    s->blocks = blocks;
    s->bytes = bytes;
    s->verbs = (struct activation_verbs){.self = s, .buffers = BUFFERS, .keep = store_keep, .fetch = store_fetch};
    TRY(stream_new(device, STREAM_COMM, &s->stream, err));
    TRY(event_new(device, &s->computed, err));
    for (int i = 0; i < BUFFERS; i++) {
        TRY(event_new(device, &s->buffers[i].down, err));
        TRY(event_new(device, &s->buffers[i].up, err));
    }
    *store = TAKEN(s);
    return STATUS_OK;
}

void activation_store_free(struct activation_store *s)
{
    if (!s) return;
    stream_free(s->stream);
    event_free(s->computed);
    for (int i = 0; i < BUFFERS; i++) {
        event_free(s->buffers[i].down);
        event_free(s->buffers[i].up);
    }
    free(s);
}

void activation_store_layout(struct activation_store *s, struct arena *host)
{
    s->host = arena_take(host, MEM_ACTIVATIONS, (size_t)copied_blocks(s) * s->bytes);
}

const struct activation_verbs *activation_store_verbs(const struct activation_store *s)
{
    return &s->verbs;
}
