/* SPDX-License-Identifier: Apache-2.0 */
/* sums.c: see sums.h. The sum of a block stays in the first-level cache. Contributions are checked on the way: x · 0 is
 * NaN exactly where x is not finite. The loop is bound by memory, so vectors of four floats suffice. */
#include "comm/sums.h"

typedef float vec __attribute__((vector_size(16)));
enum { LANES = 4, BLOCK = 2048 };

static inline vec sum_vec_load(const float *p)
{
    vec v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void sum_vec_store(float *p, vec v)
{
    memcpy(p, &v, sizeof v);
}

/* sum[i] = [sum[i] +] x[i]. Returns whether all x are finite. */
static bool sum_add_block(float *sum, const float *x, size_t count, bool first)
{
    vec zero = {0}, z0 = zero, z1 = zero;
    size_t i = 0;
    for (; i + 2 * LANES <= count; i += 2 * LANES) {
        vec a = sum_vec_load(x + i), b = sum_vec_load(x + i + LANES);
        z0 += a * zero;
        z1 += b * zero;
        if (!first) {
            a = sum_vec_load(sum + i) + a;
            b = sum_vec_load(sum + i + LANES) + b;
        }
        sum_vec_store(sum + i, a);
        sum_vec_store(sum + i + LANES, b);
    }
    float z = 0;
    for (; i < count; i++) {
        z += x[i] * 0.0f;
        sum[i] = first ? x[i] : sum[i] + x[i];
    }
    z0 += z1;
    for (int lane = 0; lane < LANES; lane++) z += z0[lane];
    return z == 0;
}

void floats_from(float *out, const void *in, size_t count, enum dtype dtype)
{
    const uint16_t *halves = in;
    if (dtype == DTYPE_F32)
        memcpy(out, in, count * sizeof *out);
    else if (dtype == DTYPE_BF16)
#pragma omp simd
        for (size_t i = 0; i < count; i++) out[i] = bf16_to_f32(halves[i]);
    else
        for (size_t i = 0; i < count; i++) out[i] = f16_to_f32(halves[i]);
}

void floats_to(void *out, const float *in, size_t count, enum dtype dtype)
{
    uint16_t *halves = out;
    if (dtype == DTYPE_F32)
        memcpy(out, in, count * sizeof *in);
    else if (dtype == DTYPE_BF16)
#pragma omp simd
        for (size_t i = 0; i < count; i++) halves[i] = bf16_from_f32(in[i]);
    else
        for (size_t i = 0; i < count; i++) halves[i] = f16_from_f32(in[i]);
}

/* Elements from `first` on as fp32: in place, or converted into scratch. */
static const float *sum_as_floats(const void *in, size_t first, size_t count, enum dtype dtype, float *scratch)
{
    if (dtype == DTYPE_F32) return (const float *)in + first;
    floats_from(scratch, (const uint16_t *)in + first, count, dtype);
    return scratch;
}

int32_t sum_ranks(void *out, enum dtype out_dtype, const void *const *in, int ranks, size_t count, enum dtype dtype,
                  enum sum_start start)
{
    ASSERT(ranks >= 1);
    float sum[BLOCK], scratch[BLOCK];
    int32_t bad = RANK_NONE;
    for (size_t first = 0; first < count; first += BLOCK) {
        size_t n = count - first < BLOCK ? count - first : BLOCK;
        if (start == SUM_FROM_OUT) floats_from(sum, (const char *)out + first * dtype_size(out_dtype), n, out_dtype);
        for (int r = 0; r < ranks; r++) {
            const bool sets = r == 0 && start != SUM_FROM_OUT;
            if (!sum_add_block(sum, sum_as_floats(in[r], first, n, dtype, scratch), n, sets) && r < bad) bad = r;
        }
        if (start == SUM_THEN_OUT) {
            const float *old = sum_as_floats(out, first, n, out_dtype, scratch);
            for (size_t i = 0; i < n; i++) sum[i] = old[i] + sum[i];
        }
        floats_to((char *)out + first * dtype_size(out_dtype), sum, n, out_dtype);
    }
    return bad;
}
