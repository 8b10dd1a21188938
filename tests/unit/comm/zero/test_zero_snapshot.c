/* SPDX-License-Identifier: Apache-2.0 */
/* test_zero_snapshot.c: the copy of a rank's slices has the values of the step at which it was taken, while training
 * goes on and changes the slices. */
#include "tests/unit/fixtures/zero_case.h"

#include "core/thread.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>

#include <cmocka.h>

/* All slices, one after the other; the caller frees them. */
static float *gather_slices(const struct run *run, struct state_slices slices, size_t *bytes)
{
    float *all = malloc((size_t)zero_snapshot_bytes(run->zero)), *to = all;
    for (int kind = 0; kind < slices.count; kind++)
        for (int unit = 0; unit < run->layout.num_trained; unit++) {
            float *slice;
            CHECK_OK(state_slice(slices, SLICE_READ, (enum state_kind)kind, unit, &slice, &error));
            memcpy(to, slice, (size_t)run->layout.slice[unit] * sizeof *slice);
            to += run->layout.slice[unit];
        }
    *bytes = (size_t)((char *)to - (char *)all);
    CHECK(*bytes == (size_t)zero_snapshot_bytes(run->zero));
    return all;
}

static bool is_mlp(void *context, const struct tensor_info *tensor)
{
    (void)context;
    return tensor->role == ROLE_DOWN_W || tensor->role == ROLE_NORM2_W;
}

static void train(struct run *run, int step)
{
    struct zero_result result;
    begin_step(run, step);
    zero_begin_micro(run->zero, true);
    micro_batch(run, step, 0, false);
    CHECK_OK(finish_step(run, step, &result));
    reference_step(run, step);
}

/* A thread that compares the snapshot with the slices of its step again and again. */
struct reader {
    const struct run *run;
    const float *wanted;
    size_t bytes;
    atomic_bool end;
    int differences;
};

static void *read_snapshot(void *argument)
{
    struct reader *reader = argument;
    do {
        size_t bytes;
        float *got = gather_slices(reader->run, zero_snapshot(reader->run->zero), &bytes);
        reader->differences += memcmp(got, reader->wanted, bytes) != 0;
        free(got);
    } while (!atomic_load(&reader->end));
    return NULL;
}

static void *lay_out_snapshot(struct zero *zero)
{
    struct arena arena;
    arena_init_dry(&arena);
    zero_snapshot_layout(zero, &arena);
    CHECK(arena.used == 0);
    zero_keep_snapshot(zero, true);
    zero_snapshot_layout(zero, &arena);
    CHECK(zero_has_snapshot(zero) && arena.by_kind[MEM_SNAPSHOT] == arena.used);
    CHECK(arena.used >= (size_t)zero_snapshot_bytes(zero) &&
          arena.used < (size_t)zero_snapshot_bytes(zero) + ARENA_ALIGN);
    void *memory = aligned_alloc(ARENA_ALIGN, arena.used);
    memset(memory, 0xff, arena.used);
    arena_init(&arena, memory, arena.used);
    zero_snapshot_layout(zero, &arena);
    arena_finish(&arena);
    return memory;
}

static void snapshot_body(struct bootstrap *bootstrap, void *context)
{
    struct run run = {.rank = 0};
    struct reader reader = {.run = &run};
    pthread_t thread;
    run_open(&run, bootstrap, context);
    void *memory = lay_out_snapshot(run.zero);
    train(&run, 1);
    float *wanted = gather_slices(&run, zero_slices(run.zero), &reader.bytes);
    CHECK_OK(zero_take_snapshot(run.zero, &error));
    reader.wanted = wanted;
    CHECK(thread_start(&thread, 0, read_snapshot, &reader) == 0);
    train(&run, 2);
    train(&run, 3);
    atomic_store(&reader.end, true);
    pthread_join(thread, NULL);
    CHECK(reader.differences == 0);

    float *later = gather_slices(&run, zero_slices(run.zero), &reader.bytes);
    CHECK(memcmp(later, wanted, reader.bytes) != 0);
    CHECK_OK(zero_take_snapshot(run.zero, &error)); /* a second one takes the place of the first */
    float *second = gather_slices(&run, zero_snapshot(run.zero), &reader.bytes);
    CHECK(memcmp(later, second, reader.bytes) == 0);
    free(second);
    free(later);
    free(wanted);
    run_close(&run);
    free(memory);
}

static void test_a_snapshot_keeps_its_step(void **state)
{
    (void)state;
    struct outcome *outcome = ranks_memory(sizeof *outcome);
    for (int world = 1; world <= 2; world++)
        for (int stage = 0; stage <= 3; stage++)
            for (int kind = 0; kind < 3; kind++) {
                struct setting setting = {.stage = stage,
                                          .micros = 1,
                                          .tied = stage % 2,
                                          .overlap = true,
                                          .dtype = kind ? DTYPE_BF16 : DTYPE_F32,
                                          .muon = kind == 2,
                                          .frozen = world == 2 ? is_mlp : NULL,
                                          .outcome = outcome};
                if (!ranks_run(world, NULL, snapshot_body, &setting))
                    fail_msg("world %d, stage %d, kind %d", world, stage, kind);
            }
    munmap(outcome, sizeof *outcome);
}

static void test_a_snapshot_of_offloaded_state(void **state)
{
    (void)state;
    struct outcome *outcome = ranks_memory(sizeof *outcome);
    for (int world = 1; world <= 2; world++)
        for (int kind = 0; kind < 2; kind++) {
            struct setting setting = {.stage = 3,
                                      .micros = 1,
                                      .overlap = true,
                                      .dtype = kind ? DTYPE_BF16 : DTYPE_F32,
                                      .frozen = world == 2 ? is_mlp : NULL,
                                      .offload_param = OFFLOAD_CPU,
                                      .offload_optimizer = OFFLOAD_CPU,
                                      .outcome = outcome};
            if (!ranks_run(world, NULL, snapshot_body, &setting)) fail_msg("world %d, kind %d", world, kind);
        }
    munmap(outcome, sizeof *outcome);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_snapshot_keeps_its_step),
        cmocka_unit_test(test_a_snapshot_of_offloaded_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
