/* SPDX-License-Identifier: Apache-2.0 */
/* ops_cuda_loss.cu: cross-entropy with its gradient in place.
 *
 * A block reads a row of logits once, for the maximum and the sum of exponentials together (a thread corrects its sum
 * when its maximum grows), and keeps it in shared memory for the gradient, which may overwrite it. Of a row that does
 * not fit the rest is read again: few enough blocks run for it to stay in the L2 cache. A multiprocessor runs two
 * blocks of 512 threads, so that one reads while the other computes; a row of which it cannot keep two has 1024
 * threads. Threads per row follow from its bytes alone, and what is kept changes no bit.
 *
 * Losses of rows go to the workspace, double (M), and are added up by one block in an order that depends on M only.
 *
 * A gradient that is narrower than the logits and lies over them puts element j on the logits of element j / 2, which
 * another thread reads: what is read again goes from left to right in tiles, each written after a barrier. */
#include "gpu/cuda/cuda_kernels.cuh"

#include <float.h>

namespace
{

enum {
    NARROW = 512, /* threads of a row of at most NARROW_ROW bytes; of longer ones */
    WIDE = 1024,
    NARROW_ROW = 112 << 10, /* an H100 keeps two of them */
    RESIDENT = 1024,        /* threads that a multiprocessor has room for: 64 registers each */
    MAX_WARPS = WIDE / WARP_SIZE,
    SUM_THREADS = 256,
    OTHER_SHARED = 2048, /* bytes of a block's shared memory that hold no logits; 1 KiB is CUDA's */
};

/* Every thread gets the maximum of x over the block. */
template <int THREADS> __device__ __forceinline__ float block_max(float x, float *slots)
{
    x = max_over_lanes(x);
    if (threadIdx.x % WARP_SIZE == 0) slots[threadIdx.x / WARP_SIZE] = x;
    __syncthreads();
    x = slots[0];
    for (int warp = 1; warp < THREADS / WARP_SIZE; warp++) x = fmaxf(x, slots[warp]);
    return x;
}

struct softmax_sum {
    float highest, sum; /* sum of exp(x - highest) */
};

/* From logits to the values whose softmax is taken. */
struct logit_map {
    float scale, cap; /* cap 0: none */
};

template <int V> __device__ __forceinline__ void to_logits(float (&x)[V], struct logit_map map)
{
#pragma unroll
    for (int v = 0; v < V; v++) x[v] *= map.scale;
    if (map.cap > 0) {
#pragma unroll
        for (int v = 0; v < V; v++) x[v] = map.cap * tanhf(x[v] / map.cap);
    }
}

/* Gradients by z to gradients by x, where z are the logits of x. */
template <int V>
__device__ __forceinline__ void loss_times_slope(float (&gradient)[V], const float (&z)[V], struct logit_map map)
{
#pragma unroll
    for (int v = 0; v < V; v++) gradient[v] *= map.scale;
    if (map.cap > 0) {
#pragma unroll
        for (int v = 0; v < V; v++) gradient[v] *= 1 - z[v] / map.cap * (z[v] / map.cap);
    }
}

/* exp(x) of a difference x <= 0 of logits stored as L. __expf's error, 2^-21, is small next to 16 bits. */
template <typename L> __device__ __forceinline__ float exp_of(float x)
{
    return sizeof(L) == 2 ? __expf(x) : expf(x);
}

template <typename L, int V>
__device__ __forceinline__ void softmax_add(struct softmax_sum *softmax, const float (&x)[V])
{
    float highest = softmax->highest;
#pragma unroll
    for (int v = 0; v < V; v++) highest = fmaxf(highest, x[v]);
    if (highest > softmax->highest) {
        softmax->sum *= exp_of<L>(softmax->highest - highest);
        softmax->highest = highest;
    }
#pragma unroll
    for (int v = 0; v < V; v++) softmax->sum += exp_of<L>(x[v] - highest);
}

/* What a thread finds in its share of a row. */
struct row_share {
    struct softmax_sum softmax;
    float total; /* of the logits, for smoothed labels */
};

/* Reads this thread's share of a row's first `whole` elements, several loads at a time; `held` stay in `kept`. */
template <typename L, int V, int THREADS>
__device__ __forceinline__ void loss_read_row(struct row_share *share, const L *logits, L *kept, int whole, int held,
                                              struct logit_map map, bool smooth)
{
    constexpr int P = ACCESS<L, V>, LOADS = P == V ? 3 : 2, STEP = THREADS * V;
    for (int tile = static_cast<int>(threadIdx.x) * V; tile < whole; tile += LOADS * STEP) {
        pack<L, P> raw[LOADS][V / P];
#pragma unroll
        for (int k = 0; k < LOADS; k++)
#pragma unroll
            for (int p = 0; p < V / P; p++)
                if (tile + k * STEP < whole) {
                    raw[k][p] = load_pack<P>(logits + tile + k * STEP + p * P);
                    keep_packed(&raw[k][p]);
                }
#pragma unroll
        for (int k = 0; k < LOADS; k++) {
            const int j = tile + k * STEP;
            float x[V];
            if (j >= whole) continue;
#pragma unroll
            for (int v = 0; v < V; v++) x[v] = to_float(raw[k][v / P].at[v % P]);
#pragma unroll
            for (int p = 0; p < V / P; p++)
                if (j < held) store_pack(kept + j + p * P, raw[k][p]);
            to_logits(x, map);
            softmax_add<L>(&share->softmax, x);
#pragma unroll
            for (int v = 0; v < V && smooth; v++) share->total += x[v];
        }
    }
}

/* What turns logits into gradients. */
struct row_gradient {
    struct logit_map map;
    float highest, factor, shift;
};

template <typename L, int V> __device__ __forceinline__ void to_gradient(float (&x)[V], const struct row_gradient &row)
{
    float z[V];
    to_logits(x, row.map);
#pragma unroll
    for (int v = 0; v < V; v++) {
        z[v] = x[v];
        x[v] = exp_of<L>(z[v] - row.highest) * row.factor - row.shift;
    }
    loss_times_slope(x, z, row.map);
}

/* The gradient of a row's first `whole` elements; the whole block calls it. Reads what is not kept one vector ahead. */
template <typename T, typename L, int V, int THREADS>
__device__ __forceinline__ void loss_put_gradient(T *dlogits, const L *logits, const L *kept, int whole, int held,
                                                  const struct row_gradient &row)
{
    constexpr int STEP = THREADS * V;
    const int first = static_cast<int>(threadIdx.x) * V;
    float x[V], next[V];
    for (int j = first; j < held; j += STEP) {
        load(kept + j, x);
        to_gradient<L>(x, row);
        store(dlogits + j, x);
    }
    int tile = held / STEP * STEP;
    if (tile + first >= held && tile + first < whole) load(logits + tile + first, next);
    for (; tile < whole; tile += STEP) {
        const int j = tile + first;
#pragma unroll
        for (int v = 0; v < V; v++) x[v] = next[v];
        if (j + STEP < whole) load(logits + j + STEP, next);
        if (sizeof(T) != sizeof(L)) __syncthreads();
        if (j >= held && j < whole) {
            to_gradient<L>(x, row);
            store(dlogits + j, x);
        }
    }
}

/* The gradient of a row that does not count. */
template <typename T, int V, int THREADS>
__device__ __forceinline__ void loss_put_zeros(T *dlogits, int columns, int whole, int padded)
{
    const float zeros[V] = {};
    for (int j = static_cast<int>(threadIdx.x) * V; j < whole; j += THREADS * V) store(dlogits + j, zeros);
    for (int j = whole + static_cast<int>(threadIdx.x); j < (padded > columns ? padded : columns); j += THREADS)
        from_float(0, &dlogits[j]);
}

/* The factor of a row's gradient. */
__device__ __forceinline__ float scale_of_row(const struct cross_entropy_args &a, int64_t i)
{
    float scale = a.step_scale ? a.scale * *a.step_scale : a.scale;
    if (a.loss_scale) scale *= *a.loss_scale;
    return a.row_scale ? scale * a.row_scale[i] : scale;
}

/* The target's gradient, q - p, which may be tiny, from p in double. */
template <typename T>
__device__ __forceinline__ void loss_put_target(T *dlogits, float logit, float sum, const struct row_gradient &row,
                                                float scale, float smoothing)
{
    const double p = exp(static_cast<double>(logit) - static_cast<double>(row.highest)) / static_cast<double>(sum);
    const double wanted = 1 - static_cast<double>(smoothing);
    const float z[1] = {logit};
    float gradient[1] = {
        static_cast<float>(static_cast<double>(scale) * (p - wanted) - static_cast<double>(row.shift))};
    loss_times_slope(gradient, z, row.map);
    from_float(gradient[0], dlogits);
}

/* The loss of a row. `below`: the mean of its logits, less the highest. */
__device__ __forceinline__ double row_loss(float sum, float highest, float logit, float below, float smoothing)
{
    const double smooth = static_cast<double>(smoothing);
    return log(static_cast<double>(sum)) - smooth * static_cast<double>(below) +
           (1 - smooth) * (static_cast<double>(highest) - static_cast<double>(logit));
}

/* V elements at a time: 16 bytes of the narrower type. losses: (M). Of a row the first `held` elements, whole vectors,
 * stay in the dynamic shared memory. */
template <typename T, typename L, int V, int THREADS>
__global__ void __launch_bounds__(THREADS, RESIDENT / THREADS)
    cross_entropy_kernel(struct cross_entropy_args a, double *losses, int held)
{
    SHARED(float, slots, [3][MAX_WARPS]); /* used in turn: each is read before the barrier of the other */
    DYN_SHARED(L, kept);
    const int columns = static_cast<int>(a.V), whole = columns / V * V;
    const int padded = static_cast<int>(a.V_padded);
    const int rest = whole + static_cast<int>(threadIdx.x); /* this thread's element after the whole vectors */
    struct row_gradient row = {{a.logit_scale, a.softcap}, 0, 0, 0};
    for (int64_t i = blockIdx.x; i < a.M; i += gridDim.x) {
        const L *logits = static_cast<const L *>(a.logits) + i * a.ld_logits;
        T *dlogits = static_cast<T *>(a.dlogits) + (a.dlogits ? i * a.ld_dlogits : 0);
        const int target = a.targets[i];
        if (target < 0) {
            if (threadIdx.x == 0) losses[i] = 0;
            if (a.dlogits) loss_put_zeros<T, V, THREADS>(dlogits, columns, whole, padded);
            continue;
        }
        struct row_share share = {{-FLT_MAX, 0}, 0};
        float logit[1] = {0}, last[1] = {0};
        if (threadIdx.x == 0) {
            logit[0] = to_float(logits[target]);
            to_logits(logit, row.map);
        }
        loss_read_row<L, V, THREADS>(&share, logits, kept, whole, held, row.map, a.smoothing > 0);
        if (rest < columns) {
            float z[1] = {to_float(logits[rest])};
            last[0] = z[0];
            to_logits(z, row.map);
            softmax_add<L>(&share.softmax, z);
            share.total += z[0];
        }
        row.highest = block_max<THREADS>(share.softmax.highest, slots[0]);
        const float sum =
            block_sum<THREADS>(share.softmax.sum * exp_of<L>(share.softmax.highest - row.highest), slots[1]);
        float below = 0; /* the mean of the logits, less the highest */
        if (a.smoothing > 0)
            below = block_sum<THREADS>(share.total, slots[2]) / static_cast<float>(columns) - row.highest;
        if (threadIdx.x == 0) losses[i] = row_loss(sum, row.highest, logit[0], below, a.smoothing);
        if (a.dlogits) {
            const float scale = scale_of_row(a, i);
            row.factor = scale / sum;
            row.shift = scale * a.smoothing / static_cast<float>(columns);
            loss_put_gradient<T, L, V, THREADS>(dlogits, logits, kept, whole, held, row);
            if (rest < columns) {
                to_gradient<L>(last, row);
                from_float(last[0], &dlogits[rest]);
            }
            __syncthreads(); /* the target's element was written, the logits were read */
            for (int j = columns + static_cast<int>(threadIdx.x); j < padded; j += THREADS) from_float(0, &dlogits[j]);
            if (threadIdx.x == 0) loss_put_target(&dlogits[target], logit[0], sum, row, scale, a.smoothing);
        }
    }
}

template <typename L> __device__ __forceinline__ float logit_at(const L *logits, int j, struct logit_map map)
{
    float z[1] = {to_float(logits[j])};
    to_logits(z, map);
    return z[0];
}

/* Rows whose loss is minus the logit of the target. */
template <typename T, typename L>
__global__ void __launch_bounds__(NARROW) linear_loss_kernel(struct cross_entropy_args a, double *losses)
{
    const struct logit_map map = {a.logit_scale, a.softcap};
    const int columns = static_cast<int>(a.V), padded = static_cast<int>(a.V_padded);
    for (int64_t i = blockIdx.x; i < a.M; i += gridDim.x) {
        const int target = a.targets[i];
        float z[1] = {0}, gradient[1] = {-scale_of_row(a, i)};
        if (target >= 0) z[0] = logit_at(static_cast<const L *>(a.logits) + i * a.ld_logits, target, map);
        if (threadIdx.x == 0) losses[i] = static_cast<double>(-z[0]);
        if (!a.dlogits) continue;
        T *dlogits = static_cast<T *>(a.dlogits) + i * a.ld_dlogits;
        __syncthreads(); /* the logit was read */
        loss_put_zeros<T, 1, NARROW>(dlogits, columns, columns, padded);
        __syncthreads();
        loss_times_slope(gradient, z, map);
        if (threadIdx.x == 0 && target >= 0) from_float(gradient[0], &dlogits[target]);
    }
}

/* What a row with a teacher adds up. */
struct distill_sums {
    float highest, total, cool, best, norm;
};

/* The place of `id` among the `count` tokens of a teacher, which rise, or of the first one above it. */
__device__ __forceinline__ int64_t teacher_place(const int32_t *ids, int64_t count, int id)
{
    int64_t low = 0, high = count;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (ids[middle] < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The gradient of a row with a teacher, in tiles from left to right: it may lie over the logits. */
template <typename T, typename L>
__device__ void put_distilled_gradient(const struct cross_entropy_args &a, T *dlogits, const L *logits, int64_t i,
                                       float scale, const struct distill_sums &sums)
{
    const struct logit_map map = {a.logit_scale, a.softcap};
    const int32_t *ids = a.teacher_ids + i * a.K;
    const int columns = static_cast<int>(a.V), padded = static_cast<int>(a.V_padded), target = a.targets[i];
    const float cooler = 1 / a.temperature, of_hard = (1 - a.alpha) * scale, of_soft = a.alpha * a.temperature * scale;
    for (int tile = 0; tile < columns; tile += NARROW) {
        const int j = tile + static_cast<int>(threadIdx.x);
        float gradient[1] = {0};
        if (j < columns) {
            const float z[1] = {logit_at(logits, j, map)};
            const int64_t k = teacher_place(ids, a.K, j);
            const bool known = k < a.K && ids[k] == j;
            const float t = known ? expf((a.teacher_logps[i * a.K + k] - sums.best) * cooler) / sums.norm : 0;
            const float p = expf(z[0] - sums.highest) / sums.total - (j == target ? 1.0f : 0.0f);
            gradient[0] = of_hard * p + of_soft * (expf((z[0] - sums.highest) * cooler) / sums.cool - t);
            loss_times_slope(gradient, z, map);
        }
        __syncthreads(); /* the tile was read */
        if (j < columns) from_float(gradient[0], &dlogits[j]);
        __syncthreads();
    }
    for (int j = columns + static_cast<int>(threadIdx.x); j < padded; j += NARROW) from_float(0, &dlogits[j]);
}

/* Rows with a teacher. */
template <typename T, typename L>
__global__ void __launch_bounds__(NARROW, 1) distill_kernel(struct cross_entropy_args a, double *losses)
{
    SHARED(float, slots, [6][MAX_WARPS]);
    const struct logit_map map = {a.logit_scale, a.softcap};
    const int columns = static_cast<int>(a.V), padded = static_cast<int>(a.V_padded),
              first = static_cast<int>(threadIdx.x);
    const float cooler = 1 / a.temperature;
    for (int64_t i = blockIdx.x; i < a.M; i += gridDim.x) {
        const L *logits = static_cast<const L *>(a.logits) + i * a.ld_logits;
        T *dlogits = static_cast<T *>(a.dlogits) + (a.dlogits ? i * a.ld_dlogits : 0);
        const float *logps = a.teacher_logps + i * a.K;
        if (a.targets[i] < 0) {
            if (first == 0) losses[i] = 0;
            if (a.dlogits) loss_put_zeros<T, 1, NARROW>(dlogits, columns, columns, padded);
            continue;
        }
        struct distill_sums sums = {-FLT_MAX, 0, 0, -FLT_MAX, 0};
        float kl = 0;
        for (int j = first; j < columns; j += NARROW) sums.highest = fmaxf(sums.highest, logit_at(logits, j, map));
        for (int64_t k = first; k < a.K; k += NARROW) sums.best = fmaxf(sums.best, logps[k]);
        sums.highest = block_max<NARROW>(sums.highest, slots[0]);
        sums.best = block_max<NARROW>(sums.best, slots[1]);
        for (int j = first; j < columns; j += NARROW) {
            const float below = logit_at(logits, j, map) - sums.highest;
            sums.total += expf(below);
            sums.cool += expf(below * cooler);
        }
        for (int64_t k = first; k < a.K; k += NARROW) sums.norm += expf((logps[k] - sums.best) * cooler);
        sums.total = block_sum<NARROW>(sums.total, slots[2]);
        sums.cool = block_sum<NARROW>(sums.cool, slots[3]);
        sums.norm = block_sum<NARROW>(sums.norm, slots[4]);
        for (int64_t k = first; k < a.K; k += NARROW) {
            const float logp = (logps[k] - sums.best) * cooler - logf(sums.norm);
            const float below = logit_at(logits, a.teacher_ids[i * a.K + k], map) - sums.highest;
            kl += expf(logp) * (logp - below * cooler + logf(sums.cool));
        }
        kl = block_sum<NARROW>(kl, slots[5]);
        if (first == 0)
            losses[i] = static_cast<double>(
                (1 - a.alpha) * (logf(sums.total) + sums.highest - logit_at(logits, a.targets[i], map)) +
                a.alpha * a.temperature * a.temperature * kl);
        __syncthreads(); /* the target was read */
        if (a.dlogits) put_distilled_gradient(a, dlogits, logits, i, scale_of_row(a, i), sums);
    }
}

/* *loss_sum += the sum of losses: every SUM_THREADS-th by one thread, then the threads' sums in order */
__global__ void __launch_bounds__(SUM_THREADS)
    sum_losses_kernel(double *loss_sum, const double *losses, float *row_losses, int64_t M)
{
    SHARED(double, sums, [SUM_THREADS]);
    double sum = 0;
    for (int64_t i = threadIdx.x; i < M; i += SUM_THREADS) {
        sum += losses[i];
        if (row_losses) row_losses[i] = static_cast<float>(losses[i]);
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x != 0) return;
    sum = *loss_sum;
    for (int thread = 0; thread < SUM_THREADS; thread++) sum += sums[thread];
    *loss_sum = sum;
}

/* The elements of a row that a block keeps in shared memory if `blocks` of them share a multiprocessor. */
template <typename L> int elements_to_keep(struct cuda_device *cuda, int64_t whole, int vector, int blocks)
{
    int block = 0, multiprocessor = 0;
    cuda_check(cuda, cudaDeviceGetAttribute(&block, cudaDevAttrMaxSharedMemoryPerBlockOptin, cuda->index),
               "cross_entropy");
    cuda_check(cuda, cudaDeviceGetAttribute(&multiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor, cuda->index),
               "cross_entropy");
    multiprocessor /= blocks;
    const int bytes = (block < multiprocessor ? block : multiprocessor) - OTHER_SHARED;
    const int most = bytes > 0 ? bytes / static_cast<int>(sizeof(L)) / vector * vector : 0;
    return whole < most ? static_cast<int>(whole) : most;
}

template <typename T, typename L, int V, int THREADS>
void cross_entropy_rows(struct stream *stream, const struct cross_entropy_args *a, double *losses)
{
    constexpr int BLOCKS = RESIDENT / THREADS;
    const int held = a->dlogits ? elements_to_keep<L>(cuda_device_of(stream), a->V / V * V, V, BLOCKS) : 0;
    LAUNCH_SHARED(stream, "cross_entropy", (cross_entropy_kernel<T, L, V, THREADS>), grid_of(stream, a->M, BLOCKS),
                  THREADS, static_cast<size_t>(held) * sizeof(L), *a, losses, held);
}

template <typename T, typename L>
void cross_entropy(struct stream *stream, const struct cross_entropy_args *a, double *losses)
{
    constexpr int V = std::max(VECTOR<T>, VECTOR<L>);
    if (a->K || a->linear) {
        LAUNCH(stream, "cross_entropy", (a->K ? distill_kernel<T, L> : linear_loss_kernel<T, L>),
               grid_of(stream, a->M, RESIDENT / NARROW), NARROW, *a, losses);
        return;
    }
    const bool narrow = a->V * static_cast<int64_t>(sizeof(L)) <= NARROW_ROW;
    const bool aligned = aligned16(a->logits, a->dlogits, a->ld_logits * static_cast<int64_t>(sizeof(L)),
                                   a->dlogits ? a->ld_dlogits * static_cast<int64_t>(sizeof(T)) : 0);
    if (aligned && narrow)
        cross_entropy_rows<T, L, V, NARROW>(stream, a, losses);
    else if (aligned)
        cross_entropy_rows<T, L, V, WIDE>(stream, a, losses);
    else if (narrow)
        cross_entropy_rows<T, L, 1, NARROW>(stream, a, losses);
    else
        cross_entropy_rows<T, L, 1, WIDE>(stream, a, losses);
}

} // namespace

void cuda_cross_entropy(struct stream *stream, const struct cross_entropy_args *a)
{
    ASSERT(a->V <= INT32_MAX / 2 && (a->logits_dtype == DTYPE_F32 || a->logits_dtype == a->dtype));
    if (a->M == 0) return;
    struct cuda_scratch scratch = cuda_scratch_of(stream);
    double *losses = cuda_scratch_take<double>(&scratch, a->M);
    dispatch(a->dtype, [&](auto type) {
        using T = decltype(type);
        if (a->logits_dtype == DTYPE_F32)
            cross_entropy<T, float>(stream, a, losses);
        else
            cross_entropy<T, T>(stream, a, losses);
    });
    LAUNCH(stream, "sum_losses", sum_losses_kernel, 1, SUM_THREADS, a->loss_sum, losses, a->row_losses, a->M);
}
CUDA_MODULE(loss, sum_losses_kernel)
