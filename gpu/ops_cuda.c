/* ops_cuda.c: the CUDA op table, and the workspace that its ops need. */
#include "gpu/ops_cuda.h"

#if !ZTRAIN_CUDA_ATTENTION
/* Without gpu/ops_cuda_attention.cu, device_cuda_available() says that attention is missing. */
extern __typeof__(cuda_attention_fwd) cuda_attention_fwd __attribute__((weak));
extern __typeof__(cuda_attention_bwd) cuda_attention_bwd __attribute__((weak));
extern __typeof__(cuda_attention_workspace_bytes) cuda_attention_workspace_bytes __attribute__((weak));
#endif

#define OPS_CUDA_ENTRY(op) .op = cuda_##op,
const struct op_table ops_cuda_table = {OPS_LIST(OPS_CUDA_ENTRY)};

const char *ops_cuda_missing(void)
{
    return !ops_cuda_table.attention_fwd ? "attention_fwd" : !ops_cuda_table.attention_bwd ? "attention_bwd" : NULL;
}

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

size_t ops_cuda_workspace_bytes(struct device *device, const struct op_limits *limits)
{
    const struct cuda_device *cuda = device->private_;
    size_t bytes = cuda_gemm_workspace_bytes(cuda, limits);
    bytes = max_size(bytes, cuda_kernels_workspace_bytes(cuda, limits));
#if !ZTRAIN_CUDA_ATTENTION
    if (!cuda_attention_workspace_bytes)
        return bytes;
#endif
    bytes = max_size(bytes, cuda_attention_workspace_bytes(cuda, limits));
    return bytes;
}
