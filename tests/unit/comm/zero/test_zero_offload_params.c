/* SPDX-License-Identifier: Apache-2.0 */
/* test_zero_offload_params.c: stage 3 with the parameters in host memory: the bits, the bytes and the volume of the
 * same training without offload. */
#include "tests/unit/fixtures/zero_case.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* Compares a training with its parameters in host memory with the one that keeps them on the device. */
static void compare(struct setting setting, int world, struct outcome *outcomes)
{
    memset(outcomes, 0, 2 * sizeof *outcomes);
    for (int i = 0; i < 2; i++) {
        setting.outcome = &outcomes[i];
        setting.offload_param = i ? OFFLOAD_CPU : OFFLOAD_NONE;
        if (!ranks_run(world, NULL, training_body, &setting))
            fail_msg("world %d, %d micro-batches, %s, offload %d", world, setting.micros, dtype_name(setting.dtype), i);
    }
    assert_memory_equal(&outcomes[1], &outcomes[0], sizeof *outcomes);
    assert_true(outcomes[0].norms[0] > 0 && outcomes[0].state[STATE_EXP_AVG_SQ][0] > 0);
}

static void test_bits_are_those_of_no_offload(void **state)
{
    (void)state;
    struct outcome *outcomes = ranks_memory(2 * sizeof *outcomes);
    for (int world = 1; world <= 4; world++)
        for (int bf16 = 0; bf16 < 2; bf16++)
            for (int micros = 1; micros <= 2; micros++) {
                struct setting setting = {.stage = 3,
                                          .micros = micros,
                                          .tied = (world + micros + bf16) % 2,
                                          .overlap = (world + bf16) % 3 > 0,
                                          .dtype = bf16 ? DTYPE_BF16 : DTYPE_F32,
                                          .bucket = world == 3 ? 1000 : 0};
                compare(setting, world, outcomes);
            }
    munmap(outcomes, 2 * sizeof *outcomes);
}

static void test_skipped_step_changes_nothing(void **state)
{
    (void)state;
    for (int world = 1; world <= 3; world += 2)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            struct setting setting = {.stage = 3,
                                      .micros = 2,
                                      .tied = !bf16,
                                      .overlap = true,
                                      .dtype = bf16 ? DTYPE_BF16 : DTYPE_F32,
                                      .offload_param = OFFLOAD_CPU};
            if (!ranks_run(world, NULL, poison_body, &setting))
                fail_msg("world %d, %s", world, dtype_name(setting.dtype));
        }
}

static void test_restart(void **state)
{
    (void)state;
    for (int world = 1; world <= 2; world++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            struct setting setting = {.stage = 3,
                                      .micros = 1,
                                      .overlap = !bf16,
                                      .dtype = bf16 ? DTYPE_BF16 : DTYPE_F32,
                                      .offload_param = OFFLOAD_CPU};
            assert_true(ranks_run(world, NULL, restart_body, &setting));
        }
}

/* Lays out a plan without ranks. */
static void lay_out(bool tied, int world, enum dtype dtype, enum offload_device offload_param, struct arena arenas[3],
                    int64_t *own, int64_t *places)
{
    struct model_desc desc;
    struct tensor_table table;
    struct shard_layout layout;
    struct zero *zero;
    describe(tied, &desc);
    tensor_table_build(&desc, &table);
    shard_layout_init(&layout, &table, world);
    struct zero_config config = {.zero.stage = 3,
                                 .dtype = dtype,
                                 .table = &table,
                                 .layout = &layout,
                                 .tied = tied,
                                 .training = true,
                                 .zero.offload_param = {.device = offload_param, .pin_memory = true}};
    assert_int_equal(zero_new(&config, NULL, NULL, &zero, &error), STATUS_OK);
    for (int i = 0; i < 3; i++) arena_init_dry(&arenas[i]);
    zero_layout(zero, &arenas[0], &arenas[1], &arenas[2]);
    *own = layout.shard_numel;
    int head = table.num_units - 1;
    int64_t ends = shard_padded(&layout, 0) + shard_padded(&layout, head);
    if (!tied) /* they share a place */
        ends = shard_padded(&layout, 0) > shard_padded(&layout, head) ? shard_padded(&layout, 0)
                                                                      : shard_padded(&layout, head);
    *places = ends + 2 * shard_padded(&layout, 1);
    zero_free(zero);
    shard_layout_release(&layout);
    tensor_table_release(&table);
}

static void test_bytes(void **state)
{
    (void)state;
    for (int tied = 0; tied < 2; tied++)
        for (int world = 1; world <= 5; world++)
            for (int bf16 = 0; bf16 < 2; bf16++) {
                enum dtype dtype = bf16 ? DTYPE_BF16 : DTYPE_F32;
                size_t size = dtype_size(dtype);
                struct arena without[3], with[3];
                int64_t own, places;
                lay_out(tied, world, dtype, OFFLOAD_NONE, without, &own, &places);
                lay_out(tied, world, dtype, OFFLOAD_CPU, with, &own, &places);
                assert_int_equal(without[2].used, 0);
                assert_int_equal(with[2].used, (size_t)own * size);
                assert_int_equal(with[2].by_kind[MEM_PARAMS], with[2].used);
                assert_int_equal(with[0].by_kind[MEM_PARAMS] + with[1].by_kind[MEM_PARAMS], 0);
                assert_int_equal(with[0].by_kind[MEM_GRADS], without[0].by_kind[MEM_GRADS]);
                assert_int_equal(with[0].by_kind[MEM_OPTIMIZER], without[0].by_kind[MEM_OPTIMIZER]);
                /* staging slices, or with one rank the places */
                size_t more = with[0].by_kind[MEM_COMM] + with[1].by_kind[MEM_COMM] - without[0].by_kind[MEM_COMM] -
                              without[1].by_kind[MEM_COMM];
                assert_int_equal(more, (size_t)(places / world) * size);
                assert_true(world > 1 || with[1].used == 0);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_bits_are_those_of_no_offload),
        cmocka_unit_test(test_skipped_step_changes_nothing),
        cmocka_unit_test(test_restart),
    };
    return cmocka_run_group_tests_name("zero_offload_params", tests, NULL, NULL);
}
