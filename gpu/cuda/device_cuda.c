/* device_cuda.c: an NVIDIA GPU as a device.
 *
 * Streams are CUDA streams. Work that the host does in stream order (stream_submit) is a host function of the stream;
 * its argument lives in a ring of closures, so nothing is allocated:
 *
 *     stream_submit -> | closure | closure | … |  -> CUDA's thread      head: finished, tail: submitted (both count up)
 *
 * Host memory that the GPU cannot reach by itself is copied through pinned slots, so that no copy makes the host wait
 * for the stream (as CUDA's own staging does):
 *
 *     up      host: memcpy to a slot       GPU: slot -> device memory      a slot is free again when its event is
 * reached down    GPU: device memory -> slot   host function: memcpy from the slot
 *
 * The host runs ahead of the GPU by at most MARKERS recorded events and SLOTS staged copies; it ticks the progress
 * counter with every call, and while it waits for the GPU cuda_is_waiting() says so, so that peers see a rank whose GPU
 * is at work as alive.
 *
 * Events in and around captures follow device.h: in a capture only its own events are waited for, outside only those
 * that were recorded outside; CUDA itself would refuse all others. */
#include "gpu/cuda/device_cuda.h"

#include "core/clock.h"
#include "core/progress.h"
#include "gpu/cuda/attention_cudnn.h"
#include "gpu/cuda/device_cuda_open.h"
#include "gpu/cuda/gemm_cuda.h"
#include "gpu/cuda/ops_cuda.h"
#include "gpu/peaks.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef _OPENMP
#include <omp.h>
#endif

static double gib(size_t bytes)
{
    return (double)bytes / (1 << 30);
}

/* ---- errors -------------------------------------------------------------- */

/* What went wrong in calls that another call of ours would have got right: too much memory, wrong arguments. Whatever
 * else a device that was opened answers (ECC errors, a failed launch, a GPU that fell off the bus, codes that newer
 * drivers add) says that it, or its driver, has failed. */
static enum status status_of(cudaError_t code)
{
    static const cudaError_t ours[] = {cudaErrorMemoryAllocation,
                                       cudaErrorInvalidValue,
                                       cudaErrorInvalidConfiguration,
                                       cudaErrorInvalidDevice,
                                       cudaErrorInvalidDevicePointer,
                                       cudaErrorInvalidMemcpyDirection,
                                       cudaErrorInvalidDeviceFunction,
                                       cudaErrorInvalidResourceHandle,
                                       cudaErrorInvalidKernelImage,
                                       cudaErrorInvalidPtx,
                                       cudaErrorInvalidSource,
                                       cudaErrorNoKernelImageForDevice,
                                       cudaErrorUnsupportedPtxVersion,
                                       cudaErrorJitCompilerNotFound,
                                       cudaErrorLaunchOutOfResources,
                                       cudaErrorHostMemoryAlreadyRegistered,
                                       cudaErrorHostMemoryNotRegistered,
                                       cudaErrorIllegalState,
                                       cudaErrorNotPermitted,
                                       cudaErrorNotSupported};
    if (code == cudaSuccess || code == cudaErrorNotReady)
        return STATUS_DEVICE;
    if (code >= cudaErrorStreamCaptureUnsupported && code <= cudaErrorCapturedEvent)
        return STATUS_DEVICE;
    for (size_t i = 0; i < COUNT_OF(ours); i++)
        if (code == ours[i])
            return STATUS_DEVICE;
    return STATUS_BROKEN;
}

/* The first failure counts. */
static void remember(struct cuda_device *cuda, enum status status, const char *text)
{
    pthread_mutex_lock(&cuda->mutex);
    struct error *error = cuda->capturing ? &cuda->capture_error : &cuda->error;
    if (error->code == STATUS_OK)
        error_set(error, status, "GPU %d (%s): %s", cuda->index, cuda->device.name, text);
    pthread_mutex_unlock(&cuda->mutex);
}

void cuda_fail(struct cuda_device *cuda, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    /* a library says only that it could not: CUDA answers every call with the error of a device that has failed */
    remember(cuda, cuda->capturing ? STATUS_DEVICE : status_of(cudaStreamQuery(NULL)), text);
}

