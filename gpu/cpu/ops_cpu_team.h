/* SPDX-License-Identifier: Apache-2.0 */
/* ops_cpu_team.h: how the ops of the CPU backend split their work over OpenMP threads. Every sum has an order that
 * depends on shapes only, not on the number of threads: a sum that several threads share is cut into parts by shape,
 * the sums of the parts are added in the order of the parts, and there are no atomics. */
#pragma once

#include <stdint.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum {
    WORTH_THREADS = 1 << 14, /* elements: below, starting a team costs more than it saves */
    SUMSQ_PARTS = 512,       /* of a sum of squares */
    ROW_PARTS_MAX = 128,     /* of a sum over rows … */
    NORM_SUMS = 3,           /* of norm_bwd: dweight, dbias, dx_sums */
    ROWS_OF_PART = 32,       /* … and the rows that a part should have */
};

static inline int team_size(void)
{
#ifdef _OPENMP
    return omp_get_num_threads();
#else
    return 1;
#endif
}

static inline int team_rank(void)
{
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

/* The size of the next parallel region's team on this thread. */
static inline int team_next(void)
{
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

struct range {
    int64_t first, end;
};

/* Part `index` of `parts` of 0 … n-1, cut at multiples of grain. */
static inline struct range range_part(int64_t n, int64_t grain, int64_t parts, int64_t index)
{
    int64_t grains = (n + grain - 1) / grain;
    int64_t first = grains * index / parts * grain, end = grains * (index + 1) / parts * grain;
    return (struct range){first < n ? first : n, end < n ? end : n};
}

/* The part of 0 … n-1 that belongs to the calling thread of the team. */
static inline struct range range_mine(int64_t n, int64_t grain)
{
    return range_part(n, grain, team_size(), team_rank());
}

/* The number of parts of a sum over rows. */
static inline int64_t row_parts(int64_t rows)
{
    const int64_t parts = (rows + ROWS_OF_PART - 1) / ROWS_OF_PART;
    return parts < 1 ? 1 : parts < ROW_PARTS_MAX ? parts : ROW_PARTS_MAX;
}
