/* SPDX-License-Identifier: Apache-2.0 */
/* ops_cuda_delta.cu: the causal convolution, and the gated delta rule in chunks (cpu_delta_rule.h has its formulas).
 *
 * Convolution: a thread is a channel of a part of the rows and walks down them with its taps in registers.
 *
 * Delta rule: three kernels.
 *
 *     scan        forward: chunks in order. A block has DELTA_SLICE columns of a head's state S in shared memory:
 * columns do not depend on each other. For backward it leaves S before each chunk, and X, in the workspace. scan_back
 * chunks in reverse: the gradients of S after each chunk, and of R, to the workspace; dv is beta times it gradients   a
 * block for each chunk and key head: dq, dk, da, db
 *
 * A warp has ROWS rows of a chunk, a lane a column of a slice, or every WARP_SIZE-th of a chunk or of a key. Rows are
 * operands that all lanes read at once, from shared memory. All is fp32 on the ordinary cores. */
#include "gpu/cuda/cuda_kernels.cuh"

namespace
{

enum {
    CHUNK = DELTA_CHUNK,
    SLICE = DELTA_SLICE,
    ROWS = 8,
    THREADS = CHUNK / ROWS * WARP_SIZE,
    KEY_LD = DELTA_MAX_DIM + 4,       /* floats between rows of a tile of keys */
    SQUARE_LD = CHUNK + 4,            /* of a matrix of a chunk by a chunk */
    STAGED_LD = SLICE + 4,            /* of rows of a slice */
    SLICE_LD = SLICE + 1,             /* of a slice that lanes read by rows */
    KEYS = DELTA_MAX_DIM / WARP_SIZE, /* columns of keys for each lane */
    CONV_THREADS = 128,
};
static_assert(static_cast<int>(SLICE) == static_cast<int>(WARP_SIZE), "a lane is a column of a slice");

/* ---- convolution --------------------------------------------------------- */

/* The last of the sequences that begin at `at` or before; begin(sequence) rises. */
template <typename Begin>
__device__ __forceinline__ int64_t last_sequence(int64_t num_seqs, int64_t at, const Begin &begin)
{
    int64_t first = 0, end = num_seqs;
    while (end - first > 1) {
        const int64_t middle = (first + end) / 2;
        if (begin(middle) <= at)
            first = middle;
        else
            end = middle;
    }
    return first;
}

__device__ __forceinline__ int64_t sequence_of(const int32_t *seq_start, int64_t num_seqs, int64_t row)
{
    return last_sequence(num_seqs, row, [&](int64_t s) { return static_cast<int64_t>(seq_start[s]); });
}

/* A channel's weights, the last ones of `w`, and the inputs that the rows before `row` have in its sequence. */
template <typename T, typename Args>
__device__ __forceinline__ void conv_start(float (&w)[CONV_TAPS], float (&x)[CONV_TAPS], const Args &a, int64_t c,
                                           int64_t row, int64_t start)
{
#pragma unroll
    for (int j = 0; j < CONV_TAPS; j++) {
        const int64_t tap = j - (CONV_TAPS - a.K), from = row - CONV_TAPS + j;
        w[j] = tap >= 0 ? to_float(static_cast<const T *>(a.weight)[c * a.K + tap]) : 0;
        x[j] = from >= start ? to_float(static_cast<const T *>(a.x)[from * a.ld_x + c]) : 0;
    }
}

__device__ __forceinline__ float conv_step(float (&x)[CONV_TAPS], const float (&w)[CONV_TAPS], float row)
{
    float sum = 0;
#pragma unroll
    for (int j = 0; j < CONV_TAPS; j++) {
        x[j] = j + 1 < CONV_TAPS ? x[j + 1] : row;
        sum += w[j] * x[j];
    }
    return sum;
}

template <typename T>
__global__ void __launch_bounds__(CONV_THREADS) causal_conv_fwd_kernel(struct causal_conv_fwd_args a, int64_t rows)
{
    const int64_t c = grid_thread(), first = blockIdx.y * rows, end = first + rows < a.M ? first + rows : a.M;
    int64_t s = sequence_of(a.seq_start, a.num_seqs, first);
    float w[CONV_TAPS], x[CONV_TAPS];
    if (c >= a.C) return;
    conv_start<T>(w, x, a, c, first, a.seq_start[s]);
    for (int64_t i = first; i < end; i++) {
        T *const state = static_cast<T *>(a.state);
        for (; i >= a.seq_start[s + 1]; s++) x[0] = x[1] = x[2] = x[3] = 0;
        const int64_t held = (s * a.K - (CONV_TAPS - a.K)) * a.C + c; /* where x[0] would be in the state */
#pragma unroll
        for (int j = 0; j < CONV_TAPS; j++)
            if (state && i == a.seq_start[s] && j >= CONV_TAPS - a.K) x[j] = to_float(state[held + j * a.C]);
        const float y = conv_step(x, w, to_float(static_cast<const T *>(a.x)[i * a.ld_x + c]));
        from_float(y * sigmoid(y), static_cast<T *>(a.y) + i * a.ld_y + c);
#pragma unroll
        for (int j = 0; j < CONV_TAPS; j++)
            if (state && i + 1 == a.seq_start[s + 1] && j >= CONV_TAPS - a.K) from_float(x[j], &state[held + j * a.C]);
    }
}

/* dx of a row is written CONV_TAPS - 1 rows later. parts (gridDim.y, CONV_TAPS, C): sums for dweight. */
template <typename T>
__global__ void __launch_bounds__(CONV_THREADS)
    causal_conv_bwd_kernel(struct causal_conv_bwd_args a, int64_t rows, float *parts)
{
    const int64_t c = grid_thread(), first = blockIdx.y * rows, end = first + rows < a.M ? first + rows : a.M;
    int64_t s = sequence_of(a.seq_start, a.num_seqs, first), written = s;
    float w[CONV_TAPS], x[CONV_TAPS], d[CONV_TAPS] = {}, dw[CONV_TAPS] = {};
    if (c >= a.C) return;
    conv_start<T>(w, x, a, c, first, a.seq_start[s]);
    for (int64_t i = first; i < end + CONV_TAPS - 1; i++) {
        float dy = 0;
        if (i < a.M) {
            for (; i >= a.seq_start[s + 1]; s++) x[0] = x[1] = x[2] = x[3] = 0;
            const float y = conv_step(x, w, to_float(static_cast<const T *>(a.x)[i * a.ld_x + c])), g = sigmoid(y);
            dy = to_float(static_cast<const T *>(a.dy)[i * a.ld_dy + c]) * g * (1 + y * (1 - g));
        }
#pragma unroll
        for (int j = 0; j < CONV_TAPS; j++) {
            d[j] = j + 1 < CONV_TAPS ? d[j + 1] : dy;
            dw[j] += i < end ? dy * x[j] : 0;
        }
        const int64_t row = i - (CONV_TAPS - 1);
        if (row < first) continue;
        while (row >= a.seq_start[written + 1]) written++;
        float dx = 0;
#pragma unroll
        for (int j = 0; j < CONV_TAPS; j++) dx += row + j < a.seq_start[written + 1] ? w[CONV_TAPS - 1 - j] * d[j] : 0;
        from_float(dx, static_cast<T *>(a.dx) + row * a.ld_dx + c);
    }
#pragma unroll
    for (int j = 0; j < CONV_TAPS; j++) parts[(static_cast<int64_t>(blockIdx.y) * CONV_TAPS + j) * a.C + c] = dw[j];
}

__global__ void __launch_bounds__(CONV_THREADS)
    conv_weight_kernel(struct causal_conv_bwd_args a, const float *parts, int64_t count)
{
    const int64_t i = grid_thread(), c = i / a.K, tap = CONV_TAPS - a.K + i % a.K;
    if (c >= a.C) return;
    float sum = a.accumulate ? a.dweight[i] : 0;
    for (int64_t part = 0; part < count; part++) sum += parts[(part * CONV_TAPS + tap) * a.C + c];
    a.dweight[i] = sum;
}

/* ---- products of the delta rule ------------------------------------------ */

__device__ __forceinline__ int lane_of()
{
    return static_cast<int>(threadIdx.x) % WARP_SIZE;
}

/* The first row of this warp. */
__device__ __forceinline__ int own_row()
{
    return static_cast<int>(threadIdx.x) / WARP_SIZE * ROWS;
}

/* sum[r][c] += the first n (a multiple of 4) products of row r of `a` and column lane + WARP_SIZE c of b, whose element
 * (k, column) stands at b[k * step_k + column * step]; columns from `columns` on are left out. */
template <int N>
__device__ __forceinline__ void add_products(float (&sum)[ROWS][N], const float *a, int ld_a, const float *b,
                                             int step_k, int step, int columns, int n)
{
#pragma unroll 1
    for (int k = 0; k < n; k += 4) {
        float left[ROWS][4];
#pragma unroll
        for (int r = 0; r < ROWS; r++) load(a + r * ld_a + k, left[r]);
#pragma unroll
        for (int c = 0; c < N; c++) {
            const int column = lane_of() + WARP_SIZE * c;
            if (column >= columns) break;
#pragma unroll
            for (int v = 0; v < 4; v++) {
                const float right = b[(k + v) * step_k + column * step];
#pragma unroll
                for (int r = 0; r < ROWS; r++) sum[r][c] = fmaf(left[r][v], right, sum[r][c]);
            }
        }
    }
}

template <int N> __device__ __forceinline__ void clear(float (&sum)[ROWS][N])
{
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int c = 0; c < N; c++) sum[r][c] = 0;
    }
}

