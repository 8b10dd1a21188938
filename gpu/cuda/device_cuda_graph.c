/* SPDX-License-Identifier: Apache-2.0 */
/* device_cuda_graph.c: graphs on an NVIDIA GPU (device.h): CUDA's stream capture over several streams.
 *
 *     begin     streams[0] starts to capture; the others join the capture by waiting for an event of streams[0] (fork)
 *     end       streams[0] waits for an event of each of the others (join); the captured work is instantiated
 *     launch    streams[0] waits for the others and launches, and the others wait for streams[0]: work enqueued on any
 *               of them before or after is ordered with the whole graph, and no event needs to cross its border
 *
 * CUDA calls of other threads do not disturb a capture (cudaStreamCaptureModeThreadLocal). Its end leaves the streams
 * ordered as a launch would: events recorded before or during it count as reached even if it failed. */
#include "gpu/cuda/device_cuda.h"

#include "core/core.h"

struct cuda_graph {
    struct graph base; /* first */
    uint64_t number;   /* of the capture, counted from 1 */
    int count;
    struct cuda_stream *streams[GRAPH_STREAMS_MAX]; /* borrowed */
    cudaEvent_t points[GRAPH_STREAMS_MAX];          /* a point of each stream */
    cudaGraphExec_t executable;                     /* NULL: not captured yet */
};

static struct cuda_graph *cuda_graph_of(struct graph *graph)
{
    return (struct cuda_graph *)graph;
}

bool cuda_device_is_capturing(const struct device *device)
{
    return ((const struct cuda_device *)device->private_)->capturing != NULL;
}

uint64_t cuda_capture_number(const struct cuda_device *cuda)
{
    return cuda->capturing ? cuda->capturing->number : 0;
}

static void set_capturing(struct cuda_device *cuda, struct cuda_graph *graph)
{
    LOCKED(&cuda->mutex);
    cuda->capturing = graph;
}

/* Later work of the first stream comes after all work so far of the others. */
static void join_streams(struct cuda_graph *g)
{
    struct cuda_device *cuda = g->base.device->private_;
    for (int i = 1; i < g->count; i++) {
        cuda_check(cuda, cudaEventRecord(g->points[i], g->streams[i]->handle), "joining a graph's streams");
        cuda_check(cuda, cudaStreamWaitEvent(g->streams[0]->handle, g->points[i], 0), "joining a graph's streams");
    }
}

/* Later work of the others comes after all work so far of the first stream. */
static void fork_streams(struct cuda_graph *g)
{
    struct cuda_device *cuda = g->base.device->private_;
    cuda_check(cuda, cudaEventRecord(g->points[0], g->streams[0]->handle), "forking a graph's streams");
    for (int i = 1; i < g->count; i++)
        cuda_check(cuda, cudaStreamWaitEvent(g->streams[i]->handle, g->points[0], 0), "forking a graph's streams");
}

void cuda_device_graph_free(struct graph *graph)
{
    struct cuda_graph *g = cuda_graph_of(graph);
    for (int i = 0; i < g->count; i++)
        if (g->points[i]) CUDA_CALL(cudaEventDestroy(g->points[i]));
    if (g->executable) cuda_check(g->base.device->private_, cudaGraphExecDestroy(g->executable), "freeing a graph");
    free(g);
}

enum status cuda_device_graph_begin(struct stream *const *streams, int count, struct graph **graph, struct error *err)
{
    static uint64_t captures; /* only the thread that uses the device counts */
    struct cuda_device *cuda = cuda_device_of(streams[0]);
    cudaError_t code = cudaSuccess;
    struct cuda_graph *g = memory_zeroed(1, sizeof *g);
    g->base.device = streams[0]->device;
    g->number = ++captures;
    g->count = count;
    for (int i = 0; i < count; i++) {
        g->streams[i] = cuda_stream_of(streams[i]);
        if (code == cudaSuccess) code = CUDA_CALL(cudaEventCreateWithFlags(&g->points[i], cudaEventDisableTiming));
    }
    if (code == cudaSuccess)
        code = CUDA_CALL(cudaStreamBeginCapture(g->streams[0]->handle, cudaStreamCaptureModeThreadLocal));
    if (code != cudaSuccess) {
        cudaGetLastError(); /* not a failure of the device */
        cuda_device_graph_free(&g->base);
        return error_set(err, STATUS_DEVICE, "cannot capture a graph on GPU %d: %s", cuda->index,
                         cudaGetErrorString(code));
    }
    for (int i = 0; i < count; i++) g->streams[i]->in_graphs = true;
    cuda->capture_error.code = STATUS_OK;
    set_capturing(cuda, g);
    fork_streams(g);
    *graph = &g->base;
    return STATUS_OK;
}

enum status cuda_device_graph_end(struct graph *graph, struct error *err)
{
    struct cuda_graph *g = cuda_graph_of(graph);
    struct cuda_device *cuda = g->base.device->private_;
    cudaGraph_t captured = NULL;
    join_streams(g);
    cuda_check(cuda, cudaStreamEndCapture(g->streams[0]->handle, &captured), "the end of a capture");
    if (cuda->capture_error.code == STATUS_OK) {
        SLOW("instantiating a graph", NULL, -1); /* seconds for the thousands of nodes of a large model's step */
        cuda_check(cuda, cudaGraphInstantiate(&g->executable, captured, 0), "instantiating a graph");
    }
    if (captured) CUDA_CALL(cudaGraphDestroy(captured));
    set_capturing(cuda, NULL);
    join_streams(g);
    fork_streams(g);
    if (cuda->capture_error.code == STATUS_OK) return STATUS_OK;
    cudaGetLastError(); /* a failed capture is not a failure of the device */
    error_set(err, STATUS_DEVICE, "%s", cuda->capture_error.text);
    error_prefix(err, "a graph cannot be captured");
    cuda_device_graph_free(graph);
    return STATUS_DEVICE;
}

void cuda_device_graph_launch(struct graph *graph)
{
    struct cuda_graph *g = cuda_graph_of(graph);
    ASSERT(g->executable);
    join_streams(g);
    cuda_check(g->base.device->private_, cudaGraphLaunch(g->executable, g->streams[0]->handle), "launching a graph");
    /* No cuda_stream_mark(), which may wait for the GPU: callers hold NCCL's mutex, and record an event themselves. */
    fork_streams(g);
}
