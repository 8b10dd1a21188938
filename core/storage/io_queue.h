/* SPDX-License-Identifier: Apache-2.0 */
/* io_queue.h: the queue between those who submit requests (async_io.h) and the engine that moves their blocks. */
#pragma once

#include "core/core.h"
#include "core/storage/async_io.h"

struct io_queue {
    int64_t block_size;
    pthread_mutex_t mutex;
    pthread_cond_t arrived;   /* a request, or the end */
    pthread_cond_t done;      /* a request is done */
    struct io_request *first; /* with blocks that the engine has not taken; in the order of submission */
    struct io_request **last; /* where the next request is linked */
    bool end;
};

/* A part of a request, or the rest of it after a short transfer. */
struct io_block {
    struct io_request *request; /* NULL: none */
    bool write;
    int fd;
    char *data;
    int64_t bytes, offset;
};

void io_queue_init(struct io_queue *queue, int64_t block_size);
void io_queue_release(struct io_queue *queue);

void io_queue_add(struct io_queue *queue, struct io_request *request, const struct io_transfer *transfer);
void io_queue_end(struct io_queue *queue); /* the engine ends once the queue is empty */

/* Takes the next block. wait: for one to arrive. Returns false if there is none; after waiting that means the end. */
bool io_queue_take(struct io_queue *queue, bool wait, struct io_block *block);

/* Accounts for a transfer: bytes, or a negative errno. false: the block is done or has failed; true: a rest is left. */
bool io_queue_moved(struct io_queue *queue, struct io_block *block, int64_t result);

struct uring_engine;

/* *code: the errno with which the kernel refuses io_uring (*engine NULL); 0: it runs. STATUS_DEVICE: no thread. */
enum status uring_engine_start(struct io_queue *q, int depth, struct uring_engine **out, int *code, struct error *err);
void uring_engine_stop(struct uring_engine *engine); /* after io_queue_end(): waits for all blocks; may be NULL */
