/* SPDX-License-Identifier: Apache-2.0 */
/* gemm_cuda_plan.h: plans of cublasLt: a product's descriptors and the algorithm chosen for it, made once per shape.
 * The algorithm is the one that gemm_cuda_autotune() found fastest, else, and with fixed kernels, the library's first
 * proposal. Only algorithms whose reduction has a fixed order are taken: no split of k, or one whose parts are reduced
 * in a separate step. One thread: the device's. */
#pragma once

#include "gpu/cuda/cudnn_graph.h"
#include "gpu/cuda/device_cuda.h"
#include "gpu/cuda/gemm/gemm_cuda_product.h"

enum { GEMM_CANDIDATES = 32, GEMM_PLAN_BUCKETS = 1024 };

struct gemm_plan {
    struct gemm_key key;
    bool supported;
    enum gemm_fusion fusion;        /* of a product with an epilogue */
    cublasLtMatmulDesc_t operation; /* owned */
    cublasLtMatrixLayout_t a, b, d; /* owned */
    cublasLtMatmulAlgo_t algorithm;
    struct cudnn_plan *cudnn; /* owned; of an epilogue of cuDNN's (gemm_cuda_gated.h), instead of the members above */
    struct gemm_plan *next;   /* in its bucket */
};

struct gemm_cuda {
    struct cuda_device *cuda; /* borrowed */
    const struct cublaslt_functions *lt;
    cublasLtHandle_t handle;
    struct autotune_cache *cache;     /* owned; NULL: there is none, and nothing is tuned */
    const struct cudnn_target *cudnn; /* borrowed; NULL: no product is computed by cuDNN */
    struct gemm_rules rules;
    bool again;                                 /* ZTRAIN_GEMM_MEASURE=again */
    bool fixed;                                 /* device_fix_kernels(): nothing is timed */
    enum gemm_fusion forced;                    /* of every product with an epilogue; untuned: as timed, or usual */
    struct gemm_plan *plans[GEMM_PLAN_BUCKETS]; /* owned */
};

/* The products' part of the stream's workspace, of at least `bytes`, aligned to 256 bytes. */
void *gemm_workspace_of(struct stream *stream, size_t bytes);

/* The plan of exactly this key; NULL: there is none. */
struct gemm_plan *gemm_plan_find(struct gemm_cuda *gemm, const struct gemm_key *key);

/* Adds a plan that has no algorithm yet; `supported` is false if cublasLt refuses the product. */
struct gemm_plan *gemm_plan_new(struct gemm_cuda *gemm, const struct gemm_key *key);

/* Finds the plan or makes it, by the cache or the library's first proposal: nothing is timed in a step. */
struct gemm_plan *gemm_plan_get(struct gemm_cuda *gemm, const struct gemm_key *key);

/* Takes algorithm and fusion from the cache. False: there is none, or it is refused or has faulted. */
bool gemm_plan_take_known(struct gemm_cuda *gemm, struct gemm_plan *plan);

/* Whether an epilogue is taken where nothing is timed: those for bias, GELU and its derivative. */
bool gemm_epilogue_is_usual(int64_t epilogue);

/* Whether the product is computed as it is: the library has an algorithm, and an epilogue is forced, was faster, or if
 * untimed is usual. Those for bias, GELU and its derivative are usual, since they save passes over the matrix. Those
 * for bias gradients are not: products with BGRADA or BGRADB have been seen to take much longer than without
 * (github.com/NVIDIA/CUDALibrarySamples/issues/90). Nor is SwiGLU: cuDNN's products may be slower than cublasLt's. */
bool gemm_plan_is_taken(const struct gemm_cuda *gemm, const struct gemm_plan *plan);

/* Acceptable algorithms in the library's order, at most GEMM_CANDIDATES; returns their number. */
int gemm_plan_propose(const struct gemm_cuda *gemm, const struct gemm_plan *plan, cublasLtMatmulHeuristicResult_t *out);
/* The first of them; there may be none: supported. */
void gemm_plan_take_first(const struct gemm_cuda *gemm, struct gemm_plan *plan);

/* An algorithm as the cache has it; what the cache has for a product; whether a process ended as it tried a config. */
struct autotune_config gemm_config_of(const cublasLtMatmulAlgo_t *algorithm, enum gemm_fusion fusion);
bool gemm_config_find(const struct gemm_cuda *gemm, const struct gemm_key *key, struct autotune_config *config);
bool gemm_config_is_faulty(const struct gemm_cuda *gemm, const struct gemm_key *key, struct autotune_config config);

/* Enqueues the product by the algorithm. */
cublasStatus_t gemm_plan_run(const struct gemm_plan *plan, const cublasLtMatmulAlgo_t *algorithm,
                             const struct gemm_product *product, struct stream *stream);

void gemm_plans_free(struct gemm_cuda *gemm); /* all of them */