bool cuda_check(struct cuda_device *cuda, cudaError_t code, const char *what)
{
    progress_tick(); /* one call after the other: this rank gets somewhere */
    if (code == cudaSuccess)
        return true;
    char text[1024];
    snprintf(text, sizeof text, "%s: %s (%s)%s", what, cudaGetErrorString(code), cudaGetErrorName(code),
             cuda->capturing ? ""
                             : "; hint: CUDA_LAUNCH_BLOCKING=1 in the environment makes the message name the call");
    remember(cuda, status_of(code), text);
    return false;
}

static enum status cuda_device_check(struct device *device, struct error *err)
{
    struct cuda_device *cuda = device->private_;
    enum status status = STATUS_OK;
    pthread_mutex_lock(&cuda->mutex);
    if (cuda->error.code != STATUS_OK)
        status = error_set(err, cuda->error.code, "%s", cuda->error.text);
    pthread_mutex_unlock(&cuda->mutex);
    return status;
}

/* ---- memory -------------------------------------------------------------- */

static enum status range_add(struct cuda_device *cuda, void *memory, size_t bytes, struct error *err)
{
    pthread_mutex_lock(&cuda->mutex);
    bool room = cuda->num_ranges < CUDA_MAX_RANGES;
    if (room)
        cuda->ranges[cuda->num_ranges++] = (struct cuda_range){memory, bytes};
    pthread_mutex_unlock(&cuda->mutex);
    return room ? STATUS_OK
                : error_set(err, STATUS_DEVICE, "more than %d pieces of memory on one GPU", (int)CUDA_MAX_RANGES);
}

static void range_remove(struct cuda_device *cuda, const void *memory)
{
    pthread_mutex_lock(&cuda->mutex);
    for (int i = 0; i < cuda->num_ranges; i++) {
        if (cuda->ranges[i].base == (const char *)memory) {
            cuda->ranges[i] = cuda->ranges[--cuda->num_ranges];
            break;
        }
    }
    pthread_mutex_unlock(&cuda->mutex);
}

/* Whether the GPU can reach the memory by itself. */
static bool is_reachable(struct cuda_device *cuda, const void *memory)
{
    const char *at = memory;
    bool found = false;
    pthread_mutex_lock(&cuda->mutex);
    for (int i = 0; i < cuda->num_ranges && !found; i++)
        found = at >= cuda->ranges[i].base && at < cuda->ranges[i].base + cuda->ranges[i].bytes;
    pthread_mutex_unlock(&cuda->mutex);
    return found;
}

static enum status cuda_alloc(struct device *device, size_t bytes, void **memory, struct error *err)
{
    struct cuda_device *cuda = device->private_;
    size_t available = 0, total = 0;
    cudaMemGetInfo(&available, &total);
    cudaError_t code = cudaMalloc(memory, bytes ? bytes : 1);
    if (code != cudaSuccess) {
        cudaGetLastError(); /* not a failure of the device */
        *memory = NULL;
        error_set(err, status_of(code),
                  "cannot allocate %.3f GiB on GPU %d (%s): %s; %.3f GiB of its %.3f GiB were available", gib(bytes),
                  cuda->index, device->name, cudaGetErrorString(code), gib(available), gib(total));
        if (err && err->code == STATUS_BROKEN)
            return err->code;
        return error_hint(err, "use a smaller micro batch or sequence, activation checkpointing, a higher ZeRO stage, "
                               "or more ranks; nvidia-smi shows who else uses the GPU");
    }
    enum status status = range_add(cuda, *memory, bytes, err);
    code = cudaMemset(*memory, 0, bytes);
    if (code == cudaSuccess)
        code = cudaDeviceSynchronize();
    if (status == STATUS_OK && code != cudaSuccess)
        status = error_set(err, status_of(code), "cannot clear the memory of GPU %d (%s): %s", cuda->index,
                           device->name, cudaGetErrorString(code));
    if (status != STATUS_OK) {
        range_remove(cuda, *memory);
        cudaFree(*memory);
        *memory = NULL;
    }
    return status;
}

static void cuda_free(struct device *device, void *memory, size_t bytes)
{
    (void)bytes;
    range_remove(device->private_, memory);
    cuda_check(device->private_, cudaFree(memory), "cudaFree");
}

