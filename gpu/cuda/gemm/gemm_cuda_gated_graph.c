/* SPDX-License-Identifier: Apache-2.0 */
/* gemm_cuda_gated_graph.c: products with SwiGLU inside, and those of experts, as cuDNN's operation graphs. With s =
 * sigmoid(gate), silu(gate) = gate s and silu'(gate) = s + gate s (1 - s). All of it is in fp32. The key counts columns
 * as cublasLt does: D (m, n) = A · B is, row by row, (n, m) = (n, k) · (k, m). */
#include "gpu/cuda/gemm/gemm_cuda_gated.h"

#include "core/dtype.h"

#if ZTRAIN_HAVE_CUDNN

enum { RANK = 3 }; /* cuDNN's engines for products with operations want three dimensions */

/* A matrix in memory, whose rows or columns are ld elements apart. */
static struct cudnn_tensor matrix(struct cudnn_graph *g, enum gemm_gated_pointer id, const struct gemm_key *key,
                                  int64_t rows, int64_t columns, int64_t ld, bool transposed)
{
    const int64_t dims[CUDNN_RANK] = {1, 1, rows, columns};
    const int64_t all = ld * (transposed ? columns : rows);
    const int64_t strides[CUDNN_RANK] = {all, all, transposed ? 1 : ld, transposed ? ld : 1};
    return cudnn_memory(g, (int)id, key->input == DTYPE_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF, dims, strides,
                        NULL);
}

static struct cudnn_tensor multiply(struct cudnn_graph *g, const struct cudnn_tensor *x, const struct cudnn_tensor *y)
{
    return cudnn_pointwise(g, CUDNN_POINTWISE_MUL, x, y, NULL);
}

/* x, w: the operands of the product; a matrix of n rows and m columns. */
static void build_fwd(struct cudnn_graph *g, const struct gemm_key *key, const struct cudnn_tensor *x,
                      const struct cudnn_tensor *w)
{
    const struct cudnn_tensor gate = matrix(g, GATED_GATE, key, key->n, key->m, key->ld_aux, false),
                              up = matrix(g, GATED_UP, key, key->n, key->m, key->ldd, false),
                              h = matrix(g, GATED_H, key, key->n, key->m, key->m, false);
    cudnn_matmul(g, x, w, NULL, &up);
    const struct cudnn_tensor s = cudnn_pointwise(g, CUDNN_POINTWISE_SIGMOID_FWD, &gate, NULL, NULL),
                              silu = multiply(g, &gate, &s);
    cudnn_pointwise_into(g, CUDNN_POINTWISE_MUL, &up, &silu, NULL, &h);
}

static void build_bwd(struct cudnn_graph *g, const struct gemm_key *key, const struct cudnn_tensor *dy,
                      const struct cudnn_tensor *w)
{
    const int64_t dims[CUDNN_RANK] = {1, 1, key->n, key->m};
    const struct cudnn_tensor gate = matrix(g, GATED_GATE, key, key->n, key->m, key->ld_aux, false),
                              up = matrix(g, GATED_UP, key, key->n, key->m, key->ld_aux, false),
                              dgate = matrix(g, GATED_DGATE, key, key->n, key->m, key->ldd, false),
                              dup = matrix(g, GATED_DUP, key, key->n, key->m, key->ldd, false);
    const struct cudnn_tensor dh = cudnn_virtual(g, CUDNN_DATA_FLOAT, dims);
    cudnn_matmul(g, dy, w, NULL, &dh);
    const struct cudnn_tensor s = cudnn_pointwise(g, CUDNN_POINTWISE_SIGMOID_FWD, &gate, NULL, NULL),
                              silu = multiply(g, &gate, &s), product = multiply(g, &silu, &s),
                              sum = cudnn_pointwise(g, CUDNN_POINTWISE_ADD, &s, &silu, NULL),
                              slope = cudnn_pointwise(g, CUDNN_POINTWISE_SUB, &sum, &product, NULL),
                              dsilu = multiply(g, &up, &dh);
    cudnn_pointwise_into(g, CUDNN_POINTWISE_MUL, &dsilu, &slope, NULL, &dgate);
    cudnn_pointwise_into(g, CUDNN_POINTWISE_MUL, &dh, &silu, NULL, &dup);
}

static void build_grouped(struct cudnn_graph *g, const struct gemm_key *key, const struct cudnn_tensor *x)
{
    const int64_t experts = key->ld_aux, dims[CUDNN_RANK] = {1, experts, key->k, key->m};
    const int64_t k = key->transpose_a ? 1 : key->lda, m = key->transpose_a ? key->lda : 1;
    const int64_t strides[CUDNN_RANK] = {0, key->k * key->m, k, m};
    const int64_t firsts[CUDNN_RANK] = {1, experts, 1, 1}, ones[CUDNN_RANK] = {1, 1, 1, 1};
    const struct cudnn_tensor w = cudnn_memory(g, GATED_WEIGHTS, x->type, dims, strides, NULL),
                              offsets = cudnn_memory(g, GATED_OFFSETS, CUDNN_DATA_INT32, firsts, ones, NULL),
                              y = matrix(g, GATED_H, key, key->n, key->m, key->ldd, false);
    cudnn_grouped_matmul(g, x, &w, &offsets, &y);
}

int gemm_gated_plans(const struct cudnn_target *target, const struct gemm_key *key, const struct cudnn_filter *filter,
                     struct cudnn_plan **plans, int most, struct error *err)
{
    struct cudnn_graph *graph = cudnn_graph_new(target, RANK);
    const struct cudnn_tensor rows = matrix(graph, GATED_ROWS, key, key->n, key->k, key->ldb, false);
    if (key->epilogue == GEMM_GROUPED) {
        build_grouped(graph, key, &rows);
        return cudnn_plans_new(graph, filter, plans, most, err);
    }
    const struct cudnn_tensor weights = matrix(graph, GATED_WEIGHTS, key, key->k, key->m, key->lda, key->transpose_a);
    if (key->epilogue == GEMM_SWIGLU)
        build_fwd(graph, key, &rows, &weights);
    else
        build_bwd(graph, key, &rows, &weights);
    return cudnn_plans_new(graph, filter, plans, most, err);
}

#else

int gemm_gated_plans(const struct cudnn_target *target, const struct gemm_key *key, const struct cudnn_filter *filter,
                     struct cudnn_plan **plans, int most, struct error *err)
{
    (void)target, (void)key, (void)filter, (void)plans, (void)most;
    error_set(err, STATUS_DEVICE, "this build of ztrain has no cuDNN");
    return 0;
}

#endif
