/* flight_slow.h: the rank that the others wait for in collectives, by the ranks' flight records. Pure computation. */
#pragma once

#include "core/flight/flight_verdict.h"

/* What a rank has cost the others. */
struct flight_slow {
    int rank, times, compared; /* it came last in `times` of `compared` collectives that all ranks have recorded */
    double seconds, span;      /* that the others waited for it, on average; from its first to its last entry */
};

/* views: (world). false: no rank is slow. */
bool flight_find_slow(const struct flight_view *views, int world, struct flight_slow *slow);
