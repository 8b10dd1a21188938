/* ops_cuda.c: the CUDA op table, the workspace of its ops, and their preparation before the first step. */
#include "gpu/cuda/ops_cuda.h"

#include "gpu/cuda/attention/attention_cudnn.h"
#include "gpu/cuda/autotune.h"
#include "gpu/cuda/cuda_workspace.h"
#include "gpu/cuda/gemm/gemm_cuda.h"
#include "gpu/cuda/gemm/gemm_cuda_gated.h"

#define OPS_CUDA_ENTRY(op) .op = cuda_##op,
const struct op_table ops_cuda_table = {OPS_LIST(OPS_CUDA_ENTRY)};

size_t ops_cuda_workspace_bytes(struct device *device, const struct op_limits *limits)
{
    const struct cuda_device *cuda = device->private_;
    const size_t own = cuda_workspace_bytes(limits, device->memory_bytes);
    const size_t cudnn = attention_cudnn_workspace_bytes(cuda->attention, limits);
    return own > cudnn ? own : cudnn;
}

/* Without a cache the announced plans of attention stay. One process of a machine tunes, the others wait and read. */
static enum status tune_ops(struct cuda_device *cuda, struct autotuner *tuner, const struct linear_products *products,
                            struct error *err)
{
    struct autotune_cache *cache = cuda->gemm->cache;
    autotune_cache_lock(cache);
    enum status status = gemm_cuda_autotune(cuda->gemm, tuner, products, err);
    if (status == STATUS_OK && cache)
        status = attention_cudnn_autotune(cuda->attention, tuner, err);
    autotune_cache_unlock(cache);
    return status;
}

enum status ops_cuda_prepare(struct device *device, const struct linear_products *products, struct error *err)
{
    struct cuda_device *cuda = device->private_;
    struct autotuner tuner;
    if (gemm_gated_wants_cudnn(cuda->gemm, products))
        cuda->gemm->cudnn = attention_cudnn_target(cuda->attention);
    gemm_cuda_take_imported(cuda->gemm, products);
    enum status status = autotuner_open(&tuner, device, cuda->gemm->cache, err);
    if (status == STATUS_OK)
        status = tune_ops(cuda, &tuner, products, err);
    tuner.cache = NULL; /* it is no longer locked */
    if (status == STATUS_OK)
        status = attention_cudnn_prepare(cuda->attention, &tuner, err);
    autotuner_close(&tuner);
    return status;
}
