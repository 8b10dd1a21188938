/* output.h: text on its way to stdout, stderr and the log file, for which no step waits.
 *
 * Whoever reads stdout may pause (ctrl-S, a pager, a hung tee, a stopped srun), and a log file may lie on a slow file
 * system. So each destination has a queue of fixed size and a thread that writes what is in it; only that thread ever
 * waits. Lines that do not fit are dropped and counted, and when the reader comes back one line says how many are
 * missing. The order of lines within a destination stays; stdout and stderr have one queue where they are one file. The
 * descriptors keep their flags, for they are shared with whoever started this process.
 *
 *     output_put() -> | record | record | …            | reserve    | -> thread -> write()
 *                       OUTPUT_BYTES                     last words
 *
 * A record is written by one write(), so that lines of several processes on one pipe do not mix. An error of write()
 * (a closed pipe, a full disk) loses the record and nothing else, as it does without a queue.
 *
 * Until output_start() output_put() writes at once and may wait, as any program does. Any thread may call these; a
 * process that has started the threads forks no more. */
#ifndef ZTRAIN_CORE_OUTPUT_H
#define ZTRAIN_CORE_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>

enum outlet { OUTLET_STDOUT, OUTLET_STDERR, OUTLET_FILE, OUTLET_COUNT };

enum output_kind {
    OUTPUT_LINE,    /* with its line end */
    OUTPUT_RENEWED, /* a line that a later one replaces on the screen: passed over where the reader is behind */
    OUTPUT_LAST,    /* last words: they take the reserve if they have to */
};

enum {
    OUTPUT_BYTES = 1 << 16,
    OUTPUT_RESERVE = 1 << 15,
    OUTPUT_RECORD = 20 << 10, /* the longest text of one output_put() */
};

/* From now on stdout and stderr have their threads. Returns 0 or an errno. Once started they stay. */
int output_start(void);

/* OUTLET_FILE writes to fd from now on, and owns it. Returns 0, or an errno: fd is still the caller's. output_close()
 * waits until all is written, within output_drain()'s patience, and closes it; no effect where there is none. */
int output_open(int fd);
void output_close(void);

/* Puts a text of at most OUTPUT_RECORD bytes into the queue. To OUTLET_FILE: nothing happens where it is not open. */
void output_put(enum outlet outlet, const char *text, size_t bytes, enum output_kind kind);

/* Waits until all that was put is written; in the life of the process for two seconds at most, all calls together.
 * Whether it is. */
bool output_drain(void);

#endif
