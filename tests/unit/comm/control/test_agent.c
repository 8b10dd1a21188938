/* SPDX-License-Identifier: Apache-2.0 */
/* test_agent.c: plays several nodes on this machine, with a control block for each, processes as ranks, and socket
 * pairs between their agents. It tests control operations and every way in which a rank or a node is lost: all the
 * others must name the right one. */
#include "tests/unit/fixtures/ranks.h"

#include "comm/control/agent.h"
#include "comm/control/agent_messages.h"
#include "core/heartbeat.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/socket.h>

#include <cmocka.h>

enum { NODES_MAX = 4, WORLD_MAX = 16 };

static struct error error;

/* ---- a job of several nodes ---------------------------------------------- */

struct job {
    int world, nodes;
    double timeout;
    int node_of[WORLD_MAX]; /* each rank's node */
    struct rank_place places[WORLD_MAX];
    int local_world[NODES_MAX];
    int memory[NODES_MAX];
    int links[NODES_MAX][NODES_MAX]; /* links[a][b]: a's end of its connection with b */
    pid_t pids[WORLD_MAX];
    void (*body)(struct job *job, struct control *control, int rank);
    void *context;
};

static void job_init(struct job *job, const int *node_of, int world, double timeout)
{
    *job = (struct job){.world = world, .timeout = timeout};
    for (int r = 0; r < world; r++) {
        int node = node_of[r];
        job->node_of[r] = node;
        job->nodes = node >= job->nodes ? node + 1 : job->nodes;
        job->places[r].node = node;
        job->places[r].local_rank = job->local_world[node]++;
        snprintf(job->places[r].host, sizeof job->places[r].host, "host%d", node);
    }
    for (int a = 0; a < job->nodes; a++) {
        const struct control_shape shape = {
            .world = world, .local_world = job->local_world[a], .num_nodes = job->nodes, .places = job->places};
        CHECK_OK(control_create(&shape, &job->memory[a], &error));
        job->links[a][a] = -1;
        for (int b = 0; b < a; b++) {
            int ends[2];
            CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
            job->links[a][b] = ends[0];
            job->links[b][a] = ends[1];
        }
    }
}

/* In the child: keeps only the ends of this node open, or a death would not end the connection. */
static void play_rank(struct job *job, int rank)
{
    int node = job->node_of[rank];
    bool agent_rank = job->places[rank].local_rank == 0;
    struct agent_link links[NODES_MAX];
    struct control *control;
    struct agent *agent = NULL;
    int count = 0;
    for (int a = 0; a < job->nodes; a++) {
        for (int b = 0; b < job->nodes; b++)
            if (a == node && b != node && agent_rank)
                links[count++] = (struct agent_link){b, job->links[a][b]};
            else if (job->links[a][b] >= 0)
                close(job->links[a][b]);
        if (a != node) close(job->memory[a]);
    }
    CHECK_OK(
        control_attach(job->memory[node], rank, job->world, job->places[rank].host, job->timeout, &control, &error));
    if (agent_rank) CHECK_OK(agent_start(control, links, count, &agent, &error));
    CHECK_OK(control_join(control, &error));
    job->body(job, control, rank);
    control_leave(control);
    agent_stop(agent);
    control_detach(control);
    close(job->memory[node]);
}

static void job_start(struct job *job, void (*body)(struct job *, struct control *, int), void *context)
{
    job->body = body;
    job->context = context;
    fflush(NULL);
    for (int r = 0; r < job->world; r++) {
        job->pids[r] = fork();
        CHECK(job->pids[r] >= 0);
        if (job->pids[r] == 0) {
            alarm(RANKS_LIMIT);
            play_rank(job, r);
            exit(0);
        }
    }
    for (int a = 0; a < job->nodes; a++) {
        close(job->memory[a]);
        for (int b = 0; b < job->nodes; b++)
            if (job->links[a][b] >= 0) close(job->links[a][b]);
    }
}

static int job_wait(struct job *job, int rank)
{
    int status = -1;
    while (waitpid(job->pids[rank], &status, 0) < 0)
        ;
    return status;
}

static bool job_end(struct job *job)
{
    bool good = true;
    for (int r = 0; r < job->world; r++) good &= job_wait(job, r) == 0;
    return good;
}

