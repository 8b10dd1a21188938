/* device_plan.c: the backend of a GPU that need not exist.
 *
 * The head's logits take a share of its memory. Attention is planned with ztrain's kernels: the workspace of cuDNN's
 * plans is known only on the GPU itself.
 *
 * The host enqueues an event's record before it makes a stream wait for it, so one pass in the order of calls advances
 * all clocks correctly. */
#include "gpu/plan/device_plan.h"

#include "gpu/cuda_workspace.h"
#include "gpu/device_backend.h"

#include <stdio.h>
#include <stdlib.h>

enum { ASSUMED_GIB = 80 };

/* Base address of a speed plan's memory, outside every mapping. */
static const uintptr_t no_memory = (uintptr_t)1 << 60;

struct plan_device {
    struct device_private private_; /* first: see device_backend.h */
    struct device device;
    struct plan_settings settings; /* gpu NULL: a memory plan */
    struct plan_times times;
};

struct plan_stream {
    struct stream base; /* first */
    enum stream_kind kind;
    double clock;
};

struct plan_event {
    struct event base; /* first */
    double clock;
};

static struct plan_device *plan_device_of(struct device *device)
{
    return device->private_;
}

/* ---- ops ----------------------------------------------------------------- */

static void count_time(struct plan_device *plan, enum plan_kind kind, int launches, double ceiling, double expected)
{
    plan->times.kinds[kind].launches += launches;
    plan->times.kinds[kind].ceiling += ceiling;
    plan->times.kinds[kind].expected += expected;
}

static void run_estimate(struct stream *stream, const struct op_estimate *estimate)
{
    struct plan_device *plan = plan_device_of(stream->device);
    struct plan_stream *s = (struct plan_stream *)stream;
    for (int i = 0; i < estimate->count; i++) {
        const struct op_part *part = &estimate->parts[i];
        double gaps = part->launches * launch_gap_estimate(&plan->settings);
        count_time(plan, part->kind, part->launches, part->ceiling, part->expected);
        count_time(plan, PLAN_GAPS, 0, 0, gaps);
        s->clock += part->expected + gaps;
    }
}

#define PLANNED_OP(op)                                                                    \
    static void plan_##op(struct stream *stream, const struct op##_args *args)            \
    {                                                                                     \
        const struct plan_settings *settings = &plan_device_of(stream->device)->settings; \
        struct op_estimate estimate = op_estimate_##op(settings, args);                   \
        run_estimate(stream, &estimate);                                                  \
    }
OPS_LIST(PLANNED_OP)

#define PLANNED_ENTRY(op) .op = plan_##op,
static const struct op_table planned_ops = {OPS_LIST(PLANNED_ENTRY)};

/* ---- memory -------------------------------------------------------------- */

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

static enum status plan_alloc(struct device *device, size_t bytes, void **memory, struct error *err)
{
    (void)bytes;
    if (!plan_device_of(device)->settings.gpu)
        return error_set(err, STATUS_DEVICE, "%s has no memory", device->name);
    *memory = (void *)no_memory;
    return STATUS_OK;
}

static void plan_free(struct device *device, void *memory, size_t bytes)
{
    (void)device, (void)memory, (void)bytes;
}

static enum status plan_alloc_host(struct device *device, size_t bytes, void **memory, struct error *err)
{
    *memory = calloc(1, bytes);
    return *memory ? STATUS_OK : error_set(err, STATUS_DEVICE, "%s: out of memory", device->name);
}

static void plan_free_host(struct device *device, void *memory, size_t bytes)
{
    (void)device, (void)bytes;
    free(memory);
}

/* ---- streams and events -------------------------------------------------- */

static enum status plan_stream_new(struct device *device, enum stream_kind kind, struct stream **stream,
                                   struct error *err)
{
    struct plan_stream *s = calloc(1, sizeof *s);
    if (!s)
        return error_set(err, STATUS_DEVICE, "out of memory");
    s->base.device = device;
    s->kind = kind;
    *stream = &s->base;
    return STATUS_OK;
}

static void plan_stream_free(struct stream *stream)
{
    free(stream);
}

static void plan_sync(struct stream *stream)
{
    (void)stream;
}

/* Small copies and fills cost their launch; those of a step move little. */
static void plan_small_work(struct stream *stream)
{
    struct op_estimate estimate = {.parts = {{PLAN_GAPS, 0, 0, 1}}, .count = 1};
    if (((struct plan_stream *)stream)->kind == STREAM_COMPUTE)
        run_estimate(stream, &estimate);
}

static void plan_copy(struct stream *stream, void *dst, const void *src, size_t bytes)
{
    (void)dst, (void)src, (void)bytes;
    plan_small_work(stream);
}

static void plan_fill_zero(struct stream *stream, void *dst, size_t bytes)
{
    (void)dst, (void)bytes;
    plan_small_work(stream);
}

