/* gemm_cuda.c: the linear ops over cublasLt.
 *
 * cublasLt counts matrices column by column, so a row-major (rows, columns) matrix is its (columns, rows) one:
 *
 *     op                  D            =  A                 · B            epilogue
 *     linear_fwd          y  (N, M)    =  W (N, K)          · x  (K, M)    bias, GELU with its input kept
 *     linear_bwd_input    dx (K, M)    =  Wᵀ (K, N)         · dy (N, M)    derivative of GELU
 *     linear_bwd_weight   dw (K, N)    =  x (K, M)          · dyᵀ (M, N)   sums of B over M: the bias' gradient
 *       weights_in_out    dw (N, K)    =  dy (N, M)         · xᵀ (M, K)    sums of A over M
 *
 * A `plan` is a product's descriptors and the algorithm chosen for it; it is made once per shape. The choice: what
 * gemm_cuda_prepare() found fastest (in the cache on disk, or by timing up to CANDIDATES heuristics on memory of its
 * own), else the library's first proposal. Only algorithms whose reduction has a fixed order are taken: no split of k
 * but with a reduction in a step of its own. That they give the same bits each time is not tried out.
 *
 * Where the library has no algorithm for a product with its epilogue, the product is computed without it, and a kernel
 * of gemm_cuda_kernels.cu does the rest. A bias gradient that is accumulated goes to scratch memory first, as the
 * epilogue overwrites. The stream's workspace: | cublasLt | sums of columns |. */
#include "gpu/cuda/gemm_cuda.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/round_up.h"
#include "gpu/cuda/device_cuda_error.h"
#include "gpu/cuda/gemm_cuda_kernels.h"
#include "gpu/cuda/ops_cuda.h"
#include "gpu/gemm_cache.h"

#include <stdlib.h>
#include <string.h>

/* CANDIDATES: heuristics that are timed once each; FINALISTS: the fastest of them, timed REPEATS times more. */
enum { CANDIDATES = 32, FINALISTS = 6, REPEATS = 8, PLAN_BUCKETS = 1024 };
#define LT_WORKSPACE ((size_t)(32 << 20)) /* what Hopper's kernels ask for */

struct plan {
    struct gemm_key key;
    bool supported;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algorithm;
    struct plan *next; /* in its bucket */
};

struct gemm_cuda {
    struct cuda_device *cuda; /* borrowed */
    const struct cublaslt_functions *lt;
    cublasLtHandle_t handle;
    struct gemm_cache *cache; /* NULL: none; nothing is measured */
    bool tf32;
    struct plan *plans[PLAN_BUCKETS]; /* owned */
};

_Static_assert(sizeof(struct gemm_algorithm) == sizeof(cublasLtMatmulAlgo_t), "the cache holds whole algorithms");

/* One call of cublasLtMatmul. */
struct product {
    struct gemm_key key;
    const void *a, *b;
    void *d;
    void *vector; /* bias, or the sums that BGRADA and BGRADB leave */
    void *aux;
};

/* ---- life ---------------------------------------------------------------- */

enum status gemm_cuda_new(struct cuda_device *cuda, struct gemm_cuda **gemm, struct error *err)
{
    struct gemm_cuda *g = *gemm = calloc(1, sizeof *g);
    if (!g)
        return error_set(err, STATUS_DEVICE, "cannot open cublasLt: out of memory");
    g->cuda = cuda;
    g->lt = cuda->cublaslt;
    enum status status = device_cuda_wants_tf32(&g->tf32, err);
    if (status != STATUS_OK) {
        free(g);
        *gemm = NULL;
        return status;
    }
    cublasStatus_t code = g->lt->cublasLtCreate(&g->handle);
    if (code != CUBLAS_STATUS_SUCCESS) {
        free(g);
        *gemm = NULL;
        return error_set(err, STATUS_DEVICE,
                         "cannot open cublasLt on GPU %d: %s; hint: is its memory full (nvidia-smi)?", cuda->index,
                         cuda->cublaslt->cublasLtGetStatusName(code));
    }
    g->cache = gemm_cache_open(cuda->device.name, g->lt->cublasLtGetVersion());
    return STATUS_OK;
}

bool gemm_cuda_uses_tf32(const struct gemm_cuda *g)
{
    return g->tf32;
}

