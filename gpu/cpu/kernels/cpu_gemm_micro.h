/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_gemm_micro.h: the micro-kernels of the built-in matrix product: tile (MR, NR) = a (units, MR) · b (units, NR),
 * all sums in registers. AMX has its own: cpu_gemm_amx.h. A template, see ops_cpu.h. */

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
