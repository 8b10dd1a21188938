/* device_cuda_plan.c: a GPU that need not exist, for memory plans: it answers how much memory ops need, and runs
 * nothing.
 *
 * The properties of the GPU are assumed, which the device's name states: its memory (of which the head's logits take a
 * share) and its number of multiprocessors. Attention is planned with ztrain's kernels: the workspace of cuDNN's plans
 * is known only on the GPU itself. */
#include "gpu/cuda/device_cuda.h"
#include "gpu/cuda/device_cuda_graph.h"
#include "gpu/cuda/device_cuda_open.h"
#include "gpu/cuda/ops_cuda.h"

#include <stdio.h>
#include <stdlib.h>

enum { ASSUMED_GIB = 80, ASSUMED_SMS = 132, ASSUMED_CAPABILITY = 90 };

static void plan_close(struct device *device)
{
    struct cuda_device *cuda = device->private_;
    pthread_mutex_destroy(&cuda->mutex);
    free(cuda);
}

static enum status plan_check(struct device *device, struct error *err)
{
    (void)device, (void)err;
    return STATUS_OK;
}

static enum status plan_stream_new(struct device *device, enum stream_kind kind, struct stream **stream,
                                   struct error *err)
{
    (void)kind;
    struct stream *s = *stream = calloc(1, sizeof *s);
    if (!s)
        return error_set(err, STATUS_DEVICE, "out of memory");
    s->device = device;
    return STATUS_OK;
}

static void plan_stream_free(struct stream *stream)
{
    free(stream);
}

static enum status plan_event_new(struct device *device, bool timed, struct event **event, struct error *err)
{
    (void)timed;
    struct event *e = *event = calloc(1, sizeof *e);
    if (!e)
        return error_set(err, STATUS_DEVICE, "out of memory");
    e->device = device;
    return STATUS_OK;
}

static void plan_event_free(struct event *event)
{
    free(event);
}

static enum status plan_alloc(struct device *device, size_t bytes, void **memory, struct error *err)
{
    (void)bytes, (void)memory;
    return error_set(err, STATUS_DEVICE, "%s has no memory", device->name);
}

/* A plan does not call the entries that are left out. */
static const struct device_backend plan_backend = {
    .close = plan_close,
    .alloc = plan_alloc,
    .alloc_host = plan_alloc,
    .workspace_bytes = ops_cuda_workspace_bytes,
    .check = plan_check,
    .stream_new = plan_stream_new,
    .stream_free = plan_stream_free,
    .event_new = plan_event_new,
    .event_free = plan_event_free,
    .is_capturing = cuda_is_capturing,
    .graph_begin = cuda_graph_begin,
};

enum status device_cuda_open_to_plan(struct device **device, struct error *err)
{
    struct cuda_device *cuda = calloc(1, sizeof *cuda);
    if (!cuda)
        return error_set(err, STATUS_DEVICE, "cannot plan for a GPU: out of memory");
    pthread_mutex_init(&cuda->mutex, NULL);
    cuda->private_.backend = &plan_backend;
    cuda->capability = ASSUMED_CAPABILITY;
    cuda->sm_count = ASSUMED_SMS;
    cuda->device = (struct device){.kind = DEVICE_CUDA,
                                   .threads = 1,
                                   .memory_bytes = (size_t)ASSUMED_GIB << 30,
                                   .ops = &ops_cuda_table,
                                   .private_ = cuda};
    snprintf(cuda->device.name, sizeof cuda->device.name, "a GPU of %d GiB, assumed", (int)ASSUMED_GIB);
    snprintf(cuda->device.detail, sizeof cuda->device.detail, "not here: for plans only");
    *device = &cuda->device;
    return STATUS_OK;
}
