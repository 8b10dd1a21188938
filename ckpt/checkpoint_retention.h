/* checkpoint_retention.h: which checkpoints of a run stay after a save (checkpoint.keep_last). */
#ifndef ZTRAIN_CKPT_CHECKPOINT_RETENTION_H
#define ZTRAIN_CKPT_CHECKPOINT_RETENTION_H

#include "ckpt/checkpoint_folders.h"

/* After `name` of `step` was saved in dir: deletes the oldest valid checkpoints until keep_last are left (0: all stay;
 * `name` always stays), and those that are X.replaced-N although X exists. Checkpoints of later steps, which would hide
 * the new one from a resume, are moved aside; damaged ones stay. Failures are warnings, because the new checkpoint is
 * complete. `known` is brought up to date (checkpoint_list_update). Called on rank 0 alone. */
void checkpoint_retention_apply(const char *dir, const char *name, int64_t step, int64_t keep_last,
                                struct checkpoint_list *known);

#endif
