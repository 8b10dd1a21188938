/* SPDX-License-Identifier: Apache-2.0 */
/* ops_cuda_norm.cu: LayerNorm and RMSNorm over rows, fused with the residual add, and RMSNorm over heads.
 *
 * A head norm is an RMSNorm whose rows are heads, several of them to a token; it may have a gate. A block works on
 * blockDim.y rows at a time; the blockDim.x threads of a row are neighbours within a warp, or whole warps. Thread x
 * owns the vectors x, x + blockDim.x, … of its row and holds them in registers between the passes; a row that is too
 * long for that (WHOLE false; then the block has one row) is read again in each pass.
 *
 * Backward also sums over rows, for dweight, dbias and dx_sums: a thread over its rows in registers, then a block's
 * rows through shared memory, then the blocks, whose sums lie in the workspace:
 *
 *     float (parts, SUMS, C)    part p: block p's dweight, then its dbias, then its dx_sums
 *
 * The sums fill the registers: a thread holds one vector of a row, and two in rows of more than ROW_THREADS vectors.
 * Kernels have all three sums, or with vectors only the first. The number of parts depends on the shape alone. */
#include "gpu/cuda/cuda_kernels.cuh"

namespace
{

enum {
    MAX_THREADS = 512,   /* threads that share a row */
    MANY_ROWS = 256,     /* threads of a block of several rows */
    FWD_HELD = 4,        /* vectors of a row that a thread holds */
    BWD_HELD = 2,        /* at most */
    FWD_RESIDENT = 1024, /* threads that a multiprocessor has room for: 64 registers each */
    GATED_BLOCKS = 3,    /* of MANY_ROWS threads, where a gate or RoPE needs more registers */
    MAX_SUMS = CUDA_NORM_SUMS,
    SUM_GROUPS = 16, /* of parts, summed side by side */
};

/* Row r begins r / heads · ld + r % heads · C elements after the tensor's start. */
struct row_layout {
    int heads;
    int64_t ld;
};

__device__ __forceinline__ int64_t row_offset(struct row_layout layout, int row, int C)
{
    if (layout.heads == 1) return row * layout.ld;
    int token = row / layout.heads;
    return token * layout.ld + static_cast<int64_t>(row - token * layout.heads) * C;
}

/* What is multiplied by silu(z) after a head norm has z here, and its gradient; NULL: nothing is. */
struct norm_gate {
    const void *z;
    void *dz;
    struct row_layout layout;
};

/* A head norm that RoPE follows (rope_args): the tables; NULL: none does. */
struct norm_rope {
    const int32_t *positions;
    const float *cosines, *sines;
};

/* Calls visit(k, j) for each vector j of this thread; k < HELD counts them, and restarts in rows that are not whole. */
template <int HELD, bool WHOLE, typename Visit> __device__ __forceinline__ void each_vector(int vectors, Visit visit)
{
    const int width = static_cast<int>(blockDim.x);
    int base = static_cast<int>(threadIdx.x);
    do {
#pragma unroll
        for (int k = 0; k < HELD; k++)
            if (base + k * width < vectors) visit(k, base + k * width);
        base += HELD * width;
    } while (!WHOLE && base < vectors);
}

enum { MAX_WARPS = MAX_THREADS / WARP_SIZE };

/* Replaces N values by their sums over a row's threads. `slots` has two halves, used in turn: one barrier suffices.
 * Every thread of the block makes the same number of calls. */
template <int N> __device__ __forceinline__ void sum_over_row(float (&x)[N], float (*slots)[N][MAX_WARPS], int *turn)
{
    const int threads = static_cast<int>(blockDim.x), warps = threads / WARP_SIZE;
#pragma unroll
    for (int n = 0; n < N; n++)
        x[n] = sum_over_lanes(x[n], threads < WARP_SIZE ? threads : static_cast<int>(WARP_SIZE));
    if (warps <= 1) return;
    float(*half)[MAX_WARPS] = slots[*turn];
    *turn ^= 1;
    const int first = static_cast<int>(threadIdx.y) * warps, warp = static_cast<int>(threadIdx.x) / WARP_SIZE;
    if (threadIdx.x % WARP_SIZE == 0) {
#pragma unroll
        for (int n = 0; n < N; n++) half[n][first + warp] = x[n];
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < N; n++) {
        x[n] = 0;
        for (int i = 0; i < warps; i++) x[n] += half[n][first + i];
    }
}

/* ---- forward ------------------------------------------------------------- */

/* x = x + scale · delta, rounded to T. */
template <typename T, int V>
__device__ __forceinline__ void add_delta(pack<T, V> *x, const pack<T, V> &delta, float scale)
{
#pragma unroll
    for (int v = 0; v < V; v++) x->at[v] = rounded<T>(fmaf(to_float(delta.at[v]), scale, to_float(x->at[v])));
}

/* What a thread holds of a row, in T: the norm sees the rounded sum with delta. */
template <typename T, int V> struct fwd_row {
    pack<T, V> held[FWD_HELD];
};

/* Reads the row, adds delta and stores the sum where there is one. Returns this thread's part of the row's sum, or
 * without `layer` of the sum of squares. All reads of a whole row are under way before the first store. */
template <typename T, int V, bool WHOLE>
__device__ __forceinline__ float read_row(fwd_row<T, V> *row, const struct norm_fwd_args &a, int64_t at, int vectors,
                                          bool layer)
{
    const T *x = static_cast<const T *>(a.x) + at, *delta = static_cast<const T *>(a.delta) + at;
    pack<T, V> held_delta[FWD_HELD];
    float sum = 0;
    auto read = [&](int k, int j) {
        row->held[k] = load_pack<V>(x + j * V);
        keep_packed(&row->held[k]);
        if (a.delta) {
            held_delta[k] = load_pack<V>(delta + j * V);
            keep_packed(&held_delta[k]);
        }
    };
    if (WHOLE) each_vector<FWD_HELD, WHOLE>(vectors, read);
    each_vector<FWD_HELD, WHOLE>(vectors, [&](int k, int j) {
        if (!WHOLE) read(k, j);
        if (a.delta) {
            add_delta(&row->held[k], held_delta[k], a.delta_scale);
            keep_packed(&row->held[k]);
            store_pack(static_cast<T *>(a.x_out) + at + j * V, row->held[k]);
        }
#pragma unroll
        for (int v = 0; v < V; v++) {
            const float z = to_float(row->held[k].at[v]);
            sum = layer ? sum + z : fmaf(z, z, sum);
        }
    });
    return sum;
}

/* y times silu(z) */
template <typename T, int V> __device__ __forceinline__ void norm_times_gate(float (&y)[V], const T *from)
{
    float z[V];
    load(from, z);
#pragma unroll
    for (int v = 0; v < V; v++) y[v] *= z[v] * sigmoid(z[v]);
}

/* y = the row, normed, rounded and turned. The thread has FWD_HELD whole vectors: those of half a head, then their
 * partners. */
template <typename T, int V>
__device__ __forceinline__ void norm_turned(T *y, const fwd_row<T, V> &of, const struct norm_fwd_args &a, float rstd,
                                            const struct norm_rope &rope, int token)
{
    const int width = static_cast<int>(blockDim.x), half = static_cast<int>(a.C) / 2;
    const int64_t angles = static_cast<int64_t>(rope.positions[token]) * half;
#pragma unroll
    for (int k = 0; k < FWD_HELD / 2; k++) {
        const int j = (static_cast<int>(threadIdx.x) + k * width) * V;
        float both[2][V], c[V], s[V];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            load(static_cast<const T *>(a.weight) + j + i * half, both[i]);
#pragma unroll
            for (int v = 0; v < V; v++) {
                const float n = to_float(of.held[k + i * FWD_HELD / 2].at[v]) * rstd;
                both[i][v] = to_float(rounded<T>(fmaf(n, both[i][v] + a.weight_offset, 0.0f)));
            }
        }
        load(rope.cosines + angles + j, c);
        load(rope.sines + angles + j, s);
#pragma unroll
        for (int v = 0; v < V; v++) {
            const float low = both[0][v], high = both[1][v];
            both[0][v] = fmaf(low, c[v], -high * s[v]);
            both[1][v] = fmaf(high, c[v], low * s[v]);
        }
        store(y + j, both[0]);
        store(y + j + half, both[1]);
    }
}