/* ---- a chunk of a head --------------------------------------------------- */

struct chunk {
    int64_t row, place; /* its first row of the tensors; its place among all chunks */
    int count;          /* tokens */
};

__device__ __forceinline__ struct chunk chunk_of(const int32_t *seq_start, int64_t s, int64_t index)
{
    const int64_t start = seq_start[s], length = seq_start[s + 1] - start, left = length - index * CHUNK;
    return {start + index * CHUNK, start / CHUNK + s + index,
            left < CHUNK ? static_cast<int>(left) : static_cast<int>(CHUNK)};
}

__device__ __forceinline__ int64_t chunks_of(const int32_t *seq_start, int64_t s)
{
    return (seq_start[s + 1] - seq_start[s] + CHUNK - 1) / CHUNK;
}

/* Of each token: beta, the sum of g, and what q and k are multiplied by for their length. */
struct tokens {
    float beta[CHUNK], sums[CHUNK], q[CHUNK], k[CHUNK];
};

__device__ __forceinline__ float softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x));
}

/* A row of q or k, one of this warp's: the factor for its length. */
template <typename T> __device__ __forceinline__ float unit_factor(const T *row, int D, float scale)
{
    float sum = 0;
    for (int d = lane_of(); d < D; d += WARP_SIZE) sum += to_float(row[d]) * to_float(row[d]);
    return scale / sqrtf(sum_over_lanes(sum, WARP_SIZE) + 1e-6f);
}

/* The block computes `t` for a chunk of value head h. Tokens beyond the chunk have beta 0 and do not decay. */
template <typename T, typename Args>
__device__ __forceinline__ void load_tokens(struct tokens *t, const Args &a, const struct chunk &at, int64_t h)
{
    const int i = static_cast<int>(threadIdx.x), Dk = static_cast<int>(a.Dk);
    const int64_t key = h / (a.Hv / a.Hk) * a.Dk;
    const float rate = expf(to_float(static_cast<const T *>(a.a_log)[h]));
    if (i < CHUNK) {
        const int64_t place = (at.row + i) * a.ld_ab + h;
        const float bias = to_float(static_cast<const T *>(a.dt_bias)[h]);
        t->beta[i] = i < at.count ? sigmoid(to_float(static_cast<const T *>(a.b)[place])) : 0;
        t->sums[i] = i < at.count ? -rate * softplus(to_float(static_cast<const T *>(a.a)[place]) + bias) : 0;
    }
    for (int r = own_row(); r < own_row() + ROWS; r++) {
        const int64_t row = (at.row + r) * a.ld_qkv + key;
        const bool exists = r < at.count;
        const float q = exists ? unit_factor(static_cast<const T *>(a.q) + row, Dk, rsqrtf(static_cast<float>(Dk))) : 0;
        const float k = exists ? unit_factor(static_cast<const T *>(a.k) + row, Dk, 1) : 0;
        if (lane_of() == 0) {
            t->q[r] = q;
            t->k[r] = k;
        }
    }
    __syncthreads();
    if (i == 0) {
#pragma unroll 8 /* not all: each would be a register */
        for (int j = 1; j < CHUNK; j++) t->sums[j] += t->sums[j - 1];
    }
    __syncthreads();
}

