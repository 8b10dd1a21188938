/* SPDX-License-Identifier: Apache-2.0 */
/* device_open.h: opening a device of either kind, above the backends, neither of which gpu/device.h knows. */
#pragma once

#include "gpu/cpu/cpu_kernels.h"
#include "gpu/device.h"

/* CPU: `threads` OpenMP threads (0: all cores that this process may run on), with the best kernels that it has and the
 * environment allows (cpu_kernels.h); the ranks of a job agree on theirs first and call device_open_cpu(). CUDA: GPU
 * `index` of device_cuda_list()'s; several processes may share one. Only the thread that opens a device may use it;
 * device_close() ends it. STATUS_USAGE: a wrong value in the environment. STATUS_DEVICE: it does not open. */
enum status device_open(enum device_kind kind, int index, int threads, struct device **device, struct error *err);

/* Opens the CPU with the given kernels, which this CPU must have (cpu_kernels_detect()). */
enum status device_open_cpu(const struct cpu_kernels *kernels, int threads, struct device **device, struct error *err);

bool device_cuda_is_built(void);

/* Whether CUDA can be used here: a driver and a GPU were found. If not, `why` (at least 256 bytes) gets the reason. */
bool device_cuda_available(char *why);

/* Returns how many GPUs this process sees (0 without a driver), and the UUIDs of the first `most` (zeros: unknown). */
int device_cuda_list(unsigned char (*uuids)[DEVICE_UUID_BYTES], int most);
