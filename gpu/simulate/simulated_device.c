/* SPDX-License-Identifier: Apache-2.0 */
/* simulated_device.c: the host enqueues an event's record before a stream waits for it, so one pass in the order of
 * calls advances all clocks. Attention has the workspace of ztrain's kernels: only the GPU knows cuDNN's. */
#include "gpu/simulate/simulated_device.h"

#include "core/memory.h"
#include "gpu/cuda/cuda_workspace.h"
#include "gpu/device_backend.h"
#include "gpu/op_cost.h"

#include <sys/mman.h>

/* Of device memory with clocks, outside every mapping. Host memory lies below it. */
static const uintptr_t no_memory = (uintptr_t)1 << 60;

struct simulated_disk {
    struct disk disk;                   /* first */
    const struct assumed_gpu *settings; /* borrowed */
    double *host_clock;                 /* of the host function that is running; NULL: none is */
    double clock;                       /* when what was submitted so far is done */
    double seconds;                     /* of all transfers */
};

struct simulated_device {
    struct device_private private_; /* first: see device_backend.h */
    struct device device;
    struct assumed_gpu settings; /* gpu NULL: a memory plan */
    struct simulated_times times;
    double beside; /* seconds of collectives that the compute stream will run beside */
    struct simulated_disk disk;
    struct simulated_graph *capturing, *launching; /* NULL: none is */
};

struct simulated_stream {
    struct stream base; /* first */
    enum stream_kind kind;
    double clock;
};

struct simulated_graph {
    struct graph base; /* first */
    struct stream *stream;
    struct op_estimate *ops; /* owned */
    size_t count;
};

struct simulated_event {
    struct event base; /* first */
    double clock;
};

static struct simulated_device *simulated_device_of(struct device *device)
{
    return device->private_;
}

/* ---- ops ----------------------------------------------------------------- */

static void count_time(struct simulated_device *d, enum time_kind kind, int launches, double ceiling, double expected)
{
    d->times.kinds[kind].launches += launches;
    d->times.kinds[kind].ceiling += ceiling;
    d->times.kinds[kind].expected += expected;
}

static void keep_estimate(struct simulated_graph *graph, const struct op_estimate *estimate)
{
    graph->ops = memory_grow(graph->ops, graph->count, sizeof *graph->ops);
    graph->ops[graph->count++] = *estimate;
}

/* Kernels beside a collective lack the multiprocessors that NCCL's blocks hold, as many as sm_count_target leaves free.
 * Products lose nothing where power would limit the rest of the multiprocessors as well. */
static void slow_beside_collectives(struct simulated_device *d, struct simulated_stream *s, const struct op_part *part)
{
    const struct gpu_model *gpu = d->settings.gpu;
    const double blocks = 16, left = gpu->sms - blocks, overlap = fmin(d->beside, part->expected);
    const bool product = part->kind <= TIME_GEMM_WGRAD || part->kind == TIME_HEAD;
    d->beside -= overlap;
    if (product && gpu->rates.sustained < gpu->rates.clock * left / gpu->sms) return;
    const double lost = overlap * blocks / gpu->sms;
    s->clock += lost;
    count_time(d, TIME_EXPOSED, 0, 0, lost);
}

static const double gap_seconds = 1.5e-6; /* between two kernels */

static void simulated_run_estimate(struct stream *stream, const struct op_estimate *estimate)
{
    struct simulated_device *d = simulated_device_of(stream->device);
    struct simulated_stream *s = (struct simulated_stream *)stream;
    if (d->capturing) {
        keep_estimate(d->capturing, estimate);
        return;
    }
    for (const struct op_part *part = estimate->parts; part < estimate->parts + estimate->count; part++) {
        const double gaps = gpu_assumes(&d->settings, ASSUME_NO_GAPS) ? 0 : part->launches * gap_seconds;
        if (s->kind == STREAM_COMPUTE) { /* else a wait counts what is not hidden */
            count_time(d, part->kind, part->launches, part->ceiling, part->expected);
            count_time(d, TIME_GAPS, 0, 0, gaps);
            d->times.enqueued += d->launching ? 0 : part->launches;
            slow_beside_collectives(d, s, part);
        }
        s->clock += part->expected + gaps;
    }
}

#define SIMULATED_OP(op)                                                                     \
    static void simulated_##op(struct stream *stream, const struct op##_args *args)          \
    {                                                                                        \
        const struct assumed_gpu *settings = &simulated_device_of(stream->device)->settings; \
        struct op_estimate estimate = op_estimate_##op(settings, args);                      \
        simulated_run_estimate(stream, &estimate);                                           \
    }
