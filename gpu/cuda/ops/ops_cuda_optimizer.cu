/* SPDX-License-Identifier: Apache-2.0 */
/* ops_cuda_optimizer.cu: the optimizer step: sums of squares for the gradient norm, the decision, Adam, Lion and SGD,
 * and the search for the first value that is not finite. */
#include "core/quantization/dynamic_map.h"
#include "gpu/cuda/cuda_kernels.cuh"
#include "gpu/decide_step.h"

namespace
{

enum { THREADS = ELEMENT_THREADS, WARPS = THREADS / WARP_SIZE, V = VECTOR<float> };

/* ---- sum of squares ------------------------------------------------------ */

enum { MAX_PARTS = CUDA_SUM_PARTS, PART_ELEMENTS = 4096 };

/* Blocks that n elements are read by. */
int sumsq_parts_of(int64_t n)
{
    const int64_t wanted = ceil_div(n, PART_ELEMENTS);
    return static_cast<int>(wanted < MAX_PARTS ? wanted : static_cast<int64_t>(MAX_PARTS));
}

/* parts[block] = the sum of the squares that the block reads. Grid and order depend on n only, not on x's alignment. */
template <typename T>
__global__ void __launch_bounds__(THREADS) sumsq_kernel(double *parts, const T *x, int64_t n, bool aligned)
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
                if (i + v < n) at[v] = to_float(x[i + v]);
        }
#pragma unroll
        for (int v = 0; v < V; v++) sum = fma(static_cast<double>(at[v]), static_cast<double>(at[v]), sum);
    }
    sum = block_sum<THREADS>(sum, slots);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(THREADS) sumsq_parts_kernel(double *out, const double *parts, int count)
{
    SHARED(double, slots, [WARPS]);
    double sum = 0;
    for (int part = static_cast<int>(threadIdx.x); part < count; part += THREADS) sum += parts[part];
    sum = block_sum<THREADS>(sum, slots);
    if (threadIdx.x == 0) *out = sum;
}

/* ---- the decision -------------------------------------------------------- */

/* One block: each thread sums a column of reports over the ranks, and thread 0 adds those sums in order. */
__global__ void __launch_bounds__(THREADS) decide_step_kernel(struct decide_step_args a)
{
    SHARED(double, sums, [THREADS]);
    const int row = a.units + 1, thread = static_cast<int>(threadIdx.x);
    double total = 0;
    int bad_unit = -1;
    for (int base = 0; base < a.units; base += THREADS) {
        double sum = 0;
        for (int r = 0; r < a.world && base + thread < a.units; r++)
            sum += a.reports[static_cast<int64_t>(r) * row + base + thread];
        sums[thread] = sum;
        __syncthreads();
        for (int u = 0; u < THREADS && base + u < a.units && thread == 0; u++) {
            total += sums[u];
            if (bad_unit < 0 && !isfinite(total)) bad_unit = base + u;
        }
        __syncthreads();
    }
    if (thread == 0) decide_by_sum(&a, total, bad_unit);
}

/* ---- the search ---------------------------------------------------------- */

/* The minimum over the block's threads; thread 0 gets it. */
__device__ __forceinline__ int64_t optimizer_block_min(int64_t x, int64_t *slots)
{
    slots[threadIdx.x] = x;
    __syncthreads();
    for (int thread = 1; thread < THREADS && threadIdx.x == 0; thread++) x = slots[thread] < x ? slots[thread] : x;
    return x;
}

/* parts[block] = the first index of a non-finite value that its threads found, or n */
template <typename T>
__global__ void __launch_bounds__(THREADS) find_nonfinite_kernel(int64_t *parts, struct find_nonfinite_args a)
{
    SHARED(int64_t, slots, [THREADS]);
    if (!*a.enabled) return;
    const T *x = static_cast<const T *>(a.x);
    int64_t i = grid_thread();
    while (i < a.n && isfinite(to_float(x[i]))) i += grid_threads();
    i = optimizer_block_min(i < a.n ? i : a.n, slots);
    if (threadIdx.x == 0) parts[blockIdx.x] = i;
}

__global__ void __launch_bounds__(THREADS)
    nonfinite_parts_kernel(const int64_t *parts, int count, struct find_nonfinite_args a)
{
    SHARED(int64_t, slots, [THREADS]);
    if (!*a.enabled) return;
    int64_t least = a.n;
    for (int part = static_cast<int>(threadIdx.x); part < count; part += THREADS)
        least = parts[part] < least ? parts[part] : least;
    least = optimizer_block_min(least, slots);
    if (threadIdx.x == 0) *a.index = least;
}

