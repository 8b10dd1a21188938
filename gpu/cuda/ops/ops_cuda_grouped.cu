/* SPDX-License-Identifier: Apache-2.0 */
/* ops_cuda_grouped.cu: the products of experts' rows with their matrices. A block computes a tile of the result of one
 * expert, on the tiles of attention. Where the experts' rows begin is on the device only, so the grid has a place for
 * every tile that any split of the rows may need: those of expert e begin at place offsets[e] / TILE + e, and some are
 * empty. */
#include "gpu/cuda/attention/attention_cuda_tiles.cuh"

namespace
{

enum { WARPS = 8, THREADS = WARPS * WARP_SIZE, TILE = WARPS * WARP_ROWS, SUM_COLUMNS = 32, SUM_ROWS = 16 };

template <typename T> constexpr int DEPTH = HALF_WIDTH<T> ? 64 : 32; /* of the tiles of a and b */

/* Elements between rows of a tile of an operand: rows of TILE, or with BY_K of DEPTH, have TILE elements side by side.
 */
template <typename T, bool BY_K> constexpr int OPERAND_LD = BY_K ? TILE_LD<T, TILE> : TILE_LD<T, DEPTH<T>>;
template <typename T, bool BY_K> constexpr int OPERAND_SIZE = (BY_K ? DEPTH<T> : TILE) * OPERAND_LD<T, BY_K>;

/* c (m, n) = a (m, k) · bᵀ (n, k), each operand by rows, or BY_K by columns. For a weight's gradient c has a matrix for
 * each expert, and k are the expert's rows; else b has one, and the m rows are the expert's. */
struct grouped {
    const void *a, *b, *bias;
    void *c;
    const int32_t *offsets;
    int64_t m, n, k, experts;
    bool accumulate, vectors; /* vectors: all rows are 16-byte aligned */
};

__device__ __forceinline__ int expert_at(const int32_t *offsets, int experts, int place)
{
    int first = 0;
    for (int end = experts; end - first > 1;) {
        const int middle = (first + end) / 2;
        if (offsets[middle] / TILE + middle <= place)
            first = middle;
        else
            end = middle;
    }
    return first;
}

/* `rows` and `k` of the operand exist from `from` on. */
template <bool BY_K, typename T>
__device__ __forceinline__ void load_operand(T *tile, const T *from, int64_t ld, int rows, int k, bool vectors)
{
    if constexpr (BY_K)
        tile_load<DEPTH<T>, TILE>(tile, from, {ld, k, rows, TILE, vectors});
    else
        tile_load<TILE, DEPTH<T>>(tile, from, {ld, rows, k, DEPTH<T>, vectors});
}

/* Columns side by side in a lane. */
template <typename T, bool B_BY_K> constexpr int BESIDE = B_BY_K ? OUTPUTS_BESIDE<T> : SCORES_BESIDE<T>;

/* sum (16, TILE) += the products of a warp's rows of a and all of b, over `depth` elements. */
template <bool A_BY_K, bool B_BY_K, typename T>
__device__ __forceinline__ void multiply_operands(struct tile_sum<T, TILE> *sum, const T *a, const T *b, int depth)
{
    constexpr int LD_A = OPERAND_LD<T, A_BY_K>, LD_B = OPERAND_LD<T, B_BY_K>;
    a += warp_of_block() * WARP_ROWS * (A_BY_K ? 1 : LD_A);
    if constexpr (TENSOR_CORES<T>) {
        const int lane = lane_of_warp(), eight = lane / 8 % 2 * 8, sixteen = lane / 16 * 8;
        const T *a_row = A_BY_K ? a + (sixteen + lane % 8) * LD_A + eight : a + lane % 16 * LD_A + sixteen;
        const T *b_row = B_BY_K ? b + lane % 16 * LD_B + sixteen : b + (sixteen + lane % 8) * LD_B + eight;
#pragma unroll 2
        for (int k = 0; k < depth; k += 16) {
            unsigned left[4], right[4];
            load_matrices<A_BY_K>(left, a_row + k * (A_BY_K ? LD_A : 1));
#pragma unroll
            for (int n = 0; n < TILE; n += 16) {
                load_matrices<B_BY_K>(right, B_BY_K ? b_row + k * LD_B + n : b_row + n * LD_B + k);
                multiply_matrices<T>(&sum->at[0][n / 4], &sum->at[1][n / 4], left, right[0], right[1]);
                multiply_matrices<T>(&sum->at[0][n / 4 + 2], &sum->at[1][n / 4 + 2], left, right[2], right[3]);
            }
        }
    } else {
        for (int k = 0; k < depth; k++) {
            float left[ROWS<T>];
#pragma unroll
            for (int i = 0; i < ROWS<T>; i++)
                left[i] = to_float(A_BY_K ? a[k * LD_A + tile_row<T>(i)] : a[tile_row<T>(i) * LD_A + k]);
#pragma unroll
            for (int j = 0; j < TILE / LANES<T>; j++) {
                const int column = tile_column<BESIDE<T, B_BY_K>, T>(j);
                const float right = to_float(B_BY_K ? b[k * LD_B + column] : b[column * LD_B + k]);
#pragma unroll
                for (int i = 0; i < ROWS<T>; i++) sum->at[i][j] = fmaf(left[i], right, sum->at[i][j]);
            }
        }
    }
}

template <bool B_BY_K, typename T, typename Y>
__device__ __forceinline__ void store_tile(Y *c, const struct tile_sum<T, TILE> &sum, const T *bias, int64_t ld,
                                           int rows, int columns, bool accumulate)
{
#pragma unroll
    for (int i = 0; i < ROWS<T>; i++) {
        const int row = warp_of_block() * WARP_ROWS + tile_row<T>(i);
        if (row >= rows) continue;
#pragma unroll
        for (int j = 0; j < TILE / LANES<T>; j++) {
            const int column = tile_column<BESIDE<T, B_BY_K>, T>(j);
            if (column >= columns) continue;
            Y *to = c + row * ld + column;
            const float x = sum.at[i][j] + (bias ? to_float(bias[column]) : 0.0f);
            from_float(accumulate ? to_float(*to) + x : x, to);
        }
    }
}

/* A_BY_K: a weight's gradient; blocks: tiles of columns, of rows (or their places), experts. */
template <typename T, typename Y, bool A_BY_K, bool B_BY_K>
__global__ void __launch_bounds__(THREADS) grouped_kernel(struct grouped g)
{
    constexpr int SIZE_A = OPERAND_SIZE<T, A_BY_K>, SIZE_B = OPERAND_SIZE<T, B_BY_K>;
    SHARED(T, tile_a, [SIZE_A]);
    SHARED(T, tile_b, [SIZE_B]);
    const int experts = static_cast<int>(g.experts), place = static_cast<int>(blockIdx.y);
    const int expert = A_BY_K ? static_cast<int>(blockIdx.z) : expert_at(g.offsets, experts, place);
    const int64_t first = g.offsets[expert], own = g.offsets[expert + 1] - first, matrix = expert * g.n;
    const int64_t m = A_BY_K ? g.m : own, k = A_BY_K ? own : g.k, column = blockIdx.x * static_cast<int64_t>(TILE);
    const int64_t row = (A_BY_K ? place : place - (first / TILE + expert)) * static_cast<int64_t>(TILE);
    if (row >= m || (A_BY_K && g.accumulate && k == 0)) return;
    const int64_t lda = A_BY_K ? m : k, ldb = B_BY_K ? g.n : k;
    const int rows = static_cast<int>(min(m - row, static_cast<int64_t>(TILE)));
    const int columns = static_cast<int>(min(g.n - column, static_cast<int64_t>(TILE)));
    const T *a = static_cast<const T *>(g.a) + first * (A_BY_K ? m : k) + row * (A_BY_K ? 1 : lda);
    const T *b = static_cast<const T *>(g.b) + (A_BY_K ? first * g.n : matrix * k) + column * (B_BY_K ? 1 : ldb);
    struct tile_sum<T, TILE> sum;
    tile_zero(&sum);
    for (int64_t done = 0; done < k; done += DEPTH<T>) {
        const int left = static_cast<int>(min(k - done, static_cast<int64_t>(DEPTH<T>)));
        __syncthreads();
        load_operand<A_BY_K>(tile_a, a + done * (A_BY_K ? lda : 1), lda, rows, left, g.vectors);
        load_operand<B_BY_K>(tile_b, b + done * (B_BY_K ? ldb : 1), ldb, columns, left, g.vectors);
        __syncthreads();
        if (warp_of_block() * WARP_ROWS < rows)
            multiply_operands<A_BY_K, B_BY_K>(&sum, tile_a, tile_b, (left + 15) / 16 * 16);
    }
    const T *bias = g.bias ? static_cast<const T *>(g.bias) + matrix + column : nullptr;
    store_tile<B_BY_K>(static_cast<Y *>(g.c) + ((A_BY_K ? expert * m : first) + row) * g.n + column, sum, bias, g.n,
                       rows, columns, g.accumulate);
}

/* dbias of SUM_COLUMNS columns of an expert. */
template <typename T>
__global__ void __launch_bounds__(SUM_COLUMNS *SUM_ROWS) grouped_bias_kernel(struct grouped_linear_bwd_weight_args a)
{
    SHARED(float, sums, [SUM_ROWS][SUM_COLUMNS]);
    const int64_t column = blockIdx.x * static_cast<int64_t>(SUM_COLUMNS) + threadIdx.x, expert = blockIdx.y;
    float sum = 0;
    for (int64_t row = a.offsets[expert] + threadIdx.y; column < a.N && row < a.offsets[expert + 1]; row += SUM_ROWS)
        sum += to_float(static_cast<const T *>(a.dy)[row * a.N + column]);
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || column >= a.N) return;
    float *to = a.dbias + expert * a.N + column;
    sum = a.accumulate_dbias ? *to : 0;
    for (int i = 0; i < SUM_ROWS; i++) sum += sums[i][threadIdx.x];
    *to = sum;
}

