/* SPDX-License-Identifier: Apache-2.0 */
/* ops_cuda_pointwise.cu: RoPE, the order of heads, SwiGLU, tanh, add, dropout, cast, accumulate: elements are
 * independent. */
#include "gpu/cuda/cuda_kernels.cuh"
#include "gpu/noise.h"

namespace
{

enum { THREADS = ELEMENT_THREADS };

/* ---- RoPE ---------------------------------------------------------------- */

enum { ROPE_RESIDENT = 5 }; /* blocks of a multiprocessor: 48 registers a thread */

/* A block turns blockDim.z tokens: threads along x over vectors of V angles, along y over heads. A thread reads two
 * vectors: the first elements of its pairs and their partners, or with PAIRS the elements in turn. Heads of a token
 * find their sines and cosines in the L1 cache. */
template <typename T, int V, bool PAIRS>
__global__ void __launch_bounds__(THREADS, ROPE_RESIDENT) rope_kernel(struct rope_args a)
{
    const int D = static_cast<int>(a.D), half = static_cast<int>(a.R) / 2, heads = static_cast<int>(a.heads);
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.z + threadIdx.z;
    if (i >= a.M) return;
    const int64_t angles = static_cast<int64_t>(a.positions[i]) * half;
    for (int h = static_cast<int>(threadIdx.y); h < heads; h += static_cast<int>(blockDim.y)) {
        T *head = static_cast<T *>(a.x) + i * a.ld + static_cast<int64_t>(h) * D;
        for (int j = static_cast<int>(threadIdx.x) * V; j < half; j += static_cast<int>(blockDim.x) * V) {
            T *first = head + (PAIRS ? 2 * j : j), *second = first + (PAIRS ? V : half);
            pack<T, V> packs[2] = {load_pack<V>(first), load_pack<V>(second)};
            keep_packed(&packs[0]);
            keep_packed(&packs[1]);
            float c[V], s[V];
            load(a.cos_table + angles + j, c);
            load(a.sin_table + angles + j, s);
#pragma unroll
            for (int v = 0; v < V; v++) {
                T *low = PAIRS ? &packs[2 * v / V].at[2 * v % V] : &packs[0].at[v];
                T *high = PAIRS ? &packs[(2 * v + 1) / V].at[(2 * v + 1) % V] : &packs[1].at[v];
                const float sine = a.inverse ? -s[v] : s[v], x = to_float(*low), y = to_float(*high);
                from_float(fmaf(x, c[v], -y * sine), low);
                from_float(fmaf(y, c[v], x * sine), high);
            }
            store_pack(first, packs[0]);
            store_pack(second, packs[1]);
        }
    }
}

/* ---- the order of heads -------------------------------------------------- */

template <typename T, int V> __global__ void __launch_bounds__(THREADS) swap_heads_kernel(struct swap_heads_args a)
{
    const int64_t heads = a.outer * a.inner * a.D, width = heads + a.rest;
    each_in_table<V>(a.M, width, [&](int64_t row, int64_t j) {
        const int64_t head = j / a.D;
        const int64_t to = j < heads ? (head % a.inner * a.outer + head / a.inner) * a.D + j % a.D : j;
        store_pack(static_cast<T *>(a.y) + row * width + to,
                   load_pack<V>(static_cast<const T *>(a.x) + row * width + j));
    });
}

/* ---- SwiGLU, GeGLU ------------------------------------------------------- */

/* LIMITED: with a limit. PAIRS: interleaved. */
template <typename T, int V, bool LIMITED, bool PAIRS>
__global__ void __launch_bounds__(THREADS) swiglu_fwd_kernel(struct swiglu_fwd_args a)
{
    each_in_table<V>(a.rows ? *a.rows : a.M, a.F, [&](int64_t row, int64_t j) {
        const T *from = static_cast<const T *>(a.gate_up) + row * 2 * a.F + (PAIRS ? 2 * j : j);
        float both[2][V], out[V];
        load(from, both[0]);
        load(from + (PAIRS ? V : a.F), both[1]);
#pragma unroll
        for (int v = 0; v < V; v++) {
            const float gate = PAIRS ? both[2 * v / V][2 * v % V] : both[0][v];
            const float up = PAIRS ? both[(2 * v + 1) / V][(2 * v + 1) % V] : both[1][v];
            const float g = gate > a.limit ? a.limit : gate;
            const float u = up > a.limit ? a.limit : up < -a.limit ? -a.limit : up;
            if (LIMITED)
                out[v] = g * sigmoid(a.alpha * g) * (u + 1.0f);
            else
                out[v] = up * (gate * (a.gelu ? gelu_of(gate).share : sigmoid(gate)));
        }
        store(static_cast<T *>(a.h) + row * a.F + j, out);
    });
}

template <typename T, int V> __global__ void __launch_bounds__(THREADS) swiglu_bwd_kernel(struct swiglu_bwd_args a)
{
    each_in_table<V>(a.M, a.F, [&](int64_t row, int64_t j) {
        const int64_t at = row * 2 * a.F + j;
        const T *from = static_cast<const T *>(a.gate_up) + at;
        T *to = static_cast<T *>(a.dgate_up) + at;
        float gate[V], up[V], dh[V];
        load(from, gate);
        load(from + a.F, up);
        load(static_cast<const T *>(a.dh) + row * a.F + j, dh);
#pragma unroll
        for (int v = 0; v < V; v++) {
            const float g = gate[v];
            if (a.gelu) {
                const struct gelu_parts gelu = gelu_of(g);
                gate[v] = dh[v] * up[v] * gelu.derivative;
                up[v] = dh[v] * g * gelu.share;
            } else {
                const float s = sigmoid(g);
                gate[v] = dh[v] * up[v] * s * fmaf(g, 1.0f - s, 1.0f);
                up[v] = dh[v] * g * s;
            }
        }
        store(to, gate);
        store(to + a.F, up);
    });
}

template <bool LIMITED, bool PAIRS> void swiglu_fwd(struct stream *stream, const struct swiglu_fwd_args *a)
{
    dispatch(a->dtype, [&](auto type) {
        using T = decltype(type);
        launch_table<T>(stream, "swiglu_fwd", swiglu_fwd_kernel<T, VECTOR<T>, LIMITED, PAIRS>,
                        swiglu_fwd_kernel<T, 1, LIMITED, PAIRS>, *a, a->M * a->F,
                        aligned16(a->h, a->gate_up, a->F * static_cast<int64_t>(sizeof(T))));
    });
}

/* ---- a gate -------------------------------------------------------------- */

template <typename T, int V> __global__ void __launch_bounds__(THREADS) gate_fwd_kernel(struct gate_fwd_args a)
{
    each_in_table<V>(a.M, a.C, [&](int64_t row, int64_t j) {
        float x[V], gate[V];
        load(static_cast<const T *>(a.x) + row * a.ld_x + j, x);
        load(static_cast<const T *>(a.gate) + row * a.ld_gate + j, gate);
#pragma unroll
        for (int v = 0; v < V; v++) x[v] *= a.gelu ? gate[v] * gelu_of(gate[v]).share : sigmoid(gate[v]);
        store(static_cast<T *>(a.y) + row * a.C + j, x);
    });
}

template <typename T, int V> __global__ void __launch_bounds__(THREADS) gate_bwd_kernel(struct gate_bwd_args a)
{
    each_in_table<V>(a.M, a.C, [&](int64_t row, int64_t j) {
        const int64_t at = row * a.ld_x + j, at_gate = row * a.ld_gate + j;
        float dy[V], x[V], gate[V];
        load(static_cast<const T *>(a.dy) + row * a.C + j, dy);
        load(static_cast<const T *>(a.x) + at, x);
        load(static_cast<const T *>(a.gate) + at_gate, gate);
#pragma unroll
        for (int v = 0; v < V; v++) {
            if (a.gelu) {
                const struct gelu_parts gelu = gelu_of(gate[v]);
                const float open = gate[v] * gelu.share;
                gate[v] = dy[v] * x[v] * gelu.derivative;
                dy[v] *= open;
            } else {
                const float open = sigmoid(gate[v]);
                gate[v] = dy[v] * x[v] * open * (1.0f - open);
                dy[v] *= open;
            }
        }
        store(static_cast<T *>(a.dgate) + at_gate, gate);
        store(static_cast<T *>(a.dx) + at, dy);
    });
}

/* ---- elements ------------------------------------------------------------ */

template <typename Launch> void dispatch_pair(enum dtype to, enum dtype from, Launch launch)
{
    dispatch(to, [&](auto t) { dispatch(from, [&](auto f) { launch(t, f); }); });
}

struct tanh_of {
    __device__ float operator()(float x) const
    {
        return tanhf(x);
    }
};

struct tanh_gradient {
    __device__ float operator()(float dy, float y) const
    {
        return dy * fmaf(-y, y, 1.0f);
    }
};

struct same_value {
    __device__ float operator()(float x) const
    {
        return x;
    }
};

struct scaled {
    float by;
    __device__ float operator()(float x) const
    {
        return x * by;
    }
};

/* factor NULL: 1 */
template <typename T> struct scaled_sum {
    const T *factor;
    __device__ float operator()(float a, float b = 0) const
    {
        return (a + b) * (factor ? to_float(*factor) : 1.0f);
    }
};

/* Many threads hide the time of a load: unrolled, the loop would spill registers on some GPUs. */
template <typename T, typename Out>
__global__ void __launch_bounds__(THREADS) sum_ranks_kernel(struct sum_ranks_args a, int64_t whole)
{
    const T *own = static_cast<const T *>(a.own), *inbox = static_cast<const T *>(a.inbox);
    Out *out = static_cast<Out *>(a.out);
    each_element<VECTOR<T>>(a.n, whole, [&](auto width, int64_t i) {
        constexpr int V = decltype(width)::value;
        float sum[V];
        if (a.accumulate)
            load(out + i, sum);
        else
            load((a.rank == 0 ? own : inbox) + i, sum);
#pragma unroll 1
        for (int64_t r = a.accumulate ? 0 : 1; r < a.ranks; r++) {
            float x[V];
            load((r == a.rank ? own : inbox + r * a.n) + i, x);
#pragma unroll
            for (int v = 0; v < V; v++) sum[v] += x[v];
        }
        store(out + i, sum);
    });
}

template <typename T>
__global__ void __launch_bounds__(THREADS) noise_kernel(T *to, uint32_t seed, int64_t n, int64_t whole)
{
    each_element<VECTOR<T>>(n, whole, [&](auto width, int64_t i) {
        constexpr int V = decltype(width)::value;
        float x[V];
#pragma unroll
        for (int v = 0; v < V; v++) x[v] = noise_value(seed, static_cast<uint64_t>(i + v));
        store(to + i, x);
    });
}

/* ---- dropout ------------------------------------------------------------- */

/* A thread drops from one block of random words at a time. WHOLE: rows are blocks of aligned elements. */
template <typename T, bool WHOLE> __global__ void __launch_bounds__(THREADS) dropout_kernel(struct dropout_args a)
{
    const int64_t blocks = (a.C + DROPOUT_BLOCK - 1) / DROPOUT_BLOCK;
    for (int64_t i = grid_thread(); i < a.M * blocks; i += grid_threads()) {
        const int64_t row = i / blocks, first = i % blocks * DROPOUT_BLOCK;
        const T *x = static_cast<const T *>(a.x) + row * a.C + first;
        T *y = static_cast<T *>(a.y) + row * a.C + first;
        uint32_t words[4];
        dropout_words(&a.dropout, a.dropout.tokens[row], static_cast<uint32_t>(first / DROPOUT_BLOCK), 0, words);
        if constexpr (WHOLE) {
            float values[DROPOUT_BLOCK];
            load(x, values);
#pragma unroll
            for (int e = 0; e < DROPOUT_BLOCK; e++)
                values[e] = dropout_keeps(&a.dropout, words, e) ? values[e] * a.dropout.scale : 0.0f;
            store(y, values);
        } else {
#pragma unroll
            for (int e = 0; e < DROPOUT_BLOCK; e++)
                if (first + e < a.C)
                    y[e] = rounded<T>(dropout_keeps(&a.dropout, words, e) ? to_float(x[e]) * a.dropout.scale : 0.0f);
        }
    }
}

} // namespace

