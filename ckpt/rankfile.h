/* rankfile.h: rank-00000.zst, one rank's slices of every state and unit.
 *
 * The file is a sequence of zstd frames, and a valid input of the zstd tool (docs/checkpoint-format.md):
 *
 *     | header: skippable frame, 64 bytes | frame | frame | … | table: skippable frame |
 *
 * Each frame holds up to RANKFILE_FRAME_ELEMENTS fp32 values of one slice, independent of the others, so that any range
 * can be read alone. The order is fixed: state by state, unit by unit, from the slice's first element to its last.
 * Inside a frame the bytes are in four planes (all lowest bytes, …, all highest bytes): the exponents compress, the low
 * bits of the mantissa do not.
 *
 * The table has an entry for each frame: its elements, its offset and length, and the checksum (XXH3, 64 bit) of its
 * stored bytes. The manifest's `index_checksum` covers the header and the table. There are no gaps between frames. So a
 * reader that knows the file's size and index checksum finds any changed bit.
 *
 * Readers trust nothing: the table must list exactly the slices that follow from the manifest. OpenMP threads share the
 * work on frames; bytes are written, and faults reported, in order. While they decompress, a thread reads the next
 * frames, also those of the next slices and files (a stream). */
#pragma once

#include "ckpt/read_ahead.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RANKFILE_FRAME_ELEMENTS = 1 << 18 }; /* 1 MiB of fp32 */

/* The slices that a file must hold. The arrays are borrowed. */
struct rankfile_shape {
    int rank, world;
    int num_states, num_units;
    int num_trained;               /* units of all states but the first, which has all units */
    const int64_t *slice;          /* [num_units] elements of each unit's slice, >= 1 */
    const char *const *state_name; /* [num_states] for messages */
};

/* The facts about a file that go into the manifest. */
struct rankfile_facts {
    int64_t bytes;
    int64_t num_frames;
    uint64_t index_checksum; /* over the header and the table, including the table's skippable-frame head */
};

/* ---- writing ------------------------------------------------------------- */

struct rankfile_writer;

/* Creates `path`, which must not exist, and writes the header. level 0: raw blocks, else zstd's level. */
enum status rankfile_writer_new(const char *path, const struct rankfile_shape *shape, int level,
                                struct rankfile_writer **writer, struct error *err);

/* Appends one slice (slice[unit] elements). The slices must be appended in the order of the file. */
enum status rankfile_writer_slice(struct rankfile_writer *writer, int state, int unit, const float *data,
                                  struct error *err);

/* Writes the table and fsyncs the file. */
enum status rankfile_writer_finish(struct rankfile_writer *writer, struct rankfile_facts *facts, struct error *err);

/* Closes the file, finished or not. NULL is allowed. */
void rankfile_writer_free(struct rankfile_writer *writer);

/* ---- reading ------------------------------------------------------------- */

struct rankfile;

/* Opens `path` and checks size, header and table against shape and facts. Both are copied, but the arrays of shape are
 * borrowed. */
enum status rankfile_open(const char *path, const struct rankfile_shape *shape, const struct rankfile_facts *facts,
                          struct rankfile **file, struct error *err);
/* Another owner, who closes the file as well; the last one does so indeed. Any thread. */
struct rankfile *rankfile_retain(struct rankfile *file);
/* NULL is allowed. */
void rankfile_close(struct rankfile *file);

/* Verifies every frame: its checksum, and that it decompresses to the size in the table. Reports the fault with the
 * lowest offset. */
enum status rankfile_verify(struct rankfile *file, struct error *err);

/* ---- streams of frames --------------------------------------------------- */

/* Frames of one or more files in an order that the caller chooses: threads read them ahead, in that order, while
 * those before them are verified and decompressed. Memory: 2 MiB for each frame that is read ahead (READ_AHEAD), and 4
 * MiB for each OpenMP thread. */
struct rankfile_stream;

/* One frame on its way: the place of a piece (read_ahead.h). */
struct rankfile_piece {
    struct rankfile *file; /* an owner of it */
    int64_t index;         /* of the frame in the file */
    const uint8_t *stored; /* its bytes in the piece's buffer */
    int64_t from, count;   /* the frame's elements that are wanted; count 0: it is only verified */
    int64_t at;            /* the place of the first of them in the output */
};

/* Where the frames of a stream come from. The functions are called in the stream's threads, never two at a time. */
struct rankfile_source {
    void *context; /* used until rankfile_stream_free() */
    /* Names the next frame: with rankfile_name(), then rankfile_want() unless it is only verified. */
    enum status (*next)(void *context, struct read_ahead_piece *piece, struct error *err);
    /* The frame could not be read: reads it again with rankfile_read_again(), or returns the status. May be NULL. */
    enum status (*again)(void *context, struct read_ahead_piece *piece, enum status status, struct error *err);
};

/* frames: of the whole stream, >= 1. */
enum status rankfile_stream_new(const struct rankfile_source *source, int64_t frames, struct rankfile_stream **stream,
                                struct error *err);
/* Unpacks the next `frames` frames into out. An error, that of the first frame that has one, ends the stream. */
enum status rankfile_stream_next(struct rankfile_stream *stream, int64_t frames, float *out, struct error *err);
/* Drops what was not taken. NULL is allowed. */
void rankfile_stream_free(struct rankfile_stream *stream);

/* The piece is this frame; it becomes an owner of the file. */
void rankfile_name(struct rankfile *file, int64_t index, struct read_ahead_piece *piece);
/* Reads a piece's frame from `file`, which was opened anew; the piece becomes an owner of it instead of the former. */
enum status rankfile_read_again(struct rankfile *file, struct read_ahead_piece *piece, struct error *err);
/* The rank that wrote the file. */
int rankfile_rank(const struct rankfile *file);
/* Elements [first, first + count) of the frame's slice are wanted, as far as the frame has them; the first of the range
 * has the place `at` in the output. */
void rankfile_want(struct rankfile_piece *piece, int64_t first, int64_t count, int64_t at);
/* The frames [*begin, *end) that hold elements [first, first + count) of a slice; count >= 1. */
void rankfile_frames(const struct rankfile *file, int state, int unit, int64_t first, int64_t count, int64_t *begin,
                     int64_t *end);

/* ---- arithmetic ---------------------------------------------------------- */

/* The number of frames of a file with this shape, or -1 if no file can have it (overflow). */
int64_t rankfile_num_frames(const struct rankfile_shape *shape);