/* ---- segments of weight decay -------------------------------------------- */

/* The segment that a thread is in, whose elements rise: its number, and its end in units of DECAY_ALIGN elements. */
struct decay_place {
    int32_t number, end;
    float weight_decay;
};

__device__ __forceinline__ struct decay_place decay_start(const struct decay_segment *segments, float weight_decay)
{
    return {-1, segments ? 0 : INT32_MAX, weight_decay};
}

/* Goes on to the segment of element i. */
__device__ __forceinline__ float decay_at(struct decay_place *place, const struct decay_segment *segments, int64_t i)
{
    const int32_t at = static_cast<int32_t>(i / DECAY_ALIGN);
    while (at >= place->end) {
        const struct decay_segment *next = &segments[++place->number];
        place->end = static_cast<int32_t>((next->end + DECAY_ALIGN - 1) / DECAY_ALIGN);
        place->weight_decay = next->weight_decay;
    }
    return place->weight_decay;
}

/* ---- Adam ---------------------------------------------------------------- */

/* A step's numbers in fp32. */
struct step_numbers {
    float scale, lr, beta1, rest1, beta2, rest2;
    float inv_correction1, inv_root_correction2; /* Adam */
    float correction1, root_correction2;         /* Adam with moments in 8 bits */
    float kept, taken;                           /* SGD */
};

__device__ __forceinline__ struct step_numbers numbers_of(const struct step_state *step)
{
    struct step_numbers k = {};
    k.scale = step->grad_scale;
    k.lr = static_cast<float>(step->lr);
    k.beta1 = static_cast<float>(step->beta1);
    k.rest1 = static_cast<float>(1 - step->beta1);
    k.beta2 = static_cast<float>(step->beta2);
    k.rest2 = static_cast<float>(1 - step->beta2);
    return k;
}

/* Stores N elements of a state, from element i on. */
template <int STATE, int N>
__device__ __forceinline__ void store_state(float *to, const float (&from)[N], const struct adam_args &, int64_t)
{
    store(to, from);
}

/* With N = ROUNDING_BLOCK the elements are those of one block of random words. */
template <int STATE, int N>
__device__ __forceinline__ void store_state(__nv_bfloat16 *to, const float (&from)[N], const struct adam_args &a,
                                            int64_t i)
{
    const struct rounding_counter counter = rounding_counter(a.rounding, a.step->optimizer_step, STATE);
    const int64_t place = a.rounding.place + i;
    uint32_t words[4];
    rounding_words(&counter, static_cast<uint64_t>(place) / ROUNDING_BLOCK, words);
    pack<uint16_t, N> part;
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int element = N == 1 ? static_cast<int>(place % ROUNDING_BLOCK) : j;
        part.at[j] = bf16_round_stochastically(__float_as_uint(from[j]), rounding_bits(words, element));
    }
    *reinterpret_cast<pack<uint16_t, N> *>(to) = part;
}

/* P: of the parameters, G: of the gradients, W and S: of the master weights and of the moments */
template <typename P, typename G, typename W, typename S, int N>
__device__ __forceinline__ void adam_at(const struct adam_args &a, const struct step_numbers &k, float weight_decay,
                                        int64_t i)
{
    const float decay = a.adamw ? k.lr * weight_decay : 0, l2 = a.adamw ? 0 : weight_decay;
    W *master = static_cast<W *>(a.master);
    S *moment1 = static_cast<S *>(a.m), *moment2 = static_cast<S *>(a.v);
    float w[N], g[N], m[N], v[N];
    load(master + i, w);
    load(static_cast<const G *>(a.grad) + i, g);
    load(moment1 + i, m);
    load(moment2 + i, v);
#pragma unroll
    for (int j = 0; j < N; j++) {
        g[j] = fmaf(l2, w[j], g[j] * k.scale);
        w[j] = fmaf(-decay, w[j], w[j]);
        m[j] = fmaf(k.beta1, m[j], k.rest1 * g[j]);
        v[j] = fmaf(k.beta2, v[j], k.rest2 * g[j] * g[j]);
        w[j] -= k.lr * (m[j] * k.inv_correction1) / fmaf(sqrtf(v[j]), k.inv_root_correction2, a.eps);
    }
    store_state<STATE_EXP_AVG>(moment1 + i, m, a, i);
    store_state<STATE_EXP_AVG_SQ>(moment2 + i, v, a, i);
    store_state<STATE_MASTER>(master + i, w, a, i);
    if (a.param) store(static_cast<P *>(a.param) + i, w);
}

