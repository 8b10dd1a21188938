/* attention_price.h: what it costs a run on GPUs that cuDNN does not compute its attention. */
#pragma once

#include "cmd/engine/engine.h"

/* On rank 0: that attention runs on ztrain's kernels, why, and by how much `ztrain plan --speed` says that lengthens a
 * step. A warning where cuDNN could compute it, else (fp32, a soft cap) a line. After the run's products are prepared.
 */
void attention_price_warn(const struct engine *engine);
