/* device_cuda_memory.h: memory of a CUDA device: allocated on the GPU, allocated pinned on the host, or pinned later.
 *
 * The device remembers every piece (struct cuda_range), because copies between such memory are the GPU's work alone,
 * while all other host memory is staged (device_cuda_stream.h). */
#pragma once

#include "gpu/cuda/device_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The backend's entries: see device_alloc(), device_alloc_host() and device_pin_host() in device.h. */
enum status cuda_alloc(struct device *device, size_t bytes, void **memory, struct error *err);
bool cuda_available(struct device *device, size_t *bytes);
void cuda_free(struct device *device, void *memory, size_t bytes);
enum status cuda_alloc_host(struct device *device, size_t bytes, void **memory, struct error *err);
void cuda_free_host(struct device *device, void *memory, size_t bytes);
enum status cuda_pin_host(struct device *device, void *memory, size_t bytes, struct error *err);
void cuda_unpin_host(struct device *device, void *memory, size_t bytes);

/* Whether the GPU can read and write the memory by itself: it lies in one of the pieces. Any thread. */
bool cuda_is_reachable(struct cuda_device *cuda, const void *memory);

#ifdef __cplusplus
}
#endif
