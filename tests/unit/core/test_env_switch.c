/* SPDX-License-Identifier: Apache-2.0 */
/* test_env_switch.c: switches and choices in the environment, and the errors for other values. */
#include "core/env_switch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define NAME "ZTRAIN_TEST_ENV_SWITCH"

static void a_switch_is_1_or_off(void **state)
{
    (void)state;
    struct error err;
    bool on = true;
    unsetenv(NAME);
    assert_int_equal(env_switch(NAME, "do it", &on, &err), STATUS_OK);
    assert_false(on);
    setenv(NAME, "1", 1);
    assert_int_equal(env_switch(NAME, "do it", &on, &err), STATUS_OK);
    assert_true(on);
    for (const char *const *off = (const char *const[]){"0", "", NULL}; *off; off++) {
        setenv(NAME, *off, 1);
        assert_int_equal(env_switch(NAME, "do it", &on, &err), STATUS_OK);
        assert_false(on);
    }
    setenv(NAME, "yes", 1);
    assert_int_equal(env_switch(NAME, "do it", &on, &err), STATUS_USAGE);
    assert_string_equal(err.text, NAME " is 'yes'; hint: 1 (do it) or 0");
    unsetenv(NAME);
}

static void a_choice_is_one_of_the_words(void **state)
{
    (void)state;
    static const char *const words[] = {"red", "green", "blue"};
    struct error err;
    int index = 7;
    unsetenv(NAME);
    assert_int_equal(env_choice(NAME, words, 3, &index, &err), STATUS_OK);
    assert_int_equal(index, -1);
    setenv(NAME, "", 1);
    assert_int_equal(env_choice(NAME, words, 3, &index, &err), STATUS_OK);
    assert_int_equal(index, -1);
    for (int i = 0; i < 3; i++) {
        setenv(NAME, words[i], 1);
        assert_int_equal(env_choice(NAME, words, 3, &index, &err), STATUS_OK);
        assert_int_equal(index, i);
    }
    setenv(NAME, "Red", 1);
    assert_int_equal(env_choice(NAME, words, 3, &index, &err), STATUS_USAGE);
    assert_int_equal(index, -1);
    assert_string_equal(err.text, NAME " must be red, green or blue, not 'Red'");
    unsetenv(NAME);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_switch_is_1_or_off),
        cmocka_unit_test(a_choice_is_one_of_the_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
