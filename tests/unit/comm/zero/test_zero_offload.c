/* SPDX-License-Identifier: Apache-2.0 */
/* test_zero_offload.c: the optimizer's state in host memory: the bits of the same run without offload, steps with
 * values that are not finite, state that is written from outside, the bytes of the plan. */
#include "tests/unit/fixtures/zero_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>

/* Runs a setting without and with offload; each run also compares itself with the reference step by step. */
static void compare(int world, struct setting setting, enum offload_device params, double ratio)
{
    struct outcome *outcomes = ranks_memory(2 * sizeof *outcomes);
    for (int offload = 0; offload < 2; offload++) {
        setting.outcome = &outcomes[offload];
        setting.offload_optimizer = offload ? OFFLOAD_CPU : OFFLOAD_NONE;
        setting.offload_param = offload ? params : OFFLOAD_NONE;
        setting.ratio = ratio;
        if (!ranks_run(world, NULL, training_body, &setting))
            fail_msg("world %d, stage %d, %d micro-batches, offload %d", world, setting.stage, setting.micros, offload);
    }
    assert_true(outcomes[0].norms[0] > 0 && outcomes[0].state[STATE_EXP_AVG_SQ][0] > 0);
    assert_memory_equal(&outcomes[1], &outcomes[0], sizeof *outcomes);
    munmap(outcomes, 2 * sizeof *outcomes);
}

/* Every stage, one to four ranks, fp32 and bf16, with and without accumulation, pieces and overlap. */
static void test_same_bits_as_without_offload(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world += 1 + (world == 2))
        for (int stage = 1; stage <= 3; stage++)
            for (int kind = 0; kind < 4; kind++) {
                struct setting setting = {.stage = stage,
                                          .micros = 1 + 2 * (kind & 1),
                                          .tied = (world + stage + kind / 2) % 2,
                                          .overlap = (stage + kind) % 3 > 0,
                                          .dtype = kind & 2 ? DTYPE_BF16 : DTYPE_F32,
                                          .bucket = world == 4 ? 1000 : 0};
                compare(world, setting, OFFLOAD_NONE, 1);
            }
}

/* The model has four units, the first of which is the largest. */
static void test_same_bits_with_a_part_on_the_device(void **state)
{
    (void)state;
    for (int stage = 1; stage <= 3; stage++)
        for (int kind = 0; kind < 4; kind++) {
            struct setting setting = {.stage = stage,
                                      .micros = 1 + (kind & 1),
                                      .tied = kind == 1,
                                      .overlap = kind != 2,
                                      .dtype = kind & 2 ? DTYPE_BF16 : DTYPE_F32};
            compare(1 + (kind + stage) % 2, setting, OFFLOAD_NONE, kind % 3 ? 0.3 : 0.1);
        }
}

static void test_same_bits_with_offloaded_parameters(void **state)
{
    (void)state;
    for (int world = 1; world <= 2; world++)
        for (int kind = 0; kind < 4; kind++) {
            struct setting setting = {.stage = 3,
                                      .micros = 1 + (world + kind) % 2,
                                      .tied = kind == 1,
                                      .overlap = kind != 2,
                                      .dtype = kind & 2 ? DTYPE_BF16 : DTYPE_F32};
            compare(world, setting, OFFLOAD_CPU, kind & 1 ? 0.3 : 1);
        }
}

/* A kind of run for every stage, with all of the state in host memory or a part of it. */
static void each_kind(void (*body)(struct bootstrap *bootstrap, void *context), int least_world)
{
    for (int world = least_world; world <= 3; world++)
        for (int stage = 1; stage <= 3; stage++)
            for (int params = 0; params <= (stage == 3); params++) {
                struct setting setting = {.stage = stage,
                                          .micros = body == restart_body ? 1 : 1 + (stage + world) % 2,
                                          .tied = world == 2,
                                          .overlap = true,
                                          .dtype = body == restart_body && world == 2 ? DTYPE_BF16 : DTYPE_F32,
                                          .offload_optimizer = OFFLOAD_CPU,
                                          .offload_param = params ? OFFLOAD_CPU : OFFLOAD_NONE,
                                          .ratio = (world + stage) % 3 ? 1 : 0.3};
                if (!ranks_run(world, NULL, body, &setting))
                    fail_msg("world %d, stage %d, params %d", world, stage, params);
            }
}

static void test_non_finite_is_named_and_skipped(void **state)
{
    (void)state;
    each_kind(poison_body, 1);
}

static void test_restart(void **state)
{
    (void)state;
    each_kind(restart_body, 2);
}

/* ---- freeing ------------------------------------------------------------- */

static void slow_adam(struct stream *stream, const struct adam_args *args)
{
    (void)stream, (void)args;
    usleep(5000);
}

/* Frees its ZeRO at once after a step, while gathers of updated parameters still wait for a slow rank 1. */
static void free_early_body(struct bootstrap *bootstrap, void *context)
{
    struct run run = {0};
    struct zero_result result;
    run_open(&run, bootstrap, context);
    const struct op_table *given = run.device->host_ops;
    struct op_table slow = *given;
    slow.adam = slow_adam;
    if (run.rank == 1) run.device->host_ops = &slow;
    begin_step(&run, 1);
    zero_begin_micro(run.zero, true);
    micro_batch(&run, 1, 0, false);
    CHECK_OK(finish_step(&run, 1, &result));
    run.device->host_ops = given;
    run_close(&run);
}

/* In a build with AddressSanitizer: an event that a stream still waits for must not have been freed. */
static void test_freed_while_gathers_wait(void **state)
{
    (void)state;
    for (int stage = 1; stage <= 2; stage++) {
        struct setting setting = {
            .stage = stage, .micros = 1, .overlap = true, .dtype = DTYPE_BF16, .offload_optimizer = OFFLOAD_CPU};
        if (!ranks_run(2, NULL, free_early_body, &setting)) fail_msg("stage %d", stage);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits_as_without_offload),
        cmocka_unit_test(test_same_bits_with_a_part_on_the_device),
        cmocka_unit_test(test_same_bits_with_offloaded_parameters),
        cmocka_unit_test(test_non_finite_is_named_and_skipped),
        cmocka_unit_test(test_restart),
        cmocka_unit_test(test_freed_while_gathers_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
