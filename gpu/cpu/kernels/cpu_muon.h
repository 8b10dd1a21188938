/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_muon.h: Muon: momentum, Newton-Schulz iterations over the linear ops, update. A template, see ops_cpu.h. */

static ALWAYS_INLINE void muon_momentum_part(const struct muon_momentum_args *a, struct range part, enum dtype grad)
{
    if (a->step->skipped) return;
    const vf kept = vf_set(a->momentum);
    const float scale = a->step->grad_scale, taken = 1 - a->momentum;
    for (int64_t i = part.first; i < part.end; i += VF) {
        vf g = taken * (vf_get(a->grad, i, part.end, grad) * scale);
        vf m = vf_fma(kept, vf_get(a->m, i, part.end, DTYPE_F32), g);
        vf_put(a->m, i, part.end, m, DTYPE_F32);
        vf_put(a->update, i, part.end, a->nesterov ? vf_fma(kept, m, g) : m, DTYPE_BF16);
    }
}

OP_OF_ELEMENTS(muon_momentum, WITH_DTYPE(a->grad_dtype, muon_momentum_part(a, part, DT)))

/* y = bf16(a · x + b · p), n elements; y may be x. */
static void orthogonalize_blend(int64_t n, void *y, float a, const void *x, float b, const float *p)
{
    IN_PARTS(
        n, n, 64, for (int64_t i = part.first; i < part.end; i += VF) {
            vf sum = a * vf_get(x, i, part.end, DTYPE_BF16);
            vf_put(y, i, part.end, vf_fma(vf_set(b), vf_get(p, i, part.end, DTYPE_F32), sum), DTYPE_BF16);
        });
}

static void orthogonalize_normalise(int64_t n, void *y, const void *x, double sum)
{
    const float rounded = bf16_to_f32(bf16_from_f32((float)sqrt(sum)));
    const float least = bf16_to_f32(bf16_from_f32(orthogonalize_eps));
    const vf norm = vf_set(rounded < least ? least : rounded);
    IN_PARTS(n, n, 64,
             for (int64_t i = part.first; i < part.end; i += VF)
                 vf_put(y, i, part.end, vf_get(x, i, part.end, DTYPE_BF16) / norm, DTYPE_BF16));
}

/* y (M, N) fp32 = x (M, K) · w, which is stored (K, N), or (N, K) if transposed. */
static void orthogonalize_product(struct stream *stream, int64_t M, int64_t N, int64_t K, const void *x, const void *w,
                                  bool transposed, float *y)
{
    const struct linear_fwd_args args = {.dtype = DTYPE_BF16,
                                         .y_dtype = DTYPE_F32,
                                         .weights_in_out = !transposed,
                                         .M = M,
                                         .N = N,
                                         .K = K,
                                         .y = y,
                                         .x = x,
                                         .w = w};
    op_linear_fwd(stream, &args);
}

/* product = X Xᵀ, or with more rows than columns Xᵀ X */
static void orthogonalize_gram(struct stream *stream, const struct orthogonalize_args *a)
{
    const struct linear_bwd_weight_args tall = {.dtype = DTYPE_BF16,
                                                .M = a->rows,
                                                .N = a->cols,
                                                .K = a->cols,
                                                .dw = a->product,
                                                .dy = a->iterate,
                                                .x = a->iterate};
    if (a->rows > a->cols)
        op_linear_bwd_weight(stream, &tall);
    else
        orthogonalize_product(stream, a->rows, a->rows, a->cols, a->iterate, a->iterate, true, a->product);
}

static void op_orthogonalize(struct stream *stream, const struct orthogonalize_args *a)
{
    const int64_t numel = a->rows * a->cols, n = min64(a->rows, a->cols);
    const struct sumsq_args squares = {.dtype = DTYPE_BF16, .n = numel, .x = a->x, .out = a->sum};
    const struct cast_args round = {
        .dst_dtype = DTYPE_BF16, .src_dtype = DTYPE_F32, .n = n * n, .dst = a->gram, .src = a->product};
    ASSERT(a->steps >= 1);
    op_sumsq(stream, &squares);
    orthogonalize_normalise(numel, a->iterate, a->x, *a->sum);
    for (int32_t step = 1; step <= a->steps; step++) {
        orthogonalize_gram(stream, a);
        op_cast(stream, &round);
        orthogonalize_product(stream, n, n, n, a->gram, a->gram, false, a->product);
        orthogonalize_blend(n * n, a->polynomial, orthogonalize_b, a->gram, orthogonalize_c, a->product);
        if (a->rows > a->cols)
            orthogonalize_product(stream, a->rows, n, n, a->iterate, a->polynomial, false, a->product);
        else
            orthogonalize_product(stream, n, a->cols, n, a->polynomial, a->iterate, false, a->product);
        orthogonalize_blend(numel, step < a->steps ? a->iterate : a->y, orthogonalize_a, a->iterate, 1, a->product);
    }
}

static ALWAYS_INLINE void muon_update_part(const struct muon_update_args *a, struct range part, enum dtype param_dtype)
{
    if (a->step->skipped) return;
    const double lr = a->step->lr * a->lr_factor;
    const vf decay = vf_set(-(float)lr * a->weight_decay), step = vf_set(-(float)(lr * a->adjust));
    for (int64_t i = part.first; i < part.end; i += VF) {
        vf w = vf_get(a->master, i, part.end, DTYPE_F32);
        w = vf_fma(step, vf_get(a->update, i, part.end, DTYPE_BF16), vf_fma(decay, w, w));
        vf_put(a->master, i, part.end, w, DTYPE_F32);
        if (a->param) vf_put(a->param, i, part.end, w, param_dtype);
    }
}

OP_OF_ELEMENTS(muon_update, WITH_DTYPE(a->param_dtype, muon_update_part(a, part, DT)))
