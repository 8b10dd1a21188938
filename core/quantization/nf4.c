/* SPDX-License-Identifier: Apache-2.0 */
#include "core/quantization/nf4.h"

#include "core/round_up.h"

static float nf4_largest(const float *x, int64_t n)
{
    float largest = 0;
    for (int64_t i = 0; i < n; i++) largest = fmaxf(largest, fabsf(x[i]));
    return largest;
}

/* The code of x in -1 … 1: how many of the middles between neighbours are below it. */
static int nf4_code(const float middles[NF4_VALUES - 1], float x)
{
    int code = 0;
    for (int i = 0; i < NF4_VALUES - 1; i++) code += x > middles[i];
    return code;
}

void nf4_encode(const float *x, int64_t n, bool last, uint8_t *codes, float *scales)
{
    static const float least = 1e-38f; /* bitsandbytes' bound against a division by 0 */
    float middles[NF4_VALUES - 1];
    for (int i = 0; i < NF4_VALUES - 1; i++) middles[i] = (nf4_value(i) + nf4_value(i + 1)) / 2;
#pragma omp parallel for schedule(static) if (n >= 1 << 16)
    for (int64_t first = 0; first < n; first += NF4_BLOCK) {
        const int64_t end = min64(first + NF4_BLOCK, n);
        const bool partial = last && end - first < NF4_BLOCK;
        const float largest = nf4_largest(x + first, end - first), bound = fmaxf(largest, least);
        const float reciprocal = 1.0f / bound;
        scales[first / NF4_BLOCK] = partial ? bound : largest;
        for (int64_t i = first; i < end; i++) {
            const float scaled = partial ? x[i] / bound : x[i] * reciprocal;
            const int code = nf4_code(middles, fmaxf(-1, fminf(scaled, 1)));
            codes[i / 2] = (uint8_t)(i % 2 ? codes[i / 2] | code : code << 4);
        }
        if (end % 2) /* a code of 0 fills the last byte */
            codes[end / 2] = (uint8_t)(codes[end / 2] | nf4_code(middles, 0));
    }
}

/* Lanes of a vector of 256 bits; rows: sums side by side, of every fourth vector; levels of sums of sums. */
enum { LANES = 8, ROWS = 4, LEVELS = 4 };

/* One lane of one row: sums of 2^power elements are added up to sums of as many sums, and so on. */
static float nf4_cascade(const float *x, int64_t stride, int64_t n)
{
    const int log = n > 1 ? 64 - __builtin_clzll((unsigned long long)n - 1) : 0; /* rounded up */
    const int power = log / LEVELS > 4 ? log / LEVELS : 4;
    const int64_t step = (int64_t)1 << power, mask = step - 1;
    float sums[LEVELS] = {0};
    int64_t i = 0;
    while (i + step <= n) {
        for (int64_t end = i + step; i < end; i++) sums[0] += x[i * stride];
        for (int level = 1; level < LEVELS; level++) {
            sums[level] += sums[level - 1];
            sums[level - 1] = 0;
            if (i & (mask << (level * power))) break;
        }
    }
    for (; i < n; i++) sums[0] += x[i * stride];
    for (int level = 1; level < LEVELS; level++) sums[0] += sums[level];
    return sums[0];
}

/* The mean of n values, with the bits that torch gives to it. */
static float nf4_mean(const float *x, int64_t n)
{
    const int64_t vectors = n / LANES, rows = vectors / ROWS;
    float sum = 0;
    for (int64_t i = vectors * LANES; i < n; i++) sum += x[i];
    for (int lane = 0; lane < LANES; lane++) {
        float part[ROWS];
        for (int row = 0; row < ROWS; row++)
            part[row] = nf4_cascade(x + row * LANES + lane, (int64_t)ROWS * LANES, rows);
        for (int64_t i = rows * ROWS; i < vectors; i++) part[0] += x[i * LANES + lane];
        sum += ((part[0] + part[1]) + part[2]) + part[3];
    }
    return sum / (float)n;
}

void nf4_encode_scales(float *scales, int64_t count, const float map[DYNAMIC_MAP_SIZE], float *offset,
                       uint8_t *scale_codes, float *nested_scales)
{
    *offset = nf4_mean(scales, count);
    for (int64_t i = 0; i < count; i++) scales[i] -= *offset;
    for (int64_t first = 0; first < count; first += NF4_NESTED_BLOCK) {
        const int64_t end = min64(first + NF4_NESTED_BLOCK, count);
        const float largest = nf4_largest(scales + first, end - first), reciprocal = 1.0f / largest;
        nested_scales[first / NF4_NESTED_BLOCK] = largest;
        for (int64_t i = first; i < end; i++)
            scale_codes[i] = largest > 0 ? dynamic_map_code_of_grid(map, scales[i] * reciprocal) : 0;
    }
}
