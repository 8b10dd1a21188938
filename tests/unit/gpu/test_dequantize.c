/* SPDX-License-Identifier: Apache-2.0 */
/* test_dequantize.c: the values of stored matrices are those of bitsandbytes (NF4) and transformers (MXFP4), bit for
 * bit; FP8's scales count by blocks of 128 × 128, of which the last ones are not whole. */
#include "core/memory.h"
#include "core/quantization/nf4.h"
#include "core/round_up.h"
#include "gpu/open/device_open.h"
#include "gpu/ops.h"
#include "tests/unit/fixtures/quantized_matrix.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

enum { LARGEST = 96 * 1024, SCALES = LARGEST / NF4_BLOCK };

static struct device *device;
static struct stream *stream;

static void run_dequantize(const struct dequantize_args *args)
{
    struct error err;
    device->ops->dequantize(stream, args);
    stream_sync(stream);
    assert_int_equal(device_check(device, &err), STATUS_OK);
}

static void nf4_as_bitsandbytes(void **state)
{
    (void)state;
    float *x = memory_alloc(LARGEST * sizeof *x), *out = memory_alloc(LARGEST * sizeof *out);
    float scales[SCALES], nested[SCALES / NF4_NESTED_BLOCK + 1], map[DYNAMIC_MAP_SIZE], offset;
    uint8_t *codes = memory_alloc(LARGEST / 2), scale_codes[SCALES];
    dynamic_map_signed(map);
    for (int i = 0; i < (int)COUNT_OF(golden_nf4); i++) {
        const struct golden_nf4 *golden = &golden_nf4[i];
        const int64_t n = (int64_t)golden->rows * golden->cols, count = (n + NF4_BLOCK - 1) / NF4_BLOCK;
        const enum dtype dtype = golden->bf16 ? DTYPE_BF16 : DTYPE_F32;
        if (n % 2) continue;
        quantized_matrix(i, x);
        nf4_encode(x, n, true, codes, scales);
        struct dequantize_args args = {.dtype = dtype,
                                       .format = QUANTIZED_NF4,
                                       .rows = golden->rows,
                                       .cols = golden->cols,
                                       .out = out,
                                       .codes = codes,
                                       .code_bytes = n / 2,
                                       .block = NF4_BLOCK,
                                       .scales = scales,
                                       .num_scales = count};
        run_dequantize(&args);
        assert_true(golden_hash(out, n * (int64_t)dtype_size(dtype)) == golden->values);
        nf4_encode_scales(scales, count, map, &offset, scale_codes, nested);
        args.scales = NULL;
        args.scale_codes = scale_codes;
        args.nested_scales = nested;
        args.num_nested = (count + NF4_NESTED_BLOCK - 1) / NF4_NESTED_BLOCK;
        args.nested_block = NF4_NESTED_BLOCK;
        args.map = map;
        args.offset = &offset;
        run_dequantize(&args);
        assert_true(golden_hash(out, n * (int64_t)dtype_size(dtype)) == golden->nested_values);
        args.through = dtype;
        args.dtype = DTYPE_F16; /* another one than that of the weights */
        run_dequantize(&args);
        assert_true(golden_hash(out, n * 2) == golden->halves);
    }
    free(x);
    free(out);
    free(codes);
}

static void mxfp4_as_transformers(void **state)
{
    (void)state;
    enum { N = 512 };
    uint8_t codes[N / 2];
    float floats[N];
    uint16_t halves[N];
    for (int i = 0; i < N / 2; i++) codes[i] = (uint8_t)i;
    struct dequantize_args args = {.dtype = DTYPE_F32,
                                   .format = QUANTIZED_MXFP4,
                                   .rows = N / MXFP4_BLOCK,
                                   .cols = MXFP4_BLOCK,
                                   .out = floats,
                                   .codes = codes,
                                   .code_bytes = N / 2,
                                   .scale_codes = golden_mxfp4_exponents,
                                   .num_scales = N / MXFP4_BLOCK};
    run_dequantize(&args);
    assert_memory_equal(floats, golden_mxfp4_floats, sizeof floats);
    args.dtype = DTYPE_BF16;
    args.out = halves;
    run_dequantize(&args);
    assert_memory_equal(halves, golden_mxfp4_halves, sizeof halves);
}

static void fp8_by_blocks(void **state)
{
    (void)state;
    enum { ROWS = 130, COLS = 259, ACROSS = 3 };
    uint8_t *codes = memory_alloc(ROWS * COLS);
    float *out = memory_alloc(ROWS * COLS * sizeof *out);
    static const float scales[2 * ACROSS] = {1, 0.3f, -2, 1e-3f, 7, 1e10f};
    for (int i = 0; i < ROWS * COLS; i++) codes[i] = (uint8_t)(i * 37 % 127);
    const struct dequantize_args args = {.dtype = DTYPE_F32,
                                         .format = QUANTIZED_FP8,
                                         .rows = ROWS,
                                         .cols = COLS,
                                         .out = out,
                                         .codes = codes,
                                         .code_bytes = (int64_t)ROWS * COLS,
                                         .scales = scales,
                                         .num_scales = COUNT_OF(scales)};
    run_dequantize(&args);
    for (int i = 0; i < ROWS * COLS; i++) {
        const float scale = scales[i / COLS / 128 * ACROSS + i % COLS / 128];
        assert_true(out[i] == float_of_bits(golden_fp8[codes[i]]) * scale);
    }
    free(codes);
    free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nf4_as_bitsandbytes),
        cmocka_unit_test(mxfp4_as_transformers),
        cmocka_unit_test(fp8_by_blocks),
    };
    struct error err;
    if (device_open(DEVICE_CPU, 0, 1, &device, &err) != STATUS_OK ||
        stream_new(device, STREAM_COMPUTE, &stream, &err) != STATUS_OK)
        return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    stream_free(stream);
    device_close(device);
    return failed;
}
