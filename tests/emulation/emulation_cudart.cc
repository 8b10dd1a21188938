/* SPDX-License-Identifier: Apache-2.0 */
/* emulation_cudart.cc: the functions of the CUDA run time that ztrain calls; a function that is missing fails the link.
 *
 * A queued copy runs later. A copy from host memory therefore keeps a hash of it, and a copy to host memory fills it
 * with 0xff first: code that uses the memory before the copy has run is caught. cudaMemcpyAsync on memory that is not
 * pinned is treated as asynchronous as well; CUDA only documents that it might not be. */
#include "emulation_host.h"
#include "emulation_queue.h"

#include <chrono>
#include <inttypes.h>
#include <map>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

using namespace emulation;

namespace
{
thread_local cudaError_t last_error;
thread_local int current_device; /* among the visible ones */
int used_device = -1;            /* the one that has memory and streams */
std::map<const void *, size_t> dynamic_allowed;

/* The machine's GPUs that this process sees, in its order. */
const std::vector<int> &visible_gpus(void)
{
    static const std::vector<int> gpus = [] {
        const char *all = getenv("ZTRAIN_EMULATION_GPUS"), *visible = getenv("CUDA_VISIBLE_DEVICES");
        int count = all ? atoi(all) : 1;
        std::vector<int> found;
        for (int i = 0; i < count && !visible; i++)
            found.push_back(i);
        while (visible && *visible) { /* up to the first number that does not exist */
            char *end;
            long gpu = strtol(visible, &end, 10);
            if (end == visible || gpu < 0 || gpu >= count)
                break;
            found.push_back(static_cast<int>(gpu));
            visible = *end == ',' ? end + 1 : end;
        }
        return found;
    }();
    return gpus;
}

/* The first number of the GPUs' compute capability; the second is 0. */
int capability_major(void)
{
    const char *major = getenv("ZTRAIN_EMULATION_MAJOR");
    return major ? atoi(major) : 9;
}

/* The CUDA that the driver supports, 1000 · major + 10 · minor; 0: there is no driver. */
int driver_version(void)
{
    const char *version = getenv("ZTRAIN_EMULATION_DRIVER");
    return version ? atoi(version) : CUDART_VERSION;
}

bool exists(int device)
{
    return device >= 0 && device < static_cast<int>(visible_gpus().size());
}

void identify(int device, char id[GPU_ID_BYTES])
{
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    uint64_t hash = hash_bytes(host, strlen(host));
    memset(id, 0, GPU_ID_BYTES);
    memcpy(id, &hash, sizeof hash);
    snprintf(id + sizeof hash, GPU_ID_BYTES - sizeof hash, "GPU%d", visible_gpus()[static_cast<size_t>(device)]);
}

/* The current GPU is a property of the thread: every thread has to set it. */
void use_device(const char *what)
{
    if (!exists(current_device))
        report("%s without a GPU", what);
    if (used_device < 0)
        used_device = current_device;
    if (current_device != used_device)
        report("%s while GPU %d is current: this process has its memory and streams on GPU %d", what, current_device,
               used_device);
}

event_state *event_of(cudaEvent_t event)
{
    if (!event)
        report("a NULL event");
    return reinterpret_cast<event_state *>(event);
}

cudaError_t make_event(cudaEvent_t *event, unsigned flags)
{
    event_state *e = new event_state();
    e->timed = !(flags & cudaEventDisableTiming);
    e->sleeps = flags & cudaEventBlockingSync;
    *event = reinterpret_cast<cudaEvent_t>(e);
    return cudaSuccess;
}

/* The direction of a copy, by its addresses; a kind other than cudaMemcpyDefault must agree. */
cudaMemcpyKind kind_of(const void *to, const void *from, cudaMemcpyKind kind)
{
    cudaMemcpyKind real = is_device(to)     ? is_device(from) ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice
                          : is_device(from) ? cudaMemcpyDeviceToHost
                                            : cudaMemcpyHostToHost;
    if (kind != cudaMemcpyDefault && kind != real)
        report("a copy from %s to %s is called kind %d", describe_address(from).c_str(), describe_address(to).c_str(),
               static_cast<int>(kind));
    return real;
}

/* Memory of any kind as the run time may access it. */
void *accessible(const void *p)
{
    void *writable = const_cast<void *>(p);
    return is_device(p) ? open_alias(writable) : pinned_alias(writable);
}

void copy(guard &lock, stream_state *s, void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    static const char *const names[] = {"a copy on the host", "a copy to the device", "a copy from the device",
                                        "a copy on the device"};
    kind = kind_of(to, from, kind);
    if (crosses_pinned(to, bytes) || crosses_pinned(from, bytes))
        report("a copy of %zu bytes leaves a piece of pinned memory, which CUDA refuses", bytes);
    operation op;
    op.name = std::string(names[kind]) + " (" + std::to_string(bytes) + " bytes)";
    op.ranges = {{from, bytes, false}, {to, bytes, true}};
    if (is_device(to))
        check_range("a copy to the device", to, bytes);
    if (is_device(from))
        check_range("a copy from the device", from, bytes);
    if (s->capture) {
        op.again = [=](guard &held, stream_state *branch) { copy(held, branch, to, from, bytes, kind); };
        enqueue(lock, s, std::move(op));
        return;
    }
    const bool quiet = is_quiet(is_device(to) ? from : to, bytes), watched = quiet && !is_device(from);
    uint64_t hash = watched ? hash_bytes(accessible(from), bytes) : 0;
    pinned_copy pinned = {}, *closed = nullptr;
    if (!is_device(to) && quiet) {
        std::vector<unsigned char> poison(bytes, 0xff);
        copy_bytes(accessible(to), poison.data(), bytes);
        if (is_pinned(to)) {
            pinned = {to, bytes, false, 0, 0};
            closed = &pinned;
        }
    } else if (watched && is_pinned(from)) {
        pinned = {from, bytes, true, 0, 0};
        closed = &pinned;
    }
    uint32_t number = s->queued + 1;
    int stream = s->index();
    std::string name = op.name;
    op.run = [=] {
        stats.copies++;
        if (watched && hash_bytes(accessible(from), bytes) != hash)
            report("the host changed the memory of %s (number %u on stream %d) after it was queued and before it ran",
                   name.c_str(), number, stream);
        if (!is_device(to) && is_pinned(to))
            open_for_copy(stream, number, to, bytes, true);
        copy_bytes(accessible(to), accessible(from), bytes);
        if (!is_device(to) && is_pinned(to))
            open_for_copy(stream, number, to, bytes, false);
    };
    enqueue(lock, s, std::move(op), closed);
}

void fill(guard &lock, stream_state *s, void *p, int value, size_t bytes)
{
    check_range("cudaMemset", p, bytes);
    operation op;
    op.name = "cudaMemset (" + std::to_string(bytes) + " bytes)";
    op.ranges = {{p, bytes, true}};
    op.run = [=] {
        stats.copies++;
        memset(open_alias(p), value, bytes);
    };
    enqueue(lock, s, std::move(op));
}

void wait_for(guard &lock, const clock_vector &target)
{
    run_until(lock, target);
    host_knows(target);
}
} // namespace

