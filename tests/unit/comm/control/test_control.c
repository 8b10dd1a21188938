/* SPDX-License-Identifier: Apache-2.0 */
/* test_control.c: the shared memory of a node: who may open it, its layout, and how a waiting rank judges ranks on
 * other nodes. */
#include "tests/unit/fixtures/ranks.h"

#include "comm/control/watchdog.h"
#include "core/heartbeat.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/stat.h>

#include <cmocka.h>

static struct error error;

/* Ranks 0 and 2 on node 0, rank 1 on node 1, ranks 3 and 4 on node 2. */
static const struct rank_place places[] = {{.node = 0, .local_rank = 0, .pid = 100, .host = "host0"},
                                           {.node = 1, .local_rank = 0, .pid = 101, .host = "host1"},
                                           {.node = 0, .local_rank = 1, .pid = 102, .host = "host0"},
                                           {.node = 2, .local_rank = 0, .pid = 103, .host = "host2"},
                                           {.node = 2, .local_rank = 1, .pid = 104, .host = "host2"}};
enum { WORLD = COUNT_OF(places) };

static const unsigned char secret[32] = "0123456789abcdef0123456789abcde";

static struct control_shape shape_of(int local_world)
{
    return (struct control_shape){.world = WORLD,
                                  .local_world = local_world,
                                  .num_nodes = 3,
                                  .token = control_token(secret, 0),
                                  .places = places};
}

/* The memory of node 0 as one of its ranks maps it. */
static struct control *attach(int fd, int rank, double timeout)
{
    struct control *control;
    CHECK_OK(control_attach(fd, rank, WORLD, places[rank].host, timeout, &control, &error));
    return control;
}

static void test_places(void **state)
{
    (void)state;
    struct control_shape shape = shape_of(2);
    int fd;
    assert_int_equal(control_create(&shape, &fd, &error), STATUS_OK);
    struct control *control = attach(fd, 2, 5), *peer = attach(fd, 0, 5);
    assert_int_equal(control->rank, 2);
    assert_int_equal(control->node, 0);
    assert_int_equal(control->local_world, 2);
    assert_int_equal(control->locals[0], 0);
    assert_int_equal(control->locals[1], 2);
    assert_int_equal(control->agents[0], 0);
    assert_int_equal(control->agents[1], 1);
    assert_int_equal(control->agents[2], 3);
    assert_true((control->block->ranks[0].node == control->node) && !(control->block->ranks[4].node == control->node));
    assert_int_equal(control->block->ranks[4].pid, 104);
    assert_string_equal(control->block->ranks[4].host, "host2");

    /* no two pieces overlap, and both see the same */
    for (int r = 0; r < WORLD; r++)
        for (int turn = 0; turn < 2; turn++)
            memset(control_slot(control, r, turn), 1 + 2 * r + turn, CONTROL_SLOT_BYTES);
    for (int i = 0; i < 2; i++) memset(control_staging(control, i), 100 + i, CONTROL_STAGING_BYTES);
    for (int r = 0; r < WORLD; r++)
        for (int turn = 0; turn < 2; turn++)
            for (int at = 0; at < CONTROL_SLOT_BYTES; at += CONTROL_SLOT_BYTES - 1)
                assert_int_equal(control_slot(peer, r, turn)[at], 1 + 2 * r + turn);
    for (int i = 0; i < 2; i++)
        for (int at = 0; at < CONTROL_STAGING_BYTES; at += CONTROL_STAGING_BYTES - 1)
            assert_int_equal(control_staging(peer, i)[at], 100 + i);
    assert_int_equal(peer->block->world, WORLD);
    assert_true(control->at.segments % (2 << 20) == 0);
    assert_int_equal(lseek(fd, 0, SEEK_END), control->at.segments);
    control_detach(peer);
    control_detach(control);
    close(fd);
}

