/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_grouped.h: the products of experts' rows with their matrices. A template, see ops_cpu.h. The results of all
 * experts are cut into parts of at most GROUPED_TILE rows and columns, which threads take one by one, each packing its
 * own operands, so that no split of the rows leaves a thread idle. */

_Static_assert(GROUPED_TILE % MR == 0 && GROUPED_TILE % NR == 0 && GROUPED_TILE % TILE_MR == 0,
               "parts are whole tiles");

/* `p` and `e` are those of the first expert, if it had no rows. by_weight: C has a matrix for each expert, and the sum
 * is over the expert's rows of A and B; else B has one, and A and C have the rows. */
struct grouped {
    struct product p;
    struct epilogue e;
    bool by_weight;
    int64_t experts;
    const int32_t *offsets;
    enum unit_kind kind;
    int64_t tile; /* rows and columns of a part, at most */
};

static struct product grouped_expert(const struct grouped *g, int64_t expert, struct epilogue *e)
{
    struct product p = g->p;
    const int64_t first = g->offsets[expert], rows = g->offsets[expert + 1] - first;
    const enum dtype dtype = g->e.dtype;
    *e = g->e;
    p.a = at(p.a, first * p.lda, dtype);
    if (g->by_weight) {
        p.k = rows;
        p.b = at(p.b, first * p.ldb, dtype);
        e->c = at(e->c, expert * p.m * p.n, e->c_dtype);
    } else {
        p.m = rows;
        p.b = at(p.b, expert * p.n * p.k, dtype);
        e->c = at(e->c, first * e->ldc, e->c_dtype);
        if (e->bias) e->bias = at(e->bias, expert * p.n, dtype);
    }
    if (g->by_weight && e->accumulate && p.k == 0) p.m = 0;
    return p;
}

/* How C is cut into parts of about equal size, `down` of them one below the other. */
struct grouped_cut {
    int64_t rows, columns, down, parts;
};

static struct grouped_cut grouped_cut_of(const struct grouped *g, const struct product *p)
{
    struct grouped_cut c = {.rows = gemm_even_step(p->m, g->tile, panel_rows(g->kind)),
                            .columns = gemm_even_step(p->n, g->tile, NR)};
    c.down = (p->m + c.rows - 1) / c.rows;
    c.parts = c.down * ((p->n + c.columns - 1) / c.columns);
    return c;
}

/* A part of C, by one thread. */
static void grouped_part(const struct grouped *g, struct product p, struct epilogue e, const struct grouped_cut *cut,
                         int64_t part, uint32_t *scratch)
{
    const int64_t row = part % cut->down * cut->rows, column = part / cut->down * cut->columns;
    p.m = min64(cut->rows, p.m - row);
    p.n = min64(cut->columns, p.n - column);
    p.a = at(p.a, p.transpose_a ? row : row * p.lda, e.dtype);
    p.b = at(p.b, p.transpose_b ? column * p.ldb : column, e.dtype);
    e.c = at(e.c, row * e.ldc + column, e.c_dtype);
    if (e.bias) e.bias = at(e.bias, column, e.dtype);
    for (int64_t i = 0; p.k == 0 && i < p.m; i++)
        memset(at(e.c, i * e.ldc, e.c_dtype), 0, (size_t)p.n * dtype_size(e.c_dtype));
    if (p.k == 0) return;
    struct gemm_job job = gemm_job_of(g->kind, &p, &e, false, true);
    job.a = scratch;
    job.b = scratch + GROUPED_TILE * GEMM_KC;
    job.partial = (float *)(scratch + 2 * GROUPED_TILE * GEMM_KC);
    multiply_blocks(&job, e.accumulate && e.c_dtype == DTYPE_F32);
}

static int64_t grouped_all_parts(const struct grouped *g)
{
    int64_t parts = 0;
    for (int64_t i = 0; i < g->experts; i++) {
        struct epilogue e;
        const struct product p = grouped_expert(g, i, &e);
        parts += grouped_cut_of(g, &p).parts;
    }
    return parts;
}

