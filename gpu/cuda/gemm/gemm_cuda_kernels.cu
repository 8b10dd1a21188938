/* SPDX-License-Identifier: Apache-2.0 */
/* gemm_cuda_kernels.cu: bias, GELU and sums over rows: the parts of the linear ops that cublasLt cannot always fuse.
 * Each block adds up a range of rows for its columns, then the partial sums are added in the order of the ranges, which
 * depend on the shape only. */
#include "gpu/cuda/gemm/gemm_cuda_kernels.h"

#include "gpu/cuda/cuda_kernels.cuh"

namespace
{

constexpr int kThreads = 256;
constexpr int kColumnThreads = 32, kRowThreads = kThreads / kColumnThreads, kRangeGroups = 16;

constexpr float kRootHalf = 0.7071067811865476f, kBell = 0.3989422804014327f; /* sqrt(1 / 2), 1 / sqrt(2 pi) */

__device__ inline float gemm_gelu_erf(float x)
{
    return 0.5f * x * erfcf(-kRootHalf * x);
}

__device__ inline float gemm_gelu_erf_derivative(float x)
{
    return fmaf(kBell * x, expf(-0.5f * x * x), 0.5f * erfcf(-kRootHalf * x));
}

/* No GELU, or its two forms; in sums of columns, the slopes at `aux` that the matrix is first multiplied by. */
enum { kPlain, kTanh, kErf };

/* Blocks that a multiprocessor has room for, so that none waits for others to end: 32 registers a thread, erf 40. */
template <int FORM> constexpr int kBiasGeluResident = FORM == kErf ? 6 : 8;

/* Threads walk side by side over vectors of V columns. GELU sees what was not rounded to T yet. */
template <typename Y, typename T, int V, int FORM>
__global__ void __launch_bounds__(kThreads)
    bias_gelu_kernel(int64_t M, int64_t N, Y *y, int64_t ld_y, const T *bias, T *aux)
{
    each_in_table<V>(M, N, [&](int64_t row, int64_t j) {
        Y *at = y + row * ld_y + j;
        float x[V];
        load(at, x);
        if (bias) {
            float b[V];
            load(bias + j, b);
#pragma unroll
            for (int v = 0; v < V; v++) x[v] += b[v];
        }
        if constexpr (FORM != kPlain) {
            store(aux + row * N + j, x);
#pragma unroll
            for (int v = 0; v < V; v++) x[v] = FORM == kErf ? gemm_gelu_erf(x[v]) : x[v] * gelu_of(x[v]).share;
        }
        store(at, x);
    });
}

template <bool ERF> __device__ inline float slope(float x)
{
    return ERF ? gemm_gelu_erf_derivative(x) : gelu_of(x).derivative;
}

/* `packs` of 16 bytes, then the remaining ones of the n elements */
template <typename T, bool ERF>
__global__ void __launch_bounds__(kThreads) gelu_backward_kernel(int64_t n, int64_t packs, T *dx, const T *aux)
{
    constexpr int V = VECTOR<T>;
    int64_t start = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
    int64_t step = gridDim.x * static_cast<int64_t>(kThreads);
    for (int64_t i = start; i < packs; i += step) {
        struct pack<T, V> d = load_pack<V>(dx + i * V), a = load_pack<V>(aux + i * V);
#pragma unroll
        for (int j = 0; j < V; j++) d.at[j] = rounded<T>(to_float(d.at[j]) * slope<ERF>(to_float(a.at[j])));
        store_pack(dx + i * V, d);
    }
    for (int64_t i = packs * V + start; i < n; i += step)
        dx[i] = rounded<T>(to_float(dx[i]) * slope<ERF>(to_float(aux[i])));
}

/* `count` columns from `first` on whose sums are 0; the others are numbered without them. */
struct null_columns {
    int64_t first, count;
};

/* Where the summed column lies in the matrix. */
__device__ inline int64_t place_of(struct null_columns null, int64_t column)
{
    return column < null.first ? column : column + null.count;
}

/* One row's V columns of the sums. */
template <typename T, int V, int FORM>
__device__ inline void add_elements(float (&sum)[V], struct pack<T, V> &d, const struct pack<T, V> &aux)
{
#pragma unroll
    for (int j = 0; j < V; j++) {
        if constexpr (FORM != kPlain)
            d.at[j] = rounded<T>(to_float(d.at[j]) * slope<FORM == kErf>(to_float(aux.at[j])));
        sum[j] += to_float(d.at[j]);
    }
}

/* partial (ranges, N): block (x, y) adds up range y of rows for kColumnThreads · V summed columns. */
template <typename T, int V, int FORM>
__global__ void __launch_bounds__(kThreads)
    column_sums_kernel(int64_t M, int64_t N, T *dy, int64_t ld, struct null_columns null, const T *aux, int64_t rows,
                       float *partial)
{
    constexpr int kDepth = FORM == kPlain ? 4 : 2;
    using E = struct pack<T, V>;
    SHARED(float, sums, [kRowThreads][kColumnThreads * V]);
    int tx = threadIdx.x % kColumnThreads, ty = threadIdx.x / kColumnThreads;
    int64_t column = (blockIdx.x * static_cast<int64_t>(kColumnThreads) + tx) * V;
    const int64_t place = place_of(null, column);
    int64_t first = blockIdx.y * rows, last = first + rows < M ? first + rows : M;
    float sum[V] = {};
    for (int64_t row = first + ty; row < last && column < N; row += kDepth * kRowThreads) {
        E d[kDepth], a[kDepth];
#pragma unroll
        for (int i = 0; i < kDepth; i++) {
            const int64_t at = (row + i * kRowThreads) * ld + place;
            if (row + i * kRowThreads < last) {
                d[i] = load_pack<V>(dy + at);
                if constexpr (FORM != kPlain) a[i] = load_pack<V>(aux + at);
            }
        }
#pragma unroll
        for (int i = 0; i < kDepth; i++) {
            if (row + i * kRowThreads >= last) break;
            add_elements<T, V, FORM>(sum, d[i], a[i]);
            if constexpr (FORM != kPlain) store_pack(dy + (row + i * kRowThreads) * ld + place, d[i]);
        }
    }
#pragma unroll
    for (int j = 0; j < V; j++) sums[ty][tx * V + j] = sum[j];
    __syncthreads();
    for (int c = threadIdx.x; c < kColumnThreads * V; c += kThreads) {
        int64_t at = blockIdx.x * static_cast<int64_t>(kColumnThreads) * V + c;
        float total = 0;
#pragma unroll
        for (int r = 0; r < kRowThreads; r++) total += sums[r][c];
        if (at < N) partial[blockIdx.y * N + at] = total;
    }
}

/* sums (+)= the sum over ranges: kRangeGroups sums of every kRangeGroups-th range side by side, then those in order.
 * The N summed columns, then the null ones. */
__global__ void __launch_bounds__(kColumnThreads *kRangeGroups)
    add_ranges_kernel(int64_t N, struct null_columns null, int ranges, const float *partial, float *sums,
                      bool accumulate)
{
    SHARED(float, groups, [kRangeGroups][kColumnThreads]);
    int64_t column = blockIdx.x * static_cast<int64_t>(kColumnThreads) + threadIdx.x;
    float total = 0;
    for (int r = threadIdx.y; r < ranges && column < N; r += kRangeGroups) total += partial[r * N + column];
    groups[threadIdx.y][threadIdx.x] = total;
    __syncthreads();
    if (threadIdx.y != 0 || column >= N + null.count) return;
    total = 0;
    for (int group = 0; group < kRangeGroups; group++) total += groups[group][threadIdx.x];
    float *sum = sums + (column < N ? place_of(null, column) : null.first + column - N);
    *sum = accumulate ? *sum + total : total;
}

/* Calls launch(width<FORM>()) for the form of GELU, or for none where there is no `aux`. */
template <typename Launch> void dispatch_form(const void *aux, bool erf_form, Launch launch)
{
    if (!aux)
        launch(width<kPlain>());
    else if (erf_form)
        launch(width<kErf>());
    else
        launch(width<kTanh>());
}

template <typename Y, typename T> void bias_gelu(struct stream *stream, const struct linear_fwd_args *a, int64_t ld_y)
{
    const bool aligned = aligned16(a->y, a->aux, a->bias, ld_y * static_cast<int64_t>(sizeof(Y)),
                                   a->N * static_cast<int64_t>(sizeof(T)));
    dispatch_form(a->aux, a->gelu_erf, [&](auto form) {
        constexpr int FORM = decltype(form)::value;
        LAUNCH(stream, "linear_fwd (bias, GELU)",
               (aligned ? bias_gelu_kernel<Y, T, VECTOR<T>, FORM> : bias_gelu_kernel<Y, T, 1, FORM>),
               grid_of(stream, ceil_div(a->M * a->N / (aligned ? VECTOR<T> : 1), kThreads), kBiasGeluResident<FORM>),
               kThreads, a->M, a->N, static_cast<Y *>(a->y), ld_y, static_cast<const T *>(a->bias),
               static_cast<T *>(a->aux));
    });
}

/* A matrix of M rows, ld apart, of which N columns are summed. aux: slopes of GELU to multiply by first, likewise. */
struct columns {
    int64_t M, N, ld;
    struct null_columns null;
    const void *matrix, *aux;
    bool erf_form;
};

void sum_columns(struct stream *stream, const struct columns *c, float *sums, enum dtype dtype, bool add, void *scratch)
{
    float *partial = static_cast<float *>(scratch);
    const int64_t ranges = cuda_column_ranges(c->M, c->N), all = c->N + c->null.count;
    dispatch(dtype, [&](auto type) {
        using T = decltype(type);
        constexpr int V = VECTOR<T>;
        const bool packs = c->N % V == 0 && c->ld % V == 0 && c->null.first % V == 0 && c->null.count % V == 0 &&
                           aligned16(c->matrix, c->aux);
        const dim3 grid(static_cast<unsigned>(ceil_div(c->N, kColumnThreads * (packs ? V : 1))),
                        static_cast<unsigned>(ranges));
        dispatch_form(c->aux, c->erf_form, [&](auto form) {
            constexpr int FORM = decltype(form)::value;
            LAUNCH(stream, "a bias' gradient",
                   (packs ? column_sums_kernel<T, V, FORM> : column_sums_kernel<T, 1, FORM>), grid, kThreads, c->M,
                   c->N, static_cast<T *>(const_cast<void *>(c->matrix)), c->ld, c->null,
                   static_cast<const T *>(c->aux), ceil_div(c->M, ranges), partial);
        });
    });
    LAUNCH(stream, "a bias' gradient", add_ranges_kernel, dim3(static_cast<unsigned>(ceil_div(all, kColumnThreads))),
           dim3(kColumnThreads, kRangeGroups), c->N, c->null, static_cast<int>(ranges), partial, sums, add);
}

} // namespace

