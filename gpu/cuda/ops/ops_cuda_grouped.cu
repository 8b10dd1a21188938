/* SPDX-License-Identifier: Apache-2.0 */
/* ops_cuda_grouped.cu: the products of experts' rows with their matrices. A block computes a tile of the result of one
 * expert. Where the experts' rows begin is on the device only, so the grid has a place for every tile that any split of
 * the rows may need: those of expert e begin at place offsets[e] / TILE_ROWS + e, and some are empty.
 *
 * A tile has 128 x 256 elements, a warp 64 x 64 of them: shared memory then gives the tensor cores 128 bytes for each
 * mma, and L2 a byte for 85 FLOPs. The next two parts of k are on their way while one is multiplied. A lane holds, in
 * every dtype, the rows and columns of mma's sums (attention_cuda_tiles.cuh). */
#include "gpu/cuda/attention/attention_cuda_tiles.cuh"
#include "gpu/cuda/gemm/gemm_cuda_kernels.h"

namespace
{

enum { WARPS_DOWN = 2, WARPS_ACROSS = 4, THREADS = WARPS_DOWN * WARPS_ACROSS * WARP_SIZE, WARP_SIDE = 64 };
enum { TILE_ROWS = WARPS_DOWN * WARP_SIDE, TILE_COLUMNS = WARPS_ACROSS * WARP_SIDE, STAGES = 3 };
enum { LANE_ROWS = WARP_SIDE / 8, LANE_COLUMNS = WARP_SIDE / 4, SUM_COLUMNS = 32, SUM_ROWS = 16 };

template <typename T> constexpr int DEPTH = 4 * VECTOR<T>; /* elements of k in a stage */

/* Elements between rows of an operand's tile: SIDE rows, or with BY_K rows of SIDE elements. 16 bytes are between two
 * rows, so that neighbours lie in different banks. */
template <typename T, int SIDE, bool BY_K> constexpr int OPERAND_LD = (BY_K ? SIDE : DEPTH<T>)+VECTOR<T>;
template <typename T, int SIDE, bool BY_K>
constexpr int OPERAND_SIZE = (BY_K ? DEPTH<T> : SIDE) * OPERAND_LD<T, SIDE, BY_K>;

/* c (m, n) = a (m, k) · bᵀ (n, k), each operand by rows, or BY_K by columns. For a weight's gradient c has a matrix for
 * each expert, and k are the expert's rows; else b has one, and the m rows are the expert's. */
struct grouped {
    const void *a, *b, *bias;
    void *c;
    const int32_t *offsets;
    int64_t m, n, k, experts;
    bool accumulate, vectors, pairs; /* vectors: all rows of a and b are 16-byte aligned; pairs: c's, to two elements */
};

__device__ __forceinline__ int expert_at(const int32_t *offsets, int experts, int place)
{
    int first = 0;
    for (int end = experts; end - first > 1;) {
        const int middle = (first + end) / 2;
        if (offsets[middle] / TILE_ROWS + middle <= place)
            first = middle;
        else
            end = middle;
    }
    return first;
}

/* Copies 16 bytes to shared memory, or zeros, without waiting for them. */
template <typename T> __device__ __forceinline__ void copy_async(T *to, const T *from, bool exists)
{
#ifdef __CUDA_ARCH__
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))),
        "l"(from), "r"(exists ? 16 : 0)
        : "memory");
#else
    store_pack(to, exists ? load_pack<VECTOR<T>>(from) : pack<T, VECTOR<T>>());
#endif
}

/* Ends the copies of a stage, or waits for those of all stages but the latest. */
#ifdef __CUDA_ARCH__
#define COPIES_DO(what) asm volatile("cp.async." what ";" ::: "memory")
#else
#define COPIES_DO(what) (void)0
#endif
static_assert(STAGES == 3, "a stage is multiplied, one may be under way: wait_group 1");