/* to (rows of this warp, ld) = the columns `first` … `first` + width - 1 of the warp's rows of x, times factor; x is at
 * the chunk's first row. What lies beyond the chunk or D is 0. */
template <typename T>
__device__ __forceinline__ void load_rows(float *to, int ld, const T *x, int64_t ld_x, const float *factor, int first,
                                          int width, int D, int count)
{
    for (int r = 0; r < ROWS; r++) {
        const int row = own_row() + r;
        for (int d = lane_of(); d < width; d += WARP_SIZE) {
            const bool exists = row < count && first + d < D;
            to[r * ld + d] = exists ? to_float(x[row * ld_x + first + d]) * (factor ? factor[row] : 1) : 0;
        }
    }
}

__device__ __forceinline__ float decay(const struct tokens &t, int later, int earlier)
{
    return expf(t.sums[later] - t.sums[earlier]);
}

/* ---- scans --------------------------------------------------------------- */

/* What both scans have in shared memory. */
struct scan_memory {
    float *tile;   /* (CHUNK, KEY_LD): K, or Q */
    float *state;  /* (Dk in whole ROWS, SLICE) */
    float *square; /* (CHUNK, SQUARE_LD) */
    float *x;      /* (CHUNK, SLICE) */
    int Dk;        /* in whole ROWS */
};

enum {
    SCAN_BYTES = 4 * (CHUNK * (KEY_LD + SQUARE_LD + SLICE) + DELTA_MAX_DIM * SLICE),
    GRADIENT_BYTES = 4 * (CHUNK * (KEY_LD + 2 * SQUARE_LD + STAGED_LD) + DELTA_MAX_DIM * SLICE_LD)
};

__device__ __forceinline__ int whole_keys(int64_t Dk)
{
    return static_cast<int>(Dk + ROWS - 1) / ROWS * ROWS;
}

__device__ __forceinline__ struct scan_memory scan_memory_of(float *memory, int64_t Dk)
{
    struct scan_memory m;
    m.Dk = whole_keys(Dk);
    m.tile = memory;
    m.state = m.tile + CHUNK * KEY_LD;
    m.square = m.state + DELTA_MAX_DIM * SLICE;
    m.x = m.square + CHUNK * SQUARE_LD;
    return m;
}

/* products (own rows, all rows) = rows · tileᵀ, values (own rows, slice) = rows · state. The rows go through the
 * warp's rows of the square, half of the keys at a time. */
template <typename T>
__device__ __forceinline__ void multiply_keys(const struct scan_memory &m, const T *rows, int64_t ld,
                                              const float *factor, int D, int count, float (&products)[ROWS][2],
                                              float (&values)[ROWS][1])
{
    float *own = m.square + own_row() * SQUARE_LD;
    clear(products);
    clear(values);
    for (int first = 0; first < m.Dk; first += CHUNK) {
        const int width = m.Dk - first < CHUNK ? m.Dk - first : CHUNK;
        __syncwarp();
        load_rows(own, SQUARE_LD, rows, ld, factor, first, width, D, count);
        __syncwarp();
        add_products(values, own, SQUARE_LD, m.state + first * SLICE, SLICE, 1, SLICE, width);
        add_products(products, own, SQUARE_LD, m.tile + first, 1, KEY_LD, CHUNK, width);
    }
    __syncwarp();
}

/* x = (1 + square)⁻¹ own, or with BACK the same of rows in reverse; the square is read below, or above, the diagonal.
 */
template <bool BACK> __device__ __forceinline__ void solve(const struct scan_memory &m, float (&own)[ROWS][1])
{
    for (int step = 0; step < CHUNK; step += ROWS) {
        const int block = BACK ? CHUNK - ROWS - step : step;
        const float *factors = m.square + own_row() * SQUARE_LD + block;
        if (own_row() == block) {
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                const int r = BACK ? ROWS - 1 - i : i;
#pragma unroll
                for (int j = 0; j < i; j++) {
                    const int s = BACK ? ROWS - 1 - j : j;
                    own[r][0] -= factors[r * SQUARE_LD + s] * own[s][0];
                }
                m.x[(block + r) * SLICE + lane_of()] = own[r][0];
            }
        }
        __syncthreads();
        if (BACK ? own_row() < block : own_row() > block) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
#pragma unroll
                for (int s = 0; s < ROWS; s++)
                    own[r][0] -= factors[r * SQUARE_LD + s] * m.x[(block + s) * SLICE + lane_of()];
            }
        }
    }
}

/* state = keep · state + tileᵀ · (factor of its row · x) */
__device__ __forceinline__ void update_state(const struct scan_memory &m, float keep, const float *factor)
{
    for (int d = own_row(); d < m.Dk; d += CHUNK) {
        float sum[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) sum[r] = keep * m.state[(d + r) * SLICE + lane_of()];
        for (int j = 0; j < CHUNK; j++) {
            const float x = factor[j] * m.x[j * SLICE + lane_of()];
            float left[ROWS];
            load<4>(m.tile + j * KEY_LD + d, *reinterpret_cast<float(*)[4]>(left));
            load<4>(m.tile + j * KEY_LD + d + 4, *reinterpret_cast<float(*)[4]>(left + 4));
#pragma unroll
            for (int r = 0; r < ROWS; r++) sum[r] = fmaf(left[r], x, sum[r]);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) m.state[(d + r) * SLICE + lane_of()] = sum[r];
    }
}

