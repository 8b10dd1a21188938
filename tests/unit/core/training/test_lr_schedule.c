/* SPDX-License-Identifier: Apache-2.0 */
/* test_lr_schedule.c: ztrain's learning rates at points computed by hand, and all schedules against the values
 * of DeepSpeed's and transformers' classes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>

#include "core/status.h"
#include "core/training/lr_schedule.h"
#include "tests/unit/fixtures/deepspeed_rates.h"
#include "tests/unit/fixtures/golden_rates.h"

static void assert_close(double got, double want, double tolerance, const char *what, int64_t k)
{
    if (!(fabs(got - want) <= tolerance))
        fail_msg("%s step %lld: %.12g, expected %.12g", what, (long long)k, got, want);
}

static void test_own(void **state)
{
    (void)state;
    struct schedule_spec constant = {.type = SCHEDULE_CONSTANT, .warmup_steps = 4};
    struct schedule_spec linear = {.type = SCHEDULE_LINEAR, .warmup_steps = 2, .total_steps = 10, .min_lr = 1e-4};
    struct schedule_spec cosine = {.type = SCHEDULE_COSINE, .warmup_steps = 2, .total_steps = 10, .min_lr = 1e-4};
    assert_close(schedule_lr(&constant, 1e-3, 1), 2.5e-4, 1e-15, "Constant", 1);
    assert_close(schedule_lr(&constant, 1e-3, 4), 1e-3, 1e-15, "Constant", 4);
    assert_close(schedule_lr(&constant, 1e-3, 500), 1e-3, 1e-15, "Constant", 500);
    assert_close(schedule_lr(&linear, 1e-3, 1), 5e-4, 1e-15, "Linear", 1);
    assert_close(schedule_lr(&linear, 1e-3, 6), 1e-4 + 9e-4 * 0.5, 1e-15, "Linear", 6);
    assert_close(schedule_lr(&linear, 1e-3, 10), 1e-4, 1e-15, "Linear", 10);
    assert_close(schedule_lr(&linear, 1e-3, 11), 1e-4, 1e-15, "Linear", 11);
    assert_close(schedule_lr(&cosine, 1e-3, 6), 1e-4 + 9e-4 * 0.5, 1e-15, "Cosine", 6);
    assert_close(schedule_lr(&cosine, 1e-3, 4), 1e-4 + 9e-4 * 0.5 * (1 + sqrt(0.5)), 1e-15, "Cosine", 4);
    assert_close(schedule_lr(&cosine, 1e-3, 99), 1e-4, 1e-15, "Cosine", 99);
    constant.warmup_steps = 0;
    assert_close(schedule_lr(&constant, 1e-3, 1), 1e-3, 0, "Constant without warm-up", 1);
    linear.total_steps = linear.warmup_steps; /* no steps left for the decay: the minimum */
    assert_close(schedule_lr(&linear, 1e-3, 3), 1e-4, 1e-15, "Linear, all warm-up", 3);
}

static void test_deepspeed(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(deepspeed_rates); i++)
        for (int64_t k = 1; k <= deepspeed_rates[i].count; k++)
            assert_close(schedule_lr(&deepspeed_rates[i].schedule, deepspeed_rates[i].lr, k),
                         deepspeed_rates[i].rates[k - 1], 1e-14, schedule_name(deepspeed_rates[i].schedule.type), k);
}

static void test_golden(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(golden_rates); i++) {
        const struct schedule_spec *s = &golden_rates[i].schedule;
        for (int64_t k = 1; k <= GOLDEN_STEPS; k++) {
            double beta1 = 0, beta2 = 0;
            assert_close(schedule_lr(s, 1e-3, k), golden_rates[i].rates[k - 1], 1e-17, schedule_name(s->type), k);
            if (!schedule_has_betas(s)) continue;
            schedule_betas(s, k, &beta1, &beta2);
            assert_close(beta1, golden_rates[i].beta1[k - 1], 1e-14, "beta1 of OneCycle", k);
            assert_true(beta2 == 0.99);
        }
    }
}

static void test_dependence(void **state)
{
    (void)state;
    struct schedule_spec ratio = {.type = SCHEDULE_CONSTANT, .warmup_ratio = 0.07, .total_steps = 100};
    assert_true(schedule_needs_total(&ratio));
    assert_int_equal(schedule_warmup(&ratio), 8); /* 0.07 x 100 is above 7 in double, as in Python */
    ratio.warmup_ratio = 0;
    assert_false(schedule_needs_total(&ratio));
    static const enum schedule_type warm_ups[] = {SCHEDULE_WARMUP_LR, SCHEDULE_WARMUP_DECAY_LR,
                                                  SCHEDULE_WARMUP_COSINE_LR};
    for (size_t i = 0; i < COUNT_OF(warm_ups); i++) {
        struct schedule_spec by_ratio = {.type = warm_ups[i],
                                         .warmup_ratio = 0.07,
                                         .total_steps = 100,
                                         .warmup_max_lr = -1},
                             by_steps = {
                                 .type = warm_ups[i], .warmup_steps = 8, .total_steps = 100, .warmup_max_lr = -1};
        assert_true(schedule_needs_total(&by_ratio));
        for (int64_t k = 1; k <= 100; k++)
            assert_true(schedule_lr(&by_ratio, 1e-3, k) == schedule_lr(&by_steps, 1e-3, k));
    }
    for (int type = 0; type < SCHEDULE_COUNT; type++) {
        struct schedule_spec s = {.type = (enum schedule_type)type};
        assert_true(schedule_needs_total(&s) == (type != SCHEDULE_CONSTANT && type != SCHEDULE_WARMUP_LR &&
                                                 type != SCHEDULE_ONE_CYCLE && type != SCHEDULE_LR_RANGE_TEST));
        assert_false(schedule_has_betas(&s));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_own), cmocka_unit_test(test_deepspeed),
                                       cmocka_unit_test(test_golden), cmocka_unit_test(test_dependence)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
