/* ops_cuda.c: the CUDA op table, and the workspace that its ops need. */
#include "gpu/ops_cuda.h"

/* Groups of ops are added one after the other: until all are there, device_cuda_available() says which is missing. */
#define OPS_CUDA_WEAK(op) extern __typeof__(cuda_##op) cuda_##op __attribute__((weak));
OPS_LIST(OPS_CUDA_WEAK)
extern __typeof__(cuda_kernels_workspace_bytes) cuda_kernels_workspace_bytes __attribute__((weak));
extern __typeof__(cuda_attention_workspace_bytes) cuda_attention_workspace_bytes __attribute__((weak));

#define OPS_CUDA_ENTRY(op) .op = cuda_##op,
const struct op_table ops_cuda_table = {OPS_LIST(OPS_CUDA_ENTRY)};

const char *ops_cuda_missing(void)
{
#define OPS_CUDA_MISSING(op) \
    if (!ops_cuda_table.op)  \
        return #op;
    OPS_LIST(OPS_CUDA_MISSING)
    return NULL;
}

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

size_t ops_cuda_workspace_bytes(struct device *device, const struct op_limits *limits)
{
    const struct cuda_device *cuda = device->private_;
    size_t bytes = cuda_gemm_workspace_bytes(cuda, limits);
    if (cuda_kernels_workspace_bytes)
        bytes = max_size(bytes, cuda_kernels_workspace_bytes(cuda, limits));
    if (cuda_attention_workspace_bytes)
        bytes = max_size(bytes, cuda_attention_workspace_bytes(cuda, limits));
    return bytes;
}
