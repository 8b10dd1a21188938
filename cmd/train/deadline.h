/* deadline.h: when Slurm will end the job, so that a checkpoint is made in time without any signal.
 *
 * The end is SLURM_JOB_END_TIME, or what squeue says; squeue is asked again while the job runs, as scontrol can change
 * the limit, and the variable then stays as it was. Where squeue does not answer the end stays as it is known. From
 * then on rank 0 looks after each step and each micro-batch of an evaluation: the end is near when another step as long
 * as the longest one so far, a checkpoint, and a reserve would not fit any more. */
#ifndef ZTRAIN_CMD_TRAIN_DEADLINE_H
#define ZTRAIN_CMD_TRAIN_DEADLINE_H

#include "cmd/train/squeue.h"

#include <stdbool.h>

struct deadline {
    double end;        /* CLOCK_MONOTONIC seconds; INFINITY: none is known */
    double checkpoint; /* seconds that one takes: expected, then measured */
    double looked;     /* CLOCK_MONOTONIC seconds; 0: not yet */
    double saved;      /* seconds in checkpoints since then */
    double longest;    /* seconds between two looks, without checkpoints */
    char job[32];
    struct squeue *squeue; /* owned; NULL: no job of Slurm */
};

/* Asks, and has a thread ask again every `period` seconds. expected_checkpoint: seconds, before one is measured. Says
 * what it found (log_info). Outside of Slurm there is no deadline, and nobody is asked. */
void deadline_init(struct deadline *deadline, double expected_checkpoint, double period);

/* Ends the thread. Of one that was never initialised, all zero: nothing. */
void deadline_release(struct deadline *deadline);

/* Takes what Slurm has said since the last time, and says so where the end has moved (log_info). Never waits. */
void deadline_look_again(struct deadline *deadline);

/* Looks again; whether to stop now. now: CLOCK_MONOTONIC seconds. */
bool deadline_is_near(struct deadline *deadline, double now);

/* CLOCK_MONOTONIC seconds: until then a checkpoint may be tried again; INFINITY: for ever. */
double deadline_latest(const struct deadline *deadline);

/* So many seconds went by in waiting for a disk: they are no step's. */
void deadline_waited(struct deadline *deadline, double seconds);

/* A checkpoint took so many seconds. */
void deadline_checkpoint(struct deadline *deadline, double seconds);

#endif
