/* SPDX-License-Identifier: Apache-2.0 */
/* test_eval_part.c: the part of an evaluation, to JSON and back, and what is refused. */
#include "core/metrics/eval_part.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static double losses[] = {1.0 / 3, 0, -2.5e-300}, counts[] = {7, 0x1p53};
static const struct eval_part part = {
    .samples = 1LL << 40, .data = 0xfedcba9876543210u, .world = 3, .losses = losses, .num_counts = 2, .counts = counts};

static void comes_back(void **state)
{
    (void)state;
    struct eval_part back;
    json_t *object = eval_part_to_json(&part);
    char *text = json_dumps(object, JSON_REAL_PRECISION(17));
    json_decref(object);
    object = json_loads(text, 0, NULL);
    assert_int_equal(eval_part_from_json(object, "file", &back, NULL), STATUS_OK);
    assert_true(back.samples == part.samples && back.data == part.data);
    assert_true(back.world == 3 && memcmp(back.losses, losses, sizeof losses) == 0);
    assert_true(back.num_counts == 2 && memcmp(back.counts, counts, sizeof counts) == 0);
    eval_part_release(&back);
    json_decref(object);
    free(text);
}

static void refuses_what_is_not_finite(void **state)
{
    (void)state;
    double bad[] = {1, NAN};
    struct eval_part one = part;
    one.losses = bad;
    one.world = 2;
    assert_null(eval_part_to_json(&one));
    bad[1] = INFINITY;
    assert_null(eval_part_to_json(&one));
}

static void refuses_damage(void **state)
{
    (void)state;
    static const struct {
        const char *text, *member;
    } cases[] = {
        {"[]", "samples"},
        {"{\"samples\": 0, \"data\": \"0000000000000001\", \"losses\": [1], \"counts\": [1]}", "samples"},
        {"{\"samples\": 2.5, \"data\": \"0000000000000001\", \"losses\": [1], \"counts\": [1]}", "samples"},
        {"{\"samples\": 1, \"data\": \"1\", \"losses\": [1], \"counts\": [1]}", "data"},
        {"{\"samples\": 1, \"data\": \"000000000000000g\", \"losses\": [1], \"counts\": [1]}", "data"},
        {"{\"samples\": 1, \"data\": \"0000000000000001\", \"losses\": [], \"counts\": [1]}", "losses"},
        {"{\"samples\": 1, \"data\": \"0000000000000001\", \"losses\": [true], \"counts\": [1]}", "losses"},
        {"{\"samples\": 1, \"data\": \"0000000000000001\", \"losses\": [1]}", "counts"},
        {"{\"samples\": 1, \"data\": \"0000000000000001\", \"losses\": [1], \"counts\": [-1]}", "counts"},
        {"{\"samples\": 1, \"data\": \"0000000000000001\", \"losses\": [1], \"counts\": [0.5]}", "counts"},
        {"{\"samples\": 1, \"data\": \"0000000000000001\", \"losses\": [1], \"counts\": [1e17]}", "counts"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct eval_part one;
        struct error err;
        json_t *object = json_loads(cases[i].text, 0, NULL);
        if (eval_part_from_json(object, "the/file", &one, &err) != STATUS_CHECKPOINT ||
            !strstr(err.text, cases[i].member) || !strstr(err.text, "the/file"))
            fail_msg("%s", cases[i].text);
        eval_part_release(&one);
        json_decref(object);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comes_back),
        cmocka_unit_test(refuses_what_is_not_finite),
        cmocka_unit_test(refuses_damage),
    };
    return cmocka_run_group_tests_name("eval_part", tests, NULL, NULL);
}
