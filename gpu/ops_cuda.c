/* ops_cuda.c: the CUDA op table, and the workspace that its ops need. */
#include "gpu/ops_cuda.h"

#define OPS_CUDA_ENTRY(op) .op = cuda_##op,
const struct op_table ops_cuda_table = {OPS_LIST(OPS_CUDA_ENTRY)};

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

size_t ops_cuda_workspace_bytes(struct device *device, const struct op_limits *limits)
{
    const struct cuda_device *cuda = device->private_;
    size_t bytes = cuda_gemm_workspace_bytes(cuda, limits);
    bytes = max_size(bytes, cuda_kernels_workspace_bytes(cuda, limits));
    return max_size(bytes, cuda_attention_workspace_bytes(cuda, limits));
}
