/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/control/net.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum {
    VISIT_BYTES = 1 << 20, /* moved on one connection before the next has its turn */
    LOOK_MS = 50,          /* between two looks at a peer */
    STUCK_RETRIES = 6      /* consecutive retransmissions by TCP of the same bytes */
};

/* Precedes an operation's bytes. All ranks of a job run the same binary, so they have the same byte order. */
struct head {
    uint32_t sequence;
    uint32_t kind_dtype; /* kind × 256 + dtype */
    uint64_t count;
};

struct lane {
    uint32_t sequence; /* of the last operation whose head is complete */
    size_t head_done;  /* bytes of the current head */
    struct head head;  /* being received */
    uint32_t visited;  /* last round in which a part had its turn */
};

struct connection {
    int fd; /* -1: a rank of this node */
    struct lane out, in;
    int polled; /* index + 1 in the poll list of this round; 0: not in it */
};

struct net {
    struct control *control;
    int world;
    struct connection *connections; /* (world) */
    struct pollfd *fds;             /* (world) */
    struct control_op op;
    struct head head; /* of op */
    uint32_t round;
    struct watchdog watch; /* peer -1: none */
    double looked, stuck_looked;
    _Atomic int64_t sent, received;
};

struct net *net_new(struct control *control, int world)
{
    struct net *net = memory_zeroed(1, sizeof *net);
    *net = (struct net){.control = control, .world = world, .watch.peer = -1};
    net->connections = memory_zeroed((size_t)world, sizeof *net->connections);
    net->fds = memory_zeroed((size_t)world, sizeof *net->fds);
    for (int r = 0; r < world; r++) net->connections[r].fd = -1;
    return net;
}

void net_connect(struct net *net, int rank, int fd)
{
    net->connections[rank].fd = fd;
}

void net_free(struct net *net)
{
    if (!net) return;
    for (int r = 0; r < net->world; r++)
        if (net->connections[r].fd >= 0) close(net->connections[r].fd);
    free(net->connections);
    free(net->fds);
    free(net);
}

void net_counts(struct net *net, int64_t *sent, int64_t *received)
{
    *sent = atomic_load(&net->sent);
    *received = atomic_load(&net->received);
}

void net_begin(struct net *net, const struct control_op *op)
{
    net->op = *op;
    net->head =
        (struct head){.sequence = net->head.sequence + 1, .kind_dtype = op->kind * 256 + op->dtype, .count = op->count};
}

/* ---- one part ------------------------------------------------------------ */

enum moved { MOVED_ALL, MOVED_SOME, MOVED_BROKEN, MOVED_FOREIGN };

/* Of n bytes that have passed, the first complete the head. Returns the rest. */
static ssize_t pass_head(const struct net *net, struct lane *lane, ssize_t n)
{
    size_t left = sizeof net->head - lane->head_done, of_head = (size_t)n < left ? (size_t)n : left;
    lane->head_done += of_head;
    if (lane->head_done == sizeof net->head) {
        lane->sequence = net->head.sequence;
        lane->head_done = 0;
    }
    return n - (ssize_t)of_head;
}

/* With one system call, the head first if it is not complete. Returns the bytes of the part. */
static ssize_t send_some(struct net *net, struct connection *c, const struct net_part *part, size_t most)
{
    struct iovec pieces[2];
    struct msghdr message = {.msg_iov = pieces};
    bool headed = c->out.sequence == net->head.sequence;
    if (!headed)
        pieces[message.msg_iovlen++] =
            (struct iovec){(char *)&net->head + c->out.head_done, sizeof net->head - c->out.head_done};
    pieces[message.msg_iovlen++] = (struct iovec){part->data + part->done, most};
    ssize_t n = sendmsg(c->fd, &message, MSG_NOSIGNAL);
    if (n < 0 || headed) return n;
    return pass_head(net, &c->out, n);
}

/* In the same way; *foreign: the head belongs to another operation. */
static ssize_t receive_some(struct net *net, struct connection *c, struct net_part *part, size_t most, bool *foreign)
{
    bool headed = c->in.sequence == net->head.sequence;
    struct iovec pieces[2] = {{(char *)&c->in.head + c->in.head_done, sizeof c->in.head - c->in.head_done},
                              {part->data + part->done, most}};
    /* head and part in one call: if the head is foreign, the job fails and the part is never read */
    struct msghdr message = {.msg_iov = headed ? pieces + 1 : pieces, .msg_iovlen = headed ? 1 : 2};
    ssize_t n = recvmsg(c->fd, &message, 0);
    if (n <= 0) {
        if (n == 0) errno = 0;
        return -1;
    }
    if (headed) return n;
    n = pass_head(net, &c->in, n);
    *foreign = c->in.sequence == net->head.sequence && memcmp(&c->in.head, &net->head, sizeof net->head) != 0;
    return n;
}