/* `side` rows of the operand and `k` of their elements exist from `from` on; the others of the tile are zero. */
template <int SIDE, bool BY_K, typename T>
__device__ __forceinline__ void load_operand(T *tile, const T *from, int64_t ld, int side, int k, bool vectors)
{
    constexpr int V = VECTOR<T>, COUNT = BY_K ? DEPTH<T> : SIDE, COLUMNS = BY_K ? SIDE : DEPTH<T>;
    const int rows = BY_K ? k : side, columns = BY_K ? side : k, thread = static_cast<int>(threadIdx.x);
    constexpr int STEP = THREADS * V / COLUMNS; /* rows that all threads copy at once */
    const int row = thread * V / COLUMNS, column = thread * V % COLUMNS;
    const T *at = from + row * ld + column;
#pragma unroll
    for (int i = 0; vectors && i < COUNT; i += STEP, at += STEP * ld)
        copy_async(tile + (row + i) * (COLUMNS + V) + column, at, row + i < rows && column < columns);
#pragma unroll 1
    for (int i = thread; !vectors && i < COUNT * COLUMNS; i += THREADS) {
        const bool exists = i / COLUMNS < rows && i % COLUMNS < columns;
        tile[i / COLUMNS * (COLUMNS + V) + i % COLUMNS] = exists ? from[i / COLUMNS * ld + i % COLUMNS] : rounded<T>(0);
    }
}

typedef float warp_sum[LANE_ROWS][LANE_COLUMNS]; /* a lane's */

__device__ __forceinline__ int lane_row(int i)
{
    return lane_of_warp() / 4 + 8 * i;
}

__device__ __forceinline__ int lane_column(int j)
{
    return j / 2 * 8 + lane_of_warp() % 4 * 2 + j % 2;
}

/* sum += a · b over half of a stage, from k = begin on; a, b: the warp's. */
template <bool A_BY_K, bool B_BY_K, typename T>
__device__ __forceinline__ void multiply_half(warp_sum &sum, const T *a, const T *b, int begin)
{
    constexpr int LD_A = OPERAND_LD<T, TILE_ROWS, A_BY_K>, LD_B = OPERAND_LD<T, TILE_COLUMNS, B_BY_K>;
    constexpr int ROW_A = A_BY_K ? 1 : LD_A, K_A = A_BY_K ? LD_A : 1, ROW_B = B_BY_K ? 1 : LD_B,
                  K_B = B_BY_K ? LD_B : 1;
    if constexpr (TENSOR_CORES<T>) {
        const int lane = lane_of_warp(), eight = lane / 8 % 2 * 8, sixteen = lane / 16 * 8;
        a += A_BY_K ? (sixteen + lane % 8) * LD_A + eight : lane % 16 * LD_A + sixteen;
        b += B_BY_K ? lane % 16 * LD_B + sixteen : (sixteen + lane % 8) * LD_B + eight;
#pragma unroll
        for (int k = begin; k < begin + DEPTH<T> / 2; k += 16) {
            unsigned left[WARP_SIDE / 16][4], right[4];
#pragma unroll
            for (int m = 0; m < WARP_SIDE; m += 16) load_matrices<A_BY_K>(left[m / 16], a + m * ROW_A + k * K_A);
#pragma unroll
            for (int n = 0; n < WARP_SIDE; n += 16) {
                load_matrices<B_BY_K>(right, b + n * ROW_B + k * K_B);
#pragma unroll
                for (int m = 0; m < WARP_SIDE; m += 16) {
                    float *top = &sum[m / 8][n / 4], *bottom = &sum[m / 8 + 1][n / 4];
                    multiply_matrices<T>(top, bottom, left[m / 16], right[0], right[1]);
                    multiply_matrices<T>(top + 2, bottom + 2, left[m / 16], right[2], right[3]);
                }
            }
        }
    } else {
#pragma unroll 1
        for (int k = begin; k < begin + DEPTH<T> / 2; k++) {
            float left[LANE_ROWS];
#pragma unroll
            for (int i = 0; i < LANE_ROWS; i++) left[i] = to_float(a[lane_row(i) * ROW_A + k * K_A]);
#pragma unroll
            for (int j = 0; j < LANE_COLUMNS; j++) {
                const float right = to_float(b[lane_column(j) * ROW_B + k * K_B]);
#pragma unroll
                for (int i = 0; i < LANE_ROWS; i++) sum[i][j] = fmaf(left[i], right, sum[i][j]);
            }
        }
    }
}

