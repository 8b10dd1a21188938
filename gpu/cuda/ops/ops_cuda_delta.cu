/* SPDX-License-Identifier: Apache-2.0 */
/* ops_cuda_delta.cu: the causal convolution, and the gated delta rule in chunks (cpu_delta_rule.h has its formulas).
 *
 * Convolution: a thread is a channel of a part of the rows and walks down them with its taps in registers.
 *
 * Delta rule: three kernels.
 *
 *     scan        forward: a block goes through the chunks with DELTA_SLICE columns of a head's state S in shared
 *                 memory; columns do not depend on each other. For backward it leaves S before each chunk, and X.
 *     scan_back   the same in reverse: the gradients of S after each chunk, and of R, from which dv follows
 *     gradients   a block for each chunk and key head: dq, dk, da, db
 *
 * What a kernel leaves for another is in the workspace. A warp has ROWS rows of a chunk, a lane a column of a slice, or
 * every WARP_SIZE-th of a chunk or of a key. Rows are operands that all lanes read at once, from shared memory. All is
 * fp32 on the ordinary cores. */
#include "gpu/cuda/cuda_kernels.cuh"

namespace
{

enum {
    CHUNK = DELTA_CHUNK,
    SLICE = DELTA_SLICE,
    ROWS = 8,
    THREADS = CHUNK / ROWS * WARP_SIZE,
    KEYS = DELTA_MAX_DIM / WARP_SIZE, /* columns of keys for each lane */
    KEY_LD = DELTA_MAX_DIM + 4,       /* floats between rows of keys: 4 put neighbours into other banks */
    SQUARE_LD = CHUNK + 4,            /* of a matrix of a chunk by a chunk */
    SLICE_LD = SLICE + 4,
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

/* The first row of this warp. */
__device__ __forceinline__ int own_row()
{
    return static_cast<int>(threadIdx.x) / WARP_SIZE * ROWS;
}

/* sum[r][c] += the first n (a multiple of 4) products of row r of `a` and column lane + WARP_SIZE c of b; columns from
 * `columns` on are left out. TURNED: memory holds the transpose. */
template <bool TURNED_A, bool TURNED_B, int N>
__device__ __forceinline__ void add_products(float (&sum)[ROWS][N], const float *a, int ld_a, const float *b, int ld_b,
                                             int columns, int n)
{
#pragma unroll 1
    for (int k = 0; k < n; k += 4) {
        float left[4][ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
#pragma unroll
            for (int v = 0; v < 4; v++) left[v][r] = TURNED_A ? a[(k + v) * ld_a + r] : a[r * ld_a + k + v];
        }
#pragma unroll
        for (int c = 0; c < N; c++) {
            const int column = lane_of_warp() + WARP_SIZE * c;
            if (column >= columns) break;
#pragma unroll
            for (int v = 0; v < 4; v++) {
                const float right = TURNED_B ? b[column * ld_b + k + v] : b[(k + v) * ld_b + column];
#pragma unroll
                for (int r = 0; r < ROWS; r++) sum[r][c] = fmaf(left[v][r], right, sum[r][c]);
            }
        }
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

/* A matrix in global memory, whose rows are multiplied by factors: a chunk's rows of a head, or the head's state. */
template <typename T> struct matrix {
    const T *at;
    int ld, rows, columns; /* all is 0 beyond */
    const float *factor;   /* of each row; NULL: 1 */
};

template <typename T>
__device__ __forceinline__ struct matrix<T> rows_of(const void *tensor, int64_t ld, const struct chunk &at,
                                                    int64_t head, int64_t D, const float *factor = nullptr) {
    return {static_cast<const T *>(tensor) + at.row * ld + head * D, static_cast<int>(ld), at.count,
            static_cast<int>(D), factor};
}

/* state NULL: 0 */
__device__ __forceinline__ struct matrix<float>
state_of(const float *state, const struct delta_rule_fwd_args &a) {
    return {state, static_cast<int>(a.Dv), state ? static_cast<int>(a.Dk) : 0, static_cast<int>(a.Dv), nullptr};
}

template <typename T>
__device__ __forceinline__ struct matrix<T> times(struct matrix<T> x, const float *factor) {
    x.factor = factor;
    return x;
}

/* An element, not multiplied by its factor, but by `by`. */
template <typename T>
__device__ __forceinline__ float element(const struct matrix<T> &x, int row, int column, float by = 1)
{
    return row < x.rows && column < x.columns ? to_float(x.at[row * x.ld + column]) * by : 0;
}

/* to (rows, ld) = the columns `first` … `first` + width - 1 of x. A warp loads the rows that it owns, ROWS of every
 * CHUNK, a multiple of ROWS in all. */
template <typename T>
__device__ __forceinline__ void load_rows(float *to, int ld, const struct matrix<T> &x, int rows, int first, int width)
{
    for (int own = own_row(); own < rows; own += CHUNK)
        for (int row = own; row < own + ROWS; row++)
            for (int d = lane_of_warp(); d < width; d += WARP_SIZE)
                to[row * ld + d] = element(x, row, first + d, x.factor ? x.factor[row] : 1);
}

/* Of each token: beta; G, the sum of g; exp(G), exp(G[last] - G) and -beta exp(G); what q and k are multiplied by for
 * their length. Tokens beyond the chunk have beta 0 and do not decay. */
struct tokens {
    float beta[CHUNK], sums[CHUNK], from_start[CHUNK], to_end[CHUNK], minus[CHUNK], q[CHUNK], k[CHUNK];
};

__device__ __forceinline__ float softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x));
}

template <typename T>
__device__ __forceinline__ void unit_length(float *factors, const struct matrix<T> &x, float scale)
{
    for (int row = own_row(); row < own_row() + ROWS; row++) {
        float sum = 0;
        for (int d = lane_of_warp(); d < x.columns; d += WARP_SIZE) sum += element(x, row, d) * element(x, row, d);
        sum = sum_over_lanes(sum, WARP_SIZE);
        if (lane_of_warp() == 0) factors[row] = scale / sqrtf(sum + 1e-6f);
    }
}

/* The block computes `t` for a chunk of value head h. */
template <typename T>
__device__ __forceinline__ void load_tokens(struct tokens *t, const struct delta_rule_fwd_args &a,
                                            const struct chunk &at, int64_t h, const struct matrix<T> &q,
                                            const struct matrix<T> &k)
{
    const int i = static_cast<int>(threadIdx.x);
    if (i < CHUNK) {
        const int64_t place = (at.row + i) * a.ld_ab + h;
        const float rate = expf(to_float(static_cast<const T *>(a.a_log)[h]));
        const float bias = to_float(static_cast<const T *>(a.dt_bias)[h]);
        t->beta[i] = i < at.count ? sigmoid(to_float(static_cast<const T *>(a.b)[place])) : 0;
        t->sums[i] = i < at.count ? -rate * softplus(to_float(static_cast<const T *>(a.a)[place]) + bias) : 0;
    }
    unit_length(t->q, q, rsqrtf(static_cast<float>(a.Dk)));
    unit_length(t->k, k, 1);
    __syncthreads();
    if (i == 0) {
#pragma unroll 8 /* not all: each would be a register */
        for (int j = 1; j < CHUNK; j++) t->sums[j] += t->sums[j - 1];
    }
    __syncthreads();
    if (i < CHUNK) {
        t->from_start[i] = expf(t->sums[i]);
        t->to_end[i] = expf(t->sums[CHUNK - 1] - t->sums[i]);
        t->minus[i] = -t->beta[i] * t->from_start[i];
    }
    __syncthreads();
}

/* square = P from products Q Kᵀ (own rows, all rows), or -A from K Kᵀ; BACK: its transpose, from the products'. */
template <bool P, bool BACK>
__device__ __forceinline__ void put_square(float (*square)[SQUARE_LD], const struct tokens &t,
                                           const float (&products)[ROWS][2])
{
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const int own = own_row() + r, lane = lane_of_warp() + WARP_SIZE * c;
            const int i = BACK ? lane : own, j = BACK ? own : lane;
            const float factor = P ? 1 : -t.beta[i];
            square[own][lane] = j < i || (P && j == i) ? factor * expf(t.sums[i] - t.sums[j]) * products[r][c] : 0;
        }
    }
    __syncwarp();
}

