/* read_ahead.c: see read_ahead.h. The buffers are a ring: piece n is in slot n % slots. */
#include "ckpt/read_ahead.h"

#include "core/clock.h"
#include "core/storage/uncached_read.h"
#include "core/thread.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct read_ahead {
    struct read_ahead_source source;
    int64_t pieces;
    int slots;
    struct read_ahead_piece *ring; /* [slots] owned, with their places */
    uint8_t *buffers;              /* owned; of all slots */
    pthread_mutex_t mutex;
    pthread_cond_t filled, emptied;
    int64_t fetched, taken; /* pieces so far; the failed one counts */
    bool failed, stop;      /* of a piece; the thread shall end */
    bool runs;              /* there is a thread */
    pthread_t thread;
};

/* Fetches the next piece into its slot, which is empty. Called with the mutex held; lets go of it meanwhile. */
static void fetch_next(struct read_ahead *ahead)
{
    struct read_ahead_piece *piece = &ahead->ring[ahead->fetched % ahead->slots];
    piece->number = ahead->fetched;
    pthread_mutex_unlock(&ahead->mutex);
    piece->status = ahead->source.fetch(ahead->source.context, piece, &piece->err);
    pthread_mutex_lock(&ahead->mutex);
    piece->full = true;
    ahead->failed = piece->status != STATUS_OK;
    ahead->fetched++;
    pthread_cond_broadcast(&ahead->filled);
}

static void *fetch_all(void *argument)
{
    struct read_ahead *ahead = argument;
    pthread_setname_np(pthread_self(), "ztrain-reader");
    pthread_mutex_lock(&ahead->mutex);
    while (!ahead->stop && !ahead->failed && ahead->fetched < ahead->pieces)
        if (ahead->ring[ahead->fetched % ahead->slots].full)
            pthread_cond_wait(&ahead->emptied, &ahead->mutex);
        else
            fetch_next(ahead);
    pthread_mutex_unlock(&ahead->mutex);
    return NULL;
}

static enum status ring_new(struct read_ahead *ahead, struct error *err)
{
    size_t stride;
    bool enough = true;
    ahead->ring = calloc((size_t)ahead->slots, sizeof *ahead->ring);
    ahead->buffers = uncached_memory(ahead->source.buffer_bytes, (size_t)ahead->slots, &stride);
    for (int i = 0; ahead->ring && ahead->buffers && i < ahead->slots; i++) {
        ahead->ring[i].bytes = ahead->buffers + (size_t)i * stride;
        ahead->ring[i].place = calloc(1, ahead->source.place_bytes);
        enough &= ahead->ring[i].place != NULL;
    }
    if (!ahead->ring || !ahead->buffers || !enough)
        return error_set(err, STATUS_DEVICE, "out of memory for reading ahead");
    return STATUS_OK;
}

enum status read_ahead_new(const struct read_ahead_source *source, int64_t pieces, int users, struct read_ahead **out,
                           struct error *err)
{
    enum status status = STATUS_OK;
    struct read_ahead *ahead = calloc(1, sizeof *ahead);
    if (!ahead)
        return error_set(err, STATUS_DEVICE, "out of memory for reading ahead");
    ahead->source = *source;
    ahead->pieces = pieces;
    ahead->slots = pieces < READ_AHEAD + users ? (int)pieces : READ_AHEAD + users;
    pthread_mutex_init(&ahead->mutex, NULL);
    condition_init(&ahead->filled);
    condition_init(&ahead->emptied);
    TRY_GOTO(ring_new(ahead, err));
    if (pieces > 1) {
        int code = thread_start(&ahead->thread, 0, fetch_all, ahead);
        if (code)
            TRY_GOTO(error_set(err, STATUS_DEVICE, "cannot start a thread that reads ahead: %s", strerror(code)));
        ahead->runs = true;
    }
    *out = ahead;
    return STATUS_OK;
fail:
    read_ahead_free(ahead);
    return status;
}

struct read_ahead_piece *read_ahead_take(struct read_ahead *ahead)
{
    struct read_ahead_piece *piece = NULL;
    pthread_mutex_lock(&ahead->mutex);
    ASSERT(ahead->taken < ahead->pieces);
    int64_t number = ahead->taken++;
    while (ahead->fetched <= number && !ahead->failed)
        if (ahead->runs)
            pthread_cond_wait(&ahead->filled, &ahead->mutex);
        else
            fetch_next(ahead);
    if (number < ahead->fetched)
        piece = &ahead->ring[number % ahead->slots];
    pthread_mutex_unlock(&ahead->mutex);
    return piece;
}

/* Called with the mutex held, or by the only thread. */
static void drop(struct read_ahead *ahead, struct read_ahead_piece *piece)
{
    if (piece->status == STATUS_OK && ahead->source.release)
        ahead->source.release(ahead->source.context, piece);
    piece->full = false;
}

void read_ahead_give(struct read_ahead *ahead, struct read_ahead_piece *piece)
{
    pthread_mutex_lock(&ahead->mutex);
    drop(ahead, piece);
    pthread_cond_signal(&ahead->emptied);
    pthread_mutex_unlock(&ahead->mutex);
}

void read_ahead_free(struct read_ahead *ahead)
{
    if (!ahead)
        return;
    pthread_mutex_lock(&ahead->mutex);
    ahead->stop = true;
    pthread_cond_signal(&ahead->emptied);
    pthread_mutex_unlock(&ahead->mutex);
    if (ahead->runs)
        pthread_join(ahead->thread, NULL);
    for (int i = 0; ahead->ring && i < ahead->slots; i++) {
        if (ahead->ring[i].full)
            drop(ahead, &ahead->ring[i]);
        free(ahead->ring[i].place);
    }
    free(ahead->ring);
    free(ahead->buffers);
    pthread_cond_destroy(&ahead->filled);
    pthread_cond_destroy(&ahead->emptied);
    pthread_mutex_destroy(&ahead->mutex);
    free(ahead);
}
