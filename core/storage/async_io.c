/* SPDX-License-Identifier: Apache-2.0 */
/* async_io.c: the queue between those who submit requests and the engine that moves their blocks; the engines. */
#include "core/storage/async_io.h"

#include "core/core.h"
#include "core/faults.h"

#include <liburing.h>

/* ---- the queue ----------------------------------------------------------- */

struct io_queue {
    int64_t block_size;
    pthread_mutex_t mutex;
    pthread_cond_t arrived;   /* a request, or the end */
    pthread_cond_t done;      /* a request is done */
    struct io_request *first; /* with blocks that the engine has not taken; in the order of submission */
    struct io_request **last; /* where the next request is linked */
    bool end;                 /* the engine ends once the queue is empty */
};

/* A part of a request, or the rest of it after a short transfer. */
struct io_block {
    struct io_request *request; /* NULL: none */
    bool write;
    int fd;
    char *data;
    int64_t bytes, offset;
};

/* Blocks end at multiples of the block size in the request, so that only its last one may be shorter. */
static void cut_block(struct io_queue *queue, struct io_block *block)
{
    struct io_request *request = queue->first;
    const struct io_transfer *whole = &request->transfer;
    int64_t rest = whole->bytes - request->issued;
    *block = (struct io_block){.request = request,
                               .write = whole->write,
                               .fd = whole->fd,
                               .data = (char *)whole->data + request->issued,
                               .bytes = rest < queue->block_size ? rest : queue->block_size,
                               .offset = whole->offset + request->issued};
    request->issued += block->bytes;
    if (request->issued < whole->bytes) return;
    queue->first = request->next;
    if (!queue->first) queue->last = &queue->first;
}

/* Accounts for a transfer: bytes, or a negative errno. false: the block is done or has failed; true: a rest is left. */
static bool io_queue_moved(struct io_queue *queue, struct io_block *block, int64_t result)
{
    if (result == -EINTR || result == -EAGAIN) return true;
    int code = result < 0 ? (int)-result : 0;
    int64_t moved = code ? 0 : result;
    if (moved < block->bytes) /* direct I/O continues at an aligned place */
        moved = moved / ASYNC_IO_ALIGN * ASYNC_IO_ALIGN;
    if (!code && moved == 0) code = block->write ? ENOSPC : ENODATA; /* nothing can be written; the file ends here */
    if (!code && moved < block->bytes) {
        block->data += moved;
        block->offset += moved;
        block->bytes -= moved;
        LOCKED(&queue->mutex);
        block->request->pending -= moved;
        return true;
    }
    struct io_request *request = block->request;
    LOCKED(&queue->mutex);
    if (code && (!request->code || block->offset < request->failed_at)) {
        request->code = code;
        request->failed_at = block->offset;
    }
    request->pending -= block->bytes;
    if (request->pending == 0) pthread_cond_broadcast(&queue->done);
    return false;
}

/* Takes the next block. wait: until one arrives. Returns false if there is none; with `wait`, none will come. */
static bool io_queue_take(struct io_queue *queue, bool wait, struct io_block *block)
{
    for (int code = 1; code;) {
        pthread_mutex_lock(&queue->mutex);
        while (wait && !queue->first && !queue->end) pthread_cond_wait(&queue->arrived, &queue->mutex);
        bool found = queue->first != NULL;
        if (found) cut_block(queue, block);
        pthread_mutex_unlock(&queue->mutex);
        if (!found) return false;
        code = faults_next(block->write ? FAULT_BLOCKWRITE : FAULT_BLOCKREAD, block->fd, NULL, 0);
        if (code) io_queue_moved(queue, block, -code);
    }
    return true;
}

/* ---- io_uring ------------------------------------------------------------ */

/* One thread keeps up to `depth` blocks in an io_uring.
 *
 *     take blocks while a slot is free ─> submit and wait for one completion ─> account for all that are there ─┐
 *     ▲──────────────────────────────────────────────────────────────────────────────────────────────────────────┘
 *
 * Without a block in flight the thread sleeps on the queue. A block that arrives while others are in flight is taken at
 * the next completion, which a disk delivers within the time of one block. */
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

/* After the queue's end: waits for all blocks; may be NULL. */
static void uring_engine_stop(struct uring_engine *engine)
{
    if (!engine) return;
    if (engine->runs) pthread_join(engine->thread, NULL);
    if (engine->has_ring) io_uring_queue_exit(&engine->ring);
    free(engine->slots);
    free(engine);
}

/* *code: the errno with which the kernel refuses io_uring (*engine NULL); 0: it runs. STATUS_DEVICE: no thread. */
static enum status uring_engine_start(struct io_queue *q, int depth, struct uring_engine **out, int *code,
                                      struct error *err)
{
    struct uring_engine *engine = memory_zeroed(1, sizeof *engine);
    engine->queue = q;
    engine->depth = depth;
    engine->slots = memory_zeroed((size_t)depth, sizeof *engine->slots);
    *code = make_ring(engine);
    int no_thread = *code ? 0 : thread_start(&engine->thread, 0, uring_run, engine);
    engine->runs = !*code && !no_thread;
    if (!engine->runs) uring_engine_stop(TAKEN(engine));
    *out = engine;
    return no_thread ? error_set(err, STATUS_DEVICE, "cannot start a thread: %s", strerror(no_thread)) : STATUS_OK;
}