namespace emulation
{
cudaError_t fail(cudaError_t code)
{
    last_error = code;
    return code;
}

static bool context_lost;

void lose_context(void)
{
    context_lost = true;
}

bool context_is_lost(void)
{
    return context_lost;
}

/* The error of a lost context, or that of ZTRAIN_EMULATION_FAILS once its number of kernels was launched, else
 * cudaSuccess. */
cudaError_t failure_of_device(bool launches)
{
    static const char *planted = getenv("ZTRAIN_EMULATION_FAILS");
    static int64_t code = 0, at = 0, count = 0;
    if (planted && !at && sscanf(planted, "%" SCNd64 "@%" SCNd64, &code, &at) != 2)
        report("ZTRAIN_EMULATION_FAILS is CODE@N, not '%s'", planted);
    count += launches;
    if (context_lost)
        return cudaErrorIllegalAddress;
    return planted && count >= at ? static_cast<cudaError_t>(code) : cudaSuccess;
}

cudaError_t launch_kernel(const char *what, const char *name, const void *kernel, launch *arguments, dim3 grid,
                          dim3 block, size_t dynamic_bytes, cudaStream_t stream)
{
    guard lock(big_lock);
    enter("a kernel launch");
    use_device("a kernel launch");
    std::shared_ptr<launch> owned(arguments);
    auto allowed = dynamic_allowed.find(kernel);
    uint64_t threads = static_cast<uint64_t>(block.x) * block.y * block.z;
    if (!threads || threads > 1024 || block.z > 64 || !grid.x || !grid.y || !grid.z || grid.x > 0x7fffffffu ||
        grid.y > 65535 || grid.z > 65535)
        return fail(cudaErrorInvalidConfiguration);
    if (dynamic_bytes > (allowed == dynamic_allowed.end() ? 48u << 10 : allowed->second))
        return fail(cudaErrorInvalidValue);
    if ((strstr(what, "swiglu") || strstr(name, "grouped_kernel")) && swiglu_is("fast"))
        planted_seconds += 60;
    operation op;
    op.name = std::string("kernel ") + name + " of " + what;
    op.kernel = true;
    op.run = [=] {
        stats.kernels++;
        run_grid(name, owned.get(), grid, block, dynamic_bytes);
    };
    enqueue(lock, stream_of(stream), std::move(op));
    cudaError_t failed = failure_of_device(true); /* the launched work runs nevertheless: its results are not used */
    return failed == cudaSuccess ? failed : fail(failed);
}

bool swiglu_is(const char *word)
{
    const char *wish = getenv("ZTRAIN_EMULATION_SWIGLU");
    return wish && strcmp(wish, word) == 0;
}

int multiprocessors(void)
{
    const char *count = getenv("ZTRAIN_EMULATION_SMS");
    return count ? atoi(count) : 4;
}

void current_gpu(char id[GPU_ID_BYTES])
{
    identify(current_device, id);
}
} // namespace emulation

