/* log.h: what a rank says. stdout of rank 0 (progress, notices), stderr (warnings, last words), a log file per rank.
 *
 * Thread-safe. The file begins with the lines from before log_open(). Debug lines go to the file only. Each message is
 * one line: control characters in it are escaped (printable.h). */
#ifndef ZTRAIN_CORE_LOG_H
#define ZTRAIN_CORE_LOG_H

#include "core/status.h"

#include <stdio.h>

/* Who speaks; world 1 leaves rank and host out of messages. host is copied. */
void log_identity(int rank, int world, const char *host);

/* Appends to `path` (NULL: no file) from now on; parents must exist, else STATUS_CHECKPOINT. */
enum status log_open(const char *path, struct error *err);
void log_close(void);

/* rank 0: stdout and file; other ranks: file only */
void log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* every rank: stderr "ztrain: warning: …" (with rank and host if world > 1) and file */
void log_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* file only */
void log_debug(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* every rank: the last words, one line on stderr: "ztrain: error: [rank R on HOST: ]TEXT", and file */
void log_error(const struct error *err);

/* Waits until a stream's terminal or pipe takes output, and ticks meanwhile: a terminal held by ctrl-S or a pager at
 * rest makes this rank wait, but peers must not take that for silence. */
void log_wait_writable(FILE *stream);

#endif