/* Registers for FWD_RESIDENT threads of a multiprocessor. */
template <typename T, int V, bool WHOLE, bool GATED = false, bool TURNED = false>
__global__ void __launch_bounds__(GATED || TURNED ? MANY_ROWS : MAX_THREADS,
                                  GATED || TURNED ? GATED_BLOCKS : FWD_RESIDENT / MAX_THREADS)
    norm_fwd_kernel(struct norm_fwd_args a, int rows, struct row_layout layout_x, struct row_layout layout_y,
                    struct norm_gate gate, struct norm_rope rope)
{
    SHARED(float, slots, [2][1][MAX_WARPS]);
    const int C = static_cast<int>(a.C), vectors = C / V;
    const bool layer = a.kind == NORM_LAYER;
    const T *weight = static_cast<const T *>(a.weight), *bias = static_cast<const T *>(a.bias);
    int turn = 0;
    for (int first = static_cast<int>(blockIdx.x * blockDim.y); first < rows;
         first += static_cast<int>(gridDim.x * blockDim.y)) {
        const int row = first + static_cast<int>(threadIdx.y), mine = row < rows ? vectors : 0;
        const int64_t at_x = row_offset(layout_x, row, C);
        const T *x = static_cast<const T *>(a.delta ? a.x_out : a.x) + at_x;
        T *y = static_cast<T *>(a.y) + row_offset(layout_y, row, C);
        const T *z = static_cast<const T *>(gate.z) + (GATED ? row_offset(gate.layout, row, C) : 0);
        fwd_row<T, V> of;
        float sum[1] = {read_row<T, V, WHOLE>(&of, a, at_x, mine, layer)}, mean = 0;
        sum_over_row(sum, slots, &turn);

        auto again = [&](int k, int j) {
            if (!WHOLE) of.held[k] = load_pack<V>(x + j * V);
            keep_packed(&of.held[k]);
        };
        if (layer) {
            mean = sum[0] / static_cast<float>(C);
            sum[0] = 0;
            each_vector<FWD_HELD, WHOLE>(mine, [&](int k, int j) {
                again(k, j);
#pragma unroll
                for (int v = 0; v < V; v++) {
                    const float z = to_float(of.held[k].at[v]) - mean;
                    sum[0] = fmaf(z, z, sum[0]);
                }
            });
            sum_over_row(sum, slots, &turn);
        }

        const float rstd = 1.0f / sqrtf(sum[0] / static_cast<float>(C) + a.eps);
        if (mine && threadIdx.x == 0) a.rstd[row] = rstd;
        if (mine && threadIdx.x == 0 && layer) a.mean[row] = mean;
        if constexpr (TURNED) {
            if (mine) norm_turned(y, of, a, rstd, rope, row / layout_x.heads);
            continue;
        }
        each_vector<FWD_HELD, WHOLE>(mine, [&](int k, int j) {
            float w[V], b[V] = {0};
            again(k, j);
            load(weight + j * V, w);
            if (bias) load(bias + j * V, b);
#pragma unroll
            for (int v = 0; v < V; v++)
                w[v] = fmaf((to_float(of.held[k].at[v]) - mean) * rstd, w[v] + a.weight_offset, b[v]);
            if (GATED) norm_times_gate(w, z + j * V);
            store(y + j * V, w);
        });
    }
}

