/* SPDX-License-Identifier: Apache-2.0 */
#include "core/output.h"

#include "core/core.h"

#include <poll.h>

static const double drain_patience = 2; /* seconds */

struct record {
    uint32_t bytes; /* of text, which follows */
    int32_t fd;
};

struct queue {
    pthread_mutex_t mutex;
    pthread_cond_t changed; /* a record was put, all are written, or the queue has to stop */
    pthread_t thread;
    bool runs, stop, writing;
    int fd;            /* OUTLET_FILE only */
    size_t at, used;   /* first byte of the oldest record in the ring; bytes of all records */
    int64_t missing;   /* lines dropped since the last one that was put */
    int32_t missed_by; /* the descriptor for which they were meant */
    char ring[OUTPUT_BYTES + OUTPUT_RESERVE];
    char text[OUTPUT_RECORD]; /* used by the thread only */
};

static struct queue queues[OUTLET_COUNT] = {[OUTLET_STDOUT] = {.mutex = PTHREAD_MUTEX_INITIALIZER},
                                            [OUTLET_STDERR] = {.mutex = PTHREAD_MUTEX_INITIALIZER},
                                            [OUTLET_FILE] = {.mutex = PTHREAD_MUTEX_INITIALIZER}};
static bool one_file; /* stdout and stderr are the same file; set once, by output_start() */

static struct {
    pthread_mutex_t mutex;
    double spent; /* seconds of drain_patience used so far */
} drain = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void output_write_all(int fd, const char *text, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = write(fd, text, bytes);
        if (n < 0 && errno == EAGAIN) { /* another process that shares the descriptor made it non-blocking */
            struct pollfd ready = {.fd = fd, .events = POLLOUT};
            poll(&ready, 1, -1);
        } else if (n < 0 && errno != EINTR) {
            return;
        }
        text += n > 0 ? n : 0;
        bytes -= n > 0 ? (size_t)n : 0;
    }
}

/* ---- the ring: the caller holds the mutex -------------------------------- */

static void output_ring_in(struct queue *queue, const void *data, size_t bytes)
{
    size_t end = (queue->at + queue->used) % sizeof queue->ring, row = sizeof queue->ring - end;
    row = bytes < row ? bytes : row;
    memcpy(queue->ring + end, data, row);
    memcpy(queue->ring, (const char *)data + row, bytes - row);
    queue->used += bytes;
}

static void output_ring_out(struct queue *queue, void *data, size_t bytes)
{
    size_t row = sizeof queue->ring - queue->at;
    row = bytes < row ? bytes : row;
    memcpy(data, queue->ring + queue->at, row);
    memcpy((char *)data + row, queue->ring, bytes - row);
    queue->at = (queue->at + bytes) % sizeof queue->ring;
    queue->used -= bytes;
}

static void output_push(struct queue *queue, int fd, const char *text, size_t bytes)
{
    const struct record record = {.bytes = (uint32_t)bytes, .fd = fd};
    output_ring_in(queue, &record, sizeof record);
    output_ring_in(queue, text, bytes);
}

static void output_push_missing(struct queue *queue)
{
    char text[128];
    int n = snprintf(text, sizeof text, "ztrain: warning: %" PRId64 " line%s of output %s dropped: the %s\n",
                     queue->missing, queue->missing == 1 ? "" : "s", queue->missing == 1 ? "was" : "were",
                     queue == &queues[OUTLET_FILE] ? "log's file system was too slow" : "reader paused");
    queue->missing = 0;
    output_push(queue, queue->missed_by, text, (size_t)n);
}

/* Whether a text may be put. After a loss the queue must be half empty, or a slow reader gets many notices. */
static bool has_room(const struct queue *queue, size_t bytes, enum output_kind kind)
{
    static const size_t notice = sizeof(struct record) + 128;
    const size_t needed = queue->used + sizeof(struct record) + bytes + notice;
    if (kind == OUTPUT_LAST) return needed <= sizeof queue->ring;
    if (kind == OUTPUT_RENEWED) return queue->used <= OUTPUT_BYTES / 16;
    return needed <= OUTPUT_BYTES && (!queue->missing || queue->used <= OUTPUT_BYTES / 2);
}

/* ---- writing ------------------------------------------------------------- */

