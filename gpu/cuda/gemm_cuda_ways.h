/* gemm_cuda_ways.h: the two ways to compute a linear op whose product has an epilogue, next to each other: by the
 * epilogue, and by the product without it and a kernel. Both run as in a step, on memory that is freed again. */
#ifndef ZTRAIN_GPU_CUDA_GEMM_CUDA_WAYS_H
#define ZTRAIN_GPU_CUDA_GEMM_CUDA_WAYS_H

#include "gpu/cuda/gemm_cuda_plan.h"

/* An announced linear op: one of the three. Of its pointers only which are NULL, and their alignments, count. */
struct gemm_op {
    const struct linear_fwd_args *fwd;
    const struct linear_bwd_input_args *bwd_input;
    const struct linear_bwd_weight_args *bwd_weight;
};

/* The product of the op. A bias gradient that is accumulated is as aligned as the op's scratch memory. */
struct gemm_product gemm_op_product(const struct gemm_cuda *gemm, const struct gemm_op *op);

/* Events with times, and a stream that has no workspace. All are borrowed. */
struct gemm_clock {
    struct stream *stream;
    cudaEvent_t start, end;
};

struct gemm_ways_result {
    double fused, unfused; /* seconds */
    char differs[160];     /* where the results differ by more than rounding; empty: nowhere that was looked */
};

/* Runs the op both ways: compares samples of its results and, with `timed`, the times of the whole op. `plan`: of its
 * product; its `way` is changed meanwhile. No way may be forced. False: the GPU has too little memory, or does not
 * work any more (device_check()). */
bool gemm_ways_compare(struct gemm_cuda *gemm, const struct gemm_clock *clock, struct gemm_plan *plan,
                       const struct gemm_op *op, bool timed, struct gemm_ways_result *result);

#endif
