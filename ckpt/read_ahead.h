/* SPDX-License-Identifier: Apache-2.0 */
/* read_ahead.h: threads that read pieces of files ahead of those who use them.
 *
 *     read_ahead_new(pieces, …)        the threads begin: next() names piece 0, 1, …, and read() reads it into a buffer
 *     piece = read_ahead_take()        the next piece; waits until it was read
 *     read_ahead_give(piece)           its buffer is free for another piece
 *     read_ahead_free()                ends the threads, whether or not all pieces were taken
 *
 * Two threads read, so that a disk has its next request while a thread waits for a core. Pieces that are
 * read in turn are read one at a time and in order: a file server stops reading ahead if several read in turns
 * (docs/performance.md). A failed read is a piece too, and the last one that is begun.
 *
 * Any number of threads may take and give. A single piece is read by who takes it, without a thread. */
#pragma once

#include "core/status.h"

enum {
    READ_AHEAD = 4,        /* pieces that are read or being read, and wait to be taken */
    READ_AHEAD_THREADS = 2 /* reads in flight */
};

struct read_ahead_piece {
    int64_t number; /* from 0 */
    uint8_t *bytes; /* [uncached_room(buffer_bytes)] the buffer, owned by the read_ahead; for uncached_read() */
    bool in_turn;   /* by next(): such pieces are read one at a time */
    enum status status;
    struct error err;            /* of next(), read() or again() */
    bool named, occupied, ready; /* not given back, and: named by next(); begun; read, or failed */
    /* where it comes from and belongs to, by next(): a frame of a rank file, which it owns a share of */
    struct rankfile *file;
    int64_t index;         /* of the frame in the file */
    const uint8_t *stored; /* its bytes in the buffer */
    int64_t from, count;   /* the frame's elements that are wanted; count 0: it is only verified */
    int64_t at;            /* the place of the first of them in the output */
};

struct read_ahead_source {
    void *context;
    size_t buffer_bytes; /* of each piece */
    /* Says which piece comes next. Calls are in order, never two at a time. */
    enum status (*next)(void *context, struct read_ahead_piece *piece, struct error *err);
    /* Reads the piece into piece->bytes, at the same time as any other call. */
    enum status (*read)(void *context, struct read_ahead_piece *piece, struct error *err);
    /* read() has failed with `status` and *err: tries again, or returns the status. Never at the same time as next() or
     * itself. May be NULL. */
    enum status (*again)(void *context, struct read_ahead_piece *piece, enum status status, struct error *err);
    /* Once for each piece that was named, when it is given back or dropped. */
    void (*release)(void *context, struct read_ahead_piece *piece);
};

struct read_ahead;

/* users: threads that take the pieces. STATUS_DEVICE: no memory, or no threads. */
enum status read_ahead_new(const struct read_ahead_source *source, int64_t pieces, int users, struct read_ahead **ahead,
                           struct error *err);

/* The next piece, whose status may be a failure. NULL: an earlier one has failed. At most `pieces` calls. */
struct read_ahead_piece *read_ahead_take(struct read_ahead *ahead);
void read_ahead_give(struct read_ahead *ahead, struct read_ahead_piece *piece);

/* Waits for the reads that are under way. NULL is allowed. */
void read_ahead_free(struct read_ahead *ahead);
RELEASER(read_ahead_drop, struct read_ahead, read_ahead_free)
