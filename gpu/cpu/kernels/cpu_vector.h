/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_vector.h: vectors of floats, of the width that the including file is compiled for: loads and stores of every
 * dtype, polynomials for exp() and related functions. The vector extensions that gcc and clang share let one source
 * serve AVX-512, AVX2, SSE2 and NEON. */
#pragma once

#include "core/dtype.h"

#include <stdint.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

/* VF_INTEL(name): the intrinsic of that name for a whole vector, which is a vf_intel. */
#if defined(__AVX512F__)
#define VF_BYTES 64
#define VF_INTEL(name) _mm512_##name
typedef __m512 vf_intel;
#elif defined(__AVX2__)
#define VF_BYTES 32
#define VF_INTEL(name) _mm256_##name
typedef __m256 vf_intel;
#else
#define VF_BYTES 16
#if defined(__x86_64__)
#define VF_INTEL(name) _mm_##name
typedef __m128 vf_intel;
#endif
#endif
#define VF (VF_BYTES / 4) /* floats in a vector */

#define ALWAYS_INLINE inline __attribute__((always_inline, unused))

typedef float vf __attribute__((vector_size(VF_BYTES)));
typedef int32_t vi __attribute__((vector_size(VF_BYTES)));
typedef uint32_t vu __attribute__((vector_size(VF_BYTES)));
typedef uint16_t vh __attribute__((vector_size(VF_BYTES / 2)));

static ALWAYS_INLINE vf vf_set(float x)
{
    return x - (vf){0};
}

static ALWAYS_INLINE vf vf_zero(void)
{
    return (vf){0};
}

/* mask (all ones or zeros per lane) ? a : b */
static ALWAYS_INLINE vf vf_select(vi mask, vf a, vf b)
{
    return (vf)((mask & (vi)a) | (~mask & (vi)b));
}

/* a > b ? a : b, so a NaN in `a` is lost. */
static ALWAYS_INLINE vf vf_max(vf a, vf b)
{
#if defined(VF_INTEL)
    return (vf)VF_INTEL(max_ps)((vf_intel)a, (vf_intel)b);
#else
    return vf_select(a > b, a, b);
#endif
}

