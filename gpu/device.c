/* SPDX-License-Identifier: Apache-2.0 */
/* device.c: the functions of device.h, and those of ops.h that are not ops: each checks, and calls the backend. */
#include "core/env_switch.h"
#include "gpu/device_backend.h"

static const struct device_backend *device_backend_of(const struct device *device)
{
    return ((const struct device_private *)device->private_)->backend;
}

enum status device_cuda_wants_tf32(bool *wants, struct error *err)
{
    return env_switch("ZTRAIN_CUDA_TF32", "fp32 products use TF32", wants, err);
}

void device_close(struct device *device)
{
    if (device) device_backend_of(device)->close(device);
}

enum status device_alloc(struct device *device, size_t bytes, void **memory, struct error *err)
{
    *memory = NULL;
    return device_backend_of(device)->alloc(device, bytes, memory, err);
}

void device_free(struct device *device, void *memory, size_t bytes)
{
    if (memory && device_backend_of(device)->free) device_backend_of(device)->free(device, memory, bytes);
}

bool device_available_bytes(struct device *device, size_t *bytes)
{
    const struct device_backend *backend = device_backend_of(device);
    return backend->available && backend->available(device, bytes);
}

enum status device_alloc_host(struct device *device, size_t bytes, void **memory, struct error *err)
{
    *memory = NULL;
    return device_backend_of(device)->alloc_host(device, bytes, memory, err);
}

void device_free_host(struct device *device, void *memory, size_t bytes)
{
    if (memory) device_backend_of(device)->free_host(device, memory, bytes);
}

enum status device_pin(struct device *device, void *memory, size_t bytes, struct error *err)
{
    const struct device_backend *backend = device_backend_of(device);
    return backend->pin ? backend->pin(device, memory, bytes, err) : STATUS_OK;
}

enum status device_check(struct device *device, struct error *err)
{
    const struct device_backend *backend = device_backend_of(device);
    return backend->check ? backend->check(device, err) : STATUS_OK;
}

const char *device_part_name(unsigned part)
{
    return part == DEVICE_EPILOGUES ? "fused epilogues of matrix products" : "CUDA graphs";
}

char *device_choices(struct device *device)
{
    const struct device_backend *backend = device_backend_of(device);
    return backend->choices ? backend->choices(device) : NULL;
}

void device_take_choices(struct device *device, const char *text, bool complete)
{
    const struct device_backend *backend = device_backend_of(device);
    if (backend->take_choices) backend->take_choices(device, text, complete);
}

void device_avoid(struct device *device, unsigned parts)
{
    const struct device_backend *backend = device_backend_of(device);
    device->avoided |= parts;
    if (backend->avoid) backend->avoid(device, parts);
}

void device_leave_multiprocessors(struct device *device, int count)
{
    const struct device_backend *backend = device_backend_of(device);
    if (backend->leave_multiprocessors) backend->leave_multiprocessors(device, count);
}

enum status device_fix_kernels(struct device *device, struct error *err)
{
    const struct device_backend *backend = device_backend_of(device);
    return backend->fix_kernels ? backend->fix_kernels(device, err) : STATUS_OK;
}

const char *attention_own_reason(const struct attention_fwd_args *a)
{
    enum { DROPS_ALL = 65536 };
    return a->dtype == DTYPE_F32               ? "cuDNN computes attention in 16 bits only; hint: bf16: {enabled: true}"
           : a->D % 8 != 0                     ? "cuDNN computes heads whose size is a multiple of 8"
           : a->dropout.threshold >= DROPS_ALL ? "dropout drops every weight"
                                               : NULL;
}

const char *device_attention_obstacle(struct device *device, const struct attention_fwd_args *args, bool backward)
{
    const struct device_backend *backend = device_backend_of(device);
    const char *reason = attention_own_reason(args);
    return reason || !backend->attention_obstacle ? reason : backend->attention_obstacle(device, args, backward);
}

enum status ops_prepare(struct device *device, const struct linear_products *products, struct error *err)
{
    const struct device_backend *backend = device_backend_of(device);
    return backend->prepare ? backend->prepare(device, products, err) : STATUS_OK;
}

size_t ops_workspace_bytes(struct device *device, const struct op_limits *limits)
{
    return device_backend_of(device)->workspace_bytes(device, limits);
}

void ops_describe(struct device *device, char *text, size_t size)
{
    const struct device_backend *backend = device_backend_of(device);
    if (size) *text = 0;
    if (backend->describe) backend->describe(device, text, size);
}

