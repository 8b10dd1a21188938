/* device_cuda_error.h: how a call of CUDA's or of a library's that failed becomes the device's sticky error.
 *
 * Work on a GPU fails asynchronously: the call that reports an error is often not the one that caused it. The first
 * error of a device is kept and reported by device_check(); during a capture, the first one is kept apart and reported
 * by graph_end(), because a failed capture does not harm the device. */
#pragma once

#include "gpu/cuda/device_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* STATUS_BROKEN: the device or its driver has failed. STATUS_DEVICE: another call would have succeeded. */
enum status cuda_status_of(cudaError_t code);

/* Keeps the message as the device's error if it is the first one. The text names the call or the op. Any thread. */
void cuda_fail(struct cuda_device *cuda, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* cudaSuccess: advances the progress counter. Otherwise cuda_fail() with `call` and CUDA's text and name of the error.
 * After a launch: cuda_check(cuda, cudaGetLastError(), "norm_fwd"). Returns whether there was no error. */
bool cuda_check(struct cuda_device *cuda, cudaError_t code, const char *call);

/* The backend's entry for device_check(). */
enum status cuda_device_check(struct device *device, struct error *err);

#ifdef __cplusplus
}
#endif