/* Copies the slice of a state (Dk, Dv) to or from shared memory. */
template <bool SAVE>
__device__ __forceinline__ void copy_state(const struct scan_memory &m, float *global, int64_t Dk, int64_t Dv,
                                           int64_t column)
{
    for (int d = own_row() / ROWS; d < m.Dk; d += CHUNK / ROWS) {
        const bool exists = global && d < Dk && column < Dv;
        if (!SAVE)
            m.state[d * SLICE + lane_of()] = exists ? global[d * Dv + column] : 0;
        else if (exists)
            global[d * Dv + column] = m.state[d * SLICE + lane_of()];
    }
}

/* products (own rows, all rows) times beta_i exp(G_i - G_j) below the diagonal; with P exp(G_i - G_j) on it and below;
 * 0 elsewhere. Where they are of the transpose (BACK), above it. */
template <bool BACK, bool P>
__device__ __forceinline__ void apply_decay(const struct tokens &t, float (&products)[ROWS][2])
{
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const int own = own_row() + r, lane = lane_of() + WARP_SIZE * c;
            const int i = BACK ? lane : own, j = BACK ? own : lane;
            const float factor = P ? 1 : t.beta[i];
            products[r][c] = j < i || (P && j == i) ? factor * decay(t, i, j) * products[r][c] : 0;
        }
    }
}

/* square = scale · products */
__device__ __forceinline__ void store_square(float *square, const float (&products)[ROWS][2], float scale)
{
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int c = 0; c < 2; c++)
            square[(own_row() + r) * SQUARE_LD + lane_of() + WARP_SIZE * c] = scale * products[r][c];
    }
    __syncwarp();
}

/* All threads: square becomes its transpose. */
__device__ __forceinline__ void turn_square(float *square)
{
    float rows[ROWS][2];
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int c = 0; c < 2; c++) rows[r][c] = square[(lane_of() + WARP_SIZE * c) * SQUARE_LD + own_row() + r];
    }
    __syncthreads();
    store_square(square, rows, 1);
}

template <bool BACK, bool P>
__device__ __forceinline__ void decayed_square(const struct scan_memory &m, const struct tokens &t,
                                               float (&products)[ROWS][2])
{
    apply_decay<BACK, P>(t, products);
    store_square(m.square, products, 1);
}

/* R, from own = K S. */
template <typename T>
__device__ __forceinline__ void right_side(float (&own)[ROWS][1], const struct delta_rule_fwd_args &a,
                                           const struct tokens &t, const struct chunk &at, int64_t h, int64_t column)
{
    const T *const v = static_cast<const T *>(a.v) + at.row * a.ld_qkv + h * a.Dv + column;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int i = own_row() + r;
        const float value = i < at.count && column < a.Dv ? to_float(v[i * a.ld_qkv]) : 0;
        own[r][0] = t.beta[i] * (value - expf(t.sums[i]) * own[r][0]);
    }
}

/* states (chunks, Hv, Dk, Dv) and saved_x (M, Hv, Dv) or NULL: what backward needs; then there is no out. */
template <typename T>
__global__ void __launch_bounds__(THREADS, 1)
    delta_scan_kernel(struct delta_rule_fwd_args a, int slices, float *states, float *saved_x)
{
    DYN_SHARED(float, memory);
    SHARED(struct tokens, t, );
    SHARED(float, factors, [CHUNK]);
    const struct scan_memory m = scan_memory_of(memory, a.Dk);
    const int64_t s = blockIdx.x / static_cast<unsigned>(slices), h = blockIdx.y, key = h / (a.Hv / a.Hk) * a.Dk;
    const int64_t column = static_cast<int64_t>(blockIdx.x % static_cast<unsigned>(slices)) * SLICE + lane_of();
    const int Dk = static_cast<int>(a.Dk);
    float *state = a.state ? a.state + (s * a.Hv + h) * a.Dk * a.Dv : nullptr;
    copy_state<false>(m, state, a.Dk, a.Dv, column);
    for (int64_t index = 0; index < chunks_of(a.seq_start, s); index++) {
        const struct chunk at = chunk_of(a.seq_start, s, index);
        const T *const q = static_cast<const T *>(a.q) + at.row * a.ld_qkv + key;
        const T *const k = static_cast<const T *>(a.k) + at.row * a.ld_qkv + key;
        float products[ROWS][2], own[ROWS][1], out[ROWS][1];
        __syncthreads();
        load_tokens<T>(&t, a, at, h);
        load_rows(m.tile + own_row() * KEY_LD, KEY_LD, k, a.ld_qkv, t.k, 0, m.Dk, Dk, at.count);
        if (threadIdx.x < CHUNK) factors[threadIdx.x] = decay(t, CHUNK - 1, static_cast<int>(threadIdx.x));
        if (states) copy_state<true>(m, states + (at.place * a.Hv + h) * a.Dk * a.Dv, a.Dk, a.Dv, column);
        __syncthreads();
        multiply_keys(m, k, a.ld_qkv, t.k, Dk, at.count, products, own);
        decayed_square<false, false>(m, t, products);
        right_side<T>(own, a, t, at, h, column);
        solve<false>(m, own);
        if (a.out) {
            multiply_keys(m, q, a.ld_qkv, t.q, Dk, at.count, products, out);
            decayed_square<false, true>(m, t, products);
#pragma unroll
            for (int r = 0; r < ROWS; r++) out[r][0] *= expf(t.sums[own_row() + r]);
            add_products(out, m.square + own_row() * SQUARE_LD, SQUARE_LD, m.x, SLICE, 1, SLICE, own_row() + ROWS);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int64_t row = at.row + own_row() + r;
            if (own_row() + r >= at.count || column >= a.Dv) continue;
            if (a.out) from_float(out[r][0], static_cast<T *>(a.out) + row * a.ld_o + h * a.Dv + column);
            if (saved_x) saved_x[(row * a.Hv + h) * a.Dv + column] = own[r][0];
        }
        __syncthreads();
        update_state(m, expf(t.sums[CHUNK - 1]), factors);
    }
    __syncthreads();
    if (state) copy_state<true>(m, state, a.Dk, a.Dv, column);
}