static void *output_write_loop(void *argument)
{
    struct queue *queue = argument;
    pthread_setname_np(pthread_self(), "ztrain-output");
    LOCKED(&queue->mutex);
    for (;;) {
        while (!queue->used && !queue->missing && !queue->stop) pthread_cond_wait(&queue->changed, &queue->mutex);
        if (!queue->used && queue->missing) output_push_missing(queue);
        if (!queue->used) break;
        struct record record;
        output_ring_out(queue, &record, sizeof record);
        output_ring_out(queue, queue->text, record.bytes);
        queue->writing = true;
        pthread_mutex_unlock(&queue->mutex);
        output_write_all(record.fd, queue->text, record.bytes);
        pthread_mutex_lock(&queue->mutex);
        queue->writing = false;
        if (!queue->used) pthread_cond_broadcast(&queue->changed);
    }
    return NULL;
}

static int queue_start(struct queue *queue)
{
    condition_init(&queue->changed);
    queue->stop = false;
    int error = thread_start(&queue->thread, 0, output_write_loop, queue);
    LOCKED(&queue->mutex);
    queue->runs = error == 0;
    return error;
}

int output_start(void)
{
    struct stat out, err;
    if (queues[OUTLET_STDOUT].runs) return 0;
    fflush(stdout);
    fflush(stderr);
    one_file = fstat(STDOUT_FILENO, &out) == 0 && fstat(STDERR_FILENO, &err) == 0 && out.st_dev == err.st_dev &&
               out.st_ino == err.st_ino;
    int error = queue_start(&queues[OUTLET_STDOUT]);
    if (error == 0 && !one_file) error = queue_start(&queues[OUTLET_STDERR]);
    for (int outlet = OUTLET_STDOUT; outlet <= OUTLET_STDERR; outlet++)
        if (queues[outlet].runs) pthread_detach(queues[outlet].thread);
    return error;
}

int output_open(int fd)
{
    output_close();
    queues[OUTLET_FILE].fd = fd;
    return queue_start(&queues[OUTLET_FILE]);
}

void output_put(enum outlet outlet, const char *text, size_t bytes, enum output_kind kind)
{
    struct queue *queue = &queues[outlet == OUTLET_STDERR && one_file ? OUTLET_STDOUT : outlet];
    ASSERT(bytes <= OUTPUT_RECORD);
    pthread_mutex_lock(&queue->mutex);
    const int fd = outlet == OUTLET_FILE ? queue->fd : outlet == OUTLET_STDOUT ? STDOUT_FILENO : STDERR_FILENO;
    bool runs = queue->runs;
    if (runs && has_room(queue, bytes, kind)) {
        if (queue->missing && kind != OUTPUT_RENEWED) output_push_missing(queue);
        output_push(queue, fd, text, bytes);
        pthread_cond_broadcast(&queue->changed);
    } else if (runs && kind != OUTPUT_RENEWED) {
        queue->missing++;
        queue->missed_by = fd;
    }
    pthread_mutex_unlock(&queue->mutex);
    if (runs || outlet == OUTLET_FILE) return;
    fflush(outlet == OUTLET_STDOUT ? stdout : stderr); /* keeps the order with earlier printf() output */
    output_write_all(fd, text, bytes);
}

/* ---- the end ------------------------------------------------------------- */

static bool output_queue_drain(struct queue *queue, const struct timespec *until)
{
    int code = 0;
    LOCKED(&queue->mutex);
    while (queue->runs && (queue->used || queue->writing || queue->missing) && code != ETIMEDOUT)
        code = pthread_cond_timedwait(&queue->changed, &queue->mutex, until);
    return !queue->runs || !(queue->used || queue->writing || queue->missing);
}

bool output_drain(void)
{
    bool empty = true;
    LOCKED(&drain.mutex);
    const double start = seconds_now();
    const struct timespec until = time_after(drain.spent < drain_patience ? drain_patience - drain.spent : 0);
    for (int outlet = 0; outlet < OUTLET_COUNT; outlet++) empty &= output_queue_drain(&queues[outlet], &until);
    drain.spent += seconds_now() - start;
    return empty;
}

void output_close(void)
{
    struct queue *queue = &queues[OUTLET_FILE];
    pthread_mutex_lock(&queue->mutex);
    bool runs = queue->runs;
    pthread_mutex_unlock(&queue->mutex);
    if (!runs) return;
    output_drain();
    pthread_mutex_lock(&queue->mutex);
    bool idle = !queue->writing;
    queue->runs = false;
    queue->stop = true;
    queue->missing = 0;
    if (idle) queue->used = 0;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->mutex);
    if (!idle) { /* the thread is in a write() that does not return; the end of the process ends it */
        pthread_detach(queue->thread);
        return;
    }
    pthread_join(queue->thread, NULL);
    pthread_cond_destroy(&queue->changed);
    close(queue->fd);
}
