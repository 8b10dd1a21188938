/* ops_cuda_attention_tiles.cuh: tiles of matrices in shared memory and their products, for ops_cuda_attention.cu.
 *
 * A tile is rows of DP elements (D rounded up to a size that kernels are compiled for), TILE_LD apart: 16 bytes more
 * than they are long, so that neighbouring rows lie in different banks. Columns from D up to `depth` (D rounded up to
 * TILE_STEP) are zero, those after it are neither written nor read; so are rows that the matrix does not have.
 *
 * A warp computes 16 rows of a product and holds its sums in registers (struct tile_sum). LANES neighbouring lanes
 * share a row; a lane holds `ROWS` rows, and N / LANES columns of each:
 *
 *     row of sum i:      lane / LANES + 32 / LANES · i
 *     column of sum j:   score_column() after multiply_rows(), output_column() after multiply_columns() */
#ifndef ZTRAIN_GPU_OPS_CUDA_ATTENTION_TILES_CUH
#define ZTRAIN_GPU_OPS_CUDA_ATTENTION_TILES_CUH

#include "gpu/cuda_kernels.cuh"

enum { WARP_ROWS = 16 };

template <typename T> constexpr int LANES = 8;
template <typename T> constexpr int ROWS = WARP_ROWS *LANES<T> / WARP_SIZE;
template <typename T> constexpr int TILE_STEP = 32;

/* Elements between the rows of a tile. */
template <typename T, int COLUMNS> constexpr int TILE_LD = COLUMNS + VECTOR<T>;

template <typename T, int N> struct tile_sum {
    float at[ROWS<T>][N / LANES<T>];
};

__device__ __forceinline__ int lane_of_warp()
{
    return static_cast<int>(threadIdx.x % WARP_SIZE);
}

__device__ __forceinline__ int first_row_of_warp()
{
    return static_cast<int>(threadIdx.x / WARP_SIZE) * WARP_ROWS;
}

template <typename T> __device__ __forceinline__ int tile_row(int i)
{
    return lane_of_warp() / LANES<T> + WARP_SIZE / LANES<T> * i;
}

template <typename T> __device__ __forceinline__ int score_column(int j)
{
    return lane_of_warp() % LANES<T> + LANES<T> * j;
}

template <typename T> __device__ __forceinline__ int output_column(int j)
{
    return j / 4 * (4 * LANES<T>)+lane_of_warp() % LANES<T> * 4 + j % 4;
}

template <typename T, int N> __device__ __forceinline__ void tile_zero(struct tile_sum<T, N> *sum)
{
#pragma unroll
    for (int i = 0; i < ROWS<T>; i++) {
#pragma unroll
        for (int j = 0; j < N / LANES<T>; j++)
            sum->at[i][j] = 0;
    }
}

/* ---- tiles and global memory ---- */

/* The rows and columns of a matrix that a tile is of. `vectors`: all its rows are 16-byte aligned. */
struct tile_source {
    int64_t ld;
    int rows, D, depth;
    bool vectors;
};

/* tile (COUNT rows) = from. The threads of a block do it together. */
template <int COUNT, int DP, typename T>
__device__ __forceinline__ void tile_load(T *tile, const T *from, struct tile_source source)
{
    const int V = VECTOR<T>, thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    if (source.vectors) {
        for (int i = thread; i < COUNT * (DP / V); i += threads) {
            const int row = i / (DP / V), column = i % (DP / V) * V;
            if (column >= source.depth)
                continue;
            pack<T, V> part = {};
            if (row < source.rows && column < source.D)
                part = load_pack<V>(from + row * source.ld + column);
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

/* The rows of this warp: to (16 rows of ld elements) = sum · row_scale. They go through `tile`, 16 rows that nobody
 * else uses. */
template <int DP, typename T>
__device__ __forceinline__ void tile_store(T *to, T *tile, const struct tile_sum<T, DP> &sum,
                                           const float (&row_scale)[ROWS<T>], struct tile_source target)
{
    const int V = VECTOR<T>;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < ROWS<T>; i++) {
#pragma unroll
        for (int j = 0; j < DP / LANES<T>; j++) {
            if (output_column<T>(j) < target.depth)
                tile[tile_row<T>(i) * TILE_LD<T, DP> + output_column<T>(j)] = rounded<T>(sum.at[i][j] * row_scale[i]);
        }
    }
    __syncwarp();
    if (target.vectors) {
        for (int i = lane_of_warp(); i < WARP_ROWS * (DP / V); i += WARP_SIZE) {
            const int row = i / (DP / V), column = i % (DP / V) * V;
            if (row < target.rows && column < target.D)
                *reinterpret_cast<pack<T, V> *>(to + row * target.ld + column) =
                    load_pack<V>(tile + row * TILE_LD<T, DP> + column);
        }
        return;
    }
    for (int i = lane_of_warp(); i < WARP_ROWS * DP; i += WARP_SIZE) {
        const int row = i / DP, column = i % DP;
        if (row < target.rows && column < target.D)
            to[row * target.ld + column] = tile[row * TILE_LD<T, DP> + column];
    }
}

/* ---- products ---- */

/* sum (16, N) += a (16 rows) · b (N rows)ᵀ, over columns 0 … depth-1 of both */
template <int N, int DP, typename T>
__device__ __forceinline__ void multiply_rows(struct tile_sum<T, N> *sum, const T *a, const T *b, int depth)
{
#pragma unroll(DP > 128 ? 1 : 2) /* registers are short there */
    for (int k = 0; k < depth; k += 4) {
        float left[ROWS<T>][4];
#pragma unroll
        for (int i = 0; i < ROWS<T>; i++)
            load(a + tile_row<T>(i) * TILE_LD<T, DP> + k, left[i]);
#pragma unroll
        for (int j = 0; j < N / LANES<T>; j++) {
            float right[4];
            load(b + score_column<T>(j) * TILE_LD<T, DP> + k, right);
#pragma unroll
            for (int i = 0; i < ROWS<T>; i++) {
#pragma unroll
                for (int v = 0; v < 4; v++)
                    sum->at[i][j] = fmaf(left[i][v], right[v], sum->at[i][j]);
            }
        }
    }
}

/* sum (16, depth) += a (16 rows of K) · b (K rows) */
template <int K, int DP, typename T>
__device__ __forceinline__ void multiply_columns(struct tile_sum<T, DP> *sum, const T *a, const T *b, int depth)
{
#pragma unroll 1
    for (int k = 0; k < K; k += 4) {
        float left[ROWS<T>][4];
#pragma unroll
        for (int i = 0; i < ROWS<T>; i++)
            load(a + tile_row<T>(i) * TILE_LD<T, K> + k, left[i]);
#pragma unroll
        for (int v = 0; v < 4; v++) {
#pragma unroll
            for (int j = 0; j < DP / LANES<T>; j += 4) {
                if (j * LANES<T> >= depth)
                    break;
                float right[4];
                load(b + (k + v) * TILE_LD<T, DP> + output_column<T>(j), right);
#pragma unroll
                for (int i = 0; i < ROWS<T>; i++) {
#pragma unroll
                    for (int w = 0; w < 4; w++)
                        sum->at[i][j + w] = fmaf(left[i][v], right[w], sum->at[i][j + w]);
                }
            }
        }
    }
}

#endif
