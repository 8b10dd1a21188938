/* SPDX-License-Identifier: Apache-2.0 */
/* test_zero_frozen.c: frozen tensors at every stage, with and without offload: they keep every bit, what is trained has
 * the bits of a run in which they have no gradients, and the plan has no bytes for them but their parameters. */
#include "tests/unit/fixtures/nvme_folder.h"
#include "tests/unit/fixtures/sample.h"
#include "tests/unit/fixtures/zero_case.h"

#include "comm/zero/zero_check.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* The last tensor of each kind of unit: the others keep their places. All of the embedding, so that it is empty. */
static bool is_last(void *context, const struct tensor_info *tensor)
{
    (void)context;
    return tensor->role == ROLE_WTE || tensor->role == ROLE_WPE || tensor->role == ROLE_DOWN_W ||
           tensor->role == ROLE_DOWN_B || tensor->role == ROLE_LM_HEAD || tensor->role == ROLE_FINAL_NORM_B;
}

/* Some tensors of some blocks, so that blocks differ, and all of one. */
static bool is_chosen(void *context, const struct tensor_info *tensor)
{
    (void)context;
    return !strncmp(tensor->name, "transformer.h.2.", 16) || !strncmp(tensor->name, "model.layers.2.", 15) ||
           tensor->role == ROLE_WTE || (tensor->role == ROLE_NORM2_W && tensor->unit == 2) || tensor->role == ROLE_O_W;
}

static float initial(const struct tensor_info *tensor, int64_t element, enum dtype dtype)
{
    return rounded(gradient(99, tensor->number, 0, 0, element), dtype);
}

static const float *value_at(const struct outcome *outcome, const struct tensor_table *table, int world,
                             enum state_kind kind, const struct tensor_info *tensor)
{
    struct shard_layout layout;
    shard_layout_init(&layout, table, world);
    const int64_t index = layout.shard_offset[tensor->unit] * world + tensor->offset;
    shard_layout_release(&layout);
    return &outcome->state[kind][index];
}

/* Frozen tensors have their initial values; the others those of `silent`, where the same tensors had no gradients.
 * silent NULL: only the former. */
static void compare(const struct setting *setting, int world, const struct outcome *frozen,
                    const struct outcome *silent)
{
    struct model_desc desc;
    struct tensor_table whole, table;
    describe(setting->tied, &desc);
    tensor_table_build(&desc, &whole);
    tensor_table_build(&desc, &table);
    tensor_table_freeze(&table, setting->frozen, NULL, NULL, 0);
    int frozen_tensors = 0;
    for (int t = 0; t < table.num_tensors; t++) {
        const struct tensor_info *tensor = &table.tensors[t];
        const float *values = value_at(frozen, &table, world, STATE_MASTER, tensor);
        frozen_tensors += tensor->frozen;
        for (int64_t i = 0; tensor->frozen && i < tensor->numel; i++)
            assert_true(values[i] == initial(tensor, i, setting->dtype));
        for (int kind = 0; kind < STATE_KIND_COUNT && silent && !tensor->frozen; kind++)
            assert_memory_equal(value_at(frozen, &table, world, kind, tensor),
                                value_at(silent, &whole, world, kind, &whole.tensors[tensor->number]),
                                (size_t)tensor->numel * sizeof(float));
    }
    assert_true(frozen_tensors > 3 && frozen_tensors < table.num_tensors);
    tensor_table_release(&whole);
    tensor_table_release(&table);
}

/* Where things are, and the stages that allow it. */
static const struct home {
    enum offload_device optimizer, params;
    int first_stage;
} homes[] = {{OFFLOAD_NONE, OFFLOAD_NONE, 0}, {OFFLOAD_CPU, OFFLOAD_NONE, 1}, {OFFLOAD_NVME, OFFLOAD_NONE, 1},
             {OFFLOAD_CPU, OFFLOAD_CPU, 3},   {OFFLOAD_NONE, OFFLOAD_CPU, 3}, {OFFLOAD_NVME, OFFLOAD_NVME, 3},
             {OFFLOAD_NONE, OFFLOAD_NVME, 3}, {OFFLOAD_CPU, OFFLOAD_NVME, 3}};