template <typename T, typename Y, bool A_BY_K, bool B_BY_K>
void grouped_launch(struct stream *stream, const char *what, struct grouped g, int64_t rows)
{
    const int64_t size = sizeof(T);
    const unsigned across = static_cast<unsigned>(ceil_div(g.n, TILE));
    const unsigned down = static_cast<unsigned>(A_BY_K ? ceil_div(g.m, TILE) : rows / TILE + g.experts);
    g.vectors = aligned16(g.a, g.b, (A_BY_K ? g.m : g.k) * size, (B_BY_K ? g.n : g.k) * size);
    LAUNCH(stream, what, (grouped_kernel<T, Y, A_BY_K, B_BY_K>),
           dim3(across, down, A_BY_K ? static_cast<unsigned>(g.experts) : 1), THREADS, g);
}

/* The result has rows for those of x or dy. */
void grouped_rows(struct stream *stream, const char *what, enum dtype dtype, const struct grouped &g, int64_t rows,
                  bool b_by_k)
{
    if (rows == 0) return;
    dispatch(dtype, [&](auto type) {
        using T = decltype(type);
        if (b_by_k)
            grouped_launch<T, T, false, true>(stream, what, g, rows);
        else
            grouped_launch<T, T, false, false>(stream, what, g, rows);
    });
}

} // namespace

