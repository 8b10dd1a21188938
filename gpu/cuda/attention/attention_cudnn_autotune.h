/* attention_cudnn_autotune.h: which of cuDNN's engines computes a shape of attention, in pieces of how many sequences,
 * and whether it computes what ztrain's kernels do. */
#pragma once

#include "gpu/cuda/attention/attention_cudnn_plan.h"
#include "gpu/cuda/autotune.h"

/* Takes the config of a plan that is ATTENTION_PLANNED from the cache, and leaves it planned; or tunes it, and leaves
 * it verified or refused. No candidate needs more workspace than was announced. Fails (STATUS_DEVICE) where a candidate
 * broke the GPU. */
enum status attention_autotune(struct autotuner *tuner, struct attention_plan *plan, struct error *err);

/* Verifies a plan that is ATTENTION_PLANNED: it is verified or refused afterwards. */
enum status attention_verify(struct autotuner *tuner, struct attention_plan *plan, struct error *err);