/* ---- scans --------------------------------------------------------------- */

/* What the kernels leave for each other in the workspace. */
struct saved {
    float *states, *dstates; /* (chunks, Hv, Dk, Dv): S before each chunk, the gradient of S after it */
    float *x, *dr;           /* (M, Hv, Dv): X, the gradient of R */
    float *sums;             /* (chunks, Hv, 2): parts of the gradients of a_log and dt_bias */
};

/* What a block of a scan has in shared memory. */
struct scan_memory {
    struct tokens t;
    float keys[CHUNK][KEY_LD]; /* K, or Q */
    float state[DELTA_MAX_DIM][SLICE_LD];
    float square[CHUNK][SQUARE_LD]; /* or rows of keys on their way */
    float x[CHUNK][SLICE_LD];
};

/* Rows of a state in memory. */
__device__ __forceinline__ int whole_keys(int64_t Dk)
{
    return static_cast<int>(Dk + ROWS - 1) / ROWS * ROWS;
}

/* products (own rows, all rows) += rows · keysᵀ, values (own rows, slice) += rows · state. The rows go through the
 * warp's rows of the square, half of the keys at a time. */
template <typename T>
__device__ __forceinline__ void multiply_rows(struct scan_memory *m, const struct matrix<T> &rows, int keys,
                                              float (&products)[ROWS][2], float (&values)[ROWS][1])
{
    const float *const own = m->square[own_row()];
    for (int first = 0; first < keys; first += CHUNK) {
        const int width = keys - first < CHUNK ? keys - first : CHUNK;
        __syncwarp();
        load_rows(m->square[0], SQUARE_LD, rows, CHUNK, first, width);
        __syncwarp();
        add_products<false, false>(values, own, SQUARE_LD, m->state[first], SLICE_LD, SLICE, width);
        add_products<false, true>(products, own, SQUARE_LD, m->keys[0] + first, KEY_LD, CHUNK, width);
    }
    __syncwarp();
}

