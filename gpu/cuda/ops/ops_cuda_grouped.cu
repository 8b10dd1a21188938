/* SPDX-License-Identifier: Apache-2.0 */
/* ops_cuda_grouped.cu: the products of experts' rows with their matrices. A block computes a tile of the result of one
 * expert. Where the experts' rows begin is on the device only, so the grid has a place for every tile that any split of
 * the rows may need: those of expert e begin at place offsets[e] / TILE_ROWS + e, and some are empty.
 *
 * A tile has 128 x 256 elements, a warp 64 x 64 of them: shared memory then gives the tensor cores 128 bytes for each
 * mma, and L2 a byte for 85 FLOPs. The next two parts of k are on their way while one is multiplied. A lane holds, in
 * every dtype, the rows and columns of mma's sums (attention_cuda_tiles.cuh).
 *
 * Hopper has all of its FLOPs in `wgmma` only, which reads both operands from shared memory. It multiplies weights'
 * gradients there, whose operands both have rows of k; four warps have 64 x 256 sums. */
#include "gpu/cuda/attention/attention_cuda_tiles.cuh"
#include "gpu/cuda/gemm/gemm_cuda_kernels.h"

namespace
{

enum { WARPS_DOWN = 2, WARPS_ACROSS = 4, THREADS = WARPS_DOWN * WARPS_ACROSS * WARP_SIZE, WARP_SIDE = 64 };
enum { TILE_ROWS = WARPS_DOWN * WARP_SIDE, TILE_COLUMNS = WARPS_ACROSS * WARP_SIDE, AHEAD = 2 };
enum { SUM_COLUMNS = 32, SUM_ROWS = 16 };

/* GROUPS: by wgmma. A group of four warps has 64 rows of the tile, and each warp of it 16. */
template <bool GROUPS> constexpr int STAGES = GROUPS ? 4 : 3;
template <bool GROUPS> constexpr int WARP_DOWN = GROUPS ? 16 : 64; /* elements of a warp's sums */
template <bool GROUPS> constexpr int WARP_ACROSS = GROUPS ? 256 : 64;
template <typename T, bool GROUPS> constexpr int DEPTH = GROUPS ? 64 : 4 * VECTOR<T>; /* elements of k in a stage */

/* Elements between rows of an operand's tile: SIDE rows, or with BY_K rows of SIDE elements. 16 bytes are between two
 * rows, so that neighbours lie in different banks. */
template <typename T, int SIDE, bool BY_K> constexpr int OPERAND_LD = (BY_K ? SIDE : DEPTH<T, false>)+VECTOR<T>;
template <typename T, int SIDE, bool BY_K, bool GROUPS>
constexpr int OPERAND_SIZE = GROUPS ? DEPTH<T, true> *SIDE
                                    : (BY_K ? DEPTH<T, false> : SIDE) * OPERAND_LD<T, SIDE, BY_K>;

/* wgmma reads chunks of 64 columns. The 16 bytes p of a chunk's row r lie at p ^ (r % 8) of the row's 128 bytes (PTX
 * ISA, "Shared Memory Matrix Layout": MN-major, a swizzle of 128 bytes). */
enum { CHUNK = 64, CHUNK_ALIGN = 1024 };

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
#define PREFETCH(at) asm volatile("prefetch.global.L2 [%0];" ::"l"(at))
#else
#define COPIES_DO(what) (void)0
#define PREFETCH(at) (void)(at)
#endif
static_assert(AHEAD == 2, "a stage is multiplied, one may be under way: wait_group 1");

template <typename T, int SIDE, bool BY_K, bool GROUPS> __device__ __forceinline__ int operand_at(int row, int column)
{
    constexpr int V = VECTOR<T>;
    if (!GROUPS) return row * OPERAND_LD<T, SIDE, BY_K> + column;
    return column / CHUNK * (DEPTH<T, true> * CHUNK) + row * CHUNK + (column / V ^ row) % 8 * V + column % V;
}

/* `side` rows of the operand and `k` of their elements exist from `from` on; the others of the tile are zero. */
template <int SIDE, bool BY_K, bool GROUPS, typename T>
__device__ __forceinline__ void load_operand(T *tile, const T *from, int64_t ld, int side, int k, bool vectors)
{
    constexpr int V = VECTOR<T>, K = DEPTH<T, GROUPS>, COUNT = BY_K ? K : SIDE, COLUMNS = BY_K ? SIDE : K;
    const int rows = BY_K ? k : side, columns = BY_K ? side : k, thread = static_cast<int>(threadIdx.x);
    constexpr int STEP = THREADS * V / COLUMNS; /* rows that all threads copy at once */
    const int row = thread * V / COLUMNS, column = thread * V % COLUMNS;
    const T *at = from + row * ld + column;
#pragma unroll
    for (int i = 0; vectors && i < COUNT; i += STEP, at += STEP * ld)
        copy_async(tile + operand_at<T, SIDE, BY_K, GROUPS>(row + i, column), at, row + i < rows && column < columns);
#pragma unroll 1
    for (int i = thread; !vectors && i < COUNT * COLUMNS; i += THREADS) {
        const int r = i / COLUMNS, c = i % COLUMNS;
        tile[operand_at<T, SIDE, BY_K, GROUPS>(r, c)] = r < rows && c < columns ? from[r * ld + c] : rounded<T>(0);
    }
}

/* Moves what a tile's sums are added to into L2. */
template <typename Y> __device__ __forceinline__ void prefetch_tile(const Y *c, int64_t ld, int rows, int columns)
{
    constexpr int LINE = 128 / sizeof(Y), LINES = TILE_COLUMNS / LINE;
    for (int i = static_cast<int>(threadIdx.x); i < rows * LINES; i += THREADS)
        if (i % LINES * LINE < columns) PREFETCH(c + i / LINES * ld + i % LINES * LINE);
}

template <bool GROUPS> using warp_sum = float[WARP_DOWN<GROUPS> / 8][WARP_ACROSS<GROUPS> / 4]; /* a lane's */

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
__device__ __forceinline__ void multiply_half(warp_sum<false> &sum, const T *a, const T *b, int begin)
{
    constexpr int LD_A = OPERAND_LD<T, TILE_ROWS, A_BY_K>, LD_B = OPERAND_LD<T, TILE_COLUMNS, B_BY_K>;
    constexpr int ROW_A = A_BY_K ? 1 : LD_A, K_A = A_BY_K ? LD_A : 1, ROW_B = B_BY_K ? 1 : LD_B,
                  K_B = B_BY_K ? LD_B : 1;
    if constexpr (TENSOR_CORES<T>) {
        const int lane = lane_of_warp(), eight = lane / 8 % 2 * 8, sixteen = lane / 16 * 8;
        a += A_BY_K ? (sixteen + lane % 8) * LD_A + eight : lane % 16 * LD_A + sixteen;
        b += B_BY_K ? lane % 16 * LD_B + sixteen : (sixteen + lane % 8) * LD_B + eight;
#pragma unroll
        for (int k = begin; k < begin + DEPTH<T, false> / 2; k += 16) {
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
        for (int k = begin; k < begin + DEPTH<T, false> / 2; k++) {
            float left[WARP_SIDE / 8];
#pragma unroll
            for (int i = 0; i < WARP_SIDE / 8; i++) left[i] = to_float(a[lane_row(i) * ROW_A + k * K_A]);
#pragma unroll
            for (int j = 0; j < WARP_SIDE / 4; j++) {
                const float right = to_float(b[lane_column(j) * ROW_B + k * K_B]);
#pragma unroll
                for (int i = 0; i < WARP_SIDE / 8; i++) sum[i][j] = fmaf(left[i], right, sum[i][j]);
            }
        }
    }
}

/* ---- wgmma --------------------------------------------------------------- */

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define WGMMA_DO(what, ...) asm volatile(what ";" : __VA_ARGS__ : : "memory")
#elif defined(ZTRAIN_EMULATION)
#define WGMMA_DO(what, ...) emulation::wgmma(what)
#else
#define WGMMA_DO(what, ...) (void)0
#endif

/* A lane's 128 sums of 64 x 256, in the order of wgmma's registers. */
#define SUMS_4(j) "+f"(sum[0][j]), "+f"(sum[0][(j) + 1]), "+f"(sum[1][j]), "+f"(sum[1][(j) + 1])
#define SUMS_16(j) SUMS_4(j), SUMS_4((j) + 2), SUMS_4((j) + 4), SUMS_4((j) + 6)
#define SUMS SUMS_16(0), SUMS_16(8), SUMS_16(16), SUMS_16(24), SUMS_16(32), SUMS_16(40), SUMS_16(48), SUMS_16(56)
#define TEN(n) "%" n "0,%" n "1,%" n "2,%" n "3,%" n "4,%" n "5,%" n "6,%" n "7,%" n "8,%" n "9,"
#define HUNDRED TEN("") TEN("1") TEN("2") TEN("3") TEN("4") TEN("5") TEN("6") TEN("7") TEN("8") TEN("9")
#define MULTIPLY_GROUP(type)                                                                                          \
    asm volatile("{.reg .pred add; setp.eq.u32 add, 0, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type \
                 " {" HUNDRED TEN("10") TEN("11") "%120,%121,%122,%123,%124,%125,%126,%127}"                          \
                                                  ", %128, %129, add, 1, 1, 1, 1;}"                                   \
                 : SUMS                                                                                               \
                 : "l"(a), "l"(b))

template <typename T, int N> constexpr uint64_t IN_16_BYTES = N * sizeof(T) / 16;

/* Describes a matrix BY_K of chunks to wgmma (PTX ISA, "Matrix Descriptor Format"): the address, the distances of
 * chunks and of eight rows, and the swizzle of 128 bytes. */
template <typename T> __device__ __forceinline__ uint64_t matrix_of(const T *at)
{
    return __cvta_generic_to_shared(at) / 16 | IN_16_BYTES<T, DEPTH<T, true> * CHUNK> << 16 |
           IN_16_BYTES<T, 8 * CHUNK> << 32 | 1ull << 62;
}

/* Begins sum += a · b over a stage. Threads have fenced their copies (wgmma reads by the "async proxy") and met. */
template <typename T> __device__ __forceinline__ void begin_product(warp_sum<true> &sum, uint64_t a, uint64_t b)
{
    WGMMA_DO("wgmma.fence.sync.aligned");
#pragma unroll
    for (int k = 0; k < DEPTH<T, true>; k += 16, a += IN_16_BYTES<T, 16 * CHUNK>, b += IN_16_BYTES<T, 16 * CHUNK>) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
        if (std::is_same<T, __half>::value)
            MULTIPLY_GROUP("f16");
        else
            MULTIPLY_GROUP("bf16");
#elif defined(ZTRAIN_EMULATION)
        emulation::wgmma_product<T>(&sum[0][0], a, b);
#endif
    }
    WGMMA_DO("wgmma.commit_group.sync.aligned");
}

/* sum += a · b over a stage, for the warp at (row, column) of the tile; `mine`: it has elements there. */
template <bool A_BY_K, bool B_BY_K, bool GROUPS, typename T, typename Fetch>
__device__ __forceinline__ void multiply_stage(warp_sum<GROUPS> &sum, const T *a, const T *b, int row, int column,
                                               bool mine, Fetch fetch)
{
    if constexpr (GROUPS) {
        begin_product<T>(sum, matrix_of(a + row / CHUNK * (DEPTH<T, true> * CHUNK)), matrix_of(b));
        fetch();
        WGMMA_DO("wgmma.wait_group.sync.aligned 1"); /* for the product before this one */
    } else {
        a += row * (A_BY_K ? 1 : OPERAND_LD<T, TILE_ROWS, A_BY_K>);
        b += column * (B_BY_K ? 1 : OPERAND_LD<T, TILE_COLUMNS, B_BY_K>);
        if (mine) multiply_half<A_BY_K, B_BY_K>(sum, a, b, 0);
        fetch(); /* while the tensor cores are busy */
        if (mine) multiply_half<A_BY_K, B_BY_K>(sum, a, b, DEPTH<T, false> / 2);
    }
}

/* c (rows, columns): the warp's. Earlier values that are added are read many at a time, then used. */
template <bool GROUPS, typename T, typename Y>
__device__ __forceinline__ void store_sum(Y *c, const warp_sum<GROUPS> &sum, const T *bias, int64_t rows,
                                          int64_t columns, const struct grouped &g)
{
    constexpr int COUNT = WARP_ACROSS<GROUPS> / 4, PART = GROUPS ? 32 : COUNT;
#pragma unroll
    for (int i = 0; i < WARP_DOWN<GROUPS> / 8 * (COUNT / PART); i++) {
        const int r = i / (COUNT / PART), first = i % (COUNT / PART) * PART;
        Y *const row = c + lane_row(r) * g.n;
        const int64_t end = lane_row(r) < rows ? columns : 0;
        pack<Y, 2> old[PART / 2];
#pragma unroll
        for (int j = 0; j < PART; j += 2) {
            const int column = lane_column(first + j);
            old[j / 2] = {};
            if (!g.accumulate || column >= end) continue;
            if (g.pairs)
                old[j / 2] = load_pack<2>(row + column);
            else
                old[j / 2] = {row[column], column + 1 < end ? row[column + 1] : rounded<Y>(0)};
        }
#pragma unroll
        for (int j = 0; j < PART; j += 2) {
            const int column = lane_column(first + j);
            const bool two = column + 1 < end;
            float x[2] = {sum[r][first + j], sum[r][first + j + 1]};
            if (column >= end) continue;
            if (bias) x[0] += to_float(bias[column]), x[1] += two ? to_float(bias[column + 1]) : 0.0f;
            if (g.accumulate) x[0] += to_float(old[j / 2].at[0]), x[1] += to_float(old[j / 2].at[1]);
            if (g.pairs)
                store(row + column, x);
            else
                from_float(x[0], row + column);
            if (!g.pairs && two) from_float(x[1], row + column + 1);
        }
    }
}

/* A_BY_K: a weight's gradient; blocks: tiles of columns, of rows (or their places), experts. */
template <typename T, typename Y, bool A_BY_K, bool B_BY_K, bool GROUPS>
__global__ void __launch_bounds__(THREADS, 1) grouped_kernel(struct grouped g)
{
    constexpr int SIZE_A = OPERAND_SIZE<T, TILE_ROWS, A_BY_K, GROUPS>, K = DEPTH<T, GROUPS>, COUNT = STAGES<GROUPS>;
    constexpr int SIZE = SIZE_A + OPERAND_SIZE<T, TILE_COLUMNS, B_BY_K, GROUPS>;
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
    if (GROUPS) return __trap(); /* it is not launched: this spares its code */
#endif
    DYN_SHARED(T, memory);
    T *const stages = memory + (GROUPS ? -__cvta_generic_to_shared(memory) % CHUNK_ALIGN / sizeof(T) : 0);
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
    Y *const c = static_cast<Y *>(g.c) + ((A_BY_K ? expert * m : first) + row) * g.n + column;
    int left = static_cast<int>(k); /* of k, to be fetched */
    auto fetch = [&](int stage) {
        T *to = stages + stage * SIZE;
        if (left > 0) {
            load_operand<TILE_ROWS, A_BY_K, GROUPS>(to, a, lda, rows, min(left, K), g.vectors);
            load_operand<TILE_COLUMNS, B_BY_K, GROUPS>(to + SIZE_A, b, ldb, columns, min(left, K), g.vectors);
        } else if (g.accumulate && left > -K) { /* once, while the last stages are multiplied */
            prefetch_tile(c, g.n, rows, columns);
        }
        a += K * (A_BY_K ? lda : 1);
        b += K * (B_BY_K ? ldb : 1);
        left -= K;
        COPIES_DO("commit_group");
    };
    constexpr int ACROSS = TILE_COLUMNS / WARP_ACROSS<GROUPS>; /* warps */
    const int warp_row = warp_of_block() / ACROSS * WARP_DOWN<GROUPS>,
              warp_column = warp_of_block() % ACROSS * WARP_ACROSS<GROUPS>;
    const bool mine = warp_row < rows && warp_column < columns;
    warp_sum<GROUPS> sum = {};
    for (int stage = 0; stage < AHEAD; stage++) fetch(stage);
    for (int64_t done = 0, stage = 0; done < k; done += K, stage = stage + 1 < COUNT ? stage + 1 : 0) {
        const T *from = stages + stage * SIZE;
        const int next = static_cast<int>(stage < COUNT - AHEAD ? stage + AHEAD : stage + AHEAD - COUNT);
        COPIES_DO("wait_group 1");
        if (GROUPS) WGMMA_DO("fence.proxy.async.shared::cta");
        __syncthreads(); /* of all threads; and the next stage to be fetched is free */
        multiply_stage<A_BY_K, B_BY_K, GROUPS>(sum, from, from + SIZE_A, warp_row, warp_column, mine,
                                               [&] { fetch(next); });
    }
    if constexpr (GROUPS) WGMMA_DO("wgmma.wait_group.sync.aligned 0", SUMS);
    const T *bias = !A_BY_K && g.bias ? static_cast<const T *>(g.bias) + matrix + column + warp_column : nullptr;
    store_sum<GROUPS>(c + warp_row * g.n + warp_column, sum, bias, rows - warp_row, columns - warp_column, g);
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

template <typename T, typename Y, bool A_BY_K, bool B_BY_K, bool GROUPS = false>
void grouped_launch(struct stream *stream, const char *what, struct grouped g, int64_t rows)
{
    constexpr bool BY_GROUPS = ZTRAIN_SM90A && HALF_WIDTH<T> && A_BY_K && B_BY_K; /* the build has code for sm_90a */
    if (BY_GROUPS && !GROUPS && cuda_device_of(stream)->capability == 90)
        return grouped_launch<T, Y, A_BY_K, B_BY_K, BY_GROUPS>(stream, what, g, rows);
    const int64_t size = sizeof(T);
    const unsigned across = static_cast<unsigned>(ceil_div(g.n, TILE_COLUMNS));
    const unsigned down = static_cast<unsigned>(A_BY_K ? ceil_div(g.m, TILE_ROWS) : rows / TILE_ROWS + g.experts);
    const size_t shared = STAGES<GROUPS> * sizeof(T) *
                          (OPERAND_SIZE<T, TILE_ROWS, A_BY_K, GROUPS> +
                           OPERAND_SIZE<T, TILE_COLUMNS, B_BY_K, GROUPS>)+(GROUPS ? CHUNK_ALIGN : 0);
    g.vectors = aligned16(g.a, g.b, (A_BY_K ? g.m : g.k) * size, (B_BY_K ? g.n : g.k) * size);
    g.pairs = g.n % 2 == 0 && bits_of_address(g.c) % (2 * sizeof(Y)) == 0;
    LAUNCH_SHARED(stream, what, (grouped_kernel<T, Y, A_BY_K, B_BY_K, GROUPS>),
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
CUDA_MODULE(grouped, (grouped_kernel<float, float, true, true, false>))
