/* kv_store.c: the server's end of a key-value store. See kv_store.h.
 *
 * One thread polls doors and connections; nothing in it blocks. Bytes that cannot be sent at once wait in the buffer of
 * their connection. Only `stop` is shared with other threads. */
#include "comm/launch/kv_store.h"

#include "comm/launch/kv_frame.h"
#include "comm/wire/wire.h"
#include "core/memory.h"
#include "core/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { DOOR_MS = 500 /* longest time between two looks at the doors */, FIRST_BUFFER = 4096 };

enum presence { NEVER_CAME, HERE, LEFT, LOST };

struct entry {
    char *key, *value;
};

/* One rank: its connection and its values. */
struct member {
    int fd; /* -1: none */
    enum presence presence;
    bool in_fence;
    struct entry entries[KV_KEYS_MAX];
    int num_entries;
    unsigned char in[KV_HEADER_BYTES + KV_BODY_MAX];
    size_t in_bytes;
    unsigned char *out;
    size_t out_bytes, out_room;
};

struct kv_server {
    int world, num_doors;
    bool farewell; /* rank 0 is about to leave, and this server with it */
    struct wire_server *doors[KV_DOORS_MAX];
    struct member *members; /* (world) */
    struct pollfd *polled;  /* (1 + KV_DOORS_MAX + world) */
    int stop;               /* eventfd: readable when the thread has to end */
    pthread_t thread;
};

/* ---- connections --------------------------------------------------------- */

static void hang_up(struct member *member, enum presence presence)
{
    if (member->fd >= 0)
        close(member->fd);
    member->fd = -1;
    member->presence = presence;
    member->in_bytes = member->out_bytes = 0;
}

static void flush_out(struct member *member)
{
    if (member->fd < 0 || !member->out_bytes)
        return;
    size_t sent = 0;
    while (sent < member->out_bytes) {
        ssize_t n = send(member->fd, member->out + sent, member->out_bytes - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
            hang_up(member, LOST);
            return;
        }
        if (n < 0)
            break;
        sent += (size_t)n;
    }
    memmove(member->out, member->out + sent, member->out_bytes - sent);
    member->out_bytes -= sent;
}

static void send_to(struct member *member, enum kv_kind kind, int number, const char *body)
{
    if (member->fd < 0)
        return;
    struct kv_frame frame = {kind, number, (uint32_t)strlen(body)};
    size_t need = member->out_bytes + KV_HEADER_BYTES + frame.length, room = member->out_room;
    while (room < need)
        room = room ? 2 * room : FIRST_BUFFER;
    if (room > member->out_room)
        member->out = memory_resize(member->out, room);
    member->out_room = room;
    kv_frame_write(&frame, member->out + member->out_bytes);
    memcpy(member->out + member->out_bytes + KV_HEADER_BYTES, body, frame.length);
    member->out_bytes = need;
}

static void send_to_all(struct kv_server *server, enum kv_kind kind, int number, const char *body,
                        const struct member *except)
{
    for (int r = 0; r < server->world; r++)
        if (&server->members[r] != except) {
            send_to(&server->members[r], kind, number, body);
            flush_out(&server->members[r]);
        }
}

/* ---- requests ------------------------------------------------------------ */

static bool put(struct member *member, const char *body, size_t length)
{
    const char *end = memchr(body, 0, length);
    if (!end || member->num_entries == KV_KEYS_MAX || end == body || (size_t)(end - body) > BOOTSTRAP_KEY_MAX ||
        length - (size_t)(end - body) - 1 > BOOTSTRAP_VALUE_MAX)
        return false;
    member->entries[member->num_entries++] =
        (struct entry){memory_text(body), memory_printf("%.*s", (int)(length - (size_t)(end - body) - 1), end + 1)};
    return true;
}

static const char *find_value(const struct member *member, const char *key)
{
    for (int i = 0; i < member->num_entries; i++)
        if (!strcmp(member->entries[i].key, key))
            return member->entries[i].value;
    return NULL;
}

