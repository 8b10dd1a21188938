/* SPDX-License-Identifier: Apache-2.0 */
/* philox.c: Philox4x32-10 and a standard normal stream on top of it.
 *
 * The normal values have the same bits on every machine and at every vector width: logarithm, sine and cosine are IEEE
 * additions, multiplications, divisions and square roots (no libm), and no multiplication and addition becomes an FMA
 * (gcc makes none with -std=c11; clang obeys the pragma below). Compilers vectorise the loops over LANES counters.
 *
 *     block b of a stream = Philox(key = seed, counter = (b, stream)) = 4 words = elements 4b … 4b+3:
 *     words 0, 1 -> radius and angle of elements 4b, 4b+1; words 2, 3 -> those of 4b+2, 4b+3 */
#include "core/training/philox.h"

#include <math.h>
#include <string.h>

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#elif !defined(__STRICT_ANSI__)
#error "needs -std=c11: with -std=gnu11 gcc makes FMAs, and the bits depend on the machine"
#endif

enum { LANES = 64 /* blocks computed together: 256 elements */ };

void philox4x32(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4])
{
    memcpy(out, counter, 4 * sizeof *out);
    philox_rounds(&out[0], &out[1], &out[2], &out[3], key[0], key[1]);
}

uint64_t philox_u64(uint64_t seed, uint64_t stream, uint64_t index)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)};
    uint32_t out[4];
    philox4x32(key, counter, out);
    return (uint64_t)out[1] << 32 | out[0];
}

/* sqrt(-2 ln u) with u = (w / 2 + 1/2) / 2^31 in (0, 1]. ln: u = m · 2^e with m in [sqrt(1/2), sqrt(2)), and
 * ln m = 2 artanh(s), s = (m - 1) / (m + 1), as its series up to s^9 (the remainder is below 1e-8). */
static inline float philox_radius(uint32_t w)
{
    float u = (float)(int32_t)(w >> 1) * 0x1p-31f + 0x1p-32f;
    uint32_t bits = bits_of_float(u);
    int32_t e = (int32_t)(bits - 0x3f3504f3u) >> 23;
    float m = float_of_bits(bits - ((uint32_t)e << 23));
    float s = (m - 1.0f) / (m + 1.0f), z = s * s;
    float series = 1.0f + z * (1.0f / 3 + z * (1.0f / 5 + z * (1.0f / 7 + z * (1.0f / 9))));
    float ln = (float)e * 0.693147181f + 2.0f * s * series;
    return sqrtf(-2.0f * ln);
}

/* cos and sin of w / 2^32 turns, from the nearest multiple of a quarter turn and Taylor series over ±π/4. */
static inline void philox_cos_sin(uint32_t w, float *cosine, float *sine)
{
    uint32_t quadrant = (w + 0x20000000u) >> 30;
    float a = (float)(int32_t)(w - (quadrant << 30)) * 1.46291808e-9f; /* 2π / 2^32 */
    float z = a * a;
    float s = a * (1.0f + z * (-1.0f / 6 + z * (1.0f / 120 + z * (-1.0f / 5040 + z * (1.0f / 362880)))));
    float c = 1.0f + z * (-0.5f + z * (1.0f / 24 + z * (-1.0f / 720 + z * (1.0f / 40320 + z * (-1.0f / 3628800)))));
    uint32_t sb = bits_of_float(s), cb = bits_of_float(c);
    uint32_t swap = 0u - (quadrant & 1u); /* all ones in odd quadrants */
    uint32_t cos_bits = (cb & ~swap) | (sb & swap), sin_bits = (sb & ~swap) | (cb & swap);
    *cosine = float_of_bits(cos_bits ^ (((quadrant + 1) & 2u) << 30));
    *sine = float_of_bits(sin_bits ^ ((quadrant & 2u) << 30));
}

/* out (4 · LANES) = the elements of blocks first … first + LANES - 1 */
static inline __attribute__((always_inline)) void normal_blocks_body(uint64_t seed, uint64_t stream, uint64_t first,
                                                                     float out[4 * LANES])
{
    uint32_t x0[LANES], x1[LANES], x2[LANES], x3[LANES];
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int i = 0; i < LANES; i++) {
        uint64_t block = first + (uint64_t)i;
        x0[i] = (uint32_t)block;
        x1[i] = (uint32_t)(block >> 32);
        x2[i] = (uint32_t)stream;
        x3[i] = (uint32_t)(stream >> 32);
    }
#pragma omp simd
    for (int i = 0; i < LANES; i++) {
        uint32_t a = x0[i], b = x1[i], c = x2[i], d = x3[i];
        philox_rounds(&a, &b, &c, &d, k0, k1);
        x0[i] = a;
        x1[i] = b;
        x2[i] = c;
        x3[i] = d;
    }
#pragma omp simd
    for (int i = 0; i < LANES; i++) {
        float r0 = philox_radius(x0[i]), r1 = philox_radius(x2[i]), c0, s0, c1, s1;
        philox_cos_sin(x1[i], &c0, &s0);
        philox_cos_sin(x3[i], &c1, &s1);
        out[4 * i] = r0 * c0;
        out[4 * i + 1] = r0 * s0;
        out[4 * i + 2] = r1 * c1;
        out[4 * i + 3] = r1 * s1;
    }
}

/* The same code compiled for several vector widths, with the same bits. */
typedef void normal_blocks_function(uint64_t seed, uint64_t stream, uint64_t first, float out[4 * LANES]);
#define NORMAL_BLOCKS(name, target)                                                               \
    target static void name(uint64_t seed, uint64_t stream, uint64_t first, float out[4 * LANES]) \
    {                                                                                             \
        normal_blocks_body(seed, stream, first, out);                                             \
    }
NORMAL_BLOCKS(normal_blocks_plain, )
#ifdef __x86_64__
NORMAL_BLOCKS(normal_blocks_avx2, __attribute__((target("avx2"))))
NORMAL_BLOCKS(normal_blocks_avx512, __attribute__((target("avx512f,avx512dq,avx512vl"))))
#endif

static normal_blocks_function *choose_normal_blocks(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) return normal_blocks_avx512;
    if (__builtin_cpu_supports("avx2")) return normal_blocks_avx2;
#endif
    return normal_blocks_plain;
}

void philox_normal(uint64_t seed, uint64_t stream, int64_t first, int64_t count, float *out)
{
    normal_blocks_function *normal_blocks = choose_normal_blocks();
    while (count > 0) {
        uint64_t block = (uint64_t)first / 4;
        int64_t skip = first % 4, n = 4 * LANES - skip;
        if (n > count) n = count;
        if (n == 4 * LANES) {
            normal_blocks(seed, stream, block, out);
        } else {
            float part[4 * LANES];
            normal_blocks(seed, stream, block, part);
            memcpy(out, part + skip, (size_t)n * sizeof *out);
        }
        first += n;
        out += n;
        count -= n;
    }
}
