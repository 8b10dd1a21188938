/* SPDX-License-Identifier: Apache-2.0 */
/* agent.c: see agent.h. The sender puts each message once into the outbox, in which every connection has a position.
 * Heartbeats go to each connection when it has nothing else to send, so one that is stuck holds up nothing. The
 * listener polls the connections and this node's processes, and counts time in its own slices (watchdog.h). */
#include "comm/control/agent.h"

#include "comm/control/agent_messages.h"
#include "comm/control/watchdog.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>

enum {
    SCRATCH_BYTES = 1 << 16, /* received at once */
    STACK_BYTES = 256 << 10,
    SLICE_MS = 50,  /* between two looks of the listener */
    BACKLOG_MS = 5, /* between two tries of the sender when a socket is full */
    NICE = -10      /* if the system allows it */
};

static const double blame_after = 1.0;     /* seconds for waiting ranks to name a culprit */
static const double goodbye_failed = 2.0;  /* seconds to inform the others why the job has failed */
static const double start_patience = 10.0; /* least seconds until another agent must have sent its HELLO */

struct connection {
    int node, fd;
    /* the sender's */
    uint64_t position; /* in the outbox */
    char *heartbeat;   /* message, owned */
    size_t heartbeat_sent, heartbeat_bytes;
    bool heartbeat_due;
    atomic_bool mute; /* writing to the socket has failed */
    /* the listener's */
    struct agent_inbox inbox;
    bool ended;    /* the connection delivers nothing more */
    double silent; /* seconds since the connection last delivered bytes */
    double lost;   /* seconds since its node was found lost; below 0: the node is not lost */
};

struct local_rank {
    int rank, pidfd;  /* control->pidfds; -1: none to watch */
    uint32_t state;   /* the sender's: the state that the others were sent */
    uint32_t arrived; /* the sender's: arrivals that the others were sent */
    double gone;      /* the listener's: seconds since its process ended; below 0: it lives */
};

struct agent {
    struct control *control;
    double heartbeat_seconds;
    struct agent_outbox outbox;
    struct connection *connections; /* (count) owned */
    int count;
    struct local_rank *ranks; /* (local_world) owned */
    struct pollfd *polls;     /* (count + local_world) owned; the listener's */
    struct pollfd *writable;  /* (count) owned; the sender's */
    char *scratch;            /* (SCRATCH_BYTES) owned; the listener's */
    bool failure_sent;
    atomic_bool stopping, sent_all;
    bool sender_runs, listener_runs;
    pthread_t sender, listener;
};

static bool job_failed(const struct agent *agent)
{
    return atomic_load(&agent->control->block->failed) != 0;
}

/* ---- the sender ---------------------------------------------------------- */

static void collect_news(struct agent *agent)
{
    struct control_block *block = agent->control->block;
    for (struct local_rank *local = agent->ranks; local < agent->ranks + agent->control->local_world; local++) {
        struct control_rank *entry = &block->ranks[local->rank];
        uint32_t state = atomic_load(&entry->state), arrived = atomic_load(&entry->arrivals[CHANNEL_CONTROL]);
        while (local->arrived != arrived) {
            const struct control_op *op = &entry->op[CHANNEL_CONTROL][local->arrived % 2];
            ASSERT(op->slot_bytes <= CONTROL_SLOT_BYTES);
            const char *slot = control_slot(agent->control, local->rank, (int)(local->arrived % 2));
            agent_outbox_put(&agent->outbox, AGENT_SLOT, (uint32_t)local->rank, ++local->arrived, op, sizeof *op, slot,
                             op->slot_bytes);
        }
        if (local->state != state)
            agent_outbox_put(&agent->outbox, AGENT_STATE, (uint32_t)local->rank, state, NULL, 0, NULL, 0);
        local->state = state;
    }
    if (!agent->failure_sent && atomic_load(&block->failed) == 2) {
        agent->failure_sent = true;
        uint32_t rank = block->rank < 0 ? AGENT_NOBODY : (uint32_t)block->rank;
        agent_outbox_put(&agent->outbox, AGENT_FAIL, rank, (uint32_t)(block->code | block->failure << 8), block->text,
                         strnlen(block->text, sizeof block->text - 1), NULL, 0);
    }
}

