/* SPDX-License-Identifier: Apache-2.0 */
/* flight_verdict.h: which rank the records of a job point at: a rank that is behind in the numbered collectives. */
#pragma once

#include "core/flight/flight_file.h"

enum flight_finding {
    FLIGHT_FINE,
    FLIGHT_KILLED,     /* its process is gone, without an error of its own */
    FLIGHT_STOPPED,    /* its process is stopped, or stuck in the kernel */
    FLIGHT_ERRED,      /* the job failed by its own error */
    FLIGHT_NAMED,      /* the job's error is about it, and its record explains no more */
    FLIGHT_NON_FINITE, /* it was the first with a non-finite value; rank -1: no one knows which */
    FLIGHT_SILENT,     /* its record is not renewed any more; rank -1: no record is */
    FLIGHT_MISSING,    /* the others wait in a collective that it has not reached, as far as records show */
    FLIGHT_SLOW,       /* the others wait mostly for it */
    FLIGHT_FAILED,     /* the job failed, and no rank stands out */
};

/* One rank's record, as the verdict sees it. */
struct flight_view {
    const struct flight_record *record; /* NULL: there is none */
    char process;                       /* its state now or as a witness saw it, proc(5); 'X': gone; '?': unknown */
    int64_t done[2], begun[2];          /* data, control: number of the last collective that is over, and begun */
    const struct flight_entry *now;     /* the innermost piece of work that is not over, or NULL */
    const struct flight_entry *wait;    /* the innermost collective that is not over, or NULL */
    const struct flight_entry *work;    /* the innermost that is no collective, or NULL */
    const struct flight_entry *last;    /* that ended last, or NULL */
    double moved;                       /* seconds since 1970; its last sign: the latest begin or end of an entry */
    double ahead;                       /* seconds by which its wall clock is ahead of the first rank's; 0: unknown */
};
void flight_view_init(struct flight_view *view, const struct flight_record *record, char process);
/* Sets `ahead` of the views (world), by the ends of collectives that two ranks have in common. */
void flight_compare_clocks(struct flight_view *views, int world);

struct flight_verdict {
    enum flight_finding finding;
    int rank; /* -1: none */
    char text[6000];
};
/* Whether a record that was written at `wall` (seconds since 1970) should have been renewed by `now`. */
bool flight_is_overdue(const struct flight_record *record, double wall, double now);
/* views: (world); now: seconds since 1970. */
void flight_judge(const struct flight_view *views, int world, double now, struct flight_verdict *verdict);

/* "backward of unit 3 (step 12, micro-batch 2)", "all-gather 124 of unit 3, 1.2 MB (step 12)". */
const char *flight_describe(const struct flight_entry *entry, char out[160]);
/* "14:15:01.250", local time, of seconds since 1970. */
const char *flight_time(double seconds, char out[32]);
