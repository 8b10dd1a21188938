/* SPDX-License-Identifier: Apache-2.0 */
/* test_comm_log.c: the log of collectives over shared memory and over TCP: bytes and calls are those of the operations,
 * and a rank that is late is named. */
#include "tests/unit/fixtures/one_op.h"
#include "tests/unit/fixtures/ranks.h"

#include "comm/comm_log.h"
#include "gpu/open/device_open.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { WORLD = 3, SLOW = 1, UNITS = 4, ROUNDS = 3, COUNT = 1000, LATE_MS = 300 };

static struct error error;

struct logged {
    struct comm *comm;
    struct device *device;
    struct stream *stream;
    int64_t told; /* operations that config.each was called for */
};

static void count_op(void *context, const struct comm_log_row *op)
{
    struct logged *l = context;
    CHECK(op->bytes > 0 && op->seconds >= 0);
    l->told++;
}

static void open_logged(struct logged *l, struct bootstrap *boot, bool reduces, int most)
{
    struct comm_config config = {.timeout_seconds = 60};
    CHECK_OK(comm_open(boot, &config, &l->comm, &error));
    CHECK_OK(device_open(DEVICE_CPU, 0, 1, &l->device, &error));
    CHECK_OK(stream_new(l->device, STREAM_COMM, &l->stream, &error));
    const struct comm_log_config log = {
        .units = UNITS, .all_gather = true, .reduce_scatter = reduces, .each = count_op, .context = l, .most = most};
    CHECK_OK(comm_log_start(l->comm, l->device, &log, &error));
}

static void close_logged(struct logged *l)
{
    comm_log_stop(l->comm);
    stream_free(l->stream);
    device_close(l->device);
    comm_close(l->comm);
}

/* A gather of the parameters of unit 2 and a reduction of its gradients, then reports of no unit. */
static void one_round(struct logged *l, float *all, float *own)
{
    const struct data_op reports = {.send = own, .recv = all, .count = 1, .purpose = COMM_REPORTS, .unit = -1};
    const struct data_op gradients = {
        .send = all, .recv = own, .count = COUNT / 2, .stride = COUNT, .purpose = COMM_GRADIENTS, .unit = 2};
    comm_all_gather(l->comm,
                    &(struct data_op){.send = own, .recv = all, .count = COUNT, .purpose = COMM_PARAMETERS, .unit = 2},
                    l->stream);
    comm_reduce_scatter(l->comm, &gradients, l->stream);
    comm_all_gather(l->comm, &reports, l->stream);
    stream_sync(l->stream);
}

static void late_rank(struct bootstrap *boot, void *context)
{
    static float all[WORLD * COUNT], own[COUNT];
    const struct timespec pause = {.tv_nsec = LATE_MS * 1000 * 1000};
    const struct comm_log_row *rows;
    const struct comm_log_rank *ranks;
    struct logged l = {0};
    int64_t skipped;
    (void)context;
    open_logged(&l, boot, true, 0);
    for (int i = 0; i < ROUNDS; i++) {
        if (boot->rank == SLOW) nanosleep(&pause, NULL);
        one_round(&l, all, own);
        CHECK_OK(comm_log_share(l.comm, i == ROUNDS - 1, &error));
    }
    CHECK(comm_log_read(l.comm, &rows, &ranks, &skipped) == 3 && skipped == 0 && l.told == 3 * ROUNDS);
    const struct comm_log_row expected[] = {
        {"all_gather", COMM_PARAMETERS, 2, ROUNDS, (int64_t)ROUNDS * WORLD * COUNT * 4, 0, 0},
        {"all_gather", COMM_REPORTS, -1, ROUNDS, (int64_t)ROUNDS * WORLD * 4, 0, 0},
        {"reduce_scatter", COMM_GRADIENTS, 2, ROUNDS, (int64_t)ROUNDS * WORLD * (COUNT / 2) * 4, 0, 0}};
    int64_t last = 0;
    for (size_t i = 0; i < COUNT_OF(expected); i++) {
        CHECK(!strcmp(rows[i].collective, expected[i].collective) && rows[i].purpose == expected[i].purpose);
        CHECK(rows[i].unit == expected[i].unit && rows[i].calls == ROUNDS && rows[i].bytes == expected[i].bytes);
        CHECK(rows[i].waited >= 0 && rows[i].seconds >= rows[i].waited);
    }
    for (int r = 0; r < WORLD; r++) {
        last += ranks[r].last;
        CHECK(r == SLOW || ranks[r].caused < ranks[SLOW].caused);
        CHECK(r == SLOW || ranks[r].waited > ranks[SLOW].waited);
    }
    CHECK(last == 3 * ROUNDS && ranks[SLOW].last >= 1);
    CHECK(rows[0].waited > 0.25 * ROUNDS * LATE_MS * 1e-3 * (WORLD - 1) / WORLD);
    close_logged(&l);
}

static void test_late_rank_is_named(void **state)
{
    static const int two_nodes[] = {0, 0, 1};
    (void)state;
    assert_true(ranks_run(WORLD, NULL, late_rank, NULL));
    assert_true(ranks_run(WORLD, two_nodes, late_rank, NULL));
}

/* More operations than are kept between two comparisons: the others are counted, the same ones on all ranks. */
static void many_operations(struct bootstrap *boot, void *context)
{
    static float all[WORLD * COUNT], own[COUNT];
    const struct comm_log_row *rows;
    const struct comm_log_rank *ranks;
    enum { KEPT = 100, MORE = 10 };
    struct logged l = {0};
    int64_t skipped;
    (void)context;
    open_logged(&l, boot, false, KEPT);
    for (int i = 0; i < KEPT + MORE; i++)
        comm_all_gather(l.comm, &(struct data_op){.send = own, .recv = all, .count = 1}, l.stream);
    one_round(&l, all, own);
    CHECK_OK(comm_log_share(l.comm, true, &error));
    one_round(&l, all, own); /* reductions are not recorded */
    CHECK_OK(comm_log_share(l.comm, true, &error));
    CHECK(comm_log_read(l.comm, &rows, &ranks, &skipped) == 3 && skipped == MORE + 2);
    CHECK(rows[0].purpose == COMM_OTHER && rows[0].calls == KEPT);
    CHECK(rows[1].purpose == COMM_PARAMETERS && rows[1].calls == 1 && l.told == KEPT + 2);
    close_logged(&l);
}

static void test_bounded_memory(void **state)
{
    (void)state;
    assert_true(ranks_run(2, NULL, many_operations, NULL));
}

static void alone(struct bootstrap *boot, void *context)
{
    static float all[WORLD * COUNT], own[COUNT];
    const struct comm_log_row *rows;
    const struct comm_log_rank *ranks;
    struct logged l = {0};
    int64_t skipped = 1;
    (void)context;
    open_logged(&l, boot, true, 0);
    one_round(&l, all, own);
    CHECK_OK(comm_log_share(l.comm, true, &error));
    CHECK(comm_log_read(l.comm, &rows, &ranks, &skipped) == 0 && skipped == 0);
    close_logged(&l);
}

static void test_one_rank(void **state)
{
    (void)state;
    assert_true(ranks_run(1, NULL, alone, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_late_rank_is_named),
        cmocka_unit_test(test_bounded_memory),
        cmocka_unit_test(test_one_rank),
    };
    return cmocka_run_group_tests_name("comm_log", tests, NULL, NULL);
}
