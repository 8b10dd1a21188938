/* SPDX-License-Identifier: Apache-2.0 */
/* kv_store.c: the server's end of the store: one thread, which shares only `stop`. The answers to an exchange are one
 * buffer for all, in which each connection has a position; other bytes that cannot be sent wait in that of theirs. */
#include "comm/launch/kv_store.h"

#include "comm/wire/wire.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

enum { DOOR_MS = 500 /* longest time between two looks at the doors */, FIRST_BUFFER = 4096 };

enum presence { NEVER_CAME, HERE, LEFT, LOST };

struct member {
    int fd; /* -1: none */
    enum presence presence;
    bool known; /* it has given a value on this connection */
    bool gives; /* its value waits for those of the others */
    char value[BOOTSTRAP_VALUE_MAX + 1];
    size_t answered; /* bytes of the answers that were sent */
    char in[sizeof(struct kv_frame) + KV_BODY_MAX], *out;
    size_t in_bytes, out_bytes, out_room;
};

struct kv_server {
    int world, num_doors;
    bool farewell; /* rank 0 is about to leave, and this server with it */
    struct wire_server *doors[KV_DOORS_MAX];
    struct member *members; /* (world) */
    char *answers;          /* (world × (a frame and a value)) to the last exchange */
    size_t answer_bytes;
    struct pollfd *polled; /* (1 + KV_DOORS_MAX + world) */
    int stop;              /* eventfd: readable when the thread has to end */
    pthread_t thread;
};

/* ---- connections --------------------------------------------------------- */

static void kv_hang_up(struct member *member, enum presence presence)
{
    fs_close(&member->fd);
    member->presence = presence;
    member->in_bytes = member->out_bytes = 0;
}

/* False: the connection takes no more. */
static bool kv_send_some(struct member *member, const char *data, size_t bytes, size_t *at)
{
    while (*at < bytes && member->fd >= 0) {
        ssize_t n = send(member->fd, data + *at, bytes - *at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n >= 0)
            *at += (size_t)n;
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            return false;
        else if (errno != EINTR)
            kv_hang_up(member, LOST);
    }
    return true;
}

static void flush(const struct kv_server *server, struct member *member)
{
    size_t sent = 0;
    if (member->answered > 0 && !kv_send_some(member, server->answers, server->answer_bytes, &member->answered)) return;
    bool all = kv_send_some(member, member->out, member->out_bytes, &sent);
    if (member->fd < 0) return;
    if (sent) memmove(member->out, member->out + sent, member->out_bytes - sent);
    member->out_bytes -= sent;
    if (all) kv_send_some(member, server->answers, server->answer_bytes, &member->answered);
}

static void send_to(struct member *member, enum kv_kind kind, int number, const char *body)
{
    if (member->fd < 0) return;
    const struct kv_frame frame = {kind, number, (uint32_t)strlen(body)};
    size_t need = member->out_bytes + sizeof frame + frame.length, room = member->out_room;
    while (room < need) room = room ? 2 * room : FIRST_BUFFER;
    if (room > member->out_room) member->out = memory_resize(member->out, room);
    member->out_room = room;
    memcpy(member->out + member->out_bytes, &frame, sizeof frame);
    memcpy(member->out + member->out_bytes + sizeof frame, body, frame.length);
    member->out_bytes = need;
}

static void send_to_all(struct kv_server *server, enum kv_kind kind, int number, const char *body,
                        const struct member *except)
{
    for (int r = 0; r < server->world; r++)
        if (&server->members[r] != except) {
            send_to(&server->members[r], kind, number, body);
            flush(server, &server->members[r]);
        }
}

/* ---- requests ------------------------------------------------------------ */

/* "rank 2 has not come, rank 3 is not there" */
static void list_absent(const struct kv_server *server, char text[KV_TEXT_MAX + 1])
{
    static const char *const words[] = {
        [NEVER_CAME] = "has not come", [HERE] = "is not there", [LEFT] = "has left", [LOST] = "is lost"};
    int listed = 0, absent = 0;
    text[0] = 0;
    for (int r = 0; r < server->world; r++) {
        const struct member *member = &server->members[r];
        if (member->presence == HERE && member->gives) continue;
        size_t length = strlen(text);
        absent++;
        if (length + 64 < KV_TEXT_MAX && ++listed)
            snprintf(text + length, KV_TEXT_MAX + 1 - length, "%srank %d %s", length ? ", " : "", r,
                     words[member->presence]);
    }
    size_t length = strlen(text);
    if (absent > listed)
        snprintf(text + length, KV_TEXT_MAX + 1 - length, " and %d more", absent - listed);
    else if (!absent)
        snprintf(text, KV_TEXT_MAX + 1, "all ranks are there");
}

