/* io_engine_threads.c: blocks are moved by pread() and pwrite(), one at a time on each thread. */
#include "core/storage/io_queue.h"

#include "core/memory.h"
#include "core/thread.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STACK_BYTES = 64 << 10 };

struct thread_engine {
    struct io_queue *queue; /* borrowed */
    int count;
    pthread_t threads[];
};

static void *move_blocks(void *argument)
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

enum status thread_engine_start(struct io_queue *queue, int threads, struct thread_engine **out, struct error *err)
{
    struct thread_engine *engine = memory_zeroed(1, sizeof *engine + (size_t)threads * sizeof *engine->threads);
    *out = engine;
    engine->queue = queue;
    for (int i = 0; i < threads; i++) {
        int code = thread_start(&engine->threads[i], STACK_BYTES, move_blocks, queue);
        if (code)
            return error_set(err, STATUS_DEVICE, "cannot start a thread: %s", strerror(code));
        engine->count++;
    }
    return STATUS_OK;
}

void thread_engine_stop(struct thread_engine *engine)
{
    if (!engine)
        return;
    for (int i = 0; i < engine->count; i++)
        pthread_join(engine->threads[i], NULL);
    free(engine);
}
