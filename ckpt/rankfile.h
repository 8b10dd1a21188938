/* SPDX-License-Identifier: Apache-2.0 */
/* rankfile.h: rank-00000.zst, one rank's slices of every state and unit.
 *
 * A sequence of zstd frames, and a valid input of the zstd tool (docs/checkpoint-format.md):
 *
 *     | header: skippable frame, 64 bytes | frame | frame | … | table: skippable frame |
 *
 * A frame holds up to RANKFILE_FRAME_ELEMENTS fp32 values of one slice, state by state, unit by unit, so that any range
 * can be read by itself. Its bytes are in four planes (all lowest bytes, …, all highest bytes): the exponents compress,
 * the low bits of the mantissa do not.
 *
 * Readers trust nothing: the table must list exactly the slices that follow from the manifest. OpenMP threads share the
 * frames; bytes are written, and faults reported, in order. */
#pragma once

#include "ckpt/read_ahead.h"

enum { RANKFILE_FRAME_ELEMENTS = 1 << 18 }; /* 1 MiB of fp32 */

/* The slices that a file must hold. The arrays are borrowed. */
struct rankfile_shape {
    int rank, world;
    int num_states, num_units;
    const int64_t *slice;          /* [num_units] elements of each unit's slice, >= 1 */
    const char *const *state_name; /* [num_states] for messages */
    const int64_t *moments;        /* [num_units] as `slice`, of all states but the first; NULL: `slice` */
};

/* The facts about a file that go into the manifest. */
struct rankfile_facts {
    int64_t bytes;
    int64_t num_frames;
    uint64_t index_checksum; /* over the header and the table, including the table's skippable-frame head */
};

/* Or -1 if no file can have this shape (overflow). */
int64_t rankfile_num_frames(const struct rankfile_shape *shape);

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

void rankfile_writer_free(struct rankfile_writer *writer);
RELEASER(rankfile_writer_drop, struct rankfile_writer, rankfile_writer_free)

/* ---- reading ------------------------------------------------------------- */

struct rankfile;

/* Opens `path` and checks size, header and table against shape and facts, which are copied but for shape's arrays. */
enum status rankfile_open(const char *path, const struct rankfile_shape *shape, const struct rankfile_facts *facts,
                          struct rankfile **file, struct error *err);
/* Streams that read from the file keep it open. NULL is allowed. */
void rankfile_close(struct rankfile *file);
RELEASER(rankfile_drop, struct rankfile, rankfile_close)

/* Verifies every frame: its checksum, and that it decompresses to the size in the table. */
enum status rankfile_verify(struct rankfile *file, struct error *err);

/* The frames [*begin, *end) that hold elements [first, first + count) of a slice; count >= 1. */
void rankfile_frames(const struct rankfile *file, int state, int unit, int64_t first, int64_t count, int64_t *begin,
                     int64_t *end);

/* ---- streams of frames --------------------------------------------------- */

/* Frames of one or more files in an order that the caller chooses, read ahead by threads. Memory: 2 MiB for each frame
 * that is read ahead, and 4 MiB for each OpenMP thread. */
struct rankfile_stream;

/* frames: of the whole stream, >= 1. source: only context, next (which calls rankfile_name()) and again (which calls
 * rankfile_read_again()). */
enum status rankfile_stream_new(const struct read_ahead_source *source, int64_t frames, struct rankfile_stream **stream,
                                struct error *err);
/* Unpacks the next `frames` frames into out. An error, that of the first frame that has one, ends the stream. */
enum status rankfile_stream_next(struct rankfile_stream *stream, int64_t frames, float *out, struct error *err);
/* Drops what was not taken. NULL is allowed. */
void rankfile_stream_free(struct rankfile_stream *stream);
RELEASER(rankfile_stream_drop, struct rankfile_stream, rankfile_stream_free)

/* The piece is this frame. The elements that it shares with [first, first + count) of the slice are wanted; `at`: the
 * place of `first` in the output. count 0: the frame is only verified. */
void rankfile_name(struct rankfile *file, int64_t index, int64_t first, int64_t count, int64_t at,
                   struct read_ahead_piece *piece);
/* Reads a piece's frame from `file`, which was opened anew. */
enum status rankfile_read_again(struct rankfile *file, struct read_ahead_piece *piece, struct error *err);
int rankfile_rank(const struct read_ahead_piece *piece);
