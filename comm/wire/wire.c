/* SPDX-License-Identifier: Apache-2.0 */
/* wire.c: see wire.h. One state machine serves both ends of a handshake: `talk` holds all messages so far, each ending
 * with the MAC of everything before it. The connecting end sends the even messages. */
#include "comm/wire/wire.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sodium.h>
#include <sys/epoll.h>
#include <sys/socket.h>

enum {
    NONCE_BYTES = 32,
    JOB_BYTES = 32, /* hash of the job's name */
    MAC_BYTES = crypto_auth_BYTES,

    LINKS_MAX = 512,   /* connections that a server has at once, most of them in a handshake */
    DIALS_MAX = 128,   /* connects at once */
    PAUSE_MIN_MS = 20, /* between two tries to connect; doubled up to the maximum */
    PAUSE_MAX_MS = 500,
    HEARTBEAT_MS = 100, /* between two heartbeats */
    WARNED_MAX = 32     /* addresses that a server has warned of and remembers */
};
_Static_assert(crypto_auth_KEYBYTES == (int)WIRE_SECRET_BYTES, "the secret is the key");

static const unsigned char magic[8] = "ztrain\0\1";    /* the last byte is the protocol's version */
static const double known_seconds = 15;                /* for a handshake after a valid hello: packets may get lost */
static const double try_seconds = 2, longest_try = 16; /* for one of several addresses; doubled after each silent try */

enum message { HELLO, CHALLENGE, PROOF, WELCOME, MESSAGE_COUNT };

/* All messages, one after the other; words in this machine's byte order: all ranks run the same binary. */
struct talk {
    struct {
        unsigned char magic[sizeof magic];
        uint32_t service, world, from, to;
        unsigned char job[JOB_BYTES], nonce[NONCE_BYTES], mac[MAC_BYTES];
    } hello;
    struct {
        unsigned char nonce[NONCE_BYTES], mac[MAC_BYTES];
    } challenge;
    unsigned char proof[MAC_BYTES], welcome[MAC_BYTES];
};
static const size_t message_end[] = {[HELLO] = offsetof(struct talk, challenge),
                                     [CHALLENGE] = offsetof(struct talk, proof),
                                     [PROOF] = offsetof(struct talk, welcome),
                                     [WELCOME] = sizeof(struct talk)};
_Static_assert(COUNT_OF(message_end) == MESSAGE_COUNT, "every message has an end");

/* ---- handshake ----------------------------------------------------------- */

struct link {
    const struct wire_self *self;
    int fd; /* -1: none */
    bool accepting;
    enum message message;     /* being sent or received; MESSAGE_COUNT: the handshake is over */
    size_t done;              /* bytes of the talk that are sent or received */
    double since;             /* seconds_now() at the start */
    struct wire_address from; /* accepting: the peer's */
    int peer;                 /* the peer's rank, and the service; accepting: taken from the hello */
    uint32_t service;
    struct talk talk;
};

enum progress { LINK_WAITS, LINK_READY, LINK_BROKEN };

static void job_hash(const struct wire_self *self, unsigned char hash[JOB_BYTES])
{
    crypto_generichash(hash, JOB_BYTES, (const unsigned char *)self->job, strlen(self->job), NULL, 0);
}

/* Fills `input` with what the message's MAC covers: its number and all bytes of the talk before the MAC. */
static size_t wire_mac_input(const struct link *link, unsigned char input[1 + sizeof(struct talk)])
{
    size_t length = message_end[link->message] - MAC_BYTES;
    input[0] = (unsigned char)link->message;
    memcpy(input + 1, &link->talk, length);
    return length + 1;
}

