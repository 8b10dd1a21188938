/* attention_cuda.c: the attention ops of the CUDA device: by cuDNN where it has a plan, else, and with a soft cap of
 * the scores, by ztrain's kernels. */
#include "gpu/cuda/attention/attention_cuda_kernels.h"
#include "gpu/cuda/attention/attention_cudnn.h"
#include "gpu/cuda/ops_cuda.h"

void cuda_attention_fwd(struct stream *stream, const struct attention_fwd_args *args)
{
    if (args->softcap > 0 || !attention_cudnn_fwd(stream, args))
        attention_own_fwd(stream, args);
}

void cuda_attention_bwd(struct stream *stream, const struct attention_bwd_args *args)
{
    if (args->softcap > 0 || !attention_cudnn_bwd(stream, args))
        attention_own_bwd(stream, args);
}
