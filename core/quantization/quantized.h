/* SPDX-License-Identifier: Apache-2.0 */
/* quantized.h: matrices of weights in 4 and 8 bits, and the values of single codes, which CUDA compiles too.
 *
 *   NF4     4-bit NormalFloat (Dettmers et al. 2023), as bitsandbytes stores it: blocks of the row-major elements, of
 *           any rows, that share a scale, the largest magnitude. A byte has two codes, the first in its high bits. The
 *           scale is fp32, or (double quantization) a code of the dynamic map, times the scale of its own block, plus
 *           the offset of the matrix. value = nf4_values[code] × scale, rounded to the dtype that the weights had
 *   FP8     E4M3 without infinities, with an fp32 scale for each 128 × 128 block (DeepSeek, Qwen). value = fp8 × scale
 *   MXFP4   E2M1 (OCP Microscaling), with an exponent for each 32 elements of a row. A byte has two codes, the first in
 *           its low bits. value = fp4 × 2^(exponent - 127)
 *
 * Products are fp32, and rounded once where a dtype is named. */
#pragma once

#include "core/host_device.h"

enum quantized_format { QUANTIZED_NF4, QUANTIZED_FP8, QUANTIZED_MXFP4, QUANTIZED_FORMATS };

enum { NF4_BLOCK = 64, NF4_NESTED_BLOCK = 256, NF4_VALUES = 16, FP8_BLOCK = 128, MXFP4_BLOCK = 32 };

/* The quantiles of a normal distribution, over the largest of them, in rising order; nf4_values[7] is 0. */
HOST_DEVICE float nf4_value(int code)
{
    const float values[NF4_VALUES] = {
        -1.0f,       -0.69619280f, -0.52507305f, -0.39491749f, -0.28444138f, -0.18477343f, -0.091050036f, 0.0f,
        0.07958030f, 0.16093020f,  0.24611230f,  0.33791524f,  0.44070983f,  0.56261700f,  0.72295684f,   1.0f};
    return values[code];
}

/* Sign, 4 bits of exponent (bias 7), 3 of mantissa; 0x7f and 0xff are NaN. */
HOST_DEVICE float fp8_value(uint8_t code)
{
    const uint32_t sign = (uint32_t)(code & 0x80) << 24, magnitude = code & 0x7f;
    const float small = (float)magnitude * 0.001953125f; /* below 8: multiples of 2^-9 */
    if (magnitude < 8) return sign ? -small : small;
    return float_of_bits(magnitude == 0x7f ? 0x7fc00000u : sign | ((magnitude << 20) + (120u << 23)));
}

/* Sign, 2 bits of exponent, 1 of mantissa: 0, 0.5, 1, 1.5, 2, 3, 4, 6. */
HOST_DEVICE float fp4_value(int code)
{
    const int m = code & 7;
    const float value = m < 4 ? (float)m * 0.5f : (float)((m & 1 ? 3 : 2) << (m >= 6 ? 1 : 0));
    return code & 8 ? -value : value;
}
