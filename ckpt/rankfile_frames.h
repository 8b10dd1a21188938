/* SPDX-License-Identifier: Apache-2.0 */
/* rankfile_frames.h: the layout of a rank file's bytes, and what reading and writing share.
 *
 *   offset 0   u32 0x184D2A50  u32 56         head of a skippable zstd frame
 *          8   "ZTRRANK\0"                    magic
 *         16   u32 version, rank, world, states, units, elements per frame
 *         40   u64 frames, u64 elements of all slices of all states
 *         56   u64 XXH3 of bytes 0 … 55
 *         64   frame 0, frame 1, …            zstd frames, without gaps
 *              u32 0x184D2A51  u32 40·frames  head of a skippable zstd frame
 *              entries of 40 bytes            u32 state, unit; u64 first; u32 count, stored; u64 offset, checksum
 *
 * All numbers are little-endian. A reader learns only `stored` and `checksum` from the table. */
#pragma once

#include "ckpt/rankfile.h"

#include <string.h>
#include <zstd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the rank file's byte planes and numbers are written for little-endian machines"
#endif

enum {
    RANKFILE_VERSION = 1,
    HEADER_BYTES = 64,
    ENTRY_BYTES = 40,
    TABLE_HEAD_BYTES = 8,
    FRAME_RAW_BYTES = RANKFILE_FRAME_ELEMENTS * 4,
};
#define SKIPPABLE_HEADER 0x184D2A50u
#define SKIPPABLE_TABLE 0x184D2A51u
#define FRAME_MAX_STORED ZSTD_COMPRESSBOUND(FRAME_RAW_BYTES)

extern const char rankfile_magic[8];

struct frame {
    uint32_t state, unit;
    int64_t first; /* in the slice */
    uint32_t count, stored;
    int64_t offset;
    uint64_t checksum;
};

static inline void frame_put_u32(uint8_t *p, uint32_t v)
{
    memcpy(p, &v, sizeof v);
}

static inline void frame_put_u64(uint8_t *p, uint64_t v)
{
    memcpy(p, &v, sizeof v);
}

/* The number of frames that hold a slice of that many elements. */
static inline int64_t frames_of(int64_t elements)
{
    return elements / RANKFILE_FRAME_ELEMENTS + (elements % RANKFILE_FRAME_ELEMENTS != 0);
}

/* The number of units that the file has of a state: the first ones. */
static inline int rankfile_units(const struct rankfile_shape *shape, int state)
{
    return state == 0 ? shape->num_units : shape->num_trained;
}

static inline int64_t rankfile_elements(const struct rankfile_shape *shape, int state, int unit)
{
    return state && shape->moments ? shape->moments[unit] : shape->slice[unit];
}

void rankfile_header_encode(const struct rankfile_shape *shape, uint8_t *header); /* HEADER_BYTES */

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