static size_t agent_send(struct connection *c, const char *data, size_t bytes)
{
    ssize_t n = send(c->fd, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR && errno != ENOBUFS)
        atomic_store(&c->mute, true); /* the listener finds out why */
    return n > 0 ? (size_t)n : 0;
}

static bool flush_connection(struct agent *agent, struct connection *c)
{
    while (!atomic_load(&c->mute)) {
        const char *data = c->heartbeat + c->heartbeat_sent;
        size_t bytes = c->heartbeat_bytes - c->heartbeat_sent, sent;
        bool heartbeat = bytes > 0; /* a message is finished before another begins */
        if (!heartbeat) data = agent_outbox_peek(&agent->outbox, c->position, &bytes);
        if (bytes == 0) {
            if (!c->heartbeat_due) return true;
            agent_heartbeat_write(agent->control, c->heartbeat);
            c->heartbeat_sent = 0;
            c->heartbeat_bytes = agent_heartbeat_bytes(agent->control->local_world);
            c->heartbeat_due = false;
            continue;
        }
        sent = agent_send(c, data, bytes);
        if (heartbeat)
            c->heartbeat_sent += sent;
        else
            c->position += sent;
        if (sent < bytes) return atomic_load(&c->mute);
    }
    c->position = agent->outbox.head;
    return true;
}

static void become_agent_thread(const char *name)
{
    pthread_setname_np(pthread_self(), name);
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICE); /* of this thread only; may fail */
}

static void *agent_send_loop(void *argument)
{
    struct agent *agent = argument;
    struct control_block *block = agent->control->block;
    struct control_rank *first = &block->ranks[agent->control->rank];
    double next_heartbeat = 0, stop_limit = INFINITY;
    become_agent_thread("ztrain-send");
    for (;;) {
        uint32_t bell = atomic_load(&block->bell);
        bool stopping = atomic_load(&agent->stopping);
        double now = seconds_now();
        collect_news(agent);
        if (now >= next_heartbeat) {
            next_heartbeat = now + agent->heartbeat_seconds;
            atomic_fetch_add(&first->heard, 1); /* shows this node's ranks that their agent lives */
            for (int i = 0; i < agent->count; i++) agent->connections[i].heartbeat_due = true;
        }
        if (stopping && !isfinite(stop_limit)) {
            stop_limit = now + (job_failed(agent) ? goodbye_failed : agent->control->timeout);
            agent_outbox_put(&agent->outbox, AGENT_BYE, AGENT_NOBODY, 0, NULL, 0, NULL, 0);
            for (int i = 0; i < agent->count; i++)
                agent->connections[i].heartbeat_due = false; /* nothing is sent after the BYE */
        }
        nfds_t behind = 0; /* connections that do not take everything */
        for (int i = 0; i < agent->count; i++)
            if (!flush_connection(agent, &agent->connections[i]))
                agent->writable[behind++] = (struct pollfd){.fd = agent->connections[i].fd, .events = POLLOUT};
        if (stopping && (behind == 0 || now >= stop_limit)) break;
        if (stopping) next_heartbeat = INFINITY;
        if (behind)
            poll(agent->writable, behind, BACKLOG_MS);
        else
            control_bell_wait(agent->control, bell,
                              fmin(agent->heartbeat_seconds, fmax(next_heartbeat - seconds_now(), 0)));
    }
    for (int i = 0; i < agent->count; i++) shutdown(agent->connections[i].fd, SHUT_WR);
    atomic_store(&agent->sent_all, true);
    return NULL;
}

/* ---- the listener -------------------------------------------------------- */

/* Whether the other machine acknowledges data. Behind an unplugged cable data does not even count as sent. */
static bool machine_answers(const struct agent *agent, const struct connection *c)
{
    struct tcp_info info = {0};
    socklen_t size = sizeof info;
    int queued = 0;
    if (getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0)
        return true; /* not TCP: there is no network in between */
    if (ioctl(c->fd, SIOCOUTQ, &queued) != 0) queued = 0;
    return (info.tcpi_unacked == 0 && queued == 0) || info.tcpi_last_ack_recv < 500 * agent->control->timeout;
}

