/* SPDX-License-Identifier: Apache-2.0 */
/* test_loss_scaler.c: the loss scale of fp16, step by step, against the values of DeepSpeed's class. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/status.h"
#include "core/training/loss_scaler.h"
#include "tests/unit/fixtures/deepspeed_loss_scales.h"

static bool overflows_at(const int *overflows, int step)
{
    for (; *overflows >= 0; overflows++)
        if (*overflows == step) return true;
    return false;
}

static void test_deepspeed(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(deepspeed_loss_scales); i++) {
        struct loss_scaler scaler;
        loss_scaler_init(&scaler, &deepspeed_loss_scales[i].rules, deepspeed_loss_scales[i].initial_scale);
        for (int step = 0; step < deepspeed_loss_scales[i].count; step++) {
            if (scaler.scale != deepspeed_loss_scales[i].scales[step])
                fail_msg("run %zu step %d: %g, expected %g", i, step, scaler.scale,
                         deepspeed_loss_scales[i].scales[step]);
            assert_false(scaler.exhausted);
            loss_scaler_update(&scaler, &deepspeed_loss_scales[i].rules,
                               overflows_at(deepspeed_loss_scales[i].overflows, step));
            if (step == deepspeed_loss_scales[i].error_at) break;
        }
        assert_int_equal(scaler.exhausted, deepspeed_loss_scales[i].error_at >= 0);
    }
}

static void test_static(void **state)
{
    (void)state;
    const struct loss_scaler_rules rules = {.hysteresis = 1, .window = 1, .min_scale = 1};
    struct loss_scaler scaler;
    loss_scaler_init(&scaler, &rules, 128);
    for (int step = 0; step < 5; step++) {
        loss_scaler_update(&scaler, &rules, step % 2);
        assert_true(scaler.scale == 128 && !scaler.exhausted);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_deepspeed), cmocka_unit_test(test_static)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