/* Elements of one access: those of a block of random words, where states are in bf16. */
template <typename W> constexpr int ADAM_VECTOR = sizeof(W) == sizeof(float) ? int{V} : int{ROUNDING_BLOCK};

/* Blocks that a multiprocessor holds at least (Philox needs registers): 64 KiB of loads are under way with four. */
template <typename W> constexpr int ADAM_RESIDENT = sizeof(W) == sizeof(float) ? 4 : 3;

template <typename P, typename G, typename W, typename S>
__global__ void __launch_bounds__(THREADS, ADAM_RESIDENT<W>) adam_kernel(struct adam_args a, int64_t whole)
{
    constexpr int N = ADAM_VECTOR<W>;
    if (a.step->skipped) return;
    struct step_numbers k = numbers_of(a.step);
    k.inv_correction1 = static_cast<float>(1 / a.step->correction1);
    k.inv_root_correction2 = static_cast<float>(1 / sqrt(a.step->correction2));
    struct decay_place place = decay_start(a.segments, a.weight_decay);
    each_element<N>(a.n, whole, [&](auto width, int64_t i) {
        adam_at<P, G, W, S, decltype(width)::value>(a, k, decay_at(&place, a.segments, i), i);
    });
}

template <typename P, typename G, typename W, typename S>
void adam_launch(struct stream *stream, const struct adam_args *a)
{
    constexpr int N = ADAM_VECTOR<W>;
    const bool at_block = N == V || a->rounding.place % ROUNDING_BLOCK == 0;
    launch_elements<N>(stream, "adam", adam_kernel<P, G, W, S>, *a, a->n,
                       at_block && aligned16(a->master, a->grad, a->m, a->v, a->param));
}

/* ---- AdamW with moments in 8 bits ---------------------------------------- */

/* A warp has a block; each lane four neighbours of its first half and four of the second. Operations round as the CPU's
 * do (cpu_adam8.h): no product and sum becomes an FMA by itself. */
enum { HALF_BLOCK = MOMENT_BLOCK / 2, LANE_VALUES = MOMENT_BLOCK / WARP_SIZE };

struct adam8_maps {
    float m[DYNAMIC_MAP_SIZE], v[DYNAMIC_MAP_SIZE];
};

__device__ __forceinline__ float adam8_correction(double beta, int64_t step, double correction)
{
    const double power = pow(static_cast<double>(static_cast<float>(beta)), static_cast<double>(step));
    return correction == 1 ? 1 : 1 - static_cast<float>(power);
}

__device__ __forceinline__ float adam8_lerp(float x, float end, float weight)
{
    const float way = __fsub_rn(end, x);
    return weight < 0.5f ? fmaf(weight, way, x) : fmaf(weight - 1, way, end);
}

/* The lane's value j lies here in the block. */
__device__ __forceinline__ int adam8_index(int j)
{
    const int lane = lane_of_warp();
    return j / V * HALF_BLOCK + lane * V + j % V;
}

__device__ __forceinline__ void adam8_decode(const struct moment_block *block, const float *map,
                                             float (&values)[LANE_VALUES])
{
    const float scale = block->scale;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint32_t codes = *reinterpret_cast<const uint32_t *>(&block->codes[adam8_index(half * V)]);
#pragma unroll
        for (int j = 0; j < V; j++) values[half * V + j] = __fmul_rn(map[codes >> 8 * j & 0xff], scale);
    }
}

__device__ __forceinline__ void adam8_encode(const float (&values)[LANE_VALUES], const float *map,
                                             struct moment_block *block)
{
    float scale = 1e-12f;
#pragma unroll
    for (int j = 0; j < LANE_VALUES; j++) scale = fmaxf(scale, fabsf(values[j]));
    scale = max_over_lanes(scale);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t codes = 0;
#pragma unroll
        for (int j = 0; j < V; j++)
            codes |= static_cast<uint32_t>(dynamic_map_code(map, __fdiv_rn(values[half * V + j], scale))) << 8 * j;
        *reinterpret_cast<uint32_t *>(&block->codes[adam8_index(half * V)]) = codes;
    }
    if (threadIdx.x % WARP_SIZE == 0) block->scale = scale;
}

