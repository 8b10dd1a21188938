/* attention_price.h: what it costs a run on GPUs that cuDNN does not compute its attention. */
#ifndef ZTRAIN_CMD_TRAIN_ATTENTION_PRICE_H
#define ZTRAIN_CMD_TRAIN_ATTENTION_PRICE_H

#include "cmd/train/trainer.h"

/* Warns, on rank 0, that attention which cuDNN could compute runs on ztrain's kernels, why, and how much longer a step
 * takes for it by the model of `ztrain plan --speed`. To be called when the products of the run have been prepared. */
void attention_price_warn(const struct trainer *trainer);

#endif
