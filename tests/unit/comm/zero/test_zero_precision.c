/* SPDX-License-Identifier: Apache-2.0 */
/* test_zero_precision.c: gradients that are rounded for their reduction or where they are accumulated. */
#include "tests/unit/fixtures/zero_case.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* The settings of a test, at one stage. */
static void run_stage(struct setting setting, int world, int stage, struct outcome *outcome)
{
    setting.stage = stage;
    setting.overlap = stage != 1;
    setting.bucket = stage == 2 ? 500 : 0;
    setting.outcome = outcome;
    memset(outcome, 0, sizeof *outcome);
    if (!ranks_run(world, NULL, training_body, &setting)) fail_msg("world %d, stage %d", world, stage);
}

static struct setting setting_of(int kind, enum dtype comm, enum dtype grad, int micros)
{
    return (struct setting){.micros = micros,
                            .tied = kind & 1,
                            .dtype = kind & 2 ? DTYPE_BF16 : DTYPE_F32,
                            .comm_dtype = comm,
                            .comm_factor = comm == DTYPE_F16 ? 3 : 0,
                            .grad_dtype = grad};
}

static const enum dtype types[][2] = {
    {DTYPE_BF16, DTYPE_F32}, {DTYPE_F16, DTYPE_F32}, {DTYPE_F32, DTYPE_BF16}, {DTYPE_BF16, DTYPE_BF16}};

/* Each contribution is rounded in the same place at every stage; the body compares with fp32 in double, and the bytes
 * with the theory. */
static void test_stages_agree_bit_for_bit(void **state)
{
    (void)state;
    struct outcome *outcomes = ranks_memory(5 * sizeof *outcomes);
    for (size_t type = 0; type < COUNT_OF(types); type++)
        for (int kind = 0; kind < 4; kind += 3) {
            for (int stage = 0; stage <= 3; stage++) {
                run_stage(setting_of(kind, types[type][0], types[type][1], 1), 3, stage, &outcomes[stage]);
                assert_memory_equal(&outcomes[stage], &outcomes[0], sizeof *outcomes);
            }
            run_stage(setting_of(kind, DTYPE_F32, DTYPE_F32, 1), 3, 0, &outcomes[4]);
            assert_memory_not_equal(&outcomes[4], &outcomes[0], sizeof *outcomes); /* it does round */
        }
    munmap(outcomes, 5 * sizeof *outcomes);
}

static void test_stages_agree_in_pairs_with_accumulation(void **state)
{
    (void)state;
    struct outcome *outcomes = ranks_memory(4 * sizeof *outcomes);
    for (size_t type = 0; type < COUNT_OF(types); type++) {
        for (int stage = 0; stage <= 3; stage++)
            run_stage(setting_of((int)type & 1, types[type][0], types[type][1], 3), 2, stage, &outcomes[stage]);
        assert_memory_equal(&outcomes[1], &outcomes[0], sizeof *outcomes);
        assert_memory_equal(&outcomes[3], &outcomes[2], sizeof *outcomes);
    }
    munmap(outcomes, 4 * sizeof *outcomes);
}

/* Alone a rank sends nothing, so only the accumulators round. */
static void test_one_rank(void **state)
{
    (void)state;
    struct outcome *outcomes = ranks_memory(3 * sizeof *outcomes);
    run_stage(setting_of(0, DTYPE_F32, DTYPE_F32, 2), 1, 0, &outcomes[0]);
    run_stage(setting_of(0, DTYPE_F16, DTYPE_F32, 2), 1, 2, &outcomes[1]);
    run_stage(setting_of(0, DTYPE_F32, DTYPE_BF16, 2), 1, 0, &outcomes[2]);
    assert_memory_equal(&outcomes[1], &outcomes[0], sizeof *outcomes);
    assert_memory_not_equal(&outcomes[2], &outcomes[0], sizeof *outcomes);
    for (int stage = 1; stage <= 3; stage++) {
        run_stage(setting_of(0, DTYPE_BF16, DTYPE_BF16, 2), 1, stage, &outcomes[1]);
        assert_memory_equal(&outcomes[1], &outcomes[2], sizeof *outcomes);
    }
    munmap(outcomes, 3 * sizeof *outcomes);
}

/* ---- states in bf16 ------------------------------------------------------ */

