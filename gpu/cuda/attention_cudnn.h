/* attention_cudnn.h: attention on a GPU through cuDNN, for the shapes that were announced and that cuDNN can do. What
 * it does not take goes to our own kernels (ops_cuda_attention.cu). */
#ifndef ZTRAIN_GPU_CUDA_ATTENTION_CUDNN_H
#define ZTRAIN_GPU_CUDA_ATTENTION_CUDNN_H

#include "gpu/cuda/device_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Reads ZTRAIN_CUDA_ATTENTION: "cudnn" or "own"; else cuDNN where there is one. The library is opened by the first
 * announcement, or here if the environment asks for it: then a machine without it is an error. */
enum status attention_cudnn_new(struct cuda_device *cuda, struct attention_cudnn **attention, struct error *err);
void attention_cudnn_free(struct attention_cudnn *attention); /* may be NULL */

/* Makes plans for the attention that the limits announce, and returns the workspace that they need. */
size_t attention_cudnn_workspace_bytes(struct attention_cudnn *attention, const struct op_limits *limits);

/* Runs what was announced once on memory of its own, beside our own kernels: plans whose results differ from theirs, or
 * do not repeat bit for bit, are dropped. Says in the log which of the two will be used, and why. Loads the kernels. */
enum status attention_cudnn_prepare(struct attention_cudnn *attention, struct error *err);

/* Queue the op on the stream, as the op would. False: nothing was done, our own kernels are to do it. */
bool attention_cudnn_fwd(struct stream *stream, const struct attention_fwd_args *args);
bool attention_cudnn_bwd(struct stream *stream, const struct attention_bwd_args *args);

/* One line for people: "attention: cuDNN 9.19.0 for 4 of 6 shapes". */
void attention_cudnn_describe(const struct attention_cudnn *attention, char *text, size_t size);

/* Our own kernels, whatever was announced (ops_cuda_attention.cu). */
void attention_own_fwd(struct stream *stream, const struct attention_fwd_args *args);
void attention_own_bwd(struct stream *stream, const struct attention_bwd_args *args);

/* lse as ops have it, (H, B · T), to or from what cuDNN has, (B, H, T) (ops_cuda_attention.cu). */
void attention_lse_by_sequence(struct stream *stream, float *by_sequence, const float *lse, int64_t B, int64_t H,
                               int64_t T);
void attention_lse_by_head(struct stream *stream, float *lse, const float *by_sequence, int64_t B, int64_t H,
                           int64_t T);

#ifdef __cplusplus
}
#endif

#endif
