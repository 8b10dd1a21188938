/* stop_vote.h: the ranks vote on whether all of them stop, because a signal (stop_signal.h) reaches each rank at
 * another time, and only rank 0 knows the job's end (deadline.h). */
#pragma once

#include "cmd/run/run_state.h"

/* Collective: sets run->stop if some rank was asked to stop, or the job's end is near. The same votes move a
 * background checkpoint from one part to the next: background_save.h. */
enum status stop_vote(struct run *run, struct error *err);

/* The stepper's look between two micro-batches of a step (struct stepper_look; context: the run): votes about once a
 * second. */
enum status stop_vote_within_step(void *context, struct stepper *stepper, bool *stop, struct error *err);
