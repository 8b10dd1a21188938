/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_retention.h: which checkpoints stay after a save (checkpoint.keep_last, keep_best, keep_every_steps). */
#pragma once

#include "ckpt/checkpoint_list.h"

/* On rank 0, after `name` of `position` was saved in dir: deletes the valid checkpoints that `keep` does not name
 * (`name` itself always stays), and X.replaced-N beside a whole X. First points the link `best` at the best one, or
 * removes it without keep->best. Checkpoints of later steps, which would hide the new one from a resume, are moved
 * aside; damaged ones stay. Failures are warnings. `known` is brought up to date; of what is not known yet it reads the
 * newest keep->last, those that it deletes or moves, with keep->best all, and with keep->every_steps those of epochs.
 */
void checkpoint_retention_apply(const char *dir, const char *name, const struct train_position *position,
                                const struct checkpoint_keep *keep, struct checkpoint_list *known);

/* The best entry of at most this step; of equal scores the earliest. NULL: none has a score. */
const struct checkpoint_entry *checkpoint_best(const struct checkpoint_list *list, const struct checkpoint_keep *keep,
                                               int64_t newest);
