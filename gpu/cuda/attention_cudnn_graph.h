/* attention_cudnn_graph.h: causal attention, forward and backward, as cuDNN's operation graphs. */
#ifndef ZTRAIN_GPU_CUDA_ATTENTION_CUDNN_GRAPH_H
#define ZTRAIN_GPU_CUDA_ATTENTION_CUDNN_GRAPH_H

#include "core/dtype.h"
#include "gpu/cuda/cudnn_graph.h"

#if ZTRAIN_HAVE_CUDNN

/* B sequences of T tokens each, one after the other; the rest as in attention_fwd_args and attention_bwd_args. Plain
 * data without padding: shapes are compared byte by byte. */
struct attention_shape {
    int64_t dtype; /* DTYPE_BF16 or DTYPE_F16 */
    int64_t B, T, H, KV, D, window;
    int64_t ld_q, ld_k, ld_v, ld_o, ld_dq, ld_dk, ld_dv; /* the last three: backward, else 0 */
    double scale;
};

/* Where the graphs find their tensors: ids for cudnn_plan_execute(). */
enum attention_pointer {
    ATTENTION_Q,
    ATTENTION_K,
    ATTENTION_V,
    ATTENTION_OUT,
    ATTENTION_LSE,   /* float (B, H, T) */
    ATTENTION_DELTA, /* float (B, H, T): scratch of backward */
    ATTENTION_DOUT,
    ATTENTION_DQ,
    ATTENTION_DK,
    ATTENTION_DV,
    ATTENTION_POINTERS
};

/* Plans for the target. Refused (STATUS_DEVICE, with the reason): what this version of cuDNN cannot do, or is known to
 * do wrong, and workspaces beyond the limit. */
enum status attention_plan_fwd(const struct cudnn_target *target, const struct attention_shape *shape,
                               size_t most_workspace, struct cudnn_plan **plan, struct error *err);
enum status attention_plan_bwd(const struct cudnn_target *target, const struct attention_shape *shape,
                               size_t most_workspace, struct cudnn_plan **plan, struct error *err);

#endif

#endif