OPS_LIST(SIMULATED_OP)

#define SIMULATED_ENTRY(op) .op = simulated_##op,
static const struct op_table simulated_ops = {OPS_LIST(SIMULATED_ENTRY)};

/* ---- memory -------------------------------------------------------------- */

static void simulated_close(struct device *device)
{
    free(device->private_);
}

static size_t simulated_workspace_bytes(struct device *device, const struct op_limits *limits)
{
    return cuda_workspace_bytes(limits, device->memory_bytes);
}

static enum status simulated_alloc(struct device *device, size_t bytes, void **memory, struct error *err)
{
    (void)bytes;
    if (!simulated_device_of(device)->settings.gpu)
        return error_set(err, STATUS_DEVICE, "%s has no memory", device->name);
    *memory = (void *)no_memory;
    return STATUS_OK;
}

/* A run's host memory may be larger than this machine's: it takes none before it is written. */
static enum status simulated_alloc_host(struct device *device, size_t bytes, void **memory, struct error *err)
{
    void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED)
        return error_system(err, STATUS_DEVICE, errno, "%s: cannot map %zu bytes of host memory", device->name, bytes);
    *memory = mapped;
    return STATUS_OK;
}

static void simulated_free_host(struct device *device, void *memory, size_t bytes)
{
    (void)device;
    munmap(memory, bytes);
}

/* ---- streams and events -------------------------------------------------- */

static enum status simulated_stream_new(struct device *device, enum stream_kind kind, struct stream **stream,
                                        struct error *err)
{
    (void)err;
    struct simulated_stream *s = memory_zeroed(1, sizeof *s);
    s->base.device = device;
    s->kind = kind;
    *stream = &s->base;
    return STATUS_OK;
}

static void simulated_stream_free(struct stream *stream)
{
    free(stream);
}

/* Fills, and the copies of the compute stream, cost their launch: those of a step move little. */
static void simulated_small_work(struct stream *stream)
{
    struct op_estimate estimate = {.parts = {{TIME_GAPS, 0, 0, 1}}, .count = 1};
    if (((struct simulated_stream *)stream)->kind == STREAM_COMPUTE) simulated_run_estimate(stream, &estimate);
}

/* Assumed seconds until a copy between GPU and host moves its first byte, and until a host function runs. They keep
 * offload of small models from looking free. */
static const double copy_start = 10e-6, host_function_start = 20e-6;

static void simulated_copy(struct stream *stream, void *dst, const void *src, size_t bytes)
{
    const struct assumed_gpu *settings = &simulated_device_of(stream->device)->settings;
    struct simulated_stream *s = (struct simulated_stream *)stream;
    const bool to_device = (uintptr_t)dst >= no_memory, from_device = (uintptr_t)src >= no_memory;
    simulated_small_work(stream);
    if (s->kind == STREAM_COMPUTE || !settings->gpu) return;
    if (to_device != from_device)
        s->clock += copy_start + (double)bytes / simulated_host_link(settings);
    else if (to_device) /* read and written */
        s->clock += 2 * (double)bytes / settings->gpu->bytes;
}

/* Host functions run at once; the ops that they call take their time on the stream's clock. */
static struct simulated_stream *host_stream; /* of the host function that is running; a simulation has one thread */

static void simulated_submit(struct stream *stream, void (*function)(void *argument), const void *argument, size_t size)
{
    union {
        max_align_t align;
        char bytes[STREAM_ARGUMENT_MAX];
    } copy;
    struct simulated_device *d = simulated_device_of(stream->device);
    memcpy(copy.bytes, argument, size);
    host_stream = (struct simulated_stream *)stream;
    if (d->settings.gpu) host_stream->clock += host_function_start;
    d->disk.host_clock = &host_stream->clock;
    function(copy.bytes);
    d->disk.host_clock = NULL;
    host_stream = NULL;
}

static void simulated_count_host_op(struct op_cost cost)
{
    ASSERT(host_stream);
    host_stream->clock += cost.bytes / simulated_host_memory(&simulated_device_of(host_stream->base.device)->settings);
}

