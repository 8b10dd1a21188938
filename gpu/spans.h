/* spans.h: from when to when pieces of work ran on a device's streams, measured without waiting for the device.
 *
 *     spans_begin(stream) · work is enqueued on the stream · spans_end()   two timed events around the work
 *     spans_collect()                                                      later: spans that are over go to the sink
 *
 * Spans are delivered in the order in which they began, so one that is not over holds back those that began after it:
 * spans that enclose others need a recorder of their own. During a capture nothing is recorded. One thread. */
#pragma once

#include "gpu/device.h"

struct span {
    const char *name; /* borrowed, as are other pointers; it must live until the span is delivered */
    int kind;         /* the caller's */
    int32_t unit;     /* of the model; -1: none */
    int64_t bytes;
    double flops;
    const struct stream *stream;
    double start, end, seconds; /* set on delivery; start and end: since spans_base() */
};

struct spans;

/* Room for `capacity` spans that are not delivered yet. The caller frees *spans with spans_free(). sink(context, span)
 * is called by spans_collect() and, when there is no room, by spans_begin(). STATUS_DEVICE: out of memory. */
enum status spans_new(struct device *device, int capacity, void (*sink)(void *context, const struct span *span),
                      void *context, struct spans **spans, struct error *err);
void spans_free(struct spans *spans); /* undelivered spans are dropped; may be NULL */

/* Makes the point that `stream` has reached the zero of `start`, after it has waited for the stream. Before it, `start`
 * and `end` are 0 in every span. Nothing may be undelivered. */
void spans_base(struct spans *spans, struct stream *stream);

/* The zero of `start` becomes that of `other`, which has one and is freed later. */
void spans_base_as(struct spans *spans, const struct spans *other);

/* Begins a span, of which name, kind, unit, bytes and flops are copied; returns its number for spans_end(), or -1
 * during a capture. Where there is no room, it waits until the oldest span is over, and returns -1 if that has not even
 * been ended. */
int spans_begin(struct spans *spans, struct stream *stream, const struct span *what);
void spans_end(struct spans *spans, int number); /* -1: nothing */

/* Delivers the spans that are over; wait: all of them, when they are over. Every span must have been ended then. */
void spans_collect(struct spans *spans, bool wait);
