#include "gpu/spans.h"

#include <stdlib.h>

struct span_slot {
    struct span span;
    struct stream *stream;
    struct event *begin, *end; /* owned */
    bool ended;
};

struct spans {
    struct device *device;
    void (*sink)(void *context, const struct span *span);
    void *context;
    struct event *base; /* owned */
    struct event *zero; /* `base` or that of others; NULL: there is none */
    int64_t head, tail; /* spans [head, tail) are undelivered; both only grow */
    int capacity;
    struct span_slot slots[];
};

static enum status make_events(struct spans *s, struct error *err)
{
    TRY(event_new_timed(s->device, &s->base, err));
    for (int i = 0; i < s->capacity; i++) {
        TRY(event_new_timed(s->device, &s->slots[i].begin, err));
        TRY(event_new_timed(s->device, &s->slots[i].end, err));
    }
    return STATUS_OK;
}

enum status spans_new(struct device *device, int capacity, void (*sink)(void *context, const struct span *span),
                      void *context, struct spans **spans, struct error *err)
{
    ASSERT(capacity > 0);
    struct spans *s = *spans = calloc(1, sizeof *s + (size_t)capacity * sizeof s->slots[0]);
    if (!s)
        return error_set(err, STATUS_DEVICE, "cannot record spans: out of memory");
    s->device = device;
    s->sink = sink;
    s->context = context;
    s->capacity = capacity;
    enum status status = make_events(s, err);
    if (status != STATUS_OK) {
        spans_free(s);
        *spans = NULL;
    }
    return status;
}

void spans_free(struct spans *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->capacity; i++) {
        event_free(s->slots[i].begin);
        event_free(s->slots[i].end);
    }
    event_free(s->base);
    free(s);
}

void spans_base(struct spans *s, struct stream *stream)
{
    ASSERT(s->head == s->tail);
    stream_sync(stream);
    event_record(s->base, stream);
    event_sync(s->base);
    s->zero = s->base;
}

void spans_base_as(struct spans *s, const struct spans *other)
{
    ASSERT(s->head == s->tail && other->zero);
    s->zero = other->zero;
}

/* Delivers the oldest span if it is over. */
static bool deliver_oldest(struct spans *s)
{
    struct span_slot *slot = &s->slots[s->head % s->capacity];
    if (s->head == s->tail || !slot->ended || !event_elapsed(slot->begin, slot->end, &slot->span.seconds))
        return false;
    if (s->zero && (!event_elapsed(s->zero, slot->begin, &slot->span.start) ||
                    !event_elapsed(s->zero, slot->end, &slot->span.end)))
        return false;
    s->head++;
    s->sink(s->context, &slot->span);
    return true;
}

int spans_begin(struct spans *s, struct stream *stream, const struct span *what)
{
    if (device_is_capturing(s->device))
        return -1;
    if (s->tail - s->head == s->capacity)
        spans_collect(s, false);
    if (s->tail - s->head == s->capacity) {
        if (!s->slots[s->head % s->capacity].ended)
            return -1;
        event_sync(s->slots[s->head % s->capacity].end);
        if (!deliver_oldest(s)) /* the device has failed */
            s->head++;
    }
    int number = (int)(s->tail++ % s->capacity);
    struct span_slot *slot = &s->slots[number];
    slot->span = *what;
    slot->span.stream = slot->stream = stream;
    slot->span.start = slot->span.end = slot->span.seconds = 0;
    slot->ended = false;
    event_record(slot->begin, stream);
    return number;
}

void spans_end(struct spans *s, int number)
{
    if (number < 0)
        return;
    struct span_slot *slot = &s->slots[number];
    ASSERT(!slot->ended);
    event_record(slot->end, slot->stream);
    slot->ended = true;
}

void spans_collect(struct spans *s, bool wait)
{
    while (s->head < s->tail) {
        if (wait)
            event_sync(s->slots[s->head % s->capacity].end);
        if (deliver_oldest(s))
            continue;
        if (!wait)
            return;
        s->head++; /* the device has failed: the time is unknown */
    }
}