/* a · b + c, rounded once where the instruction set has it; for ops whose GPU kernel rounds in the same places. */
static ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c)
{
#if defined(__AVX2__)
    return (vf)VF_INTEL(fmadd_ps)((vf_intel)a, (vf_intel)b, (vf_intel)c);
#elif defined(__aarch64__)
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

static ALWAYS_INLINE vf vf_sqrt(vf x)
{
#if defined(VF_INTEL)
    return (vf)VF_INTEL(sqrt_ps)((vf_intel)x);
#elif defined(__aarch64__)
    return (vf)vsqrtq_f32((float32x4_t)x);
#else
    for (int i = 0; i < VF; i++) x[i] = sqrtf(x[i]);
    return x;
#endif
}

/* Sums the lanes as a tree, in an order that depends on the width only. */
static ALWAYS_INLINE float vf_sum(vf x)
{
    float lanes[VF];
    memcpy(lanes, &x, sizeof lanes);
    for (int width = VF / 2; width >= 1; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
    return lanes[0];
}

static ALWAYS_INLINE float vf_max_lane(vf x)
{
    float lanes[VF];
    memcpy(lanes, &x, sizeof lanes);
    for (int width = VF / 2; width >= 1; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] = lanes[i + width] > lanes[i] ? lanes[i + width] : lanes[i];
    return lanes[0];
}

static ALWAYS_INLINE vf vf_from_bf16(vh h)
{
#if defined(__AVX512F__)
    return (vf)((vu)_mm512_cvtepu16_epi32((__m256i)h) << 16);
#elif defined(__AVX2__)
    return (vf)((vu)_mm256_cvtepu16_epi32((__m128i)h) << 16);
#else
    return (vf)(__builtin_convertvector(h, vu) << 16);
#endif
}

/* Rounds to nearest even; a NaN becomes a quiet NaN. Gives the same bits as bf16_from_f32(). */
static ALWAYS_INLINE vh vf_to_bf16(vf x)
{
    vu u = (vu)x;
#if defined(__AVX512F__)
    __mmask16 is_nan = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);
    __m512i carried = (__m512i)(u + 0x7fffu + ((u >> 16) & 1u));
    carried = _mm512_mask_or_epi32(carried, is_nan, (__m512i)u, _mm512_set1_epi32(0x400000));
    return (vh)_mm512_cvtepi32_epi16(_mm512_srli_epi32(carried, 16));
#else
    vu rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    vi nan = x != x;
    vu result = ((vu)nan & ((u >> 16) | 0x40u)) | (~(vu)nan & rounded);
    return __builtin_convertvector(result, vh);
#endif
}

/* Rounds to a neighbouring bf16 value by random bits. Gives the same bits as bf16_round_stochastically(). */
static ALWAYS_INLINE vh vf_to_bf16_by(vf x, vh random)
{
    vu u = (vu)x, rounded = (u + __builtin_convertvector(random, vu)) >> 16;
    vi nan = x != x;
    return __builtin_convertvector(((vu)nan & ((u >> 16) | 0x40u)) | (~(vu)nan & rounded), vh);
}

static ALWAYS_INLINE vf vf_from_f16(vh h)
{
#if defined(__AVX512F__)
    return (vf)_mm512_cvtph_ps((__m256i)h);
#elif defined(__F16C__)
    return (vf)_mm256_cvtph_ps((__m128i)h);
#else
    vf x;
    for (int i = 0; i < VF; i++) x[i] = f16_to_f32(h[i]);
    return x;
#endif
}

/* Round to nearest even. */
static ALWAYS_INLINE vh vf_to_f16(vf x)
{
#if defined(__AVX512F__)
    return (vh)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__F16C__)
    return (vh)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT);
#else
    vh h;
    for (int i = 0; i < VF; i++) h[i] = f16_from_f32(x[i]);
    return h;
#endif
}

static ALWAYS_INLINE vf vf_from_half(vh h, enum dtype dtype)
{
    return dtype == DTYPE_BF16 ? vf_from_bf16(h) : vf_from_f16(h);
}

static ALWAYS_INLINE vh vf_to_half(vf x, enum dtype dtype)
{
    return dtype == DTYPE_BF16 ? vf_to_bf16(x) : vf_to_f16(x);
}

#define AS_CONSTANT(type, NAME, value, ...) \
    {                                       \
        const type NAME = value;            \
        __VA_ARGS__;                        \
    }

/* Runs a statement with the constant NAME equal to `value`, so that each dtype is compiled separately. */
#define WITH_DTYPE_AS(NAME, value, ...)                            \
    do {                                                           \
        if ((value) == DTYPE_F32)                                  \
            AS_CONSTANT(enum dtype, NAME, DTYPE_F32, __VA_ARGS__)  \
        else if ((value) == DTYPE_BF16)                            \
            AS_CONSTANT(enum dtype, NAME, DTYPE_BF16, __VA_ARGS__) \
        else                                                       \
            AS_CONSTANT(enum dtype, NAME, DTYPE_F16, __VA_ARGS__)  \
    } while (0)
#define WITH_DTYPE(value, ...) WITH_DTYPE_AS(DT, value, __VA_ARGS__)
#define WITH_DTYPES(dst, src, ...) WITH_DTYPE_AS(DST, dst, WITH_DTYPE_AS(SRC, src, __VA_ARGS__))

/* The same for a condition. */
#define WITH_BOOL(NAME, condition, ...)                 \
    do {                                                \
        if (condition)                                  \
            AS_CONSTANT(bool, NAME, true, __VA_ARGS__)  \
        else                                            \
            AS_CONSTANT(bool, NAME, false, __VA_ARGS__) \
    } while (0)

