/* SPDX-License-Identifier: Apache-2.0 */
/* device_cuda_memory.c: memory on the GPU, and pinned memory of the host. The device remembers every piece (struct
 * cuda_range): copies of other memory are staged (device_cuda_stream.c). Large host memory is mapped and touched by all
 * cores (gpu/host_pages.h) and then registered with CUDA, a GiB at a time: cudaHostAlloc() does both on one core, for
 * tens of seconds without a sign of life. */
#include "gpu/cuda/device_cuda.h"

#include "core/core.h"
#include "gpu/host_pages.h"

#include <sys/mman.h>

static void range_add(struct cuda_device *cuda, void *memory, size_t bytes, bool registered)
{
    LOCKED(&cuda->mutex);
    cuda->ranges = memory_resize(cuda->ranges, (size_t)(cuda->num_ranges + 1) * sizeof *cuda->ranges);
    cuda->ranges[cuda->num_ranges++] = (struct cuda_range){memory, bytes, registered};
}

/* The range that holds `memory`; bytes 0: none does. */
static struct cuda_range range_at(struct cuda_device *cuda, const void *memory)
{
    const char *at = memory;
    struct cuda_range found = {.bytes = 0};
    LOCKED(&cuda->mutex);
    for (int i = 0; i < cuda->num_ranges && !found.bytes; i++)
        if (at >= cuda->ranges[i].base && at < cuda->ranges[i].base + cuda->ranges[i].bytes) found = cuda->ranges[i];
    return found;
}

void cuda_disown(struct cuda_device *cuda, const void *memory)
{
    LOCKED(&cuda->mutex);
    for (int i = 0; i < cuda->num_ranges; i++) {
        if (cuda->ranges[i].base == (const char *)memory) {
            cuda->ranges[i] = cuda->ranges[--cuda->num_ranges];
            break;
        }
    }
}

size_t cuda_reach(struct cuda_device *cuda, const void *memory)
{
    const struct cuda_range range = range_at(cuda, memory);
    return range.bytes ? (size_t)(range.base + range.bytes - (const char *)memory) : 0;
}

/* ---- memory of the GPU --------------------------------------------------- */

static cudaError_t clear_memory(void *memory, size_t bytes)
{
    const cudaError_t code = cudaMemset(memory, 0, bytes);
    return code == cudaSuccess ? cudaDeviceSynchronize() : code;
}

static cudaError_t allocate_cleared(size_t bytes, void **memory)
{
    SLOW("allocating the GPU's memory", NULL, -1);
    cudaError_t code = cudaMalloc(memory, bytes);
    if (code == cudaSuccess) {
        code = clear_memory(*memory, bytes);
        if (code != cudaSuccess) cudaFree(*memory);
    }
    return code;
}

enum status cuda_adopt(struct cuda_device *cuda, void *memory, size_t bytes, struct error *err)
{
    SLOW("clearing the GPU's memory", NULL, -1);
    const cudaError_t code = clear_memory(memory, bytes);
    if (code != cudaSuccess)
        return error_set(err, cuda_status_of(code), "cannot clear the memory of GPU %d (%s): %s", cuda->index,
                         cuda->device.name, cudaGetErrorString(code));
    range_add(cuda, memory, bytes, false);
    return STATUS_OK;
}

enum status cuda_device_alloc(struct device *device, size_t bytes, void **memory, struct error *err)
{
    struct cuda_device *cuda = device->private_;
    size_t available = 0, total = 0;
    CUDA_CALL(cudaMemGetInfo(&available, &total));
    cudaError_t code = allocate_cleared(bytes ? bytes : 1, memory);
    if (code == cudaSuccess) {
        range_add(cuda, *memory, bytes, false);
        return STATUS_OK;
    }
    cudaGetLastError(); /* not a failure of the device */
    *memory = NULL;
    error_set(err, cuda_status_of(code),
              "cannot allocate %.3f GiB on GPU %d (%s): %s; %.3f GiB of its %.3f GiB were available", in_gib(bytes),
              cuda->index, device->name, cudaGetErrorString(code), in_gib(available), in_gib(total));
    if (cuda_status_of(code) == STATUS_BROKEN) return STATUS_BROKEN;
    return error_hint(err, "use a smaller micro batch or sequence, activation checkpointing, a higher ZeRO stage, "
                           "or more ranks; nvidia-smi shows the other processes on the GPU");
}

