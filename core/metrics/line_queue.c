/* SPDX-License-Identifier: Apache-2.0 */
#include "core/metrics/line_queue.h"

#include "core/core.h"
#include "core/faults.h"

static const double first_pause = 0.1, longest_pause = 5; /* seconds */

void line_queue_init(struct line_queue *queue, int fd, const char *path)
{
    *queue =
        (struct line_queue){.fd = fd, .path = path, .waiting = memory_alloc(LINE_QUEUE_BYTES), .pause = first_pause};
}

void line_queue_release(struct line_queue *queue)
{
    free(TAKEN(queue->waiting));
}

static enum status write_waiting(struct line_queue *queue, struct error *err)
{
    size_t done = 0;
    int reason = 0;
    while (done < queue->used && !reason) {
        ssize_t n = fault_write(queue->fd, queue->waiting + done, queue->used - done);
        if (n >= 0)
            done += (size_t)n;
        else if (errno != EINTR)
            reason = errno;
    }
    queue->used -= done;
    memmove(queue->waiting, queue->waiting + done, queue->used);
    return reason ? error_system(err, STATUS_CHECKPOINT, reason, "cannot write '%s'", queue->path) : STATUS_OK;
}

static enum status attempt(struct line_queue *queue, struct error *err)
{
    struct error local = {.code = STATUS_OK}, *why = err ? err : &local;
    bool asks = queue->failing && queue->still_owner;
    enum status status = asks ? queue->still_owner(queue->owner, why) : STATUS_OK;
    if (status == STATUS_OK) status = write_waiting(queue, why);
    if (status == STATUS_OK) {
        if (queue->failing)
            log_info("'%s' can be written again; %" PRId64 " %s waited for that", queue->path, queue->waited,
                     queue->waited == 1 ? "line has" : "lines have");
        queue->failing = false;
        queue->waited = 0;
        queue->pause = first_pause;
        return STATUS_OK;
    }
    if (!error_is_transient(why)) return status;
    if (!queue->failing)
        log_warn("%s; its lines are kept in memory and written as soon as that is possible; training continues",
                 why->text);
    queue->failing = true;
    queue->retry_at = seconds_now() + queue->pause;
    queue->pause = fmin(2 * queue->pause, longest_pause);
    return STATUS_OK;
}

enum status line_queue_add(struct line_queue *queue, const char *line, size_t bytes, struct error *err)
{
    bool waits = queue->used > 0;
    if (waits && seconds_now() >= queue->retry_at) TRY(attempt(queue, err));
    if (bytes > LINE_QUEUE_BYTES - queue->used) {
        if (!queue->dropped++)
            log_warn("'%s' has not been writable for so long that new lines are lost from now on", queue->path);
        return STATUS_OK;
    }
    memcpy(queue->waiting + queue->used, line, bytes);
    queue->used += bytes;
    if (queue->used == bytes) TRY(attempt(queue, err));
    queue->waited += queue->used > 0;
    return STATUS_OK;
}

bool line_queue_drain(struct line_queue *queue, double seconds)
{
    const double end = seconds_now() + seconds, glance = 0.1;
    struct error err;
    while (queue->used > 0) {
        if (attempt(queue, &err) != STATUS_OK) break;
        while (queue->used > 0 && seconds_now() < queue->retry_at && seconds_now() < end) heartbeat_pause(glance);
        if (seconds_now() >= end) break;
    }
    int64_t lost = queue->dropped;
    for (size_t i = 0; i < queue->used; i++) lost += queue->waiting[i] == '\n';
    if (lost > 0 && seconds > 0)
        log_warn("%" PRId64 " lines of '%s' could not be written and are lost", lost, queue->path);
    return queue->used == 0;
}