/* x = (1 - square)⁻¹ own, and own the warp's rows of x. The square is read below the diagonal; BACK: above it. */
template <bool BACK> __device__ __forceinline__ void solve(struct scan_memory *m, float (&own)[ROWS][1])
{
    for (int step = 0; step < CHUNK; step += ROWS) {
        const int block = BACK ? CHUNK - ROWS - step : step;
        if (own_row() == block) {
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                const int r = BACK ? ROWS - 1 - i : i;
#pragma unroll
                for (int j = 0; j < i; j++) {
                    const int s = BACK ? ROWS - 1 - j : j;
                    own[r][0] = fmaf(m->square[block + r][block + s], own[s][0], own[r][0]);
                }
                m->x[block + r][lane_of_warp()] = own[r][0];
            }
        }
        __syncthreads();
        if (BACK ? own_row() < block : own_row() > block)
            add_products<false, false>(own, m->square[own_row()] + block, SQUARE_LD, m->x[block], SLICE_LD, SLICE,
                                       ROWS);
    }
}

/* state = keep · state + keysᵀ · x, where x gets its factors. */
__device__ __forceinline__ void update_state(struct scan_memory *m, int keys, float keep, const float *factors)
{
    __syncthreads();
    for (int row = own_row(); row < own_row() + ROWS; row++) m->x[row][lane_of_warp()] *= factors[row];
    __syncthreads();
    for (int d = own_row(); d < keys; d += CHUNK) {
        float sum[ROWS][1];
#pragma unroll
        for (int r = 0; r < ROWS; r++) sum[r][0] = keep * m->state[d + r][lane_of_warp()];
        add_products<true, false>(sum, m->keys[0] + d, KEY_LD, m->x[0], SLICE_LD, SLICE, CHUNK);
#pragma unroll
        for (int r = 0; r < ROWS; r++) m->state[d + r][lane_of_warp()] = sum[r][0];
    }
}

/* to (Dk, Dv): this slice, whose lane has `column` */
__device__ __forceinline__ void save_state(float *to, const struct scan_memory *m, const struct delta_rule_fwd_args &a,
                                           int column)
{
    for (int d = own_row() / ROWS; d < a.Dk && column < a.Dv; d += CHUNK / ROWS)
        to[d * a.Dv + column] = m->state[d][lane_of_warp()];
}