static inline void *at(const void *base, int64_t element, enum dtype dtype)
{
    return (char *)(uintptr_t)base + (size_t)element * dtype_size(dtype);
}

/* VF elements of `p` from element i. */
static ALWAYS_INLINE vf vf_load(const void *p, int64_t i, enum dtype dtype)
{
    if (dtype == DTYPE_F32) {
        vf x;
        memcpy(&x, (const float *)p + i, sizeof x);
        return x;
    }
    vh h;
    memcpy(&h, (const uint16_t *)p + i, sizeof h);
    return vf_from_half(h, dtype);
}

static ALWAYS_INLINE void vf_store(void *p, int64_t i, vf x, enum dtype dtype)
{
    if (dtype == DTYPE_F32) {
        memcpy((float *)p + i, &x, sizeof x);
    } else {
        vh h = vf_to_half(x, dtype);
        memcpy((uint16_t *)p + i, &h, sizeof h);
    }
}

/* vf_store() of fp32 past the caches; p + i is aligned to VF_BYTES. vf_stream_end() before another thread reads. */
static ALWAYS_INLINE void vf_stream(float *p, int64_t i, vf x)
{
#if defined(__AVX2__)
    VF_INTEL(stream_ps)(p + i, (vf_intel)x);
#else
    vf_store(p, i, x, DTYPE_F32);
#endif
}

static ALWAYS_INLINE void vf_stream_end(void)
{
#if defined(__AVX2__)
    _mm_sfence();
#endif
}

/* The first n (less than VF) elements from i; the other lanes are zero. */
static ALWAYS_INLINE vf vf_load_part(const void *p, int64_t i, int64_t n, enum dtype dtype)
{
#if defined(__AVX512F__)
    __mmask16 mask = (__mmask16)((1u << n) - 1);
    if (dtype == DTYPE_F32) return (vf)_mm512_maskz_loadu_ps(mask, (const float *)p + i);
    return vf_from_half((vh)_mm256_maskz_loadu_epi16(mask, (const uint16_t *)p + i), dtype);
#else
    if (dtype == DTYPE_F32) {
        vf x = {0};
        memcpy(&x, (const float *)p + i, (size_t)n * 4);
        return x;
    }
    vh h = {0};
    memcpy(&h, (const uint16_t *)p + i, (size_t)n * 2);
    return vf_from_half(h, dtype);
#endif
}

static ALWAYS_INLINE void vf_store_part(void *p, int64_t i, int64_t n, vf x, enum dtype dtype)
{
#if defined(__AVX512F__)
    __mmask16 mask = (__mmask16)((1u << n) - 1);
    if (dtype == DTYPE_F32)
        _mm512_mask_storeu_ps((float *)p + i, mask, (__m512)x);
    else
        _mm256_mask_storeu_epi16((uint16_t *)p + i, mask, (__m256i)vf_to_half(x, dtype));
#else
    if (dtype == DTYPE_F32) {
        memcpy((float *)p + i, &x, (size_t)n * 4);
    } else {
        vh h = vf_to_half(x, dtype);
        memcpy((uint16_t *)p + i, &h, (size_t)n * 2);
    }
#endif
}

/* Loads and stores of whole vectors, and of a part at the end: a loop `for (i = 0; i < n; i += VF)` needs no tail. */
static ALWAYS_INLINE vf vf_get(const void *p, int64_t i, int64_t n, enum dtype dtype)
{
    return n - i >= VF ? vf_load(p, i, dtype) : vf_load_part(p, i, n - i, dtype);
}

static ALWAYS_INLINE void vf_put(void *p, int64_t i, int64_t n, vf x, enum dtype dtype)
{
    if (n - i >= VF)
        vf_store(p, i, x, dtype);
    else
        vf_store_part(p, i, n - i, x, dtype);
}