/* A control operation as host_collectives.c does it: the turn-th (from 0) of this rank. */
static enum status exchange(struct control *control, uint32_t turn, const void *own, size_t bytes)
{
    struct control_block *block = control->block;
    int rank = control->rank;
    struct control_op op = {.kind = 3, .count = bytes, .slot_bytes = bytes};
    if (control_status(control, &error) != STATUS_OK) return error.code;
    memcpy(control_slot(control, rank, (int)(turn % 2)), own, bytes);
    block->ranks[rank].op[CHANNEL_CONTROL][turn % 2] = op;
    uint32_t target = control_arrive(control, CHANNEL_CONTROL);
    CHECK(target == turn + 1);
    heartbeat_beat();
    if (control_wait(control, CHANNEL_CONTROL, target, "an exchange") == STATUS_OK) return STATUS_OK;
    return control_status(control, &error);
}

/* ---- operations ---------------------------------------------------------- */

static void exchange_body(struct job *job, struct control *control, int rank)
{
    static const size_t sizes[] = {0, 1, 8, 4000, CONTROL_SLOT_BYTES};
    static unsigned char own[CONTROL_SLOT_BYTES];
    for (uint32_t turn = 0; turn < 300; turn++) {
        size_t bytes = sizes[turn % COUNT_OF(sizes)];
        for (size_t i = 0; i < bytes; i++) own[i] = (unsigned char)(turn * 7 + (uint32_t)rank * 31 + (uint32_t)i);
        if (rank == (int)(turn % 16) && turn % 50 == 3) usleep(30000); /* one rank is late */
        CHECK_OK(exchange(control, turn, own, bytes));
        for (int r = 0; r < job->world; r++) {
            struct control_op op = control->block->ranks[r].op[CHANNEL_CONTROL][turn % 2];
            const unsigned char *slot = (const unsigned char *)control_slot(control, r, (int)(turn % 2));
            CHECK(op.kind == 3 && op.count == bytes && op.slot_bytes == bytes);
            for (size_t i = 0; i < bytes; i++)
                CHECK(slot[i] == (unsigned char)(turn * 7 + (uint32_t)r * 31 + (uint32_t)i));
        }
    }
}

static void test_exchange(void **state)
{
    (void)state;
    static const struct {
        int world, node_of[WORLD_MAX];
    } cases[] = {
        {2, {0, 1}},
        {3, {0, 0, 1}},
        {5, {0, 1, 0, 1, 0}}, /* ranks placed on the nodes in turn */
        {7, {0, 1, 2, 3, 2, 2, 3}},
    };
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        struct job job;
        job_init(&job, cases[c].node_of, cases[c].world, 30);
        job_start(&job, exchange_body, NULL);
        assert_true(job_end(&job));
    }
}

/* Progress on one node is visible on the others: a rank that waits long for a slow rank does not accuse it. */
static void slow_body(struct job *job, struct control *control, int rank)
{
    for (int i = 0; rank == 1 && i < 40; i++) {
        usleep(100000);
        heartbeat_beat();
    }
    CHECK_OK(exchange(control, 0, "x", 1));
    (void)job;
}

static void test_slow_is_not_silent(void **state)
{
    (void)state;
    static const int node_of[] = {0, 1, 1, 2};
    struct job job;
    job_init(&job, node_of, 4, 2);
    job_start(&job, slow_body, NULL);
    assert_true(job_end(&job));
}

/* ---- losses -------------------------------------------------------------- */

enum loss { KILLED, STOPPED, HANGS, LEAVES_0, FAILS, LEAVES_IN_ORDER };

struct loss_case {
    enum loss loss;
    int rank;             /* the one that is lost */
    bool waits;           /* the others wait in an operation; else they work for a while */
    enum status code;     /* of the others */
    const char *words[3]; /* in the message of each of the others */
};

static void lose(struct control *control, const struct loss_case *loss)
{
    struct error own;
    switch (loss->loss) {
    case KILLED: raise(SIGKILL); break;
    case STOPPED: raise(SIGSTOP); break;
    case HANGS: sleep(RANKS_LIMIT); break;
    case LEAVES_0: _exit(0);
    case FAILS:
        error_set(&own, STATUS_DATA, "cannot read 'shard.bin' at 4096");
        error_blame(&own, control->rank, FAILURE_ERROR);
        control_fail(control, &own);
        break;
    case LEAVES_IN_ORDER: break;
    }
}