/* Writes out, or without one the states and X. */
template <typename T>
__global__ void __launch_bounds__(THREADS, 2) delta_scan_kernel(struct delta_rule_fwd_args a, struct saved saved)
{
    DYN_SHARED(struct scan_memory, m);
    const struct tokens &t = m->t;
    const int64_t s = blockIdx.x, h = blockIdx.y, key_head = h / (a.Hv / a.Hk);
    const int first = static_cast<int>(blockIdx.z) * SLICE, column = first + lane_of_warp(), keys = whole_keys(a.Dk);
    float *const state = a.state ? a.state + (s * a.Hv + h) * a.Dk * a.Dv : nullptr;
    load_rows(m->state[0], SLICE_LD, state_of(state, a), keys, first, SLICE);
    for (int64_t index = 0; index < chunks_of(a.seq_start, s); index++) {
        const struct chunk at = chunk_of(a.seq_start, s, index);
        const matrix<T> q = rows_of<T>(a.q, a.ld_qkv, at, key_head, a.Dk, t.q);
        const matrix<T> k = rows_of<T>(a.k, a.ld_qkv, at, key_head, a.Dk, t.k);
        const matrix<T> v = rows_of<T>(a.v, a.ld_qkv, at, h, a.Dv);
        float kk[ROWS][2] = {}, qk[ROWS][2] = {}, own[ROWS][1] = {}, out[ROWS][1] = {};
        __syncthreads();
        load_tokens(&m->t, a, at, h, q, k);
        load_rows(m->keys[0], KEY_LD, k, CHUNK, 0, keys);
        if (!a.out) save_state(saved.states + (at.place * a.Hv + h) * a.Dk * a.Dv, m, a, column);
        __syncthreads();
        add_products<false, false>(own, m->keys[own_row()], KEY_LD, m->state[0], SLICE_LD, SLICE, keys);
        add_products<false, true>(kk, m->keys[own_row()], KEY_LD, m->keys[0], KEY_LD, CHUNK, keys);
        put_square<false, false>(m->square, t, kk);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int i = own_row() + r;
            own[r][0] = t.beta[i] * (element(v, i, column) - t.from_start[i] * own[r][0]);
        }
        solve<false>(m, own);
        if (a.out) {
            multiply_rows(m, q, keys, qk, out);
            put_square<true, false>(m->square, t, qk);
#pragma unroll
            for (int r = 0; r < ROWS; r++) out[r][0] *= t.from_start[own_row() + r];
            add_products<false, false>(out, m->square[own_row()], SQUARE_LD, m->x[0], SLICE_LD, SLICE,
                                       own_row() + ROWS);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int64_t row = at.row + own_row() + r;
            if (own_row() + r >= at.count || column >= a.Dv) continue;
            if (a.out)
                from_float(out[r][0], static_cast<T *>(a.out) + row * a.ld_o + h * a.Dv + column);
            else
                saved.x[(row * a.Hv + h) * a.Dv + column] = own[r][0];
        }
        update_state(m, keys, t.from_start[CHUNK - 1], t.to_end);
    }
    __syncthreads();
    if (state) save_state(state, m, a, column);
}

