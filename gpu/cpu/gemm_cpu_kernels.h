/* gemm_cpu_kernels.h: the built-in matrix product. A template, see ops_cpu.h.
 *
 * C (m, n) = op(A) (m, k) · op(B) (k, n), cut three times (the scheme of Goto and van de Geijn, 2008):
 *
 *     for each block of GEMM_NC columns of B and C
 *       for each block of k (GEMM_KC units): all threads pack the block of B into panels of NR columns
 *         for each block of GEMM_MC rows of A and C: all threads pack the block of A into panels of MR rows
 *           tasks of panels are handed out; a task runs the micro-kernel: an MR x NR tile of C in registers
 *
 * A packed panel holds, unit by unit of k, its MR (or NR) values side by side. A unit is four bytes: an fp32 number, a
 * half-precision number widened to fp32, or, for the CPU's bf16 instructions (cpu_bf16.h says when), a pair of bf16
 * numbers that are neighbours in k. Rows, columns and units beyond the matrix are packed as zeros. AMX wants panels of
 * A of its own: gemm_cpu_tiles.h.
 *
 * Packing reads at the speed of memory. Where A has few rows that is a good part of the time, so blocks of B are small
 * there, and while one is multiplied the next is fetched into the second-level cache.
 *
 * A tile's sum runs over k in order on one thread, so the result depends neither on the number of threads nor on which
 * of them takes a task. Blocks of k after the first add to what is there: in C if it is fp32, else in fp32 scratch. */

#if defined(__AVX512F__)
enum { MR = 12, NV = 2 };
#elif defined(__AVX2__)
enum { MR = 4, NV = 3 };
#elif defined(__aarch64__)
enum { MR = 8, NV = 3 };
#else
enum { MR = 4, NV = 2 };
#endif

enum {
    NR = NV * VF,
    GEMM_KC = 1024,                      /* units */
    GEMM_MC = (1024 + MR - 1) / MR * MR, /* rows, and more where there are fewer units: the packed block's size stays */
    GEMM_NC = 1024 / NR * NR,            /* columns, likewise */
    GEMM_TILES_A = 192 << 10,            /* units of a packed block of A for AMX: with a panel of B and its part of C in
                                            a second-level cache of 2 MiB, as tiles are read faster than from memory */
    GEMM_TASK_ROWS = 168,                /* at most */
    GEMM_COLUMN_PANELS = 128 / NR,       /* of a task: 512 KiB of packed B stay in the second-level cache */
    GEMM_FEW_ROWS = 528,                 /* up to here, the next block of B is fetched ahead … */
    GEMM_AHEAD_BYTES = 256 << 10,        /* … this much at most for each thread */
};
_Static_assert(MR % 4 == 0 && NR % 4 == 0, "panels are transposed four by four");

enum unit_kind {
    UNIT_F32,
    UNIT_F16,
    UNIT_WIDENED,
    UNIT_PAIR,
    UNIT_TILE /* pairs, for AMX */
};

/* Runs a statement with KIND as a constant that is `kind`: each kind of unit gets code of its own. */
#define WITH_UNIT(kind, ...)                          \
    do {                                              \
        if ((kind) == UNIT_F32) {                     \
            const enum unit_kind KIND = UNIT_F32;     \
            __VA_ARGS__;                              \
        } else if ((kind) == UNIT_F16) {              \
            const enum unit_kind KIND = UNIT_F16;     \
            __VA_ARGS__;                              \
        } else if ((kind) == UNIT_WIDENED) {          \
            const enum unit_kind KIND = UNIT_WIDENED; \
            __VA_ARGS__;                              \
        } else {                                      \
            const enum unit_kind KIND = UNIT_PAIR;    \
            __VA_ARGS__;                              \
        }                                             \
    } while (0)

/* ---- packing ------------------------------------------------------------- */

typedef uint32_t quad __attribute__((vector_size(16)));