void cuda_rope(struct stream *stream, const struct rope_args *a)
{
    ASSERT(a->R % 2 == 0 && a->R > 0 && a->R <= a->D);
    if (a->M == 0) return;
    dispatch(a->dtype, [&](auto type) {
        using T = decltype(type);
        const int64_t size = sizeof(T);
        const bool aligned = aligned16(a->x, a->ld * size, a->D * size, a->R / 2 * size, a->cos_table, a->sin_table);
        const auto kernel = a->pairs ? (aligned ? rope_kernel<T, VECTOR<T>, true> : rope_kernel<T, 1, true>)
                                     : (aligned ? rope_kernel<T, VECTOR<T>, false> : rope_kernel<T, 1, false>);
        unsigned x = threads_for(a->R / 2 / (aligned ? VECTOR<T> : 1));
        x = x < THREADS ? x : static_cast<unsigned>(THREADS);
        const unsigned heads = static_cast<unsigned>(a->heads), y = heads < THREADS / x ? heads : THREADS / x;
        const dim3 block(x, y, THREADS / (x * y) < 64 ? THREADS / (x * y) : 64);
        LAUNCH(stream, "rope", kernel, static_cast<unsigned>(ceil_div(a->M, block.z)), block, *a);
    });
}

void cuda_swap_heads(struct stream *stream, const struct swap_heads_args *a)
{
    const int64_t width = a->outer * a->inner * a->D + a->rest;
    dispatch(a->dtype, [&](auto type) {
        using T = decltype(type);
        const int64_t size = sizeof(T);
        launch_table<T>(stream, "swap_heads", swap_heads_kernel<T, VECTOR<T>>, swap_heads_kernel<T, 1>, *a,
                        a->M * width, aligned16(a->y, a->x, a->D * size, a->rest * size));
    });
}

