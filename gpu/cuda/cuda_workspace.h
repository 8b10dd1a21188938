/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_workspace.h: scratch memory that the ops of a GPU take from their stream's workspace. Plain C, for every build:
 * a plan for a GPU needs no CUDA. The kernels take their constants from here. */
#pragma once

#include "gpu/ops.h"

__BEGIN_DECLS

enum {
    CUDA_SCRATCH_ALIGN = 256,  /* bytes: every piece of scratch memory starts at a multiple of it */
    CUDA_SORT_BITS = 9,        /* of a digit: two passes for vocabularies up to 262144 */
    CUDA_SORT_ITEMS = 1024,    /* tokens that a block sorts */
    CUDA_ROUTE_ROWS = 64,      /* tokens whose probabilities a block adds up */
    CUDA_TILE_ROWS = 16,       /* sorted rows of the embedding's gradient that a block adds up */
    CUDA_NORM_PARTS = 512,     /* partial sums of a norm's gradients: about four for each multiprocessor */
    CUDA_NORM_WIDE = 4096,     /* in longer rows half as many, */
    CUDA_NORM_SUMS = 3,        /* each of at most three sums */
    CUDA_SUM_PARTS = 1024,     /* partial results of sumsq and find_nonfinite */
    CUDA_COLUMN_BLOCKS = 1024, /* of column sums: about eight for each multiprocessor, */
    CUDA_COLUMN_WIDTH = 256,   /* columns of each block */
    CUDA_COLUMN_ROWS = 64,     /* rows of each block, at least */
    CUDA_CONV_PARTS = 256,     /* of the rows of a convolution, … */
    CUDA_CONV_ROWS = 32,       /* each of so many rows at least */
    DELTA_SLICE = 32,          /* columns of a head's state that a block of the delta rule has */
};

/* Bytes of a piece of scratch memory, rounded up to where the next one starts. */
static inline size_t cuda_scratch_size(size_t bytes)
{
    return (bytes + CUDA_SCRATCH_ALIGN - 1) / CUDA_SCRATCH_ALIGN * CUDA_SCRATCH_ALIGN;
}

/* Bytes that cublasLt's kernels may ask for to split k. They depend only on the GPU's memory, so that all ranks and
 * resumed runs choose among the same kernels. */
size_t cuda_gemm_workspace(size_t memory);

/* Parts at most that the rows of a norm of C columns are summed in. */
int64_t cuda_norm_parts(int64_t C);

/* Ranges of rows that the sums of N columns of M rows are computed in, and the bytes of their partial sums. */
int64_t cuda_column_ranges(int64_t M, int64_t N);
size_t cuda_column_sums_bytes(int64_t M, int64_t N);

/* Parts of the rows of a convolution that is not split by sequences. */
int64_t cuda_conv_parts(int64_t M);

/* Places of the chunks of all sequences: those of sequence s begin at seq_start[s] / DELTA_CHUNK + s; some are empty.
 */
static inline int64_t cuda_delta_chunks(const struct delta_rule_fwd_args *a)
{
    return a->M / DELTA_CHUNK + a->num_seqs;
}

/* Bytes that a stream needs for every op within the limits on a GPU with `memory` bytes, cuDNN's plans apart. */
size_t cuda_workspace_bytes(const struct op_limits *limits, size_t memory);

__END_DECLS
