/* SPDX-License-Identifier: Apache-2.0 */
/* test_zero_offload_precision.c: gradients and states in bf16, in host memory or on a disk: the bits of the same run
 * without offload, steps that are skipped, state that is written from outside, and the bytes of the plan. */
#include "tests/unit/fixtures/nvme_folder.h"
#include "tests/unit/fixtures/zero_case.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* Where things are, and the stages that allow it. */
static const struct place {
    enum offload_device optimizer, params;
    int first_stage;
} places[] = {{OFFLOAD_CPU, OFFLOAD_NONE, 1},  {OFFLOAD_NONE, OFFLOAD_CPU, 3},  {OFFLOAD_CPU, OFFLOAD_CPU, 3},
              {OFFLOAD_NVME, OFFLOAD_NONE, 3}, {OFFLOAD_NONE, OFFLOAD_NVME, 3}, {OFFLOAD_NVME, OFFLOAD_NVME, 3},
              {OFFLOAD_NVME, OFFLOAD_CPU, 3},  {OFFLOAD_CPU, OFFLOAD_NVME, 3}};

/* `turn` varies the fraction, pieces and buffers. */
static void offload(struct setting *setting, const struct place *place, int turn)
{
    setting->offload_optimizer = place->optimizer;
    setting->offload_param = place->params;
    setting->ratio = turn % 3 == 2 ? 0.5 : 1;
    setting->sub_group_size = turn % 2 ? 2048 : 0;
    setting->nvme = (struct offload_settings){.nvme_path = folder,
                                              .buffer_count = 1 + turn % 4,
                                              .buffer_size = turn % 3 ? 2048 : 1 << 20,
                                              .max_in_cpu = turn % 5 == 4 ? 2000 : 0,
                                              .pipeline_read = true,
                                              .pipeline_write = true};
}

/* Accumulators alone; with the weights; with the moments as well. */
enum { MODES = 3 };

static struct setting mode_setting(int mode, int micros, int turn)
{
    return (struct setting){.micros = micros,
                            .tied = turn % 2,
                            .overlap = turn % 3 > 0,
                            .dtype = mode || turn % 2 ? DTYPE_BF16 : DTYPE_F32,
                            .comm_dtype = turn % 5 == 3 ? DTYPE_BF16 : DTYPE_F32,
                            .grad_dtype = mode == 1 && turn % 4 == 1 ? DTYPE_F32 : DTYPE_BF16,
                            .master_dtype = mode ? DTYPE_BF16 : DTYPE_F32,
                            .moment_dtype = mode == 2 ? DTYPE_BF16 : DTYPE_F32,
                            .bucket = turn % 4 == 3 ? 1000 : 0};
}

/* Runs the setting without offload and in all places that its stage allows. */
static void compare(int world, int mode, int stage, struct setting setting, int turn)
{
    struct outcome *outcomes = ranks_memory(2 * sizeof *outcomes);
    setting.stage = stage;
    setting.outcome = &outcomes[0];
    assert_true(ranks_run(world, NULL, training_body, &setting));
    assert_true(outcomes[0].norms[0] > 0 && outcomes[0].state[STATE_EXP_AVG_SQ][0] > 0);
    setting.outcome = &outcomes[1];
    for (size_t p = 0; p < COUNT_OF(places); p++) {
        if (stage < places[p].first_stage) continue;
        memset(&outcomes[1], 0, sizeof *outcomes);
        offload(&setting, &places[p], turn + (int)p);
        if (!ranks_run(world, NULL, training_body, &setting) ||
            memcmp(&outcomes[1], &outcomes[0], sizeof *outcomes) != 0)
            fail_msg("world %d, mode %d, stage %d, %d micro-batches, place %zu", world, mode, stage, setting.micros, p);
    }
    munmap(outcomes, 2 * sizeof *outcomes);
}

/* One, two and four ranks, every stage, with and without accumulation. */
static void test_same_bits_as_without_offload(void **state)
{
    (void)state;
    int turn = 0;
    for (int world = 1; world <= 4; world *= 2)
        for (int mode = 0; mode < MODES; mode++) {
            for (int stage = 1; stage <= 2; stage++, turn++)
                compare(world, mode, stage, mode_setting(mode, 1 + 2 * ((turn + stage) % 2), turn), turn);
            const int micros = world == 4 ? 3 : 1;
            compare(world, mode, 3, mode_setting(mode, micros, turn), turn);
            if (world < 4) compare(world, mode, 3, mode_setting(mode, 3, turn + 1), turn + 1);
        }
}

static void test_skipped_steps_and_state_from_outside(void **state)
{
    (void)state;
    for (int world = 1; world <= 2; world++)
        for (int mode = 0; mode < MODES; mode++)
            for (size_t p = 0; p < COUNT_OF(places); p++) {
                const int turn = world + mode + (int)p;
                struct setting setting = mode_setting(mode, 2, turn);
                setting.stage = 3;
                offload(&setting, &places[p], turn);
                if (!ranks_run(world, NULL, poison_body, &setting))
                    fail_msg("poison: world %d, mode %d, place %zu", world, mode, p);
                setting.micros = 1;
                if (!ranks_run(world, NULL, restart_body, &setting))
                    fail_msg("restart: world %d, mode %d, place %zu", world, mode, p);
            }
}

