/* device_cpu.h: opening the CPU as a device. The rest of the program calls gpu/open/device_open.h. */
#pragma once

#include "gpu/cpu/cpu_kernels.h"
#include "gpu/device.h"

/* Opens the CPU with the given kernels and `threads` OpenMP threads (0: all cores that this process may run on).
 * Errors: STATUS_DEVICE: too few threads. */
enum status device_cpu_open(const struct cpu_kernels *kernels, int threads, struct device **device, struct error *err);

/* The kernels that an open CPU device computes with. */
const struct cpu_kernels *device_cpu_kernels(const struct device *device);
