/* SPDX-License-Identifier: Apache-2.0 */
/* ops_cuda.c: the CUDA op table, the workspace of its ops, and their preparation before the first step. */
#include "gpu/cuda/ops_cuda.h"

#include "core/heartbeat.h"
#include "core/log.h"
#include "gpu/cuda/attention/attention_cudnn.h"
#include "gpu/cuda/autotune.h"
#include "gpu/cuda/cuda_workspace.h"
#include "gpu/cuda/gemm/gemm_cuda.h"
#include "gpu/cuda/gemm/gemm_cuda_gated.h"

#define OPS_CUDA_ENTRY(op) .op = cuda_##op,
const struct op_table ops_cuda_table = {OPS_LIST(OPS_CUDA_ENTRY)};

/* The modules: one for each .cu file. */
#define MODULES(X)      \
    X(attention)        \
    X(attention_cudnn)  \
    X(attention_decode) \
    X(delta) X(dequantize) X(embedding) X(experts) X(gemm) X(grouped) X(loss) X(muon) X(norm) X(optimizer) X(pointwise)
#define MODULE_FUNCTION(name) const void *cuda_module_##name(void);
#define MODULE_ROW(name) {"loading the kernels of " #name, cuda_module_##name},
MODULES(MODULE_FUNCTION)
static const struct {
    const char *doing;
    const void *(*kernel)(void);
} modules[] = {MODULES(MODULE_ROW)};

#ifndef ZTRAIN_CUDA_CODE /* the Makefile's list */
#define ZTRAIN_CUDA_CODE 80, 90, 100, 120
#endif
static const int build_code[] = {ZTRAIN_CUDA_CODE};

enum status ops_cuda_load(struct cuda_device *cuda, struct error *err)
{
    bool found = false;
    for (size_t i = 0; i < COUNT_OF(build_code); i++) /* code for 8.0 also runs on 8.6, not on 9.0 */
        found |= build_code[i] / 10 == cuda->capability / 10 && build_code[i] <= cuda->capability;
    if (!found)
        log_info("this build has no code for compute capability %s: the driver compiles the kernels, which may take a "
                 "minute, and keeps them",
                 cuda->device.capability);
    for (size_t i = 0; i < COUNT_OF(modules); i++) {
        struct cudaFuncAttributes attributes;
        SLOW(modules[i].doing, NULL, -1);
        const cudaError_t code = cudaFuncGetAttributes(&attributes, modules[i].kernel());
        if (code != cudaSuccess)
            return error_set(err, cuda_status_of(code), "GPU %d (%s): %s: %s", cuda->index, cuda->device.name,
                             modules[i].doing, cudaGetErrorString(code));
    }
    return STATUS_OK;
}

size_t cuda_device_workspace_bytes(struct device *device, const struct op_limits *limits)
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
    if (status == STATUS_OK && cache) status = attention_cudnn_autotune(cuda->attention, tuner, err);
    autotune_cache_unlock(cache);
    return status;
}

enum status cuda_device_prepare(struct device *device, const struct linear_products *products, struct error *err)
{
    struct cuda_device *cuda = device->private_;
    struct autotuner tuner;
    if (gemm_gated_wants_cudnn(cuda->gemm, products)) cuda->gemm->cudnn = attention_cudnn_target(cuda->attention);
    gemm_cuda_take_imported(cuda->gemm, products);
    enum status status = autotuner_open(&tuner, device, cuda->gemm->cache, err);
    tuner.fixed = cuda->gemm->fixed;
    if (status == STATUS_OK) status = tune_ops(cuda, &tuner, products, err);
    tuner.cache = NULL; /* it is no longer locked */
    if (status == STATUS_OK) status = attention_cudnn_prepare(cuda->attention, &tuner, err);
    autotuner_close(&tuner);
    return status;
}
