/* SPDX-License-Identifier: Apache-2.0 */
/* restart.h: `--local-gpus N --max-restarts K`: the supervisor starts the ranks again after a failure that another
 * start may not have: a rank was killed or lost (6), a device or its driver failed (8). It executes itself anew:
 * ZTRAIN_RESTART holds the number of the start and the run to resume; the spec stays the first start's
 * (core/kept_files.h). */
#pragma once

#include "cmd/run/places.h"
#include "cmd/run/run_folder.h"

struct restart {
    int number;      /* of restarts so far; 0: this is the first start */
    int64_t step;    /* of the newest checkpoint when the start before failed, of adapters their sum; -1: none */
    int code;        /* with which it failed */
    char cause[512]; /* printable */
    char run[3072];  /* the run folder, which this start resumes, or that above adapters'; "": no checkpoint yet */
};

/* What the supervisor before this one has left in the environment. */
void restart_read(struct restart *last);

/* STATUS_USAGE if --resume names one of the run's checkpoints. */
enum status restart_check(const char *resume, const struct run_home *home, struct error *err);

/* What all starts of a run go by. */
struct restart_rules {
    int most;              /* --max-restarts */
    struct places *places; /* with --min-gpus, and what it goes by; else NULL */
    struct places_wish wish;
    const struct run_home *home;
    char **argv;
};

/* How a start has ended. */
struct job_end {
    int code;
    int rank;        /* by which it failed; -1: it has not, or that is not known */
    bool asked;      /* a signal has asked the job to stop before */
    char cause[512]; /* the error of a job that has failed; else "" */
};

/* After a start that has failed: executes this program again, or returns the run's exit code: the failure is of another
 * kind, all restarts are used up, the last one has gained no checkpoint and the next would be as it was, too few places
 * are left, or a signal asked the run to stop meanwhile (STATUS_REQUEUE if it has a checkpoint). */
enum status restart_after(const struct restart *last, const struct restart_rules *rules, const struct job_end *end);