/* Unit k of a row; element (row, k) is at src[row * row_stride + k * k_stride]. */
static ALWAYS_INLINE uint32_t unit_of(const void *src, int64_t row_stride, int64_t k_stride, int64_t row, int64_t unit,
                                      int64_t k, enum unit_kind kind)
{
    const uint16_t *half = src;
    uint32_t bits;
    switch (kind) {
    case UNIT_F32: memcpy(&bits, (const float *)src + row * row_stride + unit * k_stride, 4); return bits;
    case UNIT_F16: {
        float widened = f16_to_f32(half[row * row_stride + unit * k_stride]);
        memcpy(&bits, &widened, 4);
        return bits;
    }
    case UNIT_WIDENED: return (uint32_t)half[row * row_stride + unit * k_stride] << 16;
    default: break;
    }
    half += row * row_stride + 2 * unit * k_stride;
    return half[0] | (2 * unit + 1 < k ? (uint32_t)half[k_stride] << 16 : 0);
}

static ALWAYS_INLINE quad quad_from_f16(const uint16_t *half)
{
#if defined(__F16C__)
    return (quad)_mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)half));
#else
    quad q;
    for (int i = 0; i < 4; i++) {
        float widened = f16_to_f32(half[i]);
        uint32_t bits;
        memcpy(&bits, &widened, 4);
        q[i] = bits;
    }
    return q;
#endif
}

/* Four units of a row whose k is contiguous. */
static ALWAYS_INLINE quad quad_of(const void *src, int64_t row_start, int64_t unit, enum unit_kind kind)
{
    quad q;
    if (kind == UNIT_WIDENED) {
        const uint16_t *half = (const uint16_t *)src + row_start + unit;
        return (quad){half[0], half[1], half[2], half[3]} << 16;
    }
    if (kind == UNIT_F16)
        return quad_from_f16((const uint16_t *)src + row_start + unit);
    if (kind == UNIT_F32)
        memcpy(&q, (const float *)src + row_start + unit, sizeof q);
    else
        memcpy(&q, (const uint16_t *)src + row_start + 2 * unit, sizeof q);
    return q;
}

static ALWAYS_INLINE void quad_transpose(quad q[4])
{
    quad ab_low = __builtin_shufflevector(q[0], q[1], 0, 4, 1, 5);
    quad ab_high = __builtin_shufflevector(q[0], q[1], 2, 6, 3, 7);
    quad cd_low = __builtin_shufflevector(q[2], q[3], 0, 4, 1, 5);
    quad cd_high = __builtin_shufflevector(q[2], q[3], 2, 6, 3, 7);
    q[0] = __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5);
    q[1] = __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7);
    q[2] = __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5);
    q[3] = __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7);
}

/* One panel: `rows` of `width` rows are there; k elements from `src` on. dst (units, width). */
static ALWAYS_INLINE void pack_panel(uint32_t *dst, const void *src, int64_t row_stride, int64_t k_stride, int rows,
                                     int width, int64_t k, enum unit_kind kind)
{
    int64_t units = kind == UNIT_PAIR ? (k + 1) / 2 : k, unit = 0;
    int64_t whole = kind == UNIT_PAIR ? k / 2 : k; /* units that have all their elements */
    if (rows == width && row_stride == 1) {
        for (; unit < whole; unit++, dst += width) {
            const uint16_t *half = (const uint16_t *)src + (kind == UNIT_PAIR ? 2 : 1) * unit * k_stride;
            if (kind == UNIT_F32)
                memcpy(dst, (const float *)src + unit * k_stride, (size_t)width * sizeof *dst);
            else if (kind == UNIT_WIDENED)
                for (int r = 0; r < width; r++)
                    dst[r] = (uint32_t)half[r] << 16;
            else if (kind == UNIT_F16)
                for (int r = 0; r < width; r += 4) {
                    quad q = quad_from_f16(half + r);
                    memcpy(dst + r, &q, sizeof q);
                }
            else
                for (int r = 0; r < width; r++)
                    dst[r] = half[r] | (uint32_t)half[k_stride + r] << 16;
        }
    } else if (rows == width && k_stride == 1) {
        for (; unit + 4 <= whole; unit += 4, dst += 4 * width) {
            for (int r = 0; r < width; r += 4) {
                quad q[4];
                for (int i = 0; i < 4; i++)
                    q[i] = quad_of(src, (r + i) * row_stride, unit, kind);
                quad_transpose(q);
                for (int i = 0; i < 4; i++)
                    memcpy(dst + i * width + r, &q[i], sizeof q[i]);
            }
        }
    }
    for (; unit < units; unit++, dst += width)
        for (int r = 0; r < width; r++)
            dst[r] = r < rows ? unit_of(src, row_stride, k_stride, r, unit, k, kind) : 0;
}

