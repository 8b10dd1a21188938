/* SPDX-License-Identifier: Apache-2.0 */
/* test_size_text.c: sizes as people write them. */
#include "core/size_text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void sizes_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t bytes;
    } cases[] = {
        {"1", 1},
        {"1B", 1},
        {"1048576", 1 << 20},
        {"300MiB", 300 << 20},
        {"300 MiB", 300 << 20},
        {"80GiB", INT64_C(80) << 30},
        {"80GB", INT64_C(80000000000)},
        {"2TiB", INT64_C(2) << 40},
        {"2TB", INT64_C(2000000000000)},
        {"64KiB", 64 << 10},
        {"64KB", 64000},
        {"64kB", 64000},
        {"1.5GiB", INT64_C(3) << 29},
        {"0.5KiB", 512},
        {"79.6GiB", INT64_C(85469849190)},
        {"5e8", 500000000},
        {"9223372036854775807", INT64_MAX},
        {"4503599627370497KB", INT64_C(4503599627370497000)}, /* not a double */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t bytes = -1;
        assert_true(size_parse(cases[i].text, &bytes));
        assert_int_equal(bytes, cases[i].bytes);
    }
}

static void other_texts_are_refused(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "",    "0",   "0GiB", "0.5",    "-1GiB",      "+1GiB", " 1GiB",  "GiB",
        "80G", "80g", "80Gb", "80gib",  "1 ",         "1GiB ", "1GiB2",  "1 Gi B",
        "inf", "nan", "0x10", "0x1MiB", "8388608TiB", "1e30",  "1,5GiB", "80GiB/s",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        int64_t bytes = -1;
        assert_false(size_parse(wrong[i], &bytes));
        assert_int_equal(bytes, -1);
    }
}

static void the_shortest_text_is_written_and_reads_back(void **state)
{
    (void)state;
    static const struct {
        int64_t bytes;
        const char *text;
    } cases[] = {
        {1, "1"},
        {1023, "1023"},
        {1024, "1024"}, /* not longer than 1KiB */
        {300 << 20, "300MiB"},
        {INT64_C(80000000000), "80GB"},
        {INT64_C(80) << 30, "80GiB"},
        {INT64_C(3) << 29, "1536MiB"},
        {INT64_MAX, "9223372036854775807"},
    };
    char text[SIZE_TEXT_MAX];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t back = 0;
        assert_string_equal(size_format(cases[i].bytes, text), cases[i].text);
        assert_true(size_parse(text, &back));
        assert_int_equal(back, cases[i].bytes);
    }
}

static void people_read_one_decimal(void **state)
{
    (void)state;
    char text[SIZE_TEXT_MAX];
    assert_string_equal(size_round(0, text), "0 bytes");
    assert_string_equal(size_round(1023, text), "1023 bytes");
    assert_string_equal(size_round(1536, text), "1.5 KiB");
    assert_string_equal(size_round(INT64_C(85469849190), text), "79.6 GiB");
    assert_string_equal(size_round(INT64_C(2) << 40, text), "2.0 TiB");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_read),
        cmocka_unit_test(other_texts_are_refused),
        cmocka_unit_test(the_shortest_text_is_written_and_reads_back),
        cmocka_unit_test(people_read_one_decimal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
