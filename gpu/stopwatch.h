/* stopwatch.h: measures how long the parts of a step take on the device, without waiting for the device.
 *
 * A mark is a point of a stream; the time between two marks is added to the lane that the later one names. The CPU
 * device reaches a mark as soon as it is set; a GPU reaches it later, so the times that are read belong to steps that
 * are done. During a capture no mark is set. One stream, one thread. */
#pragma once

#include "gpu/device.h"

enum { STOPWATCH_LANES = 4, STOPWATCH_NO_LANE = -1 };

struct stopwatch;

enum status stopwatch_new(struct device *device, struct stopwatch **stopwatch, struct error *err);
void stopwatch_free(struct stopwatch *stopwatch); /* may be NULL */

/* Sets a mark. The time since the previous mark is added to `lane`, or to none (STOPWATCH_NO_LANE). */
void stopwatch_mark(struct stopwatch *stopwatch, struct stream *stream, int lane);

/* Returns the seconds of a lane since its last reading, up to the latest mark that was reached. */
double stopwatch_read(struct stopwatch *stopwatch, int lane);
