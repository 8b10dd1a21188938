/* phase_times.h: how long the phases of a step take on the device, in sum, without waiting for it: the times that are
 * read belong to steps that are done. A phase in another one counts as that, but for the head, whose two passes count
 * as forward and backward. During a capture nothing is timed. */
#pragma once

#include "gpu/spans.h"

struct phase_times;

enum status phase_times_new(struct device *device, struct phase_times **times, struct error *err);
void phase_times_free(struct phase_times *times); /* before the device is closed; may be NULL */

/* Seconds of each phase since the last reading. */
void phase_times_read(struct phase_times *times, double seconds[PHASE_COUNT]);
