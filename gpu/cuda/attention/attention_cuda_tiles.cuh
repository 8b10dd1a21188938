/* SPDX-License-Identifier: Apache-2.0 */
/* attention_cuda_tiles.cuh: tiles of matrices in shared memory and their products, for attention_cuda_kernels.cu.
 *
 * A tile has rows of DP elements (D rounded up to a compiled size), TILE_LD apart: 16 bytes more than their length, so
 * that neighbouring rows lie in different banks. Columns from D up to `depth` (D rounded up to TILE_STEP) are zero,
 * later ones are neither written nor read; rows beyond the matrix are zero.
 *
 * A warp holds 16 rows of a product in registers (struct tile_sum). LANES neighbouring lanes share a row; a lane holds
 * ROWS rows, and N / LANES columns of each:
 *
 *     row of sum i:      lane / LANES + 32 / LANES · i
 *     column of sum j:   score_column() after multiply_rows(), output_column() after multiply_columns()
 *
 * The sums of 16 x 256 columns fill the registers. Rows of wider tiles are shared by SHARERS neighbouring warps, which
 * have WARP_COLUMNS columns each.
 *
 * Tensor cores multiply bf16 and fp16 and prescribe this layout; fp32 is multiplied in full precision. The emulation,
 * which cannot run PTX, runs the loops of fp32 for all types over the same layouts. */
#pragma once

#include "gpu/cuda/cuda_kernels.cuh"

#include <type_traits>

enum { WARP_ROWS = 16 };

template <typename T> constexpr bool HALF_WIDTH = sizeof(T) == 2;
template <typename T> constexpr int LANES = HALF_WIDTH<T> ? 4 : 8;
template <typename T> constexpr int ROWS = WARP_ROWS *LANES<T> / WARP_SIZE;
template <typename T> constexpr int TILE_STEP = HALF_WIDTH<T> ? 16 : 32;

/* Columns that a lane holds side by side. */
template <typename T> constexpr int SCORES_BESIDE = HALF_WIDTH<T> ? 2 : 1;
template <typename T> constexpr int OUTPUTS_BESIDE = HALF_WIDTH<T> ? 2 : 4;

template <typename T, int DP> constexpr int WARP_COLUMNS = DP <= 256 ? DP : HALF_WIDTH<T> ? 128 : 256;
template <typename T, int DP> constexpr int SHARERS = DP / WARP_COLUMNS<T, DP>;

/* Elements between the rows of a tile. */
template <typename T, int COLUMNS> constexpr int TILE_LD = COLUMNS + VECTOR<T>;

template <typename T, int N> struct tile_sum {
    float at[ROWS<T>][N / LANES<T>];
};

__device__ __forceinline__ int warp_of_block()
{
    return static_cast<int>(threadIdx.x / WARP_SIZE);
}

template <typename T> __device__ __forceinline__ int tile_row(int i)
{
    return lane_of_warp() / LANES<T> + WARP_SIZE / LANES<T> * i;
}

template <int BESIDE, typename T> __device__ __forceinline__ int tile_column(int j)
{
    return j / BESIDE * (BESIDE * LANES<T>)+lane_of_warp() % LANES<T> * BESIDE + j % BESIDE;
}

template <typename T> __device__ __forceinline__ int score_column(int j)
{
    return tile_column<SCORES_BESIDE<T>, T>(j);
}

template <typename T> __device__ __forceinline__ int output_column(int j)
{
    return tile_column<OUTPUTS_BESIDE<T>, T>(j);
}

template <typename T, int N> __device__ __forceinline__ void tile_zero(struct tile_sum<T, N> *sum)
{
#pragma unroll
    for (int i = 0; i < ROWS<T>; i++) {
#pragma unroll
        for (int j = 0; j < N / LANES<T>; j++) sum->at[i][j] = 0;
    }
}

/* ---- tiles and global memory --------------------------------------------- */

/* The rows and columns of the matrix that a tile is part of. `vectors`: all of its rows are 16-byte aligned. */
struct tile_source {
    int64_t ld;
    int rows, D, depth;
    bool vectors;
};