static void loss_body(struct job *job, struct control *control, int rank)
{
    const struct loss_case *loss = job->context;
    for (uint32_t turn = 0; turn < 5; turn++) CHECK_OK(exchange(control, turn, &rank, sizeof rank));
    if (rank == loss->rank) {
        usleep(200000); /* time for the last arrival to reach the others */
        lose(control, loss);
        return;
    }
    double start = seconds_now();
    enum status status = STATUS_OK;
    while (!loss->waits && status == STATUS_OK && seconds_now() - start < 4) { /* at work */
        heartbeat_beat();
        usleep(10000);
        status = control_status(control, &error);
    }
    if (status == STATUS_OK) status = exchange(control, 5, &rank, sizeof rank);
    if (status != loss->code) {
        fprintf(stderr, "rank %d: status %d: %s\n", rank, (int)status, error.text);
        _exit(1);
    }
    CHECK(seconds_now() - start < 30);
    for (int i = 0; i < 3 && loss->words[i]; i++)
        if (!strstr(error.text, loss->words[i])) {
            fprintf(stderr, "rank %d: '%s' is not in '%s'\n", rank, loss->words[i], error.text);
            _exit(1);
        }
}

static void test_losses(void **state)
{
    (void)state;
    /* node 0: ranks 0, 1 · node 1: 2, 3 · node 2: 4; the first of each has the agent */
    static const int node_of[] = {0, 0, 1, 1, 2};
    static const struct loss_case cases[] = {
        {KILLED, 2, true, STATUS_PEER, {"rank 2 on host1", "died", "in an exchange"}},
        {KILLED, 3, true, STATUS_PEER, {"rank 3 on host1", "died", "in an exchange"}},
        {KILLED, 4, true, STATUS_PEER, {"rank 4 on host2", "died", "in an exchange"}},
        {KILLED, 0, true, STATUS_PEER, {"rank 0 on host0", "died", "in an exchange"}},
        {KILLED, 2, false, STATUS_PEER, {"rank 2 on host1", "died"}},
        {KILLED, 3, false, STATUS_PEER, {"rank 3 on host1", "died"}},
        {STOPPED, 2, true, STATUS_PEER, {"rank 2 on host1", "silent for 1.8 s", "in an exchange"}},
        {STOPPED, 3, true, STATUS_PEER, {"rank 3 on host1", "silent for 1.8 s", "in an exchange"}},
        {STOPPED, 2, false, STATUS_PEER, {"rank 2 on host1", "silent for 1.8 s"}},
        {HANGS, 0, true, STATUS_PEER, {"rank 0 on host0", "silent for 1.8 s", "in an exchange"}},
        {HANGS, 3, true, STATUS_PEER, {"rank 3 on host1", "silent for 1.8 s", "in an exchange"}},
        {LEAVES_0, 2, true, STATUS_PEER, {"rank 2 on host1", "died", "in an exchange"}},
        {LEAVES_0, 3, true, STATUS_PEER, {"rank 3 on host1", "died", "in an exchange"}},
        {LEAVES_IN_ORDER, 3, true, STATUS_PEER, {"rank 3 on host1", "left the job", "in an exchange"}},
        {LEAVES_IN_ORDER, 4, true, STATUS_PEER, {"rank 4 on host2", "left the job", "in an exchange"}},
        {FAILS, 2, true, STATUS_DATA, {"rank 2 on host1 ended: cannot read 'shard.bin'"}},
        {FAILS, 3, false, STATUS_DATA, {"rank 3 on host1 ended: cannot read 'shard.bin'"}},
    };
    static struct job jobs[COUNT_OF(cases)]; /* all run at once, because they only wait */
    static struct loss_case contexts[COUNT_OF(cases)];
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        contexts[c] = cases[c];
        job_init(&jobs[c], node_of, 5, 2);
        job_start(&jobs[c], loss_body, &contexts[c]);
    }
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        for (int r = 0; r < jobs[c].world; r++) {
            int status = r == cases[c].rank ? 0 : job_wait(&jobs[c], r);
            if (status) print_message("case %zu, rank %d: %x\n", c, r, (unsigned)status);
            assert_int_equal(status, 0);
        }
        kill(jobs[c].pids[cases[c].rank], SIGKILL);
        job_wait(&jobs[c], cases[c].rank);
    }
}

/* ---- the whole job stopped ----------------------------------------------- */

