/* ops_profile.h: the profile of ops (ops_profile_enable() in ops.h) by the part of the step in which they ran,
 * and the trace of ops and ranges, which are recorded without waiting for the device. */
#pragma once

#include "gpu/ops.h"
#include "gpu/spans.h"
#include "gpu/trace.h"

/* What the ops of a unit took in a range: those whose innermost range it was. */
struct module_profile {
    enum trace_range range;
    int unit; /* TRACE_WHOLE: of none */
    int64_t calls;
    double seconds, flops, bytes;
};

/* Sets *modules to the entries that are not empty and returns their number; they are valid until the next op. Resets
 * them. */
int ops_profile_modules(struct device *device, const struct module_profile **modules);

/* Records ops, ranges and ops_trace_begin()'s work until ops_trace_disable(): each goes to sink(context, span) when it
 * is over, with times since the point that `base`, which is waited for, has reached now. A range is named after its
 * kind (TRACE_OP, TRACE_RANGE or TRACE_WORK in span.kind). STATUS_DEVICE: out of memory. */
enum { TRACE_OP, TRACE_RANGE, TRACE_WORK };
enum status ops_trace_enable(struct device *device, struct stream *base,
                             void (*sink)(void *context, const struct span *span), void *context, struct error *err);
void ops_trace_disable(struct device *device); /* waits for the device, and delivers what is left */

/* Around other work on a stream; the number is for ops_trace_end(). Nothing is done unless a trace is on. */
int ops_trace_begin(struct stream *stream, const char *name, int unit, int64_t bytes);
void ops_trace_end(struct stream *stream, int number);

/* Called by trace_begin() and trace_end(): where the ops that follow belong. */
void ops_profile_enter(struct stream *stream, enum trace_range range, int unit);
void ops_profile_leave(struct stream *stream);