enum { FP32, BF16, FP16, BF16_STATES, MODES };

static struct setting setting_of(int mode, int stage, int turn)
{
    const enum dtype dtype = mode == FP32 ? DTYPE_F32 : mode == FP16 ? DTYPE_F16 : DTYPE_BF16;
    const enum dtype states = mode == BF16_STATES ? DTYPE_BF16 : DTYPE_F32;
    return (struct setting){.stage = stage,
                            .micros = 1 + turn % 2,
                            .tied = turn % 3 == 0,
                            .overlap = turn % 4 > 0,
                            .bucket = turn % 5 == 4 ? 1000 : 0,
                            .dtype = dtype,
                            .grad_dtype = mode == BF16_STATES ? DTYPE_BF16 : DTYPE_F32,
                            .master_dtype = states,
                            .moment_dtype = states,
                            .nvme = {.nvme_path = folder,
                                     .buffer_count = 1 + turn % 4,
                                     .buffer_size = turn % 3 ? 2048 : 1 << 20,
                                     .max_in_cpu = turn % 5 == 4 ? 2000 : 0,
                                     .pipeline_read = true},
                            .sub_group_size = turn % 2 ? 2048 : 0};
}

/* The volume of communication and the bytes of the plan are checked in training_body() as well. */
static void test_same_bits_as_without_gradients(void **state)
{
    (void)state;
    int turn = 0;
    struct outcome *outcomes = ranks_memory(2 * sizeof *outcomes);
    for (int world = 1; world <= 3; world++)
        for (int stage = 0; stage <= 3; stage++)
            for (int mode = 0; mode < MODES; mode++, turn++) {
                struct setting setting = setting_of(mode, stage, turn);
                memset(outcomes, 0, 2 * sizeof *outcomes);
                setting.unclipped = true; /* the norm adds up slice by slice, and slices differ */
                setting.outcome = &outcomes[1];
                setting.silent = is_last;
                assert_true(ranks_run(world, NULL, training_body, &setting));
                setting.outcome = &outcomes[0];
                setting.frozen = is_last;
                for (size_t h = (size_t)turn % sample_distance(3); h < COUNT_OF(homes); h += sample_distance(3)) {
                    if (stage < homes[h].first_stage) continue;
                    setting.offload_optimizer = homes[h].optimizer;
                    setting.offload_param = homes[h].params;
                    memset(&outcomes[0], 0, sizeof *outcomes);
                    if (!ranks_run(world, NULL, training_body, &setting))
                        fail_msg("world %d, stage %d, mode %d, home %d", world, stage, mode, (int)h);
                    compare(&setting, world, &outcomes[0], &outcomes[1]);
                }
            }
    munmap(outcomes, 2 * sizeof *outcomes);
}

/* The reference in double takes the steps as well; skipped steps, and state that is written from outside. */
static void test_blocks_that_differ(void **state)
{
    (void)state;
    int turn = 0;
    struct outcome *outcome = ranks_memory(sizeof *outcome);
    for (int world = 1; world <= 3; world++)
        for (int stage = 0; stage <= 3; stage++, turn++) {
            struct setting setting = setting_of(turn % 2 ? BF16 : FP32, stage, turn);
            const struct home *home = &homes[(size_t)turn % COUNT_OF(homes)];
            setting.frozen = is_chosen;
            setting.outcome = outcome;
            setting.offload_optimizer = stage < home->first_stage ? OFFLOAD_NONE : home->optimizer;
            setting.offload_param = stage < home->first_stage ? OFFLOAD_NONE : home->params;
            memset(outcome, 0, sizeof *outcome);
            if (!ranks_run(world, NULL, training_body, &setting))
                fail_msg("training: world %d, stage %d", world, stage);
            compare(&setting, world, outcome, NULL);
            setting.micros = 1;
            if (!ranks_run(world, NULL, restart_body, &setting)) fail_msg("restart: world %d, stage %d", world, stage);
            setting.offload_optimizer = setting.offload_param = OFFLOAD_NONE;
            setting.muon = turn % 2 == 0;
            if (setting.muon && !ranks_run(world, NULL, training_body, &setting))
                fail_msg("muon: world %d, stage %d", world, stage);
        }
    munmap(outcome, sizeof *outcome);
}