/* The threads of a block: x threads share a row, y rows are computed side by side. */
dim3 norm_block_of(int64_t vectors, int held)
{
    unsigned x = threads_for(ceil_div(vectors, held));
    x = x < MAX_THREADS ? x : static_cast<unsigned>(MAX_THREADS);
    return dim3(x, x < MANY_ROWS ? MANY_ROWS / x : 1);
}

template <typename T>
void launch_norm_fwd(struct stream *stream, const struct norm_fwd_args *a, struct row_layout x, struct row_layout y,
                     const struct norm_gate &gate = {}, const struct norm_rope &rope = {})
{
    constexpr int V = VECTOR<T>;
    const int64_t size = sizeof(T), rows = a->M * x.heads;
    ASSERT(rows <= INT32_MAX / 2 && a->C <= INT32_MAX / 2);
    if (a->M == 0) return;
    const bool aligned = aligned16(a->x, a->delta, a->x_out, a->y, a->weight, a->bias, gate.z, a->C * size, x.ld * size,
                                   y.ld * size, gate.layout.ld * size);
    const int64_t vectors = a->C / (aligned ? V : 1);
    const dim3 block = norm_block_of(vectors, FWD_HELD);
    const bool whole = vectors <= static_cast<int64_t>(block.x) * FWD_HELD;
    /* as many blocks as run at a time, so that none waits for others to end */
    const unsigned grid =
        grid_of(stream, ceil_div(rows, block.y),
                gate.z || rope.positions ? GATED_BLOCKS : FWD_RESIDENT / static_cast<int>(block.x * block.y));
    LAUNCH(stream, "norm_fwd",
           (rope.positions ? norm_fwd_kernel<T, V, true, false, true>
            : gate.z       ? aligned ? norm_fwd_kernel<T, V, true, true> : norm_fwd_kernel<T, 1, true, true>
                  : aligned ? whole ? norm_fwd_kernel<T, V, true> : norm_fwd_kernel<T, V, false>
                  : whole ? norm_fwd_kernel<T, 1, true>
                           : norm_fwd_kernel<T, 1, false>),
           grid, block, *a, static_cast<int>(rows), x, y, gate, rope);
}