void cuda_swiglu_fwd(struct stream *stream, const struct swiglu_fwd_args *a)
{
    ASSERT(a->limit > 0 ? !a->gelu : !a->interleaved);
    if (a->interleaved)
        swiglu_fwd<true, true>(stream, a);
    else if (a->limit > 0)
        swiglu_fwd<true, false>(stream, a);
    else
        swiglu_fwd<false, false>(stream, a);
}

void cuda_swiglu_bwd(struct stream *stream, const struct swiglu_bwd_args *a)
{
    dispatch(a->dtype, [&](auto type) {
        using T = decltype(type);
        launch_table<T>(stream, "swiglu_bwd", swiglu_bwd_kernel<T, VECTOR<T>>, swiglu_bwd_kernel<T, 1>, *a, a->M * a->F,
                        aligned16(a->dgate_up, a->dh, a->gate_up, a->F * static_cast<int64_t>(sizeof(T))));
    });
}

void cuda_gate_fwd(struct stream *stream, const struct gate_fwd_args *a)
{
    struct gate_fwd_args args = *a;
    args.ld_x = a->ld_x ? a->ld_x : a->C;
    dispatch(a->dtype, [&](auto type) {
        using T = decltype(type);
        const int64_t size = sizeof(T);
        launch_table<T>(stream, "gate_fwd", gate_fwd_kernel<T, VECTOR<T>>, gate_fwd_kernel<T, 1>, args, a->M * a->C,
                        aligned16(a->y, a->x, a->gate, a->C * size, a->ld_gate * size, args.ld_x * size));
    });
}

