/* attention_cuda_kernels.h: ztrain's kernels for attention, for every shape and dtype, and the order of lse for cuDNN.
 *
 * Launchers in the sense of ops_cuda.h: they enqueue work on the stream and return. */
#ifndef ZTRAIN_GPU_CUDA_ATTENTION_CUDA_KERNELS_H
#define ZTRAIN_GPU_CUDA_ATTENTION_CUDA_KERNELS_H

#include "gpu/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The ops attention_fwd and attention_bwd of ops.h. */
void attention_own_fwd(struct stream *stream, const struct attention_fwd_args *args);
void attention_own_bwd(struct stream *stream, const struct attention_bwd_args *args);

/* lse (float) from the order of ops, (H, B * T), to the order of cuDNN, (B, H, T), and back. */
void attention_lse_by_sequence(struct stream *stream, float *by_sequence, const float *lse, int64_t B, int64_t H,
                               int64_t T);
void attention_lse_by_head(struct stream *stream, float *lse, const float *by_sequence, int64_t B, int64_t H,
                           int64_t T);

#ifdef __cplusplus
}
#endif

#endif
