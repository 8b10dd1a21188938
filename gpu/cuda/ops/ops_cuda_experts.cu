/* SPDX-License-Identifier: Apache-2.0 */
/* ops_cuda_experts.cu: the routing of tokens to experts, and their rows. A warp has a token, or an assignment; experts
 * are dealt to its lanes. The order of assignments is that of the embedding's sort (ops_cuda_embedding.cu). */
#include "gpu/cuda/cuda_kernels.cuh"

namespace
{

enum {
    THREADS = ELEMENT_THREADS,
    WARPS = THREADS / WARP_SIZE,
    FEW_SLOTS = 4, /* experts of a lane */
    MOST_SLOTS = ROUTE_MAX_EXPERTS / WARP_SIZE,
    SUM_EXPERTS = 8,
    SUM_ROWS = 64, /* of a block that adds them up */
};
static_assert(static_cast<int>(ROUTE_MAX_GROUPS) <= static_cast<int>(WARP_SIZE), "a lane has a group");

__device__ __forceinline__ int lane_of()
{
    return static_cast<int>(threadIdx.x) % WARP_SIZE;
}

/* Calls visit(i) for the items of this warp. */
template <typename Visit> __device__ __forceinline__ void each_item(int64_t n, Visit visit)
{
    for (int64_t i = grid_thread() / WARP_SIZE; i < n; i += grid_threads() / WARP_SIZE) visit(i);
}

/* ---- routing ------------------------------------------------------------- */

/* The index of the largest value of a warp, the lowest of equal ones. */
__device__ __forceinline__ int warp_best(float value, int index)
{
    for (int distance = WARP_SIZE / 2; distance > 0; distance /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, value, distance);
        const int place = __shfl_xor_sync(0xffffffffu, index, distance);
        if (other > value || (other == value && place < index)) {
            value = other;
            index = place;
        }
    }
    return __shfl_sync(0xffffffffu, index, 0); /* with NaN, lanes may differ */
}

/* Bits of the groups whose experts are candidates; choice (E) is shared. */
__device__ __forceinline__ unsigned best_groups(const struct route_args &a, const float *choice)
{
    const int size = static_cast<int>(a.E / a.groups), group = lane_of();
    float first = -INFINITY, second = -INFINITY;
    unsigned kept = 0;
    for (int e = group * size; group < a.groups && e < (group + 1) * size; e++) {
        const float x = choice[e];
        second = x > first ? first : x > second ? x : second;
        first = x > first ? x : first;
    }
    float score = group < a.groups ? first + second : -INFINITY;
    for (int64_t i = 0; i < a.top_groups; i++) {
        const int best = warp_best(score, group);
        kept |= 1u << best;
        if (group == best) score = -INFINITY;
    }
    return kept;
}

/* The experts of a token by their choice, and their weights. shared (k); counts: of the block. */
template <int SLOTS>
__device__ __forceinline__ void choose_experts(const struct route_args &a, int64_t m, const float (&probs)[SLOTS],
                                               float (&choice)[SLOTS], float *shared, int *counts)
{
    const int lane = lane_of(), E = static_cast<int>(a.E), k = static_cast<int>(a.k);
    float sum = a.sigmoid ? route_eps : 0;
    for (int j = 0; j < k; j++) {
        int index = 0;
        float value = -INFINITY, weight = 0;
#pragma unroll
        for (int s = 0; s < SLOTS; s++) {
            if (lane + s * WARP_SIZE >= E || (s > 0 && !(choice[s] > value))) continue;
            value = choice[s];
            index = lane + s * WARP_SIZE;
        }
        const int best = warp_best(value, index);
#pragma unroll
        for (int s = 0; s < SLOTS; s++) {
            if (lane + s * WARP_SIZE != best) continue;
            choice[s] = -INFINITY;
            weight = probs[s];
        }
        weight = __shfl_sync(0xffffffffu, weight, best % WARP_SIZE);
        sum += weight;
        if (lane != 0) continue;
        a.experts[m * k + j] = best;
        shared[j] = weight;
        if (m < a.counted) atomicAdd(&counts[best], 1);
    }
    __syncwarp();
    for (int j = lane; j < k; j += WARP_SIZE)
        a.weights[m * k + j] = (a.normalize ? shared[j] / sum : shared[j]) * a.scale;
    __syncwarp();
}