static void node_lost(struct agent *agent, struct connection *c, enum node_condition condition)
{
    if (c->lost >= 0) return;
    c->lost = 0;
    control_node_lost(agent->control, c->node, condition);
}

/* error: of its read; 0: it returned 0 */
static void connection_ended(struct agent *agent, struct connection *c, int error)
{
    c->ended = true;
    if (c->inbox.bye && !job_failed(agent)) /* in order: all ranks of that node have left */
        return;
    bool network = error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH || error == ENETDOWN ||
                   error == EHOSTDOWN || error == ENONET;
    node_lost(agent, c, network ? NODE_UNREACHABLE : NODE_ENDED);
}

static void agent_receive(struct agent *agent, struct connection *c)
{
    ssize_t n = recv(c->fd, agent->scratch, SCRATCH_BYTES, MSG_DONTWAIT);
    if (n > 0) {
        struct error error;
        c->silent = 0;
        if (agent_inbox_feed(&c->inbox, agent->scratch, (size_t)n, &error) == STATUS_OK) return;
        c->ended = true;
        control_fail(agent->control, &error);
    } else if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
        connection_ended(agent, c, n ? errno : 0);
    }
}

static void look_at_connection(struct agent *agent, struct connection *c, double slice)
{
    if (job_failed(agent)) return;
    if (c->lost >= 0) {
        c->lost += slice;
        if (c->lost >= blame_after) peer_blame_node(agent->control, c->node, -1, NULL);
        return;
    }
    if (c->ended || c->inbox.bye) return;
    c->silent += slice;
    double limit = agent->control->silence - agent->heartbeat_seconds;
    if (!c->inbox.hello && limit < start_patience) /* that agent may still be connecting with others */
        limit = start_patience;
    if (c->silent >= limit) node_lost(agent, c, machine_answers(agent, c) ? NODE_SILENT : NODE_UNREACHABLE);
}

/* event: whether the pidfd is ready, for the process has ended */
static void look_at_rank(struct agent *agent, struct local_rank *local, bool event, double slice)
{
    struct control_rank *entry = &agent->control->block->ranks[local->rank];
    uint32_t joined = RANK_JOINED;
    if (local->gone >= 0) local->gone += slice;
    if (event) {
        local->gone = 0;
        local->pidfd = -1;
        if (atomic_compare_exchange_strong(&entry->state, &joined, RANK_DEAD)) control_ring(agent->control);
    }
    uint32_t state = atomic_load(&entry->state);
    if (local->gone >= blame_after && state != RANK_CLOSED && !job_failed(agent))
        peer_blame_rank(agent->control, local->rank, -1, NULL);
}

static void *agent_listen_loop(void *argument)
{
    struct agent *agent = argument;
    double last = seconds_now(), stop_limit = INFINITY;
    become_agent_thread("ztrain-listen");
    for (;;) {
        nfds_t n = 0;
        for (int i = 0; i < agent->count; i++) {
            const struct connection *c = &agent->connections[i];
            agent->polls[n++] = (struct pollfd){.fd = c->ended ? -1 : c->fd, .events = POLLIN};
        }
        for (int i = 0; i < agent->control->local_world; i++)
            agent->polls[n++] = (struct pollfd){.fd = agent->ranks[i].pidfd, .events = POLLIN};
        int ready = poll(agent->polls, n, SLICE_MS);

        double now = seconds_now(),
               slice = fmin(now - last, 2e-3 * SLICE_MS); /* longer: this process was stopped or starved */
        last = now;
        for (int i = 0; i < agent->count; i++)
            if (ready > 0 && agent->polls[i].revents) agent_receive(agent, &agent->connections[i]);
        for (int i = 0; i < agent->control->local_world; i++)
            look_at_rank(agent, &agent->ranks[i], ready > 0 && agent->polls[agent->count + i].revents, slice);
        if (!atomic_load(&agent->stopping)) {
            for (int i = 0; i < agent->count; i++) look_at_connection(agent, &agent->connections[i], slice);
            continue;
        }
        if (!isfinite(stop_limit)) stop_limit = now + (job_failed(agent) ? goodbye_failed : agent->control->timeout);
        bool ended = atomic_load(&agent->sent_all);
        for (int i = 0; i < agent->count; i++) ended &= agent->connections[i].ended || agent->connections[i].inbox.bye;
        if (ended || now >= stop_limit) return NULL;
    }
}

