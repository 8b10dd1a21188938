/* SPDX-License-Identifier: Apache-2.0 */
/* io_engine_uring.c: one thread keeps up to `depth` blocks in an io_uring.
 *
 *     take blocks while a slot is free ─> submit and wait for one completion ─> account for all that are there ─┐
 *     ▲──────────────────────────────────────────────────────────────────────────────────────────────────────────┘
 *
 * Without a block in flight the thread sleeps on the queue. A block that arrives while others are in flight is taken at
 * the next completion, which a disk delivers within the time of one block. */
#include "core/storage/io_queue.h"

#include <liburing.h>

struct uring_engine {
    struct io_queue *queue; /* borrowed */
    struct io_uring ring;
    bool has_ring, runs;
    int depth, in_flight;
    struct io_block *slots; /* (depth); a free one has no request */
    pthread_t thread;
};

static void enqueue(struct uring_engine *engine, struct io_block *block)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&engine->ring);
    ASSERT(sqe); /* the ring is as large as the slots are many */
    if (block->write)
        io_uring_prep_write(sqe, block->fd, block->data, (unsigned)block->bytes, (uint64_t)block->offset);
    else
        io_uring_prep_read(sqe, block->fd, block->data, (unsigned)block->bytes, (uint64_t)block->offset);
    io_uring_sqe_set_data(sqe, block);
}

/* Fills the free slots. Sleeps only while nothing is in flight; false: the queue has ended. */
static bool fill_slots(struct uring_engine *engine)
{
    for (int i = 0; i < engine->depth; i++) {
        struct io_block *slot = &engine->slots[i];
        if (slot->request) continue;
        bool idle = engine->in_flight == 0;
        if (!io_queue_take(engine->queue, idle, slot)) {
            slot->request = NULL;
            return !idle;
        }
        engine->in_flight++;
        enqueue(engine, slot);
    }
    return true;
}

static void collect(struct uring_engine *engine)
{
    struct io_uring_cqe *cqe;
    while (io_uring_peek_cqe(&engine->ring, &cqe) == 0) {
        struct io_block *block = io_uring_cqe_get_data(cqe);
        int64_t result = cqe->res;
        io_uring_cqe_seen(&engine->ring, cqe);
        if (io_queue_moved(engine->queue, block, result)) {
            enqueue(engine, block);
        } else {
            block->request = NULL;
            engine->in_flight--;
        }
    }
}

static void *uring_run(void *argument)
{
    struct uring_engine *engine = argument;
    pthread_setname_np(pthread_self(), "ztrain-uring");
    while (fill_slots(engine)) {
        int code = io_uring_submit_and_wait(&engine->ring, 1);
        if (code < 0 && code != -EINTR && code != -EAGAIN && code != -EBUSY) BUG("io_uring_enter: %s", strerror(-code));
        collect(engine);
    }
    return NULL;
}

/* Passes a no-op through the ring: a filter of system calls may refuse to enter it. Returns 0 or an errno. */
static int try_ring(struct io_uring *ring)
{
    struct io_uring_cqe *cqe;
    io_uring_prep_nop(io_uring_get_sqe(ring));
    int code;
    while ((code = io_uring_submit_and_wait(ring, 1)) == -EINTR) continue;
    if (code >= 0) code = io_uring_peek_cqe(ring, &cqe);
    if (code < 0) return -code;
    io_uring_cqe_seen(ring, cqe);
    return 0;
}

/* 0, or the errno with which the kernel refuses the ring. */
static int make_ring(struct uring_engine *engine)
{
    int code = io_uring_queue_init((unsigned)engine->depth, &engine->ring, 0);
    if (code) return -code;
    engine->has_ring = true;
    struct io_uring_probe *p = io_uring_get_probe_ring(&engine->ring);
    bool able = p && io_uring_opcode_supported(p, IORING_OP_READ) && io_uring_opcode_supported(p, IORING_OP_WRITE);
    io_uring_free_probe(p);
    return able ? try_ring(&engine->ring) : EOPNOTSUPP;
}

enum status uring_engine_start(struct io_queue *q, int depth, struct uring_engine **out, int *code, struct error *err)
{
    struct uring_engine *engine = memory_zeroed(1, sizeof *engine);
    *out = NULL;
    engine->queue = q;
    engine->depth = depth;
    engine->slots = memory_zeroed((size_t)depth, sizeof *engine->slots);
    *code = make_ring(engine);
    int no_thread = *code ? 0 : thread_start(&engine->thread, 0, uring_run, engine);
    engine->runs = !*code && !no_thread;
    if (engine->runs) {
        *out = engine;
        return STATUS_OK;
    }
    uring_engine_stop(engine);
    if (no_thread) return error_set(err, STATUS_DEVICE, "cannot start a thread: %s", strerror(no_thread));
    return STATUS_OK;
}

void uring_engine_stop(struct uring_engine *engine)
{
    if (!engine) return;
    if (engine->runs) pthread_join(engine->thread, NULL);
    if (engine->has_ring) io_uring_queue_exit(&engine->ring);
    free(engine->slots);
    free(engine);
}