/* Ends the exchange if all ranks have given or one never will. */
static void look_at_exchange(struct kv_server *server)
{
    char text[KV_TEXT_MAX + 1] = "";
    bool all = true;
    for (int r = 0; r < server->world; r++) {
        const struct member *member = &server->members[r];
        all &= member->gives;
        if (!*text && (member->presence == LEFT || member->presence == LOST))
            snprintf(text, sizeof text, "rank %d %s", r,
                     member->presence == LEFT ? "has left the job" : "has ended: its connection was lost");
    }
    all &= !*text;
    if (all) server->answer_bytes = 0;
    for (int r = 0; r < server->world && all; r++) {
        struct member *member = &server->members[r];
        const struct kv_frame frame = {KV_VALUE, r, (uint32_t)strlen(member->value)};
        memcpy(server->answers + server->answer_bytes, &frame, sizeof frame);
        memcpy(server->answers + server->answer_bytes + sizeof frame, member->value, frame.length);
        server->answer_bytes += sizeof frame + frame.length;
        member->gives = false;
        member->answered = 0;
    }
    for (int r = 0; r < server->world && *text; r++)
        if (server->members[r].gives) {
            server->members[r].gives = false;
            send_to(&server->members[r], KV_LOST, 0, text);
        }
}

/* False: the client breaks the rules. */
static bool answer(struct kv_server *server, int rank, const struct kv_frame *frame, const char *body)
{
    struct member *member = &server->members[rank];
    char text[KV_BODY_MAX + 1];
    memcpy(text, body, frame->length);
    text[frame->length] = 0;
    switch (frame->kind) {
    case KV_GIVE:
        if (member->gives || member->answered < server->answer_bytes || strlen(text) != frame->length) return false;
        memcpy(member->value, text, sizeof member->value);
        member->known = member->gives = true;
        return true;
    case KV_WHO:
        list_absent(server, text);
        send_to(member, KV_ABSENT, 0, text);
        return true;
    case KV_ABORT:
        text[KV_TEXT_MAX] = 0;
        send_to_all(server, KV_ABORTED, frame->number, text, member);
        send_to(member, KV_ABORTED, frame->number, text);
        return true;
    case KV_LEAVE:
        if (rank == 0) { /* when the others have left */
            server->farewell = true;
            return true;
        }
        send_to(member, KV_BYE, 0, "");
        flush(server, member);
        kv_hang_up(member, LEFT);
        return true;
    default: return false;
    }
}

