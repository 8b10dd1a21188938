/* SPDX-License-Identifier: Apache-2.0 */
/* test_zero_muon.c: ZeRO's stages with the optimizer Muon, whose matrices are gathered, against Muon on one machine in
 * double, and against each other. There are three blocks: with two ranks the last round has one block for both, and
 * with four one rank has none. */
#include "tests/unit/fixtures/zero_case.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void test_against_reference(void **state)
{
    (void)state;
    struct outcome *outcome = ranks_memory(sizeof *outcome);
    for (int world = 1; world <= 4; world++)
        for (int stage = 0; stage <= 3; stage++) {
            struct setting setting = {.stage = stage,
                                      .micros = 1 + stage % 2,
                                      .tied = (world + stage) % 2,
                                      .overlap = stage != 1,
                                      .dtype = world == 2 ? DTYPE_BF16 : DTYPE_F32,
                                      .grad_dtype = world == 4 ? DTYPE_BF16 : DTYPE_F32,
                                      .bucket = world == 3 ? 1000 : 0,
                                      .muon = true,
                                      .outcome = outcome};
            if (!ranks_run(world, NULL, training_body, &setting)) fail_msg("world %d, stage %d", world, stage);
        }
    munmap(outcome, sizeof *outcome);
}

static void test_stages_agree_bit_for_bit(void **state)
{
    (void)state;
    struct outcome *outcomes = ranks_memory(4 * sizeof *outcomes);
    for (int kind = 0; kind < 2; kind++) {
        for (int stage = 0; stage <= 3; stage++) {
            struct setting setting = {.stage = stage,
                                      .micros = 1,
                                      .tied = kind == 1,
                                      .overlap = stage != 1,
                                      .dtype = kind ? DTYPE_BF16 : DTYPE_F32,
                                      .bucket = stage == 2 ? 500 : 0,
                                      .muon = true,
                                      .outcome = &outcomes[stage]};
            memset(&outcomes[stage], 0, sizeof *outcomes);
            assert_true(ranks_run(2 + kind, NULL, training_body, &setting));
            assert_memory_equal(&outcomes[stage], &outcomes[0], sizeof *outcomes);
        }
        assert_true(outcomes[0].norms[0] > 0 && outcomes[0].state[STATE_EXP_AVG_SQ][0] > 0);
    }
    munmap(outcomes, 4 * sizeof *outcomes);
}

static void test_non_finite_is_named_and_skipped(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        struct setting setting = {.stage = stage, .micros = 1, .overlap = true, .dtype = DTYPE_F32, .muon = true};
        assert_true(ranks_run(1 + stage % 3, NULL, poison_body, &setting));
    }
}

/* The second moments of a block's norms and biases are written and read as slices of the whole block. */
static void test_restart(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        struct setting setting = {
            .stage = stage, .micros = 1, .tied = stage % 2 == 0, .overlap = true, .dtype = DTYPE_F32, .muon = true};
        assert_true(ranks_run(2, NULL, restart_body, &setting));
    }
}

/* One rank's second moment of a norm in a block is changed: stage 0 has copies of it. */
static void seconds_body(struct bootstrap *bootstrap, void *context)
{
    const struct setting *setting = context;
    struct run run = {.rank = 0};
    struct replica_difference difference;
    struct zero_result result;
    run_open(&run, bootstrap, setting);
    begin_step(&run, 1);
    zero_begin_micro(run.zero, true);
    micro_batch(&run, 1, 0, false);
    CHECK_OK(finish_step(&run, 1, &result));
    CHECK_OK(zero_compare_replicas(run.zero, &difference, &error));
    CHECK(difference.rank == -1);
    float *slice;
    CHECK_OK(state_slice(zero_slices(run.zero), SLICE_READ, STATE_EXP_AVG_SQ, 2, &slice, &error));
    float *copy = malloc((size_t)run.layout.slice[2] * sizeof *copy);
    CHECK(copy != NULL);
    memcpy(copy, slice, (size_t)run.layout.slice[2] * sizeof *copy);
    CHECK_OK(state_slice(zero_slices(run.zero), SLICE_WRITE, STATE_EXP_AVG_SQ, 2, &slice, &error));
    memcpy(slice, copy, (size_t)run.layout.slice[2] * sizeof *copy);
    if (run.rank == 0) {
        CHECK(copy[3] > 0); /* of the block's first norm */
        slice[3] += 1;
    }
    CHECK_OK(state_slice(zero_slices(run.zero), SLICE_READ, STATE_EXP_AVG_SQ, 2, &slice, &error));
    CHECK(slice[3] == copy[3] + (run.rank == 0));
    CHECK_OK(zero_compare_replicas(run.zero, &difference, &error));
    CHECK(difference.rank == 1 && difference.tensor == &run.table.tensors[run.table.units[2].first_tensor] &&
          !strcmp(difference.what, "exp_avg_sq"));
    free(copy);
    run_close(&run);
}

static void test_a_changed_second_moment_is_found(void **state)
{
    (void)state;
    struct setting setting = {.stage = 0, .micros = 1, .tied = true, .dtype = DTYPE_F32, .muon = true};
    assert_true(ranks_run(2, NULL, seconds_body, &setting));
}

/* The matrices of the blocks have no second moments: at stage 1 a rank keeps as many values as its slices of the other
 * tensors, rounded up to SHARD_ALIGN. */
static void test_bytes(void **state)
{
    (void)state;
    struct model_desc desc;
    struct tensor_table table;
    struct shard_layout layout;
    struct arena arenas[3];
    size_t bytes[2];
    describe(false, &desc);
    tensor_table_build(&desc, &table);
    shard_layout_init(&layout, &table, 1);
    int64_t matrices = 0;
    for (int t = 0; t < table.num_tensors; t++)
        if (table.tensors[t].unit > 0 && table.tensors[t].unit < table.num_units - 1 && table.tensors[t].ndim == 2)
            matrices += table.tensors[t].numel / SHARD_ALIGN * SHARD_ALIGN;
    for (int kind = 0; kind < 2; kind++) {
        struct zero *zero;
        struct zero_config config = {.zero.stage = 1,
                                     .dtype = DTYPE_F32,
                                     .optimizer = kind ? muon : adamw,
                                     .table = &table,
                                     .layout = &layout,
                                     .training = true};
        assert_int_equal(zero_new(&config, NULL, NULL, &zero, &error), STATUS_OK);
        for (int i = 0; i < 3; i++) arena_init_dry(&arenas[i]);
        zero_layout(zero, &arenas[0], &arenas[1], &arenas[2]);
        bytes[kind] = arenas[0].by_kind[MEM_OPTIMIZER];
        assert_int_equal(arenas[1].used, 0);
        zero_free(zero);
    }
    assert_int_equal(bytes[0], 2 * 4 * layout.shard_numel);
    assert_true(bytes[1] <= bytes[0] - 4 * (size_t)matrices);
    shard_layout_release(&layout);
    tensor_table_release(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_against_reference),
        cmocka_unit_test(test_stages_agree_bit_for_bit),
        cmocka_unit_test(test_a_changed_second_moment_is_found),
        cmocka_unit_test(test_non_finite_is_named_and_skipped),
        cmocka_unit_test(test_restart),
    };
    return cmocka_run_group_tests_name("zero_muon", tests, NULL, NULL);
}
