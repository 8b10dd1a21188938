/* io_engine.h: the two engines of async_io.h: each takes blocks from a queue until it ends, on threads of its own. */
#pragma once

#include "core/storage/io_queue.h"

#include <stddef.h>

struct uring_engine;

/* *code: the errno with which the kernel refuses io_uring, and *engine is NULL; 0: it runs. STATUS_DEVICE: no thread or
 * no memory. */
enum status uring_engine_start(struct io_queue *queue, int depth, struct uring_engine **engine, int *code,
                               struct error *err);
/* After io_queue_end(): waits for all blocks; may be NULL. */
void uring_engine_stop(struct uring_engine *engine);

struct thread_engine;

enum status thread_engine_start(struct io_queue *queue, int threads, struct thread_engine **engine, struct error *err);
/* After io_queue_end(): waits for all blocks; may be NULL. */
void thread_engine_stop(struct thread_engine *engine);
