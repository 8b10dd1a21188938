/* gemm_cuda_gated_graph.h: cuDNN's plans of products with SwiGLU inside (gemm_cuda_gated.h). */
#pragma once

#include "gpu/cuda/cudnn_graph.h"
#include "gpu/gemm_cache.h"

#if ZTRAIN_HAVE_CUDNN

/* The pointers of cudnn_plan_execute(). GEMM_SWIGLU: x and the weights of up; gate, up and h. GEMM_DSWIGLU: dy and the
 * weights; gate and up, their gradients, which may be in the same place. */
enum gemm_gated_pointer {
    GATED_ROWS,
    GATED_WEIGHTS,
    GATED_GATE,
    GATED_UP,
    GATED_H,
    GATED_DGATE,
    GATED_DUP,
    GATED_POINTERS
};

/* Makes the plan of a product in 16 bits. STATUS_DEVICE: cuDNN has none that is as wished. */
enum status gemm_gated_plan(const struct cudnn_target *target, const struct gemm_key *key,
                            const struct cudnn_wish *wish, struct cudnn_plan **plan, struct error *err);

#endif
