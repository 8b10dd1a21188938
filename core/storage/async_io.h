/* SPDX-License-Identifier: Apache-2.0 */
/* async_io.h: asynchronous reads and writes of large pieces of files, for state that is kept on a local disk.
 *
 * A request moves a range of a file to or from memory, in blocks of `block_size` bytes; up to `queue_depth` of them are
 * in flight, those of earlier requests first:
 *
 *     async_io_submit ─> | request | request | …  ─ blocks ─>  engine: io_uring, or threads with pread() and pwrite()
 *     async_io_wait   <─────────────── the last block of the request is done, or one of them has failed
 *
 * The engine is io_uring where the kernel has it and allows to make and to enter a ring (containers often do not), else
 * a pool of `queue_depth` threads. ZTRAIN_AIO=io_uring or ZTRAIN_AIO=threads chooses one.
 *
 * A transfer that ends early is continued. A file that ends before the range is an error. On files opened with O_DIRECT
 * memory, offset and length are multiples of ASYNC_IO_ALIGN.
 *
 * Any thread may submit and wait (a slow call, core/heartbeat.h); nothing is allocated after async_io_new(). */
#pragma once

#include "core/training/settings.h"

enum { ASYNC_IO_ALIGN = 4096, ASYNC_IO_DEPTH_MAX = 1024 };

struct async_io;

struct io_transfer {
    bool write;
    int fd;
    const char *path; /* for messages */
    void *data;
    int64_t bytes, offset; /* of the range in the file */
};

/* The caller owns it, all zero at first, the path and the memory until async_io_wait() returns. Opaque. */
struct io_request {
    struct io_transfer transfer;
    bool active;             /* submitted, not waited for yet */
    int64_t issued, pending; /* bytes that the engine has taken; bytes that are not done */
    int code;                /* the errno of the failure at the lowest offset; 0: none */
    int64_t failed_at;       /* offset in the file */
    double done_at;          /* on the clock of a simulated disk */
    struct io_request *next;
};

/* STATUS_USAGE: ZTRAIN_AIO is wrong, or it names io_uring and the kernel refuses that. */
enum status async_io_new(const struct aio_settings *settings, struct async_io **io, struct error *err);
/* Waits until all requests are done; may be NULL. */
void async_io_free(struct async_io *io);
RELEASER(async_io_drop, struct async_io, async_io_free)

/* For the log: "io_uring, …" or "8 threads with pread and pwrite (…)". Valid while io lives. */
const char *async_io_engine(const struct async_io *io);

/* The request is not active. */
void async_io_submit(struct async_io *io, struct io_request *request, const struct io_transfer *transfer);

/* Waits until a request is done. STATUS_BROKEN: its blocks' first failure, which one of several that wait gets. */
enum status async_io_wait(struct async_io *io, struct io_request *request, struct error *err);