void cuda_gate_bwd(struct stream *stream, const struct gate_bwd_args *a)
{
    struct gate_bwd_args args = *a;
    args.ld_x = a->ld_x ? a->ld_x : a->C;
    dispatch(a->dtype, [&](auto type) {
        using T = decltype(type);
        const int64_t size = sizeof(T);
        const bool aligned =
            aligned16(a->dx, a->dgate, a->dy, a->x, a->gate, a->C * size, a->ld_gate * size, args.ld_x * size);
        launch_table<T>(stream, "gate_bwd", gate_bwd_kernel<T, VECTOR<T>>, gate_bwd_kernel<T, 1>, args, a->M * a->C,
                        aligned);
    });
}

void cuda_tanh_fwd(struct stream *stream, const struct tanh_fwd_args *a)
{
    dispatch(a->dtype, [&](auto type) {
        using T = decltype(type);
        map_elements(stream, "tanh_fwd", a->n, static_cast<T *>(a->y), tanh_of(), static_cast<const T *>(a->x));
    });
}

void cuda_tanh_bwd(struct stream *stream, const struct tanh_bwd_args *a)
{
    dispatch(a->dtype, [&](auto type) {
        using T = decltype(type);
        map_elements(stream, "tanh_bwd", a->n, static_cast<T *>(a->dx), tanh_gradient(), static_cast<const T *>(a->dy),
                     static_cast<const T *>(a->y));
    });
}

