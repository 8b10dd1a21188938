/* SPDX-License-Identifier: Apache-2.0 */
/* gemm_cuda.h: the linear ops of the CUDA device over cublasLt: the state that their launchers (ops_cuda.h) use. */
#pragma once

#include "gpu/cuda/autotune.h"
#include "gpu/cuda/cudnn_graph.h"
#include "gpu/cuda/device_cuda.h"

/* Needs cuda->cublaslt and the device's name. STATUS_DEVICE: cublasLt does not start. STATUS_USAGE: a wrong
 * ZTRAIN_CUDA_TF32. */
enum status gemm_cuda_new(struct cuda_device *cuda, struct gemm_cuda **gemm, struct error *err);
void gemm_cuda_free(struct gemm_cuda *gemm); /* may be NULL */

/* Takes the configs of products with SwiGLU that rank 0 has tuned: before the cache is locked, because cuDNN compiles
 * for about a second each, and the ranks of a machine do it at the same time. */
void gemm_cuda_take_imported(struct gemm_cuda *gemm, const struct linear_products *products);

/* ops_prepare() for the linear ops: takes the products' configs from the locked cache, or tunes and adds them. Without
 * a cache, nothing is tuned. */
enum status gemm_cuda_autotune(struct gemm_cuda *gemm, struct autotuner *tuner, const struct linear_products *products,
                               struct error *err);

/* Enqueues a linear op. NULL, or why cuDNN fails; other failures become the device's error. */
struct gemm_op;
const char *gemm_op_run(struct stream *stream, const struct gemm_op *op);