void cuda_bias_gelu(struct stream *stream, const struct linear_fwd_args *a)
{
    const int64_t ld_y = a->ld_y ? a->ld_y : a->N;
    ASSERT((a->y_dtype == a->dtype || a->y_dtype == DTYPE_F32) && a->N <= INT32_MAX / 2);
    dispatch(a->dtype, [&](auto type) {
        using T = decltype(type);
        if (a->y_dtype == DTYPE_F32)
            bias_gelu<float, T>(stream, a, ld_y);
        else
            bias_gelu<T, T>(stream, a, ld_y);
    });
}

void cuda_gelu_backward(struct stream *stream, const struct linear_bwd_input_args *a)
{
    dispatch(a->dtype, [&](auto type) {
        using T = decltype(type);
        const int64_t n = a->M * a->K, packs = aligned16(a->dx, a->gelu_aux) ? n / VECTOR<T> : 0;
        LAUNCH(stream, "linear_bwd_input (GELU)",
               (a->gelu_erf ? gelu_backward_kernel<T, true> : gelu_backward_kernel<T, false>),
               grid_of_elements(stream, n, packs ? VECTOR<T> : 1), kThreads, n, packs, static_cast<T *>(a->dx),
               static_cast<const T *>(a->gelu_aux));
    });
}

size_t cuda_bias_sums_bytes(const struct linear_bwd_weight_args *a)
{
    const size_t summed = cuda_column_sums_bytes(a->M, a->N - a->null_count), all = (size_t)a->N * sizeof(float);
    return summed > all ? summed : all;
}

void cuda_bias_sums(struct stream *stream, const struct linear_bwd_weight_args *a, void *scratch)
{
    const int64_t summed = a->N - a->null_count;
    const struct null_columns null = {a->null_count ? a->null_first : summed, a->null_count};
    const struct columns columns = {a->M, summed, a->ld_dy ? a->ld_dy : a->N, null, a->dy, nullptr, false};
    ASSERT(summed > 0);
    sum_columns(stream, &columns, a->dbias, a->dtype, a->accumulate_dbias, scratch);
}

void cuda_column_sums(struct stream *stream, const struct linear_bwd_input_args *a, void *scratch)
{
    const struct columns columns = {a->M, a->K, a->ld_dx ? a->ld_dx : a->K, {a->K, 0}, a->dx, a->gelu_aux, a->gelu_erf};
    sum_columns(stream, &columns, a->dbias, a->dtype, a->accumulate_dbias, scratch);
}
CUDA_MODULE(gemm, add_ranges_kernel)
