/* kv_client.c: a rank's end of a key-value store. See kv_store.h.
 *
 * The reader thread receives all frames and hands answers to the caller that waits for them. `mutex` guards everything
 * that both touch; `sending` keeps the bytes of a message together. */
#include "comm/launch/kv_frame.h"
#include "comm/launch/kv_store.h"
#include "core/clock.h"
#include "core/memory.h"
#include "core/thread.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SEND_MS = 10000, VALUE_BYTES = BOOTSTRAP_VALUE_MAX + 1 };

static const double farewell_seconds = 1; /* for the server's last answer */

struct kv_client {
    int fd, rank, world, stop /* eventfd: readable when the reader has to end */;
    kv_ended *ended;
    void *context;
    pthread_t reader;
    pthread_mutex_t mutex, sending;
    pthread_cond_t changed;
    bool over; /* no more answers come */
    bool left; /* … and that is in order, after BYE or this rank's LEAVE */
    enum status over_code;
    char over_text[KV_TEXT_MAX + 1];
    /* the answer that the caller waits for */
    enum kv_kind answer;
    int answer_rank, values_left;
    char *values; /* where the next value goes */
    char answer_text[KV_TEXT_MAX + 1];
};

/* ---- receiving ----------------------------------------------------------- */

static void note_end(struct kv_client *client, enum status code, const char *text)
{
    if (client->over)
        return;
    client->over = true;
    client->over_code = code;
    snprintf(client->over_text, sizeof client->over_text, "%s", text);
}

/* Takes a frame from the server, under the mutex. False: it was the last one. */
static bool receive_frame(struct kv_client *client, const struct kv_frame *frame, const char *body)
{
    switch (frame->kind) {
    case KV_VALUE:
        if (client->values_left == 0 || frame->length > BOOTSTRAP_VALUE_MAX)
            break;
        memcpy(client->values, body, frame->length + 1);
        client->values += VALUE_BYTES;
        if (--client->values_left == 0)
            client->answer = KV_VALUE;
        return true;
    case KV_DONE:
    case KV_LOST:
    case KV_MISSING:
    case KV_ABSENT:
        client->answer = frame->kind;
        client->answer_rank = frame->number;
        client->values_left = 0;
        snprintf(client->answer_text, sizeof client->answer_text, "%.512s", body);
        return true;
    case KV_ABORTED: {
        char text[KV_TEXT_MAX + 1];
        snprintf(text, sizeof text, "%.512s", body);
        bool sane = frame->number > 0 && frame->number < 256;
        note_end(client, sane ? (enum status)frame->number : STATUS_PEER, text);
        return false;
    }
    case KV_BYE:
        client->left = true;
        note_end(client, STATUS_PEER, "rank 0 has left the job");
        return false;
    default: break;
    }
    note_end(client, STATUS_PEER, "rank 0 sent an invalid answer");
    return false;
}

static bool receive_bytes(struct kv_client *client, void *out, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        struct pollfd fds[2] = {{.fd = client->fd, .events = POLLIN}, {.fd = client->stop, .events = POLLIN}};
        if (poll(fds, 2, -1) < 0 && errno != EINTR)
            return false;
        if (fds[1].revents)
            return false;
        ssize_t n = recv(client->fd, (char *)out + at, bytes - at, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
            return false;
        at += n > 0 ? (size_t)n : 0;
    }
    return true;
}

