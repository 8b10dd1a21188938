/* SPDX-License-Identifier: Apache-2.0 */
/* ops_test_dequantize.c: the driver of dequantize: M rows, N columns. K: the format. NF4: with TYPES double
 * quantization, pad elements more than 64 to a block, with HALVES through bf16. */
#include "core/memory.h"
#include "tests/ops/ops_test.h"
#include "tests/ops/ops_test_drivers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NESTED = 8 };

static uint8_t byte_at(int64_t i, int64_t salt)
{
    const uint32_t mixed = (uint32_t)(i + 1 + 7919 * salt) * 2654435761u;
    return (uint8_t)(mixed >> 19);
}

/* Of FP8 none is NaN; exponents are near that of 1, or with EXTREME the smallest and largest. */
static uint8_t code_byte(const struct harness *h, int64_t i)
{
    const uint8_t byte = byte_at(i, 1);
    return h->c->K == QUANTIZED_FP8 && byte % 128 == 127 ? (uint8_t)(byte - 1) : byte;
}

static uint8_t scale_byte(const struct harness *h, int64_t i)
{
    static const uint8_t extreme[] = {0, 1, 2, 254, 255};
    if (h->c->K != QUANTIZED_MXFP4) return byte_at(i, 2);
    return has(h, EXTREME) ? extreme[i % (int)sizeof extreme] : (uint8_t)(120 + byte_at(i, 2) % 16);
}

static const uint8_t *byte_operand(struct harness *h, uint8_t (*at)(const struct harness *h, int64_t i), int64_t n)
{
    uint8_t *bytes = memory_alloc((size_t)n + 1);
    for (int64_t i = 0; i < n; i++) bytes[i] = at(h, i);
    const uint8_t *memory = device_bytes(h, bytes, (size_t)n);
    free(bytes);
    return memory;
}

static void dequantize_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    const bool nf4 = c->K == QUANTIZED_NF4, nested = has(h, TYPES);
    const int64_t n = c->M * c->N, block = nf4 ? 64 + c->pad : 32;
    const int64_t across = (c->N + 127) / 128, down = (c->M + 127) / 128;
    struct dequantize_args *a = &h->args.dequantize;
    *a = (struct dequantize_args){.dtype = h->dtype,
                                  .format = (enum quantized_format)c->K,
                                  .through = has(h, HALVES) ? DTYPE_BF16 : DTYPE_F32,
                                  .rows = c->M,
                                  .cols = c->N,
                                  .code_bytes = c->K == QUANTIZED_FP8 ? n : n / 2,
                                  .block = block,
                                  .num_scales = c->K == QUANTIZED_FP8 ? across * down : (n + block - 1) / block};
    a->codes = byte_operand(h, code_byte, a->code_bytes);
    if (nested || c->K == QUANTIZED_MXFP4) a->scale_codes = byte_operand(h, scale_byte, a->num_scales);
    if (nested) {
        a->nested_block = NESTED;
        a->num_nested = (a->num_scales + NESTED - 1) / NESTED;
        a->nested_scales = (h->w = tensor_in(h, "nested_scales", DTYPE_F32, a->num_nested, 1))->device;
        a->map = (h->b = tensor_in(h, "map", DTYPE_F32, DYNAMIC_MAP_SIZE, 1))->device;
        a->offset = (h->aux = tensor_in(h, "offset", DTYPE_F32, 1, 1))->device;
    } else if (c->K != QUANTIZED_MXFP4) {
        a->scales = (h->x = tensor_in(h, "scales", DTYPE_F32, a->num_scales, 1))->device;
    }
    h->y = tensor_out(h, "out", h->dtype, n, false);
    h->y->exact = true;
    a->out = h->y->device;
}

static double reference_fp8(int code)
{
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const double value = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
    return code & 128 ? -value : value;
}

static double reference_scale(const struct harness *h, int64_t block)
{
    if (!has(h, TYPES)) return h->x->host[block];
    const float product = (float)(h->b->host[scale_byte(h, block)] * h->w->host[block / NESTED]);
    return (double)(float)((double)product + h->aux->host[0]);
}

static double reference_value(const struct harness *h, int64_t i)
{
    static const double fp4[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    const struct dequantize_args *a = &h->args.dequantize;
    const int byte = code_byte(h, a->format == QUANTIZED_FP8 ? i : i / 2);
    const int high = a->format == QUANTIZED_NF4 ? i % 2 == 0 : i % 2 == 1, code = high ? byte >> 4 : byte & 15;
    const int64_t row = i / a->cols, col = i % a->cols;
    if (a->format == QUANTIZED_NF4) return (double)(float)((double)nf4_value(code) * reference_scale(h, i / a->block));
    if (a->format == QUANTIZED_MXFP4)
        return ldexp(code & 8 ? -fp4[code & 7] : fp4[code & 7], scale_byte(h, i / 32) - 127);
    return (double)(float)(reference_fp8(byte) * h->x->host[row / 128 * ((a->cols + 127) / 128) + col / 128]);
}

static void dequantize_reference(struct harness *h)
{
    for (int64_t i = 0; i < h->y->n; i++) {
        const double value = reference_value(h, i);
        const double through = has(h, HALVES) ? (double)bf16_to_f32(bf16_from_f32((float)value)) : value;
        h->y->expected[i] = tensor_round(h->y, through);
    }
}

FORWARD(dequantize);
