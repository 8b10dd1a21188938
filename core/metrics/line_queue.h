/* SPDX-License-Identifier: Apache-2.0 */
/* line_queue.h: appends lines to a file whose disk may fail for a while, without waiting for the disk.
 *
 * A line is one write(). If that fails with a transient cause (error_is_transient()), it and those after it wait in
 * memory; a partly written line is completed first. Writing is retried when a line is added, after pauses that double.
 * Lines that do not fit are dropped and counted. Another job may have taken the file meanwhile: still_owner() is called
 * before lines that have waited are written. */
#pragma once

#include "core/status.h"

enum { LINE_QUEUE_BYTES = 1 << 20 };

struct line_queue {
    int fd;                                                     /* borrowed; open for appending */
    const char *path;                                           /* borrowed; for messages */
    char *waiting;                                              /* (LINE_QUEUE_BYTES) owned */
    size_t used;                                                /* bytes in use */
    double retry_at, pause;                                     /* seconds_now(); seconds */
    int64_t waited, dropped;                                    /* lines so far */
    bool failing;                                               /* the last attempt failed, and there was a warning */
    enum status (*still_owner)(void *owner, struct error *err); /* NULL: always */
    void *owner;
};

void line_queue_init(struct line_queue *queue, int fd, const char *path);
void line_queue_release(struct line_queue *queue);

/* Adds a line with its newline. A transient failure is a warning; another is STATUS_CHECKPOINT or still_owner()'s. */
enum status line_queue_add(struct line_queue *queue, const char *line, size_t bytes, struct error *err);

/* Tries for this many seconds (0: once) to write the waiting lines. Beats. Returns whether none is left. */
bool line_queue_drain(struct line_queue *queue, double seconds);
