/* SPDX-License-Identifier: Apache-2.0 */
/* device_backend.h: the functions that a kind of device implements. device.c checks arguments and calls through this
 * table: only it, spans.c and the backends include this file. */
#pragma once

#include "gpu/device.h"
#include "gpu/ops.h"
#include "gpu/spans.h"

__BEGIN_DECLS

/* clang-format off */
/* The entries of a backend are the functions of device.h and ops.h that are named like them. */
#define DEVICE_BACKEND_LIST(X) \
    X(void, close, (struct device *device)) \
    X(enum status, alloc, (struct device *device, size_t bytes, void **memory, struct error *err)) \
    X(void, free, (struct device *device, void *memory, size_t bytes)) \
    X(enum status, alloc_host, (struct device *device, size_t bytes, void **memory, struct error *err)) \
    X(void, free_host, (struct device *device, void *memory, size_t bytes)) \
    X(size_t, workspace_bytes, (struct device *device, const struct op_limits *limits)) \
    X(enum status, stream_new, (struct device *device, enum stream_kind kind, struct stream **stream, \
        struct error *err)) \
    X(void, stream_free, (struct stream *stream)) \
    X(void, submit, (struct stream *stream, void (*function)(void *argument), const void *argument, size_t size)) \
    X(void, sync, (struct stream *stream)) \
    X(void, copy, (struct stream *stream, void *dst, const void *src, size_t bytes)) \
    X(void, copy_in_order, (struct stream *stream, void *dst, const void *src, size_t bytes)) \
    X(void, fill_zero, (struct stream *stream, void *dst, size_t bytes)) \
    X(void, fill_noise, (struct stream *stream, void *dst, enum dtype dtype, size_t count, uint32_t seed)) \
    X(enum status, event_new, (struct device *device, bool timed, struct event **event, struct error *err)) \
    X(bool, event_elapsed, (struct event *from, struct event *to, double *seconds)) \
    X(void, event_free, (struct event *event)) \
    X(void, event_record, (struct event *event, struct stream *stream)) \
    X(void, event_wait, (struct stream *stream, struct event *event)) \
    X(void, event_sync, (struct event *event)) \
    /* NULL: the device needs or has none */ \
    X(bool, available, (struct device *device, size_t *bytes)) \
    X(enum status, pin, (struct device *device, void *memory, size_t bytes, struct error *err)) \
    X(enum status, prepare, (struct device *device, const struct linear_products *products, struct error *err)) \
    X(char *, choices, (struct device *device)) \
    X(void, take_choices, (struct device *device, const char *text, bool complete)) \
    X(void, describe, (struct device *device, char *text, size_t size)) \
    X(void, avoid, (struct device *device, unsigned parts)) \
    X(void, leave_multiprocessors, (struct device *device, int count)) \
    X(enum status, fix_kernels, (struct device *device, struct error *err)) \
    X(const char *, attention_obstacle, (struct device *device, const struct attention_fwd_args *args, \
        bool backward)) \
    X(enum status, check, (struct device *device, struct error *err)) \
    /* all NULL: the device has no graphs */ \
    X(bool, is_capturing, (const struct device *device)) \
    X(enum status, graph_begin, (struct stream *const *streams, int count, struct graph **graph, struct error *err)) \
    X(enum status, graph_end, (struct graph *graph, struct error *err)) \
    X(void, graph_launch, (struct graph *graph)) \
    X(void, graph_free, (struct graph *graph))
/* clang-format on */

#define DEVICE_BACKEND_MEMBER(type, name, parameters) type(*name) parameters;
struct device_backend {
    DEVICE_BACKEND_LIST(DEVICE_BACKEND_MEMBER)
};

/* struct device's private_ points to a backend's struct that begins with this one; the backends' streams, events and
 * graphs begin with the structs below. */
struct device_private {
    const struct device_backend *backend;
    struct span_sinks spans;
};

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
