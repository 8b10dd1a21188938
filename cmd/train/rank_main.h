/* SPDX-License-Identifier: Apache-2.0 */
/* rank_main.h: the life of a rank: it meets the others, prepares the run (prepare.c), trains (loop.c, evaluate.c),
 * and ends together with them.
 *
 * A rank that fails alone informs the others (comm_abort), so that all end with its exit code; at points that all ranks
 * reach they agree (comm/agree.h). A rank ends with 0 or 75 only when all ranks have come that far. */
#pragma once

#include "cmd/run/run_state.h"

/* Runs this process as a rank of a connected job. It leaves in order if all ranks end alike. Prints the error. */
enum status rank_run(const struct rank_options *options, struct bootstrap *boot, struct run_spec *spec,
                     struct error *err);

/* Prints the error, unless a rank of this node has, marks it, and waits a moment for the others' errors. */
void early_error_print(const struct bootstrap *boot, struct error *err);

/* Ends a rank without a communicator: the ranks did not all meet. Prints the error; the launcher ends the others. */
void rank_end_unmet(struct bootstrap *boot, enum status status, struct error *err);

/* ---- its stations; all are collective ------------------------------------ */

/* Takes a run, and those after it, with the fields under "Given" set, all others zero; builds the rest. A run folder is
 * locked before it is read; a new one is made last. The caller releases what was built, after a failure too. */
enum status run_prepare(struct run *first, struct error *err);

/* With the run's weights loaded: gives its data the log-probabilities of the reference of a preference loss.
 * STATUS_REQUEUE: stopped before all were scored. */
enum status run_references(struct run *run, struct error *err);

/* Trains to the last step, with evaluations and checkpoints. STATUS_REQUEUE: stopped, with a checkpoint written. */
enum status run_steps(struct run *run, struct error *err);

/* With no step under way: computes the mean loss over the validation set (or its train.eval_batches first batches);
 * rank 0 logs it and writes it to the metrics. If the ranks vote to stop, run->position.evaluation_due is
 * set, and run->evaluation_part has what is done: the resumed run does the rest. */
enum status run_evaluate(struct run *run, struct error *err);

/* Continues each prompt of train.samples, and writes a line in metrics.jsonl and one on the console for it. A request
 * to stop leaves out the prompts that are not begun. */
enum status run_samples(struct run *run, struct error *err);

/* ---- a replay (replay_steps.c) ------------------------------------------- */

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
