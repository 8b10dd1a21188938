/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_linear.h: the three matrix products of a linear layer. A template, see ops_cpu.h. */

static void linear_product(struct stream *stream, const struct product *p, const struct epilogue *e)
{
    heartbeat_beat();
    if (p->m == 0 || p->n == 0) return;
    gemm_builtin(scratch_of(stream), gemm_product_kind(device_cpu_kernels(stream->device), e->dtype), p, e);
}

static void op_linear_fwd(struct stream *stream, const struct linear_fwd_args *a)
{
    const int64_t ld_x = a->ld_x ? a->ld_x : a->K, ld_w = a->weights_in_out ? a->N : a->K;
    struct product p = {false, !a->weights_in_out, a->M, a->N, a->K, a->x, a->w, ld_x, ld_w};
    struct epilogue e = {.dtype = a->dtype,
                         .c_dtype = a->y_dtype,
                         .c = a->y,
                         .ldc = a->ld_y ? a->ld_y : a->N,
                         .bias = a->bias,
                         .aux = a->gelu ? a->aux : NULL,
                         .gelu_erf = a->gelu_erf,
                         .ld_aux = a->N,
                         .accumulate = a->accumulate};
    ASSERT(!a->accumulate || !a->gated);
    ASSERT(a->y_dtype == DTYPE_F32 || a->y_dtype == a->dtype);
    if (a->M == 1)
        row_product(stream, a, &e);
    else
        linear_product(stream, &p, &e);
    if (a->gated) {
        const struct swiglu_fwd_args gate = linear_gate_fwd(a);
        op_swiglu_fwd(stream, &gate);
    }
}

static void linear_sum_columns(float *sums, const void *x, int64_t ld, int64_t rows, int64_t n, enum dtype dtype,
                               bool accumulate)
{
    IN_PARTS(rows * n, n, 64, WITH_DTYPE(dtype, norm_column_sums(sums, x, ld, rows, part, DT, accumulate)));
}

static void op_linear_bwd_input(struct stream *stream, const struct linear_bwd_input_args *a)
{
    const int64_t ld_dy = a->ld_dy ? a->ld_dy : a->N, ld_w = a->weights_in_out ? a->N : a->K;
    struct product p = {false, a->weights_in_out, a->M, a->K, a->N, a->dy, a->w, ld_dy, ld_w};
    struct epilogue e = {.dtype = a->dtype,
                         .c_dtype = a->dtype,
                         .c = a->dx,
                         .ldc = a->ld_dx ? a->ld_dx : a->K,
                         .gelu_aux = a->gelu_aux,
                         .gelu_erf = a->gelu_erf,
                         .ld_aux = a->K,
                         .accumulate = a->accumulate};
    ASSERT(!a->gate_up || !a->accumulate);
    ASSERT(e.ldc == a->K || (!a->gelu_aux && !a->gate_up));
    linear_product(stream, &p, &e);
    if (a->dbias) linear_sum_columns(a->dbias, a->dx, e.ldc, a->M, a->K, a->dtype, a->accumulate_dbias);
    if (a->gate_up) {
        const struct swiglu_bwd_args gate = linear_gate_bwd(a);
        op_swiglu_bwd(stream, &gate);
    }
}

/* dbias of columns that are summed, and of those that add up to 0. */
static void bias_gradient(const struct linear_bwd_weight_args *a, int64_t ld_dy)
{
    const int64_t first = a->null_count ? a->null_first : a->N, end = a->null_count ? first + a->null_count : a->N;
    const bool adds = a->accumulate_dbias;
    linear_sum_columns(a->dbias, a->dy, ld_dy, a->M, first, a->dtype, adds);
    linear_sum_columns(a->dbias + end, at(a->dy, end, a->dtype), ld_dy, a->M, a->N - end, a->dtype, adds);
    if (!adds && end > first) memset(a->dbias + first, 0, (size_t)(end - first) * sizeof *a->dbias);
}

static void op_linear_bwd_weight(struct stream *stream, const struct linear_bwd_weight_args *a)
{
    const int64_t ld_dy = a->ld_dy ? a->ld_dy : a->N, ld_x = a->ld_x ? a->ld_x : a->K;
    struct product p = {true, false, a->N, a->K, a->M, a->dy, a->x, ld_dy, ld_x};
    if (a->weights_in_out) p = (struct product){true, false, a->K, a->N, a->M, a->x, a->dy, ld_x, ld_dy};
    struct epilogue e = {.dtype = a->dtype,
                         .c_dtype = a->dw_dtype,
                         .c = a->dw,
                         .ldc = p.n,
                         .accumulate = a->accumulate,
                         .streamed = true};
    ASSERT(a->dw_dtype == DTYPE_F32 || (a->dw_dtype == DTYPE_BF16 && a->dtype == DTYPE_BF16));
    if (a->M == 0) {
        if (!a->accumulate) memset(a->dw, 0, (size_t)(a->N * a->K) * dtype_size(a->dw_dtype));
        if (a->dbias && !a->accumulate_dbias) memset(a->dbias, 0, (size_t)a->N * sizeof(float));
        return;
    }
    linear_product(stream, &p, &e);
    if (a->dbias) bias_gradient(a, ld_dy);
}
