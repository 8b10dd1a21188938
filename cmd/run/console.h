/* SPDX-License-Identifier: Apache-2.0 */
/* console.h: rank 0's display: one line that is renewed on a terminal, else plain lines; and the run's summary. */
#pragma once

#include "core/metrics/metrics.h"
#include "core/spec/spec.h"

struct console {
    bool terminal;               /* stdout is a terminal: renew one line; otherwise print plain lines */
    bool silent;                 /* not rank 0 */
    const struct run_spec *spec; /* borrowed */
    int64_t total_steps;
    double smoothed_step_seconds; /* exponential mean, from which the time left is estimated */
    bool line_open;               /* the last line on the terminal is a progress line without its line end */
};

void console_init(struct console *console, const struct run_spec *spec, bool silent, int64_t total_steps);

/* After each step. Terminal: renews the line; log: a line every steps_per_print steps and at the last. */
void console_step(struct console *console, const struct step_metrics *m);

/* Ends an open progress line, before anything else is printed. */
void console_break(struct console *console);

/* Logs from metrics.jsonl how long the run's steps took, over all starts, and its best evaluation with the checkpoint
 * nearest to it. process_seconds: of this process. A file that cannot be read is a warning. */
void console_summary(const struct run_spec *spec, const char *metrics_path, const char *checkpoints,
                     double process_seconds);
