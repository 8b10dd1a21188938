/* SPDX-License-Identifier: Apache-2.0 */
/* log.h: the messages of a rank. Progress and notices go to stdout of rank 0, warnings and the final error to stderr,
 * and everything to one log file per rank. Thread-safe; no thread waits for a reader (output.h). The file begins with
 * the lines from before log_open(). Each message is one line: control characters in it are escaped (printable.h). */
#pragma once

#include "core/status.h"

/* The rank and host that messages name; with world 1 they name neither. host is copied. */
void log_identity(int rank, int world, const char *host);

/* Whether log_detail() prints, as it does unless this says no. */
void log_show_details(bool show);

/* Appends to `path` from now on (NULL: no file). Its folder must exist, else STATUS_CHECKPOINT. */
enum status log_open(const char *path, struct error *err);
/* Closes the file; drains (output.h). */
void log_close(void);

/* This thread's messages begin with "NAME: " (borrowed) from now on; NULL: no longer. Errors do not. */
void log_subject(const char *name);

/* rank 0: stdout and file; other ranks: file only */
void log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* What explains a run, but is not needed to follow it: the file; with log_show_details() as log_info() */
void log_detail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* every rank: stderr "ztrain: warning: …" (with rank and host if world > 1) and file */
void log_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* one more line for a warning or an error, on stderr only */
void log_line(const char *text);
/* file only */
void log_debug(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* every rank: the final error, one line on stderr: "ztrain: error: [rank R on HOST: ]TEXT", and file. Drains. */
void log_error(const struct error *err);
/* The same unless the error is marked as printed; marks it. */
void log_error_once(struct error *err);