/* A base that is kept as bytes: each unit that is acquired has the values that they stand for, and what is trained is
 * the same in every stage and home. */
static void test_bytes_are_decoded(void **state)
{
    (void)state;
    static const struct stored_settings bases[] = {
        {.quantization = {.method = QUANTIZATION_NF4, .double_quant = true}, .plain = DTYPE_BF16},
        {.quantization = {.method = QUANTIZATION_FP8}, .plain = DTYPE_F32},
        {.plain = DTYPE_BF16},
        {.quantization = {.method = QUANTIZATION_NF4}, .weights = DTYPE_BF16, .plain = DTYPE_F32}};
    int turn = 0;
    struct outcome *outcome = ranks_memory(sizeof *outcome);
    for (int world = 1; world <= 3; world++)
        for (int stage = 0; stage <= 3; stage++)
            for (size_t h = 0; h < COUNT_OF(homes); h += 1 + (size_t)turn % sample_distance(2), turn++) {
                struct setting setting = setting_of(turn % 3 ? FP32 : BF16, stage, turn);
                if (stage < homes[h].first_stage) continue;
                setting.frozen = turn % 2 ? is_last : is_chosen;
                setting.stored = &bases[setting.dtype == DTYPE_BF16 ? 2 * (turn % 2) + 1 : turn % 4];
                setting.offload_optimizer = homes[h].optimizer;
                setting.offload_param = homes[h].params;
                setting.virtual_ranks = turn % 3 && turn % 5 == 0 ? 6 : 0;
                setting.outcome = outcome;
                if (!ranks_run(world, NULL, training_body, &setting))
                    fail_msg("world %d, stage %d, home %d, turn %d", world, stage, (int)h, turn);
                setting.micros = 1;
                setting.virtual_ranks = 0;
                if (turn % 3 == 0 && !ranks_run(world, NULL, restart_body, &setting))
                    fail_msg("restart: world %d, stage %d, home %d, turn %d", world, stage, (int)h, turn);
            }
    munmap(outcome, sizeof *outcome);
}

/* A step that is checked finds nothing; a changed bit of a frozen tensor is found: by the rank, or against its peers.
 */
static void checked_body(struct bootstrap *bootstrap, void *context)
{
    const struct setting *setting = context;
    struct run run = {.rank = 0};
    struct zero_check_result found;
    struct zero_result result;
    struct replica_difference difference;
    const double losses[2] = {1, 1};
    run_open(&run, bootstrap, setting);
    zero_check_enable(run.zero);
    for (int step = 1; step <= 2; step++) {
        CHECK_OK(zero_check_note(run.zero, &error));
        begin_step(&run, step);
        for (int pass = 0; pass < 2; pass++) {
            CHECK_OK(zero_check_pass(run.zero, pass, step, run.compute, &error));
            zero_begin_micro(run.zero, true);
            micro_batch(&run, step, 0, false);
        }
        const int frozen = run.table.units[2].frozen;
        char *byte = zero_slice(run.zero, STATE_MASTER, frozen);
        if (step == 2 && run.rank == 0) *byte ^= 1;
        CHECK_OK(zero_check_compare(run.zero, losses, run.compute, &found, &error));
        CHECK((found.finding == FINDING_NONE) == (step == 1));
        if (step == 2)
            CHECK(found.finding == FINDING_STATE && found.rank == 0 && found.tensor->frozen &&
                  found.tensor->unit == frozen);
        CHECK_OK(finish_step(&run, step, &result));
        reference_step(&run, step);
        CHECK_OK(zero_compare_replicas(run.zero, &difference, &error));
        CHECK((difference.rank >= 0) == (step == 2 && run.world > 1 && setting->stage < 3));
        CHECK(difference.rank < 0 || difference.unit == &run.table.units[frozen]);
    }
    run_close(&run);
}

