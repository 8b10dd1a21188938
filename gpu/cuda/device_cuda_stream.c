/* SPDX-License-Identifier: Apache-2.0 */
/* device_cuda_stream.c: streams and events of a CUDA device: their work, host functions, copies, and how far the host
 * runs ahead.
 *
 * Work that the host does in stream order (stream_submit) is a host function; its argument lives in a ring of closures:
 *
 *     stream_submit() -> | closure | closure | … | -> CUDA's thread      tail: submitted, head: done (both count up)
 *
 * Host memory that the GPU cannot reach is copied through pinned slots, so that no copy makes the host wait for the
 * stream (as CUDA's own staging does):
 *
 *     to the GPU      host: memcpy to a slot             GPU: slot -> device memory
 *     to the host     GPU: device memory -> slot         host function: memcpy from the slot
 *
 * A slot is free again when the event after its copy is reached. The host runs ahead of the GPU by at most MARKERS
 * recorded events and SLOTS staged copies. */
#include "gpu/cuda/device_cuda.h"

#include "core/core.h"

enum { RING_SLOTS = 256, SLOTS = 16, SLOT_BYTES = 512 << 10, MARKERS = 128 };

struct closure {
    struct cuda_staging *owner;
    void (*function)(void *argument);
    _Alignas(16) unsigned char argument[STREAM_ARGUMENT_MAX];
};

struct cuda_staging {
    char *slots;                                  /* pinned (SLOTS, SLOT_BYTES) */
    cudaEvent_t slot_free[SLOTS];                 /* events after the last use of a slot */
    cudaEvent_t markers[MARKERS];                 /* events at the latest marked points of the stream */
    uint64_t slot_next, marker_next, marker_seen; /* these count up */
    pthread_mutex_t mutex;                        /* protects head */
    pthread_cond_t room;
    uint64_t head, tail;
    struct closure ring[RING_SLOTS];
};

/* ---- streams ------------------------------------------------------------- */

static cudaEvent_t *event_of(struct cuda_staging *s, int i)
{
    return i < SLOTS ? &s->slot_free[i] : &s->markers[i - SLOTS];
}

/* What it has made is the stream's, also after an error. */
static enum status stream_open(struct cuda_device *cuda, enum stream_kind kind, struct cuda_stream *stream,
                               struct error *err)
{
    int least = 0, greatest = 0;
    struct cuda_staging *s = stream->staging = memory_zeroed(1, sizeof *s);
    pthread_mutex_init(&s->mutex, NULL);
    condition_init(&s->room);
    /* Peers wait for communication, so it goes first. */
    cudaDeviceGetStreamPriorityRange(&least, &greatest);
    cudaError_t code = CUDA_CALL(
        cudaStreamCreateWithPriority(&stream->handle, cudaStreamNonBlocking, kind == STREAM_COMM ? greatest : least));
    if (code != cudaSuccess) {
        stream->handle = NULL;
        return error_set(err, cuda_status_of(code), "cannot create a stream on GPU %d: %s", cuda->index,
                         cudaGetErrorString(code));
    }
    TRY(cuda_device_alloc_host(&cuda->device, (size_t)SLOTS * SLOT_BYTES, (void **)&s->slots, err));
    for (int i = 0; i < SLOTS + MARKERS; i++) {
        code = CUDA_CALL(cudaEventCreateWithFlags(event_of(s, i), cudaEventBlockingSync | cudaEventDisableTiming));
        if (code != cudaSuccess)
            return error_set(err, cuda_status_of(code), "cannot create a stream's events on GPU %d: %s", cuda->index,
                             cudaGetErrorString(code));
    }
    return STATUS_OK;
}

void cuda_device_stream_free(struct stream *stream)
{
    struct cuda_stream *c = cuda_stream_of(stream);
    struct cuda_staging *s = c->staging;
    if (c->handle) {
        cuda_check(cuda_device_of(stream), cudaStreamSynchronize(c->handle), "the last work of a stream");
        CUDA_CALL(cudaStreamDestroy(c->handle));
    }
    for (int i = 0; i < SLOTS + MARKERS; i++)
        if (*event_of(s, i)) CUDA_CALL(cudaEventDestroy(*event_of(s, i)));
    if (s->slots) cuda_device_free_host(stream->device, s->slots, (size_t)SLOTS * SLOT_BYTES);
    pthread_cond_destroy(&s->room);
    pthread_mutex_destroy(&s->mutex);
    free(s);
    free(c);
}

enum status cuda_device_stream_new(struct device *device, enum stream_kind kind, struct stream **stream,
                                   struct error *err)
{
    struct cuda_stream *s = memory_zeroed(1, sizeof *s);
    s->base.device = device;
    enum status status = stream_open(device->private_, kind, s, err);
    if (status == STATUS_OK)
        *stream = &s->base;
    else
        cuda_device_stream_free(&s->base);
    return status;
}

/* ---- host functions ------------------------------------------------------ */

