/* device.h: one device: memory, streams, events, copies, properties. The same interface for the CPU and for CUDA.
 *
 * Streams are queues of work that runs in order. CUDA: cudaStream. CPU: an inline stream runs work at once on the
 * calling thread (the compute stream); a worker stream runs it on a thread of its own (the communication stream). Order
 * between streams comes from events only, on both devices. */
#ifndef ZTRAIN_GPU_DEVICE_H
#define ZTRAIN_GPU_DEVICE_H

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
    char id[64];      /* of a GPU: its UUID, zeros behind it; else empty */
    char detail[384]; /* instruction sets, GEMM library and version in use; compute capability, driver */
    int threads;      /* OpenMP threads of this rank (CUDA: for what its host does) */
    char capability[8], driver[32], runtime[16]; /* of a GPU: "9.0"; the driver's version; CUDA's. Else empty */
    size_t memory_bytes;                         /* CUDA: of the GPU; CPU: 0 */
    double peak_flops[DTYPE_COUNT];    /* products in that dtype by the data sheet, FLOP/s; 0: unknown, or the CPU */
    double peak_bytes;                 /* of its memory by the data sheet, bytes/s; 0: unknown, or the CPU */
    double ceiling_flops[DTYPE_COUNT]; /* the fastest product that ops_prepare() has seen; 0: none was measured */
    const struct op_table *ops;
    void *private_;
};

/* device_open() and its relatives open a device: gpu/open/device_open.h. */
void device_close(struct device *device);

/* Whether fp32 products on GPUs use TF32: only if ZTRAIN_CUDA_TF32=1 is in the environment. STATUS_USAGE: it is neither
 * 1 nor 0. */
enum status device_cuda_wants_tf32(bool *wants, struct error *err);

/* What tells GPUs apart: CUDA's UUID. */
enum { DEVICE_UUID_BYTES = 16 };

/* Zeroed memory, 2 MiB-aligned if large, touched (resident) before it returns; the only allocation of a run. Says how
 * much was asked for and how much there was if it fails (STATUS_DEVICE). */
enum status device_alloc(struct device *device, size_t bytes, void **memory, struct error *err);
void device_free(struct device *device, void *memory, size_t bytes);

/* Zeroed host memory that the device copies from and to by itself (CUDA: pinned; CPU: plain memory). A copy between it
 * and device memory is asynchronous in both directions: it must live, and what is copied from it must keep its value,
 * until the copy is done. */
enum status device_alloc_host(struct device *device, size_t bytes, void **memory, struct error *err);
void device_free_host(struct device *device, void *memory, size_t bytes);

/* Makes host memory that exists already (a segment shared with other processes) such memory, until it is unpinned. */
enum status device_pin_host(struct device *device, void *memory, size_t bytes, struct error *err);
void device_unpin_host(struct device *device, void *memory, size_t bytes);

enum stream_kind { STREAM_COMPUTE, /* CPU: inline */ STREAM_COMM /* CPU: worker thread */ };
enum status stream_new(struct device *device, enum stream_kind kind, struct stream **stream, struct error *err);
void stream_free(struct stream *stream); /* waits for its work */

/* Scratch memory that ops on this stream may use during one op (see ops_workspace_bytes). Caller's storage. */
void stream_set_workspace(struct stream *stream, void *memory, size_t bytes);
void *stream_workspace(const struct stream *stream, size_t *bytes);
struct device *stream_device(const struct stream *stream);

/* Runs function(argument) in stream order on a host thread: at once (inline), on the worker, or as a host function of
 * the CUDA stream. `argument` (at most STREAM_ARGUMENT_MAX bytes) is copied; nothing is allocated. Blocks while the
 * queue is full. */
enum { STREAM_ARGUMENT_MAX = 192 };
void stream_submit(struct stream *stream, void (*function)(void *argument), const void *argument, size_t size);

void stream_sync(struct stream *stream); /* the host waits until all work so far is done */

/* dst and src: device or host memory of this device (CPU: all the same). CUDA: pinned memory (device_alloc_host) is
 * copied by the GPU alone. Other host memory is staged: as `src` it may be reused when the call returns; as `dst` it is
 * written by a host thread in stream order, and must live until the stream has been synchronised. */
void stream_copy(struct stream *stream, void *dst, const void *src, size_t bytes);
void stream_fill_zero(struct stream *stream, void *dst, size_t bytes);

/* Events: record marks a point in a stream; wait makes another stream wait for the latest record (never recorded: no
 * wait). */
enum status event_new(struct device *device, struct event **event, struct error *err);
void event_free(struct event *event);
void event_record(struct event *event, struct stream *stream);
void stream_wait(struct stream *stream, struct event *event);
void event_sync(struct event *event);

/* An event that also keeps the time at which its latest record was reached. */
enum status event_new_timed(struct device *device, struct event **event, struct error *err);

/* Seconds between the latest records of two such events; false if one of them was not reached yet. */
bool event_elapsed(struct event *from, struct event *to, double *seconds);

/* Graphs: work of some streams that is captured once and then launched as one piece, which costs the host a few
 * microseconds however many kernels it is made of. A GPU has them (device_has_graphs()), the CPU device does not.
 *
 *     graph_begin(streams) ─ ops, copies, fills, events on these streams: recorded, not run ─ graph_end()
 *     graph_launch() ─ runs it; all that the streams were given before comes before it, what they are given later after
 *
 * Pointers and values are recorded as they are: what differs between launches has to lie in device memory. Between
 * begin and end the host may neither wait for the device nor give it host functions, nor memory to copy that it cannot
 * reach by itself; timed events are not recorded. An event of before counts as reached; one that was recorded in a
 * capture counts as reached for the graph's streams once it has ended. */
bool device_has_graphs(const struct device *device);
bool device_is_capturing(const struct device *device);
enum { GRAPH_STREAMS_MAX = 4 };

/* streams[0] is where the graph will be launched. One capture at a time. */
enum status graph_begin(struct stream *const *streams, int count, struct graph **graph, struct error *err);

/* An error: something could not be captured. The graph is freed, nothing has run, the streams are as before. */
enum status graph_end(struct graph *graph, struct error *err);
void graph_launch(struct graph *graph);
void graph_free(struct graph *graph); /* its launches have to be done; may be NULL */

/* Sticky asynchronous device error (a failed launch, a failed primitive): STATUS_OK while there is none. */
enum status device_check(struct device *device, struct error *err);

#ifdef __cplusplus
}
#endif

#endif
