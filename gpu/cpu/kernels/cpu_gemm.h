/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_gemm.h: the built-in matrix product. A template, see ops_cpu.h.
 *
 * C (m, n) = op(A) (m, k) · op(B) (k, n), cut three times (the scheme of Goto and van de Geijn, 2008):
 *
 *     for each block of GEMM_NC columns of B and C
 *       for each block of k (GEMM_KC units): all threads pack the block of B into panels of NR columns
 *         for each block of GEMM_MC rows of A and C: all threads pack the block of A into panels of MR rows
 *           tasks of panels are handed out; a task runs the micro-kernel, with an MR x NR tile of C in registers
 *
 * If A has few rows, reading B takes a good part of the time. Blocks of B are then small, and while one is multiplied
 * the next one is fetched into the second-level cache.
 *
 * If B has few columns (an adapter's rank), packing A would take longer than the product: its panels are read in place.
 * Where they cannot be (A is transposed, or widened), tiles of MR x NR would be filled badly: the transpose of C is
 * computed instead, and each tile is turned before it is stored. The bits are the same.
 *
 * A tile's sum runs over k in order on one thread, so results do not depend on the threads. Between blocks of k, sums
 * wait in C if it is fp32, else in fp32 scratch.
 *
 * One thread may compute a part of C alone, while others compute other parts (cpu_grouped.h): the bits are the same. */

struct product {
    bool transpose_a, transpose_b;
    int64_t m, n, k;
    const void *a, *b;
    int64_t lda, ldb;
};

/* What happens to a finished sum before it is stored. All pointers point to row 0, column 0. */
struct epilogue {
    enum dtype dtype, c_dtype; /* dtype of the product's inputs, bias, aux and gelu_aux; of C */
    void *c;
    int64_t ldc;
    const void *bias;     /* (n) or NULL */
    void *aux;            /* (m, n), rows ld_aux apart, or NULL: gets the sum, and C gets its GELU */
    const void *gelu_aux; /* (m, n), rows ld_aux apart, or NULL: C = sum · gelu'(gelu_aux) */
    int64_t ld_aux;
    bool gelu_erf;   /* the GELU of aux and gelu_aux is that of erf, else that of tanh */
    bool accumulate; /* what C holds is added to the sum, before all of that */
    bool streamed;   /* C is large and not read soon: stores go past the caches, unless they accumulate */
};

/* Finishes n sums of one row. `before`, if not NULL, holds the sums of earlier blocks of k. */
static ALWAYS_INLINE void epilogue_row(const struct epilogue *e, const float *sum, const float *before, int64_t row,
                                       int64_t column, int64_t n, enum dtype dtype, enum dtype c_dtype)
{
    void *c = at(e->c, row * e->ldc + column, c_dtype);
    for (int64_t j = 0; j < n; j += VF) {
        vf x = vf_get(sum, j, n, DTYPE_F32);
        if (before) x += vf_get(before, j, n, DTYPE_F32);
        if (e->accumulate) x += vf_get(c, j, n, c_dtype);
        if (e->bias) x += vf_get(at(e->bias, column, dtype), j, n, dtype);
        if (e->aux) {
            vf_put(at(e->aux, row * e->ld_aux + column, dtype), j, n, x, dtype);
            x = e->gelu_erf ? vf_gelu_erf(x, dtype != DTYPE_F32) : vf_gelu(x, dtype != DTYPE_F32);
        }
        if (e->gelu_aux) {
            vf u = vf_get(at(e->gelu_aux, row * e->ld_aux + column, dtype), j, n, dtype);
            x *= e->gelu_erf ? vf_gelu_erf_grad(u, dtype != DTYPE_F32) : vf_gelu_grad(u, dtype != DTYPE_F32);
        }
        if (c_dtype == DTYPE_F32 && e->streamed && n - j >= VF)
            vf_stream(c, j, x);
        else
            vf_put(c, j, n, x, c_dtype);
    }
}

static void epilogue_rows(const struct epilogue *e, const float *sum, int64_t ld_sum, const float *before,
                          int64_t ld_before, int64_t row, int64_t column, int64_t m, int64_t n)
{
    for (int64_t i = 0; i < m; i++) {
        const float *s = sum + i * ld_sum, *b = before ? before + i * ld_before : NULL;
        if (e->c_dtype == DTYPE_F32)
            WITH_DTYPE(e->dtype, epilogue_row(e, s, b, row + i, column, n, DT, DTYPE_F32));
        else if (n == NR)
            WITH_DTYPE(e->dtype, epilogue_row(e, s, b, row + i, column, NR, DT, DT));
        else
            WITH_DTYPE(e->dtype, epilogue_row(e, s, b, row + i, column, n, DT, DT));
    }
}

/* A block of C, or of its transpose, and the place where its sums wait between blocks of k. */
struct block {
    int64_t row, column, m, n, k_first, k;
    bool first, last; /* this is the first, the last block of k */
    bool turned;      /* rows are columns of C */
    float *partial;   /* of the block's first element, in rows as C has them */
    int64_t ld_partial;
};

/* Memory that will be packed next: `segments` pieces of `bytes` bytes, `stride` bytes apart. */
struct ahead {
    const char *next;
    int64_t bytes, stride, segments, done; /* done: bytes of the first segment */
};

static void ahead_fetch(struct ahead *ahead, int64_t lines)
{
    for (; lines > 0 && ahead->segments > 0; lines--) {
        __builtin_prefetch(ahead->next + ahead->done, 0, 2);
        ahead->done += 64;
        if (ahead->done >= ahead->bytes) {
            ahead->done = 0;
            ahead->next += ahead->stride;
            ahead->segments--;
        }
    }
}

static ALWAYS_INLINE void tile_fetch(const void *first, int64_t stride, int64_t rows, int64_t bytes)
{
    for (int64_t row = 0; row < rows; row++)
        for (int64_t byte = 0; byte < bytes; byte += 64)
            __builtin_prefetch((const char *)first + row * stride + byte, 0, 3);
}

struct packed {
    enum unit_kind kind;
    int64_t units;
    const uint32_t *a, *b;
    const uint32_t *rows; /* of the block of A in place, ld units apart, but for a last panel; NULL: all are packed */
    int64_t ld;
};

/* Stores the sums of m rows and n columns of C, or adds them to those that wait. */
static ALWAYS_INLINE void tile_store(const struct epilogue *e, const struct block *block, const float *sums,
                                     int64_t ld_sums, float *partial, int64_t row, int64_t column, int64_t m, int64_t n)
{
    if (block->last) {
        epilogue_rows(e, sums, ld_sums, block->first ? NULL : partial, block->ld_partial, row, column, m, n);
        return;
    }
    for (int64_t i = 0; i < m; i++) {
        float *p = partial + i * block->ld_partial;
        for (int64_t l = 0; l < n; l += VF) {
            vf x = vf_get(sums + i * ld_sums, l, n, DTYPE_F32);
            if (!block->first) x += vf_get(p, l, n, DTYPE_F32);
            vf_put(p, l, n, x, DTYPE_F32);
        }
    }
}

static ALWAYS_INLINE void gemm_task_with(const struct epilogue *e, const struct block *block,
                                         const struct packed *packed, int64_t row_panel, int64_t row_panels,
                                         int64_t column_panel, struct ahead *ahead, int mr, micro_kernel *micro,
                                         micro_form_kernel *micro_in)
{
    _Alignas(64) float tile[TILE_MR * NR], turned[TILE_MR * NR];
    int64_t row_end = min64((row_panel + row_panels) * mr, block->m);
    int64_t column_end = min64((column_panel + GEMM_COLUMN_PANELS) * NR, block->n);
    for (int64_t i = row_panel * mr; i < row_end; i += mr) {
        for (int64_t j = column_panel * NR; j < column_end; j += NR) {
            int64_t m = min64(mr, block->m - i), n = min64(NR, block->n - j);
            ahead_fetch(ahead, packed->units / 4); /* fast enough to finish in time, slow enough not to stall */
            const int64_t partial_at = block->turned ? j * block->ld_partial + i : i * block->ld_partial + j;
            float *partial = block->partial ? block->partial + partial_at : NULL;
            if (!block->first)
                tile_fetch(partial, block->ld_partial * (int64_t)sizeof *partial, block->turned ? n : m,
                           (block->turned ? m : n) * (int64_t)sizeof *partial);
            const uint32_t *b = packed->b + j * packed->units;
            if (packed->rows && m == mr)
                micro_in(n <= VF ? MICRO_ROWS_NARROW : MICRO_ROWS, packed->units, packed->rows + i * packed->ld,
                         packed->ld, b, tile);
            else if (micro_in && m <= SHORT_MR)
                micro_in(MICRO_SHORT, packed->units, packed->a + i * packed->units, 0, b, tile);
            else
                micro(packed->units, packed->a + i * packed->units, b, tile);
            if (block->turned) {
                quad_turn(turned, mr, tile, NR, m, NR);
                tile_store(e, block, turned, mr, partial, block->column + j, block->row + i, n, m);
            } else {
                tile_store(e, block, tile, NR, partial, block->row + i, block->column + j, m, n);
            }
        }
    }
}

static void gemm_task(const struct epilogue *e, const struct block *block, const struct packed *packed,
                      int64_t row_panel, int64_t row_panels, int64_t column_panel, struct ahead *ahead)
{
    switch (packed->kind) {
#if GEMM_HAS_TILES
    case UNIT_TILE:
        gemm_task_with(e, block, packed, row_panel, row_panels, column_panel, ahead, TILE_MR, micro_tiles, NULL);
        return;
#endif
#if GEMM_HAS_PAIRS
    case UNIT_PAIR:
        gemm_task_with(e, block, packed, row_panel, row_panels, column_panel, ahead, MR, micro_pairs, micro_pairs_in);
        return;
#endif
    default: gemm_task_with(e, block, packed, row_panel, row_panels, column_panel, ahead, MR, micro_f32, micro_f32_in);
    }
}

/* The step that cuts n into the fewest parts of at most `most` and of about equal size, a multiple of grain. */
static int64_t gemm_even_step(int64_t n, int64_t most, int64_t grain)
{
    int64_t parts = (n + most - 1) / most, grains = (n + grain - 1) / grain;
    return parts ? min64((grains + parts - 1) / parts, most / grain) * grain : grain;
}

struct cuts {
    enum unit_kind kind;
    int mr;
    int64_t k_step, n_step;
    int64_t m_step;   /* rows of A that are packed at a time */
    int64_t m_outer;  /* rows that are finished before others are started */
    bool wait_apart;  /* C is not fp32: sums wait in scratch between blocks of k */
    bool whole_a;     /* all of A stays packed */
    bool in_place;    /* whole panels of A are not packed */
    int64_t padded_m; /* rows of A in whole panels */
    bool alone;       /* one thread computes the product */
};

/* The panels of `count` rows or columns that this thread packs. */
static struct range gemm_panels(int64_t count, int width, bool alone)
{
    const int64_t panels = (count + width - 1) / width;
    return alone ? (struct range){0, panels} : range_mine(panels, 1);
}

/* The part of B that this thread packs next: its columns of a block, k_step elements of k. */
static struct ahead ahead_of(const struct product *p, enum dtype dtype, int64_t column, const struct cuts *c, int64_t k)
{
    const int64_t n = min64(c->n_step, p->n - column), size = (int64_t)dtype_size(dtype);
    const int64_t count = min64(c->k_step, p->k - k);
    if (n <= 0) return (struct ahead){0};
    const struct range panels = gemm_panels(n, NR, c->alone);
    const int64_t first = column + panels.first * NR, columns = min64(panels.end * NR, n) - panels.first * NR;
    if (p->transpose_b)
        return (struct ahead){at(p->b, first * p->ldb + k, dtype), count * size, p->ldb * size, columns, 0};
    return (struct ahead){at(p->b, k * p->ldb + first, dtype), columns * size, p->ldb * size, count, 0};
}

static enum unit_kind gemm_block_kind(const struct cpu_kernels *kernels, enum dtype dtype)
{
    if (dtype != DTYPE_BF16) return dtype == DTYPE_F32 ? UNIT_F32 : UNIT_F16;
    return GEMM_HAS_PAIRS && kernels->bf16 == CPU_BF16_DOT ? UNIT_PAIR : UNIT_WIDENED;
}

static enum unit_kind gemm_product_kind(const struct cpu_kernels *kernels, enum dtype dtype)
{
    return GEMM_HAS_TILES && kernels->amx_bf16 && dtype == DTYPE_BF16 ? UNIT_TILE : gemm_block_kind(kernels, dtype);
}

/* Whether A's many rows are whole units in memory, and are read once or twice: packing them would take longer. */
static bool gemm_in_place(enum unit_kind kind, const struct product *p)
{
    const int64_t elements = panel_elements_of_unit(kind);
    return (kind == UNIT_F32 || kind == UNIT_PAIR) && !p->transpose_a && p->m >= 16 * MR && p->n <= 2 * NR &&
           p->k % elements == 0 && p->lda % elements == 0 && (uintptr_t)p->a % sizeof(uint32_t) == 0;
}

/* Whether tiles of C's transpose are filled so much better that turning them is worth it, or at least nearly as well,
 * and A is spared from being packed as pairs from rows of k: MR neighbours are no whole cache line. */
static bool gemm_turns(enum unit_kind kind, const struct product *p)
{
    const int64_t mr = panel_rows(kind), as_it_is = round_up(p->m, mr) * round_up(p->n, NR),
                  turned = round_up(p->n, mr) * round_up(p->m, NR);
    const bool spared = kind == UNIT_PAIR && p->transpose_a;
    return p->n <= GEMM_TURNED_COLUMNS && 8 * turned <= (spared ? 9 : 7) * as_it_is;
}

static struct product gemm_turned(const struct product *p)
{
    return (struct product){!p->transpose_b, !p->transpose_a, p->n, p->m, p->k, p->b, p->a, p->ldb, p->lda};
}

static struct cuts cuts_of(enum unit_kind kind, const struct product *p, const struct epilogue *e, bool alone)
{
    struct cuts c = {.kind = kind,
                     .alone = alone,
                     .mr = panel_rows(kind),
                     .padded_m = round_up(p->m, panel_rows(kind)),
                     .in_place = gemm_in_place(kind, p)};
    const int64_t most_k = GEMM_KC * panel_elements_of_unit(kind), k_blocks = p->k ? (p->k + most_k - 1) / most_k : 1;
    c.k_step = round_up((p->k + k_blocks - 1) / k_blocks, 32); /* blocks of k of about equal size */
    c.wait_apart = k_blocks > 1 && e->c_dtype != DTYPE_F32;
    const int64_t units = p->k ? panel_units_for(kind, c.k_step) : 1;
    const int64_t a_units = kind == UNIT_TILE ? GEMM_TILES_A : GEMM_MC * GEMM_KC;
    c.m_outer = c.wait_apart ? GEMM_MC / c.mr * c.mr : c.padded_m;
    c.m_step = gemm_even_step(min64(c.m_outer, p->m), min64(c.m_outer, a_units / units), c.mr);
    c.n_step = c.wait_apart ? GEMM_NC : gemm_even_step(p->n, GEMM_NC * GEMM_KC / units, NR * GEMM_COLUMN_PANELS);
    c.whole_a = c.padded_m <= GEMM_FEW_ROWS &&
                c.padded_m * panel_units_for(kind, p->k) <= (alone ? GROUPED_TILE : GEMM_MC) * GEMM_KC;
    if (c.whole_a) {
        const int64_t column_bytes = units * panel_elements_of_unit(kind) * (int64_t)dtype_size(e->dtype);
        c.m_step = c.padded_m;
        c.n_step =
            min64(c.n_step, gemm_even_step(p->n, GEMM_AHEAD_BYTES / column_bytes * (alone ? 1 : team_next()), NR));
    }
    return c;
}

struct gemm_job {
    const struct product *p;
    struct cuts cuts;
    struct epilogue finish;
    uint32_t *a, *b; /* packed */
    float *partial;  /* (m_outer, GEMM_NC) if sums wait apart; turned: (GEMM_NC, GEMM_MC) */
    bool turned;     /* p is the product of C's transpose */
    _Atomic int64_t next_task;
};

/* Packs the block's rows of A, or its columns of B. */
static void gemm_pack(const struct gemm_job *job, uint32_t *dst, const struct block *block, bool is_a)
{
    const struct product *p = job->p;
    const bool neighbours = is_a ? p->transpose_a : !p->transpose_b; /* those of one element of k */
    const int64_t ld = is_a ? p->lda : p->ldb,
                  skipped = is_a && job->cuts.in_place ? block->m / job->cuts.mr * job->cuts.mr : 0;
    const struct panel_source source = {.src = is_a ? p->a : p->b,
                                        .dtype = job->finish.dtype,
                                        .row_stride = neighbours ? 1 : ld,
                                        .k_stride = neighbours ? ld : 1,
                                        .first = is_a ? block->row + skipped : block->column,
                                        .count = is_a ? block->m - skipped : block->n,
                                        .k_first = block->k_first,
                                        .k = block->k};
    const int width = is_a ? job->cuts.mr : NR;
    pack_block(dst + skipped * panel_units_for(job->cuts.kind, block->k), source,
               gemm_panels(source.count, width, job->cuts.alone), width, job->cuts.kind, is_a);
}

/* What this thread packs after `block`; empty if blocks are not fetched ahead. */
static struct ahead ahead_after(const struct gemm_job *job, const struct block *block)
{
    const struct cuts *c = &job->cuts;
    if (!c->whole_a) return (struct ahead){0};
    if (!block->last) return ahead_of(job->p, job->finish.dtype, block->column, c, block->k_first + c->k_step);
    return ahead_of(job->p, job->finish.dtype, block->column + c->n_step, c, 0);
}

static void gemm_wait(const struct gemm_job *job)
{
    if (!job->cuts.alone) {
#pragma omp barrier
    }
}

/* Multiplies a block that is packed. tasks_before: the task numbers that earlier blocks used up. */
static void multiply_block(struct gemm_job *job, const struct block *block, const uint32_t *a, int64_t *tasks_before)
{
    const int mr = job->cuts.mr;
    const int64_t most_rows = GEMM_TASK_ROWS / mr * mr, task_rows = (block->m + most_rows - 1) / most_rows;
    const int64_t row_panels = ((block->m + mr - 1) / mr + task_rows - 1) / task_rows; /* evened out */
    const int64_t tasks = task_rows * ((block->n + NR * GEMM_COLUMN_PANELS - 1) / (NR * GEMM_COLUMN_PANELS));
    const int64_t elements = panel_elements_of_unit(job->cuts.kind);
    struct packed packed = {job->cuts.kind, panel_units_for(job->cuts.kind, block->k), a, job->b, NULL, 0};
    if (job->cuts.in_place) {
        packed.rows = at(job->p->a, block->row * job->p->lda + block->k_first, job->finish.dtype);
        packed.ld = job->p->lda / elements;
    }
    struct ahead ahead = ahead_after(job, block);
    int64_t task;
    gemm_wait(job);
    while ((task = atomic_fetch_add(&job->next_task, 1) - *tasks_before) < tasks) {
        int64_t i = task % task_rows * row_panels, j = task / task_rows * GEMM_COLUMN_PANELS;
        gemm_task(&job->finish, block, &packed, i, row_panels, j, &ahead);
    }
    if (job->finish.streamed) vf_stream_end();
    *tasks_before += tasks + (job->cuts.alone ? 1 : team_size()); /* every thread has drawn one number too many */
    gemm_wait(job);
    heartbeat_beat();
}

/* Where the sums of a block wait; `row` of those that are finished together. */
static float *block_partial(const struct gemm_job *job, const struct block *block, int64_t row)
{
    const int64_t ld = block->ld_partial;
    if (job->cuts.wait_apart) return job->partial + (job->turned ? row : row * ld);
    return (float *)job->finish.c + (job->turned ? block->column * ld + block->row : block->row * ld + block->column);
}

static void multiply_blocks(struct gemm_job *job, bool continues)
{
    const struct product *p = job->p;
    const struct cuts *c = &job->cuts;
    const struct epilogue *e = &job->finish;
    int64_t tasks_before = 0;
    for (int64_t outer = 0; outer < p->m; outer += c->m_outer) {
        const int64_t m_end = min64(outer + c->m_outer, p->m);
        int64_t packed_row = -1, packed_k = -1;
        for (int64_t column = 0; column < p->n; column += c->n_step) {
            for (int64_t k = 0; k == 0 || k < p->k; k += c->k_step) {
                struct block block = {.column = column,
                                      .n = min64(c->n_step, p->n - column),
                                      .k_first = k,
                                      .k = min64(c->k_step, p->k - k),
                                      .first = k == 0 && !continues,
                                      .last = k + c->k_step >= p->k,
                                      .turned = job->turned,
                                      .ld_partial = !c->wait_apart ? e->ldc
                                                    : job->turned  ? GEMM_MC
                                                                   : GEMM_NC};
                gemm_pack(job, job->b, &block, false);
                for (int64_t row = outer; row < m_end; row += c->m_step) {
                    block.row = row;
                    block.m = min64(c->m_step, m_end - row);
                    block.partial = block_partial(job, &block, row - outer);
                    uint32_t *a = c->whole_a ? job->a + k / panel_elements_of_unit(c->kind) * c->padded_m : job->a;
                    if (c->whole_a ? column == 0 : packed_row != row || packed_k != k) gemm_pack(job, a, &block, true);
                    packed_row = row;
                    packed_k = k;
                    multiply_block(job, &block, a, &tasks_before);
                }
            }
        }
    }
}

/* fp32 sums wait in C between blocks of k, and earlier contents of C count as a first block of k; sums of half
 * precision wait in scratch, a block of C at a time. */
static struct gemm_job gemm_job_of(enum unit_kind kind, const struct product *p, const struct epilogue *e, bool turned,
                                   bool alone)
{
    struct gemm_job job = {.p = p, .cuts = cuts_of(kind, p, e, alone), .finish = *e, .turned = turned};
    job.finish.accumulate = e->accumulate && e->c_dtype != DTYPE_F32;
    job.finish.streamed = e->streamed && !turned && job.cuts.k_step >= p->k && !e->accumulate &&
                          (uintptr_t)e->c % VF_BYTES == 0 && e->ldc % VF == 0;
    return job;
}

static void gemm_builtin(struct scratch scratch, enum unit_kind kind, const struct product *p, const struct epilogue *e)
{
    const bool turned = !gemm_in_place(kind, p) && gemm_turns(kind, p), c_is_f32 = e->c_dtype == DTYPE_F32;
    const struct product computed = turned ? gemm_turned(p) : *p;
    struct gemm_job job = gemm_job_of(kind, &computed, e, turned, false);
    job.a = scratch_take(&scratch, (size_t)GEMM_MC * GEMM_KC * sizeof *job.a);
    job.b = scratch_take(&scratch, (size_t)GEMM_NC * GEMM_KC * sizeof *job.b);
    if (job.cuts.wait_apart) job.partial = scratch_take(&scratch, (size_t)GEMM_MC * GEMM_NC * sizeof *job.partial);
#pragma omp parallel if (p->m * p->n * p->k > 1 << 16)
    {
        amx_begin(kind);
        multiply_blocks(&job, e->accumulate && c_is_f32);
        amx_end(kind);
    }
}
