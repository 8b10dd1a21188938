/* sums.c: see sums.h. The sum of a block stays in the first-level cache while the ranks' contributions stream through.
 * Contributions are checked on the way: x · 0 is NaN exactly where x is not finite. Every x86-64 and ARMv8 has vectors
 * of four floats; the loop is bound by memory, not by their width. */
#include "comm/sums.h"

#include "core/status.h"

typedef float vec __attribute__((vector_size(16)));
enum { LANES = 4, BLOCK = 2048 };

static inline vec vec_load(const float *p)
{
    vec v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void vec_store(float *p, vec v)
{
    memcpy(p, &v, sizeof v);
}

/* sum[i] = [sum[i] +] x[i]. Returns whether all x are finite. */
static bool add_block(float *sum, const float *x, size_t count, bool first)
{
    vec zero = {0}, z0 = zero, z1 = zero;
    size_t i = 0;
    for (; i + 2 * LANES <= count; i += 2 * LANES) {
        vec a = vec_load(x + i), b = vec_load(x + i + LANES);
        z0 += a * zero;
        z1 += b * zero;
        if (!first) {
            a = vec_load(sum + i) + a;
            b = vec_load(sum + i + LANES) + b;
        }
        vec_store(sum + i, a);
        vec_store(sum + i + LANES, b);
    }
    float z = 0;
    for (; i < count; i++) {
        z += x[i] * 0.0f;
        sum[i] = first ? x[i] : sum[i] + x[i];
    }
    z0 += z1;
    for (int lane = 0; lane < LANES; lane++)
        z += z0[lane];
    return z == 0;
}

/* `count` elements of dtype as fp32: in place, or converted into scratch */
static const float *as_floats(const void *in, size_t first, size_t count, enum dtype dtype, float *scratch)
{
    if (dtype == DTYPE_F32)
        return (const float *)in + first;
    const uint16_t *halves = (const uint16_t *)in + first;
    if (dtype == DTYPE_BF16)
        for (size_t i = 0; i < count; i++)
            scratch[i] = bf16_to_f32(halves[i]);
    else
        for (size_t i = 0; i < count; i++)
            scratch[i] = f16_to_f32(halves[i]);
    return scratch;
}

/* out[first + i] = x[i], rounded to dtype */
static void store_rounded(void *out, size_t first, const float *x, size_t count, enum dtype dtype)
{
    uint16_t *halves = (uint16_t *)out + first;
    if (dtype == DTYPE_F32)
        memcpy((float *)out + first, x, count * sizeof *x);
    else if (dtype == DTYPE_BF16)
        for (size_t i = 0; i < count; i++)
            halves[i] = bf16_from_f32(x[i]);
    else
        for (size_t i = 0; i < count; i++)
            halves[i] = f16_from_f32(x[i]);
}

int32_t sum_ranks(void *out, enum dtype out_dtype, const void *const *in, int ranks, size_t count, enum dtype dtype,
                  bool accumulate)
{
    ASSERT(ranks >= 1);
    float sum[BLOCK], scratch[BLOCK];
    int32_t bad = RANK_NONE;
    for (size_t first = 0; first < count; first += BLOCK) {
        size_t n = count - first < BLOCK ? count - first : BLOCK;
        for (int r = 0; r < ranks; r++)
            if (!add_block(sum, as_floats(in[r], first, n, dtype, scratch), n, r == 0) && r < bad)
                bad = r;
        if (accumulate) {
            const float *old = as_floats(out, first, n, out_dtype, scratch);
            for (size_t i = 0; i < n; i++)
                sum[i] = old[i] + sum[i];
        }
        store_rounded(out, first, sum, n, out_dtype);
    }
    return bad;
}
