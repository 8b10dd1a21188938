/* log.h: what a rank says. stdout of rank 0 (progress, notices), stderr (warnings, last words), a log file per rank.
 *
 * Thread-safe. Nobody waits for a reader once output_start() was called (output.h). The file begins with the lines from
 * before log_open(). Debug lines go to the file only. Each message is one line: control characters in it are escaped
 * (printable.h). */
#ifndef ZTRAIN_CORE_LOG_H
#define ZTRAIN_CORE_LOG_H

#include "core/status.h"

/* Who speaks; world 1 leaves rank and host out of messages. host is copied. */
void log_identity(int rank, int world, const char *host);

/* Appends to `path` (NULL: no file) from now on; parents must exist, else STATUS_CHECKPOINT. */
enum status log_open(const char *path, struct error *err);
/* The end: waits for what is on its way, as output_drain() does. */
void log_close(void);

/* rank 0: stdout and file; other ranks: file only */
void log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* every rank: stderr "ztrain: warning: …" (with rank and host if world > 1) and file */
void log_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* a line of more than that, on stderr alone */
void log_line(const char *text);
/* file only */
void log_debug(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* every rank: the last words, one line on stderr: "ztrain: error: [rank R on HOST: ]TEXT", and file. Waits until they
 * are out, as output_drain() does. */
void log_error(const struct error *err);
/* The same unless the error is marked as printed; marks it. */
void log_error_once(struct error *err);

#endif