/* ---- memory -------------------------------------------------------------- */

/* Lays out a plan of one rank of a Llama whose embedding has 64 million elements, in bf16 at stage 3. */
static void lay_out(const struct zero_config *given, struct arena arenas[3], int64_t *own, int64_t *largest,
                    int64_t *disk)
{
    struct model_desc desc;
    struct tensor_table table;
    struct shard_layout layout;
    struct zero *zero;
    describe(false, &desc);
    desc.vocab_size = 125000;
    desc.hidden_size = 512;
    desc.intermediate_size = 1024;
    desc.head_dim = 256;
    tensor_table_build(&desc, &table);
    shard_layout_init(&layout, &table, 1);
    struct zero_config config = *given;
    config.zero.stage = 3;
    config.dtype = DTYPE_BF16;
    config.table = &table;
    config.layout = &layout;
    config.training = true;
    config.zero.offload_optimizer.ratio = 1;
    config.zero.offload_optimizer.buffer_count = 4;
    config.zero.offload_param.buffer_count = 5;
    config.zero.offload_param.buffer_size = 4 << 20;
    config.zero.offload_optimizer.nvme_path = config.zero.offload_param.nvme_path = folder;
    config.aio = (struct aio_settings){.block_size = 1 << 20, .queue_depth = 8};
    assert_int_equal(zero_new(&config, NULL, NULL, &zero, &error), STATUS_OK);
    for (int i = 0; i < 3; i++) arena_init_dry(&arenas[i]);
    zero_layout(zero, &arenas[0], &arenas[1], &arenas[2]);
    *own = layout.shard_numel;
    *largest = layout.slice[0];
    *disk = zero_disk_bytes(zero);
    zero_free(zero);
    shard_layout_release(&layout);
    tensor_table_release(&table);
}

/* The bytes of states and gradients leave the device for the host, and the host for the disk. */
static void test_bytes_a_parameter(void **state)
{
    (void)state;
    static const struct {
        struct zero_config config;
        size_t states, grads;
    } modes[] = {
        {{.tied = false}, 12, 4},
        {{.grad_dtype = DTYPE_BF16}, 12, 2},
        {{.grad_dtype = DTYPE_BF16, .master_dtype = DTYPE_BF16}, 10, 2},
        {{.master_dtype = DTYPE_BF16}, 10, 4},
        {{.grad_dtype = DTYPE_BF16, .master_dtype = DTYPE_BF16, .moment_dtype = DTYPE_BF16}, 6, 2},
    };
    const size_t piece = 2 << 20;
    for (size_t m = 0; m < COUNT_OF(modes); m++) {
        struct zero_config config = modes[m].config;
        struct arena arenas[3];
        int64_t own, largest, disk;
        const bool one_copy = config.master_dtype == DTYPE_BF16;
        config.zero.offload_optimizer.device = OFFLOAD_CPU;
        lay_out(&config, arenas, &own, &largest, &disk);
        assert_int_equal(arenas[2].by_kind[MEM_OPTIMIZER], (size_t)own * modes[m].states);
        assert_int_equal(arenas[2].by_kind[MEM_GRADS], (size_t)own * modes[m].grads);
        assert_int_equal(arenas[2].by_kind[MEM_COMM], one_copy ? 0 : 2 * piece * 2);
        assert_int_equal(arenas[0].by_kind[MEM_PARAMS], (size_t)own * 2);
        assert_int_equal(arenas[0].by_kind[MEM_OPTIMIZER] + arenas[0].by_kind[MEM_GRADS] + (size_t)disk, 0);

        config.zero.offload_optimizer.device = OFFLOAD_NVME;
        lay_out(&config, arenas, &own, &largest, &disk);
        const size_t buffers = piece * (4 * modes[m].states + 7 * modes[m].grads + 2 * 2);
        const size_t workspace = (size_t)largest * (one_copy ? 6 : 4); /* for the start and checkpoints */
        assert_in_range(arenas[2].by_kind[MEM_WORKSPACE], workspace, workspace + (16 << 10));
        assert_in_range(arenas[2].used - arenas[2].by_kind[MEM_WORKSPACE], buffers, buffers + (32 << 10));
        assert_in_range((size_t)disk, (size_t)own * (modes[m].states + modes[m].grads),
                        (size_t)own * (modes[m].states + modes[m].grads) + (256 << 10));

        config.zero.offload_param.device = OFFLOAD_NVME;
        lay_out(&config, arenas, &own, &largest, &disk);
        assert_in_range(arenas[2].by_kind[MEM_PARAMS], 5 * 2 * (4 << 20), 5 * 2 * (4 << 20) + 8192);
        assert_int_equal(arenas[0].by_kind[MEM_PARAMS], 0);
        assert_true((size_t)disk >= (size_t)own * (modes[m].states + modes[m].grads + 2));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_a_parameter),
        cmocka_unit_test(test_same_bits_as_without_offload),
        cmocka_unit_test(test_skipped_steps_and_state_from_outside),
    };
    return cmocka_run_group_tests_name("zero_offload_precision", tests, make_folder, remove_folder);
}
