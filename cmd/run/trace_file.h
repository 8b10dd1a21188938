/* SPDX-License-Identifier: Apache-2.0 */
/* trace_file.h: --trace: a few steps of all ranks in Chrome's trace format, which Perfetto and chrome://tracing show.
 *
 * A rank is a process of the trace, and its rows (the host, the streams) are threads. It keeps up to TRACE_RECORDS_MAX
 * pieces of work; rank 0 writes them all after the last traced step. Nothing that fails here ends the run. */
#pragma once

#include "core/status.h"

struct engine;
struct trace_file;
enum { TRACE_RECORDS_MAX = 200000 };

/* "A-B" or "A": steps from 1. STATUS_USAGE. */
enum status trace_steps_parse(const char *text, int64_t *first, int64_t *last, struct error *err);

/* path: for rank 0, borrowed. steps: for trace_steps_parse(), or NULL: three steps, from the third after `done` on. */
struct trace_file *trace_file_new(const char *path, const char *steps, int64_t done, int64_t total);
void trace_file_free(struct trace_file *trace); /* before the device is closed; may be NULL */

/* Whether recording begins before `step`, or ends after it; the same on all ranks. trace may be NULL, as below. */
bool trace_file_begins(const struct trace_file *trace, int64_t step);
bool trace_file_ends(const struct trace_file *trace, int64_t step);

/* Collective; no step is under way. */
enum status trace_file_begin(struct trace_file *trace, struct engine *engine, struct error *err);
bool trace_file_is_on(const struct trace_file *trace);

/* Work of the host from `start` (seconds_now()) to now, if recording is on; step 0: of none. */
void trace_file_host(struct trace_file *trace, const char *name, double start, int64_t step);

/* Ends the recording, if it is on, and has rank 0 write the file. Collective; no step is under way. */
enum status trace_file_end(struct trace_file *trace, struct error *err);

/* At the end of the run: a warning on rank 0 if no step was recorded. */
void trace_file_check(const struct trace_file *trace);