static void pause_body(struct job *job, struct control *control, int rank)
{
    double *started = job->context;
    for (uint32_t turn = 0; turn < 60; turn++) {
        CHECK_OK(exchange(control, turn, &rank, sizeof rank));
        started[rank] = seconds_now();
        usleep(20000);
    }
}

static void test_suspended_job_goes_on(void **state)
{
    (void)state;
    static const int node_of[] = {0, 0, 1, 1};
    struct job job;
    double *started = ranks_memory(WORLD_MAX * sizeof *started);
    job_init(&job, node_of, 4, 1);
    job_start(&job, pause_body, started);
    for (int r = 0; r < 4; r++)
        while (*(volatile double *)&started[r] == 0) usleep(10000);
    for (int r = 0; r < 4; r++) kill(job.pids[r], SIGSTOP);
    usleep(2500000);
    for (int r = 3; r >= 0; r--) { /* not all at one time */
        kill(job.pids[r], SIGCONT);
        usleep(50000);
    }
    assert_true(job_end(&job));
}

/* ---- a cut link ---------------------------------------------------------- */

/* Forwards bytes between two sockets until it is stopped; then nothing arrives any more, and nothing is closed. */
struct relay {
    int a, b;
    atomic_bool cut, end;
};

static void *relay_run(void *argument)
{
    struct relay *relay = argument;
    char buffer[65536];
    while (!relay->end) {
        struct pollfd fds[2] = {{.fd = relay->a, .events = POLLIN}, {.fd = relay->b, .events = POLLIN}};
        if (relay->cut || poll(fds, 2, 20) <= 0) {
            usleep(1000);
            continue;
        }
        for (int i = 0; i < 2; i++) {
            ssize_t n = fds[i].revents & POLLIN ? read(fds[i].fd, buffer, sizeof buffer) : 0;
            for (ssize_t at = 0, sent; n > 0 && at < n; at += sent)
                if ((sent = send(fds[1 - i].fd, buffer + at, (size_t)(n - at), MSG_NOSIGNAL)) <= 0) break;
        }
    }
    return NULL;
}

static void cut_body(struct job *job, struct control *control, int rank)
{
    atomic_int *rounds = job->context;
    enum status status = STATUS_OK;
    double last = seconds_now();
    for (uint32_t turn = 0; status == STATUS_OK; turn++) {
        last = seconds_now();
        status = exchange(control, turn, &rank, sizeof rank);
        atomic_fetch_add(rounds, 1);
        usleep(5000);
    }
    CHECK(status == STATUS_PEER && seconds_now() - last < 30);
    CHECK(strstr(error.text, rank == 0 ? "rank 1 on host1" : "rank 0 on host0"));
}

static void test_cut_link(void **state)
{
    (void)state;
    static const int node_of[] = {0, 1};
    atomic_int *rounds = ranks_memory(sizeof *rounds);
    struct relay relay = {0};
    struct job job;
    pthread_t thread;
    int first[2], second[2];
    job_init(&job, node_of, 2, 2);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, first), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, second), 0);
    close(job.links[0][1]);
    close(job.links[1][0]);
    job.links[0][1] = first[0];
    job.links[1][0] = second[0];
    relay.a = first[1];
    relay.b = second[1];
    job_start(&job, cut_body, rounds);
    assert_int_equal(pthread_create(&thread, NULL, relay_run, &relay), 0);
    while (*rounds < 10) usleep(1000);
    relay.cut = true;
    assert_true(job_end(&job));
    relay.end = true;
    pthread_join(thread, NULL);
    close(relay.a);
    close(relay.b);
}

/* ---- messages that do not fit -------------------------------------------- */

/* A control block of two nodes as seen from rank 0 on node 0; ranks 1 and 2 are on node 1. */
static struct control *two_nodes(void)
{
    static const struct rank_place places[] = {{.node = 0, .local_rank = 0, .host = "host0"},
                                               {.node = 1, .local_rank = 0, .host = "host1"},
                                               {.node = 1, .local_rank = 1, .host = "host1"}};
    const struct control_shape shape = {.world = 3, .local_world = 1, .num_nodes = 2, .places = places};
    struct control *control;
    int fd;
    CHECK_OK(control_create(&shape, &fd, &error));
    CHECK_OK(control_attach(fd, 0, 3, "host0", 5, &control, &error));
    close(fd);
    return control;
}

struct said {
    struct agent_header header;
    const void *payload;
};

