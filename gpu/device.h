/* device.h: a device: its memory, streams, events, graphs and properties, with one interface for the CPU and for CUDA.
 * gpu/open/device_open.h opens one.
 *
 * A stream is a queue of work that runs in order. CUDA: a cudaStream_t. CPU: the compute stream runs work at once on
 * the calling thread (an inline stream), the communication stream runs it on a thread that it owns (a worker stream).
 * On both devices, work of different streams is ordered by events only. */
#pragma once

#include "core/dtype.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct op_table;
struct stream;
struct event;
struct graph;

enum device_kind { DEVICE_CPU, DEVICE_CUDA };

struct device {
    enum device_kind kind;
    char name[128];   /* "AMD EPYC …", "NVIDIA H200" */
    char id[64];      /* a GPU: its UUID, then zeros; else empty */
    char detail[384]; /* for people. CPU: instruction sets, the products of matrices; CUDA: capability, driver */
    int threads;      /* OpenMP threads of this rank (CUDA: for work on the host) */
    char capability[8], driver[32], runtime[16]; /* a GPU: "9.0"; the versions of driver and CUDA; else empty */
    int multiprocessors;                         /* of a GPU; CPU: 0 */
    size_t memory_bytes;                         /* of the GPU; CPU: 0 */
    double peak_flops[DTYPE_COUNT];    /* data sheet: FLOP/s of products in that dtype; 0: unknown, or the CPU */
    double peak_bytes;                 /* data sheet: bytes/s of its memory; 0: unknown, or the CPU */
    double ceiling_flops[DTYPE_COUNT]; /* FLOP/s of the fastest product that ops_prepare() measured; 0: none */
    const struct op_table *ops;        /* the table of ops_profile.c while a profile is taken */
    const struct op_table *host_ops;   /* the CPU's, for work on host memory: on an inline stream of the CPU device, or
                                          in a host function with stream NULL (ops that need no workspace). Set by
                                          device_open() */
    void *private_;                    /* the backend's; begins with struct device_private (device_backend.h) */
};

/* Its streams and events must be freed before; may be NULL. */
void device_close(struct device *device);

/* Whether fp32 products on GPUs use TF32: only if ZTRAIN_CUDA_TF32=1 is in the environment. STATUS_USAGE: its value is
 * neither 1 nor 0. */
enum status device_cuda_wants_tf32(bool *wants, struct error *err);

/* From now on matrix products leave `count` of the GPU's multiprocessors free for concurrent kernels, such as NCCL's.
 * To be called before ops_prepare(), whose choices depend on it; count is less than device->multiprocessors. Other
 * devices ignore it. */
void device_leave_multiprocessors(struct device *device, int count);

/* The size of the UUID by which CUDA identifies a GPU. */
enum { DEVICE_UUID_BYTES = 16 };

/* Allocates zeroed device memory, 2 MiB-aligned if large, resident when the call returns. A run allocates once. The
 * error (STATUS_DEVICE) names the size and how much memory is available. `bytes` of device_free() is the allocated
 * size; memory may be NULL. */
enum status device_alloc(struct device *device, size_t bytes, void **memory, struct error *err);
void device_free(struct device *device, void *memory, size_t bytes);

/* Bytes of the device's memory that are free now, as its driver reports them. False: the device has none of its own
 * (the CPU, a simulated GPU), or the driver does not answer. */
bool device_available_bytes(struct device *device, size_t *bytes);

/* Allocates zeroed host memory that the device can read and write by itself (CUDA: pinned; CPU: plain memory). Copies
 * between it and device memory are asynchronous in both directions: until a copy is done, the memory must not be freed,
 * and a source must keep its value. */
enum status device_alloc_host(struct device *device, size_t bytes, void **memory, struct error *err);
void device_free_host(struct device *device, void *memory, size_t bytes);

enum stream_kind { STREAM_COMPUTE, /* CPU: inline */ STREAM_COMM /* CPU: worker thread */ };
enum status stream_new(struct device *device, enum stream_kind kind, struct stream **stream, struct error *err);
void stream_free(struct stream *stream); /* waits for its work */