/* ---- backward ------------------------------------------------------------ */

/* part = sums of this thread's columns over the blockDim.y rows of a block. */
template <int HELD, int V>
__device__ __forceinline__ void norm_put_part(float *part, const float (&sums)[HELD][V], int vectors,
                                              float (*shared)[MAX_THREADS])
{
    const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x), width = static_cast<int>(blockDim.x);
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        const int j = static_cast<int>(threadIdx.x) + k * width;
        __syncthreads();
#pragma unroll
        for (int v = 0; v < V; v++) shared[v][thread] = sums[k][v];
        __syncthreads();
        if (threadIdx.y != 0 || j >= vectors) continue;
#pragma unroll
        for (int v = 0; v < V; v++) {
            float sum = 0;
            for (int y = 0; y < static_cast<int>(blockDim.y); y++) sum += shared[v][y * width + thread];
            part[j * V + v] = sum;
        }
    }
}

/* part[column] (+)= sums for the V columns of vector j, and the sums restart; `first`: the part is empty. */
template <int V> __device__ __forceinline__ void keep_in_part(float *part, float (&sums)[V], int j, bool first)
{
#pragma unroll
    for (int v = 0; v < V; v++) {
        part[j * V + v] = sums[v] + (first ? 0 : part[j * V + v]);
        sums[v] = 0;
    }
}

/* Adds g and g · n of V elements to sums; d, a pack or floats: the gradient of the norm's output; w: the weight, with
 * its offset. */
template <typename T, int V, typename Gradient>
__device__ __forceinline__ void norm_add_sums(float (&sums)[2], const pack<T, V> &x, const Gradient &d,
                                              const float (&w)[V], float mean, float rstd)
{
#pragma unroll
    for (int v = 0; v < V; v++) {
        float g = to_float(d.at[v]) * w[v], n = (to_float(x.at[v]) - mean) * rstd;
        sums[0] += g;
        sums[1] = fmaf(g, n, sums[1]);
    }
}

/* w = the weights from column `at` on, with their offset. */
template <typename T, int V>
__device__ __forceinline__ void load_weight(float (&w)[V], const struct norm_bwd_args &a, int at)
{
    load(static_cast<const T *>(a.weight) + at, w);
#pragma unroll
    for (int v = 0; v < V; v++) w[v] += a.weight_offset;
}