/* tile (COUNT rows) = from. All threads of the block load it together. */
template <int COUNT, int DP, typename T>
__device__ __forceinline__ void tile_load(T *tile, const T *from, struct tile_source source)
{
    const int V = VECTOR<T>, thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    if (source.vectors) {
        for (int i = thread; i < COUNT * (DP / V); i += threads) {
            const int row = i / (DP / V), column = i % (DP / V) * V;
            if (column >= source.depth) continue;
            pack<T, V> part = {};
            if (row < source.rows && column < source.D) part = load_pack<V>(from + row * source.ld + column);
            *reinterpret_cast<pack<T, V> *>(tile + row * TILE_LD<T, DP> + column) = part;
        }
        return;
    }
    for (int i = thread; i < COUNT * DP; i += threads) {
        const int row = i / DP, column = i % DP;
        if (column < source.depth)
            tile[row * TILE_LD<T, DP> + column] =
                row < source.rows && column < source.D ? from[row * source.ld + column] : rounded<T>(0);
    }
}

/* The rows of this warp: to (16 rows of ld elements) = sum · row_scale, through 16 rows of `tile`. */
template <int DP, int N, typename T>
__device__ __forceinline__ void tile_store(T *to, T *tile, const struct tile_sum<T, N> &sum,
                                           const float (&row_scale)[ROWS<T>], struct tile_source target)
{
    const int V = VECTOR<T>;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < ROWS<T>; i++) {
#pragma unroll
        for (int j = 0; j < N / LANES<T>; j += OUTPUTS_BESIDE<T>) {
            float out[OUTPUTS_BESIDE<T>];
            if (j * LANES<T> >= target.depth) break;
#pragma unroll
            for (int w = 0; w < OUTPUTS_BESIDE<T>; w++) out[w] = sum.at[i][j + w] * row_scale[i];
            store(tile + tile_row<T>(i) * TILE_LD<T, DP> + output_column<T>(j), out);
        }
    }
    __syncwarp();
    if (target.vectors) {
        for (int i = lane_of_warp(); i < WARP_ROWS * (N / V); i += WARP_SIZE) {
            const int row = i / (N / V), column = i % (N / V) * V;
            if (row < target.rows && column < target.D)
                *reinterpret_cast<pack<T, V> *>(to + row * target.ld + column) =
                    load_pack<V>(tile + row * TILE_LD<T, DP> + column);
        }
        return;
    }
    for (int i = lane_of_warp(); i < WARP_ROWS * N; i += WARP_SIZE) {
        const int row = i / N, column = i % N;
        if (row < target.rows && column < target.D) to[row * target.ld + column] = tile[row * TILE_LD<T, DP> + column];
    }
}

/* ---- products ------------------------------------------------------------ */

#ifdef ZTRAIN_EMULATION
template <typename T> constexpr bool TENSOR_CORES = false;
#else
template <typename T> constexpr bool TENSOR_CORES = HALF_WIDTH<T>;
#endif

/* Four 8 x 8 matrices from shared memory into the operands of mma: lanes 0-7 give the addresses of the first one's
 * rows, and so on; a lane gets two neighbours of row lane / 4 of each, with TRANSPOSED of column lane / 4. */
template <bool TRANSPOSED> __device__ __forceinline__ void load_matrices(unsigned (&to)[4], const void *row)
{
#ifdef __CUDA_ARCH__
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(address)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(address)
                     : "memory");
#else
    (void)to, (void)row;
#endif
}

/* top, bottom (16, 8) += a (16, 16) · b (16, 8): rows 0-7 and 8-15 of the sums, two columns a lane */
template <typename T>
__device__ __forceinline__ void multiply_matrices(float *top, float *bottom, const unsigned (&a)[4], unsigned b0,
                                                  unsigned b1)
{
#ifdef __CUDA_ARCH__
#define MULTIPLY_MATRICES(type)                                                         \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                 \
                 ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                 : "+f"(top[0]), "+f"(top[1]), "+f"(bottom[0]), "+f"(bottom[1])         \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
    if (std::is_same<T, __half>::value)
        MULTIPLY_MATRICES("f16");
    else
        MULTIPLY_MATRICES("bf16");
#undef MULTIPLY_MATRICES
#else
    (void)top, (void)bottom, (void)a, (void)b0, (void)b1;
#endif
}

