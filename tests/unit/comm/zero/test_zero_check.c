/* SPDX-License-Identifier: Apache-2.0 */
/* test_zero_check.c: a step computed twice: planted flips are found and their rank named, at every stage. */
#include "tests/unit/fixtures/zero_case.h"

#include "comm/zero/zero_check.h"
#include "comm/zero/zero_internal.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum flip { FLIP_NONE, FLIP_GRADIENT, FLIP_LOSS, FLIP_PARAM, FLIP_MASTER, FLIP_MOMENT, FLIP_KINDS };

/* What a collective got wrong: test_flips_of_collectives(). */
enum { FLIP_GATHERED = FLIP_KINDS, FLIP_REDUCED };

struct check_case {
    struct setting setting;
    int flip; /* enum flip, or of a collective */
    int rank; /* that has it */
};

static void flip_state(struct run *run, int flip)
{
    const int64_t own = zero_own(run->zero, 2);
    unsigned char *byte = (unsigned char *)zero_param(run->zero, 2, own);
    if (flip == FLIP_MASTER) byte = zero_slice(run->zero, STATE_MASTER, 2);
    if (flip == FLIP_MOMENT) byte = zero_slice(run->zero, STATE_EXP_AVG_SQ, 2);
    *byte ^= 1;
}

/* Flips a bit of the gradient of the unit's fourth tensor. */
static void flip_gradient(struct run *run, int unit)
{
    struct unit_grads to;
    CHECK_OK(run->verbs->grads(run->verbs->self, unit, run->compute, &to, &error));
    *(unsigned char *)&to.grads[0][run->table.tensors[run->table.units[unit].first_tensor + 3].offset + 5] ^= 1;
}

static const struct zero_observer *real_observer; /* of this rank's process */

static enum status flip_gathered(struct zero *zero, int unit, const char *params, struct error *err)
{
    if (unit == 2) {
        stream_sync(zero->stream); /* the collective may still be writing */
        *(unsigned char *)(uintptr_t)params ^= 1;
    }
    return real_observer->gathered(zero, unit, params, err);
}

static enum status flip_reduced(struct zero *zero, int unit, const void *slice, struct error *err)
{
    if (unit == 2) {
        stream_sync(zero->stream); /* the collective may still be writing */
        *(unsigned char *)(uintptr_t)slice ^= 1;
    }
    return real_observer->reduced(zero, unit, slice, err);
}

/* From now on a collective of unit 2 leaves a wrong bit. */
static void flip_collective(struct run *run, int flip)
{
    static struct zero_observer planted;
    real_observer = run->zero->observer;
    planted = *real_observer;
    if (flip == FLIP_GATHERED)
        planted.gathered = flip_gathered;
    else
        planted.reduced = flip_reduced;
    run->zero->observer = &planted;
}

/* A micro-batch that does not compare the parameters with the reference: they may be flipped. */
static void gradients_only(struct run *run, int micro, bool flip)
{
    for (int u = run->table.num_units - 1; u >= 0; u--) {
        struct unit_params params;
        CHECK_OK(run->verbs->acquire(run->verbs->self, u, PASS_BACKWARD, run->compute, &params, &error));
        give_grads(run, 2, micro, u, 0, tensors_of(run, u));
        if (flip && u == 2) flip_gradient(run, u);
        let_go(run, u, PASS_BACKWARD);
        ready(run, u);
    }
}

static void whole_step(struct run *run, int step)
{
    struct zero_result result;
    begin_step(run, step);
    for (int micro = 0; micro < run->setting->micros; micro++) {
        zero_begin_micro(run->zero, micro == run->setting->micros - 1);
        micro_batch(run, step, micro, false);
    }
    CHECK_OK(finish_step(run, step, &result));
}

/* Step 2, checked. */
static void checked_step(struct run *run, const struct check_case *c, struct zero_check_result *verdict)
{
    const bool here = run->rank == c->rank;
    double losses[2] = {1.5, 1.5};
    CHECK_OK(zero_check_note(run->zero, &error));
    begin_step(run, 2);
    for (int pass = 0; pass < 2; pass++) {
        CHECK_OK(zero_check_pass(run->zero, pass, 2, run->compute, &error));
        if (here && pass == 0 && c->flip >= FLIP_PARAM && c->flip < FLIP_KINDS) flip_state(run, c->flip);
        if (here && pass == (c->flip == FLIP_REDUCED) && c->flip >= FLIP_KINDS) flip_collective(run, c->flip);
        for (int micro = 0; micro < c->setting.micros; micro++) {
            zero_begin_micro(run->zero, micro == c->setting.micros - 1);
            gradients_only(run, micro, here && pass == 1 && micro == 0 && c->flip == FLIP_GRADIENT);
        }
    }
    if (here && c->flip == FLIP_LOSS) losses[1] += 1e-15;
    CHECK_OK(zero_check_compare(run->zero, losses, run->compute, verdict, &error));
    CHECK(!zero_check_is_noted(run->zero));
}

