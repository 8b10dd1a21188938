/* gemm_cuda.h: the linear ops of the CUDA device over cublasLt: the state that their launchers (ops_cuda.h) use. */
#pragma once

#include "gpu/cuda/device_cuda.h"

/* Needs cuda->cublaslt and the device's name. STATUS_DEVICE: cublasLt does not start. STATUS_USAGE: a wrong
 * ZTRAIN_CUDA_TF32. */
enum status gemm_cuda_new(struct cuda_device *cuda, struct gemm_cuda **gemm, struct error *err);
void gemm_cuda_free(struct gemm_cuda *gemm); /* may be NULL */

/* From now on bias, GELU, SwiGLU and bias gradients are computed by ztrain's kernels after the products. */
void gemm_cuda_avoid_epilogues(struct gemm_cuda *gemm);

/* From now on the kernels of products leave `count` multiprocessors to other kernels. */
void gemm_cuda_leave_multiprocessors(struct gemm_cuda *gemm, int count);

/* From now on announced products with SwiGLU may be computed by cuDNN, which outlives `gemm`. NULL: it cannot be used.
 */
struct cudnn_target;
void gemm_cuda_use_cudnn(struct gemm_cuda *gemm, const struct cudnn_target *cudnn);

/* Whether fp32 products use TF32: device_cuda_wants_tf32() when it was made. */
bool gemm_cuda_uses_tf32(const struct gemm_cuda *gemm);