/* Parts become smaller where there are few of them for the threads. */
static void grouped_product(struct stream *stream, struct grouped *g)
{
    enum { PARTS_OF_THREAD = 4, LEAST = GROUPED_TILE / 4 };
    struct scratch scratch = scratch_of(stream);
    const int64_t threads = team_next();
    const size_t bytes = GROUPED_THREAD_FLOATS * sizeof(float);
    char *memory = scratch_take(&scratch, (size_t)threads * bytes);
    _Atomic int64_t next = 0;
    heartbeat_beat();
    g->kind = gemm_product_kind(device_cpu_kernels(stream->device), g->e.dtype);
    g->tile = GROUPED_TILE;
    while (threads > 1 && g->tile > LEAST && grouped_all_parts(g) < threads * PARTS_OF_THREAD) g->tile /= 2;
#pragma omp parallel
    {
        uint32_t *mine = (uint32_t *)(memory + (size_t)team_rank() * bytes);
        int64_t before = 0, part = atomic_fetch_add(&next, 1);
        amx_begin(g->kind);
        for (int64_t i = 0; i < g->experts; i++) {
            struct epilogue e;
            const struct product p = grouped_expert(g, i, &e);
            const struct grouped_cut cut = grouped_cut_of(g, &p);
            for (; part < before + cut.parts; part = atomic_fetch_add(&next, 1))
                grouped_part(g, p, e, &cut, part - before, mine);
            before += cut.parts;
        }
        amx_end(g->kind);
    }
    heartbeat_beat();
}

static void op_grouped_linear_fwd(struct stream *stream, const struct grouped_linear_fwd_args *a)
{
    struct grouped g = {
        .p = {false, !a->weights_in_out, 0, a->N, a->K, a->x, a->w, a->K, a->weights_in_out ? a->N : a->K},
        .e = {.dtype = a->dtype,
              .c_dtype = a->dtype,
              .c = a->y,
              .ldc = a->N,
              .bias = a->bias,
              .accumulate = a->accumulate},
        .experts = a->E,
        .offsets = a->offsets};
    if (a->M > 0) grouped_product(stream, &g);
}

static void op_grouped_linear_bwd_input(struct stream *stream, const struct grouped_linear_bwd_input_args *a)
{
    const struct grouped_linear_fwd_args product = grouped_linear_of_bwd_input(a);
    op_grouped_linear_fwd(stream, &product);
}

static ALWAYS_INLINE void grouped_bias_sums(const struct grouped_linear_bwd_weight_args *a, int64_t expert,
                                            struct range columns, enum dtype dtype)
{
    float *sums = a->dbias + expert * a->N;
    for (int64_t j = columns.first; j < columns.end; j += VF) {
        vf sum = a->accumulate_dbias ? vf_get(sums, j, columns.end, DTYPE_F32) : vf_zero();
        for (int64_t i = a->offsets[expert]; i < a->offsets[expert + 1]; i++) {
            const vf d = vf_get(at(a->dy, i * a->N, dtype), j, columns.end, dtype);
            sum = a->row_weights ? vf_fma(vf_set(a->row_weights[i]), d, sum) : sum + d;
        }
        vf_put(sums, j, columns.end, sum, DTYPE_F32);
    }
}

static void op_grouped_linear_bwd_weight(struct stream *stream, const struct grouped_linear_bwd_weight_args *a)
{
    enum { COLUMNS = 64 };
    struct grouped g = {.p = {true, false, a->N, a->K, 0, a->dy, a->x, a->N, a->K},
                        .e = {.dtype = a->dtype,
                              .c_dtype = a->dw_dtype,
                              .c = a->dw,
                              .ldc = a->weights_in_out ? a->N : a->K,
                              .accumulate = a->accumulate,
                              .streamed = true},
                        .by_weight = true,
                        .experts = a->E,
                        .offsets = a->offsets};
    const int64_t ranges = (a->N + COLUMNS - 1) / COLUMNS;
    ASSERT(a->dw_dtype == DTYPE_F32 || (a->dw_dtype == DTYPE_BF16 && a->dtype == DTYPE_BF16));
    if (a->weights_in_out) g.p = (struct product){true, false, a->K, a->N, 0, a->x, a->dy, a->K, a->N};
    grouped_product(stream, &g);
    if (!a->dbias) return;
#pragma omp parallel for schedule(dynamic) if (a->M * a->N > WORTH_THREADS)
    for (int64_t i = 0; i < a->E * ranges; i++) {
        const struct range columns = {i % ranges * COLUMNS, min64((i % ranges + 1) * COLUMNS, a->N)};
        WITH_DTYPE(a->dtype, grouped_bias_sums(a, i / ranges, columns, DT));
    }
}
