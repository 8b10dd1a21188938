/* SPDX-License-Identifier: Apache-2.0 */
/* cudnn_graph.h: operation graphs of cuDNN's backend API, and the plans that compute them.
 *
 * A graph is written down as its formula: tensors of the caller, and operations that return virtual tensors, which are
 * never stored. cuDNN has a kernel for the whole graph, or refuses it:
 *
 *     operations -> heuristics: engines, best first -> plans of the acceptable ones -> execution on a stream
 *
 * The first error stays in the graph, later calls do nothing, and cudnn_plans_new() reports it. Tensors have four
 * dimensions; in a graph of rank 3 the first one is 1 and is not told the library. Strides count elements. Calls of one
 * graph and its plans come from one thread. */
#pragma once

#include "gpu/cuda/cuda_libraries.h"

#include <cuda_runtime_api.h>

/* The library and the GPU that plans are made for: that of `handle`, or one that is only described, whose plans are not
 * executed (tests/emulation/cudnn_plans.c). */
struct cudnn_target {
    const struct cudnn_functions *cudnn; /* borrowed */
    struct cudnnContext *handle;         /* NULL: a described GPU, or cuDNN cannot be used */
    void *gpu;                           /* a finalized description, borrowed; NULL with a handle */
    int version;                         /* 91900: 9.19.0 */
    int capability;                      /* of the GPU, 90: 9.0; 0: no engine is known by its number */
};

/* Opens cuDNN for the thread's GPU. STATUS_DEVICE: there is none, or it does not start. */
enum status cudnn_target_open(struct cudnn_target *target, struct error *err);
void cudnn_target_close(struct cudnn_target *target); /* also of one that was not opened */

struct cudnn_graph;

/* `kernel`: a hash, never 0, over the engine and its settings (cuDNN's knobs). Neither the place among proposals nor
 * the engine identify a kernel: the library leaves out what a chip cannot run, and proposes engines several times. */
struct cudnn_plan {
    uint64_t kernel;
    size_t workspace;          /* bytes */
    int64_t engine;            /* its number among the library's */
    int64_t proposal;          /* its number among the proposals: of heuristic mode A, then the fallbacks; -1: none */
    struct cudnn_graph *graph; /* private, like the others; shared with the plans that were made with this one */
    void *descriptor;
    char why[512]; /* of the last execution that failed */
};

/* An engine of the library by its number, with settings (cudnnBackendKnobType_t, value). */
enum { CUDNN_ENGINE_KNOBS = 6 };
struct cudnn_engine {
    int64_t number;
    int64_t knobs[CUDNN_ENGINE_KNOBS][2];
    int num_knobs;
};

/* Which of the library's proposals will do. */
struct cudnn_filter {
    bool unordered;                    /* results need not repeat bit for bit */
    size_t most_workspace;             /* bytes */
    uint64_t kernel;                   /* the only one that will do; 0: any */
    const struct cudnn_engine *engine; /* this one instead of the proposals; NULL: those */
};

/* Makes plans of the first `most` proposals that pass the filter, no kernel twice; returns their number. 0: `err` has
 * the refusal, in the library's words. Takes the graph over. */
int cudnn_plans_new(struct cudnn_graph *graph, const struct cudnn_filter *filter, struct cudnn_plan **plans, int most,
                    struct error *err);
void cudnn_plan_free(struct cudnn_plan *plan);               /* may be NULL */
bool cudnn_plan_uses(const struct cudnn_plan *plan, int id); /* whether its graph has the tensor in memory */

/* Enqueues the plan. pointers (id): device memory; workspace: 256-byte aligned. Allocates no device memory, waits for
 * nothing. NULL, or the reason of a failure. */
const char *cudnn_plan_execute(struct cudnn_plan *plan, cudaStream_t stream, void *const *at, int count, void *room);

#if ZTRAIN_HAVE_CUDNN

enum { CUDNN_RANK = 4 };

/* A tensor of a graph; dims and strides serve the tensors that are derived from it. */
struct cudnn_tensor {
    cudnnBackendDescriptor_t descriptor;
    cudnnDataType_t type;
    int64_t dims[CUDNN_RANK], strides[CUDNN_RANK];
};

/* rank: CUDNN_RANK or 3. The target is copied. cudnn_plans_new() frees it. */
struct cudnn_graph *cudnn_graph_new(const struct cudnn_target *target, int rank);

/* cudnn_memory(): a tensor in memory, whose pointer is `id` (from 0) in cudnn_plan_execute(); cudnn_virtual(): a dense
 * virtual one, the last dimension innermost; cudnn_scalar(): a value on the host. */
enum { CUDNN_MAX_POINTERS = 20 };
/* offsets: NULL, or a tensor in memory, int32 or int64 (B + 1, 1, 1, 1): sequence b begins offsets[b] elements after
 * the pointer, not b times the first stride. */
struct cudnn_tensor cudnn_memory(struct cudnn_graph *graph, int id, cudnnDataType_t type, const int64_t *dims,
                                 const int64_t *strides, const struct cudnn_tensor *offsets);
struct cudnn_tensor cudnn_virtual(struct cudnn_graph *graph, cudnnDataType_t type, const int64_t *dims);
struct cudnn_tensor cudnn_scalar(struct cudnn_graph *graph, float value);

/* Operations write a given tensor, or return a virtual one. Operands that are lacking are NULL. Arithmetic is in fp32;
 * comparisons give booleans. CUDNN_POINTWISE_TANH_BWD: x is the gradient, b what tanh was of. */
void cudnn_pointwise_into(struct cudnn_graph *graph, cudnnPointwiseMode_t mode, const struct cudnn_tensor *x,
                          const struct cudnn_tensor *b, const struct cudnn_tensor *t, const struct cudnn_tensor *out);
struct cudnn_tensor cudnn_pointwise(struct cudnn_graph *graph, cudnnPointwiseMode_t mode, const struct cudnn_tensor *x,
                                    const struct cudnn_tensor *b, const struct cudnn_tensor *t);
/* The index of each element of x along an axis, in int32. */
struct cudnn_tensor cudnn_index(struct cudnn_graph *graph, const struct cudnn_tensor *x, int64_t axis);
/* lengths: those of m, n and k for every matrix of the batch, int32 (B, 1, 1, 1) in memory; an entry that is
 * NULL: the dimension's; lengths NULL: all of them. */
void cudnn_matmul(struct cudnn_graph *graph, const struct cudnn_tensor *a, const struct cudnn_tensor *b,
                  const struct cudnn_tensor *const lengths[3], const struct cudnn_tensor *out);
/* out (1, M, N) = a (1, M, K) · b (E, K, N): matrix e for the rows from offsets[e] on; offsets: int32 (E, 1, 1) in
 * memory. No length reaches a plain product of cuDNN 9.26: it ignores `lengths` and offsets outside of attention. */
void cudnn_grouped_matmul(struct cudnn_graph *graph, const struct cudnn_tensor *a, const struct cudnn_tensor *b,
                          const struct cudnn_tensor *offsets, const struct cudnn_tensor *out);
void cudnn_reduce(struct cudnn_graph *graph, cudnnReduceTensorOp_t how, const struct cudnn_tensor *x,
                  const struct cudnn_tensor *out);
/* x with its two last dimensions exchanged, rounded to `type`; offsets: those of x, NULL if it is not ragged. */
struct cudnn_tensor cudnn_transpose(struct cudnn_graph *graph, const struct cudnn_tensor *x, cudnnDataType_t type,
                                    const struct cudnn_tensor *offsets);

#endif
