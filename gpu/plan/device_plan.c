/* device_plan.c: the backend of a GPU that need not exist.
 *
 * Its memory is assumed (the head's logits take a share of it). Attention is planned with ztrain's kernels: the
 * workspace of cuDNN's plans is known only on the GPU itself. */
#include "gpu/plan/device_plan.h"

#include "gpu/cuda_workspace.h"
#include "gpu/device_backend.h"

#include <stdio.h>
#include <stdlib.h>

enum { ASSUMED_GIB = 80 };

struct plan_device {
    struct device_private private_; /* first: see device_backend.h */
    struct device device;
};

static void plan_close(struct device *device)
{
    free(device->private_);
}

static size_t plan_workspace_bytes(struct device *device, const struct op_limits *limits)
{
    (void)device;
    return cuda_workspace_bytes(limits);
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

/* A GPU has graphs; a plan captures none. */
static enum status plan_graph_begin(struct stream *const *streams, int count, struct graph **graph, struct error *err)
{
    (void)count, (void)graph;
    return error_set(err, STATUS_DEVICE, "%s runs no graphs", streams[0]->device->name);
}

/* A plan does not call the entries that are left out. */
static const struct device_backend plan_backend = {
    .close = plan_close,
    .alloc = plan_alloc,
    .alloc_host = plan_alloc,
    .workspace_bytes = plan_workspace_bytes,
    .check = plan_check,
    .stream_new = plan_stream_new,
    .stream_free = plan_stream_free,
    .event_new = plan_event_new,
    .event_free = plan_event_free,
    .graph_begin = plan_graph_begin,
};

enum status device_plan_open(struct device **device, struct error *err)
{
    struct plan_device *plan = calloc(1, sizeof *plan);
    if (!plan)
        return error_set(err, STATUS_DEVICE, "cannot plan for a GPU: out of memory");
    plan->private_.backend = &plan_backend;
    plan->device =
        (struct device){.kind = DEVICE_CUDA, .threads = 1, .memory_bytes = (size_t)ASSUMED_GIB << 30, .private_ = plan};
    snprintf(plan->device.name, sizeof plan->device.name, "a GPU of %d GiB, assumed", (int)ASSUMED_GIB);
    snprintf(plan->device.detail, sizeof plan->device.detail, "not here: for plans only");
    *device = &plan->device;
    return STATUS_OK;
}