static enum status feed(struct agent_inbox *inbox, const struct said *said)
{
    TRY(agent_inbox_feed(inbox, &said->header, sizeof said->header, &error));
    return agent_inbox_feed(inbox, said->payload, said->payload ? said->header.bytes : 0, &error);
}

static void test_messages_that_do_not_fit(void **state)
{
    (void)state;
    static const struct agent_hello hello = {3, 2, 2}, other = {3, 2, 1};
    static const struct control_op empty = {.kind = 4}, lies = {.kind = 4, .slot_bytes = 9};
    static const uint64_t progress[3] = {5, 6, 7};
    enum { OP = sizeof(struct control_op) };
    static const struct said greeting = {{AGENT_HELLO, 1, AGENT_VERSION, sizeof hello}, &hello};
    static const struct {
        bool greeted;
        struct said said;
        bool good;
    } cases[] = {
        {false, {{AGENT_HELLO, 1, AGENT_VERSION, sizeof hello}, &hello}, true},
        {true, {{AGENT_HEARTBEAT, AGENT_NOBODY, 0, 16}, progress}, true},
        {true, {{AGENT_SLOT, 2, 1, OP}, &empty}, true},
        {true, {{AGENT_STATE, 1, RANK_JOINED, 0}, NULL}, true},
        {true, {{AGENT_FAIL, 2, STATUS_DATA, 3}, "bad"}, true},
        {true, {{AGENT_BYE, AGENT_NOBODY, 0, 0}, NULL}, true},
        /* no greeting, a wrong one, a second one */
        {false, {{AGENT_HEARTBEAT, AGENT_NOBODY, 0, 16}, progress}, false},
        {false, {{AGENT_HELLO, 0, AGENT_VERSION, sizeof hello}, &hello}, false},
        {false, {{AGENT_HELLO, 1, AGENT_VERSION + 1, sizeof hello}, &hello}, false},
        {false, {{AGENT_HELLO, 1, AGENT_VERSION, sizeof hello - 1}, &hello}, false},
        {false, {{AGENT_HELLO, 1, AGENT_VERSION, sizeof hello}, &other}, false},
        {true, {{AGENT_HELLO, 1, AGENT_VERSION, sizeof hello}, &hello}, false},
        /* from another node, from an unknown rank, of a wrong length, out of turn, of unknown kinds */
        {true, {{AGENT_HEARTBEAT, AGENT_NOBODY, 0, 24}, progress}, false},
        {true, {{AGENT_SLOT, 0, 1, OP}, &empty}, false},
        {true, {{AGENT_SLOT, 3, 1, OP}, &empty}, false},
        {true, {{AGENT_SLOT, 2, 2, OP}, &empty}, false},
        {true, {{AGENT_SLOT, 2, 0, OP}, &empty}, false},
        {true, {{AGENT_SLOT, 2, 1, OP - 1}, &empty}, false},
        {true, {{AGENT_SLOT, 2, 1, OP + CONTROL_SLOT_BYTES + 1}, NULL}, false},
        {true, {{AGENT_SLOT, 2, 1, UINT32_MAX}, NULL}, false},
        {true, {{AGENT_SLOT, 2, 1, OP}, &lies}, false},
        {true, {{AGENT_STATE, 0, RANK_CLOSED, 0}, NULL}, false},
        {true, {{AGENT_STATE, 1, RANK_ABSENT, 0}, NULL}, false},
        {true, {{AGENT_STATE, 1, RANK_DEAD + 1, 0}, NULL}, false},
        {true, {{AGENT_STATE, 1, RANK_CLOSED, 1}, NULL}, false},
        {true, {{AGENT_FAIL, 3, STATUS_DATA, 3}, "bad"}, false},
        {true, {{AGENT_FAIL, 2, 0, 3}, "bad"}, false},
        {true, {{AGENT_FAIL, 2, FAILURE_DIED << 8, 3}, "bad"}, false},
        {true, {{AGENT_FAIL, 2, FAILURE_COUNT << 8 | STATUS_DATA, 3}, "bad"}, false},
        {true, {{AGENT_FAIL, AGENT_NOBODY, FAILURE_ERROR << 8 | STATUS_DATA, 3}, "bad"}, false},
        {true, {{AGENT_FAIL, 2, STATUS_DATA, 2048}, NULL}, false},
        {true, {{AGENT_BYE, 1, 0, 1}, NULL}, false},
        {true, {{0, 1, 0, 0}, NULL}, false},
        {true, {{AGENT_MESSAGE_END, 1, 0, 0}, NULL}, false},
    };
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        struct control *control = two_nodes();
        struct agent_inbox inbox;
        agent_inbox_init(&inbox, control, 1);
        if (cases[c].greeted) assert_int_equal(feed(&inbox, &greeting), STATUS_OK);
        enum status status = feed(&inbox, &cases[c].said);
        if (status != (cases[c].good ? STATUS_OK : STATUS_PEER)) fail_msg("case %zu: status %d", c, (int)status);
        if (!cases[c].good) {
            assert_non_null(strstr(error.text, "rank 1 on host1 sent a message that does not fit"));
            assert_int_equal(control->block->ranks[2].arrivals[CHANNEL_CONTROL], 0);
            assert_int_equal(control_status(control, NULL), STATUS_OK);
        }
        agent_inbox_release(&inbox);
        control_detach(control);
    }
}

