/* SPDX-License-Identifier: Apache-2.0 */
/* kv_client.c: a rank's end of the store (kv_store.h). The reader thread receives all frames and hands answers to the
 * caller. `mutex` guards what both touch; `sending` keeps the bytes of a message together. */
#include "comm/launch/kv_store.h"

#include <poll.h>
#include <sys/socket.h>

enum { SEND_MS = 10000, VALUE_BYTES = BOOTSTRAP_VALUE_MAX + 1 };

static const double farewell_seconds = 1; /* for the server's last answer */

struct kv_client {
    int fd, world;
    kv_ended *ended;
    void *context;
    double grace;
    pthread_t reader;
    pthread_mutex_t mutex, sending;
    pthread_cond_t changed;
    bool over; /* no more answers come */
    bool left; /* … and that is in order, after BYE or this rank's LEAVE */
    enum status over_code;
    char over_text[KV_TEXT_MAX + 1];
    /* the answer that the caller waits for */
    uint32_t answer; /* enum kv_kind; 0: none yet */
    int values_left;
    char *values; /* where the next value goes */
    char answer_text[KV_TEXT_MAX + 1];
};

/* ---- receiving ----------------------------------------------------------- */

static void note_end(struct kv_client *client, enum status code, const char *text)
{
    if (client->over) return;
    client->over = true;
    client->over_code = code;
    snprintf(client->over_text, sizeof client->over_text, "%.512s", text);
}

/* Under the mutex. False: it was the last one. */
static bool receive_frame(struct kv_client *client, const struct kv_frame *frame, const char *body)
{
    switch (frame->kind) {
    case KV_VALUE:
        if (client->values_left == 0) break;
        memcpy(client->values, body, frame->length + 1);
        client->values += VALUE_BYTES;
        if (--client->values_left == 0) client->answer = KV_VALUE;
        return true;
    case KV_LOST:
    case KV_ABSENT:
        client->answer = frame->kind;
        client->values_left = 0;
        snprintf(client->answer_text, sizeof client->answer_text, "%.512s", body);
        return true;
    case KV_ABORTED:
        note_end(client, frame->number > 0 && frame->number < 256 ? (enum status)frame->number : STATUS_PEER, body);
        return false;
    case KV_BYE:
        client->left = true;
        note_end(client, STATUS_PEER, "rank 0 has left the job");
        return false;
    default: break;
    }
    note_end(client, STATUS_PEER, "rank 0 sent an invalid answer");
    return false;
}

/* False: the connection has ended, perhaps by kv_client_free(). */
static bool receive_bytes(struct kv_client *client, void *out, size_t bytes)
{
    return bytes == 0 || recv(client->fd, out, bytes, MSG_WAITALL) == (ssize_t)bytes; /* no signal comes here */
}

static void *read_all(void *context)
{
    struct kv_client *client = context;
    bool more = true;
    while (more) {
        char body[KV_BODY_MAX + 1];
        struct kv_frame frame;
        bool whole = receive_bytes(client, &frame, sizeof frame) && kv_frame_fits(&frame) &&
                     receive_bytes(client, body, frame.length);
        pthread_mutex_lock(&client->mutex);
        if (whole) {
            body[frame.length] = 0;
            more = receive_frame(client, &frame, body);
        } else {
            note_end(client, STATUS_PEER, "the connection with rank 0 is lost");
            more = false;
        }
        pthread_cond_broadcast(&client->changed);
        pthread_mutex_unlock(&client->mutex);
    }
    struct timespec end = time_after(client->grace);
    pthread_mutex_lock(&client->mutex);
    while (!client->left && pthread_cond_timedwait(&client->changed, &client->mutex, &end) != ETIMEDOUT)
        ;
    bool unexpected = !client->left;
    pthread_mutex_unlock(&client->mutex);
    if (unexpected && client->ended) client->ended(client->context, client->over_code, client->over_text);
    return NULL;
}

/* ---- asking -------------------------------------------------------------- */