static struct setting narrow_setting(int kind, int micros)
{
    struct setting setting = setting_of(2 | (kind & 1), DTYPE_F32, DTYPE_BF16, micros);
    setting.master_dtype = DTYPE_BF16;
    setting.moment_dtype = kind & 2 ? DTYPE_BF16 : DTYPE_F32;
    return setting;
}

static void test_stages_with_states_in_bf16(void **state)
{
    (void)state;
    struct outcome *outcomes = ranks_memory(4 * sizeof *outcomes);
    for (int kind = 0; kind < 4; kind++)
        for (int micros = 1; micros <= 2; micros++) {
            for (int stage = 0; stage <= 3; stage++)
                run_stage(narrow_setting(kind, micros), 3, stage, &outcomes[stage]);
            assert_memory_equal(&outcomes[1], &outcomes[0], sizeof *outcomes);
            assert_memory_equal(&outcomes[3], &outcomes[2], sizeof *outcomes);
            assert_true(micros > 1 || memcmp(&outcomes[2], &outcomes[0], sizeof *outcomes) == 0);
            for (int s = 0; s < STATE_KIND_COUNT; s++) /* bf16 values, which checkpoints hold exactly */
                for (int i = 0; i < MAX_ELEMENTS && (s == STATE_MASTER || kind & 2); i++) {
                    float x = outcomes[0].state[s][i];
                    assert_true(x == bf16_to_f32(bf16_from_f32(x)));
                }
        }
    munmap(outcomes, 4 * sizeof *outcomes);
}

/* The random bits follow from the place in the unit, so the same gradients give the same states at any world size. */
static void test_world_sizes_agree(void **state)
{
    (void)state;
    enum { WORLDS = 3 };
    struct outcome *outcomes = ranks_memory(WORLDS * sizeof *outcomes);
    struct model_desc desc;
    struct tensor_table table;
    struct shard_layout layouts[WORLDS];
    describe(false, &desc);
    tensor_table_build(&desc, &table);
    for (int w = 0; w < WORLDS; w++) {
        struct setting setting = narrow_setting(2, 1);
        setting.lonely = true;
        shard_layout_init(&layouts[w], &table, w + 1);
        run_stage(setting, w + 1, w == 1 ? 2 : 3, &outcomes[w]);
    }
    for (int w = 1; w < WORLDS; w++)
        for (int s = 0; s < STATE_KIND_COUNT; s++)
            for (int u = 0; u < table.num_units; u++)
                assert_memory_equal(&outcomes[w].state[s][layouts[w].shard_offset[u] * (w + 1)],
                                    &outcomes[0].state[s][layouts[0].shard_offset[u]],
                                    (size_t)table.units[u].numel * sizeof(float));
    for (int w = 0; w < WORLDS; w++) shard_layout_release(&layouts[w]);
    tensor_table_release(&table);
    munmap(outcomes, WORLDS * sizeof *outcomes);
}

static void test_restart_with_states_in_bf16(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        struct setting setting = narrow_setting(stage, 1);
        setting.stage = stage;
        setting.overlap = true;
        assert_true(ranks_run(2, NULL, restart_body, &setting));
    }
}

/* ---- memory -------------------------------------------------------------- */

/* Bytes of a rank's parameters, gradients and optimizer's state. By default the formulas of the ZeRO paper hold with
 * fp32 gradients (2 + 4 + 12), so that stage 3 takes the 18 bytes over N ranks that DeepSpeed's
 * estimate_zero3_model_states_mem_needs counts; with bf16 accumulators those of the paper itself (2 + 2 + 12). */
static size_t states_of(const struct zero_config *given, int stage, int world, int64_t *own)
{
    struct model_desc desc;
    struct tensor_table table;
    struct shard_layout layout;
    struct zero *zero;
    struct arena arenas[3];
    size_t bytes = 0;
    describe(false, &desc);
    tensor_table_build(&desc, &table);
    shard_layout_init(&layout, &table, world);
    struct zero_config config = *given;
    config.zero.stage = stage;
    config.dtype = DTYPE_BF16;
    config.table = &table;
    config.layout = &layout;
    config.training = true;
    assert_int_equal(zero_new(&config, NULL, NULL, &zero, &error), STATUS_OK);
    for (int i = 0; i < 3; i++) arena_init_dry(&arenas[i]);
    zero_layout(zero, &arenas[0], &arenas[1], &arenas[2]);
    for (int i = 0; i < 3; i++)
        bytes += arenas[i].by_kind[MEM_PARAMS] + arenas[i].by_kind[MEM_GRADS] + arenas[i].by_kind[MEM_OPTIMIZER];
    *own = layout.shard_numel;
    zero_free(zero);
    shard_layout_release(&layout);
    tensor_table_release(&table);
    return bytes;
}

