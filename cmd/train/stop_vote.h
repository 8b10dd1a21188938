/* stop_vote.h: the ranks vote on whether all of them stop, because a signal (stop_signal.h) reaches each rank at
 * another time, and only rank 0 knows the job's end (deadline.h). */
#pragma once

#include "cmd/run/run_state.h"

/* Collective: sets run->stop if some rank was asked to stop, or the job's end is near. The sum also has the votes on a
 * background save: background_save_advance(), which the caller calls next, acts on them. */
enum status stop_vote(struct run *run, struct error *err);