/* Writes dstates, dr and dv. */
template <typename T>
__global__ void __launch_bounds__(THREADS, 2) delta_scan_back_kernel(struct delta_rule_bwd_args a, struct saved saved)
{
    DYN_SHARED(struct scan_memory, m);
    const struct tokens &t = m->t;
    const int64_t s = blockIdx.x, h = blockIdx.y, key_head = h / (a.fwd.Hv / a.fwd.Hk);
    const int first = static_cast<int>(blockIdx.z) * SLICE, column = first + lane_of_warp(),
              keys = whole_keys(a.fwd.Dk);
    load_rows(m->state[0], SLICE_LD, state_of(nullptr, a.fwd), keys, first, SLICE);
    for (int64_t index = chunks_of(a.fwd.seq_start, s) - 1; index >= 0; index--) {
        const struct chunk at = chunk_of(a.fwd.seq_start, s, index);
        const matrix<T> q = rows_of<T>(a.fwd.q, a.fwd.ld_qkv, at, key_head, a.fwd.Dk, t.q);
        const matrix<T> k = rows_of<T>(a.fwd.k, a.fwd.ld_qkv, at, key_head, a.fwd.Dk, t.k);
        float kk[ROWS][2] = {}, kq[ROWS][2] = {}, own[ROWS][1] = {};
        __syncthreads();
        save_state(saved.dstates + (at.place * a.fwd.Hv + h) * a.fwd.Dk * a.fwd.Dv, m, a.fwd, column);
        load_tokens(&m->t, a.fwd, at, h, q, k);
        load_rows(m->keys[0], KEY_LD, q, CHUNK, 0, keys);
        load_rows(m->x[0], SLICE_LD, rows_of<T>(a.dout, a.fwd.ld_o, at, h, a.fwd.Dv), CHUNK, first, SLICE);
        __syncthreads();
        multiply_rows(m, k, keys, kq, own);
        put_square<true, true>(m->square, t, kq);
#pragma unroll
        for (int r = 0; r < ROWS; r++) own[r][0] *= t.to_end[own_row() + r];
        add_products<false, false>(own, m->square[own_row()], SQUARE_LD, m->x[0], SLICE_LD, SLICE, CHUNK);
        update_state(m, keys, t.from_start[CHUNK - 1], t.from_start);
        __syncthreads();
        load_rows(m->keys[0], KEY_LD, k, CHUNK, 0, keys);
        __syncthreads();
        add_products<false, true>(kk, m->keys[own_row()], KEY_LD, m->keys[0], KEY_LD, CHUNK, keys);
        put_square<false, true>(m->square, t, kk);
        solve<true>(m, own);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int64_t row = at.row + own_row() + r;
            if (own_row() + r >= at.count || column >= a.fwd.Dv) continue;
            saved.dr[(row * a.fwd.Hv + h) * a.fwd.Dv + column] = own[r][0];
            from_float(t.beta[own_row() + r] * own[r][0],
                       static_cast<T *>(a.dv) + row * a.fwd.ld_qkv + h * a.fwd.Dv + column);
        }
        update_state(m, keys, 1, t.minus);
    }
}

/* ---- gradients of a chunk ------------------------------------------------ */

/* What a block has in shared memory. */
struct gradient_memory {
    struct tokens t;
    float keys[CHUNK][KEY_LD];                            /* K, at the end Q */
    float d_qk[CHUNK][SQUARE_LD], d_kk[CHUNK][SQUARE_LD]; /* the gradients of Q Kᵀ and K Kᵀ */
    float slice[DELTA_MAX_DIM][SLICE_LD];                 /* of a state, or of a chunk */
    float staged[CHUNK][SLICE_LD];                        /* rows that are multiplied by it */
    float dsums[CHUNK], dlog_beta[CHUNK];                 /* the gradients of G and log(beta) */
    float ends[THREADS / WARP_SIZE];
};

/* Calls visit(first) with each slice of x in memory, from column `first` on. */
template <typename Visit>
__device__ __forceinline__ void each_slice(struct gradient_memory *m, const struct matrix<float> &x, int rows,
                                           const Visit &visit)
{
    for (int first = 0; first < x.columns; first += SLICE) {
        __syncthreads();
        load_rows(m->slice[0], SLICE_LD, x, rows, first, SLICE);
        __syncthreads();
        visit(first);
    }
}

/* sum (own rows, rows of the slice) += x · sliceᵀ, over the columns from `first` on */
template <typename T, int N>
__device__ __forceinline__ void add_slice(float (&sum)[ROWS][N], struct gradient_memory *m, const struct matrix<T> &x,
                                          int first, int rows)
{
    __syncwarp();
    load_rows(m->staged[0], SLICE_LD, x, CHUNK, first, SLICE);
    __syncwarp();
    add_products<false, true>(sum, m->staged[own_row()], SLICE_LD, m->slice[0], SLICE_LD, rows, SLICE);
}

/* The products of this warp's rows of a gradient with those of x, times its factor; all lanes call visit(row, product).
 */
