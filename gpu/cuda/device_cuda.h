/* device_cuda.h: the device, the streams and the events of the CUDA backend, which all files of this room share.
 *
 *     device_cuda.c            finding, opening and closing a GPU; the backend's table
 *     device_cuda_event.c      events
 *     device_cuda_stream.c     streams, host functions, copies
 *     device_cuda_graph.c      capturing and launching graphs
 *     device_cuda_memory.c     memory on the GPU, and host memory that it can reach
 *     device_cuda_error.c      the sticky error
 *     cuda_libraries.c         cublasLt, cuDNN and NCCL, opened at run time
 *     ops_cuda.c               the op table; its entries are the launchers of ops_cuda.h
 *     ops_cuda_*.cu            kernels and launchers, by group of ops
 *     gemm_cuda*.c             the linear ops over cublasLt
 *     attention_cuda*          attention: over cuDNN where it has a plan, else by ztrain's kernels
 *     attention_cudnn*.c       attention over cuDNN, whose graphs cudnn_graph.c writes down
 *
 * The thread that opens a device makes all calls on it (CUDA's current device is a property of the thread). Errors are
 * asynchronous: the first one stays (device_cuda_error.h), device_check() reports it, and calls after it return without
 * a useful result. Above this floor, only transport_nccl.c includes this header. */
#pragma once

#include "gpu/cuda/cuda_libraries.h"
#include "gpu/device_backend.h"
#include "gpu/ops.h"

#include <cuda_runtime_api.h>
#include <pthread.h>

#ifdef __cplusplus
extern "C" {
#endif

struct cuda_graph;
struct gemm_cuda;
struct attention_cudnn;

/* The least compute capability that is supported (8.0: Ampere). */
enum { CUDA_CAPABILITY_LEAST = 80 };

enum { CUDA_MAX_RANGES = 256 };

/* A piece of memory that this device allocated or pinned: copies from and to it need no staging. */
struct cuda_range {
    char *base;
    size_t bytes;
};

struct cuda_device {
    struct device_private private_; /* first: see device_backend.h */
    struct device device;
    int index;      /* of the GPU, among those visible */
    int capability; /* 10 · major + minor: 90 is Hopper */
    int sm_count;
    size_t l2_bytes;
    const struct cublaslt_functions *cublaslt;
    struct gemm_cuda *gemm;            /* owned */
    struct attention_cudnn *attention; /* owned; NULL: a build without cuDNN */
    struct cuda_graph *capturing;      /* NULL: work is run, not captured */
    pthread_mutex_t mutex;             /* protects the members below */
    struct cuda_range ranges[CUDA_MAX_RANGES];
    int num_ranges;
    struct error error;         /* sticky; code STATUS_OK: none */
    struct error capture_error; /* of the capture in progress */
    int64_t waiting_since;      /* atomic: when the thread began to wait for the GPU, in ms; 0: it does not wait */
};

struct cuda_staging; /* private to device_cuda_stream.c */

struct cuda_stream {
    struct stream base; /* first */
    cudaStream_t handle;
    struct cuda_staging *staging; /* owned */
    bool in_graphs;               /* it has been captured: launches of graphs are ordered with it */
};

struct cuda_event {
    struct event base; /* first */
    cudaEvent_t handle;
    bool timed;
    uint64_t capture; /* the number of the capture in which it was recorded last; 0: outside of captures */
};

static inline struct cuda_device *cuda_device_of(const struct stream *stream)
{
    return (struct cuda_device *)stream->device->private_;
}

static inline struct cuda_stream *cuda_stream_of(struct stream *stream)
{
    return (struct cuda_stream *)stream;
}

/* device_cuda_stream.c: whether the device's thread waits for the GPU, and has for less than ten minutes: it is alive,
 * although it cannot advance the progress counter. Any thread. */
bool cuda_is_waiting(struct cuda_device *cuda);

#ifdef __cplusplus
}
#endif
