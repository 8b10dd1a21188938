/* loop.h: the training loop: one optimizer step after the other, and between two steps the evaluation, the end of an
 * epoch and the checkpoint, where they are due. loop.c pictures a step. */
#pragma once

#include "cmd/run/run_state.h"

/* Collective: trains a prepared run from run->position to its last step, with its evaluations and checkpoints.
 * STATUS_REQUEUE: stopped on request or before the job's end, with a checkpoint written. */
enum status run_steps(struct run *run, struct error *err);