/* sum (16, N) += a (16 rows) · b (N rows)ᵀ, over columns 0 … depth-1 of both */
template <int N, int DP, typename T>
__device__ __forceinline__ void multiply_rows(struct tile_sum<T, N> *sum, const T *a, const T *b, int depth)
{
    if constexpr (TENSOR_CORES<T>) {
        const int lane = lane_of_warp();
        const T *a_row = a + lane % 16 * TILE_LD<T, DP> + lane / 16 * 8;
        const T *b_row = b + (lane / 16 * 8 + lane % 8) * TILE_LD<T, DP> + lane / 8 % 2 * 8;
#pragma unroll 2
        for (int k = 0; k < depth; k += 16) {
            unsigned left[4], right[4];
            load_matrices<false>(left, a_row + k);
#pragma unroll
            for (int n = 0; n < N; n += 16) {
                load_matrices<false>(right, b_row + n * TILE_LD<T, DP> + k);
                multiply_matrices<T>(&sum->at[0][n / 4], &sum->at[1][n / 4], left, right[0], right[1]);
                multiply_matrices<T>(&sum->at[0][n / 4 + 2], &sum->at[1][n / 4 + 2], left, right[2], right[3]);
            }
        }
    } else {
#pragma unroll(DP > 128 ? 1 : 2) /* few registers are left there */
        for (int k = 0; k < depth; k += 4) {
            float left[ROWS<T>][4];
#pragma unroll
            for (int i = 0; i < ROWS<T>; i++) load(a + tile_row<T>(i) * TILE_LD<T, DP> + k, left[i]);
#pragma unroll
            for (int j = 0; j < N / LANES<T>; j++) {
                float right[4];
                load(b + score_column<T>(j) * TILE_LD<T, DP> + k, right);
#pragma unroll
                for (int i = 0; i < ROWS<T>; i++) {
#pragma unroll
                    for (int v = 0; v < 4; v++) sum->at[i][j] = fmaf(left[i][v], right[v], sum->at[i][j]);
                }
            }
        }
    }
}

/* sum (16, depth) += a (16 rows of K) · b (K rows) */
template <int K, int DP, int N, typename T>
__device__ __forceinline__ void multiply_columns(struct tile_sum<T, N> *sum, const T *a, const T *b, int depth)
{
    if constexpr (TENSOR_CORES<T>) {
        const int lane = lane_of_warp();
        const T *a_row = a + lane % 16 * TILE_LD<T, K> + lane / 16 * 8;
        const T *b_row = b + lane % 16 * TILE_LD<T, DP> + lane / 16 * 8;
#pragma unroll(N > 128 ? 1 : 2)
        for (int k = 0; k < K; k += 16) {
            unsigned left[4], right[4];
            load_matrices<false>(left, a_row + k);
#pragma unroll
            for (int n = 0; n < N; n += 16) {
                if (n >= depth) break;
                load_matrices<true>(right, b_row + k * TILE_LD<T, DP> + n);
                multiply_matrices<T>(&sum->at[0][n / 4], &sum->at[1][n / 4], left, right[0], right[1]);
                multiply_matrices<T>(&sum->at[0][n / 4 + 2], &sum->at[1][n / 4 + 2], left, right[2], right[3]);
            }
        }
    } else {
        constexpr int BESIDE = OUTPUTS_BESIDE<T>;
#pragma unroll 1
        for (int k = 0; k < K; k += 4) {
            float left[ROWS<T>][4];
#pragma unroll
            for (int i = 0; i < ROWS<T>; i++) load(a + tile_row<T>(i) * TILE_LD<T, K> + k, left[i]);
#pragma unroll
            for (int v = 0; v < 4; v++) {
#pragma unroll
                for (int j = 0; j < N / LANES<T>; j += BESIDE) {
                    if (j * LANES<T> >= depth) break;
                    float right[BESIDE];
                    load(b + (k + v) * TILE_LD<T, DP> + output_column<T>(j), right);
#pragma unroll
                    for (int i = 0; i < ROWS<T>; i++) {
#pragma unroll
                        for (int w = 0; w < BESIDE; w++)
                            sum->at[i][j + w] = fmaf(left[i][v], right[w], sum->at[i][j + w]);
                    }
                }
            }
        }
    }
}
