/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/cuda/cuda_workspace.h"

#include "core/round_up.h"

/* Keys and rows of the sort, twice each; counts by block and digit, where digits start; the sums that tiles carry. */
static size_t embedding_workspace(const struct op_limits *limits)
{
    const size_t tokens = (size_t)limits->max_tokens, digits = (size_t)1 << CUDA_SORT_BITS;
    const size_t blocks = (size_t)ceil_div(limits->max_tokens, CUDA_SORT_ITEMS);
    const size_t tiles = (size_t)ceil_div(limits->max_tokens, CUDA_TILE_ROWS);
    const size_t columns = (size_t)max64(limits->max_embedding, limits->C);
    return 4 * cuda_scratch_size(tokens * sizeof(int32_t)) + cuda_scratch_size(blocks * digits * sizeof(int32_t)) +
           cuda_scratch_size(digits * sizeof(int32_t)) + cuda_scratch_size(tiles * columns * sizeof(float));
}

/* route: blocks' sums of each expert. */
static size_t route_workspace(const struct op_limits *limits)
{
    const int64_t blocks = limits->max_expert_rows > 0 ? ceil_div(limits->max_tokens, CUDA_ROUTE_ROWS) : 0;
    return cuda_scratch_size((size_t)blocks * ROUTE_MAX_EXPERTS * sizeof(double));
}

/* Starts, counts. */
static size_t permute_workspace(const struct op_limits *limits)
{
    const size_t digits = (size_t)1 << CUDA_SORT_BITS;
    const size_t blocks = (size_t)ceil_div(limits->max_expert_rows, CUDA_SORT_ITEMS);
    return cuda_scratch_size(digits * sizeof(int32_t)) + cuda_scratch_size(blocks * digits * sizeof(int32_t));
}

int64_t cuda_norm_parts(int64_t C)
{
    return C <= CUDA_NORM_WIDE ? CUDA_NORM_PARTS : CUDA_NORM_PARTS / 2;
}

static size_t norm_workspace(const struct op_limits *limits)
{
    const int64_t C = limits->C, head = max64(limits->max_head_norm, limits->D);
    const int64_t columns = max64(cuda_norm_parts(C) * C, cuda_norm_parts(head) * head);
    return cuda_scratch_size((size_t)(CUDA_NORM_SUMS * columns) * sizeof(float));
}

int64_t cuda_column_ranges(int64_t M, int64_t N)
{
    const int64_t most = ceil_div(M, CUDA_COLUMN_ROWS), columns = ceil_div(N, CUDA_COLUMN_WIDTH);
    return columns > 0 ? min64(ceil_div(CUDA_COLUMN_BLOCKS, columns), most) : 0;
}

size_t cuda_column_sums_bytes(int64_t M, int64_t N)
{
    return (size_t)cuda_column_ranges(M, N) * (size_t)N * sizeof(float);
}

size_t cuda_gemm_workspace(size_t memory)
{
    const size_t large_gpu = (size_t)40 << 30; /* the A100 of 40 GB reports less */
    return memory < large_gpu ? (size_t)64 << 20 : (size_t)256 << 20;
}

/* What suffices for the sums of up to `widest` columns of up to max_tokens rows, after the products' own. */
static size_t linear_workspace(const struct op_limits *limits, size_t memory)
{
    const int64_t widest = max64(limits->max_linear_n, limits->max_linear_k);
    const int64_t by_rows = ceil_div(limits->max_tokens, CUDA_COLUMN_ROWS) * widest;
    const int64_t by_blocks = CUDA_COLUMN_BLOCKS * CUDA_COLUMN_WIDTH + widest + CUDA_COLUMN_WIDTH;
    return cuda_gemm_workspace(memory) + (size_t)min64(by_rows, by_blocks) * sizeof(float) + CUDA_SCRATCH_ALIGN;
}

int64_t cuda_conv_parts(int64_t M)
{
    return min64(CUDA_CONV_PARTS, ceil_div(M, CUDA_CONV_ROWS));
}

/* Backward's: the states before each chunk and the gradients of those after it, X and the gradient of R
 * (ops_cuda_delta.cu), and two sums of each chunk and head. */
static size_t delta_workspace(const struct op_limits *limits)
{
    const struct delta_rule_fwd_args *a = &limits->delta_rule;
    const size_t chunks = (size_t)(cuda_delta_chunks(a) * a->Hv),
                 channels = (size_t)(2 * a->Hk * a->Dk + a->Hv * a->Dv);
    const size_t states = cuda_scratch_size(chunks * (size_t)(a->Dk * a->Dv) * sizeof(float));
    const size_t rows = cuda_scratch_size((size_t)(a->M * a->Hv * a->Dv) * sizeof(float));
    const size_t conv = CUDA_CONV_PARTS * CONV_TAPS * channels * sizeof(float) + CUDA_SCRATCH_ALIGN;
    const size_t rule = 2 * (states + rows) + cuda_scratch_size(2 * chunks * sizeof(float));
    return !limits->backward ? 0 : rule > conv ? rule : conv;
}

_Static_assert(CUDA_SUM_PARTS * sizeof(double) + CUDA_SCRATCH_ALIGN <= OPS_SUMS_WORKSPACE, "the sums have room");

size_t cuda_workspace_bytes(const struct op_limits *limits, size_t memory)
{
    const size_t tokens = (size_t)limits->max_tokens;
    const size_t sizes[] = {
        embedding_workspace(limits),
        norm_workspace(limits),
        linear_workspace(limits, memory),
        delta_workspace(limits),
        route_workspace(limits),
        permute_workspace(limits),
        cuda_scratch_size(tokens * sizeof(double)),                    /* cross_entropy: a double for each row */
        cuda_scratch_size(tokens * (size_t)limits->H * sizeof(float)), /* attention, sinks: the sums of out * dout */
        cuda_scratch_size(CUDA_SUM_PARTS * sizeof(double))};
    size_t most = 0;
    for (size_t i = 0; i < COUNT_OF(sizes); i++) most = max_size(sizes[i], most);
    return most;
}
