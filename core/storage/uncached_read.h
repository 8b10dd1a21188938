/* SPDX-License-Identifier: Apache-2.0 */
/* uncached_read.h: reads large parts of a file from front to back, past the page cache if that is faster.
 *
 * The page cache costs more CPU time than the disk needs (docs/performance.md, "Reading a checkpoint"). On local disks
 * a part that it does not hold is read with O_DIRECT; huge pages (uncached_memory()) give the disk few, large segments.
 * Small parts, other file systems, and all after a failed direct read go through the cache. Any number of threads. */
#pragma once

#include "core/status.h"

#include <stdatomic.h>

enum { UNCACHED_ALIGN = 4096, UNCACHED_LEAST = 256 << 10 /* smaller parts are read through the cache */ };

struct uncached_file {
    const char *path;      /* borrowed; for messages */
    int fd;                /* borrowed; O_DIRECT is switched on and off */
    atomic_bool able;      /* takes direct reads, as far as is known; several at a time are faster than one */
    pthread_mutex_t mutex; /* guards `direct`, and that it stays false once `able` is */
    bool direct;           /* O_DIRECT is on now */
};

void uncached_file_init(struct uncached_file *file, int fd, const char *path);
/* No thread may be reading. */
void uncached_file_release(struct uncached_file *file);

/* The room that uncached_read() needs for parts of at most `bytes`. */
size_t uncached_room(size_t bytes);

/* `count` buffers of uncached_room(bytes), at a stride of UNCACHED_ALIGN's multiples, for free(). NULL: no memory. */
uint8_t *uncached_memory(size_t bytes, size_t count, size_t *stride);

/* Reads `bytes` at `offset` into `buffer` (UNCACHED_ALIGN); *data is the first. Errors of fs_pread(), with `code`. */
enum status uncached_read(struct uncached_file *file, uint8_t *buffer, size_t bytes, int64_t offset, enum status code,
                          const uint8_t **data, struct error *err);
