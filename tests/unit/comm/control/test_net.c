/* SPDX-License-Identifier: Apache-2.0 */
/* test_net.c: the data connections without agents. Two threads play two ranks, each with its own control block, as on
 * two nodes. */
#include "comm/control/net.h"

#include "core/clock.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static struct error error;

/* One end of the connections. */
struct end {
    int rank;
    struct control *control;
    int memory;
    struct net *net;
    struct control_op op;
    struct net_part parts[8];
    int count;
    enum status status;
    pthread_t thread;
};

static void ends_open(struct end ends[2], int buffer)
{
    const struct rank_place places[2] = {{.node = 0, .host = "first", .pid = getpid()},
                                         {.node = 1, .host = "second", .pid = getpid()}};
    const struct control_shape shape = {.world = 2, .local_world = 1, .num_nodes = 2, .places = places};
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    for (int r = 0; r < 2; r++) {
        struct end *end = &ends[r];
        *end = (struct end){.rank = r, .op = {.kind = OP_ALL_GATHER, .dtype = 1, .count = 7}};
        assert_int_equal(control_create(&shape, &end->memory, &error), STATUS_OK);
        assert_int_equal(control_attach(end->memory, r, 2, places[r].host, 2, &end->control, &error), STATUS_OK);
        if (buffer) setsockopt(fds[r], SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
        end->net = net_new(end->control, 2);
        net_connect(end->net, 1 - r, fds[r]);
    }
}

static void ends_close(struct end ends[2])
{
    for (int r = 1; r >= 0; r--) { /* in reverse order, so that the progress counter is restored */
        net_free(ends[r].net);
        control_detach(ends[r].control);
        close(ends[r].memory);
    }
}

static void *transfer(void *argument)
{
    struct end *end = argument;
    end->status = net_transfer(end->net, end->parts, end->count);
    return NULL;
}

static void *run(void *argument)
{
    struct end *end = argument;
    net_begin(end->net, &end->op);
    return transfer(end);
}

static void part(struct end *end, bool send, void *data, size_t bytes)
{
    end->parts[end->count++] =
        (struct net_part){.peer = 1 - end->rank, .send = send, .data = data, .bytes = bytes, .need = bytes};
}

static void run_both(struct end ends[2])
{
    for (int r = 0; r < 2; r++) pthread_create(&ends[r].thread, NULL, run, &ends[r]);
    for (int r = 0; r < 2; r++) pthread_join(ends[r].thread, NULL);
}

static void assert_failed(struct end *end, enum status code, const char *words)
{
    assert_int_equal(end->status, code);
    assert_int_equal(control_status(end->control, &error), code);
    if (!strstr(error.text, words)) fail_msg("'%s' is not in '%s'", words, error.text);
}

/* More bytes than the sockets hold, in both directions at once, in several parts and portions of any size. */
static void test_both_ways(void **state)
{
    (void)state;
    enum { BYTES = 5000011, CUT = 1234567 };
    static char in[2][BYTES], out[2][BYTES];
    static const int buffers[] = {0, 4096};
    for (size_t b = 0; b < COUNT_OF(buffers); b++) {
        struct end ends[2];
        ends_open(ends, buffers[b]);
        for (int round = 0; round < 3; round++) {
            for (int r = 0; r < 2; r++) {
                ends[r].count = 0;
                memset(in[r], 0, BYTES);
                for (size_t i = 0; i < BYTES; i++) out[r][i] = (char)(i * 7 % 251 + (size_t)(r + round));
                /* one end divides the bytes that the other has in one part */
                part(&ends[r], r == 0, r == 0 ? out[r] : in[r], CUT);
                part(&ends[r], r == 0, r == 0 ? out[r] + CUT : in[r] + CUT, 1);
                part(&ends[r], r == 0, r == 0 ? out[r] + CUT + 1 : in[r] + CUT + 1, BYTES - CUT - 1);
                part(&ends[r], r != 0, r == 0 ? in[r] : out[r], BYTES);
            }
            run_both(ends);
            for (int r = 0; r < 2; r++) {
                assert_int_equal(ends[r].status, STATUS_OK);
                assert_memory_equal(in[r], out[1 - r], BYTES);
                int64_t sent, received;
                net_counts(ends[r].net, &sent, &received);
                assert_int_equal(sent, (round + 1) * (int64_t)BYTES);
                assert_int_equal(received, (round + 1) * (int64_t)BYTES);
            }
        }
        ends_close(ends);
    }
}

/* A transfer ends when each part has the bytes that it needs; the next one moves the rest. */
static void test_needs(void **state)
{
    (void)state;
    enum { BYTES = 3000000 };
    static char in[BYTES], out[BYTES];
    struct end ends[2];
    ends_open(ends, 8192);
    for (size_t i = 0; i < BYTES; i++) out[i] = (char)(i * 11 % 253);
    part(&ends[0], true, out, BYTES);
    ends[0].parts[0].need = 0;
    for (int r = 0; r < 2; r++) net_begin(ends[r].net, &ends[r].op);
    assert_int_equal(net_transfer(ends[0].net, NULL, 0), STATUS_OK);
    assert_int_equal(net_transfer(ends[0].net, ends[0].parts, 1), STATUS_OK); /* the peer does not read yet */
    assert_true(ends[0].parts[0].done > 0 && ends[0].parts[0].done < BYTES);
    part(&ends[1], false, in, 1000);
    part(&ends[1], false, in + 1000, BYTES - 1000);
    ends[1].parts[1].need = 0;
    assert_int_equal(net_transfer(ends[1].net, ends[1].parts, 2), STATUS_OK);
    assert_int_equal(ends[1].parts[0].done, 1000);
    assert_true(ends[1].parts[1].done < BYTES - 1000);
    ends[0].parts[0].need = BYTES;
    ends[1].parts[1].need = BYTES - 1000;
    for (int r = 0; r < 2; r++) pthread_create(&ends[r].thread, NULL, transfer, &ends[r]);
    for (int r = 0; r < 2; r++) {
        pthread_join(ends[r].thread, NULL);
        assert_int_equal(ends[r].status, STATUS_OK);
    }
    assert_memory_equal(in, out, BYTES);
    ends_close(ends);
}

static void test_different_operations(void **state)
{
    (void)state;
    char byte[2] = {0};
    for (int what = 0; what < 4; what++) {
        struct end ends[2];
        ends_open(ends, 0);
        part(&ends[0], true, &byte[0], 1);
        part(&ends[1], false, &byte[1], 1);
        if (what == 0)
            ends[0].op.kind = OP_REDUCE_SCATTER;
        else if (what == 1)
            ends[0].op.dtype = 2;
        else if (what == 2)
            ends[0].op.count = 8;
        else
            net_begin(ends[0].net, &ends[0].op); /* this end is one operation ahead */
        run_both(ends);
        assert_int_equal(ends[0].status, STATUS_OK);
        assert_failed(&ends[1], STATUS_BUG,
                      what == 0
                          ? "rank 1 is in an all-gather of 7 elements (type 1) while rank 0 is in a reduce-scatter"
                      : what == 1 ? "while rank 0 is in an all-gather of 7 (type 2)"
                      : what == 2 ? "of 8 (type 1)"
                                  : "rank 1 is in data operation 1 over the network while rank 0 is in 2");
        ends_close(ends);
    }
}

/* The peer's process ends while this rank receives or sends. */
static void test_peer_lost(void **state)
{
    (void)state;
    static char data[4000000];
    for (int sending = 0; sending < 2; sending++) {
        struct end ends[2];
        ends_open(ends, 0);
        part(&ends[0], sending, data, sizeof data);
        pthread_create(&ends[0].thread, NULL, run, &ends[0]);
        usleep(50000);
        net_free(ends[1].net);
        ends[1].net = NULL;
        pthread_join(ends[0].thread, NULL);
        assert_failed(&ends[0], STATUS_PEER, "rank 1 on second");
        assert_non_null(strstr(error.text, "an all-gather"));
        ends_close(ends);
    }
}

/* A rank that waits notices that the job has failed. */
static void test_job_fails(void **state)
{
    (void)state;
    char byte;
    struct end ends[2];
    ends_open(ends, 0);
    part(&ends[0], false, &byte, 1);
    pthread_create(&ends[0].thread, NULL, run, &ends[0]);
    usleep(120000);
    double start = seconds_now();
    control_blame(ends[0].control, 1, FAILURE_ERROR, STATUS_DATA, "cannot read 'x'");
    pthread_join(ends[0].thread, NULL);
    assert_true(seconds_now() - start < 20);
    assert_failed(&ends[0], STATUS_DATA, "cannot read 'x'");
    ends_close(ends);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_ways), cmocka_unit_test(test_needs),     cmocka_unit_test(test_different_operations),
        cmocka_unit_test(test_peer_lost), cmocka_unit_test(test_job_fails),
    };
    return cmocka_run_group_tests_name("net", tests, NULL, NULL);
}
