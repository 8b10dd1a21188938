/* attention_cuda_kernels.h: ztrain's kernels for attention, for every shape and dtype.
 *
 * Launchers in the sense of ops_cuda.h: they enqueue work on the stream and return. */
#pragma once

#include "gpu/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The ops attention_fwd and attention_bwd of ops.h. */
void attention_own_fwd(struct stream *stream, const struct attention_fwd_args *args);
void attention_own_bwd(struct stream *stream, const struct attention_bwd_args *args);

#ifdef __cplusplus
}
#endif
