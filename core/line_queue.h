/* line_queue.h: appending lines to a file whose disk may fail for a while, without keeping anybody waiting.
 *
 *   add -> | the rest of a line, if a part of it is in the file | line | line | … |  -> the file, in order
 *
 * A line goes to the file with one write(). When that fails with a cause that may pass (error_is_transient()), this
 * line and those after it wait in memory, and are written before the next one, in order; a line of which a part has
 * been written is completed first, so that the file holds whole lines only. While writing fails, it is tried again
 * after pauses that double, at each line that is added. What does not fit is dropped and counted.
 *
 * A disk that was away may mean that this node was cut off, and that the file belongs to another job by now: before
 * lines that have waited are written, the queue asks still_owner(). */
#ifndef ZTRAIN_CORE_LINE_QUEUE_H
#define ZTRAIN_CORE_LINE_QUEUE_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LINE_QUEUE_BYTES = 1 << 20 };

struct line_queue {
    int fd;                                                     /* borrowed; open for appending */
    const char *path;                                           /* borrowed; for messages */
    char *waiting;                                              /* (LINE_QUEUE_BYTES) owned */
    size_t used;                                                /* bytes of it */
    double retry_at, pause;                                     /* seconds_now(); seconds */
    int64_t waited, dropped;                                    /* lines, up to now */
    bool failing;                                               /* the newest attempt failed, and a warning says so */
    enum status (*still_owner)(void *owner, struct error *err); /* NULL: always */
    void *owner;
};

void line_queue_init(struct line_queue *queue, int fd, const char *path);
void line_queue_release(struct line_queue *queue);

/* Takes a line with its newline. A failure that may pass is a warning (log_warn), once for each time that it begins;
 * any other is STATUS_CHECKPOINT, or still_owner()'s. */
enum status line_queue_add(struct line_queue *queue, const char *line, size_t bytes, struct error *err);

/* Tries to write what waits, for so many seconds, ticking; 0: once. Whether nothing waits any more. */
bool line_queue_drain(struct line_queue *queue, double seconds);

#endif
