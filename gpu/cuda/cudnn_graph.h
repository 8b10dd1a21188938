/* cudnn_graph.h: operation graphs of cuDNN's backend API, and the plans that compute them.
 *
 * A graph is written down as its formula: tensors of the caller, and operations that give virtual tensors, which exist
 * in no memory. cuDNN recognises the whole and has a kernel for it, or refuses:
 *
 *     graph of operations -> heuristics: engines, best first -> a plan of the first that will do -> execute, on a
 * stream
 *
 * The first error stays in the graph and later calls do nothing, so formulas need no checks between their lines;
 * cudnn_plan_new() reports it. All tensors have four dimensions; strides count elements. Calls of one graph and its
 * plan come from one thread. */
#ifndef ZTRAIN_GPU_CUDA_CUDNN_GRAPH_H
#define ZTRAIN_GPU_CUDA_CUDNN_GRAPH_H

#include "gpu/cuda/cuda_libraries.h"

#if ZTRAIN_HAVE_CUDNN

#include <stddef.h>
#include <stdint.h>

enum { CUDNN_RANK = 4 };

/* A library that plans are made with: for the GPU of `handle`, or for one that is only described
 * (cudnn_describe_gpu()): such plans can be looked at but not executed. */
struct cudnn_target {
    const struct cudnn_functions *cudnn; /* borrowed */
    cudnnHandle_t handle;                /* NULL: a described GPU */
    cudnnBackendDescriptor_t gpu;        /* the description; NULL with a handle */
    int version;                         /* 91900: 9.19.0 */
};

/* A tensor of a graph; dims and strides are for what is derived from it. */
struct cudnn_tensor {
    cudnnBackendDescriptor_t descriptor;
    cudnnDataType_t type;
    int64_t dims[CUDNN_RANK], strides[CUDNN_RANK];
};

struct cudnn_graph;
struct cudnn_plan;

struct cudnn_graph *cudnn_graph_new(const struct cudnn_target *target); /* the target is copied; NULL: out of memory */
void cudnn_graph_free(struct cudnn_graph *graph);                       /* may be NULL */

/* A tensor in memory: `id` (from 0) names its pointer in cudnn_plan_execute(). A virtual one, with rows of the last
 * dimension one after the other. A scalar on the host. The same tensor with its two last dimensions exchanged. */
enum { CUDNN_MAX_POINTERS = 16 };
struct cudnn_tensor cudnn_memory(struct cudnn_graph *graph, int id, cudnnDataType_t type, const int64_t *dims,
                                 const int64_t *strides);
struct cudnn_tensor cudnn_virtual(struct cudnn_graph *graph, cudnnDataType_t type, const int64_t *dims);
struct cudnn_tensor cudnn_scalar(struct cudnn_graph *graph, float value);

/* Operations: into a given tensor, or giving a virtual one. The missing operand of cudnn_pointwise() is NULL. `axis`:
 * of CUDNN_POINTWISE_GEN_INDEX. */
struct cudnn_pointwise {
    cudnnPointwiseMode_t mode;
    cudnnDataType_t computed_in, gives;
    int64_t axis;
};
void cudnn_pointwise_into(struct cudnn_graph *graph, const struct cudnn_pointwise *how, const struct cudnn_tensor *x,
                          const struct cudnn_tensor *b, const struct cudnn_tensor *t, const struct cudnn_tensor *out);
struct cudnn_tensor cudnn_pointwise(struct cudnn_graph *graph, const struct cudnn_pointwise *how,
                                    const struct cudnn_tensor *x, const struct cudnn_tensor *b,
                                    const struct cudnn_tensor *t);
void cudnn_matmul(struct cudnn_graph *graph, const struct cudnn_tensor *a, const struct cudnn_tensor *b,
                  const struct cudnn_tensor *out);
void cudnn_reduce(struct cudnn_graph *graph, cudnnReduceTensorOp_t how, const struct cudnn_tensor *x,
                  const struct cudnn_tensor *out);
/* The two last dimensions exchanged, rounded to `type`. */
struct cudnn_tensor cudnn_transpose(struct cudnn_graph *graph, const struct cudnn_tensor *x, cudnnDataType_t type);

/* A plan of the first engine whose results repeat bit for bit and whose workspace is at most `most_workspace` bytes.
 * Takes the graph over, also on failure (STATUS_DEVICE: what was refused, in the library's words). */
enum status cudnn_plan_new(struct cudnn_graph *graph, size_t most_workspace, struct cudnn_plan **plan,
                           struct error *err);
void cudnn_plan_free(struct cudnn_plan *plan); /* may be NULL */
size_t cudnn_plan_workspace_bytes(const struct cudnn_plan *plan);
int64_t cudnn_plan_engine(const struct cudnn_plan *plan); /* its number among the library's, for messages */

/* Queues the plan on the stream of the target's handle. pointers (id): device memory; the workspace is 256-byte aligned
 * scratch memory. Allocates no device memory and waits for nothing. NULL, or what went wrong. */
const char *cudnn_plan_execute(struct cudnn_plan *plan, void *const *pointers, int count, void *workspace);

/* A GPU that need not be there, from its description as cuDNN writes it (JSON). */
enum status cudnn_describe_gpu(const struct cudnn_functions *cudnn, const char *json, struct cudnn_target *target,
                               struct error *err);
void cudnn_target_release(struct cudnn_target *target); /* of a described GPU */

#endif

#endif