static enum moved move(struct net *net, struct net_part *part)
{
    struct connection *c = &net->connections[part->peer];
    bool foreign = false;
    for (size_t visited = 0; part->done < part->bytes && visited < VISIT_BYTES;) {
        size_t most = part->bytes - part->done < VISIT_BYTES ? part->bytes - part->done : (size_t)VISIT_BYTES;
        ssize_t n = part->send ? send_some(net, c, part, most) : receive_some(net, c, part, most, &foreign);
        if (foreign) return MOVED_FOREIGN;
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return MOVED_SOME;
        if (n < 0) return MOVED_BROKEN;
        part->done += (size_t)n;
        visited += (size_t)n;
        atomic_fetch_add_explicit(part->send ? &net->sent : &net->received, n, memory_order_relaxed);
    }
    return part->done == part->bytes ? MOVED_ALL : MOVED_SOME;
}

static enum status fail_part(struct net *net, const struct net_part *part, enum moved moved)
{
    const char *what = operation_name(net->op.kind);
    if (moved == MOVED_BROKEN)
        return peer_lost(net->control, part->peer, what, errno ? strerror(errno) : "it closed its data connection");
    const struct head *head = &net->connections[part->peer].in.head;
    struct control_op other = {.kind = head->kind_dtype / 256, .dtype = head->kind_dtype % 256, .count = head->count};
    if (operation_matches(net->control, &net->op, part->peer, &other)) {
        control_blame(net->control, -1, FAILURE_NONE, STATUS_BUG,
                      "rank %d is in data operation %u over the network while rank %d is in %u", net->control->rank,
                      net->head.sequence, part->peer, head->sequence);
    }
    return control_status(net->control, NULL);
}

/* ---- all parts ----------------------------------------------------------- */

/* No earlier part of its peer and direction is unfinished. */
static bool has_turn(struct net *net, const struct net_part *part)
{
    struct connection *c = &net->connections[part->peer];
    struct lane *lane = part->send ? &c->out : &c->in;
    if (part->done == part->bytes || lane->visited == net->round) return false;
    lane->visited = net->round;
    return true;
}

/* Whether the network to a peer is down: its machine does not acknowledge bytes that TCP sent again and again. */
static bool stuck(const struct net *net, int fd)
{
    struct tcp_info info;
    socklen_t size = sizeof info;
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && info.tcpi_retransmits >= STUCK_RETRIES &&
           info.tcpi_last_ack_recv > 3e3 * net->control->timeout;
}

/* While waiting: beats, and watches the first peer that has not delivered or taken its data. */
static enum status look_around(struct net *net, const struct net_part *parts, int count, const char *what)
{
    double now = seconds_now();
    heartbeat_beat();
    TRY(control_status(net->control, NULL));
    if (now - net->looked < 1e-3 * LOOK_MS) return STATUS_OK;
    net->looked = now;
    const struct net_part *needed = NULL;
    for (int i = 0; i < count && !needed; i++)
        if (parts[i].done < parts[i].need) needed = &parts[i];
    if (!needed) return STATUS_OK;
    if (net->watch.peer != needed->peer)
        watchdog_begin(net->control, needed->peer, &net->watch);
    else
        watchdog_look(net->control, &net->watch, what);
    if (now - net->stuck_looked < 1) return STATUS_OK;
    net->stuck_looked = now;
    for (int i = 0; i < count; i++)
        if (parts[i].send && parts[i].done < parts[i].need && stuck(net, net->connections[parts[i].peer].fd))
            return peer_lost(net->control, parts[i].peer, what, "the network does not deliver data to it");
    return STATUS_OK;
}

enum status net_transfer(struct net *net, struct net_part *parts, int count)
{
    const char *what = operation_name(net->op.kind);
    net->watch.peer = -1;
    net->looked = seconds_now();
    for (bool first = true;; first = false) {
        bool needs = false;
        int num_fds = 0;
        net->round++;
        for (struct net_part *part = parts; part < parts + count; part++) {
            struct connection *c = &net->connections[part->peer];
            ASSERT(c->fd >= 0 && part->need <= part->bytes);
            short event = part->send ? POLLOUT : POLLIN;
            bool ready = first || (c->polled && (net->fds[c->polled - 1].revents & (event | POLLERR | POLLHUP)));
            if (has_turn(net, part) && ready) {
                enum moved moved = move(net, part);
                if (moved >= MOVED_BROKEN) return fail_part(net, part, moved);
            }
            needs |= part->done < part->need;
        }
        if (!needs) break;
        TRY(look_around(net, parts, count, what));
        for (int i = 0; i < count; i++) net->connections[parts[i].peer].polled = 0;
        net->round++;
        for (int i = 0; i < count; i++) {
            struct connection *c = &net->connections[parts[i].peer];
            if (!has_turn(net, &parts[i])) continue;
            if (!c->polled) {
                net->fds[num_fds++] = (struct pollfd){.fd = c->fd};
                c->polled = num_fds;
            }
            net->fds[c->polled - 1].events |= parts[i].send ? POLLOUT : POLLIN;
        }
        if (poll(net->fds, (nfds_t)num_fds, LOOK_MS) < 0 && errno != EINTR)
            control_blame(net->control, net->control->rank, FAILURE_ERROR, STATUS_DEVICE,
                          "cannot wait for the network: %s", strerror(errno));
    }
    for (int i = 0; i < count; i++) net->connections[parts[i].peer].polled = 0;
    return STATUS_OK;
}
