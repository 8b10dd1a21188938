/* SPDX-License-Identifier: Apache-2.0 */
/* attention_cuda_decode.cu: attention of a few new tokens over a cache of keys and values, without a gradient. A first
 * kernel stores the new keys and values. In the second one a block computes one head of one query. Its warps take KEYS
 * keys in turn, each with a softmax of its own; lanes share the elements of a head, so that reads are contiguous. At
 * the end the block adds up the warps' sums, in their order.
 *
 * The sinks are those of attention of any kind. A row is what a head has of a token. blockDim.x neighbours in a warp
 * share it, and a block has blockDim.y. */
#include "gpu/cuda/cuda_kernels.cuh"

namespace
{

enum {
    THREADS = 256,
    WARPS = THREADS / WARP_SIZE,
    KEYS = 4, /* of a warp, under way at a time */
    STORE_PER_SM = 8,
};

template <typename T> __global__ void __launch_bounds__(THREADS) store_kernel(struct attention_decode_args a)
{
    const int64_t D = a.D, width = a.KV * D, count = a.M * width;
    for (int64_t i = grid_thread(); i < count; i += grid_threads()) {
        const int64_t row = i / width, column = i - row * width, kv = column / D, element = column - kv * D;
        const int64_t to = (kv * a.capacity + a.start + row) * D + element;
        static_cast<T *>(a.k_cache)[to] = static_cast<const T *>(a.k)[row * a.ld_k + column];
        static_cast<T *>(a.v_cache)[to] = static_cast<const T *>(a.v)[row * a.ld_v + column];
    }
}

/* A softmax under way, as a lane has it: `values` are its SLOTS elements of the sum of the weighted values. */
template <int SLOTS> struct decode_sums {
    float highest, sum, values[SLOTS];
};

/* Adds the weights of `count` scores (the same in all lanes) to the sums. */
template <int SLOTS, typename T>
__device__ __forceinline__ void add_keys(struct decode_sums<SLOTS> *s, const float (&scores)[KEYS], int count,
                                         const T *values, int D)
{
    float top = s->highest;
#pragma unroll
    for (int i = 0; i < KEYS; i++) top = i < count ? fmaxf(top, scores[i]) : top;
    const float keep = expf(s->highest - top); /* 0 at first, when highest is -infinity */
    s->sum *= keep;
#pragma unroll
    for (int slot = 0; slot < SLOTS; slot++) s->values[slot] *= keep;
#pragma unroll
    for (int i = 0; i < KEYS; i++) {
        const float weight = i < count ? expf(scores[i] - top) : 0;
        s->sum += weight;
#pragma unroll
        for (int slot = 0; slot < SLOTS; slot++) {
            const int d = lane_of_warp() + slot * WARP_SIZE;
            if (i < count && d < D) s->values[slot] += weight * to_float(values[static_cast<int64_t>(i) * D + d]);
        }
    }
    s->highest = top;
}

/* The score of a key, the same in all lanes. */
template <int SLOTS, typename T>
__device__ __forceinline__ float score_of(const float (&q)[SLOTS], const T *key, const struct attention_decode_args &a)
{
    float sum = 0;
#pragma unroll
    for (int slot = 0; slot < SLOTS; slot++) {
        const int d = lane_of_warp() + slot * WARP_SIZE;
        if (d < a.D) sum += q[slot] * to_float(key[d]);
    }
    sum = sum_over_lanes(sum, WARP_SIZE) * a.scale;
    return a.softcap > 0 ? a.softcap * tanhf(sum / a.softcap) : sum;
}

/* Writes the sum of what the block's warps have. */
template <int SLOTS, typename T> __device__ void finish(const struct decode_sums<SLOTS> &mine, T *out, int D)
{
    SHARED(float, values, [WARPS][SLOTS * WARP_SIZE]);
    SHARED(float, highest, [WARPS]);
    SHARED(float, sums, [WARPS]);
    const int warp = static_cast<int>(threadIdx.x) / WARP_SIZE, lane = lane_of_warp();
    if (lane == 0) {
        highest[warp] = mine.highest;
        sums[warp] = mine.sum;
    }
#pragma unroll
    for (int slot = 0; slot < SLOTS; slot++)
        if (lane + slot * WARP_SIZE < D) values[warp][lane + slot * WARP_SIZE] = mine.values[slot];
    __syncthreads();
    float top = highest[0], total = 0;
    for (int w = 1; w < WARPS; w++) top = fmaxf(top, highest[w]);
    for (int w = 0; w < WARPS; w++) total += sums[w] * expf(highest[w] - top);
    for (int d = static_cast<int>(threadIdx.x); d < D; d += THREADS) {
        float sum = 0;
        for (int w = 0; w < WARPS; w++) sum += values[w][d] * expf(highest[w] - top);
        from_float(sum / total, out + d);
    }
}

template <typename T, int SLOTS>
__global__ void __launch_bounds__(THREADS) decode_kernel(struct attention_decode_args a)
{
    const int D = static_cast<int>(a.D), warp = static_cast<int>(threadIdx.x) / WARP_SIZE;
    const int64_t h = blockIdx.x, row = blockIdx.y, position = a.start + row, head = h / (a.H / a.KV) * a.capacity * D;
    const T *q = static_cast<const T *>(a.q) + row * a.ld_q + h * D;
    const T *keys = static_cast<const T *>(a.k_cache) + head, *values = static_cast<const T *>(a.v_cache) + head;
    const int64_t first = a.window > 0 && position >= a.window ? position - a.window + 1 : 0;
    struct decode_sums<SLOTS> sums = {
    };
    const bool sink = a.sinks && warp == 0;
    sums.highest = sink ? to_float(static_cast<const T *>(a.sinks)[h]) : -INFINITY;
    sums.sum = sink;
    float query[SLOTS];
#pragma unroll
    for (int slot = 0; slot < SLOTS; slot++) {
        const int d = lane_of_warp() + slot * WARP_SIZE;
        query[slot] = d < D ? to_float(q[d]) : 0;
    }
    for (int64_t key = first + warp * KEYS; key <= position; key += WARPS * KEYS) {
        const int count = position + 1 - key < KEYS ? static_cast<int>(position + 1 - key) : KEYS;
        float scores[KEYS];
#pragma unroll
        for (int i = 0; i < KEYS; i++) scores[i] = i < count ? score_of(query, keys + (key + i) * D, a) : 0;
        add_keys(&sums, scores, count, values + key * D, D);
    }
    finish(sums, static_cast<T *>(a.out) + row * a.ld_o + h * D, D);
}

/* ---- sinks --------------------------------------------------------------- */

template <typename T, int V>
__global__ void __launch_bounds__(THREADS) sink_fwd_kernel(struct attention_sink_fwd_args a)
{
    const unsigned row = blockIdx.x * blockDim.y + threadIdx.y, heads = static_cast<unsigned>(a.H);
    const int64_t m = row / heads, h = row % heads;
    const bool mine = m < a.M;
    const float lse = mine ? a.lse[h * a.M + m] : 0, sink = to_float(static_cast<const T *>(a.sinks)[h]);
    T *out = static_cast<T *>(a.out) + m * a.ld_o + h * a.D;
    for (int64_t d = threadIdx.x * V; mine && d < a.D; d += blockDim.x * V) {
        float x[V];
        load(out + d, x);
#pragma unroll
        for (int v = 0; v < V; v++) x[v] *= sigmoid(lse - sink);
        store(out + d, x);
    }
    __syncwarp();
    if (mine && threadIdx.x == 0) a.lse[h * a.M + m] = fmaxf(lse, sink) + log1pf(expf(-fabsf(sink - lse)));
}

/* gradients (H, M): what each row adds to dsinks. */
template <typename T, int V>
__global__ void __launch_bounds__(THREADS) sink_bwd_kernel(struct attention_sink_bwd_args a, float *gradients)
{
    const unsigned row = blockIdx.x * blockDim.y + threadIdx.y, heads = static_cast<unsigned>(a.H);
    const int64_t m = row / heads, h = row % heads, first = m * a.ld_o + h * a.D;
    const bool mine = m < a.M;
    float sum = 0;
    for (int64_t d = threadIdx.x * V; mine && d < a.D; d += blockDim.x * V) {
        float out[V], dout[V];
        load(static_cast<const T *>(a.out) + first + d, out);
        load(static_cast<const T *>(a.dout) + first + d, dout);
#pragma unroll
        for (int v = 0; v < V; v++) sum = fmaf(out[v], dout[v], sum);
    }
    sum = sum_over_lanes(sum, static_cast<int>(blockDim.x));
    if (mine && threadIdx.x == 0)
        gradients[h * a.M + m] = -expf(to_float(static_cast<const T *>(a.sinks)[h]) - a.lse[h * a.M + m]) * sum;
}

/* A block adds up what the rows of a head add. */
__global__ void __launch_bounds__(THREADS) sink_sum_kernel(struct attention_sink_bwd_args a, const float *gradients)
{
    SHARED(float, slots, [WARPS]);
    float sum = 0, *to = a.dsinks + blockIdx.x;
    for (int64_t m = threadIdx.x; m < a.M; m += THREADS) sum += gradients[blockIdx.x * a.M + m];
    sum = block_sum<THREADS>(sum, slots);
    if (threadIdx.x == 0) *to = a.accumulate ? *to + sum : sum;
}

/* Calls launch(T(), width<V>(), grid, block). */
template <typename Args, typename Launch> void dispatch_sinks(const Args *a, const void *dout, Launch launch)
{
    ASSERT(a->M * a->H <= INT32_MAX / 2);
    dispatch(a->dtype, [&](auto type) {
        using T = decltype(type);
        const int64_t size = sizeof(T);
        auto by = [&](auto V) {
            const unsigned x = std::min(threads_for(a->D / V.value), static_cast<unsigned>(WARP_SIZE)), y = THREADS / x;
            if (a->M) launch(type, V, static_cast<unsigned>(ceil_div(a->M * a->H, y)), dim3(x, y));
        };
        if (aligned16(a->out, dout, a->ld_o * size, a->D * size))
            by(width<VECTOR<T>>());
        else
            by(width<1>());
    });
}

} // namespace

