/* SPDX-License-Identifier: Apache-2.0 */
/* device_cpu.h: the CPU as a device. Outside of the backend gpu/open/device_open.h opens it. */
#pragma once

#include "gpu/cpu/cpu_kernels.h"
#include "gpu/device_backend.h"

struct device_cpu {
    struct device_private private_; /* first: see device_backend.h */
    struct device device;
    struct cpu_kernels kernels;
};

/* `threads` OpenMP threads; 0: all cores that this process may run on. STATUS_DEVICE: too few threads. */
enum status device_cpu_open(const struct cpu_kernels *kernels, int threads, struct device **device, struct error *err);

static inline const struct cpu_kernels *device_cpu_kernels(const struct device *device)
{
    ASSERT(device->kind == DEVICE_CPU);
    return &((const struct device_cpu *)device->private_)->kernels;
}