/* ---- starting and stopping ----------------------------------------------- */

/* To see the other ranks of this node end. They need not have attached yet. */
static enum status open_processes(struct agent *agent, struct error *err)
{
    for (int i = 0; i < agent->control->local_world; i++) {
        struct local_rank *local = &agent->ranks[i];
        const struct control_rank *entry = &agent->control->block->ranks[local->rank];
        if (local->rank == agent->control->rank || entry->pid <= 0) continue;
        if (!control_open_process(agent->control, i)) {
            error_set(err, STATUS_PEER, "rank %d on %s (process %d) died at the start", local->rank, entry->host,
                      entry->pid);
            return error_blame(err, local->rank, FAILURE_DIED);
        }
        local->pidfd = agent->control->pidfds[i];
    }
    return STATUS_OK;
}

enum status agent_start(struct control *control, const struct agent_link *links, int count, struct agent **agent,
                        struct error *err)
{
    const struct control_block *block = control->block;
    ASSERT(control->locals[0] == control->rank && count == (int)block->num_nodes - 1);
    const size_t nodes = (size_t)count, ranks = (size_t)control->local_world;
    enum status status;
    struct agent *a = memory_zeroed(1, sizeof *a);
    *a = (struct agent){.control = control, .count = count};
    a->heartbeat_seconds = fmin(control->timeout / 20, 0.5);
    a->connections = memory_zeroed(nodes, sizeof *a->connections);
    a->ranks = memory_zeroed(ranks, sizeof *a->ranks);
    a->polls = memory_zeroed(nodes + ranks, sizeof *a->polls);
    a->writable = memory_zeroed(nodes, sizeof *a->writable);
    a->scratch = memory_alloc(SCRATCH_BYTES);
    for (int i = 0; i < count; i++) {
        a->connections[i] = (struct connection){.node = links[i].node, .fd = links[i].fd, .lost = -1};
        a->connections[i].heartbeat = memory_alloc(agent_heartbeat_bytes(control->local_world));
        agent_inbox_init(&a->connections[i].inbox, control, links[i].node);
    }
    for (int i = 0; i < control->local_world; i++)
        a->ranks[i] = (struct local_rank){.rank = control->locals[i], .pidfd = -1, .gone = -1};
    agent_outbox_init(&a->outbox, control->local_world);

    TRY_GOTO(open_processes(a, err));
    struct agent_hello hello = {block->world, block->num_nodes, block->local_world};
    agent_outbox_put(&a->outbox, AGENT_HELLO, (uint32_t)control->node, AGENT_VERSION, &hello, sizeof hello, NULL, 0);
    int error = thread_start(&a->sender, STACK_BYTES, agent_send_loop, a);
    a->sender_runs = error == 0;
    if (!error) error = thread_start(&a->listener, STACK_BYTES, agent_listen_loop, a);
    a->listener_runs = error == 0;
    if (error) TRY_GOTO(error_set(err, STATUS_DEVICE, "cannot start a thread: %s", strerror(error)));
    *agent = a;
    return STATUS_OK;
fail:
    if (a->sender_runs)
        control_blame(control, control->rank, FAILURE_ERROR, status, "%s", err ? err->text : "cannot start");
    agent_stop(a);
    return status;
}

void agent_stop(struct agent *agent)
{
    if (!agent) return;
    atomic_store(&agent->stopping, true); /* the listener looks every SLICE_MS */
    control_ring(agent->control);
    if (agent->sender_runs) pthread_join(agent->sender, NULL);
    if (agent->listener_runs) pthread_join(agent->listener, NULL);
    for (int i = 0; i < agent->count; i++) {
        struct connection *c = &agent->connections[i];
        close(c->fd);
        agent_inbox_release(&c->inbox);
        free(c->heartbeat);
    }
    agent_outbox_release(&agent->outbox);
    free(agent->connections);
    free(agent->ranks);
    free(agent->polls);
    free(agent->writable);
    free(agent->scratch);
    free(agent);
}