static void *async_io_move_blocks(void *argument)
{
    struct io_queue *queue = argument;
    struct io_block block;
    pthread_setname_np(pthread_self(), "ztrain-disk");
    while (io_queue_take(queue, true, &block)) {
        int64_t result;
        do {
            result = block.write ? pwrite(block.fd, block.data, (size_t)block.bytes, block.offset)
                                 : pread(block.fd, block.data, (size_t)block.bytes, block.offset);
        } while (io_queue_moved(queue, &block, result < 0 ? -errno : result));
    }
    return NULL;
}

/* ---- the choice of an engine, requests ----------------------------------- */

enum { ENGINE_URING, ENGINE_THREADS };
static const char *const engine_names[] = {"io_uring", "threads"};

struct async_io {
    struct io_queue queue;
    struct uring_engine *uring; /* or NULL */
    pthread_t *threads;         /* (num_threads) */
    int num_threads;
    char engine[160];
};

static enum status start_threads(struct async_io *io, int count, struct error *err)
{
    enum { STACK_BYTES = 64 << 10 };
    io->threads = memory_zeroed((size_t)count, sizeof *io->threads);
    for (; io->num_threads < count; io->num_threads++) {
        int code = thread_start(&io->threads[io->num_threads], STACK_BYTES, async_io_move_blocks, &io->queue);
        if (code) return error_set(err, STATUS_DEVICE, "cannot start a thread: %s", strerror(code));
    }
    return STATUS_OK;
}

static enum status start_engine(struct async_io *io, int depth, struct error *err)
{
    int wanted, refusal = 0;
    TRY(env_choice("ZTRAIN_AIO", engine_names, COUNT_OF(engine_names), &wanted, err));
    if (wanted != ENGINE_THREADS) {
        TRY(uring_engine_start(&io->queue, depth, &io->uring, &refusal, err));
        snprintf(io->engine, sizeof io->engine, "io_uring, %d blocks in flight", depth);
        if (!refusal) return STATUS_OK;
    }
    if (wanted == ENGINE_URING) {
        error_system(err, STATUS_USAGE, refusal, "io_uring cannot be used here");
        return error_hint(err, "without ZTRAIN_AIO, threads are used instead");
    }
    snprintf(io->engine, sizeof io->engine, "%d threads with pread and pwrite (%s%s)", depth,
             refusal ? "io_uring: " : "ZTRAIN_AIO=threads", refusal ? strerror(refusal) : "");
    return start_threads(io, depth, err);
}

enum status async_io_new(const struct aio_settings *settings, struct async_io **out, struct error *err)
{
    ASSERT(settings->block_size > 0 && settings->queue_depth > 0 && settings->queue_depth <= ASYNC_IO_DEPTH_MAX);
    *out = NULL;
    RELEASED(async_io_drop) struct async_io *io = memory_zeroed(1, sizeof *io);
    io->queue.block_size = round_up(settings->block_size, ASYNC_IO_ALIGN);
    io->queue.last = &io->queue.first;
    pthread_mutex_init(&io->queue.mutex, NULL);
    condition_init(&io->queue.arrived);
    condition_init(&io->queue.done);
    TRY(start_engine(io, (int)settings->queue_depth, err));
    *out = TAKEN(io);
    return STATUS_OK;
}

void async_io_free(struct async_io *io)
{
    if (!io) return;
    thread_tell(&io->queue.end, &io->queue.mutex, &io->queue.arrived);
    uring_engine_stop(io->uring);
    for (int i = 0; i < io->num_threads; i++) pthread_join(io->threads[i], NULL);
    free(io->threads);
    pthread_cond_destroy(&io->queue.done);
    pthread_cond_destroy(&io->queue.arrived);
    pthread_mutex_destroy(&io->queue.mutex);
    free(io);
}

const char *async_io_engine(const struct async_io *io)
{
    return io->engine;
}

void async_io_submit(struct async_io *io, struct io_request *request, const struct io_transfer *transfer)
{
    struct io_queue *queue = &io->queue;
    ASSERT(transfer->bytes > 0 && transfer->offset >= 0);
    LOCKED(&queue->mutex);
    ASSERT(!request->active);
    *request = (struct io_request){.transfer = *transfer, .active = true, .pending = transfer->bytes};
    *queue->last = request;
    queue->last = &request->next;
    pthread_cond_broadcast(&queue->arrived);
}

enum status async_io_wait(struct async_io *io, struct io_request *request, struct error *err)
{
    struct io_queue *queue = &io->queue;
    struct slow_call slow;
    pthread_mutex_lock(&queue->mutex);
    const bool active = request->active;
    const struct io_transfer transfer = request->transfer;
    pthread_mutex_unlock(&queue->mutex);
    if (!active) return STATUS_OK;
    heartbeat_slow_begin(&slow, transfer.write ? "writing" : "reading", transfer.path, -1);
    pthread_mutex_lock(&queue->mutex);
    while (request->active && request->pending > 0) pthread_cond_wait(&queue->done, &queue->mutex);
    const int code = request->active ? request->code : 0;
    const int64_t failed_at = request->failed_at;
    request->active = false;
    pthread_mutex_unlock(&queue->mutex);
    heartbeat_slow_end(&slow);
    if (!code) return STATUS_OK;
    if (code == ENODATA)
        return error_set(err, STATUS_BROKEN, "'%s' ends at offset %" PRId64 "; hint: another program has cut it",
                         transfer.path, failed_at);
    return error_system(err, STATUS_BROKEN, code, "cannot %s '%s' at offset %" PRId64,
                        transfer.write ? "write" : "read", transfer.path, failed_at);
}