template <typename T, typename Visit>
__device__ __forceinline__ void dot_rows(const float (&sum)[ROWS][KEYS], const struct matrix<T> &x, const Visit &visit)
{
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int row = own_row() + r;
        float dot = 0;
#pragma unroll
        for (int c = 0; c < KEYS; c++) dot += element(x, row, lane_of_warp() + WARP_SIZE * c, sum[r][c]);
        __syncwarp(); /* row by row: all at a time would not fit the registers */
        visit(r, sum_over_lanes(dot, WARP_SIZE) * x.factor[row]);
    }
}

template <typename T>
__device__ __forceinline__ void add_dots(struct gradient_memory *m, float to_g, float to_beta,
                                         const float (&sum)[ROWS][KEYS], const struct matrix<T> &x)
{
    dot_rows(sum, x, [&](int r, float dot) {
        if (lane_of_warp() != 0) return;
        m->dsums[own_row() + r] += to_g * dot;
        m->dlog_beta[own_row() + r] += to_beta * dot;
    });
}

/* Adds a value head's dq and dk (own rows, keys) to those of the heads before it, and sets the gradients of its gates.
 */
template <typename T>
__device__ __forceinline__ void add_head(struct gradient_memory *m, const struct delta_rule_bwd_args &a,
                                         const struct saved &saved, const struct chunk &at, int64_t h, bool last,
                                         const struct matrix<T> &q, const struct matrix<T> &k, float (&dq)[ROWS][KEYS],
                                         float (&dk)[ROWS][KEYS])
{
    const int keys = whole_keys(a.fwd.Dk), lane = lane_of_warp();
    const int64_t state = (at.place * a.fwd.Hv + h) * a.fwd.Dk * a.fwd.Dv;
    const matrix<T> v = rows_of<T>(a.fwd.v, a.fwd.ld_qkv, at, h, a.fwd.Dv),
                    dout = rows_of<T>(a.dout, a.fwd.ld_o, at, h, a.fwd.Dv);
    const matrix<float> x = rows_of<float>(saved.x, a.fwd.Hv * a.fwd.Dv, at, h, a.fwd.Dv);
    const matrix<float> dr = rows_of<float>(saved.dr, a.fwd.Hv * a.fwd.Dv, at, h, a.fwd.Dv);
    float d_qk[ROWS][2] = {}, d_kk[ROWS][2] = {}, end = 0;
    load_rows(m->keys[0], KEY_LD, k, CHUNK, 0, keys);
    each_slice(m, x, CHUNK, [&](int first) {
        add_slice(d_qk, m, dout, first, CHUNK);
        add_slice(d_kk, m, dr, first, CHUNK);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int row = own_row() + r;
            const float dot = sum_over_lanes(element(v, row, first + lane) * m->staged[row][lane], WARP_SIZE);
            if (lane == 0) m->dlog_beta[row] += m->t.beta[row] * dot;
        }
    });
    put_square<true, false>(m->d_qk, m->t, d_qk);
    put_square<false, false>(m->d_kk, m->t, d_kk);
    add_dots(m, -1, -1, dk, k); /* what this head adds to the products counts */
    add_dots(m, -1, 0, dq, q);
    each_slice(m, state_of(saved.states + state, a.fwd), keys, [&](int first) {
        add_slice(dq, m, times(dout, m->t.from_start), first, keys);
        add_slice(dk, m, times(dr, m->t.minus), first, keys);
    });
    add_products<false, false>(dq, m->d_qk[own_row()], SQUARE_LD, m->keys[0], KEY_LD, keys, CHUNK);
    add_products<false, false>(dk, m->d_kk[own_row()], SQUARE_LD, m->keys[0], KEY_LD, keys, CHUNK);
    add_dots(m, 1, 0, dq, q);
    add_dots(m, 2, 1, dk, k); /* so far dk is from K on the left of products; what follows, from K on the right */
    if (!last)
        each_slice(m, state_of(saved.dstates + state, a.fwd), keys, [&](int first) {
            const float *const next = saved.states + state + a.fwd.Hv * a.fwd.Dk * a.fwd.Dv + first + lane;
            for (int d = own_row() / ROWS; d < a.fwd.Dk && first + lane < a.fwd.Dv; d += CHUNK / ROWS)
                end += m->slice[d][lane] * next[d * a.fwd.Dv];
            add_slice(dk, m, times(x, m->t.to_end), first, keys);
        });
    __syncthreads();
    add_products<true, false>(dk, m->d_kk[0] + own_row(), SQUARE_LD, m->keys[0], KEY_LD, keys, CHUNK);
    __syncthreads();
    load_rows(m->keys[0], KEY_LD, q, CHUNK, 0, keys);
    __syncthreads();
    add_products<true, false>(dk, m->d_qk[0] + own_row(), SQUARE_LD, m->keys[0], KEY_LD, keys, CHUNK);
    add_dots(m, -1, 0, dk, k);
    end = sum_over_lanes(end, WARP_SIZE);
    if (lane == 0) m->ends[own_row() / ROWS] = end;
}

