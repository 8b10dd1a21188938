/* SPDX-License-Identifier: Apache-2.0 */
/* gemm_cuda_gated.h: matrix products by cuDNN: with SwiGLU inside, and of experts.
 *
 * cublasLt has no such epilogue. cuDNN compiles a kernel for a product and the operations on it:
 *
 *     linear_fwd          gate = x · Wgᵀ          by cublasLt
 *                         up = x · Wuᵀ   h = silu(gate) · up                            one kernel, both are stored
 *     linear_bwd_input    dh = dy · W    dup = dh · silu(gate)   dgate = dh · up · silu'(gate)
 *                                                                one kernel, which stores the gradients in place
 *
 * The other way is a kernel of its own. Before the first step both are timed and compared (gemm_cuda_autotune.c).
 * Products that were not announced, fp32, GeGLU, and gate and up with biases are computed without. Only the comparison
 * shows that cuDNN's kernels may write where they have read. train.sm_count_target does not reach cuDNN's kernels.
 *
 * The products of experts' rows (grouped_linear_fwd, grouped_linear_bwd_input) are chosen in the same way: by cuDNN's
 * grouped product, or by ztrain's kernel, which also adds to y and adds biases. */
#pragma once

#include "gpu/cuda/gemm/gemm_cuda_plan.h"

/* Of cudnn_plan_execute(): x and up's weights, or dy and the weights; gate, up and h (of experts: y); gradients of gate
 * and up; where the rows of experts begin. */
enum gemm_gated_pointer {
    GATED_ROWS,
    GATED_WEIGHTS,
    GATED_GATE,
    GATED_UP,
    GATED_H,
    GATED_DGATE,
    GATED_DUP,
    GATED_OFFSETS,
    GATED_POINTERS
};

/* Makes plans of a product in 16 bits: cudnn_plans_new(). */
int gemm_gated_plans(const struct cudnn_target *target, const struct gemm_key *key, const struct cudnn_filter *filter,
                     struct cudnn_plan **plans, int most, struct error *err);

/* A product as cuDNN's plans take it. */
struct gated_product {
    struct gemm_key key;
    void *pointers[GATED_POINTERS];
};

/* The product of an op; false: it has none that cuDNN may compute. */
bool gemm_gated_product(const struct gemm_cuda *gemm, const struct gemm_op *op, struct gated_product *product);

bool gemm_gated_may_fuse(const struct gemm_cuda *gemm, const struct gemm_op *op);

/* Whether cuDNN is to be opened: it may compute some product, and there is a cache, or it is forced. */
bool gemm_gated_wants_cudnn(const struct gemm_cuda *gemm, const struct linear_products *products);

/* The product that computes the gate. */
struct linear_fwd_args gemm_gated_half(const struct linear_fwd_args *args);

/* The plan by which cuDNN computes the op, once the gate of SwiGLU has been computed; NULL: it does not. */
const struct gemm_plan *gemm_gated_plan(struct gemm_cuda *gemm, const struct gemm_op *op, struct gated_product *out);

/* Logs for each op of experts or with SwiGLU or GeGLU how it is computed. */
void gemm_gated_log(struct gemm_cuda *gemm, const struct linear_products *products);