/* The memory of a job of 4096 ranks is not resident before it is used. */
static void test_many_ranks(void **state)
{
    (void)state;
    static struct rank_place many[BOOTSTRAP_MAX_RANKS];
    for (int r = 0; r < BOOTSTRAP_MAX_RANKS; r++)
        many[r] = (struct rank_place){.node = r / 8, .local_rank = r % 8, .pid = r + 1, .host = "host"};
    const struct control_shape shape = {
        .world = BOOTSTRAP_MAX_RANKS, .local_world = 8, .num_nodes = BOOTSTRAP_MAX_RANKS / 8, .places = many};
    struct control *control;
    int fd;
    assert_int_equal(control_create(&shape, &fd, &error), STATUS_OK);
    assert_int_equal(control_attach(fd, 4095, BOOTSTRAP_MAX_RANKS, "host", 5, &control, &error), STATUS_OK);
    assert_int_equal(control->node, 511);
    assert_int_equal(control->locals[7], 4095);
    assert_int_equal(control->agents[511], 4088);
    control_slot(control, 4095, 1)[CONTROL_SLOT_BYTES - 1] = 1;
    struct stat info;
    assert_int_equal(fstat(fd, &info), 0);
    assert_true(info.st_blocks * 512 < 8 << 20);
    control_detach(control);
    close(fd);
}

static void test_opening_by_number(void **state)
{
    (void)state;
    struct control_shape shape = shape_of(2), other;
    int fd, opened, pipes[2], memory = memfd_create("other", 0);
    FILE *file = tmpfile();
    assert_int_equal(control_create(&shape, &fd, &error), STATUS_OK);
    assert_int_equal(control_open((int)getpid(), fd, &shape, &opened, &error), STATUS_OK);
    assert_true(fcntl(opened, F_GETFD) & FD_CLOEXEC);
    struct control *control = attach(fd, 0, 5), *peer = attach(opened, 2, 5);
    control_slot(control, 3, 0)[5] = 42;
    assert_int_equal(control_slot(peer, 3, 0)[5], 42);
    control_detach(peer);
    control_detach(control);
    close(opened);

    /* the memory of another job, node or size; a descriptor of another kind; none */
    other = shape;
    other.token = control_token(secret, 1);
    assert_int_equal(control_open((int)getpid(), fd, &other, &opened, &error), STATUS_USAGE);
    assert_non_null(strstr(error.text, "is not the shared memory of this job on this node"));
    other = shape;
    other.local_world = 3;
    assert_int_equal(control_open((int)getpid(), fd, &other, &opened, &error), STATUS_USAGE);
    other = shape;
    other.num_nodes = 2;
    assert_int_equal(control_open((int)getpid(), fd, &other, &opened, &error), STATUS_USAGE);
    assert_int_equal(ftruncate(memory, lseek(fd, 0, SEEK_END)), 0);
    assert_int_equal(ftruncate(fileno(file), lseek(fd, 0, SEEK_END)), 0);
    assert_int_equal(pipe(pipes), 0);
    assert_int_equal(control_open((int)getpid(), memory, &shape, &opened, &error), STATUS_USAGE);
    assert_int_equal(control_open((int)getpid(), fileno(file), &shape, &opened, &error), STATUS_USAGE);
    assert_int_equal(control_open((int)getpid(), pipes[0], &shape, &opened, &error), STATUS_USAGE);
    assert_int_equal(control_open((int)getpid(), 987, &shape, &opened, &error), STATUS_DEVICE);
    assert_non_null(strstr(error.text, "; hint: the ranks of a node must run as one user"));
    assert_non_null(strstr(error.text, "containers: one for all ranks, or --pid=host"));
    assert_int_equal(opened, -1);
    /* shorter than its header claims */
    assert_int_equal(ftruncate(fd, 8192), 0);
    assert_int_equal(control_open((int)getpid(), fd, &shape, &opened, &error), STATUS_USAGE);
    assert_int_equal(control_attach(fd, 0, WORLD, "host0", 5, &control, &error), STATUS_USAGE);
    fclose(file);
    close(memory);
    close(pipes[0]);
    close(pipes[1]);
    close(fd);
}