static enum status cuda_alloc_host(struct device *device, size_t bytes, void **memory, struct error *err)
{
    struct cuda_device *cuda = device->private_;
    cudaError_t code = cudaHostAlloc(memory, bytes ? bytes : 1, cudaHostAllocDefault);
    if (code != cudaSuccess) {
        cudaGetLastError();
        *memory = NULL;
        error_set(err, STATUS_DEVICE, "cannot allocate %.3f GiB of pinned host memory: %s", gib(bytes),
                  cudaGetErrorString(code));
        return error_hint(err, "free memory on this machine, or run fewer ranks on it");
    }
    memset(*memory, 0, bytes);
    enum status status = range_add(cuda, *memory, bytes, err);
    if (status != STATUS_OK) {
        cudaFreeHost(*memory);
        *memory = NULL;
    }
    return status;
}

static void cuda_free_host(struct device *device, void *memory, size_t bytes)
{
    (void)bytes;
    range_remove(device->private_, memory);
    cuda_check(device->private_, cudaFreeHost(memory), "cudaFreeHost");
}

static enum status cuda_pin_host(struct device *device, void *memory, size_t bytes, struct error *err)
{
    struct cuda_device *cuda = device->private_;
    cudaError_t code = cudaHostRegister(memory, bytes, cudaHostRegisterDefault);
    if (code != cudaSuccess) {
        cudaGetLastError();
        return error_set(err, STATUS_DEVICE, "cannot pin %.3f GiB of host memory: %s; hint: see `ulimit -l`",
                         gib(bytes), cudaGetErrorString(code));
    }
    enum status status = range_add(cuda, memory, bytes, err);
    if (status != STATUS_OK)
        cudaHostUnregister(memory);
    return status;
}

static void cuda_unpin_host(struct device *device, void *memory, size_t bytes)
{
    (void)bytes;
    range_remove(device->private_, memory);
    cuda_check(device->private_, cudaHostUnregister(memory), "cudaHostUnregister");
}

/* ---- streams ------------------------------------------------------------- */

enum { RING_SLOTS = 256, SLOTS = 16, SLOT_BYTES = 512 << 10, MARKERS = 128 };

struct closure {
    struct cuda_staging *owner;
    void (*function)(void *argument);
    _Alignas(16) unsigned char argument[STREAM_ARGUMENT_MAX];
};

struct cuda_staging {
    char *slots;                                  /* pinned (SLOTS, SLOT_BYTES) */
    cudaEvent_t slot_free[SLOTS];                 /* the last use of a slot */
    cudaEvent_t markers[MARKERS];                 /* points of the stream */
    uint64_t slot_next, marker_next, marker_seen; /* count up */
    pthread_mutex_t mutex;                        /* of head */
    pthread_cond_t room;
    uint64_t head, tail;
    struct closure ring[RING_SLOTS];
};

static int64_t milliseconds_now(void)
{
    return (int64_t)(1e3 * seconds_now()) + 1;
}

bool cuda_is_waiting(struct cuda_device *cuda)
{
    const int64_t patience = 600 * 1000;
    int64_t since = __atomic_load_n(&cuda->waiting_since, __ATOMIC_RELAXED);
    return since && milliseconds_now() - since < patience;
}

static void begin_wait(struct cuda_device *cuda)
{
    __atomic_store_n(&cuda->waiting_since, milliseconds_now(), __ATOMIC_RELAXED);
}

static void end_wait(struct cuda_device *cuda)
{
    __atomic_store_n(&cuda->waiting_since, 0, __ATOMIC_RELAXED);
}

/* The host waits for the GPU. */
static void wait_for(struct cuda_device *cuda, cudaEvent_t event, const char *what)
{
    begin_wait(cuda);
    cudaError_t code = cudaEventSynchronize(event);
    end_wait(cuda);
    cuda_check(cuda, code, what);
}

static void wait_for_all(struct cuda_device *cuda, cudaStream_t stream, const char *what)
{
    begin_wait(cuda);
    cudaError_t code = cudaStreamSynchronize(stream);
    end_wait(cuda);
    cuda_check(cuda, code, what);
}