static void wire_compose(struct link *link)
{
    unsigned char input[1 + sizeof link->talk];
    struct talk *talk = &link->talk;
    if (link->message == HELLO) {
        memcpy(talk->hello.magic, magic, sizeof magic);
        talk->hello.service = link->service;
        talk->hello.world = (uint32_t)link->self->world;
        talk->hello.from = (uint32_t)link->self->rank;
        talk->hello.to = (uint32_t)link->peer;
        job_hash(link->self, talk->hello.job);
        randombytes_buf(talk->hello.nonce, NONCE_BYTES);
    } else if (link->message == CHALLENGE) {
        randombytes_buf(talk->challenge.nonce, NONCE_BYTES);
    }
    size_t length = wire_mac_input(link, input);
    crypto_auth((unsigned char *)talk + message_end[link->message] - MAC_BYTES, input, length, link->self->secret);
}

static const char *wire_examine(struct link *link)
{
    unsigned char input[1 + sizeof link->talk], job[JOB_BYTES];
    const struct talk *talk = &link->talk;
    const unsigned char *mac = (const unsigned char *)talk + message_end[link->message] - MAC_BYTES;
    if (crypto_auth_verify(mac, input, wire_mac_input(link, input), link->self->secret) != 0)
        return link->message == HELLO ? "it does not know this job's secret"
                                      : "it cannot prove that it belongs to this job";
    if (link->message != HELLO) return NULL;
    job_hash(link->self, job);
    const uint32_t from = talk->hello.from, world = (uint32_t)link->self->world, rank = (uint32_t)link->self->rank;
    if (sodium_memcmp(talk->hello.job, job, JOB_BYTES) != 0 || talk->hello.world != world)
        return "it belongs to another job with the same secret";
    if (talk->hello.to != rank) return "it looks for another rank";
    if (from >= world || from == rank) return "it claims a rank that this job does not have";
    link->peer = (int)from;
    link->service = talk->hello.service;
    return NULL;
}

