/* device_cuda_stream.h: streams of a CUDA device: their work, host functions, copies, and how far the host runs ahead.
 *
 * A stream is a CUDA stream. Work that the host does in stream order (stream_submit) is a host function of the stream;
 * its argument lives in a ring of closures, so nothing is allocated:
 *
 *     stream_submit() -> | closure | closure | … | -> CUDA's thread      tail: submitted, head: done (both count up)
 *
 * Host memory that the GPU cannot reach by itself is copied through pinned slots, so that no copy makes the host wait
 * for the stream (as CUDA's own staging does):
 *
 *     to the GPU      host: memcpy to a slot             GPU: slot -> device memory
 *     to the host     GPU: device memory -> slot         host function: memcpy from the slot
 *
 * A copy to the GPU in stream order fills its slots in host functions as well. A slot is free again when the event
 * after its copy is reached. The host runs ahead of the GPU by at most MARKERS recorded events and SLOTS staged copies.
 * It advances the progress counter with every call; it cannot do so while it waits for the GPU, so cuda_is_waiting() is
 * true then: peers count a rank whose GPU is at work as alive. */
#pragma once

#include "gpu/cuda/device_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The backend's entries: see device.h. */
enum status cuda_stream_new(struct device *device, enum stream_kind kind, struct stream **stream, struct error *err);
void cuda_stream_free(struct stream *stream);
void cuda_submit(struct stream *stream, void (*function)(void *argument), const void *argument, size_t size);
void cuda_sync(struct stream *stream);
void cuda_copy(struct stream *stream, void *dst, const void *src, size_t bytes);
void cuda_copy_in_order(struct stream *stream, void *dst, const void *src, size_t bytes);
void cuda_fill_zero(struct stream *stream, void *dst, size_t bytes);

/* Marks a point of the stream, and waits for the GPU where MARKERS of them are not reached yet: the host runs ahead by
 * at most that many. */
void cuda_stream_mark(struct cuda_stream *stream);

/* The host waits for the event; `work` names the work that it waited for, in errors. */
void cuda_wait_event(struct cuda_device *cuda, cudaEvent_t event, const char *work);

#ifdef __cplusplus
}
#endif
