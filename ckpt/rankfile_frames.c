/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/rankfile_frames.h"
#include "core/memory.h"

#include <xxhash.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum { MAX_THREADS = 16 }; /* the disk is the limit; more would only cost memory */

int rankfile_team_size(void)
{
#ifdef _OPENMP
    int n = omp_get_max_threads();
    return n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : n;
#else
    return 1;
#endif
}

int rankfile_team_member(void)
{
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

void rankfile_scratch_free(struct frame_scratch *scratch, int threads)
{
    for (int i = 0; i < threads; i++) {
        free(scratch[i].planes);
        ZSTD_freeCCtx(scratch[i].compress);
        ZSTD_freeDCtx(scratch[i].decompress);
    }
    free(scratch);
}

/* Byte planes of floats hardly repeat, so short matches do not pay: up to level 3 only long ones are searched, in a
 * small table (2.3 times as fast as zstd's level 3, and smaller: docs/checkpoint-format.md). */
static void set_frame_level(ZSTD_CCtx *compress, int level)
{
    bool ok = !ZSTD_isError(ZSTD_CCtx_setParameter(compress, ZSTD_c_compressionLevel, level));
    if (level <= 3)
        ok = ok && !ZSTD_isError(ZSTD_CCtx_setParameter(compress, ZSTD_c_strategy, ZSTD_fast)) &&
             !ZSTD_isError(ZSTD_CCtx_setParameter(compress, ZSTD_c_minMatch, 7)) &&
             !ZSTD_isError(ZSTD_CCtx_setParameter(compress, ZSTD_c_hashLog, 12));
    ASSERT(ok);
}

struct frame_scratch *rankfile_scratch_new(int threads, int level)
{
    struct frame_scratch *scratch = memory_zeroed((size_t)threads, sizeof *scratch);
    for (struct frame_scratch *s = scratch; s < scratch + threads; s++) {
        s->planes = memory_alloc(FRAME_RAW_BYTES);
        s->compress = level > 0 ? ZSTD_createCCtx() : NULL;
        s->decompress = level < 0 ? ZSTD_createDCtx() : NULL;
        if (level != 0 && !s->compress && !s->decompress) memory_exhausted(0);
        if (s->compress) set_frame_level(s->compress, level);
    }
    return scratch;
}

/* The number of elements of all slices of all states, or -1 (overflow). */
static int64_t shape_elements(const struct rankfile_shape *shape)
{
    int64_t sum = 0;
    for (int state = 0; state < shape->num_states; state++)
        for (int unit = 0; unit < shape->num_units; unit++)
            if (rankfile_elements(shape, state, unit) < 1 ||
                __builtin_add_overflow(sum, rankfile_elements(shape, state, unit), &sum))
                return -1;
    return sum > INT64_MAX / 8 ? -1 : sum;
}

int64_t rankfile_num_frames(const struct rankfile_shape *shape)
{
    if (shape_elements(shape) < 0) return -1;
    int64_t frames = 0;
    for (int state = 0; state < shape->num_states; state++)
        for (int unit = 0; unit < shape->num_units; unit++) frames += frames_of(rankfile_elements(shape, state, unit));
    return frames <= (int64_t)(UINT32_MAX / sizeof(struct frame)) ? frames : -1;
}

struct rank_header rankfile_header(const struct rankfile_shape *shape)
{
    struct rank_header header = {.skippable = 0x184D2A50,
                                 .bytes = sizeof header - sizeof(struct table_head),
                                 .magic = "ZTRRANK",
                                 .version = RANKFILE_VERSION,
                                 .rank = (uint32_t)shape->rank,
                                 .world = (uint32_t)shape->world,
                                 .states = (uint32_t)shape->num_states,
                                 .units = (uint32_t)shape->num_units,
                                 .frame_elements = RANKFILE_FRAME_ELEMENTS,
                                 .frames = (uint64_t)rankfile_num_frames(shape),
                                 .elements = (uint64_t)shape_elements(shape)};
    header.checksum = XXH3_64bits(&header, offsetof(struct rank_header, checksum));
    return header;
}

struct table_head rankfile_table_head(int64_t frames)
{
    return (struct table_head){0x184D2A51, (uint32_t)frames * (uint32_t)sizeof(struct frame)};
}

void rankfile_frame_place(const struct rankfile_shape *shape, const struct frame *before, struct frame *frame)
{
    frame->state = before ? before->state : 0;
    frame->unit = before ? before->unit : 0;
    frame->first = before ? before->first + before->count : 0;
    if (frame->first == rankfile_elements(shape, (int)frame->state, (int)frame->unit)) {
        frame->first = 0;
        if (++frame->unit == (uint32_t)shape->num_units) {
            frame->unit = 0;
            frame->state++;
        }
    }
    int64_t left = rankfile_elements(shape, (int)frame->state, (int)frame->unit) - frame->first;
    frame->count = (uint32_t)(left < RANKFILE_FRAME_ELEMENTS ? left : RANKFILE_FRAME_ELEMENTS);
}
