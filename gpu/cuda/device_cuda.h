/* device_cuda.h: what the files of the CUDA device share: its state, its streams, its sticky error.
 *
 *     device_cuda.c       memory, streams, events, copies, properties (device.h)
 *     device_cuda_graph.c capturing and launching graphs
 *     device_cuda_plan.c  a GPU that is not here, for plans
 *     cuda_libraries.c    cublasLt, cuDNN and NCCL, opened at run time
 *     ops_cuda.c          the op table; its entries are the launchers of ops_cuda.h
 *     ops_cuda_*.cu       kernels and launchers, by group of ops
 *     gemm_cuda.c         the linear ops over cublasLt
 *     attention_cudnn*.c  attention over cuDNN, whose graphs cudnn_graph.c writes down
 *
 * The thread that opens a device makes all calls on it (the current device is a thread's). Errors are asynchronous: the
 * first one stays (cuda_check), device_check() reports it, and what is called after it does nothing useful, but
 * returns. Only this floor's CUDA files know this header and the types of the CUDA run time. */
#ifndef ZTRAIN_GPU_CUDA_DEVICE_CUDA_H
#define ZTRAIN_GPU_CUDA_DEVICE_CUDA_H

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

/* The compute capabilities from this one on are supported (8.0: Ampere). */
enum { CUDA_CAPABILITY_LEAST = 80 };

enum { CUDA_MAX_RANGES = 256 };

/* Memory that this device allocated or pinned: copies from and to it need no staging. */
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
    struct cuda_graph *capturing;      /* NULL: work that streams are given is run */
    pthread_mutex_t mutex;             /* of what follows */
    struct cuda_range ranges[CUDA_MAX_RANGES];
    int num_ranges;
    struct error error;         /* sticky; code STATUS_OK: none */
    struct error capture_error; /* the same of the capture that goes on */
    int64_t waiting_since; /* atomic: when its thread began to wait for the GPU, milliseconds; 0: it does not wait */
};

struct cuda_staging; /* private to device_cuda.c */

struct cuda_stream {
    struct stream base; /* first */
    cudaStream_t handle;
    struct cuda_staging *staging; /* owned */
    bool in_graphs;               /* it was captured: launches of graphs are ordered with it */
};

struct cuda_event {
    struct event base; /* first */
    cudaEvent_t handle;
    bool timed;
    uint64_t capture; /* the number of the capture in which it was recorded last; 0: it was not in one */
};

static inline struct cuda_device *cuda_device_of(const struct stream *stream)
{
    return (struct cuda_device *)stream->device->private_;
}

static inline struct cuda_stream *cuda_stream_of(struct stream *stream)
{
    return (struct cuda_stream *)stream;
}

/* Remembers the first asynchronous failure for device_check(), during a capture for graph_end(): the text names the
 * call or the op. Its code is STATUS_BROKEN where the device itself has failed, else STATUS_DEVICE. Any thread. */
void cuda_fail(struct cuda_device *device, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* cudaSuccess: a tick of the progress counter. Else cuda_fail() with the error's name and text. For launches:
 * cuda_check(device, cudaGetLastError(), "norm_fwd"). Returns whether there was no error. */
bool cuda_check(struct cuda_device *device, cudaError_t code, const char *what);

/* device_cuda.c: marks a point of the stream, so that the host runs ahead of it by so many of them at most. */
void cuda_stream_mark(struct cuda_stream *stream);

/* device_cuda_graph.c: the entries of the backend's table, and the number of the capture that goes on, 0: none. */
bool cuda_is_capturing(const struct device *device);
enum status cuda_graph_begin(struct stream *const *streams, int count, struct graph **graph, struct error *err);
enum status cuda_graph_end(struct graph *graph, struct error *err);
void cuda_graph_launch(struct graph *graph);
void cuda_graph_free(struct graph *graph);
uint64_t cuda_capture_number(const struct cuda_device *device);
/* Whether the device's thread waits for the GPU now, and has not for ten minutes: it is alive, though it cannot tick.
 * Any thread. */
bool cuda_is_waiting(struct cuda_device *device);

#ifdef __cplusplus
}
#endif

#endif