static void plan_free(const struct gemm_cuda *g, struct plan *plan)
{
    if (plan->operation)
        g->lt->cublasLtMatmulDescDestroy(plan->operation);
    cublasLtMatrixLayout_t layouts[] = {plan->a, plan->b, plan->d};
    for (size_t i = 0; i < COUNT_OF(layouts); i++)
        if (layouts[i])
            g->lt->cublasLtMatrixLayoutDestroy(layouts[i]);
    free(plan);
}

void gemm_cuda_free(struct gemm_cuda *g)
{
    if (!g)
        return;
    for (int i = 0; i < PLAN_BUCKETS; i++) {
        for (struct plan *plan = g->plans[i], *next; plan; plan = next) {
            next = plan->next;
            plan_free(g, plan);
        }
    }
    g->lt->cublasLtDestroy(g->handle);
    gemm_cache_close(g->cache);
    free(g);
}

/* ---- plans --------------------------------------------------------------- */

static cudaDataType_t data_type(int64_t dtype)
{
    return dtype == DTYPE_F32 ? CUDA_R_32F : dtype == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

static const cublasLtEpilogue_t epilogues[] = {
    [GEMM_PLAIN] = CUBLASLT_EPILOGUE_DEFAULT,     [GEMM_BIAS] = CUBLASLT_EPILOGUE_BIAS,
    [GEMM_GELU_AUX] = CUBLASLT_EPILOGUE_GELU_AUX, [GEMM_GELU_AUX_BIAS] = CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
    [GEMM_DGELU] = CUBLASLT_EPILOGUE_DGELU,       [GEMM_BGRADA] = CUBLASLT_EPILOGUE_BGRADA,
    [GEMM_BGRADB] = CUBLASLT_EPILOGUE_BGRADB,
};
_Static_assert(COUNT_OF(epilogues) == GEMM_EPILOGUE_COUNT, "every epilogue has cublasLt's name");

static bool uses_vector(int64_t epilogue)
{
    return epilogue == GEMM_BIAS || epilogue == GEMM_GELU_AUX_BIAS || epilogue == GEMM_BGRADA ||
           epilogue == GEMM_BGRADB;
}

static bool uses_aux(int64_t epilogue)
{
    return epilogue == GEMM_GELU_AUX || epilogue == GEMM_GELU_AUX_BIAS || epilogue == GEMM_DGELU;
}

static bool set_operation(const struct gemm_cuda *g, const struct plan *plan, cublasLtMatmulDescAttributes_t attribute,
                          const void *value, size_t size)
{
    return g->lt->cublasLtMatmulDescSetAttribute(plan->operation, attribute, value, size) == CUBLAS_STATUS_SUCCESS;
}

/* The descriptor's pointers change from call to call. */
static bool set_pointers(const struct gemm_cuda *g, const struct plan *plan, void *vector, void *aux)
{
    int64_t epilogue = plan->key.epilogue;
    return (!uses_vector(epilogue) ||
            set_operation(g, plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &vector, sizeof vector)) &&
           (!uses_aux(epilogue) || set_operation(g, plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux, sizeof aux));
}

/* Descriptors of a product; false: the library does not take them. */
static bool describe(const struct gemm_cuda *g, struct plan *plan)
{
    const struct gemm_key *key = &plan->key;
    cublasComputeType_t compute = key->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    int32_t transpose_a = key->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    int32_t transpose_b = key->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    int32_t vector_type =
        data_type(key->epilogue == GEMM_BIAS || key->epilogue == GEMM_GELU_AUX_BIAS ? key->input : key->output);
    int32_t aux_type = data_type(key->input);
    uint32_t epilogue = epilogues[key->epilogue];
    int64_t a_rows = key->transpose_a ? key->k : key->m, a_columns = key->transpose_a ? key->m : key->k;
    int64_t b_rows = key->transpose_b ? key->n : key->k, b_columns = key->transpose_b ? key->k : key->n;
    void *some = (void *)(uintptr_t)key->align_extra; /* for its alignment; nothing is read there */
    bool ok = g->lt->cublasLtMatmulDescCreate(&plan->operation, compute, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
              set_operation(g, plan, CUBLASLT_MATMUL_DESC_TRANSA, &transpose_a, sizeof transpose_a) &&
              set_operation(g, plan, CUBLASLT_MATMUL_DESC_TRANSB, &transpose_b, sizeof transpose_b) &&
              set_operation(g, plan, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue) &&
              g->lt->cublasLtMatrixLayoutCreate(&plan->a, data_type(key->input), (uint64_t)a_rows, (uint64_t)a_columns,
                                                key->lda) == CUBLAS_STATUS_SUCCESS &&
              g->lt->cublasLtMatrixLayoutCreate(&plan->b, data_type(key->input), (uint64_t)b_rows, (uint64_t)b_columns,
                                                key->ldb) == CUBLAS_STATUS_SUCCESS &&
              g->lt->cublasLtMatrixLayoutCreate(&plan->d, data_type(key->output), (uint64_t)key->m, (uint64_t)key->n,
                                                key->ldd) == CUBLAS_STATUS_SUCCESS;
    if (ok && uses_vector(key->epilogue))
        ok = set_operation(g, plan, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &vector_type, sizeof vector_type);
    if (ok && uses_aux(key->epilogue))
        ok = set_operation(g, plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &key->ld_aux, sizeof key->ld_aux) &&
             set_operation(g, plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, &aux_type, sizeof aux_type);
    return ok && set_pointers(g, plan, some, some);
}

/* Whether an algorithm adds up in a fixed order, by what it says of itself, and gets by with the workspace. */
static bool is_acceptable(const struct gemm_cuda *g, const cublasLtMatmulHeuristicResult_t *result)
{
    uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_INPLACE;
    size_t written = 0;
    if (result->state != CUBLAS_STATUS_SUCCESS || result->workspaceSize > LT_WORKSPACE)
        return false;
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

/* The library's proposals; `split`: those that split k too. Returns their number. */
static int ask(const struct gemm_cuda *g, const struct plan *plan, bool split, cublasLtMatmulHeuristicResult_t *results)
{
    const struct gemm_key *key = &plan->key;
    uint64_t workspace = LT_WORKSPACE;
    uint32_t schemes = split ? CUBLASLT_REDUCTION_SCHEME_MASK : CUBLASLT_REDUCTION_SCHEME_NONE;
    uint32_t align_a = (uint32_t)key->align_a, align_b = (uint32_t)key->align_b, align_d = (uint32_t)key->align_d;
    cublasLtMatmulPreference_t preference = NULL;
    int found = 0;
    if (g->lt->cublasLtMatmulPreferenceCreate(&preference) != CUBLAS_STATUS_SUCCESS)
        return 0;
    if (set_preference(g, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace) &&
        set_preference(g, preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes) &&
        set_preference(g, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align_a, sizeof align_a) &&
        set_preference(g, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align_b, sizeof align_b) &&
        set_preference(g, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align_d, sizeof align_d) &&
        set_preference(g, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align_d, sizeof align_d) &&
        g->lt->cublasLtMatmulAlgoGetHeuristic(g->handle, plan->operation, plan->a, plan->b, plan->d, plan->d,
                                              preference, CANDIDATES, results, &found) != CUBLAS_STATUS_SUCCESS)
        found = 0;
    g->lt->cublasLtMatmulPreferenceDestroy(preference);
    return found;
}

/* Acceptable algorithms in the library's order, at most CANDIDATES; returns their number. */
static int propose(const struct gemm_cuda *g, const struct plan *plan, cublasLtMatmulHeuristicResult_t *results)
{
    int kept = 0;
    for (int split = 1; split >= 0 && kept == 0; split--) {
        int found = ask(g, plan, split != 0, results);
        for (int i = 0; i < found; i++)
            if (is_acceptable(g, &results[i]))
                results[kept++] = results[i];
    }
    return kept;
}

/* Whether the library still takes an algorithm out of the cache. */
static bool check_known(const struct gemm_cuda *g, struct plan *plan, const struct gemm_algorithm *known)
{
    cublasLtMatmulHeuristicResult_t result;
    cublasLtMatmulAlgo_t algorithm;
    memset(&result, 0, sizeof result);
    memcpy(&algorithm, known, sizeof algorithm);
    if (g->lt->cublasLtMatmulAlgoCheck(g->handle, plan->operation, plan->a, plan->b, plan->d, plan->d, &algorithm,
                                       &result) != CUBLAS_STATUS_SUCCESS)
        return false;
    result.algo = algorithm;
    if (!is_acceptable(g, &result))
        return false;
    plan->algorithm = algorithm;
    return true;
}

static uint64_t hash_of(const struct gemm_key *key)
{
    uint64_t fields[GEMM_KEY_FIELDS], hash = 0xcbf29ce484222325u; /* FNV-1a over the fields */
    memcpy(fields, key, sizeof fields);
    for (int i = 0; i < GEMM_KEY_FIELDS; i++)
        hash = (hash ^ fields[i]) * 0x100000001b3u;
    return hash ^ hash >> 32;
}

static struct plan **bucket_of(struct gemm_cuda *g, const struct gemm_key *key)
{
    return &g->plans[hash_of(key) % PLAN_BUCKETS];
}

static struct plan *find_plan(struct gemm_cuda *g, const struct gemm_key *key)
{
    struct plan *plan = *bucket_of(g, key);
    while (plan && memcmp(&plan->key, key, sizeof *key) != 0)
        plan = plan->next;
    return plan;
}

/* A plan without an algorithm yet, in its bucket; NULL: out of memory. */
static struct plan *new_plan(struct gemm_cuda *g, const struct gemm_key *key)
{
    struct plan **bucket = bucket_of(g, key), *plan = calloc(1, sizeof *plan);
    if (!plan)
        return NULL;
    plan->key = *key;
    plan->supported = describe(g, plan);
    plan->next = *bucket;
    *bucket = plan;
    return plan;
}

/* The plan of a product that nobody announced: the library's first choice, so that nothing is measured in a step. */
static struct plan *get_plan(struct gemm_cuda *g, const struct gemm_key *key)
{
    cublasLtMatmulHeuristicResult_t results[CANDIDATES];
    struct gemm_algorithm known;
    struct plan *plan = find_plan(g, key);
    if (plan || !(plan = new_plan(g, key)) || !plan->supported)
        return plan;
    if (gemm_cache_find(g->cache, key, &known, NULL) && check_known(g, plan, &known))
        return plan;
    plan->supported = propose(g, plan, results) > 0;
    if (plan->supported)
        plan->algorithm = results[0].algo;
    return plan;
}

static cublasStatus_t call(const struct gemm_cuda *g, const struct plan *plan, const cublasLtMatmulAlgo_t *algorithm,
                           const struct product *p, void *workspace, cudaStream_t stream)
{
    const float one = 1, zero = 0;
    return g->lt->cublasLtMatmul(g->handle, plan->operation, &one, p->a, plan->a, p->b, plan->b,
                                 p->key.accumulate ? &one : &zero, p->d, plan->d, p->d, plan->d, algorithm, workspace,
                                 LT_WORKSPACE, stream);
}

/* ---- products of the ops ------------------------------------------------- */

static int64_t alignment(const void *pointer)
{
    uintptr_t bits = (uintptr_t)pointer | 16;
    return (int64_t)(bits & -bits);
}

static void set_alignments(struct product *p)
{
    p->key.align_a = alignment(p->a);
    p->key.align_b = alignment(p->b);
    p->key.align_d = alignment(p->d);
    p->key.align_extra = alignment((void *)((uintptr_t)p->vector | (uintptr_t)p->aux));
}

static bool wants_tf32(const struct gemm_cuda *g, enum dtype dtype)
{
    return g->tf32 && dtype == DTYPE_F32;
}

static struct product product_fwd(const struct gemm_cuda *g, const struct linear_fwd_args *a)
{
    struct product p = {.a = a->w, .b = a->x, .d = a->y, .vector = (void *)(uintptr_t)a->bias, .aux = a->aux};
    p.key = (struct gemm_key){.m = a->N,
                              .n = a->M,
                              .k = a->K,
                              .lda = a->weights_in_out ? a->N : a->K,
                              .ldb = a->K,
                              .ldd = a->ld_y ? a->ld_y : a->N,
                              .ld_aux = a->gelu ? a->N : 0,
                              .transpose_a = !a->weights_in_out,
                              .input = a->dtype,
                              .output = a->y_dtype,
                              .tf32 = wants_tf32(g, a->dtype)};
    p.key.epilogue = a->gelu ? (a->bias ? GEMM_GELU_AUX_BIAS : GEMM_GELU_AUX) : a->bias ? GEMM_BIAS : GEMM_PLAIN;
    set_alignments(&p);
    return p;
}

static struct product product_bwd_input(const struct gemm_cuda *g, const struct linear_bwd_input_args *a)
{
    struct product p = {.a = a->w, .b = a->dy, .d = a->dx, .aux = (void *)(uintptr_t)a->gelu_aux};
    p.key = (struct gemm_key){.m = a->K,
                              .n = a->M,
                              .k = a->N,
                              .lda = a->weights_in_out ? a->N : a->K,
                              .ldb = a->ld_dy ? a->ld_dy : a->N,
                              .ldd = a->K,
                              .ld_aux = a->gelu_aux ? a->K : 0,
                              .transpose_a = a->weights_in_out,
                              .input = a->dtype,
                              .output = a->dtype,
                              .epilogue = a->gelu_aux ? GEMM_DGELU : GEMM_PLAIN,
                              .accumulate = a->accumulate,
                              .tf32 = wants_tf32(g, a->dtype)};
    set_alignments(&p);
    return p;
}

/* `sums`: where the bias' gradient goes, or NULL */
static struct product product_bwd_weight(const struct gemm_cuda *g, const struct linear_bwd_weight_args *a, float *sums)
{
    int64_t ld_dy = a->ld_dy ? a->ld_dy : a->N;
    struct product p = {
        .a = a->weights_in_out ? a->dy : a->x, .b = a->weights_in_out ? a->x : a->dy, .d = a->dw, .vector = sums};
    p.key = (struct gemm_key){.m = a->weights_in_out ? a->N : a->K,
                              .n = a->weights_in_out ? a->K : a->N,
                              .k = a->M,
                              .lda = a->weights_in_out ? ld_dy : a->K,
                              .ldb = a->weights_in_out ? a->K : ld_dy,
                              .ldd = a->weights_in_out ? a->N : a->K,
                              .transpose_b = true,
                              .input = a->dtype,
                              .output = DTYPE_F32,
                              .accumulate = a->accumulate,
                              .tf32 = wants_tf32(g, a->dtype)};
    p.key.epilogue = !sums ? GEMM_PLAIN : a->weights_in_out ? GEMM_BGRADA : GEMM_BGRADB;
    set_alignments(&p);
    return p;
}

/* The same product without what goes with it. */
static struct product without_epilogue(const struct product *p)
{
    struct product plain = *p;
    plain.vector = plain.aux = NULL;
    plain.key.epilogue = GEMM_PLAIN;
    plain.key.ld_aux = 0;
    set_alignments(&plain);
    return plain;
}

/* ---- the ops ------------------------------------------------------------- */

static void *workspace_of(struct stream *stream, size_t bytes)
{
    size_t there;
    char *memory = stream_workspace(stream, &there);
    size_t skip = (size_t)(-(uintptr_t)memory % 256);
    ASSERT(memory && there >= skip + bytes); /* cuda_gemm_workspace_bytes() said how much */
    return memory + skip;
}

/* Runs the product; false: the library cannot do it as it is. Other failures are the device's. */
static bool run(struct stream *stream, const struct product *p, const char *op)
{
    struct cuda_device *cuda = cuda_device_of(stream);
    struct gemm_cuda *g = cuda->gemm;
    struct plan *plan = get_plan(g, &p->key);
    if (!plan) {
        cuda_fail(cuda, "%s: out of memory", op);
        return true;
    }
    if (!plan->supported)
        return false;
    cublasStatus_t code =
        set_pointers(g, plan, p->vector, p->aux)
            ? call(g, plan, &plan->algorithm, p, workspace_of(stream, LT_WORKSPACE), cuda_stream_of(stream)->handle)
            : CUBLAS_STATUS_INVALID_VALUE;
    if (code != CUBLAS_STATUS_SUCCESS)
        cuda_fail(cuda, "%s: cublasLtMatmul: %s", op, g->lt->cublasLtGetStatusName(code));
    return true;
}

/* A product without an epilogue must be possible. */
static void run_plain(struct stream *stream, const struct product *p, const char *op)
{
    if (!run(stream, p, op))
        cuda_fail(cuda_device_of(stream),
                  "%s: cublasLt has no deterministic algorithm for m %lld, n %lld, k %lld in %s", op,
                  (long long)p->key.m, (long long)p->key.n, (long long)p->key.k, dtype_name((enum dtype)p->key.input));
}

void cuda_linear_fwd(struct stream *stream, const struct linear_fwd_args *a)
{
    struct gemm_cuda *g = cuda_device_of(stream)->gemm;
    if (a->M == 0 || a->N == 0)
        return;
    struct product p = product_fwd(g, a);
    if (run(stream, &p, "linear_fwd"))
        return;
    struct product plain = without_epilogue(&p);
    run_plain(stream, &plain, "linear_fwd");
    if (a->bias || a->gelu)
        cuda_bias_gelu(stream, a->M, a->N, a->y, a->y_dtype, p.key.ldd, a->bias, a->gelu ? a->aux : NULL, a->dtype);
}

void cuda_linear_bwd_input(struct stream *stream, const struct linear_bwd_input_args *a)
{
    struct gemm_cuda *g = cuda_device_of(stream)->gemm;
    ASSERT(!a->accumulate || !a->gelu_aux);
    if (a->M == 0 || a->K == 0)
        return;
    struct product p = product_bwd_input(g, a);
    if (run(stream, &p, "linear_bwd_input"))
        return;
    struct product plain = without_epilogue(&p);
    run_plain(stream, &plain, "linear_bwd_input");
    if (a->gelu_aux)
        cuda_gelu_backward(stream, a->M * a->K, a->dx, a->gelu_aux, a->dtype);
}

void cuda_linear_bwd_weight(struct stream *stream, const struct linear_bwd_weight_args *a)
{
    struct gemm_cuda *g = cuda_device_of(stream)->gemm;
    if (a->M == 0) {
        if (!a->accumulate) {
            stream_fill_zero(stream, a->dw, (size_t)(a->N * a->K) * sizeof *a->dw);
            if (a->dbias)
                stream_fill_zero(stream, a->dbias, (size_t)a->N * sizeof *a->dbias);
        }
        return;
    }
    size_t sums_bytes = cuda_column_sums_bytes(a->M, a->N);
    float *scratch =
        a->dbias ? (float *)((char *)workspace_of(stream, LT_WORKSPACE + sums_bytes) + LT_WORKSPACE) : NULL;
    float *sums = a->dbias && a->accumulate ? scratch : a->dbias;
    struct product p = product_bwd_weight(g, a, sums);
    if (run(stream, &p, "linear_bwd_weight")) {
        if (sums != a->dbias)
            cuda_add_f32(stream, a->N, a->dbias, sums);
        return;
    }
    struct product plain = without_epilogue(&p);
    run_plain(stream, &plain, "linear_bwd_weight");
    if (a->dbias)
        cuda_column_sums(stream, a->M, a->N, a->dbias, a->dy, a->ld_dy ? a->ld_dy : a->N, a->dtype, a->accumulate,
                         scratch);
}

size_t cuda_gemm_workspace_bytes(const struct cuda_device *cuda, const struct op_limits *limits)
{
    (void)cuda;
    return LT_WORKSPACE + cuda_column_sums_bytes(limits->max_tokens, limits->max_linear_n) + 256;
}

/* ---- choosing by measuring ----------------------------------------------- */

/* Memory that products are timed on. */
struct bench {
    struct gemm_cuda *gemm;
    struct stream *stream;
    cudaEvent_t start, end;
    char *memory; /* | workspace | A | B | D | vector | aux | */
    size_t bytes;
    struct product product; /* of the plan in work, with pointers into memory */
    int measured;
    bool no_memory;
};

/* A part begins at a multiple of 256 bytes, as memory of cudaMalloc() does. */
static size_t part_bytes(size_t n)
{
    return (size_t)round_up((int64_t)n, 256);
}

/* Bytes of the parts A, B, D, vector, aux. */
static void part_sizes(const struct gemm_key *key, size_t *sizes)
{
    size_t input = dtype_size((enum dtype)key->input), output = dtype_size((enum dtype)key->output);
    sizes[0] = part_bytes((size_t)key->lda * (size_t)(key->transpose_a ? key->m : key->k) * input);
    sizes[1] = part_bytes((size_t)key->ldb * (size_t)(key->transpose_b ? key->k : key->n) * input);
    sizes[2] = part_bytes((size_t)key->ldd * (size_t)key->n * output);
    sizes[3] = part_bytes((size_t)(key->m > key->n ? key->m : key->n) * sizeof(float));
    sizes[4] = part_bytes((size_t)key->ld_aux * (size_t)key->n * input);
}

/* Memory for the plan's product; false: the GPU has not that much. */
static bool bench_place(struct bench *bench, const struct plan *plan)
{
    enum { PARTS = 5 };
    size_t sizes[PARTS], total = LT_WORKSPACE;
    struct error ignored;
    part_sizes(&plan->key, sizes);
    for (int i = 0; i < PARTS; i++)
        total += sizes[i];
    if (total > bench->bytes) {
        struct device *device = &bench->gemm->cuda->device;
        device_free(device, bench->memory, bench->bytes);
        bench->bytes = 0;
        if (device_alloc(device, total, (void **)&bench->memory, &ignored) != STATUS_OK)
            return false;
        bench->bytes = total;
        cuda_fill_random(bench->stream, bench->memory + LT_WORKSPACE, total - LT_WORKSPACE, 1);
    }
    char *at = bench->memory + LT_WORKSPACE;
    void *parts[PARTS];
    for (int i = 0; i < PARTS; at += sizes[i++])
        parts[i] = at;
    bench->product = (struct product){plan->key, parts[0], parts[1], parts[2], parts[3], parts[4]};
    return true;
}

/* Seconds of one run, the average of `repeats`; < 0: it does not run. */
static double bench_time(struct bench *bench, const struct plan *plan, const cublasLtMatmulAlgo_t *algorithm,
                         int repeats)
{
    const struct gemm_cuda *g = bench->gemm;
    cudaStream_t stream = cuda_stream_of(bench->stream)->handle;
    float milliseconds = 0;
    bool ok = cudaEventRecord(bench->start, stream) == cudaSuccess;
    for (int i = 0; i < repeats && ok; i++)
        ok = call(g, plan, algorithm, &bench->product, bench->memory, stream) == CUBLAS_STATUS_SUCCESS;
    ok = ok && cudaEventRecord(bench->end, stream) == cudaSuccess && cudaEventSynchronize(bench->end) == cudaSuccess &&
         cudaEventElapsedTime(&milliseconds, bench->start, bench->end) == cudaSuccess;
    progress_tick();
    return ok ? 1e-3 * (double)milliseconds / repeats : -1;
}

struct contender {
    int index;
    double seconds;
};

static int by_seconds(const void *a, const void *b)
{
    const struct contender *x = a, *y = b;
    return x->seconds != y->seconds ? (x->seconds > y->seconds) - (x->seconds < y->seconds) : x->index - y->index;
}

/* Times the candidates of a plan and takes the fastest. */
static void measure(struct bench *bench, struct plan *plan)
{
    cublasLtMatmulHeuristicResult_t results[CANDIDATES];
    struct contender contenders[CANDIDATES];
    struct gemm_cuda *g = bench->gemm;
    int candidates = propose(g, plan, results), runners = 0;
    plan->supported = candidates > 0;
    if (!plan->supported)
        return;
    plan->algorithm = results[0].algo;
    if (bench->no_memory || !bench_place(bench, plan)) {
        bench->no_memory = true;
        return;
    }
    if (!set_pointers(g, plan, bench->product.vector, bench->product.aux))
        return;
    for (int i = 0; i < candidates; i++) {
        bench_time(bench, plan, &results[i].algo, 1); /* loads the kernel */
        double seconds = bench_time(bench, plan, &results[i].algo, 1);
        if (seconds >= 0)
            contenders[runners++] = (struct contender){i, seconds};
    }
    qsort(contenders, (size_t)runners, sizeof *contenders, by_seconds);
    if (runners > FINALISTS)
        runners = FINALISTS;
    for (int i = 0; i < runners; i++)
        contenders[i].seconds = bench_time(bench, plan, &results[contenders[i].index].algo, REPEATS);
    qsort(contenders, (size_t)runners, sizeof *contenders, by_seconds);
    if (runners == 0)
        return;
    plan->algorithm = results[contenders[0].index].algo;
    struct gemm_algorithm chosen;
    memcpy(&chosen, &plan->algorithm, sizeof chosen);
    gemm_cache_put(g->cache, &plan->key, &chosen, 1e6 * contenders[0].seconds);
    bench->measured++;
}

static void choose(struct bench *bench, const struct product *p)
{
    struct gemm_cuda *g = bench->gemm;
    struct gemm_algorithm known;
    struct plan *plan = find_plan(g, &p->key);
    if (plan || !(plan = new_plan(g, &p->key)) || !plan->supported)
        return;
    if (!gemm_cache_find(g->cache, &p->key, &known, NULL) || !check_known(g, plan, &known))
        measure(bench, plan);
}

/* The product as it is, and without its epilogue where the library cannot do it as it is. */
static void choose_both(struct bench *bench, const struct product *p)
{
    choose(bench, p);
    const struct plan *plan = find_plan(bench->gemm, &p->key);
    if (plan && !plan->supported && p->key.epilogue != GEMM_PLAIN) {
        struct product plain = without_epilogue(p);
        choose(bench, &plain);
    }
}

static void choose_all(struct bench *bench, const struct linear_products *products)
{
    const struct gemm_cuda *g = bench->gemm;
    struct product p;
    for (int i = 0; i < products->num_fwd; i++) {
        p = product_fwd(g, &products->fwd[i]);
        choose_both(bench, &p);
    }
    for (int i = 0; i < products->num_bwd_input; i++) {
        p = product_bwd_input(g, &products->bwd_input[i]);
        choose_both(bench, &p);
    }
    for (int i = 0; i < products->num_bwd_weight; i++) {
        const struct linear_bwd_weight_args *args = &products->bwd_weight[i];
        float *scratch = args->dbias ? (float *)(uintptr_t)16 : NULL; /* aligned as where the op has them first */
        p = product_bwd_weight(g, args, args->accumulate ? scratch : args->dbias);
        choose_both(bench, &p);
    }
}

/* A large square product, as fast as this GPU multiplies: what steps are compared with. */
static void measure_ceiling(struct bench *bench, enum dtype dtype)
{
    enum { SIDE = 8192, SIDE_F32 = 4096 };
    const size_t least_memory = (size_t)8 << 30;
    struct gemm_cuda *g = bench->gemm;
    struct device *device = &g->cuda->device;
    struct gemm_algorithm known;
    double microseconds = 0;
    int64_t side = dtype == DTYPE_F32 ? SIDE_F32 : SIDE;
    struct linear_fwd_args args = {.dtype = dtype, .y_dtype = dtype, .M = side, .N = side, .K = side};
    if (device->memory_bytes < least_memory)
        return;
    struct product p = product_fwd(g, &args);
    choose(bench, &p);
    if (gemm_cache_find(g->cache, &p.key, &known, &microseconds) && microseconds > 0)
        device->ceiling_flops[dtype] = 2.0 * (double)side * (double)side * (double)side / (1e-6 * microseconds);
}

enum status gemm_cuda_prepare(struct device *device, const struct linear_products *products, struct error *err)
{
    struct cuda_device *cuda = device->private_;
    struct bench bench = {.gemm = cuda->gemm};
    enum status status;
    double start = seconds_now();
    if (!cuda->gemm->cache)
        return STATUS_OK;
    gemm_cache_lock(cuda->gemm->cache);
    TRY_GOTO(stream_new(device, STREAM_COMPUTE, &bench.stream, err));
    if (cudaEventCreate(&bench.start) != cudaSuccess || cudaEventCreate(&bench.end) != cudaSuccess) {
        status = error_set(err, STATUS_DEVICE, "cannot create events on GPU %d", cuda->index);
        goto fail;
    }
    choose_all(&bench, products);
    if (products->num_fwd > 0)
        measure_ceiling(&bench, products->fwd[0].dtype);
    stream_sync(bench.stream);
    if (bench.no_memory)
        log_warn("the GPU has no memory to measure all matrix products on; the library's first choice is taken");
    if (bench.measured)
        log_info("measured %d matrix products in %.1f s; their kernels are kept in %s", bench.measured,
                 seconds_now() - start, gemm_cache_path(cuda->gemm->cache));
    status = device_check(device, err);
fail:
    device_free(device, bench.memory, bench.bytes);
    if (bench.start)
        cudaEventDestroy(bench.start);
    if (bench.end)
        cudaEventDestroy(bench.end);
    stream_free(bench.stream);
    gemm_cache_unlock(cuda->gemm->cache);
    return status;
}
