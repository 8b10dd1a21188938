/* device_cuda_event.h: events of a CUDA device.
 *
 * Events inside and outside of captures follow device.h: during a capture, only events recorded in that capture are
 * waited for; outside, only events recorded outside. CUDA itself would refuse all others. */
#pragma once

#include "gpu/cuda/device_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The backend's entries: see device.h. */
enum status cuda_event_new(struct device *device, bool timed, struct event **event, struct error *err);
void cuda_event_free(struct event *event);
void cuda_event_record(struct event *event, struct stream *stream);
void cuda_event_wait(struct stream *stream, struct event *event);
void cuda_event_sync(struct event *event);
bool cuda_event_elapsed(struct event *from, struct event *to, double *seconds);

#ifdef __cplusplus
}
#endif
