/* memory_limit.h: whether a plan fits into the memory that the run spec and the machine give it, and if not, what
 * would. */
#ifndef ZTRAIN_CMD_TRAIN_MEMORY_LIMIT_H
#define ZTRAIN_CMD_TRAIN_MEMORY_LIMIT_H

#include "cmd/train/trainer.h"

/* STATUS_DEVICE if a rank takes more than train.memory_limit; the hint names settings that fit, or the least that any
 * setting takes. Not collective; the outcome is the same on all ranks. */
enum status memory_limit_check(const struct trainer *trainer, struct error *err);

#endif