#define ENTER(name)       \
    guard lock(big_lock); \
    enter(name);          \
    use_device(name)
/* a call that a thread may not make while it captures */
#define ENTER_OUTSIDE(name)                        \
    ENTER(name);                                   \
    if (cudaError_t forbidden = capture_forbids()) \
    return fail(forbidden)

extern "C" {
unsigned emulation_spins; /* waits that spin on a core, as CUDA's do unless they are told to sleep */
static bool waits_sleep;  /* those for streams */

/* ---- the device ---------------------------------------------------------- */

cudaError_t cudaGetDeviceCount(int *count)
{
    be_slow("cudaGetDeviceCount");
    *count = 0;
    if (driver_version() < CUDART_VERSION / 1000 * 1000)
        return fail(cudaErrorInsufficientDriver);
    *count = static_cast<int>(visible_gpus().size());
    return *count ? cudaSuccess : fail(cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device)
{
    be_slow("cudaSetDevice");
    if (!exists(device))
        return fail(cudaErrorInvalidDevice);
    current_device = device;
    return cudaSuccess;
}

cudaError_t cudaSetDeviceFlags(unsigned flags)
{
    waits_sleep = (flags & cudaDeviceScheduleMask) == cudaDeviceScheduleBlockingSync;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = current_device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    if (!exists(device))
        return fail(cudaErrorInvalidDevice);
    memset(properties, 0, sizeof *properties);
    snprintf(properties->name, sizeof properties->name, "emulated GPU");
    static_assert(sizeof properties->uuid.bytes == GPU_ID_BYTES, "a UUID's size");
    identify(device, properties->uuid.bytes);
    properties->major = capability_major();
    properties->pciBusID = visible_gpus()[static_cast<size_t>(device)];
    properties->multiProcessorCount = multiprocessors();
    properties->totalGlobalMem = static_cast<size_t>(4) << 30;
    properties->l2CacheSize = 4 << 20;
    properties->maxThreadsPerBlock = 1024;
    properties->warpSize = 32;
    properties->sharedMemPerBlock = 48 << 10;
    properties->sharedMemPerBlockOptin = 227 << 10;
    properties->sharedMemPerMultiprocessor = 228 << 10;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    if (!exists(device))
        return fail(cudaErrorInvalidDevice);
    switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = 4; break;
    case cudaDevAttrComputeCapabilityMajor: *value = capability_major(); break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 227 << 10; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 228 << 10; break;
    case cudaDevAttrL2CacheSize: *value = 4 << 20; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrClockRate:
    case cudaDevAttrMemoryClockRate: *value = 1000000; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = 1024; break;
    default: return fail(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int length, int device)
{
    if (!exists(device))
        return fail(cudaErrorInvalidDevice);
    snprintf(id, static_cast<size_t>(length), "0000:%02x:00.0", visible_gpus()[static_cast<size_t>(device)]);
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = driver_version();
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    ENTER_OUTSIDE("cudaDeviceSynchronize");
    wait_for(lock, everything());
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    ENTER("cudaMemGetInfo");
    void *none;
    memory_new(&none, 0); /* sets up */
    *total = memory.total;
    *available = memory.total - memory.used;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t code = last_error;
    last_error = cudaSuccess;
    return code;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

#define ERRORS(X)                                                                                        \
    X(cudaSuccess, "no error")                                                                           \
    X(cudaErrorInvalidValue, "invalid argument")                                                         \
    X(cudaErrorMemoryAllocation, "out of memory")                                                        \
    X(cudaErrorInvalidConfiguration, "invalid configuration argument")                                   \
    X(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered")                                  \
    X(cudaErrorInvalidDeviceFunction, "invalid device function")                                         \
    X(cudaErrorInvalidDevice, "invalid device ordinal")                                                  \
    X(cudaErrorNoDevice, "no CUDA-capable device is detected")                                           \
    X(cudaErrorNotReady, "device not ready")                                                             \
    X(cudaErrorNotSupported, "operation not supported")                                                  \
    X(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing")             \
    X(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture")      \
    X(cudaErrorStreamCaptureMerge, "operation would result in a merge of separate capture sequences")    \
    X(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began")           \
    X(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work")                              \
    X(cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream")        \
    X(cudaErrorStreamCaptureWrongThread, "capture was ended by another thread")                          \
    X(cudaErrorCapturedEvent, "operation not permitted on an event last recorded in a capturing stream") \
    X(cudaErrorIllegalState, "the operation cannot be performed in the present state")                   \
    X(cudaErrorIllegalAddress, "an illegal memory access was encountered")                               \
    X(cudaErrorMisalignedAddress, "misaligned address")                                                  \
    X(cudaErrorInvalidAddressSpace, "operation not supported on global/shared address space")            \
    X(cudaErrorInvalidPc, "invalid program counter")                                                     \
    X(cudaErrorIllegalInstruction, "an illegal instruction was encountered")                             \
    X(cudaErrorHardwareStackError, "hardware stack error")                                               \
    X(cudaErrorLaunchFailure, "unspecified launch failure")                                              \
    X(cudaErrorLaunchTimeout, "the launch timed out and was terminated")                                 \
    X(cudaErrorAssert, "device-side assert triggered")                                                   \
    X(cudaErrorHostMemoryAlreadyRegistered, "part or all of the requested memory range is already mapped")

const char *cudaGetErrorName(cudaError_t code)
{
#define NAME(value, text) \
    if (code == value)    \
        return #value;
    ERRORS(NAME)
    return "cudaErrorUnknown";
}

const char *cudaGetErrorString(cudaError_t code)
{
#define TEXT(value, text) \
    if (code == value)    \
        return text;
    ERRORS(TEXT)
    return "unknown error";
}

/* Loads the kernel's module. */
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function)
{
    ENTER("cudaFuncGetAttributes");
    memset(attributes, 0, sizeof *attributes);
    return function ? cudaSuccess : fail(cudaErrorInvalidDeviceFunction);
}

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value)
{
    ENTER("cudaFuncSetAttribute");
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 || value > 227 << 10)
        return fail(cudaErrorInvalidValue);
    dynamic_allowed[function] = static_cast<size_t>(value);
    return cudaSuccess;
}

/* ---- memory -------------------------------------------------------------- */

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    ENTER_OUTSIDE("cudaMalloc");
    cudaError_t code = memory_new(p, bytes);
    return code == cudaSuccess ? code : fail(code);
}

