/* device_cuda_memory.c: memory on the GPU, and pinned memory of the host. The device remembers every piece (struct
 * cuda_range): copies of other memory are staged (device_cuda_stream.c). */
#include "gpu/cuda/device_cuda.h"

#include <string.h>

static double cuda_gib(size_t bytes)
{
    return (double)bytes / (1 << 30);
}

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

bool cuda_is_reachable(struct cuda_device *cuda, const void *memory)
{
    const char *at = memory;
    bool found = false;
    pthread_mutex_lock(&cuda->mutex);
    for (int i = 0; i < cuda->num_ranges && !found; i++)
        found = at >= cuda->ranges[i].base && at < cuda->ranges[i].base + cuda->ranges[i].bytes;
    pthread_mutex_unlock(&cuda->mutex);
    return found;
}

enum status cuda_alloc(struct device *device, size_t bytes, void **memory, struct error *err)
{
    struct cuda_device *cuda = device->private_;
    size_t available = 0, total = 0;
    cudaMemGetInfo(&available, &total);
    cudaError_t code = cudaMalloc(memory, bytes ? bytes : 1);
    if (code != cudaSuccess) {
        cudaGetLastError(); /* not a failure of the device */
        *memory = NULL;
        error_set(err, cuda_status_of(code),
                  "cannot allocate %.3f GiB on GPU %d (%s): %s; %.3f GiB of its %.3f GiB were available",
                  cuda_gib(bytes), cuda->index, device->name, cudaGetErrorString(code), cuda_gib(available),
                  cuda_gib(total));
        if (err && err->code == STATUS_BROKEN)
            return err->code;
        return error_hint(err, "use a smaller micro batch or sequence, activation checkpointing, a higher ZeRO stage, "
                               "or more ranks; nvidia-smi shows the other processes on the GPU");
    }
    enum status status = range_add(cuda, *memory, bytes, err);
    code = cudaMemset(*memory, 0, bytes);
    if (code == cudaSuccess)
        code = cudaDeviceSynchronize();
    if (status == STATUS_OK && code != cudaSuccess)
        status = error_set(err, cuda_status_of(code), "cannot clear the memory of GPU %d (%s): %s", cuda->index,
                           device->name, cudaGetErrorString(code));
    if (status != STATUS_OK) {
        range_remove(cuda, *memory);
        cudaFree(*memory);
        *memory = NULL;
    }
    return status;
}

bool cuda_available(struct device *device, size_t *bytes)
{
    size_t total;
    (void)device;
    if (cudaMemGetInfo(bytes, &total) == cudaSuccess)
        return true;
    cudaGetLastError();
    return false;
}

void cuda_free(struct device *device, void *memory, size_t bytes)
{
    (void)bytes;
    range_remove(device->private_, memory);
    cuda_check(device->private_, cudaFree(memory), "cudaFree");
}

enum status cuda_alloc_host(struct device *device, size_t bytes, void **memory, struct error *err)
{
    struct cuda_device *cuda = device->private_;
    cudaError_t code = cudaHostAlloc(memory, bytes ? bytes : 1, cudaHostAllocDefault);
    if (code != cudaSuccess) {
        cudaGetLastError();
        *memory = NULL;
        error_set(err, STATUS_DEVICE, "cannot allocate %.3f GiB of pinned host memory: %s", cuda_gib(bytes),
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

void cuda_free_host(struct device *device, void *memory, size_t bytes)
{
    (void)bytes;
    range_remove(device->private_, memory);
    cuda_check(device->private_, cudaFreeHost(memory), "cudaFreeHost");
}