/* ---- who is to blame ----------------------------------------------------- */

enum sight {
    PEER_SILENT,   /* the peer's node reports, but the peer makes no progress */
    PEER_MOVES,    /* the peer makes progress now and then */
    NODE_QUIET,    /* the peer's node reports nothing, which only the agent judges */
    AGENT_SILENT,  /* this node's agent gives no sign of life */
    NODE_IS_ENDED, /* the agent has seen the node's connection end */
    NODE_IS_SILENT,
    NODE_IS_UNREACHABLE,
    RANK_IS_DEAD,
    RANK_DIED_FIRST, /* then the launcher ended the rest of its node */
    RANK_LEFT,
    CONNECTION_LOST,
    CONNECTION_OF_THE_DEAD
};

static void show(struct control_rank *ranks, enum sight sight, int round)
{
    if (sight != AGENT_SILENT) atomic_fetch_add(&ranks[0].heard, 1);
    if (sight != NODE_QUIET && sight != AGENT_SILENT && round % 5 == 0) atomic_fetch_add(&ranks[3].heard, 1);
    if (sight == PEER_MOVES && round % 20 == 0) atomic_fetch_add(&ranks[4].progress, 1);
    if (round != 3) return;
    if (sight == RANK_DIED_FIRST) atomic_store(&ranks[4].state, RANK_DEAD);
    if (sight == RANK_IS_DEAD) atomic_store(&ranks[4].state, RANK_DEAD);
    if (sight == RANK_LEFT) atomic_store(&ranks[4].state, RANK_CLOSED);
}

/* Rank 2 on node 0 waits at most two seconds for rank 4 on node 2. Returns its message. */
static void test_blame(void **state)
{
    (void)state;
    static const struct {
        enum sight sight;
        const char *words[2];
    } cases[] = {
        {PEER_SILENT, {"rank 4 on host2 (process 104) has been silent for 0.9 s while rank 2 waited for it in a test"}},
        {PEER_MOVES, {NULL}},
        {NODE_QUIET, {NULL}},
        {AGENT_SILENT,
         {"rank 0 on host0 (process 100) has been silent for 0.9 s while rank 2 waited for rank 4 in a test"}},
        {NODE_IS_ENDED, {"rank 3 on host2 (process 103) died while rank 2 waited for rank 4 in a test"}},
        {NODE_IS_SILENT,
         {"rank 3 on host2 (process 103) has been silent for 0.9 s while rank 2 waited for rank 4 in a test"}},
        {NODE_IS_UNREACHABLE,
         {"rank 3 on host2 (process 103) cannot be reached from host0 any more while rank 2 waited for rank 4",
          "the network between the two, or the node host2, is down"}},
        {RANK_IS_DEAD, {"rank 4 on host2 (process 104) died while rank 2 waited for it in a test"}},
        {RANK_DIED_FIRST, {"rank 4 on host2 (process 104) died while rank 2 waited for it in a test"}},
        {RANK_LEFT, {"rank 4 on host2 (process 104) left the job while rank 2 waited for it in a test"}},
        {CONNECTION_LOST,
         {"rank 4 on host2 (process 104) is out of reach (Connection reset by peer) while rank 2 waited for it in a "
          "test"}},
        {CONNECTION_OF_THE_DEAD, {"rank 4 on host2 (process 104) died while rank 2 waited for it in a test"}},
    };
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        struct control_shape shape = shape_of(2);
        struct watchdog watch;
        int fd;
        CHECK_OK(control_create(&shape, &fd, &error));
        struct control *control = attach(fd, 2, 1);
        struct control_rank *ranks = control->block->ranks;
        enum sight sight = cases[c].sight;
        if (sight == NODE_IS_ENDED || sight == RANK_DIED_FIRST) control_node_lost(control, 2, NODE_ENDED);
        if (sight == NODE_IS_SILENT) control_node_lost(control, 2, NODE_SILENT);
        if (sight == NODE_IS_UNREACHABLE) control_node_lost(control, 2, NODE_UNREACHABLE);
        watchdog_begin(control, 4, &watch);
        if (sight == CONNECTION_OF_THE_DEAD) atomic_store(&ranks[4].state, RANK_DEAD);
        if (sight == CONNECTION_LOST || sight == CONNECTION_OF_THE_DEAD)
            assert_int_equal(peer_lost(control, 4, "a test", "Connection reset by peer"), STATUS_PEER);
        double start = seconds_now();
        for (int round = 0; control_status(control, &error) == STATUS_OK && seconds_now() - start < 2; round++) {
            show(ranks, sight, round);
            watchdog_look(control, &watch, "a test");
            usleep(20000);
        }
        for (int w = 0; w < 2 && cases[c].words[w]; w++)
            if (control_status(control, &error) != STATUS_PEER || !strstr(error.text, cases[c].words[w]))
                fail_msg("case %zu: '%s' is not in '%s'", c, cases[c].words[w], error.text);
        if (!cases[c].words[0]) assert_int_equal(control_status(control, &error), STATUS_OK);
        control_detach(control);
        close(fd);
    }
}

