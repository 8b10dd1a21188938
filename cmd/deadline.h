/* deadline.h: when Slurm will end the job, so that a checkpoint is made in time without any signal.
 *
 * The end is SLURM_JOB_END_TIME, or what squeue says, asked once. From then on rank 0 looks after each step and
 * each micro-batch of an evaluation: it is near when another step as long as the longest one so far, a checkpoint, and
 * a reserve would not fit any more. */
#ifndef ZTRAIN_CMD_DEADLINE_H
#define ZTRAIN_CMD_DEADLINE_H

#include <stdbool.h>

struct deadline {
    double end;        /* CLOCK_MONOTONIC seconds; INFINITY: none is known */
    double checkpoint; /* seconds that one takes: expected, then measured */
    double looked;     /* CLOCK_MONOTONIC seconds; 0: not yet */
    double saved;      /* seconds in checkpoints since then */
    double longest;    /* seconds between two looks, without checkpoints */
};

/* Asks. expected_checkpoint: seconds, before one is measured. Says what it found (log_info). Outside of Slurm there is
 * no deadline. */
void deadline_init(struct deadline *deadline, double expected_checkpoint);

/* Whether to stop now. now: CLOCK_MONOTONIC seconds. */
bool deadline_is_near(struct deadline *deadline, double now);

/* CLOCK_MONOTONIC seconds: until then a checkpoint may be tried again; INFINITY: for ever. */
double deadline_latest(const struct deadline *deadline);

/* So many seconds went by in waiting for a disk: they are no step's. */
void deadline_waited(struct deadline *deadline, double seconds);

/* A checkpoint took so many seconds. */
void deadline_checkpoint(struct deadline *deadline, double seconds);

#endif
