#include "core/flight/flight_slow.h"

#include "core/memory.h"

#include <math.h>
#include <stdlib.h>

static const double slow_share = 0.75;                /* of all waiting is for a slow rank, */
static const double slow_time = 0.2;                  /* … and this part of the time, */
static const double slow_step = 0.002;                /* … and these seconds in each step */
enum { SLOW_LEAST = 20, CELLS = 4 * FLIGHT_ENTRIES }; /* collectives that are compared, at least */

/* A collective that is over. It ends for all ranks at about the same time, so the rank that came last was in it for the
 * shortest time. That needs no common clock. */
struct cell {
    int64_t number;
    int seen, last; /* ranks; the last one */
    double shortest, sum;
    double before; /* from the first entry of the last one to its arrival: nobody is seen to wait for it longer */
};

/* Nanoseconds of the earliest start; a phase is recorded when it is over. */
static int64_t first_start(const struct flight_record *record)
{
    int64_t first = INT64_MAX;
    for (int i = 0; record && i < record->count; i++)
        first = record->entries[i].start < first ? record->entries[i].start : first;
    return first;
}

static void add_times(struct cell *cells, const struct flight_record *record)
{
    int64_t before[2] = {0, 0};
    const int64_t first = first_start(record);
    for (int i = 0; record && i < record->count; i++) {
        const struct flight_entry *entry = &record->entries[i];
        const int channel = flight_channel(entry->kind);
        if (channel < 0 || !entry->end || entry->number <= before[channel]) /* or the second piece of one */
            continue;
        before[channel] = entry->number;
        struct cell *cell = &cells[channel * CELLS + entry->number % CELLS];
        const double seconds = 1e-9 * (double)(entry->end - entry->start);
        if (cell->seen == 0 || cell->number < entry->number)
            *cell = (struct cell){.number = entry->number, .shortest = INFINITY};
        if (cell->number != entry->number)
            continue;
        cell->seen++;
        cell->sum += seconds;
        if (seconds < cell->shortest) {
            cell->shortest = seconds;
            cell->before = 1e-9 * (double)(entry->start - first);
            cell->last = record->head.rank;
        }
    }
}

static double span_of(const struct flight_record *record)
{
    int64_t last = 0;
    for (int i = 0; record && i < record->count; i++)
        last = record->entries[i].start > last ? record->entries[i].start : last;
    return record && record->count ? 1e-9 * (double)(last - first_start(record)) : 0;
}

static int64_t steps_of(const struct flight_record *record)
{
    const int count = record ? record->count : 0;
    return count ? record->entries[count - 1].step - record->entries[0].step + 1 : 0;
}

/* What a rank has cost the others. */
struct lateness {
    int times;
    double seconds; /* that the others waited for it, on average */
};

/* Returns the number of collectives that all ranks have recorded. */
static int add_lateness(const struct cell *cells, int world, struct lateness *late)
{
    int compared = 0;
    for (int c = 0; c < 2 * CELLS; c++) {
        const struct cell *cell = &cells[c];
        if (cell->seen != world)
            continue;
        compared++;
        late[cell->last].times++;
        late[cell->last].seconds += fmin((cell->sum - cell->shortest) / (world - 1) - cell->shortest, cell->before);
    }
    return compared;
}

bool flight_find_slow(const struct flight_view *views, int world, struct flight_slow *slow)
{
    if (world < 2)
        return false;
    struct cell *cells = memory_zeroed((size_t)2 * CELLS, sizeof *cells);
    struct lateness *late = memory_zeroed((size_t)world, sizeof *late);
    double all = 0;
    int rank = 0;
    for (int r = 0; r < world; r++)
        add_times(cells, views[r].record);
    const int compared = add_lateness(cells, world, late);
    for (int r = 0; r < world; r++) {
        all += late[r].seconds;
        rank = late[r].seconds > late[rank].seconds ? r : rank;
    }
    *slow = (struct flight_slow){.rank = rank,
                                 .times = late[rank].times,
                                 .compared = compared,
                                 .seconds = late[rank].seconds,
                                 .span = span_of(views[rank].record)};
    free(cells);
    free(late);
    return compared >= SLOW_LEAST && slow->seconds >= slow_share * all && slow->seconds >= slow_time * slow->span &&
           slow->seconds >= slow_step * (double)steps_of(views[rank].record);
}