/* to (E) = the sums of the block's warps, whose lanes have those of experts */
template <int SLOTS> __device__ __forceinline__ void store_sums(double *to, const double (&sums)[SLOTS], int E)
{
    SHARED(double, added, [WARPS][WARP_SIZE]);
    const int lane = lane_of(), warp = static_cast<int>(threadIdx.x) / WARP_SIZE;
#pragma unroll
    for (int s = 0; s < SLOTS; s++) {
        double sum = 0;
        added[warp][lane] = sums[s];
        __syncthreads();
        for (int w = 0; warp == 0 && w < WARPS; w++) sum += added[w][lane];
        if (warp == 0 && lane + s * WARP_SIZE < E) to[lane + s * WARP_SIZE] = sum;
        __syncthreads();
    }
}

/* A block has `rows` tokens, and stores the sum of their probs in sums (blocks, E), unless that is NULL. */
template <typename T, int SLOTS>
__global__ void __launch_bounds__(THREADS) route_kernel(struct route_args a, int rows, double *sums)
{
    SHARED(float, choices, [WARPS][SLOTS * WARP_SIZE]);
    SHARED(int, counts, [SLOTS * WARP_SIZE]);
    const int lane = lane_of(), warp = static_cast<int>(threadIdx.x) / WARP_SIZE, E = static_cast<int>(a.E);
    const int64_t first = blockIdx.x * static_cast<int64_t>(rows), end = min(first + rows, a.M);
    double prob_sums[SLOTS] = {};
    for (int e = static_cast<int>(threadIdx.x); e < E; e += THREADS) counts[e] = 0;
    __syncthreads();
    for (int64_t m = first + warp; m < end; m += WARPS) {
        float choice[SLOTS], probs[SLOTS], highest = -INFINITY, sum = 0;
        float *shared = choices[warp];
#pragma unroll
        for (int s = 0; s < SLOTS; s++) {
            const int e = lane + s * WARP_SIZE;
            choice[s] = e < E ? to_float(static_cast<const T *>(a.logits)[m * E + e]) : -INFINITY;
            highest = fmaxf(highest, choice[s]);
        }
        highest = max_over_lanes(highest);
#pragma unroll
        for (int s = 0; s < SLOTS; s++) {
            probs[s] = lane + s * WARP_SIZE < E ? expf(choice[s] - highest) : 0;
            sum += probs[s];
        }
        sum = sum_over_lanes(sum, WARP_SIZE);
        const float inverse = 1 / sum;
        if (a.lse && lane == 0) a.lse[m] = highest + logf(sum);
#pragma unroll
        for (int s = 0; s < SLOTS; s++) {
            const int e = lane + s * WARP_SIZE;
            if (e >= E) continue;
            probs[s] = a.sigmoid ? 1 / (1 + expf(-choice[s])) : probs[s] * inverse;
            a.probs[m * E + e] = probs[s];
            if (m < a.counted) prob_sums[s] += static_cast<double>(probs[s]);
            if (a.bias || a.groups) choice[s] = probs[s] + (a.bias ? a.bias[e] : 0);
            if (a.groups) shared[e] = choice[s];
        }
        if (a.groups) {
            __syncwarp();
            const unsigned kept = best_groups(a, shared);
            __syncwarp();
#pragma unroll
            for (int s = 0; s < SLOTS; s++) {
                const int e = lane + s * WARP_SIZE;
                if (e < E && !(kept >> e / static_cast<int>(a.E / a.groups) & 1)) choice[s] = -INFINITY;
            }
        }
        choose_experts<SLOTS>(a, m, probs, choice, shared, counts);
    }
    __syncthreads();
    for (int e = static_cast<int>(threadIdx.x); a.counts && e < E; e += THREADS)
        if (counts[e]) atomicAdd(&a.counts[e], counts[e]);
    if (sums) store_sums(sums + static_cast<int64_t>(blockIdx.x) * E, prob_sums, E);
}