/* "rank 2 has not come, rank 3 is not there" (in the fence) */
static void list_absent(const struct kv_server *server, char text[KV_TEXT_MAX + 1])
{
    static const char *const words[] = {
        [NEVER_CAME] = "has not come", [HERE] = "is not there", [LEFT] = "has left", [LOST] = "is lost"};
    int listed = 0, absent = 0;
    text[0] = 0;
    for (int r = 0; r < server->world; r++) {
        const struct member *member = &server->members[r];
        if (member->presence == HERE && member->in_fence)
            continue;
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

/* Ends the fence if all ranks have come or one never will. */
static void look_at_fence(struct kv_server *server)
{
    char text[KV_TEXT_MAX + 1] = "";
    bool all = true;
    for (int r = 0; r < server->world; r++) {
        const struct member *member = &server->members[r];
        all &= member->in_fence;
        if (!*text && (member->presence == LEFT || member->presence == LOST))
            snprintf(text, sizeof text, "rank %d %s", r,
                     member->presence == LEFT ? "has left the job" : "has ended: its connection was lost");
    }
    for (int r = 0; r < server->world && (all || *text); r++) {
        struct member *member = &server->members[r];
        if (!member->in_fence)
            continue;
        member->in_fence = false;
        send_to(member, *text ? KV_LOST : KV_DONE, 0, text);
    }
}

/* Answers a request. False: the client breaks the rules. */
static bool answer(struct kv_server *server, int rank, const struct kv_frame *frame, const char *body)
{
    struct member *member = &server->members[rank];
    char text[KV_BODY_MAX + 1];
    memcpy(text, body, frame->length);
    text[frame->length] = 0;
    switch (frame->kind) {
    case KV_PUT: return put(member, body, frame->length);
    case KV_FENCE: member->in_fence = true; return true;
    case KV_GET: {
        if (frame->number >= server->world)
            return false;
        int first = frame->number < 0 ? 0 : frame->number, end = frame->number < 0 ? server->world : first + 1;
        for (int r = first; r < end; r++) {
            const char *value = find_value(&server->members[r], text);
            send_to(member, value ? KV_VALUE : KV_MISSING, r, value ? value : "");
            if (!value)
                break;
        }
        return true;
    }
    case KV_WHO:
        list_absent(server, text);
        send_to(member, KV_ABSENT, 0, text);
        return true;
    case KV_ABORT:
        send_to_all(server, KV_ABORTED, frame->number, text, member);
        send_to(member, KV_ABORTED, frame->number, text);
        return true;
    case KV_LEAVE:
        if (rank == 0) { /* when the others have left */
            server->farewell = true;
            return true;
        }
        send_to(member, KV_BYE, 0, "");
        flush_out(member);
        hang_up(member, LEFT);
        return true;
    default: return false;
    }
}

static void read_from(struct kv_server *server, int rank)
{
    struct member *member = &server->members[rank];
    ssize_t n = recv(member->fd, member->in + member->in_bytes, sizeof member->in - member->in_bytes, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return;
    if (n <= 0) {
        hang_up(member, LOST);
        return;
    }
    member->in_bytes += (size_t)n;
    while (member->in_bytes >= KV_HEADER_BYTES) {
        struct kv_frame frame;
        if (!kv_frame_read(member->in, &frame)) {
            hang_up(member, LOST);
            return;
        }
        size_t bytes = KV_HEADER_BYTES + frame.length;
        if (member->in_bytes < bytes)
            return;
        if (!answer(server, rank, &frame, (const char *)member->in + KV_HEADER_BYTES))
            hang_up(member, LOST);
        if (member->fd < 0)
            return;
        memmove(member->in, member->in + bytes, member->in_bytes - bytes);
        member->in_bytes -= bytes;
    }
}

/* ---- the thread ---------------------------------------------------------- */

static void close_doors(struct kv_server *server)
{
    for (int d = 0; d < server->num_doors; d++)
        wire_server_free(server->doors[d]);
    server->num_doors = 0;
}

static void let_in(struct kv_server *server)
{
    struct wire_connection one;
    bool all = true;
    for (int d = 0; d < server->num_doors; d++)
        while (wire_server_next(server->doors[d], 0, &one)) {
            struct member *member = one.rank > 0 && one.rank < server->world ? &server->members[one.rank] : NULL;
            if (!member || one.service != WIRE_STORE || (member->presence == HERE && member->num_entries)) {
                close(one.fd);
                continue;
            }
            hang_up(member, HERE); /* the rank has given up an earlier connection */
            member->fd = one.fd;
        }
    for (int r = 0; r < server->world; r++)
        all &= server->members[r].presence != NEVER_CAME;
    if (all)
        close_doors(server);
}

/* Lets rank 0 go when no other rank needs the server. */
static void look_at_farewell(struct kv_server *server)
{
    for (int r = 1; r < server->world && server->farewell; r++)
        if (server->members[r].presence == HERE)
            return;
    if (server->farewell)
        send_to(&server->members[0], KV_BYE, 0, "");
    server->farewell = false;
}

static void *serve(void *context)
{
    struct kv_server *server = context;
    for (;;) {
        int count = 0;
        server->polled[count++] = (struct pollfd){.fd = server->stop, .events = POLLIN};
        for (int d = 0; d < server->num_doors; d++)
            server->polled[count++] = (struct pollfd){.fd = wire_server_fd(server->doors[d]), .events = POLLIN};
        struct pollfd *members = server->polled + count;
        for (int r = 0; r < server->world; r++)
            server->polled[count++] = (struct pollfd){
                .fd = server->members[r].fd, .events = (short)(POLLIN | (server->members[r].out_bytes ? POLLOUT : 0))};
        poll(server->polled, (nfds_t)count, server->num_doors ? DOOR_MS : -1);
        if (server->polled[0].revents) {
            send_to_all(server, KV_BYE, 0, "", NULL);
            return NULL;
        }
        for (int r = 0; r < server->world; r++)
            if (members[r].revents && server->members[r].fd >= 0)
                read_from(server, r);
        let_in(server);
        look_at_fence(server);
        look_at_farewell(server);
        for (int r = 0; r < server->world; r++)
            flush_out(&server->members[r]);
    }
}

/* ---- beginning and end --------------------------------------------------- */

enum status kv_server_new(int world, struct wire_server *const *doors, int count, struct kv_server **server, int *own,
                          struct error *err)
{
    ASSERT(world > 0 && count >= 0 && count <= KV_DOORS_MAX);
    enum status status = STATUS_DEVICE;
    int pair[2] = {-1, -1};
    struct kv_server *s = memory_zeroed(1, sizeof *s);
    *server = NULL;
    *own = -1;
    s->world = world;
    s->num_doors = count;
    for (int d = 0; d < count; d++)
        s->doors[d] = doors[d];
    s->stop = eventfd(0, EFD_CLOEXEC);
    s->members = memory_zeroed((size_t)world, sizeof *s->members);
    s->polled = memory_zeroed((size_t)world + 1 + KV_DOORS_MAX, sizeof *s->polled);
    for (int r = 0; r < world; r++)
        s->members[r].fd = -1;
    if (s->stop < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) {
        error_set(err, status, "cannot set up a key-value store: %s", strerror(errno));
        goto fail;
    }
    s->members[0].fd = pair[0];
    s->members[0].presence = HERE;
    int error = thread_start(&s->thread, 0, serve, s);
    if (error) {
        error_set(err, status, "cannot start the key-value store's thread: %s", strerror(error));
        close(pair[1]);
        goto fail;
    }
    *own = pair[1];
    *server = s;
    return STATUS_OK;
fail:
    for (int r = 0; s->members && r < world; r++)
        hang_up(&s->members[r], LEFT);
    close_doors(s);
    if (s->stop >= 0)
        close(s->stop);
    free(s->members);
    free(s->polled);
    free(s);
    return status;
}

void kv_server_free(struct kv_server *server)
{
    if (!server)
        return;
    const uint64_t one = 1;
    if (write(server->stop, &one, sizeof one) == (ssize_t)sizeof one)
        pthread_join(server->thread, NULL);
    close_doors(server);
    for (int r = 0; r < server->world; r++) {
        struct member *member = &server->members[r];
        hang_up(member, LEFT);
        free(member->out);
        for (int i = 0; i < member->num_entries; i++) {
            free(member->entries[i].key);
            free(member->entries[i].value);
        }
    }
    close(server->stop);
    free(server->members);
    free(server->polled);
    free(server);
}
