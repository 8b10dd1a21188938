/* attention_cudnn_verify.h: a plan of cuDNN's on trial, before the first step uses it. */
#pragma once

#include "gpu/cuda/attention/attention_cudnn_plan.h"

#if ZTRAIN_HAVE_CUDNN

struct attention_timing {
    bool warm;      /* the GPU has computed long enough for times to count */
    double seconds; /* out: of the op; 0: it was refused */
};

/* Runs a plan in state ATTENTION_PLANNED next to ztrain's kernels, on a stream and memory that are freed again. The
 * plan is ATTENTION_VERIFIED or ATTENTION_REFUSED (with the reason) afterwards; in the former case it has been timed.
 * timing: NULL: it is not timed. Errors: the device failed, or host memory is exhausted. */
enum status attention_plan_verify(struct attention_plan *plan, struct device *device, struct attention_timing *timing,
                                  struct error *err);

#endif
