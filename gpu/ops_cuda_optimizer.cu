/* ops_cuda_optimizer.cu: the sum of squares for gradient norms, and Adam. */
#include "gpu/cuda_kernels.cuh"

namespace
{

enum { THREADS = 256, WARPS = THREADS / WARP_SIZE, V = VECTOR<float> };

/* ---- sum of squares ---- */

enum { MAX_PARTS = 1024, PART_ELEMENTS = 4096 };

/* The sum over the block's threads, in an order of its own; thread 0 gets it. */
__device__ __forceinline__ double block_sum(double x, double *slots)
{
    x = sum_over_lanes(x, WARP_SIZE);
    if (threadIdx.x % WARP_SIZE == 0)
        slots[threadIdx.x / WARP_SIZE] = x;
    __syncthreads();
    x = 0;
    for (int warp = 0; warp < WARPS && threadIdx.x == 0; warp++)
        x += slots[warp];
    return x;
}

/* parts[block] = what the block's threads met. The grid's size depends on n only, so the order does too; how x is
 * aligned makes no difference to it. */
__global__ void __launch_bounds__(THREADS) sumsq_kernel(double *parts, const float *x, int64_t n, bool aligned)
{
    SHARED(double, slots, [WARPS]);
    double sum = 0;
    for (int64_t i = grid_thread() * V; i < n; i += grid_threads() * V) {
        float at[V] = {0};
        if (aligned && i + V <= n) {
            load(x + i, at);
        } else {
#pragma unroll
            for (int v = 0; v < V; v++)
                if (i + v < n)
                    at[v] = x[i + v];
        }
#pragma unroll
        for (int v = 0; v < V; v++)
            sum = fma(static_cast<double>(at[v]), static_cast<double>(at[v]), sum);
    }
    sum = block_sum(sum, slots);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(THREADS) sum_parts_kernel(double *out, const double *parts, int count)
{
    SHARED(double, slots, [WARPS]);
    double sum = 0;
    for (int part = static_cast<int>(threadIdx.x); part < count; part += THREADS)
        sum += parts[part];
    sum = block_sum(sum, slots);
    if (threadIdx.x == 0)
        *out = sum;
}

/* ---- Adam ---- */

struct adam_numbers {
    float decay, l2, lr, eps, beta1, rest1, beta2, rest2, inv_correction1, inv_root_correction2;
};

template <typename T, int N>
__device__ __forceinline__ void adam_at(const struct adam_args *a, const struct adam_numbers *k, float scale, int64_t i)
{
    float w[N], g[N], m[N], v[N];
    load(a->master + i, w);
    load(a->grad + i, g);
    load(a->m + i, m);
    load(a->v + i, v);
#pragma unroll
    for (int j = 0; j < N; j++) {
        g[j] = fmaf(k->l2, w[j], g[j] * scale);
        w[j] = fmaf(-k->decay, w[j], w[j]);
        m[j] = fmaf(k->beta1, m[j], k->rest1 * g[j]);
        v[j] = fmaf(k->beta2, v[j], k->rest2 * g[j] * g[j]);
        w[j] -= k->lr * (m[j] * k->inv_correction1) / fmaf(sqrtf(v[j]), k->inv_root_correction2, k->eps);
    }
    store(a->m + i, m);
    store(a->v + i, v);
    store(a->master + i, w);
    if (a->param)
        store(static_cast<T *>(a->param) + i, w);
}

/* A scale that is not finite skips the step: nothing is written. */
template <typename T>
__global__ void __launch_bounds__(THREADS) adam_kernel(struct adam_args a, struct adam_numbers k, int64_t whole)
{
    const float scale = *a.grad_scale;
    if (!isfinite(scale))
        return;
    for (int64_t i = grid_thread() * V; i < whole; i += grid_threads() * V)
        adam_at<T, V>(&a, &k, scale, i);
    for (int64_t i = whole + grid_thread(); i < a.n; i += grid_threads())
        adam_at<T, 1>(&a, &k, scale, i);
}

template <typename T> void adam(struct stream *stream, const struct adam_args *a)
{
    struct adam_numbers k;
    k.decay = a->adamw ? a->lr * a->weight_decay : 0;
    k.l2 = a->adamw ? 0 : a->weight_decay;
    k.lr = a->lr;
    k.eps = a->eps;
    k.beta1 = static_cast<float>(a->beta1);
    k.rest1 = static_cast<float>(1 - a->beta1);
    k.beta2 = static_cast<float>(a->beta2);
    k.rest2 = static_cast<float>(1 - a->beta2);
    k.inv_correction1 = static_cast<float>(1 / a->correction1);
    k.inv_root_correction2 = static_cast<float>(1 / sqrt(a->correction2));
    const int64_t whole = aligned16(a->master, a->grad, a->m, a->v, a->param) ? a->n / V * V : 0;
    LAUNCH(stream, "adam", adam_kernel<T>, grid_of(stream, ceil_div(a->n, THREADS * V), 8), THREADS, *a, k, whole);
}

} // namespace

size_t cuda_optimizer_workspace_bytes(void)
{
    return cuda_scratch_size(MAX_PARTS * sizeof(double));
}

size_t cuda_kernels_workspace_bytes(const struct cuda_device *device, const struct op_limits *limits)
{
    const size_t sizes[] = {cuda_embedding_workspace_bytes(limits), cuda_norm_workspace_bytes(limits),
                            cuda_loss_workspace_bytes(limits), cuda_optimizer_workspace_bytes()};
    size_t most = 0;
    (void)device;
    for (size_t size : sizes)
        most = size > most ? size : most;
    return most;
}

void cuda_sumsq(struct stream *stream, const struct sumsq_args *a)
{
    struct cuda_scratch scratch = cuda_scratch_of(stream);
    double *parts = cuda_scratch_take<double>(&scratch, MAX_PARTS);
    int64_t wanted = ceil_div(a->n, PART_ELEMENTS);
    const int count = static_cast<int>(wanted < MAX_PARTS ? wanted : static_cast<int64_t>(MAX_PARTS));
    if (count > 0)
        LAUNCH(stream, "sumsq", sumsq_kernel, count, THREADS, parts, a->x, a->n, aligned16(a->x));
    LAUNCH(stream, "sum_parts", sum_parts_kernel, 1, THREADS, a->out, parts, count);
}

void cuda_adam(struct stream *stream, const struct adam_args *a)
{
    if (a->n > 0)
        DISPATCH(a->param ? a->param_dtype : DTYPE_F32, adam, stream, a);
}
