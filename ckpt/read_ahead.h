/* read_ahead.h: a thread that reads pieces of files ahead of those who use them, so that the disk and the CPU work at
 * the same time.
 *
 *     read_ahead_new(pieces, …)          the thread begins: fetch() reads piece 0, 1, … into buffers
 *     piece = read_ahead_take()          the next piece; waits until it was read
 *     read_ahead_give(piece)             its buffer is free for another piece
 *     read_ahead_free()                  ends the thread, whether or not all pieces were taken
 *
 * One thread reads, in the order of the files: a file system reads ahead of one reader that goes through a file from
 * front to back, and stops doing so when several read in turns (docs/performance.md). Memory is bounded: READ_AHEAD
 * pieces, and one for each thread that uses them. A failed read is a piece as well, after which there are no others.
 *
 * Any number of threads may take and give. A single piece is read by who takes it, without a thread. */
#ifndef ZTRAIN_CKPT_READ_AHEAD_H
#define ZTRAIN_CKPT_READ_AHEAD_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { READ_AHEAD = 4 }; /* pieces that are read or being read, and wait to be taken */

struct read_ahead_piece {
    int64_t number; /* from 0 */
    uint8_t *bytes; /* [uncached_room(buffer_bytes)] the buffer, owned by the read_ahead; for uncached_read() */
    void *place;    /* [place_bytes] where it comes from and belongs to, in the words of fetch(); likewise */
    enum status status;
    struct error err; /* of fetch() */
    bool full;        /* fetched and not given back */
};

struct read_ahead_source {
    void *context;
    size_t buffer_bytes, place_bytes; /* of each piece */
    /* Reads the next piece into piece->bytes and fills in *piece->place. Calls are in order, never two at a time. */
    enum status (*fetch)(void *context, struct read_ahead_piece *piece, struct error *err);
    /* Called once for each piece that was fetched without an error, when it is given back or dropped. May be NULL. */
    void (*release)(void *context, struct read_ahead_piece *piece);
};

struct read_ahead;

/* pieces: how many there are; users: threads that take them. STATUS_DEVICE: no memory, or no thread. */
enum status read_ahead_new(const struct read_ahead_source *source, int64_t pieces, int users, struct read_ahead **ahead,
                           struct error *err);

/* The next piece, whose status may be a failure. NULL: an earlier piece has failed. At most `pieces` calls. */
struct read_ahead_piece *read_ahead_take(struct read_ahead *ahead);
void read_ahead_give(struct read_ahead *ahead, struct read_ahead_piece *piece);

/* Waits for the read that is under way. NULL is allowed. */
void read_ahead_free(struct read_ahead *ahead);

#endif