static bool send_frame(struct kv_client *client, enum kv_kind kind, int number, const char *text)
{
    char message[sizeof(struct kv_frame) + KV_BODY_MAX];
    const struct kv_frame frame = {kind, number, (uint32_t)strnlen(text, KV_BODY_MAX)};
    const size_t bytes = sizeof frame + frame.length;
    memcpy(message, &frame, sizeof frame);
    memcpy(message + sizeof frame, text, frame.length);
    LOCKED(&client->sending);
    size_t sent = 0;
    while (sent < bytes) {
        ssize_t n = send(client->fd, message + sent, bytes - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        struct pollfd fd = {.fd = client->fd, .events = POLLOUT};
        if (n >= 0)
            sent += (size_t)n;
        else if (errno != EINTR && ((errno != EAGAIN && errno != EWOULDBLOCK) || poll(&fd, 1, SEND_MS) == 0))
            break;
    }
    return sent == bytes;
}

/* count: values of the answer. 0: none came. Nothing is written to `values` after it returns. */
static uint32_t ask(struct kv_client *client, enum kv_kind kind, const char *text, char *values, int count,
                    double seconds)
{
    struct timespec end = time_after(seconds);
    pthread_mutex_lock(&client->mutex);
    client->answer = 0;
    client->values = values;
    client->values_left = count;
    pthread_mutex_unlock(&client->mutex);
    bool sent = send_frame(client, kind, 0, text);
    LOCKED(&client->mutex);
    while (sent && !client->answer && !client->over &&
           pthread_cond_timedwait(&client->changed, &client->mutex, &end) != ETIMEDOUT)
        ;
    client->values_left = 0;
    return client->answer;
}

static bool is_over(struct kv_client *client)
{
    LOCKED(&client->mutex);
    return client->over;
}

enum status kv_exchange(struct kv_client *client, const char *own, char *values, double seconds, struct error *err)
{
    static const char what[] = "a fence of all ranks";
    ASSERT(strlen(own) <= KV_BODY_MAX);
    const uint32_t answer = ask(client, KV_GIVE, own, values, client->world, seconds);
    if (answer == KV_VALUE) return STATUS_OK;
    if (answer == KV_LOST) return error_set(err, STATUS_PEER, "%s: %s", what, client->answer_text);
    if (!is_over(client) && ask(client, KV_WHO, "", NULL, 0, farewell_seconds) == KV_ABSENT)
        return error_set(err, STATUS_PEER, "%s: %s after %.3g s", what, client->answer_text, seconds);
    if (is_over(client)) /* the text does not change any more */
        return error_set(err, client->over_code, "%s: %s", what, client->over_text);
    return error_set(err, STATUS_PEER, "%s: no answer from rank 0's key-value store for %.3g s", what, seconds);
}

/* This rank ends by itself, so `ended` is not called. */
static void say_farewell(struct kv_client *client, enum kv_kind kind, int number, const char *text, double seconds)
{
    struct timespec end = time_after(seconds);
    pthread_mutex_lock(&client->mutex);
    bool over = client->over;
    client->left |= !over || kind == KV_LEAVE;
    pthread_cond_broadcast(&client->changed);
    pthread_mutex_unlock(&client->mutex);
    if (over || !send_frame(client, kind, number, text)) return;
    LOCKED(&client->mutex);
    while (!client->over && pthread_cond_timedwait(&client->changed, &client->mutex, &end) != ETIMEDOUT)
        ;
}

void kv_abort(struct kv_client *client, enum status code, const char *text)
{
    say_farewell(client, KV_ABORT, (int)code, text, farewell_seconds); /* the server cuts the text */
}

void kv_leave(struct kv_client *client, double seconds)
{
    say_farewell(client, KV_LEAVE, 0, "", seconds);
}

/* ---- beginning and end --------------------------------------------------- */

enum status kv_client_new(int fd, int world, double grace, kv_ended *ended, void *context, struct kv_client **client,
                          struct error *err)
{
    struct kv_client *c = memory_zeroed(1, sizeof *c);
    *c = (struct kv_client){.fd = fd, .world = world, .ended = ended, .context = context, .grace = grace};
    pthread_mutex_init(&c->mutex, NULL);
    pthread_mutex_init(&c->sending, NULL);
    condition_init(&c->changed);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    int error = thread_start(&c->reader, 0, read_all, c);
    if (error) {
        close(fd);
        free(c);
        return error_set(err, STATUS_DEVICE, "cannot start a thread for the key-value store: %s", strerror(error));
    }
    *client = c;
    return STATUS_OK;
}

void kv_client_free(struct kv_client *client)
{
    if (!client) return;
    thread_tell(&client->left, &client->mutex, &client->changed);
    shutdown(client->fd, SHUT_RD); /* the reader ends */
    pthread_join(client->reader, NULL);
    close(client->fd);
    pthread_cond_destroy(&client->changed);
    pthread_mutex_destroy(&client->mutex);
    pthread_mutex_destroy(&client->sending);
    free(client);
}