/* The sums of a thread's columns over its rows, in the order of a part. */
enum { SUM_WEIGHT, SUM_BIAS, SUM_DX };

/* A row's statistics, and the means of g and g · n over it. */
struct bwd_row {
    float mean, rstd, mean_g, mean_gn;
};

/* w, a vector's weights, becomes its dx; its elements are added to the sums of their columns. */
template <typename T, int SUMS, int HELD, int V, typename Gradient>
__device__ __forceinline__ void norm_bwd_vector(float (&w)[V], float (&sums)[SUMS][HELD][V], int k, const pack<T, V> &x,
                                                const Gradient &gradient, const pack<T, V> &dres, bool with_dres,
                                                const struct bwd_row &row)
{
#pragma unroll
    for (int v = 0; v < V; v++) {
        float d = to_float(gradient.at[v]), n = (to_float(x.at[v]) - row.mean) * row.rstd;
        sums[SUM_WEIGHT][k][v] = fmaf(d, n, sums[SUM_WEIGHT][k][v]);
        if constexpr (SUMS > SUM_BIAS) sums[SUM_BIAS][k][v] += d;
        w[v] = row.rstd * (fmaf(d, w[v], -row.mean_g) - n * row.mean_gn);
        if (with_dres) w[v] += to_float(dres.at[v]);
        if constexpr (SUMS > SUM_DX) sums[SUM_DX][k][v] += to_float(rounded<T>(w[v]));
    }
}

/* dy · silu(z), the gradient of what is gated; w: the weight, with its offset. Writes dz. */
template <typename T, int V>
__device__ __forceinline__ struct floats<V> norm_bwd_gate(const struct norm_gate &gate, int64_t at, const pack<T, V> &x,
                                                          const pack<T, V> &dy, const float (&w)[V], float rstd) {
    float z[V], dz[V];
    floats<V> d;
    load(static_cast<const T *>(gate.z) + at, z);
#pragma unroll
    for (int v = 0; v < V; v++) {
        const float s = sigmoid(z[v]), g = to_float(dy.at[v]);
        dz[v] = g * to_float(x.at[v]) * rstd * w[v] * s * fmaf(z[v], 1 - s, 1.0f);
        d.at[v] = g * z[v] * s;
    }
    store(static_cast<T *>(gate.dz) + at, dz);
    return d;
}

template <bool FIRST, typename A, typename B>
__device__ __forceinline__ const auto &one_of(const A &first, const B &second)
{
    if constexpr (FIRST)
        return first;
    else
        return second;
}

/* Threads at most that hold vectors of a row: as many as leave room for their registers. */
template <int SUMS> constexpr int ROW_THREADS = SUMS == 1 ? int{MAX_THREADS} : 384;

/* n = (x - mean) · rstd, g = dy · (weight_offset + weight), dx = rstd · (g - mean(g) - n · mean(g · n)); mean(g) for
 * LayerNorm only. */
