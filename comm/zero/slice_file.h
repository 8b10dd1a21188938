/* SPDX-License-Identifier: Apache-2.0 */
/* slice_file.h: own slices of units in a file on a local disk, for state that is offloaded to nvme.
 *
 * A slice is cut into pieces of at most `piece` elements, so that host memory does not grow with the largest unit. A
 * piece of each part is a record of a file (core/storage), and passes through buffers in host memory, which a GPU can
 * reach:
 *
 *     file      | unit 0, piece 0: part 0, part 1, … | unit 0, piece 1 | … | unit 1, piece 0 | …
 *     buffers   | record | record | … |                parts: master, m and v; else there is one
 *
 * Pieces are named by an element of the slice: `at`. Two ways of access, each with buffers of its own:
 *
 *     walks     in the order of the file: the next pieces are read while one is in use, and the last one is written
 *     streams   host functions that are enqueued on streams. A buffer is chosen when the work is enqueued
 *
 * A failed transfer stays as the error of slice_file_status(): what was computed from its bytes must not be used. */
#pragma once

#include "core/model/shard.h"
#include "core/storage/disk.h"
#include "gpu/arena.h"
#include "gpu/device.h"

struct slice_file;

enum { SLICE_FILE_PARTS = 3, SLICE_FILE_ALIGN = ASYNC_IO_ALIGN / 2 };

struct slice_file_config {
    const char *name;   /* of the file, and of its slices in the log */
    const char *folder; /* nvme_path */
    int rank;
    const struct shard_layout *layout; /* borrowed */
    int first, end;                    /* units in the file: first up to end - 1 */
    int parts;                         /* own slices in a record */
    enum dtype dtype[SLICE_FILE_PARTS];
    int64_t piece; /* elements, a multiple of SLICE_FILE_ALIGN */
    struct aio_settings io;
    int walk_buffers;              /* at most, for walks; 0: none */
    bool read_ahead, write_behind; /* of walks */
    int stream_buffers;            /* at least, for streams; 0: none */
    int writers;                   /* streams that write: each has one or two of those buffers */
};

/* Counts pieces and buffers, which suffices for slice_file_layout() and slice_file_bytes(). */
struct slice_file *slice_file_new(const struct slice_file_config *config);
/* Makes the file on the disk, with all space reserved. STATUS_DEVICE: the disk is full, or fails. */
enum status slice_file_open(struct slice_file *file, const struct disk *disk, struct error *err);
/* The streams that use it must be idle; may be NULL. */
void slice_file_free(struct slice_file *file);

/* Takes the buffers; first dry, then real. */
void slice_file_layout(struct slice_file *file, struct arena *host, enum mem_kind kind);
/* Bytes on the disk. */
int64_t slice_file_bytes(const struct slice_file *file);
/* The first failure of a transfer so far. */
enum status slice_file_status(struct slice_file *file, struct error *err);

/* ---- walks --------------------------------------------------------------- */

/* Waits for the piece with element `at` and starts to read those after it. parts: the addresses of element `at`. */
void slice_file_walk_to(struct slice_file *file, int unit, int64_t at, void *parts[]);
/* Starts to write the piece that the walk has come to. */
void slice_file_walk_store(struct slice_file *file, int unit, int64_t at);
/* Starts to read the first pieces. */
void slice_file_walk_ahead(struct slice_file *file);

/* ---- streams, of files with one part ------------------------------------- */

/* Enqueues on `stream`, always the same one, reads of the unit's first pieces that are not in buffers. */
void slice_file_read_ahead(struct slice_file *file, int unit, struct stream *stream);
/* Enqueues on that stream the copy of the unit to `memory`, piece by piece. */
void slice_file_h2d(struct slice_file *file, int unit, void *memory, struct stream *stream);
/* Enqueues the copy of `memory` to the unit; the stream is writer 0. */
void slice_file_d2h(struct slice_file *file, int unit, const void *memory, struct stream *stream);

/* Returns the address at which work on `stream` may write the piece at element `at`, until slice_file_end_write()
 * enqueues its way to the disk. writer: which of the streams that write this one is. */
void *slice_file_begin_write(struct slice_file *file, int unit, int64_t at, int writer, struct stream *stream);
void slice_file_end_write(struct slice_file *file, int unit, int64_t at, int writer, struct stream *stream);

/* ---- between steps, when no stream has work on the file ------------------ */

/* Reads or writes a part of a unit. memory: aligned to ASYNC_IO_ALIGN, the bytes of the slice rounded up to it; with
 * moments in 8 bits ASYNC_IO_ALIGN more, and a write changes what is there. */
enum status slice_file_transfer(struct slice_file *file, bool write, int unit, int part, void *memory,
                                struct error *err);
