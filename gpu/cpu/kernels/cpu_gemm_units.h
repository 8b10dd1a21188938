/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_gemm_units.h: the sizes of the built-in matrix product, and the units of its packed panels. A template, see
 * ops_cpu.h. A unit is four bytes: an fp32 number, a half-precision number widened to fp32, or, for the CPU's bf16
 * instructions (cpu_bf16.h), a pair of bf16 numbers that are neighbours in k. */

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
    GEMM_KC = GEMM_BLOCK,                      /* units */
    GEMM_MC = (GEMM_BLOCK + MR - 1) / MR * MR, /* rows, and more where there are fewer units: a packed block keeps its
                                                  size */
    GEMM_NC = GEMM_BLOCK / NR * NR,            /* columns, likewise */
    GEMM_TILES_A = 192 << 10,      /* units of a packed block of A for AMX: with a panel of B and its part of C in
                                      a second-level cache of 2 MiB, as tiles are read faster than from memory */
    GEMM_TASK_ROWS = 168,          /* at most */
    GEMM_COLUMN_PANELS = 128 / NR, /* of a task: 512 KiB of packed B stay in the second-level cache */
    GEMM_FEW_ROWS = 528,           /* up to this many rows of A, the next block of B is fetched ahead … */
    GEMM_AHEAD_BYTES = 256 << 10,  /* … at most this much of it for each thread */
    GEMM_TURNED_COLUMNS = 96,      /* up to this many columns of B, the transpose of C may be computed */
};
_Static_assert(MR % 4 == 0 && NR % 4 == 0, "panels are transposed four by four");
_Static_assert((int)MR <= (int)GEMM_MAX_MR && (int)NR <= (int)GEMM_MAX_NR, "ops_cpu_scratch.h bounds a tile");
_Static_assert(GEMM_KC *(GEMM_MC + GEMM_NC) + GEMM_MC * GEMM_NC <= GEMM_SCRATCH_FLOATS,
               "the packed blocks of A and B and the waiting sums fit in the scratch memory");

enum unit_kind {
    UNIT_F32,
    UNIT_F16,
    UNIT_WIDENED,
    UNIT_PAIR,
    UNIT_TILE /* pairs, for AMX */
};

/* WITH_DTYPE() for the kind of a unit. */
#define WITH_UNIT(kind, ...)                                             \
    do {                                                                 \
        if ((kind) == UNIT_F32)                                          \
            AS_CONSTANT(enum unit_kind, KIND, UNIT_F32, __VA_ARGS__)     \
        else if ((kind) == UNIT_F16)                                     \
            AS_CONSTANT(enum unit_kind, KIND, UNIT_F16, __VA_ARGS__)     \
        else if ((kind) == UNIT_WIDENED)                                 \
            AS_CONSTANT(enum unit_kind, KIND, UNIT_WIDENED, __VA_ARGS__) \
        else                                                             \
            AS_CONSTANT(enum unit_kind, KIND, UNIT_PAIR, __VA_ARGS__)    \
    } while (0)

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

/* Four units of a row whose elements are contiguous in k. */
static ALWAYS_INLINE quad quad_of(const void *src, int64_t row_start, int64_t unit, enum unit_kind kind)
{
    quad q;
    if (kind == UNIT_WIDENED) {
        const uint16_t *half = (const uint16_t *)src + row_start + unit;
        return (quad){half[0], half[1], half[2], half[3]} << 16;
    }
    if (kind == UNIT_F16) return quad_from_f16((const uint16_t *)src + row_start + unit);
    if (kind == UNIT_F32)
        memcpy(&q, (const float *)src + row_start + unit, sizeof q);
    else
        memcpy(&q, (const uint16_t *)src + row_start + 2 * unit, sizeof q);
    return q;
}

/* A quad of elements of a (0 to 3) and b (4 to 7). gcc has clang's name for it from version 12 on. */
#ifdef __clang__
#define QUAD_PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define QUAD_PICK(a, b, ...) __builtin_shuffle(a, b, (quad){__VA_ARGS__})
#endif

static ALWAYS_INLINE void quad_transpose(quad q[4])
{
    quad ab_low = QUAD_PICK(q[0], q[1], 0, 4, 1, 5);
    quad ab_high = QUAD_PICK(q[0], q[1], 2, 6, 3, 7);
    quad cd_low = QUAD_PICK(q[2], q[3], 0, 4, 1, 5);
    quad cd_high = QUAD_PICK(q[2], q[3], 2, 6, 3, 7);
    q[0] = QUAD_PICK(ab_low, cd_low, 0, 1, 4, 5);
    q[1] = QUAD_PICK(ab_low, cd_low, 2, 3, 6, 7);
    q[2] = QUAD_PICK(ab_high, cd_high, 0, 1, 4, 5);
    q[3] = QUAD_PICK(ab_high, cd_high, 2, 3, 6, 7);
}

/* to (columns, rows) = the transpose of from, numbers of four bytes with rows ld apart; counts are rounded up to 4. */
static ALWAYS_INLINE void quad_turn(void *to, int64_t ld_to, const void *from, int64_t ld_from, int64_t rows,
                                    int64_t columns)
{
    for (int64_t i = 0; i < rows; i += 4) {
        for (int64_t j = 0; j < columns; j += 4) {
            quad q[4];
            for (int l = 0; l < 4; l++) memcpy(&q[l], (const uint32_t *)from + (i + l) * ld_from + j, sizeof q[l]);
            quad_transpose(q);
            for (int l = 0; l < 4; l++) memcpy((uint32_t *)to + (j + l) * ld_to + i, &q[l], sizeof q[l]);
        }
    }
}
