/* SPDX-License-Identifier: Apache-2.0 */
/* test_string_list.c: lists of strings, and sizes rounded up. */
#include "core/string_list.h"

#include "core/round_up.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void a_list_owns_copies_in_order(void **state)
{
    (void)state;
    struct string_list list = {0};
    char text[16];
    for (int i = 0; i < 100; i++) {
        snprintf(text, sizeof text, "%d", i);
        string_list_add(&list, text);
    }
    assert_int_equal(list.count, 100);
    for (int i = 0; i < 100; i++) {
        snprintf(text, sizeof text, "%d", i);
        assert_string_equal(list.items[i], text);
    }
    string_list_release(&list);
    assert_true(list.count == 0 && !list.items);
    string_list_add(&list, "again");
    assert_string_equal(list.items[0], "again");
    string_list_release(&list);
}

static void sizes_round_up_to_multiples(void **state)
{
    (void)state;
    assert_int_equal(round_up(0, 64), 0);
    assert_int_equal(round_up(1, 64), 64);
    assert_int_equal(round_up(64, 64), 64);
    assert_int_equal(round_up(65, 64), 128);
    assert_int_equal(round_up(7, 3), 9); /* not only powers of two */
    assert_true(round_up(((int64_t)1 << 46) + 1, 4096) == ((int64_t)1 << 46) + 4096);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_list_owns_copies_in_order),
        cmocka_unit_test(sizes_round_up_to_multiples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
