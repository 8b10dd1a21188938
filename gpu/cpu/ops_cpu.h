/* ops_cpu.h: what the files of the CPU backend's ops share: how work is split over threads, and scratch memory.
 *
 * The ops are written once, in ops_cpu_*.h headers that include no other and rely on ops_cpu_vector.h, and compiled
 * once for each instruction-set level by ops_cpu_isa_*.c. Every sum has an order that depends on shapes only, not on
 * the number of threads: what several threads add up is cut into parts by shape, whose sums are added in the order of
 * parts, and there are no atomics. */
#ifndef ZTRAIN_GPU_CPU_OPS_CPU_H
#define ZTRAIN_GPU_CPU_OPS_CPU_H

#include "core/progress.h"
#include "core/round_up.h"
#include "gpu/cpu/device_cpu.h"
#include "gpu/cpu/gemm_cpu.h"
#include "gpu/ops.h"

#include <stdatomic.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum {
    OPS_MAX_THREADS = 1024,
    WORTH_THREADS = 1 << 14, /* elements: below, starting a team costs more than it saves */
    SUMSQ_PARTS = 512,
};

/* Rows are summed by parts, whose number depends on the rows only, and the parts' sums one after the other: any number
 * of threads gives the same bits. */
enum { ROW_PARTS_MAX = 128, ROWS_OF_PART = 32 };

/* Bounds of the attention's scratch that hold for every instruction-set level. */
enum { ATTENTION_MAX_MR = 16, ATTENTION_MAX_NR = 64, ATTENTION_BATCH_FLOATS = 4 << 20 };
#define ATTENTION_THREAD_FLOATS(D) ((2 * 144 + 5 * ((int64_t)(D) + ATTENTION_MAX_MR)) * ATTENTION_MAX_NR)
#define ATTENTION_UNIT_FLOATS(D, max_seq, group) \
    (((int64_t)(max_seq) + ATTENTION_MAX_NR) *   \
     (((int64_t)(D) + ATTENTION_MAX_MR) * (3 + 4 * (int64_t)(group)) + (group)))

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

/* What is compiled for one instruction-set level. */
struct ops_cpu_level {
    struct op_table table;
    cpu_micro_run *micro_run;
};

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

static inline int64_t row_parts(int64_t rows)
{
    const int64_t parts = (rows + ROWS_OF_PART - 1) / ROWS_OF_PART;
    return parts < 1 ? 1 : parts < ROW_PARTS_MAX ? parts : ROW_PARTS_MAX;
}

/* This thread's part. */
static inline struct range range_mine(int64_t n, int64_t grain)
{
    return range_part(n, grain, team_size(), team_rank());
}

static inline int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Takes pieces of a stream's workspace, 64-byte aligned, for the length of one op. */
struct scratch {
    char *next;
    size_t left;
};

static inline struct scratch scratch_of(const struct stream *stream)
{
    struct scratch scratch;
    scratch.next = stream_workspace(stream, &scratch.left);
    return scratch;
}

static inline size_t scratch_size(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static inline void *scratch_take(struct scratch *scratch, size_t bytes)
{
    size_t taken = scratch_size(bytes);
    ASSERT(taken <= scratch->left); /* ops_cpu_workspace_bytes() said how much the limits need */
    void *piece = scratch->next;
    scratch->next += taken;
    scratch->left -= taken;
    return piece;
}

static inline void *at(const void *base, int64_t element, enum dtype dtype)
{
    return (char *)(uintptr_t)base + (size_t)element * dtype_size(dtype);
}

#endif