template <typename T, int V, int HELD, int SUMS, bool WHOLE, bool GATED>
__global__ void __launch_bounds__(GATED           ? MANY_ROWS
                                  : WHOLE &&V > 1 ? ROW_THREADS<SUMS>
                                                  : int{MAX_THREADS},
                                  HELD == 1 ? 2 : 1)
    norm_bwd_kernel(struct norm_bwd_args a, int rows, struct row_layout layout_x, struct row_layout layout_dy,
                    struct row_layout layout_dx, struct norm_gate gate, float *parts)
{
    SHARED(float, slots, [2][2][MAX_WARPS]);
    SHARED(float, shared, [V][MAX_THREADS]);
    const int C = static_cast<int>(a.C), vectors = C / V;
    const bool layer = a.kind == NORM_LAYER;
    float *part = parts + static_cast<int64_t>(blockIdx.x) * SUMS * C;
    float over_rows[SUMS][HELD][V] = {};
    int turn = 0;
    for (int first = static_cast<int>(blockIdx.x * blockDim.y); first < rows;
         first += static_cast<int>(gridDim.x * blockDim.y)) {
        const int row = first + static_cast<int>(threadIdx.y), mine = row < rows ? vectors : 0;
        const T *x = static_cast<const T *>(a.x) + row_offset(layout_x, row, C);
        const T *dy = static_cast<const T *>(a.dy) + row_offset(layout_dy, row, C);
        const int64_t at_dx = row_offset(layout_dx, row, C), at_gate = GATED ? row_offset(gate.layout, row, C) : 0;
        const float mean = layer && mine ? a.mean[row] : 0, rstd = mine ? a.rstd[row] : 0;
        pack<T, V> held_x[HELD], held_dy[HELD], held_dres[HELD];
        float sums[2] = {0, 0}; /* g, g · n */
        floats<V> held_d[HELD]; /* GATED: the gradient of the norm's output, which is dy otherwise */

        auto read = [&](int k, int j) {
            held_x[k] = load_pack<V>(x + j * V);
            held_dy[k] = load_pack<V>(dy + j * V);
            if (a.dres) held_dres[k] = load_pack<V>(static_cast<const T *>(a.dres) + at_dx + j * V);
        };
        if (WHOLE) each_vector<HELD, WHOLE>(mine, read);
        each_vector<HELD, WHOLE>(mine, [&](int k, int j) {
            float w[V];
            if (!WHOLE) read(k, j);
            load_weight<T>(w, a, j * V);
            if (GATED) held_d[k] = norm_bwd_gate(gate, at_gate + j * V, held_x[k], held_dy[k], w, rstd);
            norm_add_sums(sums, held_x[k], one_of<GATED>(held_d[k], held_dy[k]), w, mean, rstd);
        });
        sum_over_row(sums, slots, &turn);
        const struct bwd_row of_row = {mean, rstd, layer ? sums[0] / static_cast<float>(C) : 0,
                                       sums[1] / static_cast<float>(C)};

        each_vector<HELD, WHOLE>(mine, [&](int k, int j) {
            float w[V];
            if (!WHOLE) read(k, j);
            load_weight<T>(w, a, j * V);
            norm_bwd_vector(w, over_rows, k, held_x[k], one_of<GATED>(held_d[k], held_dy[k]), held_dres[k], a.dres,
                            of_row);
            store(static_cast<T *>(a.dx) + at_dx + j * V, w);
            if (!WHOLE) /* the registers serve the next vector: the sums are kept in the workspace */
#pragma unroll
                for (int s = 0; s < SUMS; s++)
                    keep_in_part(part + s * C, over_rows[s][k], j, first == static_cast<int>(blockIdx.x));
        });
    }
    if (WHOLE)
#pragma unroll
        for (int s = 0; s < SUMS; s++) norm_put_part<HELD>(part + s * C, over_rows[s], vectors, shared);
}

/* Where the sums of the parts go; NULL: nowhere. */
struct sum_outputs {
    float *to[MAX_SUMS];
    bool accumulate[MAX_SUMS];
};

/* Output blockIdx.y (+)= the sum over parts: SUM_GROUPS sums of every SUM_GROUPS-th part, then those in order. */
__global__ void __launch_bounds__(WARP_SIZE *SUM_GROUPS)
    norm_sum_parts_kernel(struct sum_outputs outputs, const float *parts, int count, int C)
{
    SHARED(float, sums, [SUM_GROUPS][WARP_SIZE]);
    const int column = static_cast<int>(blockIdx.x * WARP_SIZE + threadIdx.x);
    const float *from = parts + static_cast<int64_t>(blockIdx.y) * C + column;
    float *out = nullptr, sum = 0;
    bool accumulate = false;
#pragma unroll
    for (unsigned s = 0; s < MAX_SUMS; s++) { /* no index that is unknown: the arguments stay where they are */
        out = s == blockIdx.y ? outputs.to[s] : out;
        accumulate = s == blockIdx.y ? outputs.accumulate[s] : accumulate;
    }
    if (!out) return;
    for (int part = static_cast<int>(threadIdx.y); part < count && column < C; part += SUM_GROUPS)
        sum += from[static_cast<int64_t>(part) * gridDim.y * C];
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || column >= C) return;
    sum = accumulate ? out[column] : 0;
    for (int group = 0; group < SUM_GROUPS; group++) sum += sums[group][threadIdx.x];
    out[column] = sum;
}

