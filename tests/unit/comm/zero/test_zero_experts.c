/* SPDX-License-Identifier: Apache-2.0 */
/* test_zero_experts.c: experts beside their blocks, on all ranks or shared by groups of them, against AdamW on one
 * machine in double; every stage has the same bits; copies are compared within groups. */
#include "tests/unit/fixtures/zero_case.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static const struct {
    int world, groups;
} splits[] = {{1, 1}, {2, 1}, {3, 1}, {2, 2}, {4, 2}, {4, 4}};

static void test_experts_against_reference(void **state)
{
    (void)state;
    struct outcome *outcome = ranks_memory(sizeof *outcome);
    for (size_t i = 0; i < COUNT_OF(splits); i++)
        for (int micros = 1; micros <= 2; micros++)
            for (int stage = 0; stage <= 3; stage++) {
                struct setting setting = {.stage = stage,
                                          .micros = micros,
                                          .overlap = (micros + stage) % 3 > 0,
                                          .dtype = micros == 2 ? DTYPE_BF16 : DTYPE_F32,
                                          .bucket = i % 2 ? 1000 : 0,
                                          .expert_parallel = splits[i].groups,
                                          .outcome = outcome};
                if (!ranks_run(splits[i].world, NULL, training_body, &setting))
                    fail_msg("world %d, %d groups, %d micro-batches, stage %d", splits[i].world, splits[i].groups,
                             micros, stage);
            }
    munmap(outcome, sizeof *outcome);
}

/* Stages, and where parameters and optimizer are. Groups: each sums in the order of its ranks. */
static void test_stages_and_places_agree_bit_for_bit(void **state)
{
    (void)state;
    static const struct {
        int stage;
        enum offload_device param, optimizer;
        double ratio;
    } places[] = {
        {0, OFFLOAD_NONE, OFFLOAD_NONE, 0}, {1, OFFLOAD_NONE, OFFLOAD_NONE, 0}, {2, OFFLOAD_NONE, OFFLOAD_NONE, 0},
        {3, OFFLOAD_NONE, OFFLOAD_NONE, 0}, {2, OFFLOAD_NONE, OFFLOAD_CPU, 1},  {3, OFFLOAD_CPU, OFFLOAD_CPU, 1},
        {1, OFFLOAD_NONE, OFFLOAD_CPU, .4}, {3, OFFLOAD_CPU, OFFLOAD_NONE, 0},  {3, OFFLOAD_NONE, OFFLOAD_CPU, .7}};
    struct outcome *outcomes = ranks_memory(2 * sizeof *outcomes);
    for (size_t i = 1; i < COUNT_OF(splits); i++)
        for (size_t p = 0; p < COUNT_OF(places); p++) {
            struct setting setting = {.stage = places[p].stage,
                                      .micros = 1,
                                      .overlap = p % 2,
                                      .dtype = i % 2 ? DTYPE_BF16 : DTYPE_F32,
                                      .comm_dtype = i % 2 ? DTYPE_BF16 : DTYPE_F32,
                                      .grad_dtype = i == 3 ? DTYPE_BF16 : DTYPE_F32,
                                      .offload_param = places[p].param,
                                      .offload_optimizer = places[p].optimizer,
                                      .ratio = places[p].ratio,
                                      .expert_parallel = splits[i].groups,
                                      .outcome = &outcomes[p > 0]};
            memset(setting.outcome, 0, sizeof *outcomes);
            assert_true(ranks_run(splits[i].world, NULL, training_body, &setting));
            if (p > 0 && memcmp(&outcomes[1], &outcomes[0], sizeof *outcomes) != 0)
                fail_msg("world %d, %d groups: place %d differs", splits[i].world, splits[i].groups, (int)p);
        }
    munmap(outcomes, 2 * sizeof *outcomes);
}

static bool is_of_experts(void *context, const struct tensor_info *tensor)
{
    (void)context;
    return role_is_expert(tensor->role);
}

static void test_frozen_experts(void **state)
{
    (void)state;
    struct outcome *outcome = ranks_memory(sizeof *outcome);
    for (size_t i = 0; i < COUNT_OF(splits); i++)
        for (int stage = 0; stage <= 3; stage++) {
            struct setting setting = {.stage = stage,
                                      .micros = 1,
                                      .frozen = is_of_experts,
                                      .expert_parallel = splits[i].groups,
                                      .outcome = outcome};
            if (!ranks_run(splits[i].world, NULL, training_body, &setting))
                fail_msg("split %d, stage %d", (int)i, stage);
        }
    munmap(outcome, sizeof *outcome);
}

static void test_muon(void **state)
{
    (void)state;
    struct outcome *outcome = ranks_memory(sizeof *outcome);
    for (int world = 1; world <= 3; world++)
        for (int stage = 0; stage <= 3; stage++) {
            struct setting setting = {.stage = stage, .micros = 1, .muon = true, .expert_parallel = 1};
            setting.outcome = outcome;
            if (!ranks_run(world, NULL, training_body, &setting)) fail_msg("Muon: world %d, stage %d", world, stage);
        }
    munmap(outcome, sizeof *outcome);
}

/* A bit of an expert's copy on the last rank: its group has another rank with the copy, unless each has its own. */
static void copies_body(struct bootstrap *bootstrap, void *context)
{
    const struct setting *setting = context;
    struct run run = {.rank = 0};
    struct replica_difference difference;
    struct unit_params params;
    run_open(&run, bootstrap, setting);
    CHECK_OK(zero_compare_replicas(run.zero, &difference, &error));
    CHECK(difference.rank == -1);
    begin_step(&run, 1);
    CHECK_OK(run.verbs->acquire(run.verbs->self, 1, PASS_FORWARD, run.compute, &params, &error));
    const struct tensor_info *tensor = tensor_find(&run.table, 1, ROLE_EXPERT_DOWN_W);
    const int ranks = run.world / setting->expert_parallel;
    if (run.rank == run.world - 1) *(unsigned char *)(uintptr_t)params.trained[UNIT_DOWN] ^= 1;
    CHECK_OK(zero_compare_replicas(run.zero, &difference, &error));
    CHECK(difference.rank == (ranks > 1 ? run.world - 1 : -1));
    CHECK(ranks == 1 || (difference.other == run.world - ranks && difference.unit == &run.table.units[tensor->unit] &&
                         !strcmp(difference.what, "parameters") && difference.tensor->role == ROLE_EXPERT_DOWN_W));
    let_go(&run, 1, PASS_FORWARD);
    run_close(&run);
}

static void test_copies_are_compared_in_groups(void **state)
{
    (void)state;
    for (size_t i = 1; i < COUNT_OF(splits); i++) {
        struct setting setting = {.stage = 1, .micros = 1, .expert_parallel = splits[i].groups};
        if (!ranks_run(splits[i].world, NULL, copies_body, &setting)) fail_msg("split %d", (int)i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_experts_against_reference),
        cmocka_unit_test(test_stages_and_places_agree_bit_for_bit),
        cmocka_unit_test(test_frozen_experts),
        cmocka_unit_test(test_muon),
        cmocka_unit_test(test_copies_are_compared_in_groups),
    };
    return cmocka_run_group_tests_name("zero_experts", tests, NULL, NULL);
}
