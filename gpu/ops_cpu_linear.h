/* ops_cpu_linear.h: the three products of a linear layer, and which routine computes them. A template, see ops_cpu.h.
 */

static void product(struct stream *stream, const struct product *p, const struct epilogue *e)
{
    const struct device_cpu *cpu = device_cpu_of(stream);
    require_dtype(e->dtype);
    progress_tick();
    if (p->m == 0 || p->n == 0)
        return;
    gemm_builtin(scratch_of(stream), cpu->features.avx512_bf16, p, e);
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
                         .ld_aux = a->N};
    ASSERT(a->dtype == DTYPE_BF16 || a->y_dtype == DTYPE_F32);
    product(stream, &p, &e);
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
                         .ld_aux = a->K,
                         .accumulate = a->accumulate};
    ASSERT(!(a->accumulate && a->gelu_aux));
    product(stream, &p, &e);
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

static void op_linear_bwd_weight(struct stream *stream, const struct linear_bwd_weight_args *a)
{
    int64_t ld_dy = a->ld_dy ? a->ld_dy : a->N;
    struct product p = {true, false, a->N, a->K, a->M, a->dy, a->x, ld_dy, a->K};
    if (a->weights_in_out)
        p = (struct product){true, false, a->K, a->N, a->M, a->x, a->dy, a->K, ld_dy};
    struct epilogue e = {.dtype = a->dtype, .c_dtype = DTYPE_F32, .c = a->dw, .ldc = p.n, .accumulate = a->accumulate};
    if (a->M == 0) {
        if (!a->accumulate) {
            memset(a->dw, 0, (size_t)(a->N * a->K) * sizeof(float));
            if (a->dbias)
                memset(a->dbias, 0, (size_t)a->N * sizeof(float));
        }
        return;
    }
    product(stream, &p, &e);
    if (!a->dbias)
        return;
#pragma omp parallel if (a->M * a->N > WORTH_THREADS)
    {
        struct range columns = range_mine(a->N, 64);
        if (a->dtype == DTYPE_F32)
            column_sums(a->dbias, a->dy, ld_dy, a->M, columns, DTYPE_F32, a->accumulate);
        else
            column_sums(a->dbias, a->dy, ld_dy, a->M, columns, DTYPE_BF16, a->accumulate);
    }
}
