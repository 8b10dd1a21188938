/* SPDX-License-Identifier: Apache-2.0 */
/* test_zero.c: ZeRO's stages, against AdamW on one machine in double, and against each other. */
#include "tests/unit/fixtures/zero_case.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void test_against_reference(void **state)
{
    (void)state;
    struct outcome *outcome = ranks_memory(sizeof *outcome);
    for (int world = 1; world <= 4; world++)
        for (int micros = 1; micros <= 3; micros++)
            for (int stage = 0; stage <= 3; stage++) {
                struct setting setting = {.stage = stage,
                                          .micros = micros,
                                          .tied = (world + micros + stage) % 2,
                                          .overlap = (micros + stage) % 3 > 0,
                                          .dtype = micros == 2 ? DTYPE_BF16 : DTYPE_F32,
                                          .bucket = world == 3 ? 1000 : 0,
                                          .outcome = outcome};
                if (!ranks_run(world, NULL, training_body, &setting))
                    fail_msg("world %d, %d micro-batches, stage %d", world, micros, stage);
            }
    munmap(outcome, sizeof *outcome);
}

static void test_stages_agree_bit_for_bit(void **state)
{
    (void)state;
    struct outcome *outcomes = ranks_memory(4 * sizeof *outcomes);
    for (int kind = 0; kind < 4; kind++) {
        for (int stage = 0; stage <= 3; stage++) {
            struct setting setting = {.stage = stage,
                                      .micros = 1,
                                      .tied = kind & 1,
                                      .overlap = stage != 1,
                                      .dtype = kind & 2 ? DTYPE_BF16 : DTYPE_F32,
                                      .bucket = stage == 2 ? 500 : 0,
                                      .outcome = &outcomes[stage]};
            memset(&outcomes[stage], 0, sizeof *outcomes);
            assert_true(ranks_run(3, NULL, training_body, &setting));
            assert_memory_equal(&outcomes[stage], &outcomes[0], sizeof *outcomes);
        }
        assert_true(outcomes[0].norms[0] > 0 && outcomes[0].state[STATE_EXP_AVG_SQ][0] > 0);
    }
    munmap(outcomes, 4 * sizeof *outcomes);
}

/* Stages 0 and 1 add up a rank's micro-batches and reduce once; stages 2 and 3 reduce each micro-batch. */
static void test_stages_agree_in_pairs_with_accumulation(void **state)
{
    (void)state;
    struct outcome *outcomes = ranks_memory(4 * sizeof *outcomes);
    for (int kind = 0; kind < 2; kind++) {
        for (int stage = 0; stage <= 3; stage++) {
            struct setting setting = {.stage = stage,
                                      .micros = 3,
                                      .tied = kind == 0,
                                      .overlap = stage != 3,
                                      .dtype = kind ? DTYPE_BF16 : DTYPE_F32,
                                      .outcome = &outcomes[stage]};
            memset(&outcomes[stage], 0, sizeof *outcomes);
            assert_true(ranks_run(3, NULL, training_body, &setting));
        }
        assert_memory_equal(&outcomes[1], &outcomes[0], sizeof *outcomes);
        assert_memory_equal(&outcomes[3], &outcomes[2], sizeof *outcomes);
        /* the two pairs agree to rounding, not bit for bit */
        assert_memory_not_equal(&outcomes[2], &outcomes[0], sizeof *outcomes);
        for (int step = 0; step < STEPS; step++)
            assert_true(fabs(outcomes[2].norms[step] / outcomes[0].norms[step] - 1) < 1e-6);
        for (int i = 0; i < MAX_ELEMENTS; i++)
            assert_true(fabsf(outcomes[2].state[STATE_EXP_AVG][i] - outcomes[0].state[STATE_EXP_AVG][i]) < 1e-5f);
    }
    munmap(outcomes, 4 * sizeof *outcomes);
}

/* Virtual ranks: every stage at every world gives the same bits. */
static void test_virtual_ranks_agree_bit_for_bit(void **state)
{
    (void)state;
    enum { VIRTUAL = 4, KINDS = 5 };
    struct outcome *outcomes = ranks_memory(2 * sizeof *outcomes);
    for (int kind = 0; kind < KINDS; kind++)
        for (int world = 1; world <= VIRTUAL; world *= 2)
            for (int stage = 0; stage <= 3; stage++) {
                const bool first = world == 1 && stage == 0;
                struct setting setting = {.stage = stage,
                                          .micros = 1 + kind % 3,
                                          .virtual_ranks = VIRTUAL,
                                          .tied = kind & 1,
                                          .overlap = stage != 1,
                                          .dtype = kind & 2 ? DTYPE_BF16 : DTYPE_F32,
                                          .bucket = stage == 2 ? 500 : 0,
                                          .comm_dtype = kind == 3   ? DTYPE_BF16
                                                        : kind == 4 ? DTYPE_F16
                                                                    : DTYPE_F32,
                                          .comm_factor = kind == 4 ? VIRTUAL : 0,
                                          .muon = kind == 2,
                                          .outcome = &outcomes[!first]};
                if (kind == 1 && stage > 0) setting.offload_optimizer = OFFLOAD_CPU;
                if (kind == 1 && stage == 3) setting.offload_param = OFFLOAD_CPU;
                memset(setting.outcome, 0, sizeof *outcomes);
                assert_true(ranks_run(world, NULL, training_body, &setting));
                if (!first && memcmp(&outcomes[1], &outcomes[0], sizeof *outcomes) != 0)
                    fail_msg("kind %d: world %d at stage %d differs", kind, world, stage);
            }
    munmap(outcomes, 2 * sizeof *outcomes);
}