static void test_bytes_a_parameter(void **state)
{
    (void)state;
    static const struct {
        struct zero_config config;
        size_t whole[4], sliced[4]; /* bytes of a whole parameter and of one of the own slices, by stage */
    } modes[] = {
        {{.tied = false}, {18, 6, 2, 0}, {0, 12, 16, 18}},
        {{.grad_dtype = DTYPE_BF16}, {16, 4, 2, 0}, {0, 12, 14, 16}}, /* 2 + 2 + 12 */
        {{.comm_dtype = DTYPE_BF16}, {18, 6, 2, 0}, {0, 12, 16, 18}},
        {{.grad_dtype = DTYPE_BF16, .master_dtype = DTYPE_BF16}, {12, 4, 2, 0}, {0, 8, 10, 12}},
        {{.grad_dtype = DTYPE_BF16, .master_dtype = DTYPE_BF16, .moment_dtype = DTYPE_BF16},
         {8, 4, 2, 0},
         {0, 4, 6, 8}},
    };
    for (size_t m = 0; m < COUNT_OF(modes); m++)
        for (int stage = 0; stage <= 3; stage++)
            for (int world = 1; world <= 8; world *= 2) {
                int64_t own;
                size_t bytes = states_of(&modes[m].config, stage, world, &own);
                assert_int_equal(bytes, (size_t)own * (modes[m].whole[stage] * (size_t)world + modes[m].sliced[stage]));
            }
}

/* ---- fp16 overflows ------------------------------------------------------ */

/* A contribution beyond fp16's range skips the step and is named; divided enough before it is sent, it fits. */
static void overflow_body(struct bootstrap *bootstrap, void *context)
{
    const struct setting *setting = context;
    struct run run = {.rank = 0};
    struct zero_result result;
    run_open(&run, bootstrap, setting);
    begin_step(&run, 1);
    zero_begin_micro(run.zero, true);
    int head = run.table.num_units - 1;
    for (int u = head; u >= 0; u--) {
        struct unit_grads to;
        CHECK_OK(run.verbs->grads(run.verbs->self, u, run.compute, &to, &error));
        memset(to.grads[0], 0, (size_t)run.table.units[u].numel * sizeof *to.grads[0]);
        if (u == 2 && run.rank == 1)
            to.grads[0][run.table.tensors[run.table.units[u].first_tensor + 3].offset + 5] = 50000;
        ready(&run, u);
    }
    CHECK_OK(finish_step(&run, 1, &result));
    CHECK(result.skipped == (setting->comm_factor > 1));
    if (result.skipped)
        CHECK(result.bad_rank == 1 && result.bad_tensor == &run.table.tensors[run.table.units[2].first_tensor + 3]);
    else
        CHECK(fabs(result.grad_norm - 50000) < 0.001 * 50000);
    run_close(&run);
}

static void test_an_overflow_in_fp16_is_named(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++)
        for (int factor = 1; factor <= 2; factor++) {
            struct setting setting = setting_of(1, DTYPE_F16, DTYPE_F32, 1);
            setting.stage = stage;
            setting.comm_factor = (float)factor;
            if (!ranks_run(2, NULL, overflow_body, &setting)) fail_msg("stage %d, factor %d", stage, factor);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stages_agree_bit_for_bit),
        cmocka_unit_test(test_stages_agree_in_pairs_with_accumulation),
        cmocka_unit_test(test_one_rank),
        cmocka_unit_test(test_stages_with_states_in_bf16),
        cmocka_unit_test(test_world_sizes_agree),
        cmocka_unit_test(test_restart_with_states_in_bf16),
        cmocka_unit_test(test_bytes_a_parameter),
        cmocka_unit_test(test_an_overflow_in_fp16_is_named),
    };
    return cmocka_run_group_tests_name("zero_precision", tests, NULL, NULL);
}
