/* SPDX-License-Identifier: Apache-2.0 */
/* ops_cuda_muon.cu: Muon: momentum, Newton-Schulz iterations over the linear ops, update. */
#include "gpu/cuda/cuda_kernels.cuh"

namespace
{

enum { THREADS = ELEMENT_THREADS, V = VECTOR<float> };

template <typename G>
__global__ void __launch_bounds__(THREADS) muon_momentum_kernel(struct muon_momentum_args a, int64_t whole)
{
    if (a.step->skipped) return;
    const float scale = a.step->grad_scale;
    each_element<V>(a.n, whole, [&](auto width, int64_t i) {
        constexpr int N = decltype(width)::value;
        const float taken = 1 - a.momentum;
        float g[N], m[N];
        load(static_cast<const G *>(a.grad) + i, g);
        load(a.m + i, m);
#pragma unroll
        for (int j = 0; j < N; j++) {
            g[j] = taken * (g[j] * scale);
            m[j] = fmaf(a.momentum, m[j], g[j]);
            g[j] = a.nesterov ? fmaf(a.momentum, m[j], g[j]) : m[j];
        }
        store(a.m + i, m);
        store(static_cast<__nv_bfloat16 *>(a.update) + i, g);
    });
}

struct blend {
    float a, b;
    __device__ float operator()(float x, float p) const
    {
        return fmaf(b, p, a * x);
    }
};

/* y = bf16(a · x + b · p), n elements; y may be x. */
void muon_enqueue_blend(struct stream *stream, int64_t n, void *y, float a, const void *x, float b, const float *p)
{
    map_elements(stream, "orthogonalize", n, static_cast<__nv_bfloat16 *>(y), blend{a, b},
                 static_cast<const __nv_bfloat16 *>(x), p);
}

/* y = bf16(x / norm), n elements */
__global__ void __launch_bounds__(THREADS)
    normalise_kernel(int64_t n, __nv_bfloat16 *y, const __nv_bfloat16 *x, const double *sum)
{
    const float norm = to_float(rounded<__nv_bfloat16>(static_cast<float>(sqrt(*sum))));
    const float least = to_float(rounded<__nv_bfloat16>(orthogonalize_eps));
    const float divisor = norm < least ? least : norm;
    for (int64_t i = grid_thread(); i < n; i += grid_threads()) y[i] = rounded<__nv_bfloat16>(to_float(x[i]) / divisor);
}

/* y (M, N) fp32 = x (M, K) · w, which is stored (K, N), or (N, K) if transposed. */
void muon_product(struct stream *stream, int64_t M, int64_t N, int64_t K, const void *x, const void *w, bool transposed,
                  float *y)
{
    struct linear_fwd_args args = {};
    args.dtype = DTYPE_BF16;
    args.y_dtype = DTYPE_F32;
    args.weights_in_out = !transposed;
    args.M = M;
    args.N = N;
    args.K = K;
    args.y = y;
    args.x = x;
    args.w = w;
    cuda_linear_fwd(stream, &args);
}

/* product = X Xᵀ, or with more rows than columns Xᵀ X */
void gram_of(struct stream *stream, const struct orthogonalize_args *a)
{
    if (a->rows <= a->cols) {
        muon_product(stream, a->rows, a->rows, a->cols, a->iterate, a->iterate, true, a->product);
        return;
    }
    struct linear_bwd_weight_args args = {};
    args.dtype = DTYPE_BF16;
    args.M = a->rows;
    args.N = args.K = a->cols;
    args.dw = a->product;
    args.dy = args.x = a->iterate;
    cuda_linear_bwd_weight(stream, &args);
}

/* One iteration, whose result goes to `y`. */
void iterate(struct stream *stream, const struct orthogonalize_args *a, void *y)
{
    const int64_t n = a->rows < a->cols ? a->rows : a->cols;
    const struct cast_args round = {DTYPE_BF16, DTYPE_F32, n * n, a->gram, a->product};
    gram_of(stream, a);
    cuda_cast(stream, &round);
    muon_product(stream, n, n, n, a->gram, a->gram, false, a->product);
    muon_enqueue_blend(stream, n * n, a->polynomial, orthogonalize_b, a->gram, orthogonalize_c, a->product);
    if (a->rows > a->cols)
        muon_product(stream, a->rows, n, n, a->iterate, a->polynomial, false, a->product);
    else
        muon_product(stream, n, a->cols, n, a->polynomial, a->iterate, false, a->product);
    muon_enqueue_blend(stream, a->rows * a->cols, y, orthogonalize_a, a->iterate, 1, a->product);
}

template <typename P>
__global__ void __launch_bounds__(THREADS) muon_update_kernel(struct muon_update_args a, int64_t whole)
{
    if (a.step->skipped) return;
    const double lr = a.step->lr * a.lr_factor;
    const float decay = -static_cast<float>(lr) * a.weight_decay, step = -static_cast<float>(lr * a.adjust);
    each_element<V>(a.n, whole, [&](auto width, int64_t i) {
        constexpr int N = decltype(width)::value;
        float w[N], o[N];
        load(a.master + i, w);
        load(static_cast<const __nv_bfloat16 *>(a.update) + i, o);
#pragma unroll
        for (int j = 0; j < N; j++) w[j] = fmaf(step, o[j], fmaf(decay, w[j], w[j]));
        store(a.master + i, w);
        if (a.param) store(static_cast<P *>(a.param) + i, w);
    });
}

} // namespace

void cuda_muon_momentum(struct stream *stream, const struct muon_momentum_args *a)
{
    dispatch_state(a->grad_dtype, [&](auto g) {
        launch_elements<V>(stream, "muon_momentum", muon_momentum_kernel<decltype(g)>, *a, a->n,
                           aligned16(a->m, a->grad, a->update));
    });
}

void cuda_orthogonalize(struct stream *stream, const struct orthogonalize_args *a)
{
    const struct sumsq_args squares = {DTYPE_BF16, a->rows * a->cols, a->x, a->sum};
    ASSERT(a->steps >= 1);
    cuda_sumsq(stream, &squares);
    LAUNCH(stream, "orthogonalize", normalise_kernel, grid_of_elements(stream, squares.n, 1), THREADS, squares.n,
           static_cast<__nv_bfloat16 *>(a->iterate), static_cast<const __nv_bfloat16 *>(a->x),
           static_cast<const double *>(a->sum));
    for (int32_t step = 1; step <= a->steps; step++) iterate(stream, a, step < a->steps ? a->iterate : a->y);
}

void cuda_muon_update(struct stream *stream, const struct muon_update_args *a)
{
    dispatch(a->param ? a->param_dtype : DTYPE_F32, [&](auto p) {
        launch_elements<V>(stream, "muon_update", muon_update_kernel<decltype(p)>, *a, a->n,
                           aligned16(a->master, a->update, a->param));
    });
}
CUDA_MODULE(muon, normalise_kernel)