/* dstates (chunks, Hv, Dk, Dv): the gradient of the state after each chunk; dr (M, Hv, Dv): that of R. */
template <typename T>
__global__ void __launch_bounds__(THREADS, 1)
    delta_scan_back_kernel(struct delta_rule_bwd_args a, int slices, float *dstates, float *dr)
{
    DYN_SHARED(float, memory);
    SHARED(struct tokens, t, );
    SHARED(float, factors, [CHUNK]);
    const struct scan_memory m = scan_memory_of(memory, a.Dk);
    const int64_t s = blockIdx.x / static_cast<unsigned>(slices), h = blockIdx.y, key = h / (a.Hv / a.Hk) * a.Dk;
    const int64_t column = static_cast<int64_t>(blockIdx.x % static_cast<unsigned>(slices)) * SLICE + lane_of();
    const int Dk = static_cast<int>(a.Dk);
    copy_state<false>(m, nullptr, a.Dk, a.Dv, column);
    for (int64_t index = chunks_of(a.seq_start, s) - 1; index >= 0; index--) {
        const struct chunk at = chunk_of(a.seq_start, s, index);
        const T *const q = static_cast<const T *>(a.q) + at.row * a.ld_qkv + key;
        const T *const k = static_cast<const T *>(a.k) + at.row * a.ld_qkv + key;
        float products[ROWS][2], own[ROWS][1], none[ROWS][1];
        __syncthreads();
        copy_state<true>(m, dstates + (at.place * a.Hv + h) * a.Dk * a.Dv, a.Dk, a.Dv, column);
        load_tokens<T>(&t, a, at, h);
        load_rows(m.tile + own_row() * KEY_LD, KEY_LD, q, a.ld_qkv, t.q, 0, m.Dk, Dk, at.count);
        load_rows(m.x + own_row() * SLICE, SLICE, static_cast<const T *>(a.dout) + at.row * a.ld_o + h * a.Dv, a.ld_o,
                  nullptr, static_cast<int>(column) - lane_of(), SLICE, static_cast<int>(a.Dv), at.count);
        if (threadIdx.x < CHUNK) factors[threadIdx.x] = expf(t.sums[threadIdx.x]);
        __syncthreads();
        multiply_keys(m, k, a.ld_qkv, t.k, Dk, at.count, products, own);
        decayed_square<true, true>(m, t, products);
#pragma unroll
        for (int r = 0; r < ROWS; r++) own[r][0] *= decay(t, CHUNK - 1, own_row() + r);
        add_products(own, m.square + own_row() * SQUARE_LD, SQUARE_LD, m.x, SLICE, 1, SLICE, CHUNK);
        __syncthreads();
        update_state(m, expf(t.sums[CHUNK - 1]), factors);
        __syncthreads();
        load_rows(m.tile + own_row() * KEY_LD, KEY_LD, k, a.ld_qkv, t.k, 0, m.Dk, Dk, at.count);
        if (threadIdx.x < CHUNK) factors[threadIdx.x] *= -t.beta[threadIdx.x];
        __syncthreads();
        multiply_keys(m, k, a.ld_qkv, t.k, Dk, at.count, products, none);
        decayed_square<true, false>(m, t, products);
        solve<true>(m, own);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int64_t row = at.row + own_row() + r;
            if (own_row() + r >= at.count || column >= a.Dv) continue;
            dr[(row * a.Hv + h) * a.Dv + column] = own[r][0];
            from_float(t.beta[own_row() + r] * own[r][0], static_cast<T *>(a.dv) + row * a.ld_qkv + h * a.Dv + column);
        }
        update_state(m, 1, factors);
    }
}

/* ---- gradients of a chunk ------------------------------------------------ */

/* What the block has in shared memory; `slice` is of a state, in whole ROWS of keys, or of a chunk. */
struct gradient_memory {
    float *tile, *d_qk, *d_kk, *slice, *staged;
    int Dk;
};

__device__ __forceinline__ struct gradient_memory gradient_memory_of(float *memory, int64_t Dk)
{
    struct gradient_memory m;
    m.Dk = whole_keys(Dk);
    m.tile = memory;
    m.d_qk = m.tile + CHUNK * KEY_LD;
    m.d_kk = m.d_qk + CHUNK * SQUARE_LD;
    m.staged = m.d_kk + CHUNK * SQUARE_LD;
    m.slice = m.staged + CHUNK * STAGED_LD;
    return m;
}

/* What a kernel knows of its chunk and value head. */
struct gradient_place {
    struct chunk at;
    int64_t h, state, row; /* its elements of states, and of X, from the chunk's first row on */
    bool last;             /* of the sequence */
};

/* The slice of a state (Dk, Dv) from `first` on; returns this thread's part of its products with `other`, if there is
 * one. */
__device__ __forceinline__ float load_slice(const struct gradient_memory &m, const float *state, const float *other,
                                            int64_t Dk, int64_t Dv, int first)
{
    const int64_t column = first + lane_of();
    float sum = 0;
    for (int d = own_row() / ROWS; d < m.Dk; d += CHUNK / ROWS) {
        const bool exists = d < Dk && column < Dv;
        const float x = exists ? state[d * Dv + column] : 0;
        m.slice[d * SLICE_LD + lane_of()] = x;
        sum += exists && other ? x * other[d * Dv + column] : 0;
    }
    return sum;
}

/* The products of this warp's rows of a gradient with those of x times factor; all lanes call visit(row, product). */
template <typename T, typename Visit>
__device__ __forceinline__ void dot_rows(const float (&sum)[ROWS][KEYS], const T *x, int64_t ld, const float *factor,
                                         int D, int count, Visit visit)
{
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int row = own_row() + r;
        const T *const from = x + row * ld + lane_of();
        float dot = 0;
#pragma unroll
        for (int c = 0; c < KEYS; c++)
            dot += row < count && lane_of() + WARP_SIZE * c < D ? sum[r][c] * to_float(from[WARP_SIZE * c]) : 0;
        __syncwarp(); /* row by row: all at a time would not fit the registers */
        visit(r, sum_over_lanes(dot, WARP_SIZE) * factor[row]);
    }
}

/* What the gradients of G and of log(beta) are added up in, in shared memory; a row's warp adds. */
struct gate_sums {
    float *g, *beta;
};