static enum status staging_new(struct cuda_device *cuda, struct cuda_staging **staging, struct error *err)
{
    struct cuda_staging *s = *staging = calloc(1, sizeof *s);
    if (!s)
        return error_set(err, STATUS_DEVICE, "cannot create a stream: out of memory");
    pthread_mutex_init(&s->mutex, NULL);
    condition_init(&s->room);
    TRY(cuda_alloc_host(&cuda->device, (size_t)SLOTS * SLOT_BYTES, (void **)&s->slots, err));
    for (int i = 0; i < SLOTS + MARKERS; i++) {
        cudaEvent_t *event = i < SLOTS ? &s->slot_free[i] : &s->markers[i - SLOTS];
        cudaError_t code = cudaEventCreateWithFlags(event, cudaEventDisableTiming);
        if (code != cudaSuccess)
            return error_set(err, status_of(code), "cannot create a stream's events on GPU %d: %s", cuda->index,
                             cudaGetErrorString(code));
    }
    return STATUS_OK;
}

static void staging_free(struct cuda_device *cuda, struct cuda_staging *s)
{
    if (!s)
        return;
    for (int i = 0; i < SLOTS; i++)
        if (s->slot_free[i])
            cudaEventDestroy(s->slot_free[i]);
    for (int i = 0; i < MARKERS; i++)
        if (s->markers[i])
            cudaEventDestroy(s->markers[i]);
    if (s->slots)
        cuda_free_host(&cuda->device, s->slots, (size_t)SLOTS * SLOT_BYTES);
    pthread_cond_destroy(&s->room);
    pthread_mutex_destroy(&s->mutex);
    free(s);
}

static void cuda_stream_free(struct stream *stream)
{
    struct cuda_stream *s = cuda_stream_of(stream);
    struct cuda_device *cuda = cuda_device_of(stream);
    if (s->handle) {
        wait_for_all(cuda, s->handle, "the last work of a stream");
        cudaStreamDestroy(s->handle);
    }
    staging_free(cuda, s->staging);
    free(s);
}

static enum status cuda_stream_new(struct device *device, enum stream_kind kind, struct stream **stream,
                                   struct error *err)
{
    enum status status;
    int least = 0, greatest = 0;
    struct cuda_stream *s = calloc(1, sizeof *s);
    if (!s)
        return error_set(err, STATUS_DEVICE, "cannot create a stream: out of memory");
    s->base.device = device;
    /* What peers wait for goes first. */
    cudaDeviceGetStreamPriorityRange(&least, &greatest);
    cudaError_t code =
        cudaStreamCreateWithPriority(&s->handle, cudaStreamNonBlocking, kind == STREAM_COMM ? greatest : least);
    if (code != cudaSuccess) {
        s->handle = NULL;
        status = error_set(err, status_of(code), "cannot create a stream on GPU %d: %s",
                           ((struct cuda_device *)device->private_)->index, cudaGetErrorString(code));
        goto fail;
    }
    TRY_GOTO(staging_new(device->private_, &s->staging, err));
    *stream = &s->base;
    return STATUS_OK;
fail:
    cuda_stream_free(&s->base);
    return status;
}

/* Runs on CUDA's thread, in stream order. */
static void CUDART_CB run_closure(void *argument)
{
    struct closure *closure = argument;
    struct cuda_staging *s = closure->owner;
    closure->function(closure->argument);
    pthread_mutex_lock(&s->mutex);
    s->head++;
    pthread_cond_broadcast(&s->room);
    pthread_mutex_unlock(&s->mutex);
}

/* Waits for a free closure; false: the stream has failed and runs no more of them. */
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
        if (room)
            return true;
        cudaError_t code = cudaStreamQuery(stream->handle); /* not under the mutex: host functions take it */
        if (code == cudaErrorNotReady)
            cudaGetLastError();
        if (code != cudaErrorNotReady && !cuda_check(cuda_device_of(&stream->base), code, "work of a stream"))
            return false;
    }
}

