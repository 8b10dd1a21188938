/* SPDX-License-Identifier: Apache-2.0 */
#include "core/quantization/dequantize.h"

#include "core/round_up.h"

/* Codes are looked up among the values that they may have in their block. */
union value_table {
    float floats[NF4_VALUES];
    uint16_t halves[NF4_VALUES];
};

static void dequantize_fp32(const uint8_t *codes, int64_t n, const float *table, int first, int second, float *out)
{
    for (int64_t i = 0; i < n; i++) {
        out[2 * i] = table[codes[i] >> first & 15];
        out[2 * i + 1] = table[codes[i] >> second & 15];
    }
}

static void dequantize_halves(const uint8_t *codes, int64_t n, const uint16_t *table, int a, int b, uint16_t *out)
{
    for (int64_t i = 0; i < n; i++) {
        out[2 * i] = table[codes[i] >> a & 15];
        out[2 * i + 1] = table[codes[i] >> b & 15];
    }
}

/* Product and sum are rounded one by one. */
static float dequantize_scale(const struct dequantize_args *a, int64_t block)
{
    if (a->scales) return a->scales[block];
    const float product = a->map[a->scale_codes[block]] * a->nested_scales[block / a->nested_block];
    return product + *a->offset;
}

static void dequantize_block(const struct dequantize_args *a, int64_t block, void *out)
{
    const bool nf4 = a->format == QUANTIZED_NF4;
    const int64_t size = nf4 ? a->block : MXFP4_BLOCK, at = block * size, n = min64(size, a->rows * a->cols - at) / 2;
    const float scale = nf4 ? dequantize_scale(a, block) : 0;
    const int high = nf4 ? 4 : 0;
    union value_table through, table;
    for (int code = 0; code < NF4_VALUES; code++) {
        const float value = nf4 ? nf4_value(code) * scale : ldexpf(fp4_value(code), a->scale_codes[block] - 127);
        dtype_store(&through, code, value, a->through);
        dtype_store(&table, code, dtype_load(&through, code, a->through), a->dtype);
    }
    if (a->dtype == DTYPE_F32)
        dequantize_fp32(a->codes + at / 2, n, table.floats, high, 4 - high, out);
    else
        dequantize_halves(a->codes + at / 2, n, table.halves, high, 4 - high, out);
}

static void dequantize_row(const struct dequantize_args *a, int64_t row, void *out)
{
    const float *scales = a->scales + row / FP8_BLOCK * ((a->cols + FP8_BLOCK - 1) / FP8_BLOCK);
    const uint8_t *codes = a->codes + row * a->cols;
    for (int64_t first = 0; first < a->cols; first += FP8_BLOCK)
        for (int64_t j = first; j < min64(first + FP8_BLOCK, a->cols); j++)
            dtype_store(out, j, fp8_value(codes[j]) * scales[first / FP8_BLOCK], a->dtype);
}

int64_t dequantize_count(const struct dequantize_args *a)
{
    return a->cols == 0 ? 0 : a->format == QUANTIZED_FP8 ? a->rows : a->num_scales;
}

int64_t dequantize_elements(const struct dequantize_args *a)
{
    return a->format == QUANTIZED_FP8 ? a->cols : a->format == QUANTIZED_NF4 ? a->block : MXFP4_BLOCK;
}

void dequantize_unit(const struct dequantize_args *a, int64_t unit, void *out)
{
    ASSERT(a->format == QUANTIZED_FP8 || a->cols % 2 == 0);
    if (a->format == QUANTIZED_FP8)
        dequantize_row(a, unit, out);
    else
        dequantize_block(a, unit, out);
}

void dequantize_units(const struct dequantize_args *a, int64_t first, int64_t end)
{
    const int64_t bytes = dequantize_elements(a) * (int64_t)dtype_size(a->dtype);
    for (int64_t unit = first; unit < end; unit++) dequantize_unit(a, unit, (char *)a->out + unit * bytes);
}
