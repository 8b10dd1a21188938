/* flight_start.h: the names of a run's starts, each of which has a folder RUN/flight/START: its count among the run's
 * starts, then the time, "0007-20261126-143050-569". The count decides their order, since the clocks of machines differ
 * and may be set back. Names of versions without a count come before all others, in the order of their times. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

enum { FLIGHT_START_BYTES = 40 };

/* Whether an entry of RUN/flight is a start, by its name. */
bool flight_start_is(const char *name);

/* Below 0: a is earlier than b; above 0: later. "" is earlier than all. */
int flight_start_compare(const char *a, const char *b);

/* The count of a start that begins now: one more than those of the starts in `flight`, RUN/flight, which may be
 * absent, and of the one that ended in order last. */
int64_t flight_start_next(const char *flight);

void flight_start_name(int64_t count, struct timespec now, char name[FLIGHT_START_BYTES]);
