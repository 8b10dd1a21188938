/* SPDX-License-Identifier: Apache-2.0 */
/* async_io.c: the engine of threads, the choice of an engine, requests. */
#include "core/storage/async_io.h"

#include "core/storage/io_queue.h"

enum { STACK_BYTES = 64 << 10 };

struct thread_engine {
    struct io_queue *queue; /* borrowed */
    int count;
    pthread_t threads[];
};

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

static enum status thread_engine_start(struct io_queue *q, int threads, struct thread_engine **out, struct error *err)
{
    struct thread_engine *engine = memory_zeroed(1, sizeof *engine + (size_t)threads * sizeof *engine->threads);
    *out = engine;
    engine->queue = q;
    for (int i = 0; i < threads; i++) {
        int code = thread_start(&engine->threads[i], STACK_BYTES, async_io_move_blocks, q);
        if (code) return error_set(err, STATUS_DEVICE, "cannot start a thread: %s", strerror(code));
        engine->count++;
    }
    return STATUS_OK;
}

enum { ENGINE_URING, ENGINE_THREADS };
static const char *const engine_names[] = {"io_uring", "threads"};

struct async_io {
    struct io_queue queue;
    struct uring_engine *uring;
    struct thread_engine *threads;
    char engine[160];
};

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
    return thread_engine_start(&io->queue, depth, &io->threads, err);
}

enum status async_io_new(const struct aio_settings *settings, struct async_io **out, struct error *err)
{
    ASSERT(settings->block_size > 0 && settings->queue_depth > 0 && settings->queue_depth <= ASYNC_IO_DEPTH_MAX);
    *out = NULL;
    RELEASED(async_io_drop) struct async_io *io = memory_zeroed(1, sizeof *io);
    io_queue_init(&io->queue, round_up(settings->block_size, ASYNC_IO_ALIGN));
    TRY(start_engine(io, (int)settings->queue_depth, err));
    *out = TAKEN(io);
    return STATUS_OK;
}

void async_io_free(struct async_io *io)
{
    if (!io) return;
    io_queue_end(&io->queue);
    uring_engine_stop(io->uring);
    for (int i = 0; io->threads && i < io->threads->count; i++) pthread_join(io->threads->threads[i], NULL);
    free(io->threads);
    io_queue_release(&io->queue);
    free(io);
}

const char *async_io_engine(const struct async_io *io)
{
    return io->engine;
}

void async_io_submit(struct async_io *io, struct io_request *request, const struct io_transfer *transfer)
{
    ASSERT(transfer->bytes > 0 && transfer->offset >= 0);
    io_queue_add(&io->queue, request, transfer);
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