/* Runs on CUDA's thread, in stream order. */
static void CUDART_CB run_closure(void *argument)
{
    struct closure *closure = argument;
    struct cuda_staging *s = closure->owner;
    closure->function(closure->argument);
    LOCKED(&s->mutex);
    s->head++;
    pthread_cond_broadcast(&s->room);
}

/* Waits for a free closure; false: the stream has failed and runs no closures any more. */
static bool wait_for_room(struct cuda_stream *stream)
{
    struct cuda_staging *s = stream->staging;
    for (;;) {
        pthread_mutex_lock(&s->mutex);
        bool room = s->tail - s->head < RING_SLOTS;
        if (!room) {
            const struct timespec until = time_after(1);
            pthread_cond_timedwait(&s->room, &s->mutex, &until);
        }
        pthread_mutex_unlock(&s->mutex);
        if (room) return true;
        cudaError_t code =
            CUDA_CALL(cudaStreamQuery(stream->handle)); /* without the mutex, which host functions take */
        if (code == cudaErrorNotReady) cudaGetLastError();
        if (code != cudaErrorNotReady && !cuda_check(cuda_device_of(&stream->base), code, "work of a stream"))
            return false;
    }
}

void cuda_device_submit(struct stream *stream, void (*function)(void *argument), const void *argument, size_t size)
{
    struct cuda_stream *c = cuda_stream_of(stream);
    struct cuda_staging *s = c->staging;
    if (cuda_device_is_capturing(stream->device)) {
        cuda_fail(cuda_device_of(stream), "a host function cannot be captured");
        return;
    }
    if (!wait_for_room(c)) return;
    struct closure *closure = &s->ring[s->tail % RING_SLOTS];
    closure->owner = s;
    closure->function = function;
    memcpy(closure->argument, argument, size);
    if (cuda_check(cuda_device_of(stream), cudaLaunchHostFunc(c->handle, run_closure, closure), "a host function"))
        s->tail++;
}

void cuda_device_sync(struct stream *stream)
{
    struct cuda_stream *c = cuda_stream_of(stream);
    struct cuda_staging *s = c->staging;
    ASSERT(!cuda_device_is_capturing(stream->device));
    for (; s->marker_seen < s->marker_next; s->marker_seen++)
        cuda_check(cuda_device_of(stream), cudaEventSynchronize(s->markers[s->marker_seen % MARKERS]),
                   "work of a stream");
    cuda_check(cuda_device_of(stream), cudaStreamSynchronize(c->handle), "work of a stream");
}

/* Marks a point of the stream, and waits where too many marks are not reached: so far the host may run ahead. */
static void cuda_stream_mark(struct cuda_stream *stream)
{
    struct cuda_device *cuda = cuda_device_of(&stream->base);
    struct cuda_staging *s = stream->staging;
    if (s->marker_next - s->marker_seen == MARKERS)
        cuda_check(cuda, cudaEventSynchronize(s->markers[s->marker_seen++ % MARKERS]), "work of a stream");
    cuda_check(cuda, cudaEventRecord(s->markers[s->marker_next++ % MARKERS], stream->handle), "recording an event");
}

/* ---- copies -------------------------------------------------------------- */

struct host_copy {
    char *dst;
    const char *src; /* NULL: zeros */
    size_t bytes;
};

static void cuda_stream_host_copy(void *argument)
{
    const struct host_copy *copy = argument;
    if (copy->src)
        memcpy(copy->dst, copy->src, copy->bytes);
    else
        memset(copy->dst, 0, copy->bytes);
    heartbeat_beat();
}

/* A copy for each pair of ranges. */
static void direct_copy(struct stream *stream, char *dst, const char *src, size_t bytes)
{
    struct cuda_device *cuda = cuda_device_of(stream);
    for (size_t n; bytes > 0; dst += n, src += n, bytes -= n) {
        const size_t to = cuda_reach(cuda, dst), from = cuda_reach(cuda, src), most = to < from ? to : from;
        ASSERT(most > 0);
        n = bytes < most ? bytes : most;
        cuda_check(cuda, cudaMemcpyAsync(dst, src, n, cudaMemcpyDefault, cuda_stream_of(stream)->handle), "a copy");
    }
}

/* Through pinned slots. in_order: the host's part of a copy to the GPU is a host function as well. */
static void staged_copy(struct stream *stream, void *dst, const void *src, size_t bytes, bool in_order)
{
    struct cuda_stream *c = cuda_stream_of(stream);
    struct cuda_device *cuda = cuda_device_of(stream);
    struct cuda_staging *s = c->staging;
    const bool to_gpu = cuda_reach(cuda, dst) > 0, from_gpu = cuda_reach(cuda, src) > 0;
    for (size_t at = 0; at < bytes; at += SLOT_BYTES) {
        const size_t n = bytes - at < SLOT_BYTES ? bytes - at : SLOT_BYTES, i = s->slot_next++ % SLOTS;
        char *slot = s->slots + i * SLOT_BYTES;
        const struct host_copy filled = {slot, (const char *)src + at, n}, emptied = {(char *)dst + at, slot, n};
        if (!in_order) cuda_check(cuda, cudaEventSynchronize(s->slot_free[i]), "a staged copy");
        if (from_gpu)
            direct_copy(stream, slot, filled.src, n);
        else if (in_order)
            cuda_device_submit(stream, cuda_stream_host_copy, &filled, sizeof filled);
        else
            memcpy(slot, filled.src, n);
        if (to_gpu)
            direct_copy(stream, emptied.dst, slot, n);
        else
            cuda_device_submit(stream, cuda_stream_host_copy, &emptied, sizeof emptied);
        cuda_check(cuda, cudaEventRecord(s->slot_free[i], c->handle), "a staged copy");
    }
}

