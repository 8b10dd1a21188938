/* SPDX-License-Identifier: Apache-2.0 */
/* deadline.h: when Slurm will end the job, so that a checkpoint is written in time without any signal:
 * SLURM_JOB_END_TIME or squeue's answer, which is asked again, as scontrol can change the limit; it has five seconds.
 * Rank 0 looks at votes (background_save.h): the end is near when another interval as long as the longest so far, a
 * checkpoint and a reserve do not fit. */
#pragma once

#include <stdbool.h>

struct deadline {
    double end;        /* CLOCK_MONOTONIC seconds; INFINITY: none is known */
    double checkpoint; /* seconds for one: expected, then measured */
    double looked;     /* CLOCK_MONOTONIC seconds; time of the last look; 0: none yet */
    double saved;      /* set by the caller: seconds that it waited for a disk or a checkpoint since the last look */
    bool under_way;    /* set by the caller: a checkpoint is being written, for which a stop waits */
    double longest;    /* seconds between two looks, without checkpoints */
    struct squeue *squeue; /* owned; NULL: not in a Slurm job */
};

/* Finds and logs the end; a thread asks again every `period` seconds. expected_checkpoint: seconds, until measured. */
void deadline_init(struct deadline *deadline, double expected_checkpoint, double period);

/* Ends the thread, and a squeue that it waits for, within a second. A deadline that is all zero is allowed. */
void deadline_release(struct deadline *deadline);

/* Takes squeue's newest answer; logs it if the end has moved. Never waits. */
void deadline_look_again(struct deadline *deadline);

/* Looks again; returns whether to stop now. now: CLOCK_MONOTONIC seconds. */
bool deadline_is_near(struct deadline *deadline, double now);

/* CLOCK_MONOTONIC seconds until which a checkpoint may be tried again; INFINITY: there is no limit. */
double deadline_latest(const struct deadline *deadline);

/* Notes that a checkpoint took this many seconds. */
void deadline_measured(struct deadline *deadline, double seconds);