static void cuda_submit(struct stream *stream, void (*function)(void *argument), const void *argument, size_t size)
{
    struct cuda_stream *c = cuda_stream_of(stream);
    struct cuda_staging *s = c->staging;
    if (cuda_is_capturing(stream->device)) {
        cuda_fail(cuda_device_of(stream), "a host function cannot be captured");
        return;
    }
    if (!wait_for_room(c))
        return;
    struct closure *closure = &s->ring[s->tail % RING_SLOTS];
    closure->owner = s;
    closure->function = function;
    memcpy(closure->argument, argument, size);
    pthread_mutex_lock(&s->mutex);
    s->tail++;
    pthread_mutex_unlock(&s->mutex);
    if (!cuda_check(cuda_device_of(stream), cudaLaunchHostFunc(c->handle, run_closure, closure), "a host function")) {
        pthread_mutex_lock(&s->mutex);
        s->tail--;
        pthread_mutex_unlock(&s->mutex);
    }
}

static void cuda_sync(struct stream *stream)
{
    struct cuda_stream *c = cuda_stream_of(stream);
    struct cuda_staging *s = c->staging;
    ASSERT(!cuda_is_capturing(stream->device));
    for (; s->marker_seen < s->marker_next; s->marker_seen++)
        wait_for(cuda_device_of(stream), s->markers[s->marker_seen % MARKERS], "work of a stream");
    wait_for_all(cuda_device_of(stream), c->handle, "work of a stream");
}

/* ---- copies -------------------------------------------------------------- */

struct copy_back {
    char *dst;
    const char *slot;
    size_t bytes;
};

static void run_copy_back(void *argument)
{
    const struct copy_back *copy = argument;
    memcpy(copy->dst, copy->slot, copy->bytes);
    progress_tick();
}

static void cuda_copy(struct stream *stream, void *dst, const void *src, size_t bytes)
{
    struct cuda_stream *c = cuda_stream_of(stream);
    struct cuda_device *cuda = cuda_device_of(stream);
    struct cuda_staging *s = c->staging;
    bool to_gpu = is_reachable(cuda, dst), from_gpu = is_reachable(cuda, src);
    if (to_gpu && from_gpu) {
        cuda_check(cuda, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, c->handle), "a copy");
        return;
    }
    if (cuda_is_capturing(stream->device)) {
        cuda_fail(cuda, "a copy of memory that the GPU does not reach cannot be captured");
        return;
    }
    for (size_t at = 0; at < bytes; at += SLOT_BYTES) {
        size_t n = bytes - at < SLOT_BYTES ? bytes - at : SLOT_BYTES, i = s->slot_next++ % SLOTS;
        char *slot = s->slots + i * SLOT_BYTES;
        wait_for(cuda, s->slot_free[i], "a staged copy");
        if (from_gpu)
            cuda_check(cuda, cudaMemcpyAsync(slot, (const char *)src + at, n, cudaMemcpyDefault, c->handle), "a copy");
        else
            memcpy(slot, (const char *)src + at, n);
        if (to_gpu) {
            cuda_check(cuda, cudaMemcpyAsync((char *)dst + at, slot, n, cudaMemcpyDefault, c->handle), "a copy");
        } else {
            struct copy_back copy = {(char *)dst + at, slot, n};
            cuda_submit(stream, run_copy_back, &copy, sizeof copy);
        }
        cuda_check(cuda, cudaEventRecord(s->slot_free[i], c->handle), "a staged copy");
    }
}

struct fill {
    char *dst;
    size_t bytes;
};

static void run_fill(void *argument)
{
    const struct fill *fill = argument;
    memset(fill->dst, 0, fill->bytes);
}

static void cuda_fill_zero(struct stream *stream, void *dst, size_t bytes)
{
    struct cuda_stream *c = cuda_stream_of(stream);
    struct cuda_device *cuda = cuda_device_of(stream);
    struct fill fill = {dst, bytes};
    if (is_reachable(cuda, dst))
        cuda_check(cuda, cudaMemsetAsync(dst, 0, bytes, c->handle), "filling with zeros");
    else
        cuda_submit(stream, run_fill, &fill, sizeof fill);
}

/* ---- events -------------------------------------------------------------- */