/* ---- replicas ------------------------------------------------------------ */

/* One training step, then one bit of one rank's copy is flipped. */
static void replicas_body(struct bootstrap *bootstrap, void *context)
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

    const bool parallel = run.world > 1;
    const struct unit_info *unit = &run.table.units[2];
    const struct tensor_info *tensor = &run.table.tensors[unit->first_tensor + 3];
    struct unit_params params;
    CHECK_OK(run.verbs->acquire(run.verbs->self, 2, PASS_FORWARD, run.compute, &params, &error));
    unsigned char *byte =
        (unsigned char *)params.trained[0] + (size_t)(tensor->offset + 5) * dtype_size(setting->dtype);
    if (run.rank == run.world - 1) *byte ^= 1;
    CHECK_OK(zero_compare_replicas(run.zero, &difference, &error));
    const bool compared = parallel && setting->stage <= 2; /* at stage 3 there are no copies */
    CHECK(difference.rank == (compared ? run.world - 1 : -1));
    if (compared)
        CHECK(difference.other == 0 && difference.majority == (run.world > 2) && difference.tensor == tensor &&
              difference.unit == unit && !strcmp(difference.what, "parameters"));
    if (run.rank == run.world - 1) *byte ^= 1;
    let_go(&run, 2, PASS_FORWARD);

    /* only stage 0 has copies of the optimizer's state; rank 0's copy is wrong if a majority differs from it */
    float *own = zero_slice(run.zero, STATE_EXP_AVG_SQ, 1);
    if (run.rank == 0) own[0] += 1;
    CHECK_OK(zero_compare_replicas(run.zero, &difference, &error));
    CHECK((difference.rank >= 0) == (parallel && setting->stage == 0));
    if (difference.rank >= 0)
        CHECK(difference.rank == (run.world > 2 ? 0 : 1) && !strcmp(difference.what, "exp_avg_sq") &&
              difference.unit == &run.table.units[1]);
    run_close(&run);
}

static void test_a_flipped_bit_of_a_replica_is_found(void **state)
{
    (void)state;
    for (int world = 1; world <= 3; world++)
        for (int stage = 0; stage <= 3; stage++) {
            struct setting setting = {.stage = stage,
                                      .micros = 1,
                                      .tied = true,
                                      .overlap = true,
                                      .dtype = world == 2 ? DTYPE_BF16 : DTYPE_F32};
            if (!ranks_run(world, NULL, replicas_body, &setting)) fail_msg("world %d, stage %d", world, stage);
        }
}

/* ---- non-finite gradients ------------------------------------------------ */

static void test_non_finite_is_named_and_skipped(void **state)
{
    (void)state;
    struct setting setting = {.tied = true, .overlap = true, .dtype = DTYPE_F32};
    for (int world = 1; world <= 3; world += 2)
        for (int stage = 0; stage <= 3; stage++) {
            setting.stage = stage;
            setting.micros = 1 + stage % 2;
            if (!ranks_run(world, NULL, poison_body, &setting)) fail_msg("world %d, stage %d", world, stage);
        }
}

/* ---- restart, and a peer's death ----------------------------------------- */

static void test_restart(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            struct setting setting = {
                .stage = stage, .micros = 1, .overlap = true, .dtype = bf16 ? DTYPE_BF16 : DTYPE_F32};
            assert_true(ranks_run(2, NULL, restart_body, &setting));
        }
}

/* One micro-batch and the end of the step, until something fails. */
static enum status try_step(struct run *run, int step)
{
    int head = run->table.num_units - 1;
    begin_step(run, step);
    zero_begin_micro(run->zero, true);
    for (int u = 0; u <= head; u++) {
        struct unit_params params;
        TRY(run->verbs->acquire(run->verbs->self, u, PASS_FORWARD, run->compute, &params, &error));
        run->verbs->release(run->verbs->self, u, PASS_FORWARD, run->compute);
    }
    for (int u = head; u >= 0; u--) {
        struct unit_grads to;
        TRY(run->verbs->grads(run->verbs->self, u, run->compute, &to, &error));
        memset(to.grads[0], 0, (size_t)run->table.units[u].numel * sizeof *to.grads[0]);
        TRY(run->verbs->grads_ready(run->verbs->self, u, run->compute, &error));
    }
    struct zero_result result;
    return finish_step(run, step, &result);
}