/* c (rows, columns): the warp's. */
template <typename T, typename Y>
__device__ __forceinline__ void store_sum(Y *c, const warp_sum &sum, const T *bias, int64_t rows, int64_t columns,
                                          const struct grouped &g)
{
#pragma unroll
    for (int i = 0; i < LANE_ROWS; i++) {
#pragma unroll
        for (int j = 0; j < LANE_COLUMNS; j += 2) {
            const int column = lane_column(j);
            const bool two = column + 1 < columns;
            Y *to = c + lane_row(i) * g.n + column;
            if (lane_row(i) >= rows || column >= columns) continue;
            float x[2] = {sum[i][j], sum[i][j + 1]}, old[2] = {0, 0};
            if (bias) x[0] += to_float(bias[column]), x[1] += two ? to_float(bias[column + 1]) : 0.0f;
            if (g.pairs) {
                if (g.accumulate) load(to, old), x[0] += old[0], x[1] += old[1];
                store(to, x);
                continue;
            }
            from_float(g.accumulate ? to_float(to[0]) + x[0] : x[0], to);
            if (two) from_float(g.accumulate ? to_float(to[1]) + x[1] : x[1], to + 1);
        }
    }
}

/* A_BY_K: a weight's gradient; blocks: tiles of columns, of rows (or their places), experts. */
template <typename T, typename Y, bool A_BY_K, bool B_BY_K>
__global__ void __launch_bounds__(THREADS, 1) grouped_kernel(struct grouped g)
{
    constexpr int SIZE_A = OPERAND_SIZE<T, TILE_ROWS, A_BY_K>, SIZE_B = OPERAND_SIZE<T, TILE_COLUMNS, B_BY_K>;
    DYN_SHARED(T, stages);
    const int experts = static_cast<int>(g.experts), place = static_cast<int>(blockIdx.y);
    const int expert = A_BY_K ? static_cast<int>(blockIdx.z) : expert_at(g.offsets, experts, place);
    const int64_t first = g.offsets[expert], own = g.offsets[expert + 1] - first, matrix = expert * g.n;
    const int64_t m = A_BY_K ? g.m : own, k = A_BY_K ? own : g.k,
                  column = blockIdx.x * static_cast<int64_t>(TILE_COLUMNS);
    const int64_t row = (A_BY_K ? place : place - (first / TILE_ROWS + expert)) * static_cast<int64_t>(TILE_ROWS);
    if (row >= m || (A_BY_K && g.accumulate && k == 0)) return;
    const int64_t lda = A_BY_K ? m : k, ldb = B_BY_K ? g.n : k;
    const int rows = static_cast<int>(min(m - row, static_cast<int64_t>(TILE_ROWS)));
    const int columns = static_cast<int>(min(g.n - column, static_cast<int64_t>(TILE_COLUMNS)));
    const T *a = static_cast<const T *>(g.a) + first * (A_BY_K ? m : k) + row * (A_BY_K ? 1 : lda);
    const T *b = static_cast<const T *>(g.b) + (A_BY_K ? first * g.n : matrix * k) + column * (B_BY_K ? 1 : ldb);
    int left = static_cast<int>(k); /* of k, to be fetched */
    auto fetch = [&](int stage) {
        T *to = stages + stage * (SIZE_A + SIZE_B);
        if (left > 0) {
            load_operand<TILE_ROWS, A_BY_K>(to, a, lda, rows, min(left, DEPTH<T>), g.vectors);
            load_operand<TILE_COLUMNS, B_BY_K>(to + SIZE_A, b, ldb, columns, min(left, DEPTH<T>), g.vectors);
        }
        a += DEPTH<T> * (A_BY_K ? lda : 1);
        b += DEPTH<T> * (B_BY_K ? ldb : 1);
        left -= DEPTH<T>;
        COPIES_DO("commit_group");
    };
    const int warp_row = warp_of_block() / WARPS_ACROSS * WARP_SIDE,
              warp_column = warp_of_block() % WARPS_ACROSS * WARP_SIDE;
    const bool mine = warp_row < rows && warp_column < columns;
    const T *warp_a = stages + warp_row * (A_BY_K ? 1 : OPERAND_LD<T, TILE_ROWS, A_BY_K>);
    const T *warp_b = stages + SIZE_A + warp_column * (B_BY_K ? 1 : OPERAND_LD<T, TILE_COLUMNS, B_BY_K>);
    warp_sum sum = {};
    for (int stage = 0; stage < STAGES - 1; stage++) fetch(stage);
    for (int64_t done = 0, stage = 0; done < k; done += DEPTH<T>, stage = stage + 1 < STAGES ? stage + 1 : 0) {
        const int64_t from = stage * (SIZE_A + SIZE_B);
        COPIES_DO("wait_group 1");
        __syncthreads(); /* of all threads; and the stage before this one is free */
        if (mine) multiply_half<A_BY_K, B_BY_K>(sum, warp_a + from, warp_b + from, 0);
        fetch(static_cast<int>(stage > 0 ? stage - 1 : STAGES - 1)); /* while the tensor cores are busy */
        if (mine) multiply_half<A_BY_K, B_BY_K>(sum, warp_a + from, warp_b + from, DEPTH<T> / 2);
    }
    const T *bias = g.bias ? static_cast<const T *>(g.bias) + matrix + column + warp_column : nullptr;
    store_sum(static_cast<Y *>(g.c) + ((A_BY_K ? expert * m : first) + row + warp_row) * g.n + column + warp_column,
              sum, bias, rows - warp_row, columns - warp_column, g);
}