static void *read_all(void *context)
{
    struct kv_client *client = context;
    bool more = true;
    while (more) {
        unsigned char header[KV_HEADER_BYTES];
        char body[KV_BODY_MAX + 1];
        struct kv_frame frame;
        bool whole = receive_bytes(client, header, sizeof header) && kv_frame_read(header, &frame) &&
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
    pthread_mutex_lock(&client->mutex);
    bool unexpected = !client->left;
    pthread_mutex_unlock(&client->mutex);
    if (unexpected && client->ended)
        client->ended(client->context, client->over_code, client->over_text);
    return NULL;
}

/* ---- asking -------------------------------------------------------------- */

static bool send_frame(struct kv_client *client, enum kv_kind kind, int number, const void *body, size_t length)
{
    unsigned char message[KV_HEADER_BYTES + KV_BODY_MAX];
    struct kv_frame frame = {kind, number, (uint32_t)length};
    ASSERT(length <= KV_BODY_MAX);
    kv_frame_write(&frame, message);
    memcpy(message + KV_HEADER_BYTES, body, length);
    pthread_mutex_lock(&client->sending);
    size_t sent = 0;
    while (sent < KV_HEADER_BYTES + length) {
        ssize_t n = send(client->fd, message + sent, KV_HEADER_BYTES + length - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        struct pollfd fd = {.fd = client->fd, .events = POLLOUT};
        if (n >= 0)
            sent += (size_t)n;
        else if (errno != EINTR && ((errno != EAGAIN && errno != EWOULDBLOCK) || poll(&fd, 1, SEND_MS) == 0))
            break;
    }
    pthread_mutex_unlock(&client->sending);
    return sent == KV_HEADER_BYTES + length;
}

static void expect(struct kv_client *client, char *values, int count)
{
    pthread_mutex_lock(&client->mutex);
    client->answer = 0;
    client->values = values;
    client->values_left = count;
    pthread_mutex_unlock(&client->mutex);
}

/* Waits for an answer; 0: none came in time, or none will come. Nothing is written to `values` after it returns. */
static enum kv_kind await(struct kv_client *client, double seconds)
{
    struct timespec end = time_after(seconds);
    pthread_mutex_lock(&client->mutex);
    while (!client->answer && !client->over &&
           pthread_cond_timedwait(&client->changed, &client->mutex, &end) != ETIMEDOUT)
        ;
    enum kv_kind answer = client->answer;
    client->values_left = 0;
    pthread_mutex_unlock(&client->mutex);
    return answer;
}

/* The error of a request without an answer. */
static enum status no_answer(struct kv_client *client, const char *what, double seconds, struct error *err)
{
    pthread_mutex_lock(&client->mutex);
    bool over = client->over;
    enum status code = over ? client->over_code : STATUS_PEER;
    pthread_mutex_unlock(&client->mutex);
    if (over) /* the text does not change any more */
        return error_set(err, code, "%s: %s", what, client->over_text);
    return error_set(err, code, "%s: no answer from rank 0's key-value store for %.3g s", what, seconds);
}

enum status kv_put(struct kv_client *client, const char *key, const char *value, struct error *err)
{
    char body[KV_BODY_MAX];
    size_t key_bytes = strlen(key) + 1, value_bytes = strlen(value);
    ASSERT(key_bytes <= BOOTSTRAP_KEY_MAX + 1 && value_bytes <= BOOTSTRAP_VALUE_MAX);
    memcpy(body, key, key_bytes);
    memcpy(body + key_bytes, value, value_bytes);
    if (send_frame(client, KV_PUT, 0, body, key_bytes + value_bytes))
        return STATUS_OK;
    return no_answer(client, "putting a value", 1e-3 * SEND_MS, err);
}

enum status kv_fence(struct kv_client *client, double seconds, struct error *err)
{
    expect(client, NULL, 0);
    enum kv_kind answer = send_frame(client, KV_FENCE, 0, "", 0) ? await(client, seconds) : 0;
    if (answer == KV_DONE)
        return STATUS_OK;
    if (answer == KV_LOST)
        return error_set(err, STATUS_PEER, "a fence of all ranks: %s", client->answer_text);
    bool over = answer != 0;
    pthread_mutex_lock(&client->mutex);
    over |= client->over;
    pthread_mutex_unlock(&client->mutex);
    if (over || !send_frame(client, KV_WHO, 0, "", 0))
        return no_answer(client, "a fence of all ranks", seconds, err);
    if (await(client, farewell_seconds) == KV_ABSENT)
        return error_set(err, STATUS_PEER, "a fence of all ranks: %s after %.3g s", client->answer_text, seconds);
    return no_answer(client, "a fence of all ranks", seconds, err);
}

enum status kv_get(struct kv_client *client, int rank, const char *key, char *values, double seconds, struct error *err)
{
    char what[BOOTSTRAP_KEY_MAX + 16];
    snprintf(what, sizeof what, "getting '%s'", key);
    expect(client, values, rank < 0 ? client->world : 1);
    if (!send_frame(client, KV_GET, rank, key, strlen(key)))
        return no_answer(client, what, seconds, err);
    enum kv_kind answer = await(client, seconds);
    if (answer == KV_VALUE)
        return STATUS_OK;
    if (answer == KV_MISSING)
        return error_set(err, STATUS_PEER, "rank %d has put no '%s'", client->answer_rank, key);
    return no_answer(client, what, seconds, err);
}

static void say_farewell(struct kv_client *client, enum kv_kind kind, int number, const char *text, double seconds)
{
    struct timespec end = time_after(seconds);
    if (!send_frame(client, kind, number, text, strnlen(text, KV_TEXT_MAX)))
        return;
    pthread_mutex_lock(&client->mutex);
    while (!client->over && pthread_cond_timedwait(&client->changed, &client->mutex, &end) != ETIMEDOUT)
        ;
    pthread_mutex_unlock(&client->mutex);
}

void kv_abort(struct kv_client *client, enum status code, const char *text)
{
    pthread_mutex_lock(&client->mutex);
    bool over = client->over;
    client->left = true; /* this rank ends by itself: `ended` is not called */
    pthread_mutex_unlock(&client->mutex);
    if (!over)
        say_farewell(client, KV_ABORT, (int)code, text, farewell_seconds);
}

void kv_leave(struct kv_client *client, double seconds)
{
    pthread_mutex_lock(&client->mutex);
    bool over = client->over;
    client->left = true;
    pthread_mutex_unlock(&client->mutex);
    if (!over)
        say_farewell(client, KV_LEAVE, 0, "", seconds);
}

/* ---- beginning and end --------------------------------------------------- */

enum status kv_client_new(int fd, int rank, int world, kv_ended *ended, void *context, struct kv_client **client,
                          struct error *err)
{
    struct kv_client *c = memory_zeroed(1, sizeof *c);
    *client = NULL;
    *c = (struct kv_client){
        .fd = fd, .rank = rank, .world = world, .ended = ended, .context = context, .stop = eventfd(0, EFD_CLOEXEC)};
    pthread_mutex_init(&c->mutex, NULL);
    pthread_mutex_init(&c->sending, NULL);
    condition_init(&c->changed);
    int error = c->stop < 0 ? EMFILE : thread_start(&c->reader, 0, read_all, c);
    if (error) {
        if (c->stop >= 0)
            close(c->stop);
        close(fd);
        free(c);
        return error_set(err, STATUS_DEVICE, "cannot start a thread for the key-value store: %s", strerror(error));
    }
    *client = c;
    return STATUS_OK;
}

void kv_client_free(struct kv_client *client)
{
    if (!client)
        return;
    const uint64_t one = 1;
    pthread_mutex_lock(&client->mutex);
    client->left = true;
    pthread_mutex_unlock(&client->mutex);
    if (write(client->stop, &one, sizeof one) == (ssize_t)sizeof one)
        pthread_join(client->reader, NULL);
    close(client->stop);
    close(client->fd);
    pthread_cond_destroy(&client->changed);
    pthread_mutex_destroy(&client->mutex);
    pthread_mutex_destroy(&client->sending);
    free(client);
}
