/* SPDX-License-Identifier: Apache-2.0 */
/* test_nf4.c: NF4's codes and scales, and double quantization, have the bytes of bitsandbytes; values of codes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/quantization/nf4.h"
#include "core/status.h"
#include "tests/unit/fixtures/quantized_matrix.h"

enum { LARGEST = 96 * 1024, SCALES = LARGEST / NF4_BLOCK };

static void bytes_are_those_of_bitsandbytes(void **state)
{
    (void)state;
    float *x = memory_alloc(LARGEST * sizeof *x), map[DYNAMIC_MAP_SIZE], offset;
    uint8_t *codes = memory_alloc(LARGEST / 2), scale_codes[SCALES];
    float scales[SCALES], nested[SCALES / NF4_NESTED_BLOCK + 1];
    dynamic_map_signed(map);
    for (int i = 0; i < (int)COUNT_OF(golden_nf4); i++) {
        const struct golden_nf4 *golden = &golden_nf4[i];
        const int64_t n = (int64_t)golden->rows * golden->cols, count = (n + NF4_BLOCK - 1) / NF4_BLOCK;
        quantized_matrix(i, x);
        /* in two parts, as a large matrix is read */
        const int64_t first = n / 2 / NF4_BLOCK * NF4_BLOCK;
        nf4_encode(x, first, false, codes, scales);
        nf4_encode(x + first, n - first, true, codes + first / 2, scales + first / NF4_BLOCK);
        assert_true(golden_hash(codes, (n + 1) / 2) == golden->codes);
        assert_true(golden_hash(scales, count * 4) == golden->scales);
        nf4_encode_scales(scales, count, map, &offset, scale_codes, nested);
        assert_memory_equal(&offset, &golden->offset, sizeof offset);
        assert_true(golden_hash(scale_codes, count) == golden->scale_codes);
        assert_true(golden_hash(nested, (count + NF4_NESTED_BLOCK - 1) / NF4_NESTED_BLOCK * 4) ==
                    golden->nested_scales);
    }
    free(x);
    free(codes);
}

static void codes_of_8_bits_have_their_values(void **state)
{
    (void)state;
    for (int code = 0; code < 256; code++) {
        const float value = fp8_value((uint8_t)code), golden = float_of_bits(golden_fp8[code]);
        assert_true(isnan(golden) ? isnan(value) : memcmp(&value, &golden, sizeof value) == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_those_of_bitsandbytes),
        cmocka_unit_test(codes_of_8_bits_have_their_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