/* The layouts of x, dy and dx, and a gate. */
struct bwd_layouts {
    struct row_layout x, dy, dx;
    struct norm_gate gate;
};

/* Launches the kernel; returns the number of parts. */
template <typename T, int V, int HELD, int SUMS, bool WHOLE, bool GATED = false>
int norm_bwd_launch(struct stream *s, const struct norm_bwd_args *a, const struct bwd_layouts *layouts, float *parts)
{
    const int64_t rows = a->M * layouts->x.heads, most = cuda_norm_parts(a->C);
    const dim3 block = norm_block_of(a->C / V, HELD);
    const int64_t blocks = ceil_div(rows, block.y), count = blocks < most ? blocks : most;
    LAUNCH(s, "norm_bwd", (norm_bwd_kernel<T, V, HELD, SUMS, WHOLE, GATED>), static_cast<unsigned>(count), block, *a,
           static_cast<int>(rows), layouts->x, layouts->dy, layouts->dx, layouts->gate, parts);
    return static_cast<int>(count);
}

/* Vectors of 16 bytes. */
template <typename T, int SUMS>
int norm_bwd_vectors(struct stream *s, const struct norm_bwd_args *a, const struct bwd_layouts *layouts, float *parts)
{
    constexpr int V = VECTOR<T>;
    if (a->C / V <= ROW_THREADS<SUMS>) return norm_bwd_launch<T, V, 1, SUMS, true>(s, a, layouts, parts);
    return norm_bwd_launch<T, V, BWD_HELD, SUMS, true>(s, a, layouts, parts);
}

template <typename T>
int norm_bwd_parts(struct stream *stream, const struct norm_bwd_args *a, const struct bwd_layouts *layouts,
                   bool aligned, int sums, float *parts)
{
    constexpr int V = VECTOR<T>;
    if (layouts->gate.z)
        return aligned ? norm_bwd_launch<T, V, 1, 1, true, true>(stream, a, layouts, parts)
                       : norm_bwd_launch<T, 1, BWD_HELD, MAX_SUMS, true, true>(stream, a, layouts, parts);
    if (!aligned)
        return a->C <= static_cast<int64_t>(MAX_THREADS) * BWD_HELD
                   ? norm_bwd_launch<T, 1, BWD_HELD, MAX_SUMS, true>(stream, a, layouts, parts)
                   : norm_bwd_launch<T, 1, BWD_HELD, MAX_SUMS, false>(stream, a, layouts, parts);
    if (a->C / V > static_cast<int64_t>(sums == 1 ? ROW_THREADS<1> : ROW_THREADS<MAX_SUMS>) * BWD_HELD)
        return norm_bwd_launch<T, V, BWD_HELD, MAX_SUMS, false>(stream, a, layouts, parts);
    return sums == 1 ? norm_bwd_vectors<T, 1>(stream, a, layouts, parts)
                     : norm_bwd_vectors<T, MAX_SUMS>(stream, a, layouts, parts);
}

template <typename T>
void launch_norm_bwd(struct stream *stream, const struct norm_bwd_args *a, const struct bwd_layouts *layouts)
{
    const int64_t size = sizeof(T);
    ASSERT(a->M * layouts->x.heads <= INT32_MAX / 2 && a->C <= INT32_MAX / 2);
    struct cuda_scratch scratch = cuda_scratch_of(stream);
    const struct sum_outputs outputs = {{a->dweight, a->dbias, a->dx_sums},
                                        {a->accumulate, a->accumulate, a->accumulate_sums}};
    const bool aligned =
        aligned16(a->dx, a->dres, a->dy, a->x, a->weight, layouts->gate.z, layouts->gate.dz, a->C * size,
                  layouts->x.ld * size, layouts->dy.ld * size, layouts->dx.ld * size, layouts->gate.layout.ld * size);
    const bool vectors = aligned && a->C / VECTOR<T> <= static_cast<int64_t>(ROW_THREADS<1>) * BWD_HELD;
    const int sums = vectors && !a->dbias && !a->dx_sums ? 1 : MAX_SUMS;
    float *parts = cuda_scratch_take<float>(&scratch, cuda_norm_parts(a->C) * sums * a->C);
    const int count = a->M == 0 ? 0 : norm_bwd_parts<T>(stream, a, layouts, aligned, sums, parts);
    LAUNCH(stream, "sum_parts", norm_sum_parts_kernel, dim3(static_cast<unsigned>(ceil_div(a->C, WARP_SIZE)), sums),
           dim3(WARP_SIZE, SUM_GROUPS), outputs, parts, count, static_cast<int>(a->C));
}

} // namespace

