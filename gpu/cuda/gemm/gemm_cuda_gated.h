/* gemm_cuda_gated.h: SwiGLU inside the matrix products before and after it, by cuDNN.
 *
 * cublasLt has no such epilogue. cuDNN compiles a kernel for a product and the operations on it:
 *
 *     linear_fwd          gate = x · Wgᵀ          by cublasLt
 *                         up = x · Wuᵀ   h = silu(gate) · up                            one kernel, both are stored
 *     linear_bwd_input    dh = dy · W    dup = dh · silu(gate)   dgate = dh · up · silu'(gate)
 *                                                                one kernel, which stores the gradients in place
 *
 * Without it SwiGLU is a kernel of its own, which reads what the product has written. Before the first step both ways
 * are timed and their results compared, as for the epilogues of cublasLt (gemm_cuda_ways.h), and the choice is kept in
 * the same file. Products that were not announced, fp32, GeGLU, and gate and up with biases are computed without.
 * Down's backward has no bias, and may be computed inside where mlp_bias gives the others one. Nothing but the
 * comparison shows that cuDNN's kernels may write where they have read: each tile is read and written by one block.
 * Kernels of cuDNN use all multiprocessors (train.sm_count_target does not reach them). */
#pragma once

#include "gpu/cuda/gemm/gemm_cuda_gated_graph.h"
#include "gpu/cuda/gemm/gemm_cuda_ways.h"

/* Whether the op is to be computed with SwiGLU inside. */
bool gemm_gated_takes(struct gemm_cuda *gemm, const struct gemm_op *op);

/* Enqueues such an op, whose gate has been computed. Failures become the device's error. */
void gemm_gated_run(struct stream *stream, const struct gemm_op *op);

/* The same; NULL, or the reason of a failure in cuDNN's words, which becomes no error. */
const char *gemm_gated_execute(struct stream *stream, const struct gemm_op *op);

/* The product that computes the gate. */
struct linear_fwd_args gemm_gated_half(const struct linear_fwd_args *args);

#if ZTRAIN_HAVE_CUDNN
/* A product with SwiGLU inside, as cuDNN's plans take it. */
struct gated_product {
    struct gemm_key key;
    void *pointers[GATED_POINTERS];
};

/* The product of an op; false: it has none that cuDNN may compute. */
bool gemm_gated_product(const struct gemm_cuda *gemm, const struct gemm_op *op, struct gated_product *product);
#endif

/* Whether the op has SwiGLU that may be computed inside. */
bool gemm_gated_may_fuse(const struct gemm_cuda *gemm, const struct gemm_op *op);

/* Whether one of the products may be computed by cuDNN, which is to be opened for it: there is SwiGLU that may be
 * computed inside, and a cache for the choice, or the way is forced. */
bool gemm_gated_wants_cudnn(const struct gemm_cuda *gemm, const struct linear_products *products);

/* Takes the way of such an op from the cache; false: it has none that can be taken, and the op has no plan. */
bool gemm_gated_take_known(struct gemm_cuda *gemm, const struct gemm_op *op);

/* Takes those ways of the products that rank 0 has chosen. cuDNN compiles their kernels, about a second for each:
 * therefore before the cache is locked, so that the ranks of a machine do it at the same time. */
void gemm_gated_take_imported(struct gemm_cuda *gemm, const struct linear_products *products);

enum gemm_gated_outcome {
    GEMM_GATED_NOT_TIMED, /* there is one way only, or another rank chooses */
    GEMM_GATED_TIMED,     /* the way was chosen by timing, and is in the cache */
    GEMM_GATED_NO_MEMORY, /* the GPU has too little memory to try: SwiGLU is not computed inside */
    GEMM_GATED_BROKEN /* a kernel on trial broke the GPU: it stays noted (gpu/cuda/gemm_trial.h), and err has the reason
                       */
};

/* Chooses the way of such an op, which is not known, by timing cuDNN's proposals and the op without. Its products by
 * cublasLt have been chosen. */
enum gemm_gated_outcome gemm_gated_choose(struct gemm_cuda *gemm, const struct gemm_clock *clock,
                                          const struct gemm_op *op, struct error *err);

/* ZTRAIN_GEMM_EPILOGUES=fused: gives such an op the kernel that was chosen for it, or else the first of cuDNN's that
 * has not faulted on trial. Nothing is timed or compared; there may be no cache. */
void gemm_gated_force(struct gemm_cuda *gemm, const struct gemm_op *op);

/* Logs for each op with SwiGLU or GeGLU whether it is computed inside, and by which engine. */
void gemm_gated_log(struct gemm_cuda *gemm, const struct linear_products *products);