/* As far as the socket takes and gives. LINK_BROKEN: *why has the reason. */
static enum progress wire_link_step(struct link *link, const char **why)
{
    for (;;) {
        size_t end = message_end[link->message], start = link->message == HELLO ? 0 : message_end[link->message - 1];
        bool ours = (link->message % 2 == 1) == link->accepting;
        if (ours && link->done == start) wire_compose(link);
        unsigned char *at = (unsigned char *)&link->talk + link->done;
        ssize_t n = ours ? send(link->fd, at, end - link->done, MSG_NOSIGNAL) : recv(link->fd, at, end - link->done, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return LINK_WAITS;
        if (n <= 0) {
            *why = n < 0 ? strerror(errno) : "it closed the connection during the handshake";
            return LINK_BROKEN;
        }
        link->done += (size_t)n;
        if (!ours && link->message == HELLO &&
            memcmp(&link->talk, magic, link->done < sizeof magic ? link->done : sizeof magic) != 0) {
            *why = "it does not speak this protocol";
            return LINK_BROKEN;
        }
        if (link->done < end) continue;
        *why = ours ? NULL : wire_examine(link);
        if (*why) return LINK_BROKEN;
        if (++link->message == MESSAGE_COUNT) return LINK_READY;
    }
}

static void wire_set_option(int fd, int level, int option, int value)
{
    setsockopt(fd, level, option, &value, sizeof value);
}

static void wire_set_options(const struct link *link)
{
    bool watched = link->service != WIRE_DATA && link->self->timeout_seconds > 0;
    int seconds = watched ? (int)link->self->timeout_seconds + 1 : 60;
    wire_set_option(link->fd, IPPROTO_TCP, TCP_NODELAY, 1);
    wire_set_option(link->fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    wire_set_option(link->fd, IPPROTO_TCP, TCP_KEEPIDLE, watched ? (seconds + 3) / 4 : seconds);
    wire_set_option(link->fd, IPPROTO_TCP, TCP_KEEPINTVL, watched ? 1 : 10);
    wire_set_option(link->fd, IPPROTO_TCP, TCP_KEEPCNT, watched ? (seconds < 100 ? seconds : 100) : 10);
    if (watched) wire_set_option(link->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)(link->self->timeout_seconds * 1000));
}

/* ---- accepting ----------------------------------------------------------- */

struct wire_server {
    struct wire_self self;
    int listener, epoll;
    struct link *links[LINKS_MAX]; /* (count) owned, the oldest first */
    int count;
    struct wire_address warned[WARNED_MAX];
    int num_warned;
};

static void from_socket_address(const struct sockaddr *from, socklen_t size, struct wire_address *address)
{
    char port[8] = "0";
    if (getnameinfo(from, size, address->text, sizeof address->text, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        snprintf(address->text, sizeof address->text, "?");
    address->port = (uint16_t)strtoul(port, NULL, 10);
}

enum status wire_listen(struct wire_address *address, int *listener, struct error *err)
{
    char text[WIRE_PRINTED];
    struct sockaddr_storage own;
    socklen_t size = sizeof own;
    *listener = -1;
    struct addrinfo *where = wire_socket_address(address->text, address->port);
    if (!where) return error_set(err, STATUS_PEER, "cannot listen at '%s': not a numeric address", address->text);
    RELEASED(fs_close) int fd = socket(where->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0) wire_set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (fd < 0 || bind(fd, where->ai_addr, where->ai_addrlen) != 0 || listen(fd, 4096) != 0 ||
        getsockname(fd, (struct sockaddr *)&own, &size) != 0) {
        error_system(err, STATUS_PEER, errno, "cannot listen at %s", wire_address_print(address, text));
        freeaddrinfo(where);
        return STATUS_PEER;
    }
    freeaddrinfo(where);
    from_socket_address((struct sockaddr *)&own, size, address);
    *listener = fd;
    fd = -1;
    return STATUS_OK;
}

enum status wire_server_new(const struct wire_self *self, int listener, struct wire_server **server, struct error *err)
{
    ASSERT(listener >= 0);
    RELEASED(wire_server_drop) struct wire_server *s = memory_zeroed(1, sizeof *s);
    struct epoll_event event = {.events = EPOLLIN};
    *s = (struct wire_server){.self = *self, .listener = listener, .epoll = epoll_create1(EPOLL_CLOEXEC)};
    if (s->epoll < 0 || sodium_init() < 0 || epoll_ctl(s->epoll, EPOLL_CTL_ADD, listener, &event) != 0)
        return error_set(err, STATUS_DEVICE, "cannot set up a listener: %s", strerror(errno));
    *server = TAKEN(s);
    return STATUS_OK;
}

static void remove_link(struct wire_server *server, struct link *link)
{
    int i = 0;
    while (server->links[i] != link) i++;
    server->count--;
    memmove(&server->links[i], &server->links[i + 1], (size_t)(server->count - i) * sizeof(struct link *));
    free(link);
}

static void drop(struct wire_server *server, struct link *link)
{
    fs_close(&link->fd);
    remove_link(server, link);
}

void wire_server_free(struct wire_server *server)
{
    if (!server) return;
    while (server->count > 0) drop(server, server->links[0]);
    if (server->epoll >= 0) close(server->epoll);
    close(server->listener);
    free(server);
}

int wire_server_fd(const struct wire_server *server)
{
    return server->epoll;
}

/* Once for each address: a stranger may connect a thousand times. */
static void warn(struct wire_server *server, const struct link *link, const char *why)
{
    char text[WIRE_PRINTED];
    for (int i = 0; i < server->num_warned; i++)
        if (!strcmp(server->warned[i].text, link->from.text)) return;
    if (server->num_warned == WARNED_MAX) return;
    server->warned[server->num_warned++] = link->from;
    log_warn("dropped a connection from %s: %s", wire_address_print(&link->from, text), why);
}

/* Drops the oldest handshake that has no valid hello yet, else the oldest of all; false: there is none. */
static bool make_room(struct wire_server *server)
{
    struct link *oldest = NULL;
    for (int i = server->count - 1; i >= 0; i--) {
        struct link *link = server->links[i];
        if (link->message != MESSAGE_COUNT && (!oldest || link->message == HELLO || oldest->message != HELLO))
            oldest = link;
    }
    if (oldest) drop(server, oldest);
    return oldest != NULL;
}

static void advance(struct wire_server *server, struct link *link)
{
    const char *why = NULL;
    enum progress progress = wire_link_step(link, &why);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = link};
    switch (progress) {
    case LINK_WAITS:
        if (link->message % 2 == 1) event.events = EPOLLOUT; /* rare: an answer fits into any socket buffer */
        epoll_ctl(server->epoll, EPOLL_CTL_MOD, link->fd, &event);
        break;
    case LINK_READY: epoll_ctl(server->epoll, EPOLL_CTL_DEL, link->fd, NULL); break;
    case LINK_BROKEN:
        warn(server, link, why);
        drop(server, link);
        break;
    }
}

static void accept_all(struct wire_server *server)
{
    while (server->count < LINKS_MAX || make_room(server)) {
        struct sockaddr_storage from;
        socklen_t size = sizeof from;
        int fd = accept4(server->listener, (struct sockaddr *)&from, &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            if ((errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) && !make_room(server))
                usleep(10000); /* the listener stays ready */
            return;
        }
        struct link *link = memory_zeroed(1, sizeof *link);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = link};
        if (epoll_ctl(server->epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
            close(fd);
            free(link);
            return;
        }
        *link = (struct link){.self = &server->self, .fd = fd, .accepting = true, .since = seconds_now()};
        from_socket_address((struct sockaddr *)&from, size, &link->from);
        server->links[server->count++] = link;
        advance(server, link); /* a rank's hello has mostly arrived already */
    }
}

static void serve(struct wire_server *server)
{
    struct epoll_event events[64];
    bool knocked = false;
    for (int i = server->count - 1; i >= 0; i--) {
        struct link *link = server->links[i];
        if (link->message == MESSAGE_COUNT ||
            seconds_now() - link->since < (link->message == HELLO ? WIRE_STRANGER_SECONDS : known_seconds))
            continue;
        warn(server, link, link->done ? "its handshake is too slow" : "it sent nothing");
        drop(server, link);
    }
    int n = epoll_wait(server->epoll, events, COUNT_OF(events), 0);
    for (int i = 0; i < n; i++) {
        if (events[i].data.ptr)
            advance(server, events[i].data.ptr);
        else
            knocked = true; /* accept later: making room may free a link that has an event in this list */
    }
    if (knocked) accept_all(server);
}

static bool take_ready(struct wire_server *server, struct wire_connection *connection)
{
    for (int i = 0; i < server->count; i++) {
        struct link *link = server->links[i];
        if (link->message != MESSAGE_COUNT) continue;
        wire_set_options(link);
        *connection = (struct wire_connection){link->fd, link->peer, (enum wire_service)link->service};
        remove_link(server, link);
        return true;
    }
    return false;
}

bool wire_server_next(struct wire_server *server, struct wire_connection *connection)
{
    if (take_ready(server, connection)) return true;
    serve(server);
    return take_ready(server, connection);
}

/* ---- connecting ---------------------------------------------------------- */

struct dial {
    struct wire_peer *peer;
    int turn; /* of its addresses */
    struct link link;
    bool connected;  /* TCP is connected, the handshake is under way */
    double next;     /* seconds_now() at which to try again */
    double patience; /* seconds for the current try where there are other addresses */
    int pause_ms;
    bool turned_away;  /* a listener accepted and then closed the connection during the handshake */
    char trouble[160]; /* the error of the last try, or of the one that was turned away */
};

static void dial_failed(struct dial *dial, const char *why)
{
    fs_close(&dial->link.fd);
    if (!dial->turned_away || dial->connected) snprintf(dial->trouble, sizeof dial->trouble, "%s", why);
    dial->turned_away |= dial->connected;
    dial->turn++;
    if (dial->turn % dial->peer->num_addresses == 0) {
        dial->next = seconds_now() + 1e-3 * dial->pause_ms;
        dial->pause_ms = dial->pause_ms * 2 < PAUSE_MAX_MS ? dial->pause_ms * 2 : PAUSE_MAX_MS;
    }
}

static void dial_start(const struct wire_self *self, struct dial *dial)
{
    dial->link = (struct link){
        .self = self, .fd = -1, .since = seconds_now(), .peer = dial->peer->rank, .service = dial->peer->service};
    dial->connected = false;
    const struct wire_address *address = &dial->peer->addresses[dial->turn % dial->peer->num_addresses];
    struct addrinfo *where = wire_socket_address(address->text, address->port);
    if (!where) {
        dial_failed(dial, "not a numeric address");
        return;
    }
    dial->link.fd = socket(where->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (dial->link.fd < 0 || (connect(dial->link.fd, where->ai_addr, where->ai_addrlen) != 0 && errno != EINPROGRESS))
        dial_failed(dial, strerror(errno));
    freeaddrinfo(where);
}

static void dial_step(struct dial *dial)
{
    const char *why = NULL;
    if (!dial->connected) {
        int code = 0;
        socklen_t size = sizeof code;
        getsockopt(dial->link.fd, SOL_SOCKET, SO_ERROR, &code, &size);
        if (code != 0) {
            dial_failed(dial, strerror(code));
            return;
        }
        dial->connected = true;
    }
    switch (wire_link_step(&dial->link, &why)) {
    case LINK_WAITS: break;
    case LINK_BROKEN: dial_failed(dial, why); break;
    case LINK_READY:
        wire_set_options(&dial->link);
        dial->peer->fd = dial->link.fd;
        dial->link.fd = -1;
        break;
    }
}

struct rendezvous {
    const struct wire_self *self;
    struct wire_server *server; /* NULL: no connection is waited for */
    struct wire_peer *peers;    /* (count) */
    int count;
    struct dial *dials; /* (num_dials), each for one of the peers */
    int num_dials;
    int open;                         /* dials polled now: */
    struct dial *polled[DIALS_MAX];   /* … */
    struct pollfd fds[DIALS_MAX + 1]; /* … theirs, then that of the server */
};

static void keep_connection(const struct rendezvous *m, const struct wire_connection *connection)
{
    for (struct wire_peer *peer = m->peers; peer < m->peers + m->count; peer++)
        if (peer->rank > m->self->rank && peer->rank == connection->rank && peer->service == connection->service) {
            fs_close(&peer->fd);
            peer->fd = connection->fd;
            return;
        }
    close(connection->fd);
}

/* Names the first peer without a connection. */
static enum status name_missing(const struct rendezvous *m, double seconds, struct error *err)
{
    const struct wire_peer *first = NULL;
    int others = -1;
    char more[64] = "", text[WIRE_PRINTED];
    for (int i = m->count - 1; i >= 0; i--)
        if (m->peers[i].fd < 0) {
            others++;
            first = &m->peers[i];
        }
    if (others > 0) snprintf(more, sizeof more, ", and %d more", others);
    ASSERT(first);
    const char *service = first->service == WIRE_STORE   ? "key-value store"
                          : first->service == WIRE_AGENT ? "health"
                                                         : "data";
    const struct dial *dial = NULL;
    for (int i = 0; i < m->num_dials; i++)
        if (m->dials[i].peer == first) dial = &m->dials[i];
    if (dial) {
        const struct wire_address *address =
            &first->addresses[(dial->turn ? dial->turn - 1 : 0) % first->num_addresses];
        error_set(err, STATUS_PEER,
                  "rank %d cannot connect with rank %d on %s at %s (%s connection) within %.3g s: %s%s", m->self->rank,
                  first->rank, first->host, wire_address_print(address, text), service, seconds,
                  dial->trouble[0] ? dial->trouble : "no answer", more);
    } else {
        error_set(err, STATUS_PEER, "rank %d on %s has not connected with rank %d (%s connection) within %.3g s%s",
                  first->rank, first->host, m->self->rank, service, seconds, more);
    }
    error_blame(err, first->rank, FAILURE_ABSENT);
    if (dial && dial->turned_away)
        return error_hint(err,
                          "a program listens there, but does not accept this rank as one of its job: check that both "
                          "have the same secret (ZTRAIN_JOB_SECRET) and job, and that no other program uses this "
                          "port");
    if (first->service == WIRE_STORE) /* the caller adds a better hint */
        return STATUS_PEER;
    return error_hint(
        err, "look for a firewall between the nodes, or an interface that does not connect them (comm.interface)");
}

/* Where there are others: a listener that is silent after the hello may be another program. */
static void wire_leave_silent_address(struct dial *dial, double now)
{
    if (dial->link.fd < 0 || dial->peer->num_addresses == 1 || dial->link.message > CHALLENGE ||
        now - dial->link.since <= dial->patience)
        return;
    dial_failed(dial, "no answer");
    dial->patience = dial->patience < longest_try ? 2 * dial->patience : longest_try;
}

/* Starts the dials that are due and fills fds. Returns when the next one is due, at most a heartbeat from now. */
static double wire_start_dials(struct rendezvous *m, double now)
{
    double wake = now + 1e-3 * HEARTBEAT_MS;
    m->open = 0;
    for (int i = 0; i < m->num_dials && m->open < DIALS_MAX; i++) {
        struct dial *dial = &m->dials[i];
        if (dial->peer->fd >= 0) continue;
        wire_leave_silent_address(dial, now);
        if (dial->link.fd < 0 && dial->next <= now) dial_start(m->self, dial);
        if (dial->link.fd < 0) {
            wake = dial->next < wake ? dial->next : wake;
            continue;
        }
        const bool sends = !dial->connected || dial->link.message % 2 == 0;
        m->fds[m->open] = (struct pollfd){.fd = dial->link.fd, .events = sends ? POLLOUT : POLLIN};
        m->polled[m->open++] = dial;
    }
    m->fds[m->open] = (struct pollfd){.fd = m->server ? wire_server_fd(m->server) : -1, .events = POLLIN};
    return wake;
}

static enum status wire_connect_all(struct rendezvous *m, double seconds, struct error *err)
{
    const double end = seconds_now() + seconds;
    for (;;) {
        struct wire_connection connection;
        while (m->server && wire_server_next(m->server, &connection)) keep_connection(m, &connection);
        int missing = 0;
        for (int i = 0; i < m->count; i++) missing += m->peers[i].fd < 0;
        if (!missing) return STATUS_OK;
        double now = seconds_now();
        if (now >= end) return name_missing(m, seconds, err);
        double wake = wire_start_dials(m, now);
        int wait = (int)((wake - now) * 1e3) + 1;
        poll(m->fds, (nfds_t)m->open + 1, wait < 0 ? 0 : wait);
        for (int i = 0; i < m->open; i++)
            if (m->fds[i].revents) dial_step(m->polled[i]);
        heartbeat_beat();
    }
}

enum status wire_connect(const struct wire_self *self, struct wire_server *server, struct wire_peer *peers, int count,
                         double timeout_seconds, struct error *err)
{
    struct rendezvous m = {.self = self, .server = server, .peers = peers, .count = count};
    if (sodium_init() < 0) return error_set(err, STATUS_DEVICE, "cannot initialise libsodium");
    m.dials = memory_zeroed((size_t)count + 1, sizeof *m.dials);
    /* the nearest rank first, so that not all ranks connect to rank 0 at once */
    for (int i = count - 1; i >= 0; i--) {
        peers[i].fd = -1;
        if (!server || peers[i].rank < self->rank)
            m.dials[m.num_dials++] =
                (struct dial){.peer = &peers[i], .link.fd = -1, .patience = try_seconds, .pause_ms = PAUSE_MIN_MS};
    }
    enum status status = wire_connect_all(&m, timeout_seconds, err);
    for (int i = 0; i < m.num_dials; i++) fs_close(&m.dials[i].link.fd);
    for (int i = 0; status != STATUS_OK && i < count; i++) fs_close(&peers[i].fd);
    free(m.dials);
    return status;
}