/* prob_sums += sums (n, E): a block adds up SUM_EXPERTS columns. */
__global__ void __launch_bounds__(SUM_EXPERTS *SUM_ROWS)
    route_sums_kernel(double *prob_sums, const double *sums, int n, int E)
{
    SHARED(double, added, [SUM_ROWS][SUM_EXPERTS]);
    const int e = static_cast<int>(blockIdx.x * SUM_EXPERTS + threadIdx.x);
    double sum = 0;
    for (int i = static_cast<int>(threadIdx.y); e < E && i < n; i += SUM_ROWS)
        sum += sums[static_cast<int64_t>(i) * E + e];
    added[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    for (int i = 1; threadIdx.y == 0 && i < SUM_ROWS; i++) sum += added[i][threadIdx.x];
    if (threadIdx.y == 0 && e < E) prob_sums[e] += sum;
}

__global__ void sum_experts_kernel(struct sum_experts_args a)
{
    double sum = 0;
    for (int64_t e = 0; e < a.E; e++) {
        sum += static_cast<double>(a.counts[e]) * a.prob_sums[e];
        a.loads[e] += static_cast<double>(a.counts[e]);
    }
    *a.aux_sum += a.scale * sum;
}

/* Everything is read once. The chosen experts' gradients are added to those that all experts have in shared memory. */
template <typename T, int SLOTS> __global__ void __launch_bounds__(THREADS) route_bwd_kernel(struct route_bwd_args a)
{
    SHARED(float, shared, [2][WARPS][SLOTS * WARP_SIZE]);
    const int lane = lane_of(), warp = static_cast<int>(threadIdx.x) / WARP_SIZE, E = static_cast<int>(a.E);
    const float loss_scale = a.loss_scale ? *a.loss_scale : 1;
    float *probs = shared[0][warp], *dprobs = shared[1][warp];
    each_item(a.M, [&](int64_t m) {
        const bool counts = m < a.counted;
        float of_chosen[SLOTS], sum = 0, inner = 0, dot = 0;
        int chosen[SLOTS];
        for (int e = lane; e < E; e += WARP_SIZE) {
            probs[e] = a.probs[m * E + e];
            dprobs[e] = a.counts && counts ? a.aux_scale * loss_scale * static_cast<float>(a.counts[e]) : 0;
            dot += probs[e] * dprobs[e];
        }
        __syncwarp();
#pragma unroll
        for (int s = 0; s < SLOTS; s++) {
            const int64_t j = m * a.k + lane + s * WARP_SIZE;
            chosen[s] = j < (m + 1) * a.k ? a.experts[j] : -1;
            if (chosen[s] < 0) continue;
            of_chosen[s] = a.dweights[j];
            sum += probs[chosen[s]];
            inner += a.weights[j] * of_chosen[s];
        }
        const float inverse = 1 / (sum_over_lanes(sum, WARP_SIZE) + (a.sigmoid ? route_eps : 0));
        inner = sum_over_lanes(inner, WARP_SIZE);
#pragma unroll
        for (int s = 0; s < SLOTS; s++) {
            if (chosen[s] < 0) continue;
            of_chosen[s] *= a.scale;
            if (a.normalize) of_chosen[s] = (of_chosen[s] - inner) * inverse;
            dot += probs[chosen[s]] * of_chosen[s];
            dprobs[chosen[s]] += of_chosen[s];
        }
        dot = sum_over_lanes(dot, WARP_SIZE);
        if (a.lse && counts) dot -= 2 * a.z_scale * loss_scale * a.lse[m];
        __syncwarp();
        for (int e = lane; e < E; e += WARP_SIZE) {
            const float p = probs[e], d = dprobs[e], dlogit[] = {a.sigmoid ? d * p * (1 - p) : p * (d - dot)};
            store(static_cast<T *>(a.dlogits) + m * E + e, dlogit);
        }
        __syncwarp();
    });
}

/* ---- rows ---------------------------------------------------------------- */

template <typename T, int V> __global__ void __launch_bounds__(THREADS) gather_kernel(struct gather_tokens_args a)
{
    each_in_table<V>(a.M, a.C, [&](int64_t row, int64_t c) {
        const auto pack = load_pack<V>(static_cast<const T *>(a.x) + row * a.C + c);
        for (int64_t i = row * a.k; i < (row + 1) * a.k; i++)
            if (a.places[i] >= 0) store_pack(static_cast<T *>(a.xe) + a.places[i] * a.C + c, pack);
    });
}

template <typename T, int V> __global__ void __launch_bounds__(THREADS) combine_kernel(struct combine_tokens_args a)
{
    each_in_table<V>(a.M, a.C, [&](int64_t row, int64_t c) {
        const int64_t end = (row + 1) * a.k;
        T *y = static_cast<T *>(a.y) + row * a.C + c;
        float sum[V] = {};
        if (a.accumulate) load(y, sum);
        for (int64_t i = row * a.k; i < end; i++) {
            const float weight = a.weights ? a.weights[i] : 1;
            const int64_t place = a.places ? a.places[i] : i;
            float x[V];
            if (place < 0) continue;
            load(static_cast<const T *>(a.ye) + place * a.C + c, x);
#pragma unroll
            for (int v = 0; v < V; v++) sum[v] = fmaf(weight, x[v], sum[v]);
        }
        store(y, sum);
    });
}

/* A warp has a row. */
template <typename T, int V> __global__ void __launch_bounds__(THREADS) scale_bwd_kernel(struct scale_rows_bwd_args a)
{
    each_item(a.M, [&](int64_t m) {
        float dot = 0;
        for (int64_t c = m * a.C + lane_of() * V; c < (m + 1) * a.C; c += WARP_SIZE * V) {
            float d[V], x[V];
            load(static_cast<const T *>(a.dy) + c, d);
            load(static_cast<const T *>(a.x) + c, x);
#pragma unroll
            for (int v = 0; v < V; v++) {
                dot = fmaf(d[v], x[v], dot);
                d[v] *= a.weights[m];
            }
            store(static_cast<T *>(a.dx) + c, d);
        }
        dot = sum_over_lanes(dot, WARP_SIZE);
        if (lane_of() == 0) a.dweights[m] = dot;
    });
}

template <typename T> __global__ void __launch_bounds__(THREADS) bias_bwd_kernel(struct combine_bias_bwd_args a)
{
    each_item(a.M * a.k, [&](int64_t i) {
        const T *dy = static_cast<const T *>(a.dy) + i / a.k * a.C;
        const T *bias = static_cast<const T *>(a.bias) + a.experts[i] * a.C;
        float dot = 0;
        for (int64_t c = lane_of(); c < a.C; c += WARP_SIZE) dot = fmaf(to_float(dy[c]), to_float(bias[c]), dot);
        dot = sum_over_lanes(dot, WARP_SIZE);
        if (lane_of() == 0) a.dweights[i] += dot;
    });
}

/* A warp has an assignment. PAIRS: interleaved. Without a limit: it is infinity, and alpha 1. */
template <typename T, int V, bool PAIRS>
__global__ void __launch_bounds__(THREADS) experts_swiglu_bwd_kernel(struct experts_swiglu_bwd_args a)
{
    const float most = a.limit, alpha = a.alpha, one = most < INFINITY ? 1 : 0;
    each_item(a.M, [&](int64_t i) {
        const int64_t row = a.places[i];
        const float weight = a.weights[i];
        float dot = 0;
        for (int64_t j = lane_of() * V; row >= 0 && j < a.F; j += WARP_SIZE * V) {
            const int64_t first = row * 2 * a.F + (PAIRS ? 2 * j : j), places[2] = {first, first + (PAIRS ? V : a.F)};
            float both[2][V], d[V];
#pragma unroll
            for (int n = 0; n < 2; n++) load(static_cast<const T *>(a.gate_up) + places[n], both[n]);
            load(static_cast<const T *>(a.dh) + row * a.F + j, d);
#pragma unroll
            for (int v = 0; v < V; v++) {
                float *const gate = PAIRS ? &both[2 * v / V][2 * v % V] : &both[0][v];
                float *const up = PAIRS ? &both[(2 * v + 1) / V][(2 * v + 1) % V] : &both[1][v];
                const float g = *gate > most ? most : *gate, u = *up > most ? most : *up < -most ? -most : *up;
                const float s = sigmoid(alpha * g), h = g * s * (u + one), weighted = d[v] * weight;
                dot = fmaf(h, d[v], dot);
                *gate = *gate > most ? 0.0f : weighted * (u + one) * s * fmaf(alpha * g, 1.0f - s, 1.0f);
                *up = *up == u ? weighted * g * s : 0.0f;
                d[v] = weight * h;
            }
            store(static_cast<T *>(a.h) + row * a.F + j, d);
#pragma unroll
            for (int n = 0; n < 2; n++) store(static_cast<T *>(a.dgate_up) + places[n], both[n]);
        }
        dot = sum_over_lanes(dot, WARP_SIZE);
        if (lane_of() == 0) a.dweights[i] = dot;
        if (lane_of() == 0 && a.row_weights && row >= 0) a.row_weights[row] = weight;
    });
}

} // namespace