template <typename T>
__device__ __forceinline__ void add_dots(struct gate_sums sums, float to_g, float to_beta,
                                         const float (&sum)[ROWS][KEYS], const T *x, int64_t ld, const float *factor,
                                         int D, int count)
{
    dot_rows(sum, x, ld, factor, D, count, [&](int r, float dot) {
        if (lane_of() == 0) {
            sums.g[own_row() + r] += to_g * dot;
            sums.beta[own_row() + r] += to_beta * dot;
        }
    });
}

/* d_qk and d_kk of the memory: the gradients of the products Q Kᵀ and K Kᵀ. dlog_beta gets the products of v with its
 * gradient. */
template <typename T>
__device__ __forceinline__ void gradient_squares(const struct delta_rule_bwd_args &a, const struct gradient_memory &m,
                                                 const struct tokens &t, const struct gradient_place &p, const float *x,
                                                 const float *dr, float *dlog_beta)
{
    const int Dv = static_cast<int>(a.Dv), count = p.at.count;
    const int64_t ld = a.Hv * a.Dv;
    const T *const v = static_cast<const T *>(a.v) + p.at.row * a.ld_qkv + p.h * a.Dv;
    const T *const dout = static_cast<const T *>(a.dout) + p.at.row * a.ld_o + p.h * a.Dv;
    float *const staged = m.staged + own_row() * STAGED_LD;
    float d_qk[ROWS][2], d_kk[ROWS][2];
    clear(d_qk);
    clear(d_kk);
    for (int first = 0; first < Dv; first += SLICE) {
        __syncthreads();
        load_rows(m.slice + own_row() * SLICE_LD, SLICE_LD, x + p.row, ld, nullptr, first, SLICE, Dv, count);
        load_rows(staged, STAGED_LD, dout, a.ld_o, nullptr, first, SLICE, Dv, count);
        __syncthreads();
        add_products(d_qk, staged, STAGED_LD, m.slice, 1, SLICE_LD, CHUNK, SLICE);
        __syncwarp();
        load_rows(staged, STAGED_LD, dr + p.row, ld, nullptr, first, SLICE, Dv, count);
        __syncwarp();
        add_products(d_kk, staged, STAGED_LD, m.slice, 1, SLICE_LD, CHUNK, SLICE);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int row = own_row() + r, column = first + lane_of();
            const float value = row < count && column < Dv ? to_float(v[row * a.ld_qkv + column]) : 0;
            const float dot = sum_over_lanes(value * staged[r * STAGED_LD + lane_of()], WARP_SIZE);
            if (lane_of() == 0) dlog_beta[row] += t.beta[row] * dot;
        }
    }
    apply_decay<false, true>(t, d_qk);
    apply_decay<false, false>(t, d_kk);
    __syncthreads();
    store_square(m.d_qk, d_qk, 1);
    store_square(m.d_kk, d_kk, -1);
}

/* Adds to dq and dk (own rows, keys) those of a value head, without what follows from K where it is multiplied from the
 * right. The tile is K. */
template <typename T>
__device__ __forceinline__ void gradient_left(const struct delta_rule_bwd_args &a, const struct gradient_memory &m,
                                              const struct tokens &t, const struct gradient_place &p,
                                              const float *states, const float *dr, float *factors,
                                              float (&dq)[ROWS][KEYS], float (&dk)[ROWS][KEYS])
{
    const int Dv = static_cast<int>(a.Dv), count = p.at.count, i = static_cast<int>(threadIdx.x);
    const T *const dout = static_cast<const T *>(a.dout) + p.at.row * a.ld_o + p.h * a.Dv;
    float *const staged = m.staged + own_row() * STAGED_LD;
    if (i < CHUNK) {
        factors[i] = expf(t.sums[i]);
        factors[CHUNK + i] = -t.beta[i] * expf(t.sums[i]);
    }
    for (int first = 0; first < Dv; first += SLICE) {
        __syncthreads();
        load_slice(m, states + p.state, nullptr, a.Dk, a.Dv, first);
        load_rows(staged, STAGED_LD, dout, a.ld_o, factors, first, SLICE, Dv, count);
        __syncthreads();
        add_products(dq, staged, STAGED_LD, m.slice, 1, SLICE_LD, m.Dk, SLICE);
        __syncwarp();
        load_rows(staged, STAGED_LD, dr + p.row, a.Hv * a.Dv, factors + CHUNK, first, SLICE, Dv, count);
        __syncwarp();
        add_products(dk, staged, STAGED_LD, m.slice, 1, SLICE_LD, m.Dk, SLICE);
    }
    add_products(dq, m.d_qk + own_row() * SQUARE_LD, SQUARE_LD, m.tile, KEY_LD, 1, m.Dk, CHUNK);
    add_products(dk, m.d_kk + own_row() * SQUARE_LD, SQUARE_LD, m.tile, KEY_LD, 1, m.Dk, CHUNK);
}

/* Adds that to dk, and returns this thread's part of the products of the state after the chunk with its gradient. The
 * tile becomes Q. */
template <typename T>
__device__ __forceinline__ float gradient_right(const struct delta_rule_bwd_args &a, const struct gradient_memory &m,
                                                const struct tokens &t, const struct gradient_place &p, const T *q,
                                                const float *states, const float *dstates, const float *x,
                                                float *factors, float (&dk)[ROWS][KEYS])
{
    const int Dv = static_cast<int>(a.Dv), count = p.at.count, i = static_cast<int>(threadIdx.x);
    const float *const next = p.last ? nullptr : states + p.state + a.Hv * a.Dk * a.Dv;
    float *const staged = m.staged + own_row() * STAGED_LD, sum = 0;
    __syncthreads();
    turn_square(m.d_qk);
    turn_square(m.d_kk);
    if (i < CHUNK) factors[i] = decay(t, CHUNK - 1, i);
    for (int first = 0; first < Dv && !p.last; first += SLICE) {
        __syncthreads();
        sum += load_slice(m, dstates + p.state, next, a.Dk, a.Dv, first);
        load_rows(staged, STAGED_LD, x + p.row, a.Hv * a.Dv, factors, first, SLICE, Dv, count);
        __syncthreads();
        add_products(dk, staged, STAGED_LD, m.slice, 1, SLICE_LD, m.Dk, SLICE);
    }
    __syncthreads();
    add_products(dk, m.d_kk + own_row() * SQUARE_LD, SQUARE_LD, m.tile, KEY_LD, 1, m.Dk, CHUNK);
    __syncthreads();
    load_rows(m.tile + own_row() * KEY_LD, KEY_LD, q, a.ld_qkv, t.q, 0, m.Dk, static_cast<int>(a.Dk), count);
    __syncthreads();
    add_products(dk, m.d_qk + own_row() * SQUARE_LD, SQUARE_LD, m.tile, KEY_LD, 1, m.Dk, CHUNK);
    return sum;
}

