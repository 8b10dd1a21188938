/* SPDX-License-Identifier: Apache-2.0 */
/* dtype.h: element types, their sizes, and conversions of single values (round to nearest even). */
#pragma once

#include "core/host_device.h"
#include "core/status.h"

enum dtype { DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_COUNT };

/* bytes of one element */
static inline size_t dtype_size(enum dtype dtype)
{
    return dtype == DTYPE_F32 ? 4 : 2;
}

/* "fp32", "bf16", "fp16": the names that the run spec and --dtype use */
static inline const char *dtype_name(enum dtype dtype)
{
    return dtype == DTYPE_F32 ? "fp32" : dtype == DTYPE_BF16 ? "bf16" : "fp16";
}

/* DTYPE_COUNT: there is none of this name, or `name` is NULL. */
static inline enum dtype dtype_find(const char *name)
{
    int dtype = DTYPE_F32;
    while (dtype < DTYPE_COUNT && (!name || strcmp(name, dtype_name((enum dtype)dtype)) != 0)) dtype++;
    return (enum dtype)dtype;
}

static inline float bf16_to_f32(uint16_t x)
{
    return float_of_bits((uint32_t)x << 16);
}

static inline uint16_t bf16_from_f32(float f)
{
    const uint32_t bits = bits_of_float(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u) /* NaN stays a (quiet) NaN */
        return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* IEEE binary16 */
static inline float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 0x1fu, mantissa = h & 0x3ffu, bits;
    if (exponent == 0x1f) {
        bits = sign | 0x7f800000u | (mantissa << 13);
    } else if (exponent) {
        bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
    } else { /* zero or subnormal: mantissa × 2^-24 */
        bits = bits_of_float((float)mantissa * 0x1p-24f) | sign;
    }
    return float_of_bits(bits);
}

static inline uint16_t f16_from_f32(float f)
{
    const uint32_t bits = bits_of_float(f);
    uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) /* rounds to 65536 or more, or is infinite */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) { /* subnormal result: let the FPU round at 2^-24 */
        uint32_t rounded = bits_of_float(float_of_bits(magnitude) + 0.5f); /* the ulp of [0.5, 1) is 2^-24 */
        return (uint16_t)(sign | (rounded - 0x3f000000u));
    }
    uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
}

/* The nearest value of the type. */
static inline float dtype_rounded(float x, enum dtype dtype)
{
    return dtype == DTYPE_BF16 ? bf16_to_f32(bf16_from_f32(x)) : dtype == DTYPE_F16 ? f16_to_f32(f16_from_f32(x)) : x;
}

/* Element i of an array. */
#define DTYPE_ELEMENT static inline __attribute__((always_inline))

DTYPE_ELEMENT float dtype_load(const void *x, int64_t i, enum dtype dtype)
{
    if (dtype == DTYPE_F32) return ((const float *)x)[i];
    return dtype == DTYPE_BF16 ? bf16_to_f32(((const uint16_t *)x)[i]) : f16_to_f32(((const uint16_t *)x)[i]);
}

DTYPE_ELEMENT void dtype_store(void *x, int64_t i, float value, enum dtype dtype)
{
    if (dtype == DTYPE_F32)
        ((float *)x)[i] = value;
    else
        ((uint16_t *)x)[i] = dtype == DTYPE_BF16 ? bf16_from_f32(value) : f16_from_f32(value);
}