/* Scratch memory for the ops on this stream: each op may overwrite all of it. The caller owns it; ops_workspace_bytes()
 * returns its size, and it is 64-byte aligned. */
void stream_set_workspace(struct stream *stream, void *memory, size_t bytes);
void *stream_workspace(const struct stream *stream, size_t *bytes);
struct device *stream_device(const struct stream *stream);

/* Runs function(argument) in stream order on a host thread: at once (inline stream), on the stream's worker, or as a
 * host function of the CUDA stream. The `size` bytes of `argument` (at most STREAM_ARGUMENT_MAX) are copied; nothing is
 * allocated. Blocks while the queue is full. */
enum { STREAM_ARGUMENT_MAX = 192 };
void stream_submit(struct stream *stream, void (*function)(void *argument), const void *argument, size_t size);

void stream_sync(struct stream *stream); /* the host waits for all work submitted so far */

/* dst and src are device memory or host memory (the CPU makes no difference). CUDA: the GPU alone copies from and to
 * pinned memory (device_alloc_host()). Other host memory is staged: as `src` it may be reused when the call returns; as
 * `dst` it is written by a host thread in stream order, and must not be freed before the stream has been
 * synchronised. */
void stream_copy(struct stream *stream, void *dst, const void *src, size_t bytes);
void stream_fill_zero(struct stream *stream, void *dst, size_t bytes);

/* The same for a source in host memory that work enqueued before may still write: it is read in stream order, whether
 * it is pinned or not, and must keep its value until then. dst is memory that the device reaches by itself. */
void stream_copy_in_order(struct stream *stream, void *dst, const void *src, size_t bytes);

/* An event marks a point in a stream: event_record() sets the mark, stream_wait() makes another stream wait until the
 * latest mark is reached, event_sync() makes the host wait. Waiting for an event that was never recorded returns at
 * once. */
enum status event_new(struct device *device, struct event **event, struct error *err);
void event_free(struct event *event);
void event_record(struct event *event, struct stream *stream);
void stream_wait(struct stream *stream, struct event *event);
void event_sync(struct event *event);

/* An event that also keeps the time at which its latest mark was reached. */
enum status event_new_timed(struct device *device, struct event **event, struct error *err);

/* Seconds between the latest marks of two timed events; false if one of them has not been reached yet. */
bool event_elapsed(struct event *from, struct event *to, double *seconds);

/* A graph is work of several streams that is captured once and then launched as a whole, which costs the host a few
 * microseconds however many kernels it contains. GPUs have graphs (device_has_graphs()), the CPU device does not.
 *
 *     graph_begin(streams) ─ ops, copies, fills, events on these streams: recorded, not run ─ graph_end()
 *     graph_launch() ─ runs it: after all earlier work of the streams, before all later work
 *
 * Pointers and values are captured as they are: whatever differs between launches has to lie in device memory. Between
 * begin and end, the host may not wait for the device, submit host functions, or copy from or to memory that the device
 * cannot reach by itself; timed events are not recorded. An event recorded before the capture counts as reached in it;
 * an event recorded in a capture counts as reached for the graph's streams once the capture has ended. */
bool device_has_graphs(const struct device *device);
bool device_is_capturing(const struct device *device);
enum { GRAPH_STREAMS_MAX = 4 };

/* Begins a capture; there is one at a time. The graph will be launched on streams[0]. */
enum status graph_begin(struct stream *const *streams, int count, struct graph **graph, struct error *err);

/* Ends the capture. An error means that some work could not be captured: the graph is freed, nothing has run, and the
 * streams are as before. */
enum status graph_end(struct graph *graph, struct error *err);
void graph_launch(struct graph *graph);
void graph_free(struct graph *graph); /* its launches must be done; may be NULL */

/* The first asynchronous error of the device (a failed launch, a failed primitive), which stays; STATUS_OK if there is
 * none. */
enum status device_check(struct device *device, struct error *err);

#ifdef __cplusplus
}
#endif