void cuda_device_copy(struct stream *stream, void *dst, const void *src, size_t bytes)
{
    struct cuda_device *cuda = cuda_device_of(stream);
    if (cuda_reach(cuda, dst) && cuda_reach(cuda, src))
        direct_copy(stream, dst, src, bytes);
    else if (cuda_device_is_capturing(stream->device))
        cuda_fail(cuda, "a copy of memory that the GPU does not reach cannot be captured");
    else
        staged_copy(stream, dst, src, bytes, false);
}

void cuda_device_copy_in_order(struct stream *stream, void *dst, const void *src, size_t bytes)
{
    struct cuda_device *cuda = cuda_device_of(stream);
    if (cuda_reach(cuda, src)) {
        cuda_device_copy(stream, dst, src, bytes);
        return;
    }
    ASSERT(cuda_reach(cuda, dst) && !cuda_device_is_capturing(stream->device));
    staged_copy(stream, dst, src, bytes, true);
}

void cuda_device_fill_zero(struct stream *stream, void *dst, size_t bytes)
{
    struct cuda_device *cuda = cuda_device_of(stream);
    struct host_copy fill = {dst, NULL, bytes};
    if (!cuda_reach(cuda, dst))
        cuda_device_submit(stream, cuda_stream_host_copy, &fill, sizeof fill);
    else
        for (size_t n; fill.bytes > 0; fill.dst += n, fill.bytes -= n) {
            const size_t reach = cuda_reach(cuda, fill.dst);
            ASSERT(reach > 0);
            n = fill.bytes < reach ? fill.bytes : reach;
            cuda_check(cuda, cudaMemsetAsync(fill.dst, 0, n, cuda_stream_of(stream)->handle), "filling with zeros");
        }
}

/* ---- events -------------------------------------------------------------- */

/* In a capture only events recorded in it are waited for, outside only those of outside: CUDA refuses others. */
enum status cuda_device_event_new(struct device *device, bool timed, struct event **event, struct error *err)
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

void cuda_device_event_sync(struct event *event)
{
    struct cuda_event *e = (struct cuda_event *)event;
    ASSERT(!e->capture && !cuda_device_is_capturing(event->device));
    cuda_check(event->device->private_, cudaEventSynchronize(e->handle), "work before an event");
}

bool cuda_device_event_elapsed(struct event *from, struct event *to, double *seconds)
{
    float milliseconds;
    const cudaEvent_t end = ((struct cuda_event *)to)->handle;
    cudaError_t code = CUDA_CALL(cudaEventQuery(end)); /* of which compute-sanitizer reports no error */
    if (code == cudaSuccess)
        code = CUDA_CALL(cudaEventElapsedTime(&milliseconds, ((struct cuda_event *)from)->handle, end));
    if (code == cudaErrorNotReady) cudaGetLastError(); /* not a failure: clears CUDA's last error */
    if (code == cudaErrorNotReady || !cuda_check(from->device->private_, code, "the time between events")) return false;
    *seconds = 1e-3 * (double)milliseconds;
    return true;
}

void cuda_device_event_free(struct event *event)
{
    struct cuda_event *e = (struct cuda_event *)event;
    if (!e->capture) cuda_device_event_sync(event);
    CUDA_CALL(cudaEventDestroy(e->handle));
    free(e);
}

void cuda_device_event_record(struct event *event, struct stream *stream)
{
    struct cuda_stream *c = cuda_stream_of(stream);
    struct cuda_device *cuda = cuda_device_of(stream);
    struct cuda_event *e = (struct cuda_event *)event;
    uint64_t capture = cuda_capture_number(cuda);
    if (capture && e->timed) return;
    e->capture = capture;
    cuda_check(cuda, cudaEventRecord(e->handle, c->handle), "recording an event");
    if (!capture) cuda_stream_mark(c);
}

void cuda_device_event_wait(struct stream *stream, struct event *event)
{
    struct cuda_stream *c = cuda_stream_of(stream);
    struct cuda_device *cuda = cuda_device_of(stream);
    const struct cuda_event *e = (struct cuda_event *)event;
    ASSERT(!e->capture || c->in_graphs);
    if (e->capture == cuda_capture_number(cuda))
        cuda_check(cuda, cudaStreamWaitEvent(c->handle, e->handle, 0), "waiting for an event");
}