static enum status plan_event_new(struct device *device, bool timed, struct event **event, struct error *err)
{
    (void)timed;
    struct plan_event *e = calloc(1, sizeof *e);
    if (!e)
        return error_set(err, STATUS_DEVICE, "out of memory");
    e->base.device = device;
    *event = &e->base;
    return STATUS_OK;
}

static void plan_event_free(struct event *event)
{
    free(event);
}

static void plan_event_record(struct event *event, struct stream *stream)
{
    ((struct plan_event *)event)->clock = ((struct plan_stream *)stream)->clock;
}

static void plan_event_wait(struct stream *stream, struct event *event)
{
    struct plan_stream *s = (struct plan_stream *)stream;
    double late = ((struct plan_event *)event)->clock - s->clock;
    if (late <= 0)
        return;
    if (s->kind == STREAM_COMPUTE)
        count_time(plan_device_of(stream->device), PLAN_EXPOSED, 0, 0, late);
    s->clock += late;
}

static void plan_event_sync(struct event *event)
{
    (void)event;
}

static bool plan_event_elapsed(struct event *from, struct event *to, double *seconds)
{
    *seconds = ((struct plan_event *)to)->clock - ((struct plan_event *)from)->clock;
    return true;
}

/* A GPU has graphs; a plan captures none. */
static enum status plan_graph_begin(struct stream *const *streams, int count, struct graph **graph, struct error *err)
{
    (void)count, (void)graph;
    return error_set(err, STATUS_DEVICE, "%s runs no graphs", streams[0]->device->name);
}

void device_plan_communicate(struct stream *stream, double seconds)
{
    struct plan_device *plan = plan_device_of(stream->device);
    ASSERT(((struct plan_stream *)stream)->kind == STREAM_COMM);
    plan->times.communication += seconds;
    ((struct plan_stream *)stream)->clock += seconds;
}

void device_plan_times(struct device *device, struct plan_times *times)
{
    *times = plan_device_of(device)->times;
    times->seconds = 0;
    for (int k = 0; k < PLAN_KIND_COUNT; k++)
        times->seconds += times->kinds[k].expected;
}

void device_plan_reset(struct device *device)
{
    plan_device_of(device)->times = (struct plan_times){0};
}

void device_plan_set(struct device *device, const struct plan_settings *settings)
{
    ASSERT(settings->gpu == plan_device_of(device)->settings.gpu);
    plan_device_of(device)->settings = *settings;
}

/* ---- opening ------------------------------------------------------------- */

/* A plan does not call the entries that are left out. */
static const struct device_backend plan_backend = {
    .close = plan_close,
    .alloc = plan_alloc,
    .free = plan_free,
    .alloc_host = plan_alloc_host,
    .free_host = plan_free_host,
    .workspace_bytes = plan_workspace_bytes,
    .check = plan_check,
    .stream_new = plan_stream_new,
    .stream_free = plan_stream_free,
    .sync = plan_sync,
    .copy = plan_copy,
    .fill_zero = plan_fill_zero,
    .event_new = plan_event_new,
    .event_elapsed = plan_event_elapsed,
    .event_free = plan_event_free,
    .event_record = plan_event_record,
    .event_wait = plan_event_wait,
    .event_sync = plan_event_sync,
    .graph_begin = plan_graph_begin,
};

static enum status open_plan(const struct plan_settings *settings, double gib, struct device **device,
                             struct error *err)
{
    struct plan_device *plan = calloc(1, sizeof *plan);
    if (!plan)
        return error_set(err, STATUS_DEVICE, "cannot plan for a GPU: out of memory");
    plan->private_.backend = &plan_backend;
    plan->settings = *settings;
    plan->device = (struct device){.kind = DEVICE_CUDA,
                                   .threads = 1,
                                   .memory_bytes = (size_t)(gib * (double)(1 << 30)),
                                   .ops = &planned_ops,
                                   .private_ = plan};
    snprintf(plan->device.detail, sizeof plan->device.detail, "not here: for plans only");
    *device = &plan->device;
    return STATUS_OK;
}

enum status device_plan_open(struct device **device, struct error *err)
{
    const struct plan_settings none = {.gpu = NULL};
    TRY(open_plan(&none, ASSUMED_GIB, device, err));
    snprintf((*device)->name, sizeof(*device)->name, "a GPU of %d GiB, assumed", (int)ASSUMED_GIB);
    return STATUS_OK;
}

enum status device_plan_open_timed(const struct plan_settings *settings, struct device **device, struct error *err)
{
    const struct gpu_model *gpu = settings->gpu;
    TRY(open_plan(settings, gpu->memory_gib, device, err));
    struct device *d = *device;
    snprintf(d->name, sizeof d->name, "%s, assumed", gpu->name);
    d->peak_bytes = gpu->bytes;
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++)
        d->peak_flops[dtype] = gpu->flops[dtype];
    return STATUS_OK;
}
