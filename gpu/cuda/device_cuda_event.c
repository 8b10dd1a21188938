/* SPDX-License-Identifier: Apache-2.0 */
/* device_cuda_event.c: events of a CUDA device.
 *
 * During a capture only events recorded in it are waited for, outside only those recorded outside: CUDA refuses the
 * others. */
#include "gpu/cuda/device_cuda.h"

#include "core/memory.h"

#include <stdlib.h>

enum status cuda_event_new(struct device *device, bool timed, struct event **event, struct error *err)
{
    struct cuda_event *e = memory_zeroed(1, sizeof *e);
    e->base.device = device;
    e->timed = timed;
    cudaError_t code =
        CUDA_CALL(cudaEventCreateWithFlags(&e->handle, cudaEventBlockingSync | (timed ? 0 : cudaEventDisableTiming)));
    if (code != cudaSuccess) {
        free(e);
        return error_set(err, cuda_status_of(code), "cannot create an event on GPU %d: %s",
                         ((struct cuda_device *)device->private_)->index, cudaGetErrorString(code));
    }
    *event = &e->base;
    return STATUS_OK;
}

void cuda_event_sync(struct event *event)
{
    struct cuda_event *e = (struct cuda_event *)event;
    ASSERT(!e->capture && !cuda_is_capturing(event->device));
    cuda_wait_event(event->device->private_, e->handle, "work before an event");
}

bool cuda_event_elapsed(struct event *from, struct event *to, double *seconds)
{
    float milliseconds;
    struct cuda_device *cuda = from->device->private_;
    const cudaEvent_t end = ((struct cuda_event *)to)->handle;
    cudaError_t code = CUDA_CALL(cudaEventQuery(end)); /* of which compute-sanitizer reports no error */
    if (code == cudaSuccess)
        code = CUDA_CALL(cudaEventElapsedTime(&milliseconds, ((struct cuda_event *)from)->handle, end));
    if (code == cudaErrorNotReady)
        cudaGetLastError(); /* not a failure: clears CUDA's last error */
    if (code == cudaErrorNotReady || !cuda_check(cuda, code, "the time between events"))
        return false;
    *seconds = 1e-3 * (double)milliseconds;
    return true;
}

void cuda_event_free(struct event *event)
{
    struct cuda_event *e = (struct cuda_event *)event;
    if (!e->capture)
        cuda_event_sync(event);
    CUDA_CALL(cudaEventDestroy(e->handle));
    free(e);
}

void cuda_event_record(struct event *event, struct stream *stream)
{
    struct cuda_stream *c = cuda_stream_of(stream);
    struct cuda_device *cuda = cuda_device_of(stream);
    struct cuda_event *e = (struct cuda_event *)event;
    uint64_t capture = cuda_capture_number(cuda);
    if (capture && e->timed)
        return;
    e->capture = capture;
    cuda_check(cuda, cudaEventRecord(e->handle, c->handle), "recording an event");
    if (!capture)
        cuda_stream_mark(c);
}

void cuda_event_wait(struct stream *stream, struct event *event)
{
    struct cuda_stream *c = cuda_stream_of(stream);
    struct cuda_device *cuda = cuda_device_of(stream);
    const struct cuda_event *e = (struct cuda_event *)event;
    ASSERT(!e->capture || c->in_graphs);
    if (e->capture == cuda_capture_number(cuda))
        cuda_check(cuda, cudaStreamWaitEvent(c->handle, e->handle, 0), "waiting for an event");
}
