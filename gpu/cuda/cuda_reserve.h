/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_reserve.h: estimates of a GPU's memory that CUDA and libraries take outside of a run's arena, in any build. */
#pragma once

#include "gpu/ops.h"

#define CUDA_RESERVE_LIST(X)           \
    X(CONTEXT, "CUDA's context")       \
    X(KERNELS, "kernels of libraries") \
    X(CUDNN, "cuDNN's workspace")      \
    X(NCCL, "NCCL's buffers")          \
    X(NVLS, "NCCL's NVLS buffers")

#define CUDA_RESERVE_CONSTANT(name, text) CUDA_RESERVE_##name,
enum cuda_reserve_part { CUDA_RESERVE_LIST(CUDA_RESERVE_CONSTANT) CUDA_RESERVE_PARTS };

extern const char *const cuda_reserve_names[CUDA_RESERVE_PARTS];

struct cuda_reserve {
    size_t parts[CUDA_RESERVE_PARTS], total; /* bytes of one rank */
};

/* The reserve of a rank among `world` on `device`, `per_node` of them on its node. workspace: the bytes that the plan
 * has for the ops, which contain cuDNN's on a GPU that is there; on an assumed one (no capability) the reserve has what
 * cuDNN needs in addition. The CPU device: all zeros. */
void cuda_reserve_fill(struct cuda_reserve *reserve, const struct device *device, int world, int per_node,
                       const struct op_limits *limits, size_t workspace);