/* The sum of the products of n elements, in lanes. */
static ALWAYS_INLINE vf vf_dot(const void *x, const void *y, int64_t n, enum dtype dtype)
{
    vf sum = vf_zero();
    for (int64_t j = 0; j < n; j += VF) sum += vf_get(x, j, n, dtype) * vf_get(y, j, n, dtype);
    return sum;
}

/* A mask of the first `left` lanes. */
static ALWAYS_INLINE vi vf_lanes_below(int64_t left)
{
    vi lane;
    for (int j = 0; j < VF; j++) lane[j] = j;
    return lane < (int32_t)(left < VF ? left : VF);
}

/* exp(x) within 2 ulp: 2^n · p(r), x = n·ln2 + r. Below -87.33 (least normal number) 0; above 88.72 infinity. */
static ALWAYS_INLINE vf vf_exp(vf x)
{
    const float low = -87.33f, high = 88.72f;
#if defined(__AVX512F__)
    __mmask16 small = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(low), _CMP_LT_OQ);
    /* with the operands in this order, a NaN in x stays NaN */
    vf clamped = (vf)_mm512_min_ps(_mm512_set1_ps(high + 1), _mm512_max_ps(_mm512_set1_ps(low), (__m512)x));
#else
    vi under = x < vf_set(low);
    vi over = x > vf_set(high);
    vf clamped = vf_select(under, vf_set(low), vf_select(over, vf_set(high), x));
#endif
    vf shifted = clamped * 1.44269504088896341f + 12582912.0f; /* 1.5 · 2^23: the integer sits in the low bits */
    vf n = shifted - 12582912.0f;
    vf r = clamped - n * 0.693145751953125f;
    r = r - n * 1.42860682030941723e-6f;
    vf p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
#if defined(__AVX512F__)
    return (vf)_mm512_mask_mov_ps(_mm512_scalef_ps((__m512)p, (__m512)n), small, _mm512_setzero_ps());
#else
    /* 2^n as two factors, because 2^128 is not a finite float */
    vi exponent = (vi)shifted - (vi)vf_set(12582912.0f);
    vi half = exponent >> 1;
    vf scale_a = (vf)((half + 127) << 23), scale_b = (vf)((exponent - half + 127) << 23);
    vf y = p * scale_a * scale_b;
    y = vf_select(under, vf_zero(), y);
    return vf_select(over, vf_set(INFINITY), y);
#endif
}

/* log(x) within 2 ulp for normal positive x: x = 2^n · f, f in sqrt(1/2) … sqrt(2). NaN stays NaN. */
static ALWAYS_INLINE vf vf_log(vf x)
{
    vi bits = (vi)x, n = ((bits - 0x3f3504f3) >> 23);
    vf f = (vf)(bits - (n << 23)) - 1.0f;
    vf p = f * 7.0376836292e-2f - 1.1514610310e-1f;
    p = p * f + 1.1676998740e-1f;
    p = p * f - 1.2420140846e-1f;
    p = p * f + 1.4249322787e-1f;
    p = p * f - 1.6668057665e-1f;
    p = p * f + 2.0000714765e-1f;
    p = p * f - 2.4999993993e-1f;
    p = p * f + 3.3333331174e-1f;
    vf e = __builtin_convertvector(n, vf), square = f * f;
    vf y = p * f * square - 2.12194440e-4f * e - 0.5f * square + f + 0.693359375f * e;
    return vf_select(x != x, x, y);
}