void cuda_attention_decode(struct stream *stream, const struct attention_decode_args *args)
{
    ASSERT(args->start >= 0 && args->start + args->M <= args->capacity && args->D <= CUDA_MAX_HEAD_DIM);
    if (args->M == 0) return;
    const dim3 queries(static_cast<unsigned>(args->H), static_cast<unsigned>(args->M));
    dispatch(args->dtype, [&](auto type) {
        using T = decltype(type);
        LAUNCH(stream, "attention_decode", store_kernel<T>,
               grid_of(stream, ceil_div(args->M * args->KV * args->D, THREADS), STORE_PER_SM), THREADS, *args);
        if (!args->q) return;
        if (args->D <= 256)
            LAUNCH(stream, "attention_decode", (decode_kernel<T, 256 / WARP_SIZE>), queries, THREADS, *args);
        else
            LAUNCH(stream, "attention_decode", (decode_kernel<T, CUDA_MAX_HEAD_DIM / WARP_SIZE>), queries, THREADS,
                   *args);
    });
}

void cuda_attention_sink_fwd(struct stream *stream, const struct attention_sink_fwd_args *a)
{
    dispatch_sinks(a, nullptr, [&](auto type, auto V, unsigned grid, dim3 block) {
        LAUNCH(stream, "attention_sink_fwd", (sink_fwd_kernel<decltype(type), decltype(V)::value>), grid, block, *a);
    });
}

void cuda_attention_sink_bwd(struct stream *stream, const struct attention_sink_bwd_args *a)
{
    struct cuda_scratch scratch = cuda_scratch_of(stream);
    float *gradients = cuda_scratch_take<float>(&scratch, a->H * a->M);
    dispatch_sinks(a, a->dout, [&](auto type, auto V, unsigned grid, dim3 block) {
        LAUNCH(stream, "attention_sink_bwd", (sink_bwd_kernel<decltype(type), decltype(V)::value>), grid, block, *a,
               gradients);
    });
    LAUNCH(stream, "attention_sink_bwd, sum", sink_sum_kernel, static_cast<unsigned>(a->H), THREADS, *a, gradients);
}
CUDA_MODULE(attention_decode, store_kernel<float>)