/* A stream arrives in pieces of any size, and every byte reaches its place. */
static void test_stream_in_pieces(void **state)
{
    (void)state;
    for (size_t piece = 1; piece < 100; piece += piece < 5 ? 1 : 13) {
        struct control *control = two_nodes();
        struct control_block *block = control->block;
        struct agent_outbox outbox;
        struct agent_inbox inbox;
        const struct agent_hello hello = {3, 2, 2};
        const struct control_op op = {.kind = 4, .count = 300, .slot_bytes = 300};
        char slot[300];
        uint64_t at = 0, beats[] = {77, 88};
        memset(slot, 'x', sizeof slot);
        agent_outbox_init(&outbox, 1);
        outbox.head = at = outbox.capacity - 50; /* it wraps around */
        agent_inbox_init(&inbox, control, 1);
        agent_outbox_put(&outbox, AGENT_HELLO, 1, AGENT_VERSION, &hello, sizeof hello, NULL, 0);
        agent_outbox_put(&outbox, AGENT_STATE, 2, RANK_JOINED, NULL, 0, NULL, 0);
        agent_outbox_put(&outbox, AGENT_SLOT, 2, 1, &op, sizeof op, slot, sizeof slot);
        agent_outbox_put(&outbox, AGENT_HEARTBEAT, AGENT_NOBODY, 0, beats, sizeof beats, NULL, 0);
        agent_outbox_put(&outbox, AGENT_SLOT, 2, 2, &op, sizeof op, slot, sizeof slot);
        agent_outbox_put(&outbox, AGENT_FAIL, 2, FAILURE_ERROR << 8 | STATUS_DIVERGED, "too bad", 7, NULL, 0);
        agent_outbox_put(&outbox, AGENT_BYE, AGENT_NOBODY, 0, NULL, 0, NULL, 0);
        while (at < outbox.head) {
            size_t bytes;
            const char *data = agent_outbox_peek(&outbox, at, &bytes);
            bytes = bytes < piece ? bytes : piece;
            assert_int_equal(agent_inbox_feed(&inbox, data, bytes, &error), STATUS_OK);
            at += bytes;
        }
        assert_true(inbox.hello && inbox.bye);
        assert_int_equal(block->ranks[2].state, RANK_JOINED);
        assert_int_equal(block->ranks[2].arrivals[CHANNEL_CONTROL], 2);
        assert_int_equal(block->ranks[2].op[CHANNEL_CONTROL][1].count, 300);
        assert_memory_equal(control_slot(control, 2, 0), slot, sizeof slot);
        assert_memory_equal(control_slot(control, 2, 1), slot, sizeof slot);
        assert_true(block->ranks[1].progress == 77 && block->ranks[2].progress == 88 && block->ranks[1].heard == 1);
        assert_int_equal(control_status(control, &error), STATUS_DIVERGED);
        assert_string_equal(error.text, "rank 2 on host1 ended: too bad");
        assert_true(error.rank == 2 && error.failure == FAILURE_ERROR);
        agent_inbox_release(&inbox);
        agent_outbox_release(&outbox);
        control_detach(control);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages_that_do_not_fit),
        cmocka_unit_test(test_stream_in_pieces),
        cmocka_unit_test(test_exchange),
        cmocka_unit_test(test_slow_is_not_silent),
        cmocka_unit_test(test_losses),
        cmocka_unit_test(test_suspended_job_goes_on),
        cmocka_unit_test(test_cut_link),
    };
    return cmocka_run_group_tests_name("agent", tests, NULL, NULL);
}
