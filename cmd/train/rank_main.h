/* SPDX-License-Identifier: Apache-2.0 */
/* rank_main.h: the life of a rank: it meets the others, prepares the run (prepare.c), trains (loop.c, evaluate.c,
 * run_samples.c), and ends together with them.
 *
 * A rank that fails alone informs the others (comm_abort), so that all end with its exit code; at points that all ranks
 * reach they agree (comm/agree.h). A rank ends with 0 or 75 only when all ranks have come that far. */
#pragma once

#include "cmd/run/run_state.h"

/* Runs this process as a rank (or the only one) of a connected job. Leaves the job in order if all ranks end alike. The
 * error is printed here. */
enum status rank_run(const struct rank_options *options, struct bootstrap *boot, struct run_spec *spec,
                     struct error *err);

/* Prints the error, unless another rank of this node has printed it, and marks it as printed. Then gives the other
 * ranks a moment for theirs, as the launcher may end all ranks when this one ends. */
void early_error_print(const struct bootstrap *boot, struct error *err);

/* Ends a rank that has no communicator, as the ranks did not all meet: prints the error (early_error_print()) and has
 * the launcher end the other ranks. */
void rank_end_unmet(struct bootstrap *boot, enum status status, struct error *err);

/* ---- its stations; all are collective ------------------------------------ */

/* Takes a run, and those after it, with the fields under "Given" set and all others zero; builds the rest. A run folder
 * that exists is locked before anything in it is read; a new one is made last, when nothing can refuse the run any
 * more. The caller releases what was built, also after a failure. */
enum status run_prepare(struct run *first, struct error *err);

/* Trains from run->position to the last step, with evaluations and checkpoints. STATUS_REQUEUE: stopped on request or
 * before the job's end, with a checkpoint written. */
enum status run_steps(struct run *run, struct error *err);

/* With no step under way: computes the mean loss over the validation set (or its train.eval_batches first batches);
 * rank 0 logs it and writes it to the metrics. If the ranks vote to stop (stop_vote.c), run->position.evaluation_due is
 * set, and run->evaluation_part has what is done: the resumed run does the rest. */
enum status run_evaluate(struct run *run, struct error *err);

/* Continues each prompt of train.samples, and writes a line in metrics.jsonl and one on the console for it. A request
 * to stop leaves out the prompts that are not begun. */
enum status run_samples(struct run *run, struct error *err);

/* The vote on whether all ranks stop, because a signal (stop_signal.h) reaches each at another time, and only rank 0
 * knows the job's end (deadline.h). Collective: sets run->stop if some rank was asked to stop, or the job's end is
 * near. The sum also has the votes on a background save, which background_save_advance() moves on. */
enum status stop_vote(struct run *run, struct error *err);