void cuda_grouped_linear_fwd(struct stream *stream, const struct grouped_linear_fwd_args *a)
{
    const struct grouped g = {a->x, a->w, a->bias, a->y, a->offsets, 0, a->N, a->K, a->E, a->accumulate, false};
    grouped_rows(stream, "grouped_linear_fwd", a->dtype, g, a->M, a->weights_in_out);
}

void cuda_grouped_linear_bwd_input(struct stream *stream, const struct grouped_linear_bwd_input_args *a)
{
    const struct grouped g = {a->dy, a->w, nullptr, a->dx, a->offsets, 0, a->K, a->N, a->E, a->accumulate, false};
    grouped_rows(stream, "grouped_linear_bwd_input", a->dtype, g, a->M, !a->weights_in_out);
}

void cuda_grouped_linear_bwd_weight(struct stream *stream, const struct grouped_linear_bwd_weight_args *a)
{
    struct grouped g = {a->dy, a->x, nullptr, a->dw, a->offsets, a->N, a->K, 0, a->E, a->accumulate, false};
    if (a->weights_in_out) g = {a->x, a->dy, nullptr, a->dw, a->offsets, a->K, a->N, 0, a->E, a->accumulate, false};
    ASSERT(a->dw_dtype == DTYPE_F32 || (a->dw_dtype == DTYPE_BF16 && a->dtype == DTYPE_BF16));
    dispatch(a->dtype, [&](auto type) {
        using T = decltype(type);
        if (a->dw_dtype == DTYPE_F32)
            grouped_launch<T, float, true, true>(stream, "grouped_linear_bwd_weight", g, 0);
        else
            grouped_launch<__nv_bfloat16, __nv_bfloat16, true, true>(stream, "grouped_linear_bwd_weight", g, 0);
        if (a->dbias)
            LAUNCH(stream, "grouped_linear_bwd_weight (bias)", grouped_bias_kernel<T>,
                   dim3(static_cast<unsigned>(ceil_div(a->N, SUM_COLUMNS)), static_cast<unsigned>(a->E)),
                   dim3(SUM_COLUMNS, SUM_ROWS), *a);
    });
}
CUDA_MODULE(grouped, (grouped_kernel<float, float, true, true>))