static enum status cuda_event_new(struct device *device, bool timed, struct event **event, struct error *err)
{
    struct cuda_event *e = calloc(1, sizeof *e);
    if (!e)
        return error_set(err, STATUS_DEVICE, "cannot create an event: out of memory");
    e->base.device = device;
    e->timed = timed;
    cudaError_t code = cudaEventCreateWithFlags(&e->handle, timed ? cudaEventDefault : cudaEventDisableTiming);
    if (code != cudaSuccess) {
        free(e);
        return error_set(err, status_of(code), "cannot create an event on GPU %d: %s",
                         ((struct cuda_device *)device->private_)->index, cudaGetErrorString(code));
    }
    *event = &e->base;
    return STATUS_OK;
}

static void cuda_event_sync(struct event *event)
{
    struct cuda_event *e = (struct cuda_event *)event;
    ASSERT(!e->capture && !cuda_is_capturing(event->device));
    wait_for(event->device->private_, e->handle, "work before an event");
}

static bool cuda_event_elapsed(struct event *from, struct event *to, double *seconds)
{
    float milliseconds;
    struct cuda_device *cuda = from->device->private_;
    cudaError_t code =
        cudaEventElapsedTime(&milliseconds, ((struct cuda_event *)from)->handle, ((struct cuda_event *)to)->handle);
    if (code == cudaErrorNotReady)
        cudaGetLastError(); /* not a failure: nothing to remember */
    if (code == cudaErrorNotReady || !cuda_check(cuda, code, "the time between events"))
        return false;
    *seconds = 1e-3 * (double)milliseconds;
    return true;
}

static void cuda_event_free(struct event *event)
{
    struct cuda_event *e = (struct cuda_event *)event;
    if (!e->capture)
        cuda_event_sync(event);
    cudaEventDestroy(e->handle);
    free(e);
}

void cuda_stream_mark(struct cuda_stream *stream)
{
    struct cuda_device *cuda = cuda_device_of(&stream->base);
    struct cuda_staging *s = stream->staging;
    if (s->marker_next - s->marker_seen == MARKERS)
        wait_for(cuda, s->markers[s->marker_seen++ % MARKERS], "work of a stream");
    cuda_check(cuda, cudaEventRecord(s->markers[s->marker_next++ % MARKERS], stream->handle), "recording an event");
}

static void cuda_event_record(struct event *event, struct stream *stream)
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

static void cuda_event_wait(struct stream *stream, struct event *event)
{
    struct cuda_stream *c = cuda_stream_of(stream);
    struct cuda_device *cuda = cuda_device_of(stream);
    const struct cuda_event *e = (struct cuda_event *)event;
    ASSERT(!e->capture || c->in_graphs);
    if (e->capture == cuda_capture_number(cuda))
        cuda_check(cuda, cudaStreamWaitEvent(c->handle, e->handle, 0), "waiting for an event");
}

/* ---- the device ---------------------------------------------------------- */

static void cuda_close(struct device *device)
{
    struct cuda_device *cuda = device->private_;
    ops_profile_enable(device, false);
    attention_cudnn_free(cuda->attention);
    gemm_cuda_free(cuda->gemm);
    pthread_mutex_destroy(&cuda->mutex);
    free(cuda);
}

static const struct device_backend cuda_backend = {
    .close = cuda_close,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .alloc_host = cuda_alloc_host,
    .free_host = cuda_free_host,
    .pin_host = cuda_pin_host,
    .unpin_host = cuda_unpin_host,
    .prepare = ops_cuda_prepare,
    .workspace_bytes = ops_cuda_workspace_bytes,
    .describe = ops_cuda_describe,
    .check = cuda_device_check,
    .stream_new = cuda_stream_new,
    .stream_free = cuda_stream_free,
    .submit = cuda_submit,
    .sync = cuda_sync,
    .copy = cuda_copy,
    .fill_zero = cuda_fill_zero,
    .event_new = cuda_event_new,
    .event_elapsed = cuda_event_elapsed,
    .event_free = cuda_event_free,
    .event_record = cuda_event_record,
    .event_wait = cuda_event_wait,
    .event_sync = cuda_event_sync,
    .is_capturing = cuda_is_capturing,
    .graph_begin = cuda_graph_begin,
    .graph_end = cuda_graph_end,
    .graph_launch = cuda_graph_launch,
    .graph_free = cuda_graph_free,
};

