/* SPDX-License-Identifier: Apache-2.0 */
/* test_eval_metric.c: accuracy and F1 against figures of scikit-learn 1.9 (accuracy_score, f1_score), and the cases in
 * which classes are absent. */
#include "core/metrics/eval_metric.h"
#include "core/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>

enum { MOST = 4, SAMPLES = 12 };

static struct class_scores scores_of(int64_t classes, const int *labels, const int *guesses, int samples)
{
    double counts[CLASS_COUNT_ROWS * MOST] = {0};
    for (int i = 0; i < samples; i++) {
        float logits[MOST] = {-1, -2, -1.5F, -3};
        logits[guesses[i]] = 0.5F;
        class_counts_add(counts, classes, logits, labels[i]);
    }
    return class_scores_of(counts, classes);
}

static void check(int64_t classes, const int *labels, const int *guesses, int samples, double accuracy, double f1)
{
    struct class_scores scores = scores_of(classes, labels, guesses, samples);
    assert_true(fabs(scores.accuracy - accuracy) < 1e-15);
    assert_true(fabs(scores.f1 - f1) < 1e-15);
}

static void two_classes(void **state)
{
    (void)state;
    const int labels[SAMPLES] = {0, 1, 1, 0, 1, 0, 0, 1, 0, 0, 1, 0},
              guesses[SAMPLES] = {0, 1, 0, 0, 1, 1, 0, 1, 0, 1, 0, 0};
    check(2, labels, guesses, SAMPLES, 2.0 / 3, 0.6);
    const int none[3] = {0, 0, 0}, ones[3] = {1, 1, 1};
    check(2, none, none, 3, 1, 0); /* class 1 is absent: 0, as with zero_division=0 */
    check(2, ones, none, 3, 0, 0);
    check(2, ones, ones, 3, 1, 1);
}

static void several_classes(void **state)
{
    (void)state;
    const int labels[SAMPLES] = {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3},
              guesses[SAMPLES] = {0, 1, 2, 0, 0, 2, 2, 3, 1, 1, 2, 1};
    check(4, labels, guesses, SAMPLES, 2.0 / 3, 0.6488095238095238);
    const int some[4] = {0, 2, 2, 0}, others[4] = {0, 2, 0, 0}; /* 1 and 3 are absent on both sides */
    check(4, some, others, 4, 0.75, 0.7333333333333334);
}

static void the_first_of_equal_logits_counts(void **state)
{
    (void)state;
    double counts[CLASS_COUNT_ROWS * 3] = {0};
    const float logits[3] = {0.5F, 1.5F, 1.5F};
    class_counts_add(counts, 3, logits, 1);
    class_counts_add(counts, 3, logits, 2);
    const double expected[CLASS_COUNT_ROWS * 3] = {0, 1, 0, 0, 2, 0, 0, 1, 1};
    for (size_t i = 0; i < COUNT_OF(expected); i++) assert_true(counts[i] == expected[i]);
    assert_true(isnan(class_scores_of((const double[6]){0}, 2).accuracy));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_classes),
        cmocka_unit_test(several_classes),
        cmocka_unit_test(the_first_of_equal_logits_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
