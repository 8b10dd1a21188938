/* SPDX-License-Identifier: Apache-2.0 */
/* spans.h: one event for each piece of work: an op, a phase of the step, a collective, from its begin to its end.
 *
 *     struct span span = {.kind = …, .stream = stream, …};
 *     span_begin(&span);   … work is enqueued on the stream …   span_end(&span);
 *
 * Every sink takes of it what it records:
 *
 *     flight recorder  phases, by the host's clock (core/flight/flight.h); always
 *     NVTX             phases, as ranges of the calling thread, which Nsight Systems shows above its kernels; always
 *     recorders        what they want, timed on the device without waiting for it (span_recorder.h): the times of a
 *                      step's phases, the profile of ops, --trace, comms_logger
 *
 * Ops are spans only while a sink wants them. Spans of a stream nest. One that is not ended after an error does no
 * harm. One thread for a device. */
#pragma once

#include "gpu/device.h"

__BEGIN_DECLS

struct op_table;

enum span_kind { SPAN_OP, SPAN_PHASE, SPAN_COLLECTIVE };

enum phase {
    PHASE_OTHER, /* outside of all phases */
    PHASE_FORWARD,
    PHASE_HEAD, /* forward and backward, which are phases in it */
    PHASE_BACKWARD,
    PHASE_REDUCE,
    PHASE_OPTIMIZER,
    PHASE_EVALUATION,
    PHASE_GENERATION,
    PHASE_COUNT
};

enum {
    UNIT_NONE = -1,  /* of a phase: it is the whole phase */
    SPAN_SINKS = 8,  /* at most, for a device */
    SPAN_ALWAYS = 2, /* of them are the flight recorder and NVTX */
};

/* A phase of a step, and in it a unit of the model, or UNIT_NONE. */
struct span_place {
    enum phase phase;
    int unit;
};

struct span {
    enum span_kind kind;
    int what;         /* an op: its place in OPS_LIST; a phase: enum phase; a collective: the caller's number */
    int unit;         /* of the model, or UNIT_NONE; an op's is that of its phase */
    const char *name; /* "norm_fwd", "forward", "all_gather parameters"; static */
    int64_t bytes;    /* 0: unknown */
    double flops;
    struct stream *stream;
    double start, end, seconds; /* set when a recorder delivers it */
    struct span_place outer;    /* set by span_begin(): the phase in which it lies */
    int64_t marks[SPAN_SINKS];  /* of the sinks, from begin to end */
};

void span_begin(struct span *span);
void span_end(struct span *span);

struct span phase_begin(struct stream *stream, enum phase phase, int unit);

struct span_sink {
    bool takes_ops; /* while a device has such a sink, its ops are spans */
    /* Returns what end() gets; -1: end() is not called. */
    int64_t (*begin)(void *context, const struct span *span);
    void (*end)(void *context, const struct span *span, int64_t mark);
};

/* A device's sinks begin in the order in which they were added, and end in the other one. No span is open. */
void span_sink_add(struct device *device, const struct span_sink *sink, void *context);
void span_sink_remove(struct device *device, const struct span_sink *sink, void *context);

/* A device's table of sinks (struct device_private), zeroed at first. */
struct span_sinks {
    struct {
        const struct span_sink *sink;
        void *context; /* borrowed */
    } rows[SPAN_SINKS - SPAN_ALWAYS];
    int count;
    struct span_place now;        /* the innermost open phase */
    const struct op_table *plain; /* device->ops while ops are no spans; NULL: they are none */
};

__END_DECLS