void cuda_route(struct stream *stream, const struct route_args *a)
{
    ASSERT(a->E <= ROUTE_MAX_EXPERTS && a->groups <= ROUTE_MAX_GROUPS && a->k <= a->E && (a->counts || !a->prob_sums));
    if (a->M == 0) return;
    const int rows = a->counts ? int{CUDA_ROUTE_ROWS} : int{WARPS}, blocks = static_cast<int>(ceil_div(a->M, rows));
    struct cuda_scratch scratch = cuda_scratch_of(stream);
    double *sums = a->prob_sums ? cuda_scratch_take<double>(&scratch, blocks * a->E) : nullptr;
    dispatch(a->dtype, [&](auto type) {
        using T = decltype(type);
        LAUNCH(stream, "route",
               (a->E <= FEW_SLOTS * WARP_SIZE ? route_kernel<T, FEW_SLOTS> : route_kernel<T, MOST_SLOTS>), blocks,
               THREADS, *a, rows, sums);
    });
    if (sums)
        LAUNCH(stream, "route", route_sums_kernel, static_cast<unsigned>(ceil_div(a->E, SUM_EXPERTS)),
               dim3(SUM_EXPERTS, SUM_ROWS), a->prob_sums, sums, blocks, static_cast<int>(a->E));
}

