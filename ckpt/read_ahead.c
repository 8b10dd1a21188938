/* SPDX-License-Identifier: Apache-2.0 */
/* read_ahead.c: see read_ahead.h. The buffers are a ring: piece n is in slot n % slots. */
#include "ckpt/read_ahead.h"

#include "core/core.h"
#include "core/storage/uncached_read.h"

struct read_ahead {
    struct read_ahead_source source;
    int64_t pieces;
    int slots;
    struct read_ahead_piece *ring; /* [slots] owned */
    uint8_t *buffers;              /* owned; of all slots */
    pthread_mutex_t mutex;
    pthread_cond_t filled;  /* a piece is ready, or no more are begun: for those who take */
    pthread_cond_t changed; /* a slot is empty, the turn is free, or `stop`: for those who read */
    int64_t begun, taken;   /* pieces so far */
    bool turn;              /* somebody is naming a piece, reading it in turn, or reading it again */
    bool failed, stop;      /* no more pieces are begun: one has failed; the user wants no more */
    int threads;            /* that run */
    pthread_t thread[READ_AHEAD_THREADS];
};

static struct read_ahead_piece *slot_of(struct read_ahead *ahead, int64_t number)
{
    return &ahead->ring[number % ahead->slots];
}

/* Called with the mutex held, as are all of these. */
static void turn_take(struct read_ahead *ahead)
{
    while (ahead->turn) pthread_cond_wait(&ahead->changed, &ahead->mutex);
    ahead->turn = true;
}

static void turn_give(struct read_ahead *ahead)
{
    ahead->turn = false;
    pthread_cond_broadcast(&ahead->changed);
}

/* Reads a piece that was named; `turned`: by the thread that has the turn, which it keeps. Lets go of the mutex. */
static void read_named(struct read_ahead *ahead, struct read_ahead_piece *piece, bool turned)
{
    const struct read_ahead_source *source = &ahead->source;
    pthread_mutex_unlock(&ahead->mutex);
    piece->status = source->read(source->context, piece, &piece->err);
    pthread_mutex_lock(&ahead->mutex);
    if (piece->status == STATUS_OK || !source->again) return;
    if (!turned) turn_take(ahead);
    pthread_mutex_unlock(&ahead->mutex);
    piece->status = source->again(source->context, piece, piece->status, &piece->err);
    pthread_mutex_lock(&ahead->mutex);
    if (!turned) turn_give(ahead);
}

/* Begins the next piece, whose slot is empty, and reads it. The turn is free. Lets go of the mutex. */
static void fetch_next(struct read_ahead *ahead)
{
    const struct read_ahead_source *source = &ahead->source;
    turn_take(ahead);
    struct read_ahead_piece *piece = slot_of(ahead, ahead->begun);
    piece->number = ahead->begun++;
    piece->occupied = true;
    pthread_mutex_unlock(&ahead->mutex);
    piece->status = source->next(source->context, piece, &piece->err);
    piece->named = piece->status == STATUS_OK;
    const bool in_turn = piece->named && piece->in_turn;
    pthread_mutex_lock(&ahead->mutex);
    if (!piece->named) ahead->failed = true; /* before another thread has the turn */
    if (!in_turn) turn_give(ahead);
    if (piece->named) read_named(ahead, piece, in_turn);
    piece->ready = true;
    ahead->failed |= piece->status != STATUS_OK;
    if (in_turn) turn_give(ahead);
    pthread_cond_broadcast(&ahead->filled);
}

static void *read_ahead_fetch(void *argument)
{
    struct read_ahead *ahead = argument;
    pthread_setname_np(pthread_self(), "ztrain-reader");
    LOCKED(&ahead->mutex);
    while (!ahead->stop && !ahead->failed && ahead->begun < ahead->pieces)
        if (ahead->turn || slot_of(ahead, ahead->begun)->occupied)
            pthread_cond_wait(&ahead->changed, &ahead->mutex);
        else
            fetch_next(ahead);
    return NULL;
}

enum status read_ahead_new(const struct read_ahead_source *source, int64_t pieces, int users, struct read_ahead **out,
                           struct error *err)
{
    RELEASED(read_ahead_drop) struct read_ahead *ahead = memory_zeroed(1, sizeof *ahead);
    ahead->source = *source;
    ahead->pieces = pieces;
    ahead->slots = pieces < READ_AHEAD + users ? (int)pieces : READ_AHEAD + users;
    pthread_mutex_init(&ahead->mutex, NULL);
    condition_init(&ahead->filled);
    condition_init(&ahead->changed);
    size_t stride;
    ahead->ring = memory_zeroed((size_t)ahead->slots, sizeof *ahead->ring);
    ahead->buffers = uncached_memory(source->buffer_bytes, (size_t)ahead->slots, &stride);
    if (!ahead->buffers) TRY(error_set(err, STATUS_DEVICE, "out of memory for reading ahead"));
    for (int i = 0; i < ahead->slots; i++) ahead->ring[i].bytes = ahead->buffers + (size_t)i * stride;
    for (int threads = 0; pieces > 1 && threads < READ_AHEAD_THREADS; threads++) {
        int code = thread_start(&ahead->thread[threads], 0, read_ahead_fetch, ahead);
        if (code) TRY(error_set(err, STATUS_DEVICE, "cannot start a thread that reads ahead: %s", strerror(code)));
        ahead->threads++;
    }
    *out = TAKEN(ahead);
    return STATUS_OK;
}

struct read_ahead_piece *read_ahead_take(struct read_ahead *ahead)
{
    LOCKED(&ahead->mutex);
    ASSERT(ahead->taken < ahead->pieces);
    const int64_t number = ahead->taken++;
    struct read_ahead_piece *piece = slot_of(ahead, number);
    if (!ahead->threads) fetch_next(ahead);
    while (!(piece->ready && piece->number == number) && !(ahead->failed && ahead->begun <= number))
        pthread_cond_wait(&ahead->filled, &ahead->mutex);
    if (ahead->begun <= number) piece = NULL;
    return piece;
}

/* Called with the mutex held, or by the only thread. */
static void drop(struct read_ahead *ahead, struct read_ahead_piece *piece)
{
    if (piece->named) ahead->source.release(ahead->source.context, piece);
    piece->named = piece->occupied = piece->ready = false;
}

void read_ahead_give(struct read_ahead *ahead, struct read_ahead_piece *piece)
{
    LOCKED(&ahead->mutex);
    drop(ahead, piece);
    pthread_cond_broadcast(&ahead->changed);
}

void read_ahead_free(struct read_ahead *ahead)
{
    if (!ahead) return;
    thread_tell(&ahead->stop, &ahead->mutex, &ahead->changed);
    for (int i = 0; i < ahead->threads; i++) pthread_join(ahead->thread[i], NULL);
    for (int i = 0; i < ahead->slots; i++) drop(ahead, &ahead->ring[i]);
    free(ahead->ring);
    free(ahead->buffers);
    pthread_cond_destroy(&ahead->filled);
    pthread_cond_destroy(&ahead->changed);
    pthread_mutex_destroy(&ahead->mutex);
    free(ahead);
}
