/* save.h: the checkpoints of a run: when the disk refuses one it is tried again, and training continues without it
 * unless it is the run's last. */
#pragma once

#include "cmd/run/run_state.h"

/* Collective, with no step under way: writes a checkpoint of run->position, or begins to write it in the background
 * (background_save.h) unless the run ends with it. last: the run ends with it, so that failing
 * to write it is an error; any other checkpoint may be lost (a warning). STATUS_DIVERGED: the ranks' copies of the
 * model have drifted apart. */
enum status save_checkpoint(struct run *run, bool last, struct error *err);

/* Collective, after an evaluation: whether its scores are among the checkpoint.keep_best best ones, so that a
 * checkpoint is due. The same on all ranks. */
enum status save_is_due_for_scores(struct run *run, bool *due, struct error *err);
