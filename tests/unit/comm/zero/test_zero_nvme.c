/* SPDX-License-Identifier: Apache-2.0 */
/* test_zero_nvme.c: the optimizer's state on a disk: the bits of the same run without offload, however many buffers and
 * whatever is read ahead; files that end with the run; a disk that fails in a step. */
#include "tests/unit/fixtures/nameless_file.h"
#include "tests/unit/fixtures/nvme_folder.h"
#include "tests/unit/fixtures/zero_case.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* What is where: of the optimizer's state, of the parameters. */
static const enum offload_device kinds[][2] = {{OFFLOAD_NVME, OFFLOAD_NONE},
                                               {OFFLOAD_NONE, OFFLOAD_NVME},
                                               {OFFLOAD_NVME, OFFLOAD_NVME},
                                               {OFFLOAD_NVME, OFFLOAD_CPU},
                                               {OFFLOAD_CPU, OFFLOAD_NVME}};

/* `turn` varies buffers, pieces, pipelines and fractions. The largest slice of one rank has some 5000 elements. */
static void to_disk(struct setting *setting, int kind, int turn)
{
    setting->offload_optimizer = kinds[kind][0];
    setting->offload_param = kinds[kind][1];
    setting->ratio = turn % 4 == 3 ? 0.5 : 1;
    setting->sub_group_size = turn % 2 ? 2048 : turn % 8 ? 4096 : 0;
    setting->nvme = (struct offload_settings){.nvme_path = folder,
                                              .buffer_count = 1 + turn % 5,
                                              .buffer_size = turn % 7 < 3   ? 2048
                                                             : turn % 7 < 5 ? 5000
                                                                            : 1 << 20,
                                              .max_in_cpu = turn % 3 == 2 ? 2000 : 0,
                                              .pipeline_read = turn % 4 != 1,
                                              .pipeline_write = turn % 4 != 2};
}

/* One to four ranks, fp32 and bf16, with and without accumulation, pieces and overlap, one to five buffers. */
static void test_same_bits_as_without_offload(void **state)
{
    (void)state;
    int turn = 0;
    struct outcome *outcomes = ranks_memory(2 * sizeof *outcomes);
    for (int world = 1; world <= 4; world += 1 + (world == 2))
        for (int variant = 0; variant < 4; variant++) {
            struct setting setting = {.stage = 3,
                                      .micros = 1 + 2 * (variant & 1),
                                      .tied = (world + variant / 2) % 2,
                                      .overlap = variant % 3 > 0,
                                      .dtype = variant & 2 ? DTYPE_BF16 : DTYPE_F32,
                                      .bucket = world == 4 ? 1000 : 0,
                                      .outcome = &outcomes[0]};
            memset(outcomes, 0, sizeof *outcomes);
            assert_true(ranks_run(world, NULL, training_body, &setting));
            assert_true(outcomes[0].norms[0] > 0 && outcomes[0].state[STATE_EXP_AVG_SQ][0] > 0);
            setting.outcome = &outcomes[1];
            for (int kind = 0; kind < (int)COUNT_OF(kinds); kind++) {
                memset(&outcomes[1], 0, sizeof *outcomes);
                to_disk(&setting, kind, turn++);
                if (!ranks_run(world, NULL, training_body, &setting))
                    fail_msg("world %d, variant %d, kind %d", world, variant, kind);
                assert_memory_equal(&outcomes[1], &outcomes[0], sizeof *outcomes);
            }
        }
    munmap(outcomes, 2 * sizeof *outcomes);
}

static void test_skipped_steps_and_state_from_outside(void **state)
{
    (void)state;
    for (int world = 1; world <= 2; world++)
        for (int kind = 0; kind < (int)COUNT_OF(kinds); kind++)
            for (int bf16 = 0; bf16 < 2; bf16++) {
                struct setting setting = {
                    .stage = 3, .micros = 2, .tied = !bf16, .overlap = true, .dtype = bf16 ? DTYPE_BF16 : DTYPE_F32};
                to_disk(&setting, kind, kind + 4 * world + bf16);
                if (!ranks_run(world, NULL, poison_body, &setting))
                    fail_msg("poison: world %d, kind %d, bf16 %d", world, kind, bf16);
                setting.micros = 1;
                if (!ranks_run(world, NULL, restart_body, &setting))
                    fail_msg("restart: world %d, kind %d, bf16 %d", world, kind, bf16);
            }
}

/* Passes of evaluation until an error. */
static enum status acquire_until_error(struct run *run)
{
    struct unit_params params;
    for (int pass = 0; pass < 100; pass++)
        for (int u = 0; u < run->table.num_units; u++) {
            TRY(run->verbs->acquire(run->verbs->self, u, PASS_EVALUATION, run->compute, &params, &error));
            let_go(run, u, PASS_EVALUATION);
        }
    return STATUS_OK;
}