static void check_found(const struct run *run, const struct check_case *c, const struct zero_check_result *v)
{
    const bool one_copy = c->setting.dtype == DTYPE_F32;
    const bool split = c->flip == FLIP_GATHERED && run->world == 2; /* nobody knows which of two is right */
    CHECK(v->rank == c->rank && v->ranks == 1 + split && v->other == (split ? 0 : -1));
    if (c->flip == FLIP_LOSS) {
        CHECK(v->finding == FINDING_LOSS && !v->unit && !v->tensor);
        return;
    }
    if (c->flip >= FLIP_KINDS) {
        CHECK(v->finding == (split ? FINDING_SPLIT : c->flip == FLIP_GATHERED ? FINDING_GATHERED : FINDING_REDUCED));
        CHECK(v->unit == &run->table.units[2] && !v->tensor);
        return;
    }
    CHECK(v->unit == &run->table.units[2] && v->tensor);
    if (c->flip == FLIP_GRADIENT) {
        CHECK(v->finding == FINDING_GRADIENTS && v->tensor == &run->table.tensors[v->unit->first_tensor + 3]);
        return;
    }
    CHECK(v->finding == FINDING_STATE);
    CHECK(!strcmp(v->what, c->flip == FLIP_PARAM || (c->flip == FLIP_MASTER && one_copy) ? "parameters"
                           : c->flip == FLIP_MASTER                                      ? "master"
                                                                                         : "exp_avg_sq"));
    CHECK(v->tensor == tensor_at(&run->table, 2, run->layout.slice[2] * c->rank));
}

static void check_body(struct bootstrap *bootstrap, void *context)
{
    const struct check_case *c = context;
    struct run run = {.rank = 0};
    struct zero_check_result verdict;
    run_open(&run, bootstrap, &c->setting);
    zero_check_enable(run.zero);
    whole_step(&run, 1);
    checked_step(&run, c, &verdict);
    if (c->flip == FLIP_NONE) {
        struct zero_result result;
        CHECK(verdict.finding == FINDING_NONE && verdict.rank == -1);
        CHECK_OK(finish_step(&run, 2, &result));
        c->setting.outcome->norms[run.rank] = result.grad_norm;
    } else {
        check_found(&run, c, &verdict);
    }
    run_close(&run);
}

static void run_case(const struct check_case *c, int world)
{
    if (!ranks_run(world, NULL, check_body, (void *)(uintptr_t)c))
        fail_msg("world %d, stage %d, flip %d, dtype %d, micros %d", world, c->setting.stage, c->flip,
                 (int)c->setting.dtype, c->setting.micros);
}

static void test_flips_are_found(void **state)
{
    (void)state;
    struct outcome *outcome = ranks_memory(sizeof *outcome);
    for (int stage = 0; stage <= 3; stage++)
        for (int flip = FLIP_NONE; flip < FLIP_KINDS; flip++) {
            const int world = stage == 2 ? 3 : 2;
            const struct check_case c = {{.stage = stage,
                                          .micros = 1 + flip % 2,
                                          .tied = false,
                                          .overlap = true,
                                          .dtype = stage % 2 ? DTYPE_BF16 : DTYPE_F32,
                                          .outcome = outcome},
                                         .flip = flip,
                                         .rank = world - 1};
            run_case(&c, world);
        }
    munmap(outcome, sizeof *outcome);
}

static void test_flips_alone_and_with_offload(void **state)
{
    (void)state;
    struct outcome *outcome = ranks_memory(sizeof *outcome);
    for (int flip = FLIP_NONE; flip < FLIP_KINDS; flip++) {
        const struct check_case alone = {
            {.stage = 1, .micros = 2, .dtype = DTYPE_BF16, .overlap = true, .outcome = outcome}, .flip = flip};
        struct check_case offload = {{.stage = 3,
                                      .micros = 2,
                                      .dtype = flip % 2 ? DTYPE_BF16 : DTYPE_F32,
                                      .overlap = true,
                                      .offload_param = OFFLOAD_CPU,
                                      .offload_optimizer = OFFLOAD_CPU,
                                      .outcome = outcome},
                                     .flip = flip,
                                     .rank = 1};
        run_case(&alone, 1);
        run_case(&offload, 2);
    }
    munmap(outcome, sizeof *outcome);
}

/* The rank's gradients agree, and its parameters in memory: it is what came over the wire that differs. */
static void test_flips_of_collectives(void **state)
{
    (void)state;
    struct outcome *outcome = ranks_memory(sizeof *outcome);
    for (int stage = 1; stage <= 3; stage++)
        for (int flip = stage == 3 ? FLIP_GATHERED : FLIP_REDUCED; flip <= FLIP_REDUCED; flip++) {
            const struct check_case c = {
                {.stage = stage, .micros = 2, .dtype = DTYPE_BF16, .overlap = true, .outcome = outcome},
                .flip = flip,
                .rank = 1};
            run_case(&c, 3);
            if (flip == FLIP_GATHERED) run_case(&c, 2);
        }
    munmap(outcome, sizeof *outcome);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flips_are_found),
        cmocka_unit_test(test_flips_alone_and_with_offload),
        cmocka_unit_test(test_flips_of_collectives),
    };
    return cmocka_run_group_tests_name("zero_check", tests, NULL, NULL);
}
