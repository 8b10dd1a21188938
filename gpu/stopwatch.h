/* stopwatch.h: how long the parts of a step take on the device, without waiting for it.
 *
 * Marks are points of a stream; the time from one mark to the next goes to the lane that the later one names. On the
 * CPU device a mark is reached when it is put on the compute stream; on a GPU some time later, so what is read belongs
 * to steps that are done. In a capture there are no marks. One stream, one thread. */
#ifndef ZTRAIN_GPU_STOPWATCH_H
#define ZTRAIN_GPU_STOPWATCH_H

#include "gpu/device.h"

enum { STOPWATCH_LANES = 4, STOPWATCH_NO_LANE = -1 };

struct stopwatch;

enum status stopwatch_new(struct device *device, struct stopwatch **stopwatch, struct error *err);
void stopwatch_free(struct stopwatch *stopwatch); /* may be NULL */

/* The time since the mark before goes to `lane`, or nowhere (STOPWATCH_NO_LANE). */
void stopwatch_mark(struct stopwatch *stopwatch, struct stream *stream, int lane);

/* Seconds of a lane, as far as its marks were reached, since it was read last. */
double stopwatch_read(struct stopwatch *stopwatch, int lane);

#endif