/* A half of what the lane has of a block, from element i on. */
template <typename P, typename G>
__device__ __forceinline__ void adam8_half(const struct adam8_args &a, const struct step_numbers &k, float decay,
                                           int64_t i, float *m, float *v)
{
    float w[V], g[V];
    load(a.master + i, w);
    load(static_cast<const G *>(a.grad) + i, g);
#pragma unroll
    for (int j = 0; j < V; j++) {
        g[j] = __fmul_rn(g[j], k.scale);
        m[j] = adam8_lerp(m[j], g[j], k.rest1);
        v[j] = adam8_lerp(v[j], __fmul_rn(g[j], g[j]), k.rest2);
        const float root = __fadd_rn(__fdiv_rn(sqrtf(v[j]), k.root_correction2), a.eps);
        w[j] = __fsub_rn(w[j], __fmul_rn(decay, w[j]));
        w[j] = __fsub_rn(w[j], __fdiv_rn(__fmul_rn(k.lr, __fdiv_rn(m[j], k.correction1)), root));
    }
    store(a.master + i, w);
    if (a.param) store(static_cast<P *>(a.param) + i, w);
}

template <typename P, typename G>
__global__ void __launch_bounds__(THREADS) adam8_kernel(struct adam8_args a, struct adam8_maps maps)
{
    SHARED(float, map_m, [DYNAMIC_MAP_SIZE]);
    SHARED(float, map_v, [DYNAMIC_MAP_SIZE]);
    if (a.step->skipped) return;
    for (int i = static_cast<int>(threadIdx.x); i < DYNAMIC_MAP_SIZE; i += THREADS) {
        map_m[i] = maps.m[i];
        map_v[i] = maps.v[i];
    }
    __syncthreads();
    struct step_numbers k = numbers_of(a.step);
    k.correction1 = adam8_correction(a.step->beta1, a.step->optimizer_step, a.step->correction1);
    k.root_correction2 = sqrtf(adam8_correction(a.step->beta2, a.step->optimizer_step, a.step->correction2));
    struct decay_place place = decay_start(a.segments, a.weight_decay);
    for (int64_t block = grid_thread() / WARP_SIZE; block < a.n / MOMENT_BLOCK; block += grid_threads() / WARP_SIZE) {
        const int64_t first = block * MOMENT_BLOCK;
        const float decay = __fmul_rn(k.lr, decay_at(&place, a.segments, first));
        float m[LANE_VALUES], v[LANE_VALUES];
        adam8_decode(&a.m[block], map_m, m);
        adam8_decode(&a.v[block], map_v, v);
        for (int half = 0; half < 2; half++)
            adam8_half<P, G>(a, k, decay, first + adam8_index(half * V), m + half * V, v + half * V);
        __syncwarp(); /* all lanes have read the block's scales */
        adam8_encode(m, map_m, &a.m[block]);
        adam8_encode(v, map_v, &a.v[block]);
    }
}

/* ---- Lion, SGD ----------------------------------------------------------- */

template <typename P, typename G>
__global__ void __launch_bounds__(THREADS) momentum_kernel(struct momentum_args a, int64_t whole)
{
    if (a.step->skipped) return;
    const bool first = a.step->optimizer_step == 1;
    struct step_numbers k = numbers_of(a.step);
    k.kept = first ? 0 : a.momentum;
    k.taken = first ? 1 : 1 - a.dampening;
    struct decay_place place = decay_start(a.segments, a.weight_decay);
    each_element<V>(a.n, whole, [&](auto width, int64_t i) {
        constexpr int N = decltype(width)::value;
        const float weight_decay = decay_at(&place, a.segments, i), decay = k.lr * weight_decay;
        float w[N], g[N], m[N] = {0};
        load(a.master + i, w);
        load(static_cast<const G *>(a.grad) + i, g);
        if (a.m) load(a.m + i, m);
#pragma unroll
        for (int j = 0; j < N; j++) {
            g[j] *= k.scale;
            if (a.rule == OPTIMIZER_LION) {
                const float c = fmaf(k.beta1, m[j], k.rest1 * g[j]);
                m[j] = fmaf(k.beta2, m[j], k.rest2 * g[j]);
                w[j] = fmaf(-decay, w[j], w[j]) - (c > 0 ? k.lr : c < 0 ? -k.lr : 0.0f);
            } else {
                g[j] = fmaf(weight_decay, w[j], g[j]);
                if (a.m) {
                    m[j] = fmaf(k.kept, m[j], k.taken * g[j]);
                    g[j] = a.nesterov ? fmaf(a.momentum, m[j], g[j]) : m[j];
                }
                w[j] = fmaf(-k.lr, g[j], w[j]);
            }
        }
        if (a.m) store(a.m + i, m);
        store(a.master + i, w);
        if (a.param) store(static_cast<P *>(a.param) + i, w);
    });
}

} // namespace

