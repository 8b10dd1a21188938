/* flight_view.c: a rank's flight record as the verdict sees it, and how far the ranks' wall clocks are apart. */
#include "core/flight/flight_verdict.h"

#include "core/memory.h"

#include <stdlib.h>

void flight_view_init(struct flight_view *view, const struct flight_record *record, char process)
{
    int64_t moved = 0;
    *view = (struct flight_view){.record = record, .process = process};
    for (int i = 0; record && i < record->count; i++) {
        const struct flight_entry *entry = &record->entries[i];
        const int channel = flight_channel(entry->kind);
        const int64_t sign = entry->end ? entry->end : entry->start;
        moved = sign > moved ? sign : moved;
        if (entry->end) {
            if (!view->last || entry->end >= view->last->end)
                view->last = entry;
        } else {
            if (!view->now || entry->start >= view->now->start)
                view->now = entry;
            if (channel < 0 && (!view->work || entry->start >= view->work->start))
                view->work = entry;
            if (channel >= 0 && (!view->wait || entry->start >= view->wait->start))
                view->wait = entry;
        }
        if (channel < 0)
            continue;
        if (entry->number > view->begun[channel])
            view->begun[channel] = entry->number;
        if (entry->end && entry->number > view->done[channel])
            view->done[channel] = entry->number;
    }
    if (!record)
        return;
    if (record->head.witness >= 0)
        view->process = record->head.process;
    moved = record->phase_since > moved ? record->phase_since : moved;
    view->moved = flight_wall(record, moved);
}

/* ---- clocks -------------------------------------------------------------- */

enum { LEAST_COMMON = 3 }; /* collectives, for a comparison of clocks */

/* The first entry from *at on of a control collective that is over and that ends for all ranks at about the same time;
 * NULL: there are no more. */
static const struct flight_entry *next_meeting(const struct flight_record *record, int *at)
{
    for (; *at < record->count; (*at)++) {
        const struct flight_entry *entry = &record->entries[*at];
        if (entry->end && (entry->kind == FLIGHT_BARRIER || entry->kind == FLIGHT_EXCHANGE))
            return entry;
    }
    return NULL;
}

static int compare_seconds(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds by which a rank's wall clock is ahead of another's: the median of what the ends of common collectives say; 0:
 * there are too few. scratch: (FLIGHT_ENTRIES). */
static double clock_ahead(const struct flight_record *own, const struct flight_record *other, double *scratch)
{
    const struct flight_entry *a, *b;
    int i = 0, j = 0, count = 0;
    while ((a = next_meeting(own, &i)) && (b = next_meeting(other, &j))) {
        if (a->number == b->number && count < FLIGHT_ENTRIES)
            scratch[count++] = flight_wall(own, a->end) - flight_wall(other, b->end);
        i += a->number <= b->number;
        j += b->number <= a->number;
    }
    if (count < LEAST_COMMON)
        return 0;
    qsort(scratch, (size_t)count, sizeof *scratch, compare_seconds);
    return scratch[count / 2];
}

void flight_compare_clocks(struct flight_view *views, int world)
{
    double *scratch = memory_zeroed(FLIGHT_ENTRIES, sizeof *scratch);
    const struct flight_record *first = NULL;
    for (int r = 0; r < world; r++) {
        if (!first)
            first = views[r].record;
        if (views[r].record)
            views[r].ahead = clock_ahead(views[r].record, first, scratch);
    }
    free(scratch);
}
