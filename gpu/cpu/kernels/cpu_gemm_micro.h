/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_gemm_micro.h: the micro-kernels of the built-in matrix product: tile (MR, NR) = a (units, MR) · b (units, NR),
 * all sums in registers. AMX has its own: cpu_gemm_amx.h. A template, see ops_cpu.h. */

typedef void micro_kernel(int64_t units, const uint32_t *a, const uint32_t *b, float *tile);

/* Tiles that are not packed, or not whole: MR rows of units of A in place, ld units apart, by NR or VF columns;
 * SHORT_MR rows of a packed panel. */
enum micro_form { MICRO_ROWS, MICRO_ROWS_NARROW, MICRO_SHORT };
enum { SHORT_MR = 4 };
typedef void micro_form_kernel(enum micro_form form, int64_t units, const uint32_t *a, int64_t ld, const uint32_t *b,
                               float *tile);

/* Unit k of row i is a[i * row_step + k * step], of the columns b[k * ld_b]; the first `rows` rows and nv vectors of
 * columns are summed. */
static ALWAYS_INLINE void micro_f32_with(int64_t units, const uint32_t *a, int64_t row_step, int64_t step,
                                         const uint32_t *b, int64_t ld_b, float *tile, int rows, int nv)
{
    vf sums[MR][NV] = {{{0}}};
    for (int64_t unit = 0; unit < units; unit++, a += step, b += ld_b) {
        vf columns[NV];
        __builtin_prefetch(b + 8 * ld_b);
        __builtin_prefetch(b + 8 * ld_b + NR / 2);
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) columns[j] = vf_load(b, j * VF, DTYPE_F32);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            float row;
            memcpy(&row, a + i * row_step, sizeof row);
#pragma GCC unroll 4
            for (int j = 0; j < nv; j++) sums[i][j] += row * columns[j];
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) vf_store(tile, i * NR + j * VF, sums[i][j], DTYPE_F32);
}

/* Defines the two kernels from NAME_with(), where TARGET has its attributes. */
#define MICRO_KERNELS(TARGET, name)                                                                  \
    TARGET static void name(int64_t units, const uint32_t *a, const uint32_t *b, float *tile)        \
    {                                                                                                \
        name##_with(units, a, 1, MR, b, NR, tile, MR, NV);                                           \
    }                                                                                                \
    TARGET static void name##_in(enum micro_form form, int64_t units, const uint32_t *a, int64_t ld, \
                                 const uint32_t *b, float *tile)                                     \
    {                                                                                                \
        switch (form) {                                                                              \
        case MICRO_ROWS: name##_with(units, a, ld, 1, b, NR, tile, MR, NV); break;                   \
        case MICRO_ROWS_NARROW: name##_with(units, a, ld, 1, b, NR, tile, MR, 1); break;             \
        case MICRO_SHORT: name##_with(units, a, 1, MR, b, NR, tile, SHORT_MR, NV); break;            \
        }                                                                                            \
    }

MICRO_KERNELS(, micro_f32)

#if defined(__AVX512F__)
#define GEMM_HAS_PAIRS 1
#define TARGET_PAIRS __attribute__((target("avx512bf16")))
TARGET_PAIRS static ALWAYS_INLINE void micro_pairs_with(int64_t units, const uint32_t *a, int64_t row_step,
                                                        int64_t step, const uint32_t *b, int64_t ld_b, float *tile,
                                                        int rows, int nv)
{
    __m512 sums[MR][NV];
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) sums[i][j] = _mm512_setzero_ps();
    for (int64_t unit = 0; unit < units; unit++, a += step, b += ld_b) {
        __m512bh columns[NV];
        __builtin_prefetch(b + 8 * ld_b);
        __builtin_prefetch(b + 8 * ld_b + NR / 2);
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) columns[j] = (__m512bh)_mm512_loadu_si512(b + j * VF);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            __m512bh row = (__m512bh)_mm512_set1_epi32((int)a[i * row_step]);
#pragma GCC unroll 4
            for (int j = 0; j < nv; j++) sums[i][j] = _mm512_dpbf16_ps(sums[i][j], row, columns[j]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) _mm512_storeu_ps(tile + i * NR + j * VF, sums[i][j]);
}

MICRO_KERNELS(TARGET_PAIRS, micro_pairs)
#else
#define GEMM_HAS_PAIRS 0
#endif
