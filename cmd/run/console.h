/* console.h: rank 0's display of the progress: one line that is renewed on a terminal, plain lines in a log (the log
 * file of rank 0 has plain lines in both cases). */
#pragma once

#include "core/metrics/metrics.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct console {
    bool terminal;  /* stdout is a terminal: renew one line; otherwise print plain lines */
    bool silent;    /* not rank 0 */
    bool breakdown; /* wall_clock_breakdown: a second line with the time of each part */
    int64_t steps_per_print;
    int64_t total_steps;
    double smoothed_step_seconds; /* exponential mean, from which the time left is estimated */
    bool line_open;               /* the last line on the terminal is a progress line without its line end */
};

void console_init(struct console *console, bool silent, int64_t steps_per_print, int64_t total_steps, bool breakdown);

/* After each step. Terminal: renews the line; log: a line every steps_per_print steps and at the last. */
void console_step(struct console *console, const struct step_metrics *m);

/* Ends an open progress line, before anything else is printed. */
void console_break(struct console *console);

/* "1:02:03" or "2:03" */
void console_duration(double seconds, char *out, size_t size);