void cuda_norm_fwd(struct stream *stream, const struct norm_fwd_args *a)
{
    const struct row_layout layout = {1, a->C};
    ASSERT(a->kind == NORM_RMS || a->mean);
    dispatch(a->dtype, [&](auto type) { launch_norm_fwd<decltype(type)>(stream, a, layout, layout); });
}

void cuda_norm_bwd(struct stream *stream, const struct norm_bwd_args *a)
{
    const struct row_layout layout = {1, a->C};
    const struct bwd_layouts layouts = {layout, layout, layout, {}};
    dispatch(a->dtype, [&](auto type) { launch_norm_bwd<decltype(type)>(stream, a, &layouts); });
}

void cuda_head_norm_fwd(struct stream *stream, const struct head_norm_fwd_args *a)
{
    struct norm_fwd_args norm = {};
    ASSERT(!a->gate || (!a->positions && a->D <= GATED_MAX_DIM));
    norm.dtype = a->dtype;
    norm.kind = NORM_RMS;
    norm.M = a->M;
    norm.C = a->D;
    norm.eps = a->eps;
    norm.y = a->y;
    norm.x = a->x;
    norm.weight = a->weight;
    norm.weight_offset = a->weight_offset;
    norm.rstd = a->rstd;
    const int heads = static_cast<int>(a->heads);
    const struct row_layout layout_x = {heads, a->ld_x}, layout_y = {heads, a->ld_y};
    const struct norm_gate gate = {a->gate, nullptr, {heads, a->ld_gate}};
    const int64_t size = static_cast<int64_t>(dtype_size(a->dtype));
    const bool turns = head_norm_turns(a) && aligned16(a->x, a->y, a->weight, a->ld_x * size, a->ld_y * size);
    const struct rope_args apart = rope_of_head_norm(a);
    struct norm_rope rope = {a->positions, a->cos_table, a->sin_table};
    if (!turns) rope.positions = nullptr;
    dispatch(a->dtype,
             [&](auto type) { launch_norm_fwd<decltype(type)>(stream, &norm, layout_x, layout_y, gate, rope); });
    if (a->positions && !turns) cuda_rope(stream, &apart);
}

void cuda_head_norm_bwd(struct stream *stream, const struct head_norm_bwd_args *a)
{
    struct norm_bwd_args norm = {};
    ASSERT(!a->gate || (!a->dres && a->D <= GATED_MAX_DIM));
    norm.dtype = a->dtype;
    norm.kind = NORM_RMS;
    norm.M = a->M;
    norm.C = a->D;
    norm.dx = a->dx;
    norm.dres = a->dres;
    norm.dy = a->dy;
    norm.x = a->x;
    norm.weight = a->weight;
    norm.weight_offset = a->weight_offset;
    norm.rstd = a->rstd;
    norm.dweight = a->dweight;
    norm.accumulate = a->accumulate;
    const int heads = static_cast<int>(a->heads);
    const struct bwd_layouts layouts = {
        {heads, a->ld_x}, {heads, a->ld_dy}, {heads, a->ld_dx}, {a->gate, a->dgate, {heads, a->ld_gate}}};
    dispatch(a->dtype, [&](auto type) { launch_norm_bwd<decltype(type)>(stream, &norm, &layouts); });
}
CUDA_MODULE(norm, norm_sum_parts_kernel)
