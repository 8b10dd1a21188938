/* SPDX-License-Identifier: Apache-2.0 */
/* attention_cudnn.h: the attention ops of a GPU: by cuDNN for the shapes that were announced and that it can compute,
 * by ztrain's kernels for all others. */
#pragma once

#include "gpu/cuda/autotune.h"
#include "gpu/cuda/cudnn_graph.h"
#include "gpu/cuda/device_cuda.h"

/* Reads ZTRAIN_CUDA_ATTENTION: "cudnn", "own" or not set: cuDNN where there is one. The first announcement opens the
 * library; if "cudnn" is asked for, this does, and its lack is an error. */
enum status attention_cudnn_new(struct cuda_device *cuda, struct attention_cudnn **attention, struct error *err);
void attention_cudnn_free(struct attention_cudnn *attention); /* may be NULL */

/* The library, opened now if it is not yet; NULL: it cannot be used. It lives as long as `attention`. */
const struct cudnn_target *attention_cudnn_target(struct attention_cudnn *attention);

/* Makes plans for the announced attention; returns the workspace that they need. */
size_t attention_cudnn_workspace_bytes(struct attention_cudnn *attention, const struct op_limits *limits);

/* Finds an engine and pieces for each plan: in the tuner's cache, or by autotuning. */
enum status attention_cudnn_autotune(struct attention_cudnn *attention, struct autotuner *tuner, struct error *err);

/* Verifies the plans that were not tuned now against ztrain's kernels. Logs what computes each shape, and why. */
enum status attention_cudnn_prepare(struct attention_cudnn *attention, struct autotuner *tuner, struct error *err);