/* Rank 1 dies at once, or (in test builds) in the middle of a collective; the other rank names it. */
static void death_body(struct bootstrap *bootstrap, void *context)
{
    const struct setting *setting = context;
    struct run run = {.rank = 0};
    run_open(&run, bootstrap, setting);
    if (run.rank == 1 && !getenv("ZTRAIN_COMM_FAULT")) raise(SIGKILL);
    enum status status = STATUS_OK;
    for (int step = 1; step <= 5 && status == STATUS_OK; step++) status = try_step(&run, step);
    CHECK(status == STATUS_PEER && strstr(error.text, "rank 1 on here"));
    run_close(&run);
}

static void one_death(const struct setting *setting)
{
    struct ranks ranks;
    struct setting copy = *setting;
    ranks_start(&ranks, 2, NULL, death_body, &copy);
    assert_int_equal(ranks_wait(&ranks, 0), 0);
    assert_true(WIFSIGNALED(ranks_wait(&ranks, 1)));
    ranks_end(&ranks);
}

static void test_peer_dies_in_a_step(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        struct setting setting = {.stage = stage, .micros = 1, .overlap = true, .dtype = DTYPE_F32};
        one_death(&setting);
#ifdef ZTRAIN_FAULTS /* fp32: zero_params_changed() itself has at most 15 operations */
        static const char *const faults[] = {"1:17:9", "1:20:9", "1:24:9", "1:30:9"};
        for (size_t i = 0; i < COUNT_OF(faults); i++) {
            setenv("ZTRAIN_COMM_FAULT", faults[i], 1);
            one_death(&setting);
        }
        unsetenv("ZTRAIN_COMM_FAULT");
#endif
    }
}

/* ---- the plan ------------------------------------------------------------ */

static size_t planned(const struct arena arenas[2], enum mem_kind kind)
{
    return arenas[0].by_kind[kind] + arenas[1].by_kind[kind];
}

/* The bytes of each kind equal the formulas, applied to padded parameters; the shard layout gives the padding. */
static void test_bytes(void **state)
{
    (void)state;
    struct model_desc desc;
    struct tensor_table table;
    for (int tied = 0; tied < 2; tied++)
        for (int world = 1; world <= 8; world++)
            for (int stage = 0; stage <= 3; stage++)
                for (int bf16 = 0; bf16 < 2; bf16++) {
                    describe(tied, &desc);
                    struct shard_layout layout;
                    struct zero *zero;
                    struct arena arenas[3];
                    tensor_table_build(&desc, &table);
                    shard_layout_init(&layout, &table, world);
                    struct zero_config config = {.zero.stage = stage,
                                                 .dtype = bf16 ? DTYPE_BF16 : DTYPE_F32,
                                                 .table = &table,
                                                 .layout = &layout,
                                                 .tied = tied,
                                                 .training = true};
                    assert_int_equal(zero_new(&config, NULL, NULL, &zero, &error), STATUS_OK);
                    arena_init_dry(&arenas[0]);
                    arena_init_dry(&arenas[1]);
                    arena_init_dry(&arenas[2]);
                    zero_layout(zero, &arenas[0], &arenas[1], &arenas[2]);
                    assert_int_equal(arenas[2].used, 0);
                    size_t own = (size_t)layout.shard_numel, whole = own * (size_t)world;
                    size_t size = bf16 ? 2 : 4, optimizer = bf16 ? 12 : 8;
                    assert_int_equal(planned(arenas, MEM_PARAMS), size * (stage == 3 ? own : whole));
                    assert_int_equal(planned(arenas, MEM_GRADS), 4 * (stage >= 2 ? own : whole));
                    assert_int_equal(planned(arenas, MEM_OPTIMIZER), optimizer * (stage >= 1 ? own : whole));
                    if (world == 1) {
                        assert_int_equal(planned(arenas, MEM_COMM), 0);
                        assert_int_equal(arenas[1].used, 0);
                    } else if (stage == 3) { /* no buffer has the whole model */
                        assert_true(planned(arenas, MEM_COMM) < (size + 4) * whole);
                    } else if (stage < 2) {
                        assert_int_equal(planned(arenas, MEM_COMM), 0);
                    }
                    zero_free(zero);
                    shard_layout_release(&layout);
                    tensor_table_release(&table);
                }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_against_reference),
        cmocka_unit_test(test_stages_agree_bit_for_bit),
        cmocka_unit_test(test_virtual_ranks_agree_bit_for_bit),
        cmocka_unit_test(test_stages_agree_in_pairs_with_accumulation),
        cmocka_unit_test(test_a_flipped_bit_of_a_replica_is_found),
        cmocka_unit_test(test_non_finite_is_named_and_skipped),
        cmocka_unit_test(test_restart),
        cmocka_unit_test(test_peer_dies_in_a_step),
    };
    return cmocka_run_group_tests_name("zero", tests, NULL, NULL);
}
