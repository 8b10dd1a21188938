/* background_save.h: a run's checkpoints, written while training continues (checkpoint.writer.decoupled).
 *
 *     main threads     step 8 | copy | step 9     vote  | step 10    vote   | step 11    vote | step 12
 *                              8's slices          |                  |                  |
 *     writer threads               [folder, rank 0] [.... rank files ....]    [publish, r. 0]   the checkpoint's line
 *                                                ready            not yet, ready       ready
 *
 * Training waits only for a copy of the rank's slices into host memory (zero_take_snapshot()). A thread of each rank,
 * the writer, does everything that touches a disk: metrics.jsonl, and each part of checkpoint_save.c. It never
 * communicates. The votes on stopping (stop_vote.h), at the end of each step and about once a second within one, carry
 * three more values: the number of ranks whose writer still works, and rank 0's wish to try again or to give up. When
 * no writer works any more, background_save_advance() makes the exchange of outcomes (checkpoint_saving_agree(), small
 * and without a disk) and gives the writers the next part. All ranks see the same sums, so they are always in the same
 * state. A writer and its main thread hand `saving` to each other under the mutex.
 *
 * The last checkpoint of a run, and all of one without a copy, go through the same parts while training waits, and the
 * main thread does the writer's work (background_save_here()).
 *
 * A kill at any instant leaves what the table in checkpoint_save.c says. A run killed before the checkpoint has its
 * name resumes from the one before it; between the name and the line in metrics.jsonl a resume adds the line.
 *
 * A failure on a rank becomes a failure of all at the exchange. A disk's failure is a warning; what was written is
 * deleted, and it is tried again from the same slices, with growing pauses, for at most PATIENCE_INTERVAL or
 * checkpoint.retry_seconds; then the checkpoint is lost, which is a warning too. Other failures end the run, and so
 * does the loss of its last checkpoint, which is tried for all of checkpoint.retry_seconds.
 *
 * A stop, the last step and the next checkpoint that is due wait until none is under way; the time counts in
 * seconds_stalled. With a stop a background checkpoint that fails is not tried again, because the last one follows. An
 * evaluation with checkpoint.keep_best waits as well, since it compares its scores with those on disk. A run that fails
 * on all ranks together (it diverges) waits for the checkpoint under way. One whose peer has died cannot complete it:
 * the process ends, and the next start sweeps away the .tmp- folder.
 *
 * Memory: the copy (fp32) is a part of the plan's host memory; the writer compresses in pieces of 1 MiB (rankfile.h).
 * While a writer is busy its progress keeps the rank alive for its peers (core/heartbeat.h), so a rank that hangs is
 * named when its writer is done, at the latest. */
#pragma once

#include "cmd/run/run_state.h"

/* Starts the writer's thread, if the plan has a snapshot. Makes run->background. Not collective. */
enum status background_save_start(struct run *run, struct error *err);

/* Whether there is a thread and a copy; else training waits for each checkpoint. */
bool background_save_possible(const struct run *run);

/* Collective, with no step under way and none being written: copies the slices and begins to write a checkpoint of
 * run->position. since: seconds_now() when training began to wait for it. */
enum status background_save_begin(struct run *run, double since, struct error *err);

/* The same while training waits, from the slices themselves, and with the writer's work done by the main thread.
 * last: the run ends with it, so that failing to write it is an error, after all of checkpoint.retry_seconds. */
enum status background_save_here(struct run *run, bool last, double since, struct error *err);

/* This rank's values for a vote; 0 if none is being written. */
void background_save_vote(struct run *run, double votes[BACKGROUND_VOTES]);

/* Moves the save to its next part, or to its end, if the sums over the ranks show that no writer works any more.
 * Collective; an error is the same on all ranks. */
enum status background_save_advance(struct run *run, const double sums[BACKGROUND_VOTES], struct error *err);

/* Collective: returns when no checkpoint is under way. last: the run ends with the next one, so that one which fails is
 * not tried again. Sets run->stop if a rank is asked to stop meanwhile. */
enum status background_save_wait(struct run *run, bool last, struct error *err);

/* Ends the thread, and frees run->background. false: after `seconds` it still works, so the process has to end without
 * freeing what it uses. */
bool background_save_end(struct run *run, double seconds);

struct checkpoint_keep save_keep_of(const struct run *run);
