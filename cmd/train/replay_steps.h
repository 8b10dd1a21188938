/* SPDX-License-Identifier: Apache-2.0 */
/* replay_steps.h: `ztrain replay RUN --step S`: the steps from the newest checkpoint before S up to S once more,
 * compared with what the run has recorded: losses, norms, hashes, and the state in the checkpoint of step S.
 *
 * A replay is a resumed run without a folder of its own: no lock, log, metrics, flight record, evaluations or
 * checkpoints. So RUN may be read-only, or a run that trains meanwhile. */
#pragma once

#include "cmd/run/run_state.h"

/* Collective: finds the checkpoint and the records, which rank 0 reads for all, sets run->replay, run->resume and
 * run->home, and switches off what would write. STATUS_CHECKPOINT: no such run, or no valid checkpoint before the step;
 * STATUS_USAGE: nothing is recorded of the step, or the run cannot be replayed on this number of ranks. */
enum status replay_open(struct run *run, struct error *err);

/* Before the first step. STATUS_USAGE: the run spec has fewer steps. */
enum status replay_begin(const struct run *run, struct error *err);

/* Whether the record of this step has a hash. */
bool replay_wants_hash(const struct run *run, int64_t step);

/* Compares a step with its record; rank 0 prints a line. STATUS_DIVERGED: they differ, on all ranks alike. */
enum status replay_compare_step(const struct run *run, const struct step_metrics *m, struct error *err);

/* Compares the state after the last step with its checkpoint, and prints the verdict. Collective. */
enum status replay_finish(struct run *run, struct error *err);

void replay_free(struct replay *replay); /* NULL is allowed */