void cuda_sum_experts(struct stream *stream, const struct sum_experts_args *a)
{
    LAUNCH(stream, "sum_experts", sum_experts_kernel, 1, 1, *a);
}

void cuda_route_bwd(struct stream *stream, const struct route_bwd_args *a)
{
    ASSERT(a->E <= ROUTE_MAX_EXPERTS && a->k <= a->E && !(a->lse && a->sigmoid));
    if (a->M == 0) return;
    dispatch(a->dtype, [&](auto type) {
        using T = decltype(type);
        LAUNCH(stream, "route_bwd",
               (a->E <= FEW_SLOTS * WARP_SIZE ? route_bwd_kernel<T, FEW_SLOTS> : route_bwd_kernel<T, MOST_SLOTS>),
               grid_of(stream, ceil_div(a->M, WARPS), 8), THREADS, *a);
    });
}

void cuda_gather_tokens(struct stream *stream, const struct gather_tokens_args *a)
{
    dispatch(a->dtype, [&](auto type) {
        using T = decltype(type);
        launch_table<T>(stream, "gather_tokens", gather_kernel<T, VECTOR<T>>, gather_kernel<T, 1>, *a, a->M * a->C,
                        aligned16(a->xe, a->x, a->C * static_cast<int64_t>(sizeof(T))));
    });
}

void cuda_combine_tokens(struct stream *stream, const struct combine_tokens_args *a)
{
    dispatch(a->dtype, [&](auto type) {
        using T = decltype(type);
        launch_table<T>(stream, "combine_tokens", combine_kernel<T, VECTOR<T>>, combine_kernel<T, 1>, *a, a->M * a->C,
                        aligned16(a->y, a->ye, a->C * static_cast<int64_t>(sizeof(T))));
    });
}

void cuda_scale_rows_bwd(struct stream *stream, const struct scale_rows_bwd_args *a)
{
    if (a->M == 0) return;
    dispatch(a->dtype, [&](auto type) {
        using T = decltype(type);
        const bool aligned = aligned16(a->dx, a->dy, a->x, a->C * static_cast<int64_t>(sizeof(T)));
        LAUNCH(stream, "scale_rows_bwd", (aligned ? scale_bwd_kernel<T, VECTOR<T>> : scale_bwd_kernel<T, 1>),
               grid_of(stream, ceil_div(a->M, WARPS), 8), THREADS, *a);
    });
}

void cuda_combine_bias_bwd(struct stream *stream, const struct combine_bias_bwd_args *a)
{
    if (a->M == 0) return;
    dispatch(a->dtype, [&](auto type) {
        LAUNCH(stream, "combine_bias_bwd", bias_bwd_kernel<decltype(type)>,
               grid_of(stream, ceil_div(a->M * a->k, WARPS), 8), THREADS, *a);
    });
}

void cuda_experts_swiglu_bwd(struct stream *stream, const struct experts_swiglu_bwd_args *a)
{
    struct experts_swiglu_bwd_args args = *a;
    ASSERT(a->limit > 0 || !a->interleaved);
    if (a->M == 0) return;
    if (a->limit <= 0) args.limit = INFINITY, args.alpha = 1;
    dispatch(a->dtype, [&](auto type) {
        using T = decltype(type);
        const bool aligned = aligned16(a->dgate_up, a->h, a->dh, a->gate_up, a->F * static_cast<int64_t>(sizeof(T)));
        const auto kernel =
            a->interleaved
                ? (aligned ? experts_swiglu_bwd_kernel<T, VECTOR<T>, true> : experts_swiglu_bwd_kernel<T, 1, true>)
                : (aligned ? experts_swiglu_bwd_kernel<T, VECTOR<T>, false> : experts_swiglu_bwd_kernel<T, 1, false>);
        LAUNCH(stream, "experts_swiglu_bwd", kernel, grid_of(stream, ceil_div(a->M, WARPS), 8), THREADS, args);
    });
}
CUDA_MODULE(experts, route_sums_kernel)
