/* SPDX-License-Identifier: Apache-2.0 */
/* device.h: a device: its memory, streams, events, graphs and properties, one interface for the CPU and CUDA.
 * gpu/open/device_open.h opens one. A stream is a queue of work that runs in order. CUDA: a cudaStream_t. CPU: the
 * compute stream runs work at once on the calling thread (an inline stream), a communication stream on a thread of its
 * own (a worker stream). Work of different streams is ordered by events only. */
#pragma once

#include "core/dtype.h"

__BEGIN_DECLS

struct op_table;
struct stream;
struct event;
struct graph;

enum device_kind { DEVICE_CPU, DEVICE_CUDA };

struct device {
    enum device_kind kind;
    char name[128];   /* "AMD EPYC …", "NVIDIA H200" */
    char id[64];      /* a GPU: its UUID, then zeros; else empty */
    char pci[16];     /* a GPU: its name on the PCI bus, as in /sys: "0000:3b:00.0"; else empty */
    char detail[384]; /* for people. CPU: instruction sets, the products of matrices; CUDA: capability, driver */
    int threads;      /* OpenMP threads of this rank (CUDA: for work on the host) */
    char capability[8], driver[32], runtime[16]; /* a GPU: "9.0"; the versions of driver and CUDA; else empty */
    int multiprocessors;                         /* of a GPU; CPU: 0 */
    unsigned avoided;                            /* device_avoid() */
    int multiprocessors_left;                    /* device_leave_multiprocessors() */
    char lost_kernel[128];             /* device_fix_kernels(): for what a kernel of the run's is not to be had here */
    size_t memory_bytes;               /* of the GPU; CPU: 0 */
    double peak_flops[DTYPE_COUNT];    /* data sheet: FLOP/s of products in that dtype; 0: unknown, or the CPU */
    double peak_bytes;                 /* data sheet: bytes/s of its memory; 0: unknown, or the CPU */
    double ceiling_flops[DTYPE_COUNT]; /* FLOP/s of the fastest product that ops_prepare() measured; 0: none */
    const struct op_table *ops;        /* the table of ops_profile.c while a profile is taken */
    const struct op_table *host_ops;   /* the CPU's, for work on host memory: on an inline stream of the CPU device, or
                                          in a host function with stream NULL (ops that need no workspace) */
    void (*examine)(struct device *device, struct error *err); /* whose fault an error is that programs cause as well:
                                          completes code and message, in any thread; NULL: nobody asks */
    void *private_; /* the backend's; begins with struct device_private (device_backend.h) */
};

/* Its streams and events must be freed before; may be NULL. */
void device_close(struct device *device);
RELEASER(device_drop, struct device, device_close)

/* Whether fp32 products on GPUs use TF32: by the environment's ZTRAIN_CUDA_TF32=1. STATUS_USAGE: neither 1 nor 0. */
enum status device_cuda_wants_tf32(bool *wants, struct error *err);

/* From now on matrix products leave `count` of the GPU's multiprocessors (not all) free for concurrent kernels, such as
 * NCCL's. Called before ops_prepare(), whose choices depend on it. Other devices ignore it. */
void device_leave_multiprocessors(struct device *device, int count);

/* From now on no measurement chooses a kernel: the libraries' first ones that are right and repeat are taken, so that
 * the choices follow from the model of GPU, the versions of its libraries, and shapes. Called before ops_prepare().
 * Other devices ignore it. STATUS_USAGE: the environment asks for a measurement. */
enum status device_fix_kernels(struct device *device, struct error *err);

/* Parts of a device that it can do without, slower: off where they compute something else (cmd/engine/gpu_test.h). */
enum device_part {
    DEVICE_EPILOGUES = 1 << 0, /* bias, GELU and bias gradients as epilogues of matrix products */
    DEVICE_GRAPHS = 1 << 1,    /* the caller launches none */
    DEVICE_PARTS_LAST = DEVICE_GRAPHS
};
const char *device_part_name(unsigned part); /* "fused epilogues of matrix products" */

/* From now on the device does without these parts (bits of enum device_part). */
void device_avoid(struct device *device, unsigned parts);

/* The kernels that ops_prepare() has chosen by measuring, as a text, without those of device_take_choices(): for ranks
 * on other machines (cmd/train/prepare.c) and a resume (cmd/run/run_kernels.c). Its first three lines name the format,
 * the GPU model and the library version, also before ops_prepare(). The caller's; NULL: no choices. */
char *device_choices(struct device *device);

/* Called before ops_prepare(), which takes these choices where the device is of the same model with the same libraries.
 * Of two choices for one product the later counts. complete: they are rank 0's, which has chosen for all ranks; where
 * it could not choose, this rank does not, either. */
void device_take_choices(struct device *device, const char *text, bool complete);

/* The size of the UUID by which CUDA identifies a GPU. */
enum { DEVICE_UUID_BYTES = 16 };

/* Zeroed device memory, 2 MiB-aligned if large, resident when the call returns. STATUS_DEVICE names the size and how
 * much memory is available. `bytes` of device_free() is the allocated size; memory may be NULL. */
