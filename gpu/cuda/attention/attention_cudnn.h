/* attention_cudnn.h: attention on a GPU through cuDNN, for the shapes that were announced and that cuDNN can compute.
 * attention_cuda.c gives all others to ztrain's kernels. */
#pragma once

#include "gpu/cuda/device_cuda.h"
#include "gpu/cuda/gemm_trial.h"
#include "gpu/gemm_cache.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Reads ZTRAIN_CUDA_ATTENTION: "cudnn" or "own"; not set: cuDNN where there is one. The library is opened by the first
 * announcement, or here if the environment asks for it: then a machine without it is an error. */
enum status attention_cudnn_new(struct cuda_device *cuda, struct attention_cudnn **attention, struct error *err);
void attention_cudnn_free(struct attention_cudnn *attention); /* may be NULL */

/* The library, which is opened if it is not yet; NULL: it cannot be used. It lives as long as `attention`, which may be
 * NULL. */
struct cudnn_target;
const struct cudnn_target *attention_cudnn_target(struct attention_cudnn *attention);

/* Makes plans for the attention that the limits announce, and returns the workspace that they need. */
size_t attention_cudnn_workspace_bytes(struct attention_cudnn *attention, const struct op_limits *limits);

/* Chooses an engine and the number of pieces for each plan (attention_cudnn_choose.h). The cache is locked; NULL: the
 * announced plans stay. */
enum status attention_cudnn_choose(struct attention_cudnn *attention, struct gemm_cache *cache,
                                   struct gemm_trial *trial, struct error *err);

/* Runs each plan next to ztrain's kernels (attention_cudnn_verify.h), which loads the kernels too: plans whose results
 * differ, or do not repeat bit for bit, are refused. Those that attention_cudnn_choose() has tried are left out. Logs
 * for each shape which of the two will be used, and why. */
enum status attention_cudnn_prepare(struct attention_cudnn *attention, struct error *err);

/* Enqueue the op on the stream. False: nothing was enqueued, ztrain's kernels have to compute it. */
bool attention_cudnn_fwd(struct stream *stream, const struct attention_fwd_args *args);
bool attention_cudnn_bwd(struct stream *stream, const struct attention_bwd_args *args);

/* Why shapes that were announced are not computed by cuDNN, unless the environment asks for that: the library cannot be
 * opened, or refuses one. NULL: it computes them. Borrowed. */
const char *attention_cudnn_obstacle(const struct attention_cudnn *attention);

/* One line for people: "attention: cuDNN for 4 of 6 shapes, ztrain's kernels for the others". */
void attention_cudnn_describe(const struct attention_cudnn *attention, char *text, size_t size);

#ifdef __cplusplus
}
#endif