enum status stream_new(struct device *device, enum stream_kind kind, struct stream **stream, struct error *err)
{
    *stream = NULL;
    return device_backend_of(device)->stream_new(device, kind, stream, err);
}

void stream_free(struct stream *stream)
{
    if (stream) device_backend_of(stream->device)->stream_free(stream);
}

void stream_set_workspace(struct stream *stream, void *memory, size_t bytes)
{
    ASSERT((uintptr_t)memory % 64 == 0);
    stream->workspace = memory;
    stream->workspace_bytes = bytes;
}

void *stream_workspace(const struct stream *stream, size_t *bytes)
{
    if (bytes) *bytes = stream->workspace_bytes;
    return stream->workspace;
}

struct device *stream_device(const struct stream *stream)
{
    return stream->device;
}

void stream_submit(struct stream *stream, void (*function)(void *argument), const void *argument, size_t size)
{
    ASSERT(size <= STREAM_ARGUMENT_MAX);
    device_backend_of(stream->device)->submit(stream, function, argument, size);
}

void stream_sync(struct stream *stream)
{
    if (device_backend_of(stream->device)->sync) device_backend_of(stream->device)->sync(stream);
}

void stream_copy(struct stream *stream, void *dst, const void *src, size_t bytes)
{
    if (bytes) device_backend_of(stream->device)->copy(stream, dst, src, bytes);
}

void stream_copy_in_order(struct stream *stream, void *dst, const void *src, size_t bytes)
{
    if (bytes) device_backend_of(stream->device)->copy_in_order(stream, dst, src, bytes);
}

void stream_fill_zero(struct stream *stream, void *dst, size_t bytes)
{
    if (bytes) device_backend_of(stream->device)->fill_zero(stream, dst, bytes);
}

void stream_fill_noise(struct stream *stream, void *dst, enum dtype dtype, size_t count, uint32_t seed)
{
    if (count) device_backend_of(stream->device)->fill_noise(stream, dst, dtype, count, seed);
}

enum status event_new(struct device *device, struct event **event, struct error *err)
{
    *event = NULL;
    return device_backend_of(device)->event_new(device, false, event, err);
}

enum status event_new_timed(struct device *device, struct event **event, struct error *err)
{
    *event = NULL;
    return device_backend_of(device)->event_new(device, true, event, err);
}

bool event_elapsed(struct event *from, struct event *to, double *seconds)
{
    ASSERT(from->device == to->device);
    return device_backend_of(from->device)->event_elapsed(from, to, seconds);
}

void event_free(struct event *event)
{
    if (event) device_backend_of(event->device)->event_free(event);
}

void event_record(struct event *event, struct stream *stream)
{
    ASSERT(event->device == stream->device);
    device_backend_of(event->device)->event_record(event, stream);
}

void stream_wait(struct stream *stream, struct event *event)
{
    ASSERT(event->device == stream->device);
    device_backend_of(event->device)->event_wait(stream, event);
}

void event_sync(struct event *event)
{
    if (device_backend_of(event->device)->event_sync) device_backend_of(event->device)->event_sync(event);
}

bool device_has_graphs(const struct device *device)
{
    return device_backend_of(device)->graph_begin != NULL;
}

bool device_is_capturing(const struct device *device)
{
    const struct device_backend *backend = device_backend_of(device);
    return backend->is_capturing && backend->is_capturing(device);
}

enum status graph_begin(struct stream *const *streams, int count, struct graph **graph, struct error *err)
{
    struct device *device = streams[0]->device;
    ASSERT(count > 0 && count <= GRAPH_STREAMS_MAX && device_has_graphs(device) && !device_is_capturing(device));
    for (int i = 1; i < count; i++) ASSERT(streams[i]->device == device);
    *graph = NULL;
    return device_backend_of(device)->graph_begin(streams, count, graph, err);
}

enum status graph_end(struct graph *graph, struct error *err)
{
    ASSERT(device_is_capturing(graph->device));
    return device_backend_of(graph->device)->graph_end(graph, err);
}

void graph_launch(struct graph *graph)
{
    ASSERT(!device_is_capturing(graph->device));
    device_backend_of(graph->device)->graph_launch(graph);
}

void graph_free(struct graph *graph)
{
    if (graph) device_backend_of(graph->device)->graph_free(graph);
}