/* Thread 0: da, db and the sums for a_log and dt_bias, from the gradients of G and of log(beta). */
template <typename T>
__device__ __forceinline__ void gradient_gates(const struct delta_rule_bwd_args &a, const struct tokens &t,
                                               const struct gradient_place &p, const float *dsums,
                                               const float *dlog_beta, float *sums)
{
    const float rate = expf(to_float(static_cast<const T *>(a.a_log)[p.h]));
    const float bias = to_float(static_cast<const T *>(a.dt_bias)[p.h]);
    float dg = 0, da_log = 0, ddt_bias = 0;
    for (int i = p.at.count - 1; i >= 0; i--) {
        const int64_t place = (p.at.row + i) * a.ld_ab + p.h;
        const float x = to_float(static_cast<const T *>(a.a)[place]) + bias;
        dg += dsums[i];
        const float dx = -dg * rate * sigmoid(x);
        from_float(dx, static_cast<T *>(a.da) + place);
        from_float(dlog_beta[i] * (1 - t.beta[i]), static_cast<T *>(a.db) + place);
        da_log -= dg * rate * softplus(x);
        ddt_bias += dx;
    }
    sums[0] = da_log;
    sums[1] = ddt_bias;
}

/* Writes the gradient of rows from that of the rows with unit length; `square`: of the length that they got, 1 over. */
template <typename T>
__device__ __forceinline__ void store_rows(T *to, const float (&sum)[ROWS][KEYS], const T *x, int64_t ld,
                                           const float *factor, float square, int D, int count)
{
    dot_rows(sum, x, ld, factor, D, count, [&](int r, float dot) {
        const int row = own_row() + r;
        const float by = factor[row], along = dot * by * by * square;
        const T *const from = x + row * ld + lane_of();
        T *const out = to + row * ld + lane_of();
#pragma unroll
        for (int c = 0; c < KEYS; c++)
            if (row < count && lane_of() + WARP_SIZE * c < D)
                from_float(by * sum[r][c] - along * to_float(from[WARP_SIZE * c]), out + WARP_SIZE * c);
    });
}

/* The sequence whose chunks the place belongs to. */
__device__ __forceinline__ int64_t sequence_of_place(const int32_t *seq_start, int64_t num_seqs, int64_t place)
{
    return last_sequence(num_seqs, place, [&](int64_t s) { return seq_start[s] / CHUNK + s; });
}

/* sums (chunks, Hv, 2): parts of the gradients of a_log and dt_bias. */
template <typename T>
__global__ void __launch_bounds__(THREADS, 1)
    delta_gradients_kernel(struct delta_rule_bwd_args a, const float *states, const float *dstates, const float *x,
                           const float *dr, float *sums)
{
    DYN_SHARED(float, memory);
    SHARED(struct tokens, t, );
    SHARED(float, factors, [2 * CHUNK]);
    SHARED(float, dsums, [CHUNK]);
    SHARED(float, dlog_beta, [CHUNK]);
    SHARED(float, ends, [THREADS / WARP_SIZE]);
    const struct gradient_memory m = gradient_memory_of(memory, a.Dk);
    const int64_t place = blockIdx.x, key_head = blockIdx.y, group = a.Hv / a.Hk;
    const int64_t s = sequence_of_place(a.seq_start, a.num_seqs, place);
    const int64_t index = place - (a.seq_start[s] / CHUNK + s), chunks = chunks_of(a.seq_start, s);
    const int Dk = static_cast<int>(a.Dk);
    if (index >= chunks) {
        for (int64_t i = threadIdx.x; i < 2 * group; i += THREADS) sums[(place * a.Hv + key_head * group) * 2 + i] = 0;
        return;
    }
    const struct chunk at = chunk_of(a.seq_start, s, index);
    const int64_t from = at.row * a.ld_qkv + key_head * a.Dk;
    const T *const q = static_cast<const T *>(a.q) + from, *const k = static_cast<const T *>(a.k) + from;
    float dq[ROWS][KEYS], dk[ROWS][KEYS]; /* of all value heads: what one adds to their products with q and k counts */
    clear(dq);
    clear(dk);
    for (int64_t h = key_head * group; h < (key_head + 1) * group; h++) {
        const struct gradient_place p = {at, h, (place * a.Hv + h) * a.Dk * a.Dv, (at.row * a.Hv + h) * a.Dv,
                                         index + 1 == chunks};
        const struct gate_sums gates = {dsums, dlog_beta};
        __syncthreads();
        if (threadIdx.x < CHUNK) dsums[threadIdx.x] = dlog_beta[threadIdx.x] = 0;
        load_tokens<T>(&t, a, at, h);
        load_rows(m.tile + own_row() * KEY_LD, KEY_LD, k, a.ld_qkv, t.k, 0, m.Dk, Dk, at.count);
        gradient_squares<T>(a, m, t, p, x, dr, dlog_beta);
        add_dots(gates, -1, -1, dk, k, a.ld_qkv, t.k, Dk, at.count);
        add_dots(gates, -1, 0, dq, q, a.ld_qkv, t.q, Dk, at.count);
        gradient_left<T>(a, m, t, p, states, dr, factors, dq, dk);
        add_dots(gates, 1, 0, dq, q, a.ld_qkv, t.q, Dk, at.count);
        add_dots(gates, 2, 1, dk, k, a.ld_qkv, t.k, Dk, at.count);
        const float part = gradient_right<T>(a, m, t, p, q, states, dstates, x, factors, dk);
        const float end = sum_over_lanes(part, WARP_SIZE);
        add_dots(gates, -1, 0, dk, k, a.ld_qkv, t.k, Dk, at.count);
        if (lane_of() == 0) ends[own_row() / ROWS] = end;
        __syncthreads();
        if (threadIdx.x == 0) {
            for (int w = 0; w < THREADS / WARP_SIZE; w++) dsums[at.count - 1] += ends[w];
            gradient_gates<T>(a, t, p, dsums, dlog_beta, sums + (place * a.Hv + h) * 2);
        }
    }
    store_rows(static_cast<T *>(a.dq) + from, dq, q, a.ld_qkv, t.q, static_cast<float>(Dk), Dk, at.count);
    store_rows(static_cast<T *>(a.dk) + from, dk, k, a.ld_qkv, t.k, 1, Dk, at.count);
}

