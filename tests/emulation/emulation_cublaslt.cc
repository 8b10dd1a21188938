/* SPDX-License-Identifier: Apache-2.0 */
/* emulation_cublaslt.cc: the functions of cublasLt that ztrain calls (gpu/cuda/cuda_libraries.h), as plain loops.
 *
 * Matrices are column-major with leading dimensions; inputs in fp32, bf16 or fp16, sums in fp32. It offers a few
 * algorithms for every product, one of them with a reduction whose bits differ from run to run, which may not be run.
 * Everything that the library refuses is refused here as well, and more: the epilogues of backward and GELU need 16-bit
 * inputs and aligned pointers, so that tests reach the callers' alternative, and an algorithm is only taken with the
 * SM_COUNT_TARGET that it was proposed for.
 *
 * ZTRAIN_EMULATION_SM_TARGET=N: a product with another SM_COUNT_TARGET than N (0: the default) is a mistake. */
#include "emulation_host.h"
#include "emulation_queue.h"

#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

using namespace emulation;

namespace
{
const uint64_t MAGIC = 0x656d756c61746564;

struct matmul {
    int32_t transpose_a, transpose_b, bias_type, aux_type;
    uint32_t epilogue;
    void *bias, *aux;
    int64_t aux_ld;
    int32_t sm_target;
};
struct layout {
    cudaDataType type;
    int64_t rows, columns, ld;
};
struct preference {
    uint64_t workspace;
    uint32_t schemes;
    uint32_t alignment[4]; /* a, b, c, d */
};

/* The meaning of an algorithm's opaque words. */
struct algorithm {
    uint64_t magic, scheme, sm_target;
};

size_t size_of(cudaDataType type)
{
    switch (type) {
    case CUDA_R_32F: return 4;
    case CUDA_R_16BF:
    case CUDA_R_16F: return 2;
    default: return 0;
    }
}

float load(cudaDataType type, const void *p, int64_t i)
{
    switch (type) {
    case CUDA_R_32F: return static_cast<const float *>(p)[i];
    case CUDA_R_16BF: return __bfloat162float(static_cast<const __nv_bfloat16 *>(p)[i]);
    default: return __half2float(static_cast<const __half *>(p)[i]);
    }
}

void store(cudaDataType type, void *p, int64_t i, float x)
{
    switch (type) {
    case CUDA_R_32F: static_cast<float *>(p)[i] = x; break;
    case CUDA_R_16BF: static_cast<__nv_bfloat16 *>(p)[i] = __float2bfloat16_rn(x); break;
    default: static_cast<__half *>(p)[i] = __float2half_rn(x); break;
    }
}

float gelu(float x)
{
    return 0.5f * x * (1 + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

float gelu_slope(float x)
{
    float t = tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x));
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.7978845608028654f * (1 + 3 * 0.044715f * x * x);
}

matmul *matmul_of(cublasLtMatmulDesc_t d)
{
    return reinterpret_cast<matmul *>(d);
}

const layout *layout_of(cublasLtMatrixLayout_t l)
{
    return reinterpret_cast<const layout *>(l);
}

/* ZTRAIN_EMULATION_EPILOGUES: "wrong": products leave out their epilogues; "fast" or "slow": products with one seem to
 * take a minute less, or more, than others. */
bool epilogues_are(const char *word)
{
    const char *set = getenv("ZTRAIN_EMULATION_EPILOGUES");
    return set && !strcmp(set, word);
}

bool has_bias(uint32_t e)
{
    return e == CUBLASLT_EPILOGUE_BIAS || e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

bool has_gradient(uint32_t e)
{
    return e == CUBLASLT_EPILOGUE_BGRADA || e == CUBLASLT_EPILOGUE_BGRADB;
}

bool has_gelu(uint32_t e)
{
    return e == CUBLASLT_EPILOGUE_GELU_AUX || e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

bool has_aux(uint32_t e)
{
    return has_gelu(e) || e == CUBLASLT_EPILOGUE_DGELU;
}

/* A matrix' bytes: one range, or one for each column. */
void add_ranges(std::vector<range> &ranges, const char *what, const layout &l, const void *p, bool write)
{
    size_t size = size_of(l.type), column = static_cast<size_t>(l.rows) * size;
    const char *c = static_cast<const char *>(p);
    if (reinterpret_cast<uintptr_t>(p) % size)
        report("%s is not aligned to its elements", what);
    check_range(what, p, static_cast<size_t>((l.columns - 1) * l.ld + l.rows) * size);
    if (l.ld == l.rows)
        ranges.push_back({c, column * static_cast<size_t>(l.columns), write});
    else
        for (int64_t i = 0; i < l.columns; i++)
            ranges.push_back({c + static_cast<size_t>(i * l.ld) * size, column, write});
}

void add_vector(std::vector<range> &ranges, const char *what, const void *p, int64_t n, int32_t type, bool write)
{
    size_t bytes = static_cast<size_t>(n) * size_of(static_cast<cudaDataType>(type));
    check_range(what, p, bytes);
    ranges.push_back({p, bytes, write});
}

/* rows · columns floats of op(matrix), column by column */
std::vector<float> packed(const layout &l, bool transposed, const void *p)
{
    std::vector<float> m(static_cast<size_t>(l.rows * l.columns));
    p = open_alias(p);
    for (int64_t column = 0; column < l.columns; column++)
        for (int64_t row = 0; row < l.rows; row++)
            m[static_cast<size_t>(transposed ? row * l.columns + column : column * l.rows + row)] =
                load(l.type, p, column * l.ld + row);
    return m;
}

struct product {
    matmul op;
    layout a_layout, b_layout, c_layout, d_layout;
    const void *a, *b, *c;
    void *d;
    float alpha, beta;
    bool split; /* k in two halves */
};

void multiply(const product &p)
{
    stats.products++;
    const int64_t m = p.d_layout.rows, n = p.d_layout.columns;
    const int64_t k = p.op.transpose_a ? p.a_layout.rows : p.a_layout.columns;
    const std::vector<float> a = packed(p.a_layout, p.op.transpose_a, p.a),
                             b = packed(p.b_layout, p.op.transpose_b, p.b);
    static const bool faulty = epilogues_are("wrong"); /* a planted fault: they are left out */
    const uint32_t epilogue = faulty ? static_cast<uint32_t>(CUBLASLT_EPILOGUE_DEFAULT) : p.op.epilogue;
    std::vector<float> sum(static_cast<size_t>(m)), half(static_cast<size_t>(m));
    const void *c = open_alias(p.c), *bias = open_alias(static_cast<const void *>(p.op.bias));
    void *d = open_alias(p.d), *aux = open_alias(p.op.aux);
    for (int64_t j = 0; j < n; j++) {
        for (float &x : sum)
            x = 0;
        for (int64_t q = 0; q < k; q++) {
            const float *column = &a[static_cast<size_t>(q * m)], factor = b[static_cast<size_t>(j * k + q)];
            if (p.split && q == k / 2) {
                half = sum;
                for (float &x : sum)
                    x = 0;
            }
            for (int64_t i = 0; i < m; i++)
                sum[static_cast<size_t>(i)] += column[i] * factor;
        }
        if (p.split && k > 1)
            for (size_t i = 0; i < sum.size(); i++)
                sum[i] += half[i];
        for (int64_t i = 0; i < m; i++) {
            float x = p.alpha * sum[static_cast<size_t>(i)];
            if (p.beta != 0)
                x += p.beta * load(p.c_layout.type, c, j * p.c_layout.ld + i);
            if (has_bias(epilogue))
                x += load(static_cast<cudaDataType>(p.op.bias_type), bias, i);
            if (has_gelu(epilogue)) {
                store(static_cast<cudaDataType>(p.op.aux_type), aux, j * p.op.aux_ld + i, x);
                x = gelu(x);
            }
            if (epilogue == CUBLASLT_EPILOGUE_DGELU)
                x *= gelu_slope(load(static_cast<cudaDataType>(p.op.aux_type), aux, j * p.op.aux_ld + i));
            store(p.d_layout.type, d, j * p.d_layout.ld + i, x);
        }
    }
    if (has_gradient(epilogue)) {
        bool of_a = epilogue == CUBLASLT_EPILOGUE_BGRADA;
        for (int64_t i = 0; i < (of_a ? m : n); i++) {
            float total = 0;
            for (int64_t q = 0; q < k; q++)
                total += of_a ? a[static_cast<size_t>(q * m + i)] : b[static_cast<size_t>(i * k + q)];
            store(static_cast<cudaDataType>(p.op.bias_type), open_alias(p.op.bias), i, total);
        }
    }
}

bool is_aligned(const void *p)
{
    return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

/* Whether the bias or its gradient has the type that the library's manual pairs with D: the type of D itself. */
bool has_type_of(const matmul &op, const layout &d)
{
    return op.bias_type == static_cast<int32_t>(d.type);
}

/* Whether there is an algorithm at all. */
cublasStatus_t check_product(const matmul &op, const layout &a, const layout &b, const layout &d)
{
    int64_t m = op.transpose_a ? a.columns : a.rows, k = op.transpose_a ? a.rows : a.columns;
    int64_t k_b = op.transpose_b ? b.columns : b.rows, n = op.transpose_b ? b.rows : b.columns;
    if (m != d.rows || n != d.columns || k != k_b || a.ld < a.rows || b.ld < b.rows || d.ld < d.rows)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (a.type != b.type || (d.type != a.type && d.type != CUDA_R_32F))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    uint32_t e = op.epilogue;
    if (e != CUBLASLT_EPILOGUE_DEFAULT && !has_bias(e) && !has_gradient(e) && !has_aux(e))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (has_aux(e) && (op.aux_ld % 8 || op.aux_ld < m || a.type == CUDA_R_32F || !is_aligned(op.aux)))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (has_gradient(e) && (a.type == CUDA_R_32F || !is_aligned(op.bias)))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if ((has_bias(e) || has_gradient(e)) && !has_type_of(op, d))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}

/* Adds to the times that events show. */
void plant_cost(const product &p)
{
    static const bool fast = epilogues_are("fast"), slow = epilogues_are("slow");
    if (p.op.epilogue == CUBLASLT_EPILOGUE_DEFAULT ? fast : slow)
        planted_seconds += 60;
}

/* Planted faults of the algorithm that splits k. ZTRAIN_EMULATION_GEMM=refuses: it returns an error; dies: with the first
 * product's shape, it takes the process with it. */
cublasStatus_t plant_fault(const product &p)
{
    static const char *const fault = getenv("ZTRAIN_EMULATION_GEMM");
    static const layout first = p.d_layout;
    if (!fault || !p.split)
        return CUBLAS_STATUS_SUCCESS;
    if (!strcmp(fault, "dies") && first.rows == p.d_layout.rows && first.columns == p.d_layout.columns)
        _exit(99);
    return strcmp(fault, "refuses") ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

/* Whether the algorithm was proposed for such a product. */
bool is_for(const algorithm &how, const matmul &op)
{
    return how.sm_target == static_cast<uint64_t>(op.sm_target);
}

void check_sm_target(const matmul &op)
{
    static const char *const wanted = getenv("ZTRAIN_EMULATION_SM_TARGET");
    if (wanted && atoi(wanted) != op.sm_target)
        report("cublasLtMatmul: SM_COUNT_TARGET is %d, not %s", op.sm_target, wanted);
}

template <typename T> cublasStatus_t set(T *to, const void *value, size_t size)
{
    if (size != sizeof *to)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t set_sm_target(matmul *op, const void *value, size_t size)
{
    cublasStatus_t code = set(&op->sm_target, value, size);
    bool there = code == CUBLAS_STATUS_SUCCESS && op->sm_target >= 0 && op->sm_target <= multiprocessors();
    return there ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}
} // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    *handle = reinterpret_cast<cublasLtHandle_t>(new int(0));
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    delete reinterpret_cast<int *>(handle);
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void)
{
    return CUBLAS_VERSION;
}

const char *cublasLtGetStatusName(cublasStatus_t code)
{
    switch (code) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "another status";
    }
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t compute, cudaDataType_t scale)
{
    if ((compute != CUBLAS_COMPUTE_32F && compute != CUBLAS_COMPUTE_32F_FAST_TF32) || scale != CUDA_R_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    matmul *op = new matmul();
    op->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    *d = reinterpret_cast<cublasLtMatmulDesc_t>(op);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    delete matmul_of(d);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t size)
{
    matmul *op = matmul_of(d);
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return set(&op->transpose_a, value, size);
    case CUBLASLT_MATMUL_DESC_TRANSB: return set(&op->transpose_b, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return set(&op->epilogue, value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return set(&op->bias, value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return set(&op->bias_type, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return set(&op->aux, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return set(&op->aux_ld, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE: return set(&op->aux_type, value, size);
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET: return set_sm_target(op, value, size);
    default: return CUBLAS_STATUS_INVALID_VALUE;
    }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType type, uint64_t rows, uint64_t columns,
                                          int64_t ld)
{
    if (!size_of(type) || !rows || !columns)
        return CUBLAS_STATUS_INVALID_VALUE;
    *l = reinterpret_cast<cublasLtMatrixLayout_t>(
        new layout{type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), ld});
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    delete layout_of(l);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p)
{
    *p = reinterpret_cast<cublasLtMatmulPreference_t>(
        new preference{0, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}});
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    delete reinterpret_cast<preference *>(p);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t size)
{
    preference *wish = reinterpret_cast<preference *>(p);
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return set(&wish->workspace, value, size);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return set(&wish->schemes, value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return set(&wish->alignment[0], value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return set(&wish->alignment[1], value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return set(&wish->alignment[2], value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return set(&wish->alignment[3], value, size);
    default: return CUBLAS_STATUS_INVALID_VALUE;
    }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t out, cublasLtMatmulPreference_t p, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *found)
{
    static const uint32_t schemes[] = {CUBLASLT_REDUCTION_SCHEME_INPLACE, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE,
                                       CUBLASLT_REDUCTION_SCHEME_NONE, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE};
    const preference *wish = reinterpret_cast<preference *>(p);
    *found = 0;
    cublasStatus_t code = check_product(*matmul_of(d), *layout_of(a), *layout_of(b), *layout_of(out));
    if (code != CUBLAS_STATUS_SUCCESS)
        return code;
    for (uint32_t scheme : schemes) {
        if (*found == wanted || (scheme && !(scheme & wish->schemes)) || (scheme && wish->workspace < 1 << 20))
            continue;
        cublasLtMatmulHeuristicResult_t *result = &results[(*found)++];
        memset(result, 0, sizeof *result);
        const algorithm made = {MAGIC, scheme, static_cast<uint64_t>(matmul_of(d)->sm_target)};
        memcpy(&result->algo, &made, sizeof made);
        result->workspaceSize = scheme ? 1 << 20 : 0;
        result->state = CUBLAS_STATUS_SUCCESS;
        result->wavesCount = 1;
    }
    return *found ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, void *value,
                                                    size_t size, size_t *written)
{
    algorithm a;
    memcpy(&a, algo, sizeof a);
    uint32_t scheme = static_cast<uint32_t>(a.scheme);
    if (attribute != CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME || size != sizeof scheme || a.magic != MAGIC)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(value, &scheme, size);
    *written = size;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t out,
                                       const cublasLtMatmulAlgo_t *algo, cublasLtMatmulHeuristicResult_t *result)
{
    algorithm made;
    memcpy(&made, algo, sizeof made);
    if (made.magic != MAGIC || !is_for(made, *matmul_of(d)))
        return CUBLAS_STATUS_INVALID_VALUE;
    cublasStatus_t code = check_product(*matmul_of(d), *layout_of(a), *layout_of(b), *layout_of(out));
    memset(result, 0, sizeof *result);
    result->state = code;
    result->workspaceSize = made.scheme ? 1 << 20 : 0;
    return code;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    guard lock(big_lock);
    enter("cublasLtMatmul");
    if (context_is_lost())
        return CUBLAS_STATUS_EXECUTION_FAILED;
    algorithm how;
    memcpy(&how, algo, sizeof how);
    product p = {*matmul_of(desc),
                 *layout_of(a_layout),
                 *layout_of(b_layout),
                 *layout_of(c_layout),
                 *layout_of(d_layout),
                 a,
                 b,
                 c,
                 d,
                 *static_cast<const float *>(alpha),
                 *static_cast<const float *>(beta),
                 how.scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE};
    cublasStatus_t code = check_product(p.op, p.a_layout, p.b_layout, p.d_layout);
    if (code != CUBLAS_STATUS_SUCCESS)
        return code;
    if (how.magic != MAGIC || !is_for(how, p.op))
        report("cublasLtMatmul: an algorithm that the heuristics did not give");
    if (how.scheme == CUBLASLT_REDUCTION_SCHEME_INPLACE || how.scheme == CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE)
        report("cublasLtMatmul: an algorithm whose results do not repeat, or lose precision, was taken");
    if (how.scheme && (workspace_bytes < 1 << 20 || !is_aligned(workspace)))
        return CUBLAS_STATUS_INVALID_VALUE;
    check_sm_target(p.op);
    code = plant_fault(p);
    if (code != CUBLAS_STATUS_SUCCESS)
        return code;
    plant_cost(p);
    operation op;
    op.name =
        "cublasLtMatmul (m " + std::to_string(p.d_layout.rows) + ", n " + std::to_string(p.d_layout.columns) + ")";
    add_ranges(op.ranges, "cublasLtMatmul: A", p.a_layout, a, false);
    add_ranges(op.ranges, "cublasLtMatmul: B", p.b_layout, b, false);
    if (p.beta != 0)
        add_ranges(op.ranges, "cublasLtMatmul: C", p.c_layout, c, false);
    if (has_bias(p.op.epilogue))
        add_vector(op.ranges, "cublasLtMatmul: bias", p.op.bias, p.d_layout.rows, p.op.bias_type, false);
    if (has_gradient(p.op.epilogue))
        add_vector(op.ranges, "cublasLtMatmul: bias gradient", p.op.bias,
                   p.op.epilogue == CUBLASLT_EPILOGUE_BGRADA ? p.d_layout.rows : p.d_layout.columns, p.op.bias_type,
                   true);
    if (has_aux(p.op.epilogue))
        add_ranges(op.ranges, "cublasLtMatmul: aux",
                   {static_cast<cudaDataType>(p.op.aux_type), p.d_layout.rows, p.d_layout.columns, p.op.aux_ld},
                   p.op.aux, has_gelu(p.op.epilogue));
    add_ranges(op.ranges, "cublasLtMatmul: D", p.d_layout, d, true);
    if (workspace_bytes) { /* its first bytes represent the whole */
        check_range("cublasLtMatmul: workspace", workspace, workspace_bytes);
        op.ranges.push_back({workspace, 64, true});
    }
    op.run = [p, workspace, workspace_bytes] {
        if (workspace_bytes)
            memset(open_alias(workspace), 0xff, 64);
        multiply(p);
    };
    enqueue(lock, stream_of(stream), std::move(op));
    return CUBLAS_STATUS_SUCCESS;
}
}
