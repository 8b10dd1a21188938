/* cuda_reserve.h: memory of a GPU that a run takes outside of its arena: CUDA's context and what libraries allocate by
 * themselves. The figures are estimates; cuda_reserve.c has their sources. Plain C, for every build, like
 * cuda_workspace.h. */
#pragma once

#include "gpu/ops.h"

#define CUDA_RESERVE_LIST(X)           \
    X(CONTEXT, "CUDA's context")       \
    X(KERNELS, "kernels of libraries") \
    X(CUDNN, "cuDNN's workspace")      \
    X(NCCL, "NCCL's buffers")

#define CUDA_RESERVE_CONSTANT(name, text) CUDA_RESERVE_##name,
enum cuda_reserve_part { CUDA_RESERVE_LIST(CUDA_RESERVE_CONSTANT) CUDA_RESERVE_PARTS };

extern const char *const cuda_reserve_names[CUDA_RESERVE_PARTS];

struct cuda_reserve {
    size_t parts[CUDA_RESERVE_PARTS], total; /* bytes of one rank */
};

/* The reserve of a rank among `world` on the GPU `device`, which may be assumed. workspace: the bytes that the plan has
 * for the ops. On a GPU that is there cuDNN's workspace is a part of these; on an assumed one (struct device without a
 * capability) the reserve has what cuDNN would need in addition. The CPU device has no reserve: all zeros. */
void cuda_reserve_fill(struct cuda_reserve *reserve, const struct device *device, int world,
                       const struct op_limits *limits, size_t workspace);
