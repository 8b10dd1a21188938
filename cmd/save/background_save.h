/* SPDX-License-Identifier: Apache-2.0 */
/* background_save.h: a run's checkpoints, written while training continues (checkpoint.writer.decoupled).
 *
 *     main threads     step 8 | copy | step 9     vote  | step 10    vote   | step 11    vote | step 12
 *                              8's slices          |                  |                  |
 *     writer threads               [folder, rank 0] [.... rank files ....]    [publish, r. 0]   the checkpoint's line
 *                                                ready            not yet, ready       ready
 *
 * Training waits only for a copy of the rank's slices into host memory (zero_take_snapshot()), which the plan counts. A
 * thread takes that memory while the last step before the first checkpoint runs; it is pinned after that step, unless
 * the checkpoint has become the last one. If a rank cannot have it, all save as without a copy from then on. A thread
 * of each rank, the writer, does everything that touches a disk: metrics.jsonl, and each part of a save
 * (checkpoint_save.c tells what a kill leaves behind). The writer never communicates. The votes on stopping carry three
 * more values: the number of ranks whose writer still works, and rank 0's wish to try again or to give up. When no
 * writer works, outcomes are exchanged and the next part is given out. `saving` changes hands under the mutex.
 *
 * The last checkpoint of a run, and all of one without a copy, go through the same parts while training waits, in the
 * main thread. Between a checkpoint's name and its line in metrics.jsonl a kill leaves the line to the resume.
 *
 * A failure on a rank becomes one of all at the exchange. A disk's failure is a warning: the save is tried again from
 * the same slices, with growing pauses, for at most PATIENCE_INTERVAL or checkpoint.retry_seconds; then the checkpoint
 * is lost. Other failures end the run, and so does the loss of its last checkpoint.
 *
 * A stop, the last step, the next checkpoint that is due, an evaluation with checkpoint.keep_best, and a run that fails
 * on all ranks together wait until no save is under way (seconds_stalled). With a stop a save that fails is not tried
 * again, because the last one follows. If a peer has died, the next start sweeps away the .tmp- folder. */
#pragma once

#include "cmd/run/run_state.h"

/* Starts the writer's thread, if the plan has a snapshot. Makes run->background. Not collective. */
enum status background_save_start(struct run *run, struct error *err);

/* Collective: a checkpoint, not the last, is due soon. The first time with decoupled auto, a thread takes memory. */
enum status background_save_expect(struct run *run, struct error *err);

/* Collective, with no step under way: writes a checkpoint of run->position, or begins to. last: the run ends with it,
 * and its loss is an error. STATUS_DIVERGED: the ranks' copies of the model have drifted apart. */
enum status save_checkpoint(struct run *run, bool last, struct error *err);

/* Collective, after an evaluation: whether its scores are among the checkpoint.keep_best best ones. */
enum status save_is_due_for_scores(struct run *run, bool *due, struct error *err);

/* The vote on whether all ranks stop, because a signal (stop_signal.h) reaches each at another time, and only rank 0
 * knows the job's end (deadline.h). Collective: sets run->stop if some rank was asked to stop, or the job's end is
 * near. The sum also has the votes on a save, which moves on. */
enum status stop_vote(struct run *run, struct error *err);

/* Collective: returns when no save is under way. last: the run ends with the next one. Sets run->stop if asked to. */
enum status background_save_wait(struct run *run, bool last, struct error *err);

/* Ends the threads, and frees run->background. false: one still works after `seconds`, and nothing is freed. */
bool background_save_end(struct run *run, double seconds);

struct checkpoint_keep save_keep_of(const struct run *run);