/* 2^x within 2^-18, for results that will be rounded to half precision. Below -150 0, above 128 infinity. */
static ALWAYS_INLINE vf vf_exp2_half(vf x)
{
#if defined(__AVX512F__)
    vf clamped = (vf)_mm512_min_ps(_mm512_set1_ps(150), _mm512_max_ps(_mm512_set1_ps(-150), (__m512)x)); /* NaN stays */
    __m512 n = _mm512_roundscale_ps((__m512)clamped, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    vf f = clamped - (vf)n;
    vf p = f * 9.5828530703e-3f + 5.5906424632e-2f; /* 2^f - 1 over f, least relative error on [-1/2, 1/2] */
    p = p * f + 2.4024098611e-1f;
    p = p * f + 6.9312419341e-1f;
    return (vf)_mm512_scalef_ps((__m512)(p * f + 1.0f), n);
#else
    return vf_exp(x * 0.693147180559945309f);
#endif
}

/* e^x. half: the result will be rounded to half precision; a constant, as in all functions below. */
static ALWAYS_INLINE vf vf_exp_for(vf x, bool half)
{
    return half ? vf_exp2_half(x * 1.44269504088896341f) : vf_exp(x);
}

static ALWAYS_INLINE vf vf_sigmoid(vf x, bool half)
{
#if defined(__AVX512F__)
    if (half) /* within 2^-14 */
        return (vf)_mm512_rcp14_ps((__m512)(1.0f + vf_exp2_half(x * -1.44269504088896341f)));
#endif
    return 1.0f / (1.0f + vf_exp_for(-x, half));
}

/* tanh(x) within 2^-22 of 1 or of x: a series near 0, where the difference of the formula cancels. */
static ALWAYS_INLINE vf vf_tanh(vf x)
{
    const vf square = x * x, near = vf_set(0.04f); /* |x| < 0.2 */
    vf series = x + x * square * (-1.0f / 3 + square * (2.0f / 15 + square * (-17.0f / 315)));
    vf formula = 2.0f * vf_sigmoid(2.0f * x, false) - 1.0f;
    return vf_select(square < near, series, formula);
}

/* gelu_tanh(x) = x · (1 + tanh(u)) / 2 = x · sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x³) */
#define GELU_TWO_ROOT 1.5957691216057308f /* 2 sqrt(2/pi) */
#define GELU_CUBIC 0.044715f

static ALWAYS_INLINE vf vf_gelu(vf x, bool half)
{
    return x * vf_sigmoid(x * (GELU_TWO_ROOT + GELU_TWO_ROOT * GELU_CUBIC * x * x), half);
}

static ALWAYS_INLINE vf vf_gelu_grad(vf x, bool half)
{
    vf square = x * x;
    vf s = vf_sigmoid(x * (GELU_TWO_ROOT + GELU_TWO_ROOT * GELU_CUBIC * square), half);
    return s + x * s * (1.0f - s) * (GELU_TWO_ROOT + 3.0f * GELU_TWO_ROOT * GELU_CUBIC * square);
}

/* The normal distribution function, (1 + erf(x / sqrt(2))) / 2, within 2^-21 of itself or of 1; `bell` = exp(-x² / 2).
 * Below 0 it is bell · Q(t), t = 1 / (1 + |x| / sqrt(8)); Q was fitted for t in (0, 1], relative error 2^-24. */
static ALWAYS_INLINE vf vf_normal(vf x, vf bell)
{
    const vf size = vf_max(x, -x);
    vf t = 1.0f / (1.0f + 0.35355339059327376f * size);
    vf q = t * -2.9676714945e-2f + 1.4298162985e-1f;
    q = q * t - 2.4503740175e-1f;
    q = q * t + 1.4067784727e-1f;
    q = q * t - 1.4444978010e-2f;
    q = q * t + 1.0182198047e-1f;
    q = q * t + 1.2143113930e-1f;
    q = q * t + 1.4120420689e-1f;
    q = q * t + 1.4104226892e-1f;
    vf below = bell * q * t;
    return vf_select(x < vf_zero(), below, 1.0f - below);
}

/* x · vf_normal(x) */
static ALWAYS_INLINE vf vf_gelu_erf(vf x, bool half)
{
    return x * vf_normal(x, vf_exp_for(-0.5f * x * x, half));
}

static ALWAYS_INLINE vf vf_gelu_erf_grad(vf x, bool half)
{
    vf bell = vf_exp_for(-0.5f * x * x, half);
    return vf_normal(x, bell) + x * bell * 0.3989422804014327f; /* 1 / sqrt(2 pi) */
}
