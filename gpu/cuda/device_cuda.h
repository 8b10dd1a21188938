/* SPDX-License-Identifier: Apache-2.0 */
/* device_cuda.h: the device, the streams and the events of the CUDA backend, which all files of this room share.
 * docs/architecture.md says which file of the room has what.
 *
 * The thread that opens a device makes all calls on it (CUDA's current device is a property of the thread).
 *
 * Work on a GPU fails asynchronously. The first error of a device stays, device_check() reports it, and calls after it
 * return without a useful result. graph_end() reports the first error of a capture, which does not harm the device.
 * Above this floor, only transport_nccl.c includes this header. */
#pragma once

#include "gpu/device_backend.h"
#include "gpu/ops.h"

#include <cuda_runtime_api.h>

__BEGIN_DECLS

struct cublaslt_functions;
struct cuda_graph;
struct gemm_cuda;
struct attention_cudnn;

/* The least compute capability that is supported (8.0: Ampere). */
enum { CUDA_CAPABILITY_LEAST = 80 };

/* Memory that this device allocated or pinned: its copies need no staging. CUDA copies within a range only. */
struct cuda_range {
    char *base;
    size_t bytes;
    bool registered; /* a piece of host_pages_new()'s memory */
};

struct cuda_device {
    struct device_private private_; /* first: see device_backend.h */
    struct device device;
    int index;      /* of the GPU, among those visible */
    int capability; /* 10 · major + minor: 90 is Hopper */
    int sm_count;
    const struct cublaslt_functions *cublaslt;
    struct gemm_cuda *gemm;            /* owned */
    struct attention_cudnn *attention; /* owned; NULL: a build without cuDNN */
    struct cuda_graph *capturing;      /* NULL: work is run, not captured */
    pthread_mutex_t mutex;             /* protects the members below */
    struct cuda_range *ranges;         /* owned */
    int num_ranges;
    struct error error;         /* sticky; code STATUS_OK: none */
    struct error capture_error; /* of the capture in progress */
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

/* ---- errors -------------------------------------------------------------- */

/* STATUS_BROKEN: the device or its driver has failed. STATUS_PEER: a fault that programs cause, such as an illegal
 * address, and that broken GPUs cause too; the job may go on. STATUS_DEVICE: another call would have succeeded. */
enum status cuda_status_of(cudaError_t code);

/* Whether a library's message quotes CUDA's text of such a fault. */
bool cuda_text_is_suspect(const char *text);

/* Keeps the message, which names the call or the op, as the device's error if it is the first one. Any thread. */
void cuda_fail(struct cuda_device *cuda, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Any call of CUDA's may load code, or wait for the GPU: between the two it is a device call (core/heartbeat.h), also
 * on a GPU that hangs. cuda_call_end() returns the code. */
void cuda_call_begin(void);
cudaError_t cuda_call_end(cudaError_t code);
#define CUDA_CALL(call) (cuda_call_begin(), cuda_call_end(call))

/* The call's code, if not cudaSuccess, is the device's error (cuda_fail()), with `what` and CUDA's text and name of it.
 * Returns whether there was no error. */
#define cuda_check(cuda, call, what) cuda_check_code(cuda, CUDA_CALL(call), what)
bool cuda_check_code(struct cuda_device *cuda, cudaError_t code, const char *what);

/* The backend's entries. */
#define CUDA_DEVICE_ENTRY(type, name, parameters) type cuda_device_##name parameters;
DEVICE_BACKEND_LIST(CUDA_DEVICE_ENTRY)

/* ---- what they share ----------------------------------------------------- */

/* How many bytes from `memory` on the GPU reaches by itself, up to the end of their range; 0: none. Any thread. */
size_t cuda_reach(struct cuda_device *cuda, const void *memory);

/* Clears device memory that a library has allocated, and remembers it as the device's, until cuda_disown(). */
enum status cuda_adopt(struct cuda_device *cuda, void *memory, size_t bytes, struct error *err);
void cuda_disown(struct cuda_device *cuda, const void *memory);

/* The number of the capture in progress, from 1; 0: there is none. */
uint64_t cuda_capture_number(const struct cuda_device *cuda);

__END_DECLS