bool cuda_device_available(struct device *device, size_t *bytes)
{
    size_t total;
    (void)device;
    if (CUDA_CALL(cudaMemGetInfo(bytes, &total)) == cudaSuccess) return true;
    cudaGetLastError();
    return false;
}

void cuda_device_free(struct device *device, void *memory, size_t bytes)
{
    (void)bytes;
    cuda_disown(device->private_, memory);
    cuda_check(device->private_, cudaFree(memory), "cudaFree");
}

/* ---- pinned memory ------------------------------------------------------- */

/* Bytes from which memory is pinned in pieces, and those of a piece. */
#ifdef ZTRAIN_EMULATION
static const size_t pieces_from = 256 << 10, piece_bytes = 128 << 10;
#else
static const size_t pieces_from = 64 << 20, piece_bytes = 1 << 30;
#endif
static const double report_seconds = 10; /* between two lines about a slow pinning */

static cudaError_t pin_piece(char *piece, size_t bytes)
{
    SLOW("pinning host memory", NULL, -1);
    madvise(piece, bytes, MADV_DONTFORK); /* a child's copies would part the pages from the GPU's */
    return cudaHostRegister(piece, bytes, cudaHostRegisterDefault);
}

static void unpin(struct cuda_device *cuda, void *memory, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += piece_bytes) {
        char *piece = (char *)memory + at;
        cuda_disown(cuda, piece);
        cuda_check(cuda, cudaHostUnregister(piece), "cudaHostUnregister");
    }
}

enum status cuda_device_pin(struct device *device, void *memory, size_t bytes, struct error *err)
{
    struct cuda_device *cuda = device->private_;
    double reported = seconds_now();
    bytes = (size_t)round_up((int64_t)bytes, HOST_PAGE);
    for (size_t at = 0, n; at < bytes; at += n) {
        char *piece = (char *)memory + at;
        n = bytes - at < piece_bytes ? bytes - at : piece_bytes;
        const cudaError_t code = pin_piece(piece, n);
        if (code != cudaSuccess) {
            cudaGetLastError(); /* not a failure of the device */
            unpin(cuda, memory, at);
            return error_set(err, cuda_status_of(code),
                             "cannot pin %.3f GiB of host memory, only %.3f GiB: %s; hint: free memory on this "
                             "machine, or run fewer ranks on it",
                             in_gib(bytes), in_gib(at), cudaGetErrorString(code));
        }
        range_add(cuda, piece, n, true);
        if (seconds_now() - reported >= report_seconds) {
            reported = seconds_now();
            log_info("pinning host memory: %.1f of %.1f GiB", in_gib(at + n), in_gib(bytes));
        }
    }
    return STATUS_OK;
}

/* By CUDA itself. */
static enum status alloc_by_cuda(struct cuda_device *cuda, size_t bytes, void **memory, struct error *err)
{
    SLOW("allocating pinned host memory", NULL, -1);
    cudaError_t code = cudaHostAlloc(memory, bytes ? bytes : 1, cudaHostAllocDefault);
    if (code == cudaSuccess) memset(*memory, 0, bytes);
    if (code == cudaSuccess) {
        range_add(cuda, *memory, bytes, false);
        return STATUS_OK;
    }
    cudaGetLastError();
    *memory = NULL;
    return error_set(err, STATUS_DEVICE,
                     "cannot allocate %.3f GiB of pinned host memory: %s; hint: free memory on this machine, or run "
                     "fewer ranks on it",
                     in_gib(bytes), cudaGetErrorString(code));
}

/* Some systems pin CUDA's own memory, but no other. */
enum status cuda_device_alloc_host(struct device *device, size_t bytes, void **memory, struct error *err)
{
    if (bytes >= pieces_from) {
        TRY(host_pages_new(bytes, memory, err));
        if (cuda_device_pin(device, *memory, bytes, err) == STATUS_OK) return STATUS_OK;
        host_pages_free(*memory, bytes);
        log_info("CUDA allocates %.3f GiB of pinned host memory itself: %s", in_gib(bytes), err->text);
    }
    return alloc_by_cuda(device->private_, bytes, memory, err);
}

void cuda_device_free_host(struct device *device, void *memory, size_t bytes)
{
    struct cuda_device *cuda = device->private_;
    if (range_at(cuda, memory).registered) {
        unpin(cuda, memory, bytes);
        host_pages_free(memory, bytes);
        return;
    }
    cuda_disown(cuda, memory);
    cuda_check(cuda, cudaFreeHost(memory), "cudaFreeHost");
}
