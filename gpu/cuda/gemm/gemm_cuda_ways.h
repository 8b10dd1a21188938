/* gemm_cuda_ways.h: the two ways to compute a linear op whose product has an epilogue, next to each other: by the
 * epilogue, and by the product without it and a kernel. Both run as in a step, on memory that is freed again. */
#pragma once

#include "gpu/cuda/gemm/gemm_cuda_plan.h"

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

enum gemm_ways_outcome {
    GEMM_WAYS_COMPARED,
    GEMM_WAYS_NO_MEMORY, /* the GPU has too little memory for the trial */
    GEMM_WAYS_BROKEN     /* the GPU does not work any more (device_check()) */
};

/* Of GEMM_WAYS_COMPARED. */
struct gemm_ways_result {
    double fused, unfused; /* seconds; INFINITY: it was not timed */
    char against[320];     /* why the op must not be computed by the epilogue, as the end of a sentence about it; empty:
                            * the results agree within rounding where they were compared */
};

/* Runs the op both ways: compares samples of its results and, with `timed`, the times of the whole op. An epilogue of
 * cuDNN's may be refused when it runs, and has to give the same bits twice. `plan`: of the op's product; its `way` is
 * changed meanwhile. No way may be forced. */
enum gemm_ways_outcome gemm_ways_compare(struct gemm_cuda *gemm, const struct gemm_clock *clock, struct gemm_plan *plan,
                                         const struct gemm_op *op, bool timed, struct gemm_ways_result *result);