/* The agent's message when no rank waits. */
static void test_blame_without_waiting(void **state)
{
    (void)state;
    struct control_shape shape = shape_of(2);
    for (int i = 0; i < 2; i++) {
        int fd;
        CHECK_OK(control_create(&shape, &fd, &error));
        struct control *control = attach(fd, 0, 1);
        peer_blame_node(control, 1, -1, NULL); /* its agent is alive: no rank is to blame */
        assert_int_equal(control_status(control, &error), STATUS_OK);
        control_node_lost(control, 1, NODE_ENDED);
        if (i == 0)
            peer_blame_node(control, 1, -1, NULL);
        else
            peer_blame_rank(control, 2, -1, NULL);
        assert_int_equal(control_status(control, &error), STATUS_PEER);
        const char *blamed = i == 0 ? "rank 1 on host1 (process 101) died; hint: its own last words"
                                    : "rank 2 on host0 (process 102) died; hint: its own last words";
        assert_int_equal(strncmp(error.text, blamed, strlen(blamed)), 0);
        assert_true(error.rank == i + 1 && error.failure == FAILURE_DIED);
        control_detach(control);
        close(fd);
    }
}

/* Rank 2's agent, rank 0 of its own node, dies before the other nodes' ranks have come. */
static void early_death(struct control *control, int rank)
{
    if (rank == 0) {
        usleep(300000);
        raise(SIGKILL);
    }
    CHECK(control_join(control, &error) == STATUS_PEER);
    CHECK(strstr(error.text, "rank 0 on host0") && strstr(error.text, "died at the start"));
}

static void test_agent_dies_at_the_start(void **state)
{
    (void)state;
    struct control_shape shape = shape_of(2);
    pid_t pids[2];
    int fd, status;
    CHECK_OK(control_create(&shape, &fd, &error));
    fflush(NULL);
    for (int i = 0; i < 2; i++)
        if ((pids[i] = fork()) == 0) {
            alarm(RANKS_LIMIT);
            early_death(attach(fd, 2 * i, 5), 2 * i);
            _exit(0);
        }
    close(fd);
    assert_int_equal(waitpid(pids[1], &status, 0), pids[1]);
    assert_int_equal(status, 0);
    assert_int_equal(waitpid(pids[0], &status, 0), pids[0]);
    assert_true(WIFSIGNALED(status));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_many_ranks),
        cmocka_unit_test(test_opening_by_number),
        cmocka_unit_test(test_blame),
        cmocka_unit_test(test_blame_without_waiting),
        cmocka_unit_test(test_agent_dies_at_the_start),
    };
    return cmocka_run_group_tests_name("control", tests, NULL, NULL);
}
