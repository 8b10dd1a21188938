/* SPDX-License-Identifier: Apache-2.0 */
/* test_dynamic_map.c: the maps' values and the codes, against those of torchao and bitsandbytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "core/quantization/dynamic_map.h"
#include "core/status.h"
#include "tests/unit/fixtures/golden_dynamic_map.h"

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void test_values(void **state)
{
    (void)state;
    float map[DYNAMIC_MAP_SIZE];
    STATIC_ASSERT(sizeof map == sizeof golden_signed_map && sizeof map == sizeof golden_unsigned_map, "whole maps");
    dynamic_map_signed(map);
    assert_memory_equal(map, golden_signed_map, sizeof map);
    dynamic_map_unsigned(map);
    assert_memory_equal(map, golden_unsigned_map, sizeof map);
}

static void test_codes(void **state)
{
    (void)state;
    float map[DYNAMIC_MAP_SIZE];
    dynamic_map_signed(map);
    for (size_t i = 0; i < COUNT_OF(golden_signed_codes); i++)
        assert_int_equal(dynamic_map_code(map, float_of(golden_signed_values[i])), golden_signed_codes[i]);
    assert_int_equal(dynamic_map_code(map, NAN), 0);
    dynamic_map_unsigned(map);
    for (size_t i = 0; i < COUNT_OF(golden_unsigned_codes); i++)
        assert_int_equal(dynamic_map_code(map, float_of(golden_unsigned_values[i])), golden_unsigned_codes[i]);
}

/* The golden values; every upper half of a value's bits with some lower halves; the thresholds' neighbours. */
static void check_lookup(const float *map, const uint32_t *values, const uint8_t *codes, size_t count)
{
    static const uint32_t lower[] = {0, 1, 0x3fff, 0x8000, 0xb123, 0xffff};
    struct dynamic_lookup lookup;
    dynamic_lookup_init(&lookup, map);
    for (size_t i = 0; i < count; i++) assert_int_equal(dynamic_lookup_code(&lookup, float_of(values[i])), codes[i]);
    for (uint32_t upper = 0; upper < 0x3f80; upper++)
        for (size_t i = 0; i < COUNT_OF(lower); i++) {
            const float x = float_of(upper << 16 | lower[i]);
            assert_int_equal(dynamic_lookup_code(&lookup, x), dynamic_map_code(map, x));
            assert_int_equal(dynamic_lookup_code(&lookup, -x), dynamic_map_code(map, -x));
        }
    for (int code = 1; code < DYNAMIC_MAP_SIZE; code++) {
        assert_int_equal(dynamic_lookup_code(&lookup, lookup.thresholds[code]), code);
        assert_int_equal(dynamic_lookup_code(&lookup, nextafterf(lookup.thresholds[code], -1)), code - 1);
    }
}

static void test_lookup(void **state)
{
    (void)state;
    float map[DYNAMIC_MAP_SIZE];
    dynamic_map_signed(map);
    check_lookup(map, golden_signed_values, golden_signed_codes, COUNT_OF(golden_signed_codes));
    dynamic_map_unsigned(map);
    check_lookup(map, golden_unsigned_values, golden_unsigned_codes, COUNT_OF(golden_unsigned_codes));
}

static void test_codes_of_grid(void **state)
{
    (void)state;
    float map[DYNAMIC_MAP_SIZE];
    size_t differ = 0;
    dynamic_map_signed(map);
    STATIC_ASSERT(sizeof golden_grid_codes == sizeof golden_signed_codes, "two codes of each value");
    for (size_t i = 0; i < COUNT_OF(golden_grid_codes); i++) {
        assert_int_equal(dynamic_map_code_of_grid(map, float_of(golden_signed_values[i])), golden_grid_codes[i]);
        differ += golden_grid_codes[i] != golden_signed_codes[i];
    }
    assert_true(differ > 100); /* else the values do not tell the two apart */
    assert_int_equal(dynamic_map_code_of_grid(map, 2), 255);
    assert_int_equal(dynamic_map_code_of_grid(map, -2), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_codes),
        cmocka_unit_test(test_lookup),
        cmocka_unit_test(test_codes_of_grid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
