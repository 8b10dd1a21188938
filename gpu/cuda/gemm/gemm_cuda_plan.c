/* SPDX-License-Identifier: Apache-2.0 */
/* gemm_cuda_plan.c: descriptors and algorithms of cublasLt's products. */
#include "gpu/cuda/gemm/gemm_cuda_plan.h"

#include "core/memory.h"

#include <xxhash.h>

_Static_assert(sizeof(((struct autotune_config *)NULL)->kernel) == sizeof(cublasLtMatmulAlgo_t),
               "the cache holds whole algorithms");

/* ---- descriptors --------------------------------------------------------- */

static cudaDataType_t gemm_data_type(int64_t dtype)
{
    return dtype == DTYPE_F32 ? CUDA_R_32F : dtype == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

static const cublasLtEpilogue_t epilogues[] = {
    [GEMM_PLAIN] = CUBLASLT_EPILOGUE_DEFAULT,     [GEMM_BIAS] = CUBLASLT_EPILOGUE_BIAS,
    [GEMM_GELU_AUX] = CUBLASLT_EPILOGUE_GELU_AUX, [GEMM_GELU_AUX_BIAS] = CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
    [GEMM_DGELU] = CUBLASLT_EPILOGUE_DGELU,       [GEMM_BGRADA] = CUBLASLT_EPILOGUE_BGRADA,
    [GEMM_BGRADB] = CUBLASLT_EPILOGUE_BGRADB};
_Static_assert(COUNT_OF(epilogues) == GEMM_SWIGLU, "every epilogue but those of cuDNN has cublasLt's name");

static bool gemm_epilogue_of_cudnn(int64_t epilogue)
{
    return epilogue >= GEMM_SWIGLU;
}

static bool gemm_uses_vector(int64_t e)
{
    return e == GEMM_BIAS || e == GEMM_GELU_AUX_BIAS || e == GEMM_BGRADA || e == GEMM_BGRADB;
}

static bool uses_aux(int64_t epilogue)
{
    return epilogue == GEMM_GELU_AUX || epilogue == GEMM_GELU_AUX_BIAS || epilogue == GEMM_DGELU;
}

static bool set_operation(const struct gemm_cuda *g, const struct gemm_plan *plan,
                          cublasLtMatmulDescAttributes_t attribute, const void *value, size_t size)
{
    return g->lt->cublasLtMatmulDescSetAttribute(plan->operation, attribute, value, size) == CUBLAS_STATUS_SUCCESS;
}

/* Puts the pointers of the epilogue, which differ from call to call, into the descriptor. */
static bool set_pointers(const struct gemm_cuda *g, const struct gemm_plan *plan, void *vector, void *aux)
{
    int64_t epilogue = plan->key.epilogue;
    return (!gemm_uses_vector(epilogue) ||
            set_operation(g, plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &vector, sizeof vector)) &&
           (!uses_aux(epilogue) || set_operation(g, plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux, sizeof aux));
}

/* Makes the product's descriptors; false: the library does not take them. */
static bool make_descriptors(const struct gemm_cuda *g, struct gemm_plan *plan)
{
    const struct gemm_key *key = &plan->key;
    cublasComputeType_t compute = key->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    int32_t transpose_a = key->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    int32_t transpose_b = key->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    int32_t vector_type =
        gemm_data_type(key->epilogue == GEMM_BIAS || key->epilogue == GEMM_GELU_AUX_BIAS ? key->input : key->output);
    int32_t aux_type = gemm_data_type(key->input), sm_target = (int32_t)key->sm_target;
    uint32_t epilogue = epilogues[key->epilogue];
    int64_t a_rows = key->transpose_a ? key->k : key->m, a_columns = key->transpose_a ? key->m : key->k;
    int64_t b_rows = key->transpose_b ? key->n : key->k, b_columns = key->transpose_b ? key->k : key->n;
    void *some = (void *)(uintptr_t)key->align_extra; /* only its alignment counts; nothing is read there */
    bool ok = g->lt->cublasLtMatmulDescCreate(&plan->operation, compute, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
              set_operation(g, plan, CUBLASLT_MATMUL_DESC_TRANSA, &transpose_a, sizeof transpose_a) &&
              set_operation(g, plan, CUBLASLT_MATMUL_DESC_TRANSB, &transpose_b, sizeof transpose_b) &&
              set_operation(g, plan, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue) &&
              g->lt->cublasLtMatrixLayoutCreate(&plan->a, gemm_data_type(key->input), (uint64_t)a_rows,
                                                (uint64_t)a_columns, key->lda) == CUBLAS_STATUS_SUCCESS &&
              g->lt->cublasLtMatrixLayoutCreate(&plan->b, gemm_data_type(key->input), (uint64_t)b_rows,
                                                (uint64_t)b_columns, key->ldb) == CUBLAS_STATUS_SUCCESS &&
              g->lt->cublasLtMatrixLayoutCreate(&plan->d, gemm_data_type(key->output), (uint64_t)key->m,
                                                (uint64_t)key->n, key->ldd) == CUBLAS_STATUS_SUCCESS;
    if (ok && sm_target)
        ok = set_operation(g, plan, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &sm_target, sizeof sm_target);
    if (ok && gemm_uses_vector(key->epilogue))
        ok = set_operation(g, plan, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &vector_type, sizeof vector_type);
    if (ok && uses_aux(key->epilogue))
        ok = set_operation(g, plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &key->ld_aux, sizeof key->ld_aux) &&
             set_operation(g, plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, &aux_type, sizeof aux_type);
    return ok && set_pointers(g, plan, some, some);
}

/* ---- algorithms ---------------------------------------------------------- */

/* Whether the algorithm's reduction has a fixed order, by its own attributes, and its workspace suffices. */
static bool plan_is_acceptable(const struct gemm_cuda *g, const cublasLtMatmulHeuristicResult_t *result)
{
    uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_INPLACE;
    size_t written = 0;
    if (result->state != CUBLAS_STATUS_SUCCESS || result->workspaceSize > g->rules.workspace) return false;
    if (g->lt->cublasLtMatmulAlgoConfigGetAttribute(&result->algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
                                                    sizeof scheme, &written) != CUBLAS_STATUS_SUCCESS)
        return false;
    return scheme == CUBLASLT_REDUCTION_SCHEME_NONE || scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

static bool set_preference(const struct gemm_cuda *g, cublasLtMatmulPreference_t preference,
                           cublasLtMatmulPreferenceAttributes_t attribute, const void *value, size_t size)
{
    return g->lt->cublasLtMatmulPreferenceSetAttribute(preference, attribute, value, size) == CUBLAS_STATUS_SUCCESS;
}

/* The library's proposals; `split`: including those that split k. Returns their number. */
static int ask_heuristics(const struct gemm_cuda *g, const struct gemm_plan *plan, bool split,
                          cublasLtMatmulHeuristicResult_t *results)
{
    const struct gemm_key *key = &plan->key;
    uint64_t workspace = g->rules.workspace;
    uint32_t schemes = split ? CUBLASLT_REDUCTION_SCHEME_MASK : CUBLASLT_REDUCTION_SCHEME_NONE;
    uint32_t align_a = (uint32_t)key->align_a, align_b = (uint32_t)key->align_b, align_d = (uint32_t)key->align_d;
    cublasLtMatmulPreference_t preference = NULL;
    int found = 0;
    if (g->lt->cublasLtMatmulPreferenceCreate(&preference) != CUBLAS_STATUS_SUCCESS) return 0;
    if (set_preference(g, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace) &&
        set_preference(g, preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes) &&
        set_preference(g, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align_a, sizeof align_a) &&
        set_preference(g, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align_b, sizeof align_b) &&
        set_preference(g, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align_d, sizeof align_d) &&
        set_preference(g, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align_d, sizeof align_d) &&
        g->lt->cublasLtMatmulAlgoGetHeuristic(g->handle, plan->operation, plan->a, plan->b, plan->d, plan->d,
                                              preference, GEMM_CANDIDATES, results, &found) != CUBLAS_STATUS_SUCCESS)
        found = 0;
    g->lt->cublasLtMatmulPreferenceDestroy(preference);
    return found;
}

struct autotune_config gemm_config_of(const cublasLtMatmulAlgo_t *algorithm, enum gemm_fusion fusion)
{
    struct autotune_config config = {.fusion = fusion};
    memcpy(config.kernel, algorithm, sizeof config.kernel);
    return config;
}

bool gemm_config_find(const struct gemm_cuda *g, const struct gemm_key *key, struct autotune_config *config)
{
    const struct autotune_key whole = gemm_autotune_key(key);
    return autotune_cache_find(g->cache, &whole, config);
}

bool gemm_config_is_faulty(const struct gemm_cuda *g, const struct gemm_key *key, struct autotune_config config)
{
    const struct autotune_key whole = gemm_autotune_key(key);
    return autotune_cache_is_faulty(g->cache, &whole, &config);
}

static bool is_faulty(const struct gemm_cuda *g, const struct gemm_plan *plan, const cublasLtMatmulAlgo_t *algorithm)
{
    return gemm_config_is_faulty(g, &plan->key, gemm_config_of(algorithm, GEMM_UNTUNED));
}

int gemm_plan_propose(const struct gemm_cuda *g, const struct gemm_plan *plan, cublasLtMatmulHeuristicResult_t *results)
{
    int kept = 0;
    for (int split = 1; split >= 0 && kept == 0; split--) {
        int found = ask_heuristics(g, plan, split != 0, results);
        for (int i = 0; i < found; i++)
            if (plan_is_acceptable(g, &results[i]) && !is_faulty(g, plan, &results[i].algo))
                results[kept++] = results[i];
    }
    return kept;
}

bool gemm_epilogue_is_usual(int64_t epilogue)
{
    return epilogue != GEMM_BGRADA && epilogue != GEMM_BGRADB && !gemm_epilogue_of_cudnn(epilogue);
}

bool gemm_plan_is_taken(const struct gemm_cuda *g, const struct gemm_plan *plan)
{
    const int64_t epilogue = plan->key.epilogue;
    const enum gemm_fusion fusion = g->forced != GEMM_UNTUNED ? g->forced : plan->fusion;
    if (!plan->supported || epilogue == GEMM_PLAIN) return plan->supported;
    return fusion == GEMM_UNTUNED ? gemm_epilogue_is_usual(epilogue) : fusion == GEMM_FUSED;
}

bool gemm_plan_take_known(struct gemm_cuda *g, struct gemm_plan *plan)
{
    cublasLtMatmulHeuristicResult_t result;
    cublasLtMatmulAlgo_t algorithm;
    struct autotune_config known;
    if (!gemm_config_find(g, &plan->key, &known)) return false;
    memset(&result, 0, sizeof result);
    memcpy(&algorithm, known.kernel, sizeof algorithm);
    if (g->lt->cublasLtMatmulAlgoCheck(g->handle, plan->operation, plan->a, plan->b, plan->d, plan->d, &algorithm,
                                       &result) != CUBLAS_STATUS_SUCCESS)
        return false;
    result.algo = algorithm;
    if (!plan_is_acceptable(g, &result) || is_faulty(g, plan, &algorithm)) return false;
    plan->algorithm = algorithm;
    plan->fusion = (enum gemm_fusion)known.fusion;
    return true;
}

/* ---- the table of plans -------------------------------------------------- */

static struct gemm_plan **bucket_of(struct gemm_cuda *g, const struct gemm_key *key)
{
    return &g->plans[XXH64(key, sizeof *key, 0) % GEMM_PLAN_BUCKETS];
}

struct gemm_plan *gemm_plan_find(struct gemm_cuda *g, const struct gemm_key *key)
{
    struct gemm_plan *plan = *bucket_of(g, key);
    while (plan && memcmp(&plan->key, key, sizeof *key) != 0) plan = plan->next;
    return plan;
}

struct gemm_plan *gemm_plan_new(struct gemm_cuda *g, const struct gemm_key *key)
{
    struct gemm_plan **bucket = bucket_of(g, key), *plan = memory_zeroed(1, sizeof *plan);
    plan->key = *key;
    plan->supported = !gemm_epilogue_of_cudnn(key->epilogue) && make_descriptors(g, plan);
    plan->next = *bucket;
    *bucket = plan;
    return plan;
}

void gemm_plan_take_first(const struct gemm_cuda *g, struct gemm_plan *plan)
{
    cublasLtMatmulHeuristicResult_t results[GEMM_CANDIDATES];
    plan->supported = gemm_plan_propose(g, plan, results) > 0;
    if (plan->supported) plan->algorithm = results[0].algo;
}

struct gemm_plan *gemm_plan_get(struct gemm_cuda *g, const struct gemm_key *key)
{
    struct gemm_plan *plan = gemm_plan_find(g, key);
    if (plan) return plan;
    plan = gemm_plan_new(g, key);
    if (plan->supported && !gemm_plan_take_known(g, plan)) gemm_plan_take_first(g, plan);
    return plan;
}

static void plan_free(const struct gemm_cuda *g, struct gemm_plan *plan)
{
    cudnn_plan_free(plan->cudnn);
    if (plan->operation) g->lt->cublasLtMatmulDescDestroy(plan->operation);
    cublasLtMatrixLayout_t layouts[] = {plan->a, plan->b, plan->d};
    for (size_t i = 0; i < COUNT_OF(layouts); i++)
        if (layouts[i]) g->lt->cublasLtMatrixLayoutDestroy(layouts[i]);
    free(plan);
}

void gemm_plans_free(struct gemm_cuda *g)
{
    for (int i = 0; i < GEMM_PLAN_BUCKETS; i++) {
        for (struct gemm_plan *plan = g->plans[i], *next; plan; plan = next) {
            next = plan->next;
            plan_free(g, plan);
        }
    }
}

/* ---- execution ----------------------------------------------------------- */

void *gemm_workspace_of(struct stream *stream, size_t bytes)
{
    size_t there;
    char *memory = stream_workspace(stream, &there);
    size_t skip = (size_t)(-(uintptr_t)memory % 256);
    ASSERT(memory && there >= skip + bytes); /* see cuda_workspace_bytes() */
    return memory + skip;
}

cublasStatus_t gemm_plan_run(const struct gemm_plan *plan, const cublasLtMatmulAlgo_t *algorithm,
                             const struct gemm_product *p, struct stream *stream)
{
    const float one = 1, zero = 0;
    const struct gemm_cuda *g = cuda_device_of(stream)->gemm;
    if (!set_pointers(g, plan, p->vector, p->aux)) return CUBLAS_STATUS_INVALID_VALUE;
    cuda_call_begin();
    const cublasStatus_t status = g->lt->cublasLtMatmul(g->handle, plan->operation, &one, p->a, plan->a, p->b, plan->b,
                                                        p->key.accumulate ? &one : &zero, p->d, plan->d, p->d, plan->d,
                                                        algorithm, gemm_workspace_of(stream, g->rules.workspace),
                                                        g->rules.workspace, cuda_stream_of(stream)->handle);
    cuda_call_end(cudaSuccess);
    return status;
}
