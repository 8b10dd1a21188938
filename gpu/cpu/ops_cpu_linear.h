/* ops_cpu_linear.h: the three matrix products of a linear layer, by oneDNN or the built-in products. A template, see
 * ops_cpu.h. */

/* Does the parts of an epilogue that oneDNN's product did not do, row by row over C, or over aux if aux holds the
 * sums. */
static void finish_library_product(const struct product *p, const struct epilogue *e)
{
    struct epilogue rest = *e;
    const void *sums = e->aux ? e->aux : e->c;
    const int64_t ld = e->aux ? e->ld_aux : e->ldc;
    const enum dtype dtype = e->aux ? e->dtype : e->c_dtype;
    if (e->dtype == DTYPE_BF16)
        rest.bias = NULL; /* oneDNN has added it */
    if (!rest.bias && !rest.aux && !rest.gelu_aux)
        return;
#pragma omp parallel for schedule(static) if (p->m * p->n > WORTH_THREADS)
    for (int64_t i = 0; i < p->m; i++) {
        enum { PIECE = 64 * VF };
        _Alignas(64) float row[PIECE];
        for (int64_t j = 0; j < p->n; j += PIECE) {
            int64_t n = min_i64(PIECE, p->n - j);
            for (int64_t l = 0; l < n; l += VF) {
                WITH_DTYPE(dtype, vf_put(row, l, n, vf_get(at(sums, i * ld + j, DT), l, n, DT), DTYPE_F32));
            }
            epilogue_rows(&rest, row, PIECE, NULL, 0, i, j, 1, n);
        }
    }
}

static bool product_by_library(struct stream *stream, const struct product *p, const struct epilogue *e)
{
    struct device_cpu *cpu = device_cpu_of(stream);
    struct scratch scratch = scratch_of(stream);
    struct gemm_args args = {.dtype = e->dtype,
                             .c_dtype = e->aux ? e->dtype : e->c_dtype,
                             .transpose_a = p->transpose_a,
                             .transpose_b = p->transpose_b,
                             .m = p->m,
                             .n = p->n,
                             .k = p->k,
                             .a = p->a,
                             .b = p->b,
                             .lda = p->lda,
                             .ldb = p->ldb,
                             .c = e->aux ? e->aux : e->c,
                             .ldc = e->aux ? e->ld_aux : e->ldc,
                             .bias = e->dtype == DTYPE_BF16 ? e->bias : NULL,
                             .accumulate = e->accumulate,
                             .scratch = scratch.next,
                             .scratch_bytes = scratch.left};
    switch (gemm_onednn_multiply(cpu->onednn, &args)) {
    case GEMM_DONE: finish_library_product(p, e); return true;
    case GEMM_UNSUPPORTED: return false;
    case GEMM_FAILED: break;
    }
    device_cpu_fail(cpu, "oneDNN failed to multiply %s matrices (m %lld, n %lld, k %lld)", dtype_name(e->dtype),
                    (long long)p->m, (long long)p->n, (long long)p->k);
    return true;
}

static void product(struct stream *stream, const struct product *p, const struct epilogue *e)
{
    const struct device_cpu *cpu = device_cpu_of(stream);
    heartbeat_beat();
    if (p->m == 0 || p->n == 0)
        return;
    if (!gemm_onednn_wants(cpu->onednn, e->dtype) || !product_by_library(stream, p, e))
        gemm_builtin(scratch_of(stream), product_kind(&cpu->kernels, e->dtype), p, e);
}

static void op_linear_fwd(struct stream *stream, const struct linear_fwd_args *a)
{
    struct product p = {false, !a->weights_in_out, a->M, a->N, a->K, a->x, a->w, a->K, a->weights_in_out ? a->N : a->K};
    struct epilogue e = {.dtype = a->dtype,
                         .c_dtype = a->y_dtype,
                         .c = a->y,
                         .ldc = a->ld_y ? a->ld_y : a->N,
                         .bias = a->bias,
                         .aux = a->gelu ? a->aux : NULL,
                         .gelu_erf = a->gelu_erf,
                         .ld_aux = a->N};
    ASSERT(a->y_dtype == DTYPE_F32 || a->y_dtype == a->dtype);
    if (a->M == 1)
        row_product(stream, a, &e);
    else
        product(stream, &p, &e);
    if (a->gated) {
        const struct swiglu_fwd_args gate = linear_gate_fwd(a);
        op_swiglu_fwd(stream, &gate);
    }
}

