/* SPDX-License-Identifier: Apache-2.0 */
/* output.h: writes text to stdout, stderr and the log file without keeping a step waiting.
 *
 * The reader of stdout may pause (ctrl-S, a pager, a stopped srun), and the log's file system may be slow. So each
 * destination has a queue of fixed size and a thread; only the thread waits. Lines that do not fit are dropped and
 * counted; later one line gives their number. stdout and stderr share a queue if they are the same file. The
 * descriptors keep their flags, because the process that started this one shares them.
 *
 *     output_put() -> | record | record | …            | reserve    | -> thread -> write()
 *                       OUTPUT_BYTES                     final error
 *
 * A record is one write(), so that lines of several processes on one pipe do not mix. An error of write() (a closed
 * pipe, a full disk) loses that record.
 *
 * Until output_start() output_put() writes at once and may wait. Any thread may call these functions; a process that
 * has started the threads must not fork any more. */
#pragma once

#include "core/status.h"

enum outlet { OUTLET_STDOUT, OUTLET_STDERR, OUTLET_FILE, OUTLET_COUNT };

enum output_kind {
    OUTPUT_LINE,    /* with its line end */
    OUTPUT_RENEWED, /* a line that a later one replaces on the screen: skipped if the reader lags */
    OUTPUT_LAST,    /* final error, which may use the reserve */
};

/* RECORD: the longest text of one output_put(). */
enum { OUTPUT_BYTES = 1 << 16, OUTPUT_RESERVE = 1 << 15, OUTPUT_RECORD = 20 << 10 };

/* Starts the threads of stdout and stderr, which then stay. Returns 0 or an errno. */
int output_start(void);

/* OUTLET_FILE writes to fd, which it then owns. Returns 0 or an errno. output_close() drains it and closes the file. */
int output_open(int fd);
void output_close(void);

/* Puts a text of at most OUTPUT_RECORD bytes into the queue. OUTLET_FILE without a file drops it. */
void output_put(enum outlet outlet, const char *text, size_t bytes, enum output_kind kind);

/* Waits until everything is written, for two seconds in all calls of a process together. Returns whether it is. */
bool output_drain(void);