static void read_from(struct kv_server *server, int rank)
{
    struct member *member = &server->members[rank];
    ssize_t n = recv(member->fd, member->in + member->in_bytes, sizeof member->in - member->in_bytes, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (n <= 0) {
        kv_hang_up(member, LOST);
        return;
    }
    member->in_bytes += (size_t)n;
    while (member->in_bytes >= sizeof(struct kv_frame)) {
        struct kv_frame frame;
        memcpy(&frame, member->in, sizeof frame);
        const size_t bytes = sizeof frame + frame.length;
        if (kv_frame_fits(&frame) && member->in_bytes < bytes) return;
        if (!kv_frame_fits(&frame) || !answer(server, rank, &frame, member->in + sizeof frame))
            kv_hang_up(member, LOST);
        if (member->fd < 0) return;
        memmove(member->in, member->in + bytes, member->in_bytes - bytes);
        member->in_bytes -= bytes;
    }
}

/* ---- the thread ---------------------------------------------------------- */

static void close_doors(struct kv_server *server)
{
    for (int d = 0; d < server->num_doors; d++) wire_server_free(server->doors[d]);
    server->num_doors = 0;
}

static void let_in(struct kv_server *server)
{
    struct wire_connection one;
    bool all = true;
    for (int d = 0; d < server->num_doors; d++)
        while (wire_server_next(server->doors[d], &one)) {
            struct member *member = one.rank > 0 && one.rank < server->world ? &server->members[one.rank] : NULL;
            if (!member || one.service != WIRE_STORE || (member->presence == HERE && member->known)) {
                close(one.fd);
                continue;
            }
            kv_hang_up(member, HERE); /* the rank has given up an earlier connection */
            member->fd = one.fd;
        }
    for (int r = 0; r < server->world; r++) all &= server->members[r].presence != NEVER_CAME;
    if (all) close_doors(server);
}

static void *kv_serve(void *context)
{
    struct kv_server *server = context;
    for (;;) {
        int count = 0;
        server->polled[count++] = (struct pollfd){.fd = server->stop, .events = POLLIN};
        for (int d = 0; d < server->num_doors; d++)
            server->polled[count++] = (struct pollfd){.fd = wire_server_fd(server->doors[d]), .events = POLLIN};
        struct pollfd *members = server->polled + count;
        for (const struct member *member = server->members; member < server->members + server->world; member++) {
            const bool more = member->out_bytes || member->answered < server->answer_bytes;
            server->polled[count++] = (struct pollfd){.fd = member->fd, .events = more ? POLLIN | POLLOUT : POLLIN};
        }
        poll(server->polled, (nfds_t)count, server->num_doors ? DOOR_MS : -1);
        if (server->polled[0].revents) {
            send_to_all(server, KV_BYE, 0, "", NULL);
            return NULL;
        }
        for (int r = 0; r < server->world; r++)
            if (members[r].revents && server->members[r].fd >= 0) read_from(server, r);
        let_in(server);
        look_at_exchange(server);
        bool alone = true; /* rank 0, when the others have left */
        for (int r = 1; r < server->world; r++) alone &= server->members[r].presence != HERE;
        if (server->farewell && alone) {
            send_to(&server->members[0], KV_BYE, 0, "");
            server->farewell = false;
        }
        for (int r = 0; r < server->world; r++) flush(server, &server->members[r]);
    }
}

/* ---- beginning and end --------------------------------------------------- */

static void release_server(struct kv_server *server)
{
    close_doors(server);
    for (int r = 0; r < server->world; r++) {
        kv_hang_up(&server->members[r], LEFT);
        free(server->members[r].out);
    }
    if (server->stop >= 0) close(server->stop);
    free(server->members);
    free(server->answers);
    free(server->polled);
    free(server);
}

enum status kv_server_new(int world, struct wire_server *const *doors, int count, struct kv_server **server, int *own,
                          struct error *err)
{
    ASSERT(world > 0 && count >= 0 && count <= KV_DOORS_MAX);
    enum status status;
    int pair[2] = {-1, -1};
    struct kv_server *s = memory_zeroed(1, sizeof *s);
    s->world = world;
    s->num_doors = count;
    for (int d = 0; d < count; d++) s->doors[d] = doors[d];
    s->stop = eventfd(0, EFD_CLOEXEC);
    s->members = memory_zeroed((size_t)world, sizeof *s->members);
    s->polled = memory_zeroed((size_t)world + 1 + KV_DOORS_MAX, sizeof *s->polled);
    s->answers = memory_alloc((size_t)world * (sizeof(struct kv_frame) + KV_BODY_MAX));
    for (int r = 0; r < world; r++) s->members[r].fd = -1;
    if (s->stop < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0)
        TRY_GOTO(error_set(err, STATUS_DEVICE, "cannot set up a key-value store: %s", strerror(errno)));
    s->members[0].fd = pair[0];
    s->members[0].presence = HERE;
    int error = thread_start(&s->thread, 0, kv_serve, s);
    if (error)
        TRY_GOTO(error_set(err, STATUS_DEVICE, "cannot start the key-value store's thread: %s", strerror(error)));
    *own = pair[1];
    *server = s;
    return STATUS_OK;
fail:
    if (pair[1] >= 0) close(pair[1]);
    release_server(s);
    return status;
}

void kv_server_free(struct kv_server *server)
{
    if (!server) return;
    const uint64_t one = 1;
    if (write(server->stop, &one, sizeof one) == (ssize_t)sizeof one) pthread_join(server->thread, NULL);
    release_server(server);
}
