/* attention_price.h: what it costs a run on GPUs that cuDNN does not compute its attention. */
#pragma once

#include "cmd/engine/engine.h"

/* Tells, on rank 0, that attention runs on ztrain's kernels, why, and how much longer a step takes for it by the model
 * of `ztrain plan --speed`: a warning where cuDNN could compute it, else (fp32, a soft cap) a line, whose price is the
 * difference to cuDNN's speed in 16 bits without the cap. To be called when the products of the run have been prepared.
 */
void attention_price_warn(const struct engine *engine);
