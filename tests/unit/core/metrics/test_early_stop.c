/* SPDX-License-Identifier: Apache-2.0 */
/* test_early_stop.c: when evaluations end a run, and which of two scores is the better one. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/metrics/eval_metric.h"

static struct eval_scores scores_of(double loss, double accuracy)
{
    return (struct eval_scores){.known = true, .values = {loss, accuracy, NAN}};
}

/* The number of the evaluation at which a run of these losses ends; 0: it does not. */
static int ends_at(const struct early_stop_rules *rules, const double *values, int count)
{
    struct early_stop state = {.begun = false};
    for (int i = 0; i < count; i++) {
        const struct eval_scores scores = scores_of(values[i], values[i]);
        early_stop_update(&state, rules, &scores);
        if (early_stop_reached(&state, rules)) return i + 1;
    }
    return 0;
}

static void test_patience(void **unused)
{
    (void)unused;
    const double falls[] = {5, 4, 3.9, 3.95, 3.9, 3.8, 3.85, 3.84, 3.81, 3.9};
    struct early_stop_rules rules = {.patience = 3};
    assert_int_equal(ends_at(&rules, falls, 10), 9);
    rules.patience = 2; /* a value that is merely equal does not count */
    assert_int_equal(ends_at(&rules, falls, 10), 5);
    rules.min_delta = 0.15; /* measured from the last value that counted, 4 */
    assert_int_equal(ends_at(&rules, falls, 10), 4);
    rules.min_delta = 0.05;
    assert_int_equal(ends_at(&rules, falls, 10), 5);
    rules.patience = 0;
    assert_int_equal(ends_at(&rules, falls, 10), 0);
}

static void test_a_metric_that_rises(void **unused)
{
    (void)unused;
    const double rises[] = {0.2, 0.5, 0.55, 0.5, 0.54};
    struct early_stop_rules rules = {.patience = 2, .metric = EVAL_METRIC_ACCURACY};
    assert_int_equal(ends_at(&rules, rises, 5), 5);
    rules.min_delta = 0.1;
    assert_int_equal(ends_at(&rules, rises, 5), 4);
    rules.metric = EVAL_METRIC_F1; /* not measured: nothing improves */
    assert_int_equal(ends_at(&rules, rises, 5), 2);
}

static void test_values_that_are_no_numbers(void **unused)
{
    (void)unused;
    const double values[] = {NAN, 4, NAN, 3, NAN, NAN};
    struct early_stop_rules rules = {.patience = 2};
    assert_int_equal(ends_at(&rules, values, 6), 6);
}

/* Without patience nothing is counted, and counting begins anew afterwards; so it does with other data. */
static void test_counting_begins_anew(void **unused)
{
    (void)unused;
    struct early_stop state = {.begun = false};
    struct early_stop_rules rules = {.patience = 2};
    struct eval_scores scores = scores_of(1, NAN);
    early_stop_update(&state, &rules, &scores);
    scores.values[0] = 2;
    early_stop_update(&state, &rules, &scores);
    assert_int_equal(state.evaluations, 1);
    scores.data = 7;
    early_stop_update(&state, &rules, &scores);
    assert_true(state.best == 2 && state.evaluations == 0 && state.data == 7);
    rules.patience = 0;
    early_stop_update(&state, &rules, &scores);
    assert_false(state.begun);
}

/* The state of another metric is of no use. */
static void test_another_metric(void **unused)
{
    (void)unused;
    struct early_stop state = {.begun = false};
    struct early_stop_rules rules = {.patience = 1};
    struct eval_scores scores = scores_of(3, 0.5);
    early_stop_update(&state, &rules, &scores);
    early_stop_update(&state, &rules, &scores);
    assert_true(early_stop_reached(&state, &rules));
    rules.metric = EVAL_METRIC_ACCURACY;
    assert_false(early_stop_reached(&state, &rules));
    early_stop_update(&state, &rules, &scores);
    assert_false(early_stop_reached(&state, &rules));
    assert_true(state.metric == EVAL_METRIC_ACCURACY && state.best == 0.5 && state.evaluations == 0);
}

static void test_better(void **unused)
{
    (void)unused;
    assert_true(eval_metric_better(EVAL_METRIC_LOSS, EVAL_MODE_AUTO, 1, 2));
    assert_false(eval_metric_better(EVAL_METRIC_LOSS, EVAL_MODE_AUTO, 2, 2));
    assert_true(eval_metric_better(EVAL_METRIC_LOSS, EVAL_MODE_MAX, 3, 2));
    assert_true(eval_metric_better(EVAL_METRIC_F1, EVAL_MODE_AUTO, 3, 2));
    assert_true(eval_metric_better(EVAL_METRIC_ACCURACY, EVAL_MODE_MIN, 1, 2));
    assert_true(eval_metric_better(EVAL_METRIC_LOSS, EVAL_MODE_AUTO, 9, NAN));
    assert_false(eval_metric_better(EVAL_METRIC_LOSS, EVAL_MODE_AUTO, NAN, 9));
    assert_false(eval_metric_better(EVAL_METRIC_LOSS, EVAL_MODE_AUTO, NAN, NAN));
    const struct eval_scores none = {.known = false, .values = {1, 1, 1}};
    assert_true(isnan(eval_scores_value(&none, EVAL_METRIC_LOSS)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_patience),
        cmocka_unit_test(test_a_metric_that_rises),
        cmocka_unit_test(test_values_that_are_no_numbers),
        cmocka_unit_test(test_another_metric),
        cmocka_unit_test(test_counting_begins_anew),
        cmocka_unit_test(test_better),
    };
    return cmocka_run_group_tests_name("early_stop", tests, NULL, NULL);
}
