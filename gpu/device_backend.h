/* SPDX-License-Identifier: Apache-2.0 */
/* device_backend.h: the functions that a kind of device implements. device.c checks arguments and calls through this
 * table: only it, spans.c and the backends include this file. */
#pragma once

#include "gpu/device.h"
#include "gpu/ops.h"
#include "gpu/spans.h"

__BEGIN_DECLS

struct device_backend {
    void (*close)(struct device *device);
    enum status (*alloc)(struct device *device, size_t bytes, void **memory, struct error *err);
    void (*free)(struct device *device, void *memory, size_t bytes);
    bool (*available)(struct device *device, size_t *bytes); /* or NULL */
    enum status (*alloc_host)(struct device *device, size_t bytes, void **memory, struct error *err);
    void (*free_host)(struct device *device, void *memory, size_t bytes);
    enum status (*pin)(struct device *device, void *memory, size_t bytes, struct error *err); /* or NULL */
    enum status (*prepare)(struct device *device, const struct linear_products *products,
                           struct error *err);                                    /* or NULL */
    char *(*choices)(struct device *device);                                      /* device_choices(); or NULL */
    void (*take_choices)(struct device *device, const char *text, bool complete); /* device_take_choices(); or NULL */
    size_t (*workspace_bytes)(struct device *device, const struct op_limits *limits);
    void (*describe)(struct device *device, char *text, size_t size);     /* or NULL */
    void (*avoid)(struct device *device, unsigned parts);                 /* device_avoid(); or NULL */
    void (*leave_multiprocessors)(struct device *device, int count);      /* or NULL */
    enum status (*fix_kernels)(struct device *device, struct error *err); /* device_fix_kernels(); or NULL */
    const char *(*attention_obstacle)(struct device *device, const struct attention_fwd_args *args,
                                      bool backward);               /* or NULL */
    enum status (*check)(struct device *device, struct error *err); /* or NULL */
    enum status (*stream_new)(struct device *device, enum stream_kind kind, struct stream **stream, struct error *err);
    void (*stream_free)(struct stream *stream);
    void (*submit)(struct stream *stream, void (*function)(void *argument), const void *argument, size_t size);
    void (*sync)(struct stream *stream);
    void (*copy)(struct stream *stream, void *dst, const void *src, size_t bytes);
    void (*copy_in_order)(struct stream *stream, void *dst, const void *src, size_t bytes);
    void (*fill_zero)(struct stream *stream, void *dst, size_t bytes);
    void (*fill_noise)(struct stream *stream, void *dst, enum dtype dtype, size_t count, uint32_t seed);
    enum status (*event_new)(struct device *device, bool timed, struct event **event, struct error *err);
    bool (*event_elapsed)(struct event *from, struct event *to, double *seconds);
    void (*event_free)(struct event *event);
    void (*event_record)(struct event *event, struct stream *stream);
    void (*event_wait)(struct stream *stream, struct event *event);
    void (*event_sync)(struct event *event);
    /* all NULL: the device has no graphs */
    bool (*is_capturing)(const struct device *device);
    enum status (*graph_begin)(struct stream *const *streams, int count, struct graph **graph, struct error *err);
    enum status (*graph_end)(struct graph *graph, struct error *err);
    void (*graph_launch)(struct graph *graph);
    void (*graph_free)(struct graph *graph);
};

/* struct device's private_ points to a backend's struct that begins with this one; the backends' streams, events and
 * graphs begin with the structs below. */
struct device_private {
    const struct device_backend *backend;
    struct span_sinks spans;
};

static inline const struct device_backend *device_backend_of(const struct device *device)
{
    return ((const struct device_private *)device->private_)->backend;
}

struct stream {
    struct device *device;
    void *workspace; /* borrowed: stream_set_workspace() */
    size_t workspace_bytes;
};

struct event {
    struct device *device;
};

struct graph {
    struct device *device;
};

__END_DECLS
