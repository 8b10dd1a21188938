/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/span_recorder.h"

#include "core/memory.h"

struct span_slot {
    struct span span;
    struct event *begin, *end; /* owned */
    bool ended;
};

struct span_recorder {
    struct device *device;
    struct span_recorder_config config;
    int64_t head, tail; /* spans [head, tail) are undelivered; both only grow */
    struct span_slot slots[];
};

static struct span_slot *span_slot(struct span_recorder *r, int64_t number)
{
    return &r->slots[number % r->config.capacity];
}

static bool deliver_oldest(struct span_recorder *r)
{
    struct span_slot *slot = span_slot(r, r->head);
    struct event *zero = r->config.zero;
    if (r->head == r->tail || !slot->ended || !event_elapsed(slot->begin, slot->end, &slot->span.seconds)) return false;
    if (zero &&
        (!event_elapsed(zero, slot->begin, &slot->span.start) || !event_elapsed(zero, slot->end, &slot->span.end)))
        return false;
    r->head++;
    r->config.deliver(r->config.context, &slot->span);
    return true;
}

static bool make_room(struct span_recorder *r)
{
    struct span_slot *oldest = span_slot(r, r->head);
    if (r->tail - r->head < r->config.capacity) return true;
    span_recorder_collect(r, false);
    if (r->tail - r->head < r->config.capacity) return true;
    if (!oldest->ended) return false;
    event_sync(oldest->end);
    if (!deliver_oldest(r)) /* the device has failed */
        r->head++;
    return true;
}

static int64_t recorder_begin(void *context, const struct span *span)
{
    struct span_recorder *r = context;
    if (device_is_capturing(r->device) || !make_room(r) || !r->config.wants(r->config.context, span)) return -1;
    struct span_slot *slot = span_slot(r, r->tail);
    slot->span = *span;
    slot->ended = false;
    event_record(slot->begin, span->stream);
    return r->tail++;
}

static void recorder_end(void *context, const struct span *span, int64_t number)
{
    struct span_slot *slot = span_slot(context, number);
    ASSERT(!slot->ended);
    event_record(slot->end, span->stream);
    slot->ended = true;
}

static const struct span_sink sink = {.begin = recorder_begin, .end = recorder_end};
static const struct span_sink sink_of_ops = {.takes_ops = true, .begin = recorder_begin, .end = recorder_end};

enum status span_recorder_new(struct device *device, const struct span_recorder_config *config,
                              struct span_recorder **recorder, struct error *err)
{
    ASSERT(config->capacity > 0);
    RELEASED(span_recorder_drop)
    struct span_recorder *r = memory_zeroed(1, sizeof *r + (size_t)config->capacity * sizeof r->slots[0]);
    r->device = device;
    r->config = *config;
    for (int i = 0; i < config->capacity; i++) {
        TRY(event_new_timed(device, &r->slots[i].begin, err));
        TRY(event_new_timed(device, &r->slots[i].end, err));
    }
    span_sink_add(device, config->takes_ops ? &sink_of_ops : &sink, r);
    *recorder = TAKEN(r);
    return STATUS_OK;
}

void span_recorder_free(struct span_recorder *r)
{
    if (!r) return;
    span_sink_remove(r->device, r->config.takes_ops ? &sink_of_ops : &sink, r);
    for (int i = 0; i < r->config.capacity; i++) {
        event_free(r->slots[i].begin);
        event_free(r->slots[i].end);
    }
    free(r);
}

void span_recorder_collect(struct span_recorder *r, bool wait)
{
    while (r->head < r->tail) {
        if (wait) event_sync(span_slot(r, r->head)->end);
        if (deliver_oldest(r)) continue;
        if (!wait) return;
        r->head++; /* the device has failed: the time is unknown */
    }
}

/* More phases than the host is usually ahead of the device. */
enum { PHASES_AHEAD = 512 };

struct phase_times {
    struct span_recorder *recorder; /* owned */
    double seconds[PHASE_COUNT];
};

static bool recorder_is_timed(void *context, const struct span *span)
{
    (void)context;
    return span->kind == SPAN_PHASE && span->what != PHASE_HEAD &&
           (span->outer.phase == PHASE_OTHER || span->outer.phase == PHASE_HEAD);
}

static void recorder_add_phase(void *context, const struct span *span)
{
    struct phase_times *times = context;
    times->seconds[span->what] += span->seconds;
}

enum status phase_times_new(struct device *device, struct phase_times **times, struct error *err)
{
    RELEASED(phase_times_drop) struct phase_times *t = memory_zeroed(1, sizeof *t);
    const struct span_recorder_config config = {
        .capacity = PHASES_AHEAD, .wants = recorder_is_timed, .deliver = recorder_add_phase, .context = t};
    TRY(span_recorder_new(device, &config, &t->recorder, err));
    *times = TAKEN(t);
    return STATUS_OK;
}

void phase_times_free(struct phase_times *times)
{
    if (times) span_recorder_free(times->recorder);
    free(times);
}

void phase_times_read(struct phase_times *times, double seconds[PHASE_COUNT])
{
    span_recorder_collect(times->recorder, false);
    memcpy(seconds, times->seconds, sizeof times->seconds);
    memset(times->seconds, 0, sizeof times->seconds);
}
