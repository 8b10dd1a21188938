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
    CHOICES = 8,   /* of a token, at a time */
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
    const int columns = static_cast<int>(a.C / V);
    struct table_walk walk = table_walk_start(columns);
    for (; walk.row < a.M; table_walk_next(&walk, columns)) {
        const int64_t c = static_cast<int64_t>(walk.column) * V;
        const auto pack = load_pack<V>(static_cast<const T *>(a.x) + walk.row * a.C + c);
        for (int64_t i = walk.row * a.k; i < (walk.row + 1) * a.k; i++)
            if (a.places[i] >= 0) store_pack(static_cast<T *>(a.xe) + a.places[i] * a.C + c, pack);
    }
}

template <typename T, int V> __global__ void __launch_bounds__(THREADS) combine_kernel(struct combine_tokens_args a)
{
    const int columns = static_cast<int>(a.C / V);
    struct table_walk walk = table_walk_start(columns);
    for (; walk.row < a.M; table_walk_next(&walk, columns)) {
        const int64_t c = static_cast<int64_t>(walk.column) * V;
        T *y = static_cast<T *>(a.y) + walk.row * a.C + c;
        float sum[V] = {};
        if (a.accumulate) load(y, sum);
        for (int64_t i = walk.row * a.k; i < (walk.row + 1) * a.k; i++) {
            const float weight = a.weights ? a.weights[i] : 1;
            float x[V];
            if (a.places[i] < 0) continue;
            load(static_cast<const T *>(a.ye) + a.places[i] * a.C + c, x);
#pragma unroll
            for (int v = 0; v < V; v++) sum[v] = fmaf(weight, x[v], sum[v]);
        }
        store(y, sum);
    }
}

template <int V> constexpr int choices_at_a_time = V == 1 ? 1 : CHOICES;

/* Of `most` assignments of a token, which read dy once, and all rows before they write any: dye may be ye. */
template <typename T, int V>
__device__ __forceinline__ void combine_bwd_choices(const struct combine_tokens_bwd_args &a, int64_t m, int64_t first)
{
    constexpr int most = choices_at_a_time<V>;
    const int count = static_cast<int>(min(first + most, (m + 1) * a.k) - first);
    float dots[most] = {};
    int places[most]; /* -1: none */
#pragma unroll
    for (int j = 0; j < most; j++) places[j] = j < count ? a.places[first + j] : -1;
#pragma unroll 1
    for (int64_t c = lane_of() * V; c < a.C; c += WARP_SIZE * V) {
        float d[V];
        struct pack<T, V> rows[most];
        load(static_cast<const T *>(a.dy) + m * a.C + c, d);
#pragma unroll
        for (int j = 0; j < most; j++) {
            if (places[j] < 0) continue;
            rows[j] = load_pack<V>(static_cast<const T *>(a.ye) + places[j] * a.C + c);
            keep_packed(&rows[j]);
        }
#pragma unroll
        for (int j = 0; j < most; j++) {
            if (places[j] < 0) continue;
            const float weight = a.weights[first + j];
            float x[V];
#pragma unroll
            for (int v = 0; v < V; v++) {
                dots[j] = fmaf(d[v], to_float(rows[j].at[v]), dots[j]);
                x[v] = d[v] * weight;
            }
            store(static_cast<T *>(a.dye) + places[j] * a.C + c, x);
        }
    }
#pragma unroll
    for (int j = 0; j < most; j++) {
        const float dot = sum_over_lanes(dots[j], WARP_SIZE);
        if (lane_of() == 0 && j < count) a.dweights[first + j] = dot;
    }
}

template <typename T, int V>
__global__ void __launch_bounds__(THREADS) combine_bwd_kernel(struct combine_tokens_bwd_args a)
{
    each_item(a.M, [&](int64_t m) {
        for (int64_t first = m * a.k; first < (m + 1) * a.k; first += choices_at_a_time<V>)
            combine_bwd_choices<T, V>(a, m, first);
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
    if (a->M == 0) return;
    dispatch(a->dtype, [&](auto type) {
        using T = decltype(type);
        const bool aligned = aligned16(a->xe, a->x, a->C * static_cast<int64_t>(sizeof(T)));
        LAUNCH(stream, "gather_tokens", (aligned ? gather_kernel<T, VECTOR<T>> : gather_kernel<T, 1>),
               grid_of_elements(stream, a->M * a->C, aligned ? VECTOR<T> : 1), THREADS, *a);
    });
}

void cuda_combine_tokens(struct stream *stream, const struct combine_tokens_args *a)
{
    if (a->M == 0) return;
    dispatch(a->dtype, [&](auto type) {
        using T = decltype(type);
        const bool aligned = aligned16(a->y, a->ye, a->C * static_cast<int64_t>(sizeof(T)));
        LAUNCH(stream, "combine_tokens", (aligned ? combine_kernel<T, VECTOR<T>> : combine_kernel<T, 1>),
               grid_of_elements(stream, a->M * a->C, aligned ? VECTOR<T> : 1), THREADS, *a);
    });
}

void cuda_combine_tokens_bwd(struct stream *stream, const struct combine_tokens_bwd_args *a)
{
    if (a->M == 0) return;
    dispatch(a->dtype, [&](auto type) {
        using T = decltype(type);
        const bool aligned = aligned16(a->dye, a->dy, a->ye, a->C * static_cast<int64_t>(sizeof(T)));
        LAUNCH(stream, "combine_tokens_bwd", (aligned ? combine_bwd_kernel<T, VECTOR<T>> : combine_bwd_kernel<T, 1>),
               grid_of(stream, ceil_div(a->M, WARPS), 8), THREADS, *a);
    });
}
CUDA_MODULE(experts, route_sums_kernel)
