/* gemm_cuda.h: the linear ops of the CUDA device over cublasLt; see gemm_cuda.c. */
#ifndef ZTRAIN_GPU_CUDA_GEMM_CUDA_H
#define ZTRAIN_GPU_CUDA_GEMM_CUDA_H

#include "gpu/cuda/device_cuda.h"

/* Needs cuda->cublaslt and the device's name. */
enum status gemm_cuda_new(struct cuda_device *cuda, struct gemm_cuda **gemm, struct error *err);
void gemm_cuda_free(struct gemm_cuda *gemm); /* may be NULL */

/* Whether fp32 products use TF32, as device_cuda_wants_tf32() said when it was made. */
bool gemm_cuda_uses_tf32(const struct gemm_cuda *gemm);

/* ops_prepare() of this device: chooses the kernels of these products, from the cache on disk or by measuring. */
enum status gemm_cuda_prepare(struct device *device, const struct linear_products *products, struct error *err);

#endif