/* A warp for each of the sums of a head. */
__global__ void __launch_bounds__(WARP_SIZE)
    delta_sums_kernel(struct delta_rule_bwd_args a, const float *sums, int64_t chunks)
{
    float *const to = blockIdx.y ? a.ddt_bias : a.da_log, sum = 0;
    for (int64_t i = threadIdx.x; i < chunks; i += WARP_SIZE) sum += sums[(i * a.Hv + blockIdx.x) * 2 + blockIdx.y];
    sum = sum_over_lanes(sum, WARP_SIZE);
    if (threadIdx.x == 0 && to) to[blockIdx.x] = (a.accumulate ? to[blockIdx.x] : 0) + sum;
}

} // namespace

void cuda_causal_conv_fwd(struct stream *stream, const struct causal_conv_fwd_args *a)
{
    ASSERT(a->K >= 1 && a->K <= CONV_TAPS);
    if (a->M == 0 || a->C == 0) return;
    const int64_t rows = a->state ? a->M : ceil_div(a->M, cuda_conv_parts(a->M));
    const dim3 grid(static_cast<unsigned>(ceil_div(a->C, CONV_THREADS)), static_cast<unsigned>(ceil_div(a->M, rows)));
    dispatch(a->dtype, [&](auto type) {
        LAUNCH(stream, "causal_conv_fwd", causal_conv_fwd_kernel<decltype(type)>, grid, CONV_THREADS, *a, rows);
    });
}

void cuda_causal_conv_bwd(struct stream *stream, const struct causal_conv_bwd_args *a)
{
    ASSERT(a->K >= 1 && a->K <= CONV_TAPS);
    if (a->C == 0) return;
    struct cuda_scratch scratch = cuda_scratch_of(stream);
    const int64_t rows = a->M ? ceil_div(a->M, cuda_conv_parts(a->M)) : 1, parts = ceil_div(a->M, rows);
    const unsigned channels = static_cast<unsigned>(ceil_div(a->C, CONV_THREADS));
    float *sums = cuda_scratch_take<float>(&scratch, parts * CONV_TAPS * a->C);
    if (parts)
        dispatch(a->dtype, [&](auto type) {
            LAUNCH(stream, "causal_conv_bwd", causal_conv_bwd_kernel<decltype(type)>,
                   dim3(channels, static_cast<unsigned>(parts)), CONV_THREADS, *a, rows, sums);
        });
    if (a->dweight)
        LAUNCH(stream, "causal_conv_bwd", conv_weight_kernel,
               static_cast<unsigned>(ceil_div(a->C * a->K, CONV_THREADS)), CONV_THREADS, *a, sums, parts);
}

/* Blocks of a scan, for all slices of the states of all sequences. */
static dim3 scan_grid(const struct delta_rule_fwd_args *a)
{
    ASSERT(a->Dk <= DELTA_MAX_DIM && a->Dv <= DELTA_MAX_DIM);
    return dim3(static_cast<unsigned>(a->num_seqs * ceil_div(a->Dv, SLICE)), static_cast<unsigned>(a->Hv));
}

void cuda_delta_rule_fwd(struct stream *stream, const struct delta_rule_fwd_args *a)
{
    float *const none = nullptr;
    if (a->M == 0) return;
    dispatch(a->dtype, [&](auto type) {
        LAUNCH_SHARED(stream, "delta_rule_fwd", delta_scan_kernel<decltype(type)>, scan_grid(a), THREADS, SCAN_BYTES,
                      *a, static_cast<int>(ceil_div(a->Dv, SLICE)), none, none);
    });
}

void cuda_delta_rule_bwd(struct stream *stream, const struct delta_rule_bwd_args *a)
{
    const struct delta_rule_fwd_args forward = delta_forward_of(a);
    const int slices = static_cast<int>(ceil_div(a->Dv, SLICE));
    const int64_t chunks = cuda_delta_chunks(&forward), state = a->Hv * a->Dk * a->Dv, row = a->Hv * a->Dv;
    struct cuda_scratch scratch = cuda_scratch_of(stream);
    float *states = cuda_scratch_take<float>(&scratch, chunks * state);
    float *dstates = cuda_scratch_take<float>(&scratch, chunks * state);
    float *x = cuda_scratch_take<float>(&scratch, a->M * row), *dr = cuda_scratch_take<float>(&scratch, a->M * row);
    float *sums = cuda_scratch_take<float>(&scratch, 2 * chunks * a->Hv);
    if (a->M)
        dispatch(a->dtype, [&](auto type) {
            using T = decltype(type);
            const dim3 grid(static_cast<unsigned>(chunks), static_cast<unsigned>(a->Hk));
            LAUNCH_SHARED(stream, "delta_rule_bwd", delta_scan_kernel<T>, scan_grid(&forward), THREADS, SCAN_BYTES,
                          forward, slices, states, x);
            LAUNCH_SHARED(stream, "delta_rule_bwd", delta_scan_back_kernel<T>, scan_grid(&forward), THREADS, SCAN_BYTES,
                          *a, slices, dstates, dr);
            LAUNCH_SHARED(stream, "delta_rule_bwd", delta_gradients_kernel<T>, grid, THREADS, GRADIENT_BYTES, *a,
                          states, dstates, x, dr, sums);
        });
    LAUNCH(stream, "delta_rule_bwd", delta_sums_kernel, dim3(static_cast<unsigned>(a->Hv), 2), WARP_SIZE, *a, sums,
           a->M ? chunks : 0);
}
CUDA_MODULE(delta, delta_sums_kernel)