/* Thread 0: da, db and the sums for a_log and dt_bias, from the gradients of G and of log(beta). */
template <typename T>
__device__ __forceinline__ void gradient_gates(struct gradient_memory *m, const struct delta_rule_bwd_args &a,
                                               const struct chunk &at, int64_t h, float *sums)
{
    const float rate = expf(to_float(static_cast<const T *>(a.fwd.a_log)[h]));
    const float bias = to_float(static_cast<const T *>(a.fwd.dt_bias)[h]);
    float dg = 0, da_log = 0, ddt_bias = 0;
    for (int w = 0; w < THREADS / WARP_SIZE; w++) m->dsums[at.count - 1] += m->ends[w];
    for (int i = at.count - 1; i >= 0; i--) {
        const int64_t place = (at.row + i) * a.fwd.ld_ab + h;
        const float x = to_float(static_cast<const T *>(a.fwd.a)[place]) + bias;
        dg += m->dsums[i];
        const float dx = -dg * rate * sigmoid(x);
        from_float(dx, static_cast<T *>(a.da) + place);
        from_float(m->dlog_beta[i] * (1 - m->t.beta[i]), static_cast<T *>(a.db) + place);
        da_log -= dg * rate * softplus(x);
        ddt_bias += dx;
    }
    sums[0] = da_log;
    sums[1] = ddt_bias;
}

/* Writes the gradient of rows from that of the rows with unit length; `square`: of the length that they got, 1 over. */
template <typename T>
__device__ __forceinline__ void store_rows(T *to, const float (&sum)[ROWS][KEYS], const struct matrix<T> &x,
                                           float square)
{
    dot_rows(sum, x, [&](int r, float dot) {
        const int row = own_row() + r;
        const float by = x.factor[row], along = dot * by * by * square;
#pragma unroll
        for (int c = 0; c < KEYS; c++) {
            const int column = lane_of_warp() + WARP_SIZE * c;
            if (row < x.rows && column < x.columns)
                from_float(by * sum[r][c] - along * element(x, row, column), to + row * x.ld + column);
        }
    });
}

template <typename T>
__global__ void __launch_bounds__(THREADS, 1) delta_gradients_kernel(struct delta_rule_bwd_args a, struct saved saved)
{
    DYN_SHARED(struct gradient_memory, m);
    const int64_t place = blockIdx.x, key_head = blockIdx.y, group = a.fwd.Hv / a.fwd.Hk;
    const auto place_of = [&](int64_t s) { return a.fwd.seq_start[s] / CHUNK + s; };
    const int64_t s = last_sequence(a.fwd.num_seqs, place, place_of), index = place - place_of(s);
    const int64_t chunks = chunks_of(a.fwd.seq_start, s);
    float *const sums = saved.sums + place * a.fwd.Hv * 2;
    if (index >= chunks) {
        for (int64_t i = threadIdx.x; i < 2 * group; i += THREADS) sums[key_head * group * 2 + i] = 0;
        return;
    }
    const struct chunk at = chunk_of(a.fwd.seq_start, s, index);
    const matrix<T> q = rows_of<T>(a.fwd.q, a.fwd.ld_qkv, at, key_head, a.fwd.Dk, m->t.q);
    const matrix<T> k = rows_of<T>(a.fwd.k, a.fwd.ld_qkv, at, key_head, a.fwd.Dk, m->t.k);
    float dq[ROWS][KEYS] = {}, dk[ROWS][KEYS] = {};
    for (int64_t h = key_head * group; h < (key_head + 1) * group; h++) {
        __syncthreads();
        if (threadIdx.x < CHUNK) m->dsums[threadIdx.x] = m->dlog_beta[threadIdx.x] = 0;
        load_tokens(&m->t, a.fwd, at, h, q, k);
        add_head(m, a, saved, at, h, index + 1 == chunks, q, k, dq, dk);
        __syncthreads();
        if (threadIdx.x == 0) gradient_gates<T>(m, a, at, h, sums + h * 2);
    }
    const int64_t to = at.row * a.fwd.ld_qkv + key_head * a.fwd.Dk;
    store_rows(static_cast<T *>(a.dq) + to, dq, q, static_cast<float>(a.fwd.Dk));
    store_rows(static_cast<T *>(a.dk) + to, dk, k, 1);
}