enum status device_alloc(struct device *device, size_t bytes, void **memory, struct error *err);
void device_free(struct device *device, void *memory, size_t bytes);

/* Bytes that are free now, as the driver reports them. False: the device has no memory of its own (the CPU, a simulated
 * GPU), or the driver does not answer. */
bool device_available_bytes(struct device *device, size_t *bytes);

/* Zeroed host memory that the device reads and writes by itself (CUDA: pinned). Copies between it and device memory are
 * asynchronous: until one is done, the memory must not be freed, and a source must keep its value. */
enum status device_alloc_host(struct device *device, size_t bytes, void **memory, struct error *err);
void device_free_host(struct device *device, void *memory, size_t bytes);

/* Makes memory of host_pages_new() such memory, which device_free_host() frees. CUDA: in pieces, with a line in the log
 * where it takes long. STATUS_DEVICE: the system refuses, and the memory stays what it was. */
enum status device_pin(struct device *device, void *memory, size_t bytes, struct error *err);

enum stream_kind { STREAM_COMPUTE, /* CPU: inline */ STREAM_COMM /* CPU: worker thread */ };
enum status stream_new(struct device *device, enum stream_kind kind, struct stream **stream, struct error *err);
void stream_free(struct stream *stream); /* waits for its work */

/* Scratch memory of ops_workspace_bytes() for the ops on this stream, which may overwrite it: the caller's, 64-byte
 * aligned. */
void stream_set_workspace(struct stream *stream, void *memory, size_t bytes);
void *stream_workspace(const struct stream *stream, size_t *bytes);
struct device *stream_device(const struct stream *stream);

/* Runs function(argument) in stream order on a host thread: at once (inline stream), on the stream's worker, or as a
 * host function of CUDA. The `size` bytes of `argument` are copied. Blocks while the queue is full. */
enum { STREAM_ARGUMENT_MAX = 192 };
void stream_submit(struct stream *stream, void (*function)(void *argument), const void *argument, size_t size);

void stream_sync(struct stream *stream); /* the host waits for all work submitted so far */

/* dst and src are device or host memory. CUDA: pinned memory (device_alloc_host()) is copied by the GPU itself. Other
 * host memory is staged: as `src` it may be reused when the call returns; as `dst` it is written by a host thread in
 * stream order, and must not be freed before stream_sync(). */
void stream_copy(struct stream *stream, void *dst, const void *src, size_t bytes);
void stream_fill_zero(struct stream *stream, void *dst, size_t bytes);

/* Fills memory of the device with `count` values from -1 to 1, the same each time: a GPU computes with zeros faster,
 * because they need less power. For what is timed or compared; a simulated GPU has none. */
void stream_fill_noise(struct stream *stream, void *dst, enum dtype dtype, size_t count, uint32_t seed);

/* The same for a source in host memory, pinned or not, that work enqueued before may still write: it is read in stream
 * order, and must keep its value until then. dst is memory that the device reaches by itself. */
void stream_copy_in_order(struct stream *stream, void *dst, const void *src, size_t bytes);

/* An event marks a point in a stream: event_record() sets the mark; another stream (stream_wait()) or the host
 * (event_sync()) waits until the latest mark is reached, not at all if there is none. */
enum status event_new(struct device *device, struct event **event, struct error *err);
void event_free(struct event *event);
void event_record(struct event *event, struct stream *stream);
void stream_wait(struct stream *stream, struct event *event);
void event_sync(struct event *event);

/* An event that keeps the time at which its latest mark was reached. */
enum status event_new_timed(struct device *device, struct event **event, struct error *err);

/* Seconds between the latest marks of two timed events; false if one of them has not been reached yet. */
bool event_elapsed(struct event *from, struct event *to, double *seconds);

/* A graph is work of several streams that is captured once and then launched as a whole, which costs the host a few
 * microseconds. GPUs have graphs, the CPU device does not.
 *
 *     graph_begin(streams) ─ ops, copies, fills, events on these streams: recorded, not run ─ graph_end()
 *     graph_launch() ─ runs it: after all earlier work of the streams, before all later work
 *
 * Pointers and values are captured as they are: what differs between launches lies in device memory. Between begin and
 * end the host may not wait for the device, submit host functions, or copy from or to memory that the device does not
 * reach by itself; timed events are not recorded. An event recorded before the capture counts as reached in it, one
 * recorded in it as reached for the graph's streams once the capture has ended. */
bool device_has_graphs(const struct device *device);
bool device_is_capturing(const struct device *device);
enum { GRAPH_STREAMS_MAX = 4 };

/* Begins a capture; there is one at a time. The graph will be launched on streams[0]. */
enum status graph_begin(struct stream *const *streams, int count, struct graph **graph, struct error *err);

/* Ends the capture. An error: some work could not be captured; the graph is freed, and nothing has run. */
enum status graph_end(struct graph *graph, struct error *err);
void graph_launch(struct graph *graph);
void graph_free(struct graph *graph); /* its launches must be done; may be NULL */

/* The device's first asynchronous error (a failed launch or primitive), which stays. */
enum status device_check(struct device *device, struct error *err);

__END_DECLS