#define SIMULATED_HOST_OP(op)                                                            \
    static void simulated_host_##op(struct stream *stream, const struct op##_args *args) \
    {                                                                                    \
        (void)stream;                                                                    \
        simulated_count_host_op(op_cost_##op(args));                                     \
    }
OPS_LIST(SIMULATED_HOST_OP)

#define SIMULATED_HOST_ENTRY(op) .op = simulated_host_##op,
static const struct op_table simulated_host_ops = {OPS_LIST(SIMULATED_HOST_ENTRY)};

/* ---- the disk ------------------------------------------------------------ */

struct simulated_file {
    struct disk_file base; /* first */
    struct simulated_disk *disk;
};

/* Bytes/s of one rank. The usual rates: Samsung announced the PM9A3 (U.2, PCIe 4 x 4), a usual data-centre SSD, with up
 * to 6,500 MB/s read and 3,500 MB/s written in sequence (Open Compute Summit, May 2020). */
double simulated_disk_rate(const struct assumed_gpu *s, bool write)
{
    const double set = write ? s->disk_write : s->disk_read, usual = write ? 3.5e9 : 6.5e9;
    return (set > 0 ? set : usual) / (s->node_ranks > 0 ? s->node_ranks : 1);
}

static void simulated_transfer(struct disk_file *file, struct io_request *request, const struct io_transfer *transfer)
{
    struct simulated_disk *disk = ((struct simulated_file *)file)->disk;
    const double seconds = (double)transfer->bytes / simulated_disk_rate(disk->settings, transfer->write);
    ASSERT(disk->host_clock && disk->settings->gpu);
    disk->clock = fmax(disk->clock, *disk->host_clock) + seconds;
    disk->seconds += seconds;
    request->active = true;
    request->done_at = disk->clock;
}

static enum status simulated_wait(struct disk_file *file, struct io_request *request, struct error *err)
{
    double *host_clock = ((struct simulated_file *)file)->disk->host_clock;
    (void)err;
    if (request->active && host_clock) /* else the file is being closed */
        *host_clock = fmax(*host_clock, request->done_at);
    request->active = false;
    return STATUS_OK;
}

static void simulated_file_close(struct disk_file *file)
{
    free(file);
}

static enum status simulated_file_open(const struct disk *disk, const struct disk_file_config *config,
                                       struct disk_file **out, struct error *err)
{
    (void)config, (void)err;
    struct simulated_file *file = memory_zeroed(1, sizeof *file);
    file->base = (struct disk_file){simulated_transfer, simulated_wait, simulated_file_close};
    file->disk = (struct simulated_disk *)(uintptr_t)disk;
    *out = &file->base;
    return STATUS_OK;
}

const struct disk *simulated_device_disk(struct device *device)
{
    return &simulated_device_of(device)->disk.disk;
}

static void simulated_fill_zero(struct stream *stream, void *dst, size_t bytes)
{
    (void)dst, (void)bytes;
    simulated_small_work(stream);
}

static enum status simulated_event_new(struct device *device, bool timed, struct event **event, struct error *err)
{
    (void)timed, (void)err;
    struct simulated_event *e = memory_zeroed(1, sizeof *e);
    e->base.device = device;
    *event = &e->base;
    return STATUS_OK;
}

static void simulated_event_free(struct event *event)
{
    free(event);
}

static void simulated_event_record(struct event *event, struct stream *stream)
{
    ((struct simulated_event *)event)->clock = ((struct simulated_stream *)stream)->clock;
}

static void simulated_event_wait(struct stream *stream, struct event *event)
{
    struct simulated_stream *s = (struct simulated_stream *)stream;
    double late = ((struct simulated_event *)event)->clock - s->clock;
    if (late <= 0) return;
    if (s->kind == STREAM_COMPUTE) {
        struct simulated_device *d = simulated_device_of(stream->device);
        count_time(d, TIME_EXPOSED, 0, 0, late);
        d->beside = fmax(0, d->beside - late); /* nothing ran beside that part of the collectives */
    }
    s->clock += late;
}

static bool simulated_event_elapsed(struct event *from, struct event *to, double *seconds)
{
    *seconds = ((struct simulated_event *)to)->clock - ((struct simulated_event *)from)->clock;
    return true;
}

static enum status simulated_graph_begin(struct stream *const *on, int count, struct graph **out, struct error *err)
{
    struct simulated_device *d = simulated_device_of(on[0]->device);
    if (count > 1) return error_set(err, STATUS_DEVICE, "%s: no graph: it has several streams", on[0]->device->name);
    struct simulated_graph *g = memory_zeroed(1, sizeof *g);
    *g = (struct simulated_graph){.base = {.device = &d->device}, .stream = on[0]};
    d->capturing = g;
    *out = &g->base;
    return STATUS_OK;
}

static bool simulated_is_capturing(const struct device *device)
{
    return ((const struct simulated_device *)device->private_)->capturing != NULL;
}

static enum status simulated_graph_end(struct graph *graph, struct error *err)
{
    (void)err;
    simulated_device_of(graph->device)->capturing = NULL;
    return STATUS_OK;
}

static void simulated_graph_launch(struct graph *graph)
{
    struct simulated_graph *g = (struct simulated_graph *)graph;
    struct simulated_device *d = simulated_device_of(graph->device);
    d->launching = g;
    for (size_t i = 0; i < g->count; i++) simulated_run_estimate(g->stream, &g->ops[i]);
    d->launching = NULL;
    d->times.enqueued++;
}

static void simulated_graph_free(struct graph *graph)
{
    free(((struct simulated_graph *)graph)->ops);
    free(graph);
}

void simulated_device_communicate(struct stream *stream, double seconds)
{
    struct simulated_device *d = simulated_device_of(stream->device);
    ASSERT(((struct simulated_stream *)stream)->kind == STREAM_COMM);
    d->times.communication += seconds;
    d->beside += seconds;
    ((struct simulated_stream *)stream)->clock += seconds;
}

void simulated_device_reduce_ordered(struct stream *on, double time, const struct sum_ranks_args *sum, double unordered)
{
    struct simulated_device *d = simulated_device_of(on->device);
    const struct simulated_stream *s = (const struct simulated_stream *)on;
    const double begun = s->clock;
    simulated_device_communicate(on, time);
    simulated_sum_ranks(on, sum);
    d->times.ordered += s->clock - begun;
    d->times.unordered += unordered;
}

void simulated_device_times(struct device *device, struct simulated_times *times)
{
    *times = simulated_device_of(device)->times;
    times->disk = simulated_device_of(device)->disk.seconds;
    times->seconds = 0;
    for (int k = 0; k < TIME_KIND_COUNT; k++) times->seconds += times->kinds[k].expected;
}

void simulated_device_reset(struct device *device)
{
    simulated_device_of(device)->times = (struct simulated_times){0};
    simulated_device_of(device)->disk.seconds = 0;
}

void simulated_device_set(struct device *device, const struct assumed_gpu *settings)
{
    ASSERT(settings->gpu == simulated_device_of(device)->settings.gpu);
    simulated_device_of(device)->settings = *settings;
}

/* ---- opening ------------------------------------------------------------- */

/* A simulation does not call the entries that are left out. */
/* clang-format off */
static const struct device_backend simulated_backend = {
    .close = simulated_close, .alloc = simulated_alloc, .alloc_host = simulated_alloc_host,
    .free_host = simulated_free_host, .workspace_bytes = simulated_workspace_bytes, .stream_new = simulated_stream_new,
    .stream_free = simulated_stream_free, .submit = simulated_submit, .copy = simulated_copy,
    .copy_in_order = simulated_copy, .fill_zero = simulated_fill_zero, .event_new = simulated_event_new,
    .event_elapsed = simulated_event_elapsed, .event_free = simulated_event_free,
    .event_record = simulated_event_record, .event_wait = simulated_event_wait,
    .is_capturing = simulated_is_capturing, .graph_begin = simulated_graph_begin, .graph_end = simulated_graph_end,
    .graph_launch = simulated_graph_launch, .graph_free = simulated_graph_free};
/* clang-format on */

static struct device *open_simulated(const struct assumed_gpu *settings, const struct gpu_model *gpu)
{
    struct simulated_device *d = memory_zeroed(1, sizeof *d);
    d->private_.backend = &simulated_backend;
    d->settings = *settings;
    d->disk = (struct simulated_disk){.disk = {.open = simulated_file_open}, .settings = &d->settings};
    d->device = (struct device){.kind = DEVICE_CUDA,
                                .threads = 1,
                                .memory_bytes = (size_t)(gpu->memory_gib * (double)(1 << 30)),
                                .ops = &simulated_ops,
                                .host_ops = &simulated_host_ops,
                                .private_ = d};
    snprintf(d->device.detail, sizeof d->device.detail, "not here: for plans only");
    snprintf(d->device.name, sizeof d->device.name, "%s, assumed", gpu->name);
    return &d->device;
}

enum status simulated_device_open(const char *option, struct device **device, struct error *err)
{
    struct gpu_model gpu;
    TRY(gpu_catalog_find(option ? option : gpu_catalog_usual, &gpu, err));
    *device = open_simulated(&(struct assumed_gpu){.gpu = NULL}, &gpu);
    return STATUS_OK;
}

struct device *simulated_device_open_timed(const struct assumed_gpu *settings)
{
    const struct gpu_model *gpu = settings->gpu;
    struct device *device = open_simulated(settings, gpu);
    device->peak_bytes = gpu->bytes;
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++) device->peak_flops[dtype] = gpu->flops[dtype];
    return device;
}