/* GPUs that can be used; 0: `err` says why there is none. */
static int count_gpus(struct error *err)
{
    int count = 0, driver = 0, runtime = 0;
    cudaError_t code = cudaGetDeviceCount(&count);
    if (code == cudaSuccess && count > 0)
        return count;
    cudaGetLastError();
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (driver == 0) {
        error_set(err, STATUS_DEVICE, "no NVIDIA driver (libcuda.so.1) on this machine");
    } else if (code == cudaErrorInsufficientDriver || driver / 1000 < runtime / 1000) {
        error_set(err, STATUS_DEVICE, "the NVIDIA driver supports CUDA up to %d.%d, this build needs CUDA %d.%d",
                  driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
        error_hint(err, "update the driver, or build with an older CUDA toolkit");
    } else if (code == cudaErrorNoDevice || code == cudaSuccess) {
        error_set(err, STATUS_DEVICE, "the NVIDIA driver shows no GPU%s%s%s",
                  visible ? " (CUDA_VISIBLE_DEVICES is '" : "", visible ? visible : "", visible ? "')" : "");
    } else {
        error_set(err, STATUS_DEVICE, "the NVIDIA driver does not start: %s (%s)", cudaGetErrorString(code),
                  cudaGetErrorName(code));
    }
    return 0;
}

static enum status check_capability(int index, const struct cudaDeviceProp *properties, struct error *err)
{
    if (10 * properties->major + properties->minor >= CUDA_CAPABILITY_LEAST)
        return STATUS_OK;
    error_set(err, STATUS_DEVICE,
              "GPU %d (%.60s) has compute capability %d.%d, ztrain needs %d.%d or higher (A100 and newer)", index,
              properties->name, properties->major, properties->minor, CUDA_CAPABILITY_LEAST / 10,
              CUDA_CAPABILITY_LEAST % 10);
    return error_hint(err, "CUDA_VISIBLE_DEVICES takes another GPU; or train.device: cpu");
}

bool device_cuda_probe(char *why)
{
    struct error err;
    struct cudaDeviceProp properties;
    bool usable = count_gpus(&err) > 0;
    if (usable) {
        cudaError_t code = cudaGetDeviceProperties(&properties, 0);
        if (code != cudaSuccess)
            error_set(&err, STATUS_DEVICE, "GPU 0 does not say what it is: %s", cudaGetErrorString(code));
        usable = code == cudaSuccess && check_capability(0, &properties, &err) == STATUS_OK;
    }
    snprintf(why, 256, "%.255s", usable ? "" : err.text);
    return usable;
}

int device_cuda_identify(unsigned char (*uuids)[DEVICE_UUID_BYTES], int most)
{
    struct error err;
    struct cudaDeviceProp properties;
    int count = count_gpus(&err);
    _Static_assert(sizeof properties.uuid.bytes == DEVICE_UUID_BYTES, "a UUID is what CUDA says it is");
    for (int i = 0; i < count && i < most; i++) {
        memset(uuids[i], 0, DEVICE_UUID_BYTES);
        if (cudaGetDeviceProperties(&properties, i) == cudaSuccess)
            memcpy(uuids[i], properties.uuid.bytes, DEVICE_UUID_BYTES);
    }
    return count;
}

/* The version of the kernel's module, which is the driver's; else the CUDA that the driver is for. */
static void read_driver(int cuda_version, char *text, size_t size)
{
    FILE *file = fopen("/sys/module/nvidia/version", "re");
    bool known = file && fgets(text, (int)size, file);
    if (file)
        fclose(file);
    if (known)
        text[strcspn(text, "\n")] = 0;
    else
        snprintf(text, size, "for CUDA %d.%d", cuda_version / 1000, cuda_version % 1000 / 10);
}

static enum status open_gpu(struct cuda_device *cuda, int index, struct error *err)
{
    struct cudaDeviceProp properties;
    int count = count_gpus(err), driver = 0;
    if (count == 0) {
        error_prefix(err, "cannot open a CUDA device");
        return error_hint(err, "set train.device to cpu or auto");
    }
    if (index >= count)
        return error_set(err, STATUS_DEVICE, "cannot open GPU %d: this process sees %d", index, count);
    cuda->index = index;
    cudaError_t code = cudaGetDeviceProperties(&properties, cuda->index);
    if (code == cudaSuccess)
        TRY(check_capability(cuda->index, &properties, err));
    if (code == cudaSuccess)
        code = cudaSetDevice(cuda->index);
    if (code == cudaSuccess)
        code = cudaFree(NULL); /* makes the context */
    if (code != cudaSuccess) {
        error_set(err, STATUS_DEVICE, "cannot open GPU %d of %d: %s (%s)", cuda->index, count, cudaGetErrorString(code),
                  cudaGetErrorName(code));
        return error_hint(err, "nvidia-smi shows whether it is in use by others, in exclusive mode, or out of order");
    }
    cuda->capability = 10 * properties.major + properties.minor;
    cuda->sm_count = properties.multiProcessorCount;
    cuda->l2_bytes = (size_t)properties.l2CacheSize;
    cuda->device.memory_bytes = properties.totalGlobalMem;
    snprintf(cuda->device.name, sizeof cuda->device.name, "%.127s", properties.name);
    for (size_t i = 0; i < sizeof properties.uuid.bytes; i++)
        snprintf(cuda->device.id + 2 * i, sizeof cuda->device.id - 2 * i, "%02x",
                 (unsigned)(unsigned char)properties.uuid.bytes[i]);
    cudaDriverGetVersion(&driver);
    snprintf(cuda->device.capability, sizeof cuda->device.capability, "%d.%d", properties.major, properties.minor);
    snprintf(cuda->device.runtime, sizeof cuda->device.runtime, "%d.%d", CUDART_VERSION / 1000,
             CUDART_VERSION % 1000 / 10);
    read_driver(driver, cuda->device.driver, sizeof cuda->device.driver);
    TRY(cublaslt_open(&cuda->cublaslt, err));
    struct cuda_library_info cublaslt;
    cuda_library_describe(CUDA_LIBRARY_CUBLASLT, &cublaslt);
    snprintf(cuda->device.detail, sizeof cuda->device.detail,
             "GPU %d of %d, compute capability %d.%d, %d SMs, %.1f GiB, driver for CUDA %d.%d, cublasLt %s",
             cuda->index, count, properties.major, properties.minor, cuda->sm_count, gib(cuda->device.memory_bytes),
             driver / 1000, driver % 1000 / 10, cublaslt.version);
    return STATUS_OK;
}

enum status device_cuda_open(int index, int threads, struct device **device, struct error *err)
{
    enum status status;
    struct cuda_device *cuda = calloc(1, sizeof *cuda);
    if (!cuda)
        return error_set(err, STATUS_DEVICE, "cannot open a CUDA device: out of memory");
    pthread_mutex_init(&cuda->mutex, NULL);
    cuda->private_.backend = &cuda_backend;
    cuda->device.kind = DEVICE_CUDA;
    cuda->device.private_ = cuda;
    cuda->device.ops = &ops_cuda_table;
    cuda->device.threads = 1;
#ifdef _OPENMP
    if (threads > 0) /* work of the host: initial weights, checkpoints */
        omp_set_num_threads(threads);
    cuda->device.threads = threads > 0 ? threads : omp_get_max_threads();
#else
    (void)threads;
#endif
    struct slow_call slow; /* a context, libraries */
    progress_slow_begin(&slow, "opening the GPU", NULL, -1);
    status = open_gpu(cuda, index, err);
    if (status == STATUS_OK)
        status = gemm_cuda_new(cuda, &cuda->gemm, err);
    if (status == STATUS_OK)
        status = attention_cudnn_new(cuda, &cuda->attention, err);
    progress_slow_end(&slow);
    if (status != STATUS_OK)
        goto fail;
    cuda->device.peak_bytes = peaks_bytes(cuda->device.name);
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++)
        cuda->device.peak_flops[dtype] =
            peaks_flops(cuda->device.name, (enum dtype)dtype, gemm_cuda_uses_tf32(cuda->gemm));
    *device = &cuda->device;
    return STATUS_OK;
fail:
    gemm_cuda_free(cuda->gemm);
    pthread_mutex_destroy(&cuda->mutex);
    free(cuda);
    return status;
}
