/* SPDX-License-Identifier: Apache-2.0 */
#include "core/storage/io_queue.h"

#include "core/faults.h"

void io_queue_init(struct io_queue *queue, int64_t block_size)
{
    *queue = (struct io_queue){.block_size = block_size};
    queue->last = &queue->first;
    pthread_mutex_init(&queue->mutex, NULL);
    condition_init(&queue->arrived);
    condition_init(&queue->done);
}

void io_queue_release(struct io_queue *queue)
{
    pthread_cond_destroy(&queue->done);
    pthread_cond_destroy(&queue->arrived);
    pthread_mutex_destroy(&queue->mutex);
}

void io_queue_add(struct io_queue *queue, struct io_request *request, const struct io_transfer *transfer)
{
    LOCKED(&queue->mutex);
    ASSERT(!request->active);
    *request = (struct io_request){.transfer = *transfer, .active = true, .pending = transfer->bytes};
    *queue->last = request;
    queue->last = &request->next;
    pthread_cond_broadcast(&queue->arrived);
}

void io_queue_end(struct io_queue *queue)
{
    thread_tell(&queue->end, &queue->mutex, &queue->arrived);
}

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

bool io_queue_take(struct io_queue *queue, bool wait, struct io_block *block)
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

bool io_queue_moved(struct io_queue *queue, struct io_block *block, int64_t result)
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
