#include "gpu/stopwatch.h"

#include <stdlib.h>

/* More marks than the host is usually ahead of the device; if it is further ahead, the oldest marks are dropped. */
enum { MARKS = 512 };

struct stopwatch {
    struct event *events[MARKS]; /* owned */
    int lanes[MARKS];
    int64_t head, tail; /* marks [head, tail) are set; both only grow */
    double seconds[STOPWATCH_LANES];
};

enum status stopwatch_new(struct device *device, struct stopwatch **stopwatch, struct error *err)
{
    struct stopwatch *w = *stopwatch = calloc(1, sizeof *w);
    if (!w)
        return error_set(err, STATUS_DEVICE, "cannot create a stopwatch: out of memory");
    for (int i = 0; i < MARKS; i++) {
        if (event_new_timed(device, &w->events[i], err) != STATUS_OK) {
            stopwatch_free(w);
            *stopwatch = NULL;
            return STATUS_DEVICE;
        }
    }
    return STATUS_OK;
}

void stopwatch_free(struct stopwatch *w)
{
    for (int i = 0; w && i < MARKS; i++)
        event_free(w->events[i]);
    free(w);
}

/* Adds the times between marks that were reached to their lanes. The last of these marks stays, as the start of the
 * next interval. */
static void stopwatch_collect(struct stopwatch *w)
{
    double seconds;
    for (; w->tail - w->head > 1; w->head++) {
        int lane = w->lanes[(w->head + 1) % MARKS];
        if (!event_elapsed(w->events[w->head % MARKS], w->events[(w->head + 1) % MARKS], &seconds))
            return;
        if (lane >= 0)
            w->seconds[lane] += seconds;
    }
}

void stopwatch_mark(struct stopwatch *w, struct stream *stream, int lane)
{
    ASSERT(lane >= STOPWATCH_NO_LANE && lane < STOPWATCH_LANES);
    if (device_is_capturing(stream_device(stream)))
        return;
    if (w->tail - w->head == MARKS)
        stopwatch_collect(w);
    if (w->tail - w->head == MARKS)
        w->head++;
    w->lanes[w->tail % MARKS] = lane;
    event_record(w->events[w->tail++ % MARKS], stream);
}

double stopwatch_read(struct stopwatch *w, int lane)
{
    stopwatch_collect(w);
    double seconds = w->seconds[lane];
    w->seconds[lane] = 0;
    return seconds;
}