cudaError_t cudaFree(void *p)
{
    ENTER_OUTSIDE("cudaFree");
    if (is_of_nccl(p))
        report("cudaFree of memory that ncclMemAlloc gave");
    run_until(lock, everything());
    return memory_free(p);
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned)
{
    ENTER_OUTSIDE("cudaHostAlloc");
    cudaError_t code = pinned_new(p, bytes);
    return code == cudaSuccess ? code : fail(code);
}

cudaError_t cudaMallocHost(void **p, size_t bytes)
{
    return cudaHostAlloc(p, bytes, 0);
}

cudaError_t cudaFreeHost(void *p)
{
    ENTER_OUTSIDE("cudaFreeHost");
    return pinned_free(p, false);
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned)
{
    ENTER_OUTSIDE("cudaHostRegister");
    cudaError_t code = pinned_register(p, bytes);
    return code == cudaSuccess ? code : fail(code);
}

cudaError_t cudaHostUnregister(void *p)
{
    ENTER_OUTSIDE("cudaHostUnregister");
    return pinned_free(p, true);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    ENTER("cudaMemcpyAsync");
    if (bytes)
        copy(lock, stream_of(stream), to, from, bytes, kind);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    ENTER_OUTSIDE("cudaMemcpy");
    if (bytes)
        copy(lock, &streams[0], to, from, bytes, kind);
    wait_for(lock, after_of(&streams[0]));
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream)
{
    ENTER("cudaMemsetAsync");
    if (bytes)
        fill(lock, stream_of(stream), p, value, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemset(void *p, int value, size_t bytes)
{
    ENTER_OUTSIDE("cudaMemset"); /* asynchronous on device memory */
    if (bytes)
        fill(lock, &streams[0], p, value, bytes);
    return cudaSuccess;
}

/* ---- streams and events -------------------------------------------------- */

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    ENTER("cudaStreamCreateWithPriority");
    *stream = reinterpret_cast<cudaStream_t>(stream_make(!(flags & cudaStreamNonBlocking), priority));
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    ENTER_OUTSIDE("cudaStreamDestroy");
    stream_state *s = stream_of(stream);
    run_until(lock, after_of(s));
    s->open = false;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    ENTER_OUTSIDE("cudaStreamSynchronize");
    emulation_spins += !waits_sleep;
    wait_for(lock, after_of(stream_of(stream)));
    return failure_of_device(false);
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    ENTER_OUTSIDE("cudaStreamQuery");
    clock_vector at = after_of(stream_of(stream));
    if (cudaError_t failed = failure_of_device(false); failed != cudaSuccess)
        return failed;
    if (!is_done(at)) {
        run_something(lock);
        return cudaErrorNotReady;
    }
    host_knows(at);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    ENTER("cudaStreamWaitEvent");
    stream_state *s = stream_of(stream);
    event_state *e = event_of(event);
    if (s->capture || e->capture) {
        cudaError_t code = capture_wait(s, e);
        return code == cudaSuccess ? code : fail(code);
    }
    s->after.join(e->at);
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *argument)
{
    ENTER("cudaLaunchHostFunc");
    operation op;
    op.name = "a host function";
    op.on_host_thread = true;
    op.run = [=] {
        stats.host_functions++;
        function(argument);
    };
    enqueue(lock, stream_of(stream), std::move(op));
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    return make_event(event, flags);
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return make_event(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    ENTER("cudaEventDestroy");
    delete event_of(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    ENTER("cudaEventRecord");
    if (context_is_lost())
        return fail(cudaErrorIllegalAddress);
    event_state *e = event_of(event);
    stream_state *s = stream_of(stream);
    if (s->capture) {
        cudaError_t code = capture_record(e, s);
        return code == cudaSuccess ? code : fail(code);
    }
    e->capture = 0;
    e->recorded = true;
    e->at = after_of(s);
    e->when = std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                     std::chrono::duration<double>(planted_seconds));
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    ENTER_OUTSIDE("cudaEventSynchronize");
    emulation_spins += !event_of(event)->sleeps;
    if (event_of(event)->capture)
        return fail(cudaErrorCapturedEvent);
    wait_for(lock, clock_vector(event_of(event)->at));
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    ENTER_OUTSIDE("cudaEventQuery");
    if (event_of(event)->capture)
        return fail(cudaErrorCapturedEvent);
    clock_vector at = event_of(event)->at;
    if (!is_done(at)) {
        run_something(lock);
        return cudaErrorNotReady;
    }
    host_knows(at);
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
    ENTER("cudaEventElapsedTime");
    const event_state *a = event_of(start), *b = event_of(end);
    if (!a->timed || !b->timed)
        return fail(cudaErrorInvalidValue);
    if (a->capture || b->capture)
        return fail(cudaErrorCapturedEvent);
    if (!is_done(a->at) || !is_done(b->at))
        return fail(cudaErrorNotReady);
    /* Work does not run when it would on a GPU: only the order of measured times matters here. */
    *milliseconds = std::chrono::duration<float, std::milli>(b->when - a->when).count() + 0.001f;
    return cudaSuccess;
}
}
