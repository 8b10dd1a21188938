/* ops_cuda_loss.cu: cross-entropy with its gradient in place.
 *
 * A block works on one row of logits at a time and reads it twice: once for the maximum and the sum of exponentials
 * together (each thread corrects its sum when its maximum grows), once for the gradient, which may overwrite it. The
 * number of blocks is limited so that their rows stay in the L2 cache between the two. Losses of rows go to the
 * workspace, double (M), and are added up by one block in an order that depends on M only.
 *
 * Where the gradient is narrower than the logits and lies over them, element j lands on the logits of element j / 2 or
 * j / 4, which another thread reads: the block goes from left to right in tiles, and a tile is written after the
 * barrier at which all threads have read it. Tiles further to the right are not affected. */
#include "gpu/cuda/cuda_kernels.cuh"

#include <float.h>

namespace
{

enum { THREADS = 512, WARPS = THREADS / WARP_SIZE, SUM_THREADS = 256 };

/* Every thread gets the maximum of x over the block. */
__device__ __forceinline__ float block_max(float x, float *slots)
{
    x = max_over_lanes(x);
    if (threadIdx.x % WARP_SIZE == 0)
        slots[threadIdx.x / WARP_SIZE] = x;
    __syncthreads();
    x = slots[0];
    for (int warp = 1; warp < WARPS; warp++)
        x = fmaxf(x, slots[warp]);
    return x;
}

/* Every thread gets the sum of x over the block. */
__device__ __forceinline__ float block_sum(float x, float *slots)
{
    x = sum_over_lanes(x, WARP_SIZE);
    if (threadIdx.x % WARP_SIZE == 0)
        slots[threadIdx.x / WARP_SIZE] = x;
    __syncthreads();
    x = 0;
    for (int warp = 0; warp < WARPS; warp++)
        x += slots[warp];
    return x;
}

struct softmax_sum {
    float highest, sum; /* sum of exp(x - highest) */
};

/* From logits to the values whose softmax is taken. */
struct logit_map {
    float scale, cap; /* cap 0: none */
};

__device__ __forceinline__ float logit_of(float x, struct logit_map map)
{
    const float z = x * map.scale;
    return map.cap > 0 ? map.cap * tanhf(z / map.cap) : z;
}

/* dz/dx for z = logit_of(x) */
__device__ __forceinline__ float slope_at(float z, struct logit_map map)
{
    const float t = map.cap > 0 ? z / map.cap : 0;
    return map.scale * (1 - t * t);
}

template <int V> __device__ __forceinline__ void softmax_add(struct softmax_sum *softmax, const float (&x)[V])
{
    float highest = softmax->highest;
#pragma unroll
    for (int v = 0; v < V; v++)
        highest = fmaxf(highest, x[v]);
    if (highest > softmax->highest) {
        softmax->sum *= expf(softmax->highest - highest);
        softmax->highest = highest;
    }
#pragma unroll
    for (int v = 0; v < V; v++)
        softmax->sum += expf(x[v] - highest);
}

template <int V>
__device__ __forceinline__ void to_gradient(float (&x)[V], struct logit_map map, float highest, float factor,
                                            float shift)
{
#pragma unroll
    for (int v = 0; v < V; v++) {
        const float z = logit_of(x[v], map);
        x[v] = (expf(z - highest) * factor - shift) * slope_at(z, map);
    }
}

/* The gradient of a row's first `whole` elements; all threads of the block call it. */
template <typename T, typename L, int V>
__device__ __forceinline__ void put_gradient(T *dlogits, const L *logits, int whole, struct logit_map map,
                                             float highest, float factor, float shift)
{
    const int first = static_cast<int>(threadIdx.x) * V, step = THREADS * V;
    float x[V];
    if (sizeof(T) == sizeof(L)) {
        for (int j = first; j < whole; j += step) {
            load(logits + j, x);
            to_gradient(x, map, highest, factor, shift);
            store(dlogits + j, x);
        }
        return;
    }
    float next[V];
    if (first < whole)
        load(logits + first, next);
    for (int tile = 0; tile < whole; tile += step) {
        const int j = tile + first;
#pragma unroll
        for (int v = 0; v < V; v++)
            x[v] = next[v];
        if (j + step < whole)
            load(logits + j + step, next);
        __syncthreads();
        if (j < whole) {
            to_gradient(x, map, highest, factor, shift);
            store(dlogits + j, x);
        }
    }
}

/* This thread's share of the sum of x - highest over a row. */
template <typename L, int V>
__device__ __forceinline__ float sum_below(const L *logits, int columns, int whole, struct logit_map map, float highest)
{
    float sum = 0;
    for (int j = static_cast<int>(threadIdx.x) * V; j < whole; j += THREADS * V) {
        float x[V];
        load(logits + j, x);
#pragma unroll
        for (int v = 0; v < V; v++)
            sum += logit_of(x[v], map) - highest;
    }
    const int rest = whole + static_cast<int>(threadIdx.x);
    return rest < columns ? sum + (logit_of(to_float(logits[rest]), map) - highest) : sum;
}

/* V elements at a time: 16 bytes of the narrower type. losses: (M) */
template <typename T, typename L, int V>
__global__ void __launch_bounds__(THREADS, 2) cross_entropy_kernel(struct cross_entropy_args a, double *losses)
{
    SHARED(float, slots, [3][WARPS]); /* used in turn: each is read before the barrier of the other */
    const int columns = static_cast<int>(a.V), whole = columns / V * V;
    const int padded = static_cast<int>(a.V_padded);
    const int rest = whole + static_cast<int>(threadIdx.x); /* this thread's element after the whole vectors */
    const struct logit_map map = {a.logit_scale, a.softcap};
    const float scale = a.loss_scale ? a.scale * *a.loss_scale : a.scale;
    const float shift = scale * a.smoothing / static_cast<float>(columns);
    for (int64_t i = blockIdx.x; i < a.M; i += gridDim.x) {
        const L *logits = static_cast<const L *>(a.logits) + i * a.ld_logits;
        T *dlogits = static_cast<T *>(a.dlogits) + (a.dlogits ? i * a.ld_dlogits : 0);
        const int target = a.targets[i];
        if (target < 0) {
            if (threadIdx.x == 0)
                losses[i] = 0;
            const float zeros[V] = {};
            for (int j = static_cast<int>(threadIdx.x) * V; j < whole && a.dlogits; j += THREADS * V)
                store(dlogits + j, zeros);
            if (rest < columns && a.dlogits)
                from_float(0, &dlogits[rest]);
            for (int j = columns + static_cast<int>(threadIdx.x); j < padded && a.dlogits; j += THREADS)
                from_float(0, &dlogits[j]);
            continue;
        }
        struct softmax_sum softmax = {-FLT_MAX, 0};
        const float logit = logit_of(to_float(logits[target]), map);
        float last[1] = {-FLT_MAX};
        for (int j = static_cast<int>(threadIdx.x) * V; j < whole; j += THREADS * V) {
            float x[V];
            load(logits + j, x);
#pragma unroll
            for (int v = 0; v < V; v++)
                x[v] = logit_of(x[v], map);
            softmax_add(&softmax, x);
        }
        if (rest < columns) {
            last[0] = logit_of(to_float(logits[rest]), map);
            softmax_add(&softmax, last);
        }
        const float highest = block_max(softmax.highest, slots[0]);
        const float sum = block_sum(softmax.sum * expf(softmax.highest - highest), slots[1]);
        float below = 0; /* the mean of the logits, less the highest */
        if (a.smoothing > 0)
            below = block_sum(sum_below<L, V>(logits, columns, whole, map, highest), slots[2]) /
                    static_cast<float>(columns);
        if (threadIdx.x == 0) {
            const double smoothing = static_cast<double>(a.smoothing);
            losses[i] = log(static_cast<double>(sum)) - smoothing * static_cast<double>(below) +
                        (1 - smoothing) * (static_cast<double>(highest) - static_cast<double>(logit));
        }
        if (a.dlogits) {
            put_gradient<T, L, V>(dlogits, logits, whole, map, highest, scale / sum, shift);
            if (rest < columns)
                from_float((expf(last[0] - highest) * (scale / sum) - shift) * slope_at(last[0], map), &dlogits[rest]);
            __syncthreads(); /* the target's element was written, the logits were read */
            for (int j = columns + static_cast<int>(threadIdx.x); j < padded; j += THREADS)
                from_float(0, &dlogits[j]);
            if (threadIdx.x == 0) { /* q - p, which may be tiny, from p in double */
                double p = exp(static_cast<double>(logit) - static_cast<double>(highest)) / static_cast<double>(sum);
                const double wanted = 1 - static_cast<double>(a.smoothing);
                from_float(static_cast<float>(static_cast<double>(scale) * (p - wanted) - static_cast<double>(shift)) *
                               slope_at(logit, map),
                           &dlogits[target]);
            }
        }
    }
}

/* *loss_sum += the sum of losses: every SUM_THREADS-th by one thread, then the threads' sums in order */
__global__ void __launch_bounds__(SUM_THREADS) sum_losses_kernel(double *loss_sum, const double *losses, int64_t M)
{
    SHARED(double, sums, [SUM_THREADS]);
    double sum = 0;
    for (int64_t i = threadIdx.x; i < M; i += SUM_THREADS)
        sum += losses[i];
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    sum = *loss_sum;
    for (int thread = 0; thread < SUM_THREADS; thread++)
        sum += sums[thread];
    *loss_sum = sum;
}

template <typename T, typename L> void cross_entropy_launch(struct stream *stream, const struct cross_entropy_args *a)
{
    constexpr int V = VECTOR < T >> VECTOR<L> ? VECTOR<T> : VECTOR<L>;
    const int64_t row_bytes = a->ld_logits * static_cast<int64_t>(sizeof(L));
    struct cuda_scratch scratch = cuda_scratch_of(stream);
    double *losses = cuda_scratch_take<double>(&scratch, a->M);
    unsigned grid = grid_of(stream, a->M, row_bytes > 128 * 1024 ? 1 : 2);
    bool aligned =
        aligned16(a->logits, a->dlogits, row_bytes, a->dlogits ? a->ld_dlogits * static_cast<int64_t>(sizeof(T)) : 0);
    LAUNCH(stream, "cross_entropy", (aligned ? cross_entropy_kernel<T, L, V> : cross_entropy_kernel<T, L, 1>), grid,
           THREADS, *a, losses);
    LAUNCH(stream, "sum_losses", sum_losses_kernel, 1, SUM_THREADS, a->loss_sum, losses, a->M);
}

template <typename T> void cross_entropy(struct stream *stream, const struct cross_entropy_args *a)
{
    if (a->logits_dtype == DTYPE_F32)
        cross_entropy_launch<T, float>(stream, a);
    else
        cross_entropy_launch<T, T>(stream, a);
}

} // namespace

void cuda_cross_entropy(struct stream *stream, const struct cross_entropy_args *a)
{
    ASSERT(a->V <= INT32_MAX / 2 && (a->logits_dtype == DTYPE_F32 || a->logits_dtype == a->dtype));
    if (a->M > 0)
        DISPATCH(a->dtype, cross_entropy, stream, a);
}