void cuda_add(struct stream *stream, const struct add_args *a)
{
    dispatch(a->dtype, [&](auto type) {
        using T = decltype(type);
        T *const y = static_cast<T *>(a->y);
        const T *const x = static_cast<const T *>(a->a), *const b = static_cast<const T *>(a->b),
                       *const factor = static_cast<const T *>(a->factor);
        if (!factor && b)
            map_elements(stream, "add", a->n, y, sum_of(), x, b);
        else if (b)
            map_elements(stream, "add", a->n, y, scaled_sum<T>{factor}, x, b);
        else
            map_elements(stream, "add", a->n, y, scaled_sum<T>{factor}, x);
    });
}

void cuda_dropout(struct stream *stream, const struct dropout_args *a)
{
    if (a->M == 0) return;
    const bool whole = a->C % DROPOUT_BLOCK == 0 && aligned16(a->x, a->y);
    dispatch(a->dtype, [&](auto type) {
        using T = decltype(type);
        LAUNCH(stream, "dropout", (whole ? dropout_kernel<T, true> : dropout_kernel<T, false>),
               grid_of_elements(stream, a->M * ceil_div(a->C, DROPOUT_BLOCK), 1), THREADS, *a);
    });
}

void cuda_cast(struct stream *stream, const struct cast_args *a)
{
    dispatch_pair(a->dst_dtype, a->src_dtype, [&](auto to, auto from) {
        map_elements(stream, "cast", a->n, static_cast<decltype(to) *>(a->dst), same_value(),
                     static_cast<const decltype(from) *>(a->src));
    });
}

void cuda_device_fill_noise(struct stream *stream, void *dst, enum dtype dtype, size_t count, uint32_t seed)
{
    dispatch(dtype, [&](auto type) {
        using T = decltype(type);
        const int64_t n = static_cast<int64_t>(count);
        LAUNCH(stream, "noise", noise_kernel<T>, grid_of_elements(stream, n, VECTOR<T>), THREADS, static_cast<T *>(dst),
               seed, n, whole_vectors<VECTOR<T>>(n, aligned16(dst)));
    });
}

void cuda_accumulate(struct stream *stream, const struct accumulate_args *a)
{
    ASSERT(!a->accumulate || a->scale == 1);
    dispatch_pair(a->dst_dtype, a->src_dtype, [&](auto to, auto from) {
        auto *const dst = static_cast<decltype(to) *>(a->dst);
        const auto *const src = static_cast<const decltype(from) *>(a->src);
        if (a->accumulate)
            map_elements(stream, "accumulate", a->n, dst, sum_of(), static_cast<const decltype(to) *>(dst), src);
        else
            map_elements(stream, "accumulate", a->n, dst, scaled{a->scale}, src);
    });
}

void cuda_sum_ranks(struct stream *stream, const struct sum_ranks_args *a)
{
    dispatch(a->dtype, [&](auto type) {
        using T = decltype(type);
        const int64_t row = a->n * static_cast<int64_t>(sizeof(T));
        ASSERT(a->out_dtype != DTYPE_F16);
        launch_elements<VECTOR<T>>(
            stream, "sum_ranks",
            (a->out_dtype == DTYPE_F32 ? sum_ranks_kernel<T, float> : sum_ranks_kernel<T, __nv_bfloat16>), *a, a->n,
            aligned16(a->out, a->own, a->inbox, row));
    });
}
CUDA_MODULE(pointwise, noise_kernel<float>)
