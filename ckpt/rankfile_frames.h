/* SPDX-License-Identifier: Apache-2.0 */
/* rankfile_frames.h: the layout of a rank file's bytes, and what reading and writing share.
 *
 *     struct rank_header    a skippable zstd frame
 *     frame 0, frame 1, …   zstd frames, without gaps
 *     struct table_head     of a skippable frame
 *     struct frame …        of each frame
 *
 * All numbers are little-endian. A reader learns only `stored` and `checksum` from the table. */
#pragma once

#include "ckpt/rankfile.h"

#include <zstd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the rank file's byte planes and numbers are written for little-endian machines"
#endif

enum { RANKFILE_VERSION = 1, FRAME_RAW_BYTES = RANKFILE_FRAME_ELEMENTS * 4 };
#define FRAME_MAX_STORED ZSTD_COMPRESSBOUND(FRAME_RAW_BYTES)

struct rank_header {
    uint32_t skippable, bytes; /* 0x184D2A50, and how many follow */
    char magic[8];
    uint32_t version, rank, world, states, units, frame_elements;
    uint64_t frames, elements; /* elements: of all slices of all states */
    uint64_t checksum;         /* XXH3 of what is before it */
};
_Static_assert(sizeof(struct rank_header) == 64, "a header of the file");

struct table_head {
    uint32_t skippable, bytes; /* 0x184D2A51, and how many follow */
};

struct frame {
    uint32_t state, unit;
    int64_t first; /* in the slice */
    uint32_t count, stored;
    int64_t offset;
    uint64_t checksum; /* XXH3 of the stored bytes */
};
_Static_assert(sizeof(struct frame) == 40, "an entry of the file's table");

/* Header and table, which the manifest's checksum covers. */
struct rank_index {
    struct rank_header header;
    struct table_head head;
    struct frame frames[];
};

/* The number of frames that hold a slice of that many elements. */
static inline int64_t frames_of(int64_t elements)
{
    return elements / RANKFILE_FRAME_ELEMENTS + (elements % RANKFILE_FRAME_ELEMENTS != 0);
}

static inline int64_t rankfile_elements(const struct rankfile_shape *shape, int state, int unit)
{
    return state && shape->moments ? shape->moments[unit] : shape->slice[unit];
}

struct rank_header rankfile_header(const struct rankfile_shape *shape);
struct table_head rankfile_table_head(int64_t frames);

/* Fills in state, unit, first and count of the frame that follows `before` (NULL: of the first frame). */
void rankfile_frame_place(const struct rankfile_shape *shape, const struct frame *before, struct frame *frame);

/* ---- an OpenMP team that compresses or decompresses frames --------------- */

/* The number of threads of a team, and this thread's number in it. */
int rankfile_team_size(void);
int rankfile_team_member(void);

/* The buffers of one thread. */
struct frame_scratch {
    uint8_t *planes; /* FRAME_RAW_BYTES */
    ZSTD_CCtx *compress;
    ZSTD_DCtx *decompress;
};

/* level: of compression; 0: no compression; -1: for reading. */
struct frame_scratch *rankfile_scratch_new(int threads, int level);
void rankfile_scratch_free(struct frame_scratch *scratch, int threads);
