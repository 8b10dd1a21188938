/* SPDX-License-Identifier: Apache-2.0 */
/* nf4.h: encodes matrices in NF4 (quantized.h), with the bytes of bitsandbytes on a CPU: quantize_4bit with blocks of
 * NF4_BLOCK, and its double quantization. The offset of that is torch's mean of the scales, here of one thread with
 * vectors of 256 bits: bitsandbytes' depends on the machine. */
#pragma once

#include "core/quantization/dynamic_map.h"
#include "core/quantization/quantized.h"

/* Encodes n elements of a matrix, whole blocks but for its end (`last`): codes ((n + 1) / 2 bytes), and the scales. */
void nf4_encode(const float *x, int64_t n, bool last, uint8_t *codes, float *scales);

/* Encodes `count` scales, whose mean becomes *offset: scale_codes (count), nested_scales for each NF4_NESTED_BLOCK. */
void nf4_encode_scales(float *scales, int64_t count, const float map[DYNAMIC_MAP_SIZE], float *offset,
                       uint8_t *scale_codes, float *nested_scales);
