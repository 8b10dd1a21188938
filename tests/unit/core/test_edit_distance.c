/* SPDX-License-Identifier: Apache-2.0 */
/* test_edit_distance.c: the number of edits between two names, and the largest one that gives a suggestion. */
#include "core/edit_distance.h"

#include "core/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void edits_are_counted(void **state)
{
    (void)state;
    static const struct {
        const char *a, *b;
        int distance;
    } cases[] = {
        {"", "", 0},
        {"stage", "stage", 0},
        {"Stage", "sTAGE", 0},
        {"", "abc", 3},
        {"stage", "stages", 1},
        {"stage", "stge", 1},
        {"stage", "stake", 1},
        {"stage", "satge", 1}, /* swapped neighbours */
        {"ca", "abc", 3},      /* no letter moves twice: not 2 */
        {"kitten", "sitting", 3},
        {"train", "data", 4},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        if (edit_distance(cases[i].a, cases[i].b) != cases[i].distance ||
            edit_distance(cases[i].b, cases[i].a) != cases[i].distance)
            fail_msg("'%s' and '%s': %d", cases[i].a, cases[i].b, edit_distance(cases[i].a, cases[i].b));
}

static void long_names_are_far_from_all(void **state)
{
    (void)state;
    char name[66];
    memset(name, 'a', sizeof name - 1);
    name[65] = '\0';
    assert_int_equal(edit_distance(name, name), 99);
    name[64] = '\0';
    assert_int_equal(edit_distance(name, name), 0);
}

static void longer_names_may_have_more_edits(void **state)
{
    (void)state;
    assert_int_equal(edit_distance_limit("lr"), 1);
    assert_int_equal(edit_distance_limit("stage"), 2);
    assert_int_equal(edit_distance_limit("train_micro_batch_size_per_gpu"), 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(edits_are_counted),
        cmocka_unit_test(long_names_are_far_from_all),
        cmocka_unit_test(longer_names_may_have_more_edits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
