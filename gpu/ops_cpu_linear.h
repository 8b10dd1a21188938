/* ops_cpu_linear.h: the three products of a linear layer. A template, see ops_cpu.h.
 *
 * fp32 goes straight to the GEMM. bf16 is widened block by block into fp32 scratch, multiplied there, and rounded once
 * when a block is finished:
 *
 *     for each block of C (PRODUCT_BLOCK squared): sum over blocks of k of widen(A block) · widen(B block); epilogue */

enum { PRODUCT_BLOCK = 1024 };

/* What happens to a finished sum before it is stored. All pointers address the element of C at row 0, column 0. */
struct epilogue {
    enum dtype dtype, c_dtype; /* of bias, aux, gelu_aux; of C */
    void *c;
    int64_t ldc;
    const void *bias;     /* (n) or NULL */
    void *aux;            /* (m, n), dense: gets the sum, and C its gelu; or NULL */
    const void *gelu_aux; /* (m, n), dense: C = sum · gelu'(gelu_aux); or NULL */
    int64_t ld_aux;
    bool accumulate; /* C += */
};

static ALWAYS_INLINE void epilogue_row(const struct epilogue *e, const float *sum, int64_t row, int64_t column,
                                       int64_t n, enum dtype dtype, enum dtype c_dtype)
{
    void *c = at(e->c, row * e->ldc + column, c_dtype);
    for (int64_t j = 0; j < n; j += VF) {
        vf x = vf_get(sum, j, n, DTYPE_F32);
        if (e->bias)
            x += vf_get(at(e->bias, column, dtype), j, n, dtype);
        if (e->aux) {
            vf_put(at(e->aux, row * e->ld_aux + column, dtype), j, n, x, dtype);
            x = vf_gelu(x);
        }
        if (e->gelu_aux)
            x *= vf_gelu_grad(vf_get(at(e->gelu_aux, row * e->ld_aux + column, dtype), j, n, dtype));
        if (e->accumulate)
            x += vf_get(c, j, n, c_dtype);
        vf_put(c, j, n, x, c_dtype);
    }
}

/* sum (m, n), rows ld apart, is the finished block of C at (row, column); it may be C itself. */
static void epilogue_block(const struct epilogue *e, const float *sum, int64_t ld, int64_t row, int64_t column,
                           int64_t m, int64_t n)
{
#pragma omp parallel for schedule(static) if (m * n > WORTH_THREADS)
    for (int64_t i = 0; i < m; i++) {
        if (e->dtype == DTYPE_F32)
            epilogue_row(e, sum + i * ld, row + i, column, n, DTYPE_F32, DTYPE_F32);
        else if (e->c_dtype == DTYPE_F32)
            epilogue_row(e, sum + i * ld, row + i, column, n, DTYPE_BF16, DTYPE_F32);
        else
            epilogue_row(e, sum + i * ld, row + i, column, n, DTYPE_BF16, DTYPE_BF16);
    }
}

static void widen_block(float *dst, const uint16_t *src, int64_t ld, int64_t rows, int64_t columns)
{
#pragma omp parallel for schedule(static) if (rows * columns > WORTH_THREADS)
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j += VF)
            vf_put(dst + i * columns, j, columns, vf_get(src + i * ld, j, columns, DTYPE_BF16), DTYPE_F32);
}

/* The block (k, m) or (m, k) of a stored matrix whose logical corner is (row, column). */
static void widen_operand(float *dst, const uint16_t *src, int64_t ld, bool transposed, int64_t row, int64_t column,
                          int64_t rows, int64_t columns)
{
    if (transposed)
        widen_block(dst, src + column * ld + row, ld, columns, rows);
    else
        widen_block(dst, src + row * ld + column, ld, rows, columns);
}

struct product {
    bool transpose_a, transpose_b;
    int64_t m, n, k;
    const void *a, *b;
    int64_t lda, ldb;
};

static void product_f32(struct stream *stream, const struct product *p, const struct epilogue *e)
{
    bool direct = !e->bias && !e->aux && !e->gelu_aux;
    struct gemm_f32_args args = {p->transpose_a,
                                 p->transpose_b,
                                 p->m,
                                 p->n,
                                 p->k,
                                 p->a,
                                 p->lda,
                                 p->b,
                                 p->ldb,
                                 e->aux ? e->aux : e->c,
                                 e->aux ? e->ld_aux : e->ldc,
                                 e->accumulate};
    gemm_f32(device_cpu_of(stream)->gemm, &args);
    if (direct)
        return;
    ASSERT(!e->accumulate);
    epilogue_block(e, args.c, args.ldc, 0, 0, p->m, p->n);
}

static void product_bf16(struct stream *stream, const struct product *p, const struct epilogue *e)
{
    struct gemm *gemm = device_cpu_of(stream)->gemm;
    struct scratch scratch = scratch_of(stream);
    const size_t block_bytes = (size_t)PRODUCT_BLOCK * PRODUCT_BLOCK * sizeof(float);
    float *a = scratch_take(&scratch, block_bytes), *b = scratch_take(&scratch, block_bytes);
    float *c = scratch_take(&scratch, block_bytes);
    for (int64_t j = 0; j < p->n; j += PRODUCT_BLOCK) {
        int64_t n = min_i64(PRODUCT_BLOCK, p->n - j);
        for (int64_t i = 0; i < p->m; i += PRODUCT_BLOCK) {
            int64_t m = min_i64(PRODUCT_BLOCK, p->m - i);
            for (int64_t l = 0; l < p->k; l += PRODUCT_BLOCK) {
                int64_t k = min_i64(PRODUCT_BLOCK, p->k - l);
                widen_operand(a, p->a, p->lda, p->transpose_a, i, l, m, k);
                widen_operand(b, p->b, p->ldb, p->transpose_b, l, j, k, n);
                struct gemm_f32_args args = {
                    p->transpose_a, p->transpose_b, m, n, k, a, p->transpose_a ? m : k, b, p->transpose_b ? k : n, c, n,
                    l > 0};
                gemm_f32(gemm, &args);
            }
            epilogue_block(e, c, n, i, j, m, n);
        }
    }
}

static void product(struct stream *stream, const struct product *p, const struct epilogue *e)
{
    require_dtype(e->dtype);
    progress_tick();
    if (p->m == 0 || p->n == 0)
        return;
    if (e->dtype == DTYPE_F32)
        product_f32(stream, p, e);
    else
        product_bf16(stream, p, e);
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
