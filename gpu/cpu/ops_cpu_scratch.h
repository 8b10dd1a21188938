/* SPDX-License-Identifier: Apache-2.0 */
/* ops_cpu_scratch.h: the scratch memory that the CPU's ops take from a stream's workspace, and its bounds, which hold
 * for every instruction-set level. */
#pragma once

#include "core/round_up.h"
#include "gpu/ops.h"

/* A tile of the micro-kernels has at most this many rows and columns (MR and NR of cpu_gemm_units.h). */
enum { GEMM_MAX_MR = 16, GEMM_MAX_NR = 64 };

/* Matrix products: a packed block of A, one of B, and a block of sums that wait, each at most GEMM_BLOCK rows (rounded
 * up to whole tiles) by GEMM_BLOCK columns or units. */
enum { GEMM_BLOCK = 1024, GEMM_SCRATCH_FLOATS = 3 * (GEMM_BLOCK + GEMM_MAX_MR) * GEMM_BLOCK };

/* Experts' products: what a thread has packed of A and of B, and its sums that wait, of a part of C of at most
 * GROUPED_TILE rows and columns, a multiple of every MR and NR. */
enum { GROUPED_TILE = 384, GROUPED_THREAD_FLOATS = 3 * GROUPED_TILE * GEMM_BLOCK };

/* Norms, backward: for each part of the rows the sums of dweight and dbias, rows of floats padded to SUMS_GRAIN. */
enum { SUMS_GRAIN = 16 };

/* Attention: a thread's two blocks of ATTENTION_ROWS (a multiple of every MR) scores and five of D numbers, for the
 * lanes of a tile; and the packed operands of a unit (a sequence and a key/value head with its `group` query heads), or
 * of as many as ATTENTION_BATCH_FLOATS hold. */
enum { ATTENTION_ROWS = 144, ATTENTION_BATCH_FLOATS = 4 << 20 };
#define ATTENTION_THREAD_FLOATS(D) ((2 * ATTENTION_ROWS + 5 * ((int64_t)(D) + GEMM_MAX_MR)) * GEMM_MAX_NR)
#define ATTENTION_UNIT_FLOATS(D, max_seq, group) \
    (((int64_t)(max_seq) + GEMM_MAX_NR) * (((int64_t)(D) + GEMM_MAX_MR) * (3 + 4 * (int64_t)(group)) + (group)))

/* The delta rule: floats between rows of a thread's matrices, which end in a whole tile and begin in other sets of the
 * caches. */
#define DELTA_LD(columns) (round_up(columns, 16) + 16)

/* The floats of a thread: those of a chunk's matrices, of the states of a key head's value heads and their gradients,
 * and in backward of the state and X before each chunk. */
static inline int64_t delta_thread_floats(const struct delta_rule_fwd_args *a, bool backward)
{
    const int64_t n = DELTA_CHUNK, Dk = round_up(a->Dk, 4), Dv = round_up(a->Dv, 4), group = a->Hv / a->Hk;
    const int64_t key = DELTA_LD(a->Dk), value = DELTA_LD(a->Dv), square = DELTA_LD(n);
    const int64_t chunks = backward ? (a->max_seq + n - 1) / n : 0;
    return n * (8 * key + 6 * value + 7 * square) + (Dk + Dv) * square + Dv * key +
           group * (2 * Dk * value + chunks * (Dv * key + n * value)) + 16;
}

/* What is left of a stream's workspace during one op. */
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

/* Takes a piece, 64-byte aligned. */
static inline void *scratch_take(struct scratch *scratch, size_t bytes)
{
    size_t taken = scratch_size(bytes);
    ASSERT(taken <= scratch->left); /* ops_cpu_workspace_bytes() counted what the limits need */
    void *piece = scratch->next;
    scratch->next += taken;
    scratch->left -= taken;
    return piece;
}