static void test_a_changed_bit_is_found(void **state)
{
    (void)state;
    for (int world = 1; world <= 3; world++)
        for (int stage = 0; stage <= 3; stage++) {
            static const struct stored_settings base = {.plain = DTYPE_F16, .quantization.method = QUANTIZATION_NF4};
            struct setting setting = setting_of(stage % 2 ? BF16 : FP32, stage, 2 * world);
            setting.frozen = is_last;
            setting.stored = (stage + world) % 2 ? &base : NULL;
            if (!ranks_run(world, NULL, checked_body, &setting)) fail_msg("world %d, stage %d", world, stage);
        }
}

static void plan(const struct tensor_table *table, int world, int stage, enum dtype dtype, struct shard_layout *layout,
                 size_t by_kind[MEM_KIND_COUNT])
{
    struct arena arenas[3];
    struct zero *zero;
    shard_layout_init(layout, table, world);
    struct zero_config config = {
        .zero.stage = stage, .dtype = dtype, .table = table, .layout = layout, .training = true};
    assert_int_equal(zero_new(&config, NULL, NULL, &zero, &error), STATUS_OK);
    for (int i = 0; i < 3; i++) arena_init_dry(&arenas[i]);
    zero_layout(zero, &arenas[0], &arenas[1], &arenas[2]);
    for (int kind = 0; kind < MEM_KIND_COUNT; kind++) by_kind[kind] = arenas[0].by_kind[kind] + arenas[1].by_kind[kind];
    assert_int_equal(arenas[2].used, 0);
    zero_free(zero);
    shard_layout_release(layout);
}

/* What is frozen costs its parameters, and saves gradients and state: up to the padding of slices. */
static void test_bytes(void **state)
{
    (void)state;
    struct model_desc desc;
    struct tensor_table whole, table;
    describe(false, &desc);
    tensor_table_build(&desc, &whole);
    tensor_table_build(&desc, &table);
    tensor_table_freeze(&table, is_last, NULL, NULL, 0);
    assert_true(table.frozen_params > table.num_params / 4 && table.num_params == whole.num_params);
    for (int world = 1; world <= 8; world++)
        for (int stage = 0; stage <= 3; stage++)
            for (int bf16 = 0; bf16 < 2; bf16++) {
                struct shard_layout layout;
                size_t before[MEM_KIND_COUNT], after[MEM_KIND_COUNT];
                const enum dtype dtype = bf16 ? DTYPE_BF16 : DTYPE_F32;
                const int state_world = stage >= 1 ? world : 1, grad_world = stage >= 2 ? world : 1;
                const double state_bytes = bf16 ? 12 : 8, frozen = (double)table.frozen_params;
                const double padding = (double)(SHARD_ALIGN * world * table.num_units);
                plan(&whole, world, stage, dtype, &layout, before);
                plan(&table, world, stage, dtype, &layout, after);
                const double states = (double)before[MEM_OPTIMIZER] - (double)after[MEM_OPTIMIZER];
                const double grads = (double)before[MEM_GRADS] - (double)after[MEM_GRADS];
                const double params = (double)before[MEM_PARAMS] - (double)after[MEM_PARAMS];
                assert_true(fabs(states - state_bytes * frozen / state_world) <= state_bytes * padding / state_world);
                assert_true(fabs(grads - 4 * frozen / grad_world) <= 4 * padding / grad_world);
                assert_true(fabs(params) <= 4 * padding);
            }
    tensor_table_release(&whole);
    tensor_table_release(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_same_bits_as_without_gradients),
        cmocka_unit_test(test_blocks_that_differ),
        cmocka_unit_test(test_bytes_are_decoded),
        cmocka_unit_test(test_a_changed_bit_is_found),
    };
    return cmocka_run_group_tests_name("zero_frozen", tests, make_folder, remove_folder);
}