void cuda_sumsq(struct stream *stream, const struct sumsq_args *a)
{
    struct cuda_scratch scratch = cuda_scratch_of(stream);
    double *parts = cuda_scratch_take<double>(&scratch, MAX_PARTS);
    const int count = sumsq_parts_of(a->n);
    if (count > 0)
        dispatch_state(a->dtype, [&](auto type) {
            using T = decltype(type);
            LAUNCH(stream, "sumsq", sumsq_kernel<T>, count, THREADS, parts, static_cast<const T *>(a->x), a->n,
                   aligned16(a->x));
        });
    LAUNCH(stream, "sum_parts", sumsq_parts_kernel, 1, THREADS, a->out, parts, count);
}

void cuda_decide_step(struct stream *stream, const struct decide_step_args *a)
{
    LAUNCH(stream, "decide_step", decide_step_kernel, 1, THREADS, *a);
}

void cuda_find_nonfinite(struct stream *stream, const struct find_nonfinite_args *a)
{
    struct cuda_scratch scratch = cuda_scratch_of(stream);
    int64_t *parts = cuda_scratch_take<int64_t>(&scratch, MAX_PARTS);
    const int count = sumsq_parts_of(a->n);
    if (count > 0)
        dispatch_state(a->dtype, [&](auto type) {
            LAUNCH(stream, "find_nonfinite", find_nonfinite_kernel<decltype(type)>, count, THREADS, parts, *a);
        });
    LAUNCH(stream, "find_in_parts", nonfinite_parts_kernel, 1, THREADS, parts, count, *a);
}

void cuda_adam(struct stream *stream, const struct adam_args *a)
{
    const bool wide = a->master_dtype == DTYPE_F32 && a->moment_dtype == DTYPE_F32;
    ASSERT(wide || (a->master_dtype == DTYPE_BF16 && !a->param));
    dispatch_state(a->grad_dtype, [&](auto g) {
        using G = decltype(g);
        if (wide)
            dispatch(a->param ? a->param_dtype : DTYPE_F32,
                     [&](auto p) { adam_launch<decltype(p), G, float, float>(stream, a); });
        else /* the parameters are the master weights */
            dispatch_state(a->moment_dtype,
                           [&](auto s) { adam_launch<float, G, __nv_bfloat16, decltype(s)>(stream, a); });
    });
}

void cuda_adam8(struct stream *stream, const struct adam8_args *a)
{
    ASSERT(a->n % MOMENT_BLOCK == 0 && aligned16(a->master, a->grad, a->param));
    if (a->n == 0) return;
    struct adam8_maps maps;
    dynamic_map_signed(maps.m);
    dynamic_map_unsigned(maps.v);
    dispatch(a->param ? a->param_dtype : DTYPE_F32, [&](auto p) {
        dispatch_state(a->grad_dtype, [&](auto g) {
            LAUNCH(stream, "adam8", (adam8_kernel<decltype(p), decltype(g)>),
                   grid_of(stream, ceil_div(a->n / MOMENT_BLOCK, WARPS), 8), THREADS, *a, maps);
        });
    });
}

void cuda_momentum(struct stream *stream, const struct momentum_args *a)
{
    ASSERT(a->n == 0 || a->rule == OPTIMIZER_SGD || (a->rule == OPTIMIZER_LION && a->m));
    dispatch(a->param ? a->param_dtype : DTYPE_F32, [&](auto p) {
        dispatch_state(a->grad_dtype, [&](auto g) {
            launch_elements<V>(stream, "momentum", momentum_kernel<decltype(p), decltype(g)>, *a, a->n,
                               aligned16(a->master, a->grad, a->m, a->param));
        });
    });
}
CUDA_MODULE(optimizer, sumsq_parts_kernel)
