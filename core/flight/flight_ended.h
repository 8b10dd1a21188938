/* flight_ended.h: RUN/flight/ended, one line "START SECONDS": the start of the run that ended in order last, and when,
 * in seconds since 1970. Such a start deletes its flight records; without this file those of an earlier start, which
 * failed, would be the newest, and look like the run's end. It exists only where there are such records. */
#pragma once

#include "core/flight/flight_start.h"

#include <stdbool.h>
#include <stdint.h>

struct flight_end {
    char start[FLIGHT_START_BYTES];
    int64_t wall; /* seconds since 1970 */
};

/* flight: the folder RUN/flight. The line is one write; what a kill leaves of it is not read. Returns 0 or an errno. */
int flight_ended_write(const char *flight, const struct flight_end *end);
/* Returns 0 or an errno; a file that does not exist is not an error. */
int flight_ended_delete(const char *flight);
/* Returns false if the file does not exist or is incomplete. */
bool flight_ended_read(const char *flight, struct flight_end *end);