#include "gpu/cpu/gemm_cpu_tiles.h"

/* ---- micro-kernels: tile (MR, NR) = a (units, MR) · b (units, NR) -------- */

typedef void micro_kernel(int64_t units, const uint32_t *a, const uint32_t *b, float *tile);

static void micro_f32(int64_t units, const uint32_t *a, const uint32_t *b, float *tile)
{
    vf sums[MR][NV] = {{{0}}};
    for (int64_t unit = 0; unit < units; unit++, a += MR, b += NR) {
        vf columns[NV];
        __builtin_prefetch(b + 8 * NR);
        __builtin_prefetch(b + 8 * NR + NR / 2);
#pragma GCC unroll 4
        for (int j = 0; j < NV; j++)
            columns[j] = vf_load(b, j * VF, DTYPE_F32);
#pragma GCC unroll 16
        for (int i = 0; i < MR; i++) {
            float row;
            memcpy(&row, a + i, sizeof row);
#pragma GCC unroll 4
            for (int j = 0; j < NV; j++)
                sums[i][j] += row * columns[j];
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
        for (int j = 0; j < NV; j++)
            vf_store(tile, i * NR + j * VF, sums[i][j], DTYPE_F32);
}

#if defined(__AVX512F__)
#define GEMM_HAS_PAIRS 1
__attribute__((target("avx512bf16"))) static void micro_pairs(int64_t units, const uint32_t *a, const uint32_t *b,
                                                              float *tile)
{
    __m512 sums[MR][NV];
#pragma GCC unroll 16
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
        for (int j = 0; j < NV; j++)
            sums[i][j] = _mm512_setzero_ps();
    for (int64_t unit = 0; unit < units; unit++, a += MR, b += NR) {
        __m512bh columns[NV];
        __builtin_prefetch(b + 8 * NR);
        __builtin_prefetch(b + 8 * NR + NR / 2);
#pragma GCC unroll 4
        for (int j = 0; j < NV; j++)
            columns[j] = (__m512bh)_mm512_loadu_si512(b + j * VF);
#pragma GCC unroll 16
        for (int i = 0; i < MR; i++) {
            __m512bh row = (__m512bh)_mm512_set1_epi32((int)a[i]);
#pragma GCC unroll 4
            for (int j = 0; j < NV; j++)
                sums[i][j] = _mm512_dpbf16_ps(sums[i][j], row, columns[j]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
        for (int j = 0; j < NV; j++)
            _mm512_storeu_ps(tile + i * NR + j * VF, sums[i][j]);
}
#else
#define GEMM_HAS_PAIRS 0
#endif

/* ---- a whole product ----------------------------------------------------- */

struct product {
    bool transpose_a, transpose_b;
    int64_t m, n, k;
    const void *a, *b;
    int64_t lda, ldb;
};

/* What happens to a finished sum before it is stored. All pointers address row 0, column 0 of C. */
struct epilogue {
    enum dtype dtype, c_dtype; /* of the product's inputs, bias, aux and gelu_aux; of C */
    void *c;
    int64_t ldc;
    const void *bias;     /* (n) or NULL */
    void *aux;            /* (m, n), rows ld_aux apart: gets the sum, and C its gelu; or NULL */
    const void *gelu_aux; /* (m, n), rows ld_aux apart: C = sum · gelu'(gelu_aux); or NULL */
    int64_t ld_aux;
    bool accumulate; /* C += */
    bool streamed;   /* C is large and read late: a sum that is added to nothing goes past the caches */
};

/* Finishes n sums of one row. `before`, if not NULL, holds what earlier blocks of k came to. */
static ALWAYS_INLINE void epilogue_row(const struct epilogue *e, const float *sum, const float *before, int64_t row,
                                       int64_t column, int64_t n, enum dtype dtype, enum dtype c_dtype)
{
    void *c = at(e->c, row * e->ldc + column, c_dtype);
    for (int64_t j = 0; j < n; j += VF) {
        vf x = vf_get(sum, j, n, DTYPE_F32);
        if (before)
            x += vf_get(before, j, n, DTYPE_F32);
        if (e->bias)
            x += vf_get(at(e->bias, column, dtype), j, n, dtype);
        if (e->aux) {
            vf_put(at(e->aux, row * e->ld_aux + column, dtype), j, n, x, dtype);
            x = vf_gelu(x, dtype != DTYPE_F32);
        }
        if (e->gelu_aux)
            x *=
                vf_gelu_grad(vf_get(at(e->gelu_aux, row * e->ld_aux + column, dtype), j, n, dtype), dtype != DTYPE_F32);
        if (e->accumulate)
            x += vf_get(c, j, n, c_dtype);
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
        else
            WITH_DTYPE(e->dtype, epilogue_row(e, s, b, row + i, column, n, DT, DT));
    }
}

/* A block of C, and where sums wait between blocks of k. */
struct block {
    int64_t row, column, m, n, k_first, k;
    bool first, last; /* block of k */
    float *partial;   /* element (row, column) */
    int64_t ld_partial;
};

/* Memory that will be packed next: `segments` of so many bytes, `stride` bytes apart. */
struct ahead {
    const char *next;
    int64_t bytes, stride, segments, done; /* done: bytes of the first segment */
};

/* Fetches up to `lines` cache lines. */
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

/* Fetches `rows` rows of `bytes`, stride bytes apart: what a tile's sum will be added to, while the tile is computed.
 */
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
};

static ALWAYS_INLINE void gemm_task_with(const struct epilogue *e, const struct block *block,
                                         const struct packed *packed, int64_t row_panel, int64_t row_panels,
                                         int64_t column_panel, struct ahead *ahead, int mr, micro_kernel *micro)
{
    _Alignas(64) float tile[TILE_MR * NR];
    int64_t row_end = min_i64((row_panel + row_panels) * mr, block->m);
    int64_t column_end = min_i64((column_panel + GEMM_COLUMN_PANELS) * NR, block->n);
    for (int64_t i = row_panel * mr; i < row_end; i += mr) {
        for (int64_t j = column_panel * NR; j < column_end; j += NR) {
            int64_t m = min_i64(mr, block->m - i), n = min_i64(NR, block->n - j);
            ahead_fetch(ahead, packed->units / 4); /* enough to be done in time, slow enough not to stall */
            float *partial = block->partial ? block->partial + i * block->ld_partial + j : NULL;
            if (!block->first)
                tile_fetch(partial, block->ld_partial * (int64_t)sizeof *partial, m, n * (int64_t)sizeof *partial);
            micro(packed->units, packed->a + i * packed->units, packed->b + j * packed->units, tile);
            if (block->last) {
                epilogue_rows(e, tile, NR, block->first ? NULL : partial, block->ld_partial, block->row + i,
                              block->column + j, m, n);
            } else {
                for (int64_t row = 0; row < m; row++) {
                    float *p = partial + row * block->ld_partial;
                    for (int64_t l = 0; l < n; l += VF) {
                        vf x = vf_get(tile + row * NR, l, n, DTYPE_F32);
                        if (!block->first)
                            x += vf_get(p, l, n, DTYPE_F32);
                        vf_put(p, l, n, x, DTYPE_F32);
                    }
                }
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
        gemm_task_with(e, block, packed, row_panel, row_panels, column_panel, ahead, TILE_MR, micro_tiles);
        return;
#endif
#if GEMM_HAS_PAIRS
    case UNIT_PAIR:
        gemm_task_with(e, block, packed, row_panel, row_panels, column_panel, ahead, MR, micro_pairs);
        return;
#endif
    default: gemm_task_with(e, block, packed, row_panel, row_panels, column_panel, ahead, MR, micro_f32);
    }
}

/* Rows of a panel of A. */
static int panel_rows(enum unit_kind kind)
{
    return kind == UNIT_TILE ? TILE_MR : MR;
}

static int64_t elements_of_unit(enum unit_kind kind)
{
    return kind == UNIT_PAIR || kind == UNIT_TILE ? 2 : 1;
}

/* Units of a panel for k elements. */
static int64_t units_for(enum unit_kind kind, int64_t k)
{
    const int64_t units = (k + elements_of_unit(kind) - 1) / elements_of_unit(kind);
    return kind == UNIT_TILE ? round_up(units, TILE_UNITS) : units;
}

/* Panels of a packed block: rows first … first+count of op(X), k elements from k_first on. */
static void pack_block(uint32_t *dst, const void *src, enum dtype dtype, int64_t row_stride, int64_t k_stride,
                       int64_t first, int64_t count, int64_t k_first, int64_t k, int width, enum unit_kind kind,
                       bool is_a)
{
    int64_t units = units_for(kind, k);
    const struct range panels = range_mine((count + width - 1) / width, 1);
    for (int64_t panel = panels.first; panel < panels.end; panel++) {
        int rows = (int)min_i64(width, count - panel * width);
        const void *from = at(src, (first + panel * width) * row_stride + k_first * k_stride, dtype);
        uint32_t *to = dst + panel * width * units;
#if GEMM_HAS_TILES
        if (kind == UNIT_TILE && is_a) {
            pack_tile_panel(to, from, row_stride, k_stride, rows, k);
            continue;
        }
#endif
        if (is_a)
            WITH_UNIT(kind, pack_panel(to, from, row_stride, k_stride, rows, MR, k, KIND));
        else
            WITH_UNIT(kind, pack_panel(to, from, row_stride, k_stride, rows, NR, k, KIND));
        if (kind == UNIT_TILE) { /* whole tiles */
            const int64_t filled = units_for(UNIT_PAIR, k) * width;
            memset(to + filled, 0, (size_t)(units * width - filled) * sizeof *to);
        }
    }
}

/* The step that cuts n into the fewest parts of at most `most`, of about one size, a multiple of grain. */
static int64_t even_step(int64_t n, int64_t most, int64_t grain)
{
    int64_t parts = (n + most - 1) / most, grains = (n + grain - 1) / grain;
    return parts ? min_i64((grains + parts - 1) / parts, most / grain) * grain : grain;
}

/* The part of B that this thread will pack next: its columns of a block, k_step elements of k. */
static struct ahead ahead_of(const struct product *p, enum dtype dtype, int64_t column, int64_t n_step, int64_t k,
                             int64_t k_step)
{
    const int64_t n = min_i64(n_step, p->n - column), size = (int64_t)dtype_size(dtype);
    const int64_t count = min_i64(k_step, p->k - k);
    if (n <= 0)
        return (struct ahead){0};
    const struct range panels = range_mine((n + NR - 1) / NR, 1);
    const int64_t first = column + panels.first * NR, columns = min_i64(panels.end * NR, n) - panels.first * NR;
    if (p->transpose_b)
        return (struct ahead){at(p->b, first * p->ldb + k, dtype), count * size, p->ldb * size, columns, 0};
    return (struct ahead){at(p->b, k * p->ldb + first, dtype), columns * size, p->ldb * size, count, 0};
}

/* Of the blocks that attention multiplies. */
static enum unit_kind block_kind(const struct cpu_kernels *kernels, enum dtype dtype)
{
    if (dtype != DTYPE_BF16)
        return dtype == DTYPE_F32 ? UNIT_F32 : UNIT_F16;
    return GEMM_HAS_PAIRS && kernels->bf16 == CPU_BF16_DOT ? UNIT_PAIR : UNIT_WIDENED;
}

/* Of a whole product. */
static enum unit_kind product_kind(const struct cpu_kernels *kernels, enum dtype dtype)
{
    return GEMM_HAS_TILES && kernels->amx_bf16 && dtype == DTYPE_BF16 ? UNIT_TILE : block_kind(kernels, dtype);
}

/* How a product is cut. */
struct cuts {
    enum unit_kind kind;
    int mr;
    int64_t k_step, n_step;
    int64_t m_step;   /* rows that are packed at once */
    int64_t m_outer;  /* rows that are finished before the next ones start */
    bool wait_apart;  /* sums wait in scratch between blocks of k: C is not fp32 */
    bool whole_a;     /* all of A stays packed */
    int64_t padded_m; /* rows of A in whole panels */
};

static struct cuts cuts_of(enum unit_kind kind, const struct product *p, const struct epilogue *e)
{
    struct cuts c = {.kind = kind, .mr = panel_rows(kind), .padded_m = round_up(p->m, panel_rows(kind))};
    const int64_t most_k = GEMM_KC * elements_of_unit(kind), k_blocks = p->k ? (p->k + most_k - 1) / most_k : 1;
    c.k_step = round_up((p->k + k_blocks - 1) / k_blocks, 32); /* blocks of k of about one size */
    c.wait_apart = k_blocks > 1 && e->c_dtype != DTYPE_F32;
    const int64_t units = p->k ? units_for(kind, c.k_step) : 1;
    const int64_t a_units = kind == UNIT_TILE ? GEMM_TILES_A : GEMM_MC * GEMM_KC;
    c.m_outer = c.wait_apart ? GEMM_MC / c.mr * c.mr : c.padded_m;
    c.m_step = even_step(min_i64(c.m_outer, p->m), min_i64(c.m_outer, a_units / units), c.mr);
    c.n_step = c.wait_apart ? GEMM_NC : even_step(p->n, GEMM_NC * GEMM_KC / units, NR * GEMM_COLUMN_PANELS);
    /* With few rows, reading B takes a good part of the time. Blocks are then so small that the next one is fetched
     * into the second-level cache while this one is multiplied, and A is packed only once. */
    c.whole_a = c.padded_m <= GEMM_FEW_ROWS && c.padded_m * units_for(kind, p->k) <= GEMM_MC * GEMM_KC;
    if (c.whole_a) {
        const int64_t column_bytes = units * elements_of_unit(kind) * (int64_t)dtype_size(e->dtype);
        c.m_step = c.padded_m;
        c.n_step = min_i64(c.n_step, even_step(p->n, GEMM_AHEAD_BYTES / column_bytes * team_next(), NR));
    }
    return c;
}

/* A product that all threads work on. */
struct gemm_job {
    const struct product *p;
    struct cuts cuts;
    struct epilogue finish;
    uint32_t *a, *b; /* packed */
    float *partial;  /* (m_outer, GEMM_NC) if sums wait apart */
    _Atomic int64_t next_task;
};

static void pack_a(const struct gemm_job *job, uint32_t *dst, const struct block *block)
{
    const struct product *p = job->p;
    pack_block(dst, p->a, job->finish.dtype, p->transpose_a ? 1 : p->lda, p->transpose_a ? p->lda : 1, block->row,
               block->m, block->k_first, block->k, job->cuts.mr, job->cuts.kind, true);
}

static void pack_b(const struct gemm_job *job, const struct block *block)
{
    const struct product *p = job->p;
    pack_block(job->b, p->b, job->finish.dtype, p->transpose_b ? p->ldb : 1, p->transpose_b ? 1 : p->ldb, block->column,
               block->n, block->k_first, block->k, NR, job->cuts.kind, false);
}

/* What this thread will pack after `block`, where blocks are fetched ahead. */
static struct ahead ahead_after(const struct gemm_job *job, const struct block *block)
{
    const struct cuts *c = &job->cuts;
    if (!c->whole_a)
        return (struct ahead){0};
    if (!block->last)
        return ahead_of(job->p, job->finish.dtype, block->column, c->n_step, block->k_first + c->k_step, c->k_step);
    return ahead_of(job->p, job->finish.dtype, block->column + c->n_step, c->n_step, 0, c->k_step);
}

/* All threads: multiplies a block whose parts are packed; returns when it is done. tasks_before: the numbers of tasks
 * that earlier blocks took; the counter never goes back. */
static void multiply_block(struct gemm_job *job, const struct block *block, const uint32_t *a, int64_t *tasks_before)
{
    const int mr = job->cuts.mr;
    const int64_t most_rows = GEMM_TASK_ROWS / mr * mr, task_rows = (block->m + most_rows - 1) / most_rows;
    const int64_t row_panels = ((block->m + mr - 1) / mr + task_rows - 1) / task_rows; /* evened out */
    const int64_t tasks = task_rows * ((block->n + NR * GEMM_COLUMN_PANELS - 1) / (NR * GEMM_COLUMN_PANELS));
    const struct packed packed = {job->cuts.kind, units_for(job->cuts.kind, block->k), a, job->b};
    struct ahead ahead = ahead_after(job, block);
    int64_t task;
#pragma omp barrier
    while ((task = atomic_fetch_add(&job->next_task, 1) - *tasks_before) < tasks) {
        int64_t i = task % task_rows * row_panels, j = task / task_rows * GEMM_COLUMN_PANELS;
        gemm_task(&job->finish, block, &packed, i, row_panels, j, &ahead);
    }
    if (job->finish.streamed)
        vf_stream_end();
    *tasks_before += tasks + team_size(); /* every thread took one number too many */
#pragma omp barrier
    progress_tick();
}

/* All threads: the whole product. */
static void multiply_blocks(struct gemm_job *job, bool continues)
{
    const struct product *p = job->p;
    const struct cuts *c = &job->cuts;
    const struct epilogue *e = &job->finish;
    int64_t tasks_before = 0;
    for (int64_t outer = 0; outer < p->m; outer += c->m_outer) {
        const int64_t m_end = min_i64(outer + c->m_outer, p->m);
        int64_t packed_row = -1, packed_k = -1;
        for (int64_t column = 0; column < p->n; column += c->n_step) {
            for (int64_t k = 0; k == 0 || k < p->k; k += c->k_step) {
                struct block block = {.column = column,
                                      .n = min_i64(c->n_step, p->n - column),
                                      .k_first = k,
                                      .k = min_i64(c->k_step, p->k - k),
                                      .first = k == 0 && !continues,
                                      .last = k + c->k_step >= p->k,
                                      .ld_partial = c->wait_apart ? GEMM_NC : e->ldc};
                pack_b(job, &block);
                for (int64_t row = outer; row < m_end; row += c->m_step) {
                    block.row = row;
                    block.m = min_i64(c->m_step, m_end - row);
                    block.partial =
                        c->wait_apart ? job->partial + (row - outer) * GEMM_NC : (float *)e->c + row * e->ldc + column;
                    uint32_t *a = c->whole_a ? job->a + k / elements_of_unit(c->kind) * c->padded_m : job->a;
                    if (c->whole_a ? column == 0 : packed_row != row || packed_k != k)
                        pack_a(job, a, &block);
                    packed_row = row;
                    packed_k = k;
                    multiply_block(job, &block, a, &tasks_before);
                }
            }
        }
    }
}

static void gemm_builtin(struct scratch scratch, enum unit_kind kind, const struct product *p, const struct epilogue *e)
{
    struct gemm_job job = {.p = p, .cuts = cuts_of(kind, p, e), .finish = *e};
    job.a = scratch_take(&scratch, (size_t)GEMM_MC * GEMM_KC * sizeof *job.a);
    job.b = scratch_take(&scratch, (size_t)GEMM_NC * GEMM_KC * sizeof *job.b);
    if (job.cuts.wait_apart)
        job.partial = scratch_take(&scratch, (size_t)GEMM_MC * GEMM_NC * sizeof *job.partial);
    /* fp32 sums wait in C between blocks of k, and what C had before is a block of k that came first; sums of half
     * precision wait in scratch, a block of C at a time */
    const bool c_is_f32 = e->c_dtype == DTYPE_F32;
    job.finish.accumulate = e->accumulate && !c_is_f32;
    job.finish.streamed =
        e->streamed && job.cuts.k_step >= p->k && !e->accumulate && (uintptr_t)e->c % VF_BYTES == 0 && e->ldc % VF == 0;
#pragma omp parallel if (p->m * p->n * p->k > 1 << 16)
    {
        tiles_begin(kind);
        multiply_blocks(&job, e->accumulate && c_is_f32);
        tiles_end(kind);
    }
}
