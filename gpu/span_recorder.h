/* SPDX-License-Identifier: Apache-2.0 */
/* span_recorder.h: a sink of spans that learns when they ran on the device, without waiting for it: two timed events
 * lie around the work, and spans that are over are delivered later, in the order in which they began. So spans that
 * enclose others need a recorder of their own. During a capture nothing is recorded. */
#pragma once

#include "gpu/spans.h"

struct span_recorder;

struct span_recorder_config {
    int capacity;   /* spans that are not delivered yet */
    bool takes_ops; /* wants() may be asked about ops */
    /* Whether to record a span that begins now. */
    bool (*wants)(void *context, const struct span *span);
    void (*deliver)(void *context, const struct span *span);
    void *context;
    struct event *zero; /* timed and recorded, borrowed: `start` and `end` of a span count from it; NULL: they are 0 */
};

/* Freed before the device is closed and while no span is open. STATUS_DEVICE: the device has no more events. */
enum status span_recorder_new(struct device *device, const struct span_recorder_config *config,
                              struct span_recorder **recorder, struct error *err);
void span_recorder_free(struct span_recorder *recorder); /* undelivered spans are dropped; may be NULL */
RELEASER(span_recorder_drop, struct span_recorder, span_recorder_free)

/* Delivers the spans that are over; wait: all of them, which must have been ended. If there is no room, span_begin()
 * waits for the oldest span and delivers it; while that was not ended, new ones are not recorded. */
void span_recorder_collect(struct span_recorder *recorder, bool wait);

/* A recorder that adds up how long the phases of a step take; the times that are read belong to steps that are done. A
 * phase in another one counts as that, but for the head, whose two passes count as forward and backward. */
struct phase_times;
enum status phase_times_new(struct device *device, struct phase_times **times, struct error *err);
void phase_times_free(struct phase_times *times); /* before the device is closed; may be NULL */
RELEASER(phase_times_drop, struct phase_times, phase_times_free)

/* Seconds of each phase since the last reading. */
void phase_times_read(struct phase_times *times, double seconds[PHASE_COUNT]);
