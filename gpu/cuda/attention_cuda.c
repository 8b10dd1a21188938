/* attention_cuda.c: the attention ops of the CUDA device: by cuDNN where it has a plan, else by ztrain's kernels. */
#include "gpu/cuda/attention_cuda_kernels.h"
#include "gpu/cuda/attention_cudnn.h"
#include "gpu/cuda/ops_cuda.h"

size_t cuda_attention_workspace_bytes(struct cuda_device *cuda, const struct op_limits *limits)
{
    const size_t own = attention_own_workspace_bytes(limits);
    const size_t cudnn = cuda->attention ? attention_cudnn_workspace_bytes(cuda->attention, limits) : 0;
    return own > cudnn ? own : cudnn;
}

void cuda_attention_fwd(struct stream *stream, const struct attention_fwd_args *args)
{
    if (!attention_cudnn_fwd(stream, args))
        attention_own_fwd(stream, args);
}

void cuda_attention_bwd(struct stream *stream, const struct attention_bwd_args *args)
{
    if (!attention_cudnn_bwd(stream, args))
        attention_own_bwd(stream, args);
}