static ALWAYS_INLINE void column_sums(float *sums, const void *x, int64_t ld, int64_t rows, struct range columns,
                                      enum dtype dtype, bool accumulate)
{
    for (int64_t j = columns.first; j < columns.end; j += VF) {
        vf sum = accumulate ? vf_get(sums, j, columns.end, DTYPE_F32) : vf_zero();
        for (int64_t i = 0; i < rows; i++)
            sum += vf_get(at(x, i * ld, dtype), j, columns.end, dtype);
        vf_put(sums, j, columns.end, sum, DTYPE_F32);
    }
}

/* sums (+)= the sums of x (rows, n; rows ld apart) over its rows */
static void sum_columns(float *sums, const void *x, int64_t ld, int64_t rows, int64_t n, enum dtype dtype,
                        bool accumulate)
{
#pragma omp parallel if (rows * n > WORTH_THREADS)
    {
        struct range columns = range_mine(n, 64);
        WITH_DTYPE(dtype, column_sums(sums, x, ld, rows, columns, DT, accumulate));
    }
}

static void op_linear_bwd_input(struct stream *stream, const struct linear_bwd_input_args *a)
{
    struct product p = {false,
                        a->weights_in_out,
                        a->M,
                        a->K,
                        a->N,
                        a->dy,
                        a->w,
                        a->ld_dy ? a->ld_dy : a->N,
                        a->weights_in_out ? a->N : a->K};
    struct epilogue e = {.dtype = a->dtype,
                         .c_dtype = a->dtype,
                         .c = a->dx,
                         .ldc = a->K,
                         .gelu_aux = a->gelu_aux,
                         .gelu_erf = a->gelu_erf,
                         .ld_aux = a->K,
                         .accumulate = a->accumulate};
    ASSERT(!a->accumulate || (!a->gelu_aux && !a->dbias));
    product(stream, &p, &e);
    if (a->dbias)
        sum_columns(a->dbias, a->dx, a->K, a->M, a->K, a->dtype, a->accumulate_dbias);
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
    sum_columns(a->dbias, a->dy, ld_dy, a->M, first, a->dtype, adds);
    sum_columns(a->dbias + end, at(a->dy, end, a->dtype), ld_dy, a->M, a->N - end, a->dtype, adds);
    if (!adds && end > first)
        memset(a->dbias + first, 0, (size_t)(end - first) * sizeof *a->dbias);
}

static void op_linear_bwd_weight(struct stream *stream, const struct linear_bwd_weight_args *a)
{
    int64_t ld_dy = a->ld_dy ? a->ld_dy : a->N;
    struct product p = {true, false, a->N, a->K, a->M, a->dy, a->x, ld_dy, a->K};
    if (a->weights_in_out)
        p = (struct product){true, false, a->K, a->N, a->M, a->x, a->dy, a->K, ld_dy};
    struct epilogue e = {.dtype = a->dtype,
                         .c_dtype = a->dw_dtype,
                         .c = a->dw,
                         .ldc = p.n,
                         .accumulate = a->accumulate,
                         .streamed = true};
    ASSERT(a->dw_dtype == DTYPE_F32 || (a->dw_dtype == DTYPE_BF16 && a->dtype == DTYPE_BF16));
    if (a->M == 0) {
        if (!a->accumulate)
            memset(a->dw, 0, (size_t)(a->N * a->K) * dtype_size(a->dw_dtype));
        if (a->dbias && !a->accumulate_dbias)
            memset(a->dbias, 0, (size_t)a->N * sizeof(float));
        return;
    }
    product(stream, &p, &e);
    if (a->dbias)
        bias_gradient(a, ld_dy);
}