/* dbias of SUM_COLUMNS columns of an expert. */
template <typename T>
__global__ void __launch_bounds__(SUM_COLUMNS *SUM_ROWS) grouped_bias_kernel(struct grouped_linear_bwd_weight_args a)
{
    SHARED(float, sums, [SUM_ROWS][SUM_COLUMNS]);
    const int64_t column = blockIdx.x * static_cast<int64_t>(SUM_COLUMNS) + threadIdx.x, expert = blockIdx.y;
    float sum = 0;
    for (int64_t row = a.offsets[expert] + threadIdx.y; column < a.N && row < a.offsets[expert + 1]; row += SUM_ROWS)
        sum = fmaf(a.row_weights ? a.row_weights[row] : 1.0f,
                   to_float(static_cast<const T *>(a.dy)[row * a.N + column]), sum);
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
    const unsigned across = static_cast<unsigned>(ceil_div(g.n, TILE_COLUMNS));
    const unsigned down = static_cast<unsigned>(A_BY_K ? ceil_div(g.m, TILE_ROWS) : rows / TILE_ROWS + g.experts);
    const size_t shared =
        STAGES * sizeof(T) * (OPERAND_SIZE<T, TILE_ROWS, A_BY_K> + OPERAND_SIZE<T, TILE_COLUMNS, B_BY_K>);
    g.vectors = aligned16(g.a, g.b, (A_BY_K ? g.m : g.k) * size, (B_BY_K ? g.n : g.k) * size);
    g.pairs = g.n % 2 == 0 && bits_of_address(g.c) % (2 * sizeof(Y)) == 0;
    LAUNCH_SHARED(stream, what, (grouped_kernel<T, Y, A_BY_K, B_BY_K>),
                  dim3(across, down, A_BY_K ? static_cast<unsigned>(g.experts) : 1), THREADS, shared, g);
}

} // namespace

void cuda_grouped_own(struct stream *stream, const struct grouped_linear_fwd_args *a)
{
    const struct grouped g = {a->x, a->w, a->bias, a->y, a->offsets, 0, a->N, a->K, a->E, a->accumulate, false, false};
    if (a->M == 0) return;
    dispatch(a->dtype, [&](auto type) {
        using T = decltype(type);
        if (a->weights_in_out)
            grouped_launch<T, T, false, true>(stream, "a product of experts", g, a->M);
        else
            grouped_launch<T, T, false, false>(stream, "a product of experts", g, a->M);
    });
}

void cuda_grouped_linear_bwd_weight(struct stream *stream, const struct grouped_linear_bwd_weight_args *a)
{
    struct grouped g = {a->dy, a->x, nullptr, a->dw, a->offsets, a->N, a->K, 0, a->E, a->accumulate, false, false};
    if (a->weights_in_out)
        g = {a->x, a->dy, nullptr, a->dw, a->offsets, a->K, a->N, 0, a->E, a->accumulate, false, false};
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