/* After a disk has failed no parameters can be had, and no state for a checkpoint. */
static void failing_body(struct bootstrap *bootstrap, void *context)
{
    struct run run = {.rank = 0};
    float *slice;
    run_open(&run, bootstrap, context);
    evaluation(&run);
    CHECK_OK(state_slice(zero_slices(run.zero), SLICE_READ, STATE_MASTER, 2, &slice, &error));
    CHECK(cut_nameless_file("-parameters-", 8192));
    CHECK(acquire_until_error(&run) == STATUS_BROKEN);
    CHECK(strstr(error.text, "-parameters-") && strstr(error.text, "' ends at offset 8192; hint: "));
    memset(&error, 0, sizeof error);
    CHECK(state_slice(zero_slices(run.zero), SLICE_READ, STATE_MASTER, 2, &slice, &error) == STATUS_BROKEN);
    CHECK(strstr(error.text, "ends at offset 8192"));
    run_close(&run);
}

/* Gradients that are lost in the update leave wrong state in a file that is sound: no checkpoint may have it. */
static void lost_gradients_body(struct bootstrap *bootstrap, void *context)
{
    struct run run = {.rank = 0};
    struct zero_result result;
    float *slice;
    run_open(&run, bootstrap, context);
    begin_step(&run, 1);
    zero_begin_micro(run.zero, true);
    micro_batch(&run, 1, 0, false);
    CHECK(cut_nameless_file("-gradients-", 8192));
    CHECK(finish_step(&run, 1, &result) == STATUS_BROKEN);
    CHECK(strstr(error.text, "-gradients-") && strstr(error.text, "' ends at offset "));
    memset(&error, 0, sizeof error);
    CHECK(state_slice(zero_slices(run.zero), SLICE_READ, STATE_MASTER, 2, &slice, &error) == STATUS_BROKEN);
    CHECK(strstr(error.text, "-gradients-") && strstr(error.text, "' ends at offset "));
    run_close(&run);
}

static void test_no_state_after_lost_gradients(void **state)
{
    (void)state;
    struct outcome *outcome = ranks_memory(sizeof *outcome);
    struct setting setting = {.stage = 3, .micros = 1, .outcome = outcome};
    for (int kind = 0; kind < (int)COUNT_OF(kinds); kind++)
        if (kinds[kind][0] == OFFLOAD_NVME) {
            to_disk(&setting, kind, 0);
            assert_true(ranks_run(1, NULL, lost_gradients_body, &setting));
        }
    munmap(outcome, sizeof *outcome);
}

static void test_a_disk_that_fails_ends_the_step(void **state)
{
    (void)state;
    struct outcome *outcome = ranks_memory(sizeof *outcome);
    struct setting setting = {.stage = 3, .micros = 1, .outcome = outcome};
    to_disk(&setting, 1, 0);
    assert_true(ranks_run(1, NULL, failing_body, &setting));
    munmap(outcome, sizeof *outcome);
}

/* The plan knows the bytes on the disk without touching it. */
static void test_a_plan_makes_no_file(void **state)
{
    (void)state;
    struct model_desc desc;
    struct tensor_table table;
    struct shard_layout layout;
    struct zero *zero;
    struct device *device;
    describe(false, &desc);
    tensor_table_build(&desc, &table);
    shard_layout_init(&layout, &table, 2);
    assert_int_equal(device_open(DEVICE_CPU, 0, 1, &device, &error), STATUS_OK);
    struct zero_config config = {.zero.stage = 3,
                                 .table = &table,
                                 .layout = &layout,
                                 .training = true,
                                 .zero.offload_param = {.device = OFFLOAD_NVME,
                                                        .nvme_path = "/proc/none",
                                                        .buffer_count = 5,
                                                        .buffer_size = 1 << 20},
                                 .aio = {.block_size = 4096, .queue_depth = 4}};
    assert_int_equal(zero_new(&config, device, NULL, &zero, &error), STATUS_OK);
    int64_t expected = 0;
    for (int u = 0; u < table.num_units; u++) expected += ((layout.slice[u] * 4 + 4095) / 4096 * 4096);
    assert_int_equal(zero_disk_bytes(zero), expected);
    zero_free(zero);
    device_close(device);
    shard_layout_release(&layout);
    tensor_table_release(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits_as_without_offload),
        cmocka_unit_test(test_skipped_steps_and_state_from_outside),
        cmocka_unit_test(test_a_disk_that_fails_ends_the_step),
        cmocka_unit_test(test_no_state_after_lost_gradients),
        cmocka_unit_test(test_a_plan_makes_no_file),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