/* A warp for each of the sums of a head. */
__global__ void __launch_bounds__(WARP_SIZE)
    delta_sums_kernel(struct delta_rule_bwd_args a, const float *sums, int64_t chunks)
{
    float *const to = blockIdx.y ? a.ddt_bias : a.da_log, sum = 0;
    for (int64_t i = threadIdx.x; i < chunks; i += WARP_SIZE) sum += sums[(i * a.fwd.Hv + blockIdx.x) * 2 + blockIdx.y];
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
    return dim3(static_cast<unsigned>(a->num_seqs), static_cast<unsigned>(a->Hv),
                static_cast<unsigned>(ceil_div(a->Dv, SLICE)));
}

void cuda_delta_rule_fwd(struct stream *stream, const struct delta_rule_fwd_args *a)
{
    if (a->M == 0) return;
    dispatch(a->dtype, [&](auto type) {
        LAUNCH_SHARED(stream, "delta_rule_fwd", delta_scan_kernel<decltype(type)>, scan_grid(a), THREADS,
                      sizeof(struct scan_memory), *a, saved());
    });
}

void cuda_delta_rule_bwd(struct stream *stream, const struct delta_rule_bwd_args *a)
{
    const int64_t chunks = cuda_delta_chunks(&a->fwd), state = a->fwd.Hv * a->fwd.Dk * a->fwd.Dv,
                  row = a->fwd.Hv * a->fwd.Dv;
    struct cuda_scratch scratch = cuda_scratch_of(stream);
    struct saved saved;
    saved.states = cuda_scratch_take<float>(&scratch, chunks * state);
    saved.dstates = cuda_scratch_take<float>(&scratch, chunks * state);
    saved.x = cuda_scratch_take<float>(&scratch, a->fwd.M * row);
    saved.dr = cuda_scratch_take<float>(&scratch, a->fwd.M * row);
    saved.sums = cuda_scratch_take<float>(&scratch, 2 * chunks * a->fwd.Hv);
    if (a->fwd.M)
        dispatch(a->fwd.dtype, [&](auto type) {
            using T = decltype(type);
            const dim3 grid(static_cast<unsigned>(chunks), static_cast<unsigned>(a->fwd.Hk));
            LAUNCH_SHARED(stream, "delta_rule_bwd", delta_scan_kernel<T>, scan_grid(&a->fwd), THREADS,
                          sizeof(struct scan_memory), a->fwd, saved);
            LAUNCH_SHARED(stream, "delta_rule_bwd", delta_scan_back_kernel<T>, scan_grid(&a->fwd), THREADS,
                          sizeof(struct scan_memory), *a, saved);
            LAUNCH_SHARED(stream, "delta_rule_bwd", delta_gradients_kernel<T>, grid, THREADS,
                          sizeof(struct gradient_memory), *a, saved);
        });
    LAUNCH(stream, "delta_rule_bwd", delta_sums_kernel, dim3(static_cast<unsigned>(a->fwd.Hv), 2), WARP_SIZE, *a,
           saved.sums, a->fwd.M ? chunks : 0);
}
CUDA_MODULE(delta, delta_sums_kernel)
