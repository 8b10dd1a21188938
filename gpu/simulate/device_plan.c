/* device_plan.c: the backend of a GPU that need not exist.
 *
 * The head's logits take a share of its memory. Attention is planned with ztrain's kernels: the workspace of cuDNN's
 * plans is known only on the GPU itself.
 *
 * The host enqueues an event's record before it makes a stream wait for it, so one pass in the order of calls advances
 * all clocks correctly. */
#include "gpu/simulate/device_plan.h"

#include "core/memory.h"
#include "gpu/cuda/cuda_workspace.h"
#include "gpu/device_backend.h"
#include "gpu/op_cost.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Base address of a speed plan's device memory, outside every mapping. Host memory lies below it. */
static const uintptr_t no_memory = (uintptr_t)1 << 60;

struct plan_device {
    struct device_private private_; /* first: see device_backend.h */
    struct device device;
    struct plan_settings settings; /* gpu NULL: a memory plan */
    struct plan_times times;
    struct paper_disk disk;
    double disk_clock;                        /* when the disk has done what was submitted so far */
    struct plan_graph *capturing, *launching; /* NULL: none is */
};

struct plan_stream {
    struct stream base; /* first */
    enum stream_kind kind;
    double clock;
};

/* Ops of one stream. */
struct plan_graph {
    struct graph base; /* first */
    struct stream *stream;
    struct op_estimate *ops; /* owned */
    size_t count, room;
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

static void keep_estimate(struct plan_graph *graph, const struct op_estimate *estimate)
{
    if (graph->count == graph->room) {
        graph->room = 2 * graph->room + 16;
        graph->ops = memory_resize(graph->ops, graph->room * sizeof *graph->ops);
    }
    graph->ops[graph->count++] = *estimate;
}

static void run_estimate(struct stream *stream, const struct op_estimate *estimate)
{
    struct plan_device *plan = plan_device_of(stream->device);
    struct plan_stream *s = (struct plan_stream *)stream;
    if (plan->capturing) {
        keep_estimate(plan->capturing, estimate);
        return;
    }
    for (int i = 0; i < estimate->count; i++) {
        const struct op_part *part = &estimate->parts[i];
        double gaps = part->launches * launch_gap_estimate(&plan->settings);
        if (s->kind == STREAM_COMPUTE) { /* else a wait counts what is not hidden */
            count_time(plan, part->kind, part->launches, part->ceiling, part->expected);
            count_time(plan, PLAN_GAPS, 0, 0, gaps);
            plan->times.enqueued += plan->launching ? 0 : part->launches;
        }
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
    return cuda_workspace_bytes(limits, device->memory_bytes);
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

/* A run's host memory may be larger than this machine's: it reads as zeros and takes no memory before it is written. */
static enum status plan_alloc_host(struct device *device, size_t bytes, void **memory, struct error *err)
{
    void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED)
        return error_system(err, STATUS_DEVICE, errno, "%s: cannot map %zu bytes of host memory", device->name, bytes);
    *memory = mapped;
    return STATUS_OK;
}

static void plan_free_host(struct device *device, void *memory, size_t bytes)
{
    (void)device;
    munmap(memory, bytes);
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

/* Fills, and the copies of the compute stream, cost their launch: those of a step move little. */
static void plan_small_work(struct stream *stream)
{
    struct op_estimate estimate = {.parts = {{PLAN_GAPS, 0, 0, 1}}, .count = 1};
    if (((struct plan_stream *)stream)->kind == STREAM_COMPUTE)
        run_estimate(stream, &estimate);
}

/* Seconds until a copy between a GPU and its host moves its first byte, and until a host function runs: assumptions, of
 * the size that a driver's queue, a DMA engine and the wake-up of a thread take. They keep offload of small models from
 * looking free. */
static const double copy_start = 10e-6, host_function_start = 20e-6;

static void plan_copy(struct stream *stream, void *dst, const void *src, size_t bytes)
{
    const struct plan_settings *settings = &plan_device_of(stream->device)->settings;
    struct plan_stream *s = (struct plan_stream *)stream;
    const bool to_device = (uintptr_t)dst >= no_memory, from_device = (uintptr_t)src >= no_memory;
    plan_small_work(stream);
    if (s->kind == STREAM_COMPUTE || !settings->gpu)
        return;
    if (to_device != from_device)
        s->clock += copy_start + (double)bytes / plan_host_link(settings);
    else if (to_device) /* read and written */
        s->clock += 2 * (double)bytes / settings->gpu->bytes;
}

/* Host functions run on paper at once; the ops that they call take their time on the stream's clock. */
static struct plan_stream *host_stream; /* of the host function that is running; plans have one thread */

static void plan_submit(struct stream *stream, void (*function)(void *argument), const void *argument, size_t size)
{
    union {
        max_align_t align;
        char bytes[STREAM_ARGUMENT_MAX];
    } copy;
    memcpy(copy.bytes, argument, size);
    host_stream = (struct plan_stream *)stream;
    if (plan_device_of(stream->device)->settings.gpu)
        host_stream->clock += host_function_start;
    function(copy.bytes);
    host_stream = NULL;
}

static void count_host_op(struct op_cost cost)
{
    ASSERT(host_stream);
    host_stream->clock += cost.bytes / plan_host_memory(&plan_device_of(host_stream->base.device)->settings);
}

#define PLANNED_HOST_OP(op)                                                         \
    static void plan_host_##op(struct stream *stream, const struct op##_args *args) \
    {                                                                               \
        (void)stream;                                                               \
        count_host_op(op_cost_##op(args));                                          \
    }
OPS_LIST(PLANNED_HOST_OP)

#define PLANNED_HOST_ENTRY(op) .op = plan_host_##op,
static const struct op_table planned_host_ops = {OPS_LIST(PLANNED_HOST_ENTRY)};

/* A disk does one transfer after the other, in the order of calls. Where parameters and the optimizer's state are on
 * one disk, this is slower than in a run, in which the next forward's reads pass writes that were submitted earlier. */
static double submit_to_disk(void *owner, bool write, int64_t bytes)
{
    struct plan_device *plan = owner;
    const struct plan_settings *s = &plan->settings;
    const double seconds = (double)bytes / (write ? plan_disk_write(s) : plan_disk_read(s));
    ASSERT(host_stream && s->gpu);
    plan->disk_clock = fmax(plan->disk_clock, host_stream->clock) + seconds;
    plan->times.disk += seconds;
    return plan->disk_clock;
}

static void wait_for_disk(void *owner, double done)
{
    (void)owner;
    if (host_stream) /* else the file is closed at the end of the plan */
        host_stream->clock = fmax(host_stream->clock, done);
}

const struct paper_disk *device_plan_disk(struct device *device)
{
    return &plan_device_of(device)->disk;
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

/* Graphs of a block; those of a step have several streams and are not captured for a plan. */
static enum status plan_graph_begin(struct stream *const *streams, int count, struct graph **graph, struct error *err)
{
    struct plan_device *plan = plan_device_of(streams[0]->device);
    struct plan_graph *g = count == 1 ? calloc(1, sizeof *g) : NULL;
    if (!g)
        return error_set(err, STATUS_DEVICE, "%s: no graph: %s", streams[0]->device->name,
                         count == 1 ? "out of memory" : "it has several streams");
    *g = (struct plan_graph){.base = {.device = &plan->device}, .stream = streams[0]};
    plan->capturing = g;
    *graph = &g->base;
    return STATUS_OK;
}

static bool plan_is_capturing(const struct device *device)
{
    return ((const struct plan_device *)device->private_)->capturing != NULL;
}

static enum status plan_graph_end(struct graph *graph, struct error *err)
{
    (void)err;
    plan_device_of(graph->device)->capturing = NULL;
    return STATUS_OK;
}

static void plan_graph_launch(struct graph *graph)
{
    struct plan_graph *g = (struct plan_graph *)graph;
    struct plan_device *plan = plan_device_of(graph->device);
    plan->launching = g;
    for (size_t i = 0; i < g->count; i++)
        run_estimate(g->stream, &g->ops[i]);
    plan->launching = NULL;
    plan->times.enqueued++;
}

static void plan_graph_free(struct graph *graph)
{
    free(((struct plan_graph *)graph)->ops);
    free(graph);
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
    .stream_new = plan_stream_new,
    .stream_free = plan_stream_free,
    .submit = plan_submit,
    .sync = plan_sync,
    .copy = plan_copy,
    .copy_in_order = plan_copy,
    .fill_zero = plan_fill_zero,
    .event_new = plan_event_new,
    .event_elapsed = plan_event_elapsed,
    .event_free = plan_event_free,
    .event_record = plan_event_record,
    .event_wait = plan_event_wait,
    .event_sync = plan_event_sync,
    .is_capturing = plan_is_capturing,
    .graph_begin = plan_graph_begin,
    .graph_end = plan_graph_end,
    .graph_launch = plan_graph_launch,
    .graph_free = plan_graph_free,
};

static enum status open_plan(const struct plan_settings *settings, double gib, struct device **device,
                             struct error *err)
{
    struct plan_device *plan = calloc(1, sizeof *plan);
    if (!plan)
        return error_set(err, STATUS_DEVICE, "cannot plan for a GPU: out of memory");
    plan->private_.backend = &plan_backend;
    plan->settings = *settings;
    plan->disk = (struct paper_disk){.owner = plan, .submit = submit_to_disk, .wait = wait_for_disk};
    plan->device = (struct device){.kind = DEVICE_CUDA,
                                   .threads = 1,
                                   .memory_bytes = (size_t)(gib * (double)(1 << 30)),
                                   .ops = &planned_ops,
                                   .host_ops = &planned_host_ops,
                                   .private_ = plan};
    snprintf(plan->device.detail, sizeof plan->device.detail, "not here: for plans only");
    *device = &plan->device;
    return STATUS_OK;
}

/* Of a memory plan the device has no GPU in its settings. */
enum status device_plan_open(const char *option, struct device **device, struct error *err)
{
    const struct plan_settings none = {.gpu = NULL};
    struct gpu_model gpu;
    TRY(gpu_catalog_find(option ? option : gpu_catalog_usual, &gpu, err));
    TRY(open_plan(&none, gpu.memory_gib, device, err));
    snprintf((*device)->name, sizeof(*device)->name, "%s, assumed", gpu.name);
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
