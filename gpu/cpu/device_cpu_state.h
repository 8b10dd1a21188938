/* device_cpu_state.h: the CPU device's struct, below all other files of the CPU backend. */
#pragma once

#include "gpu/cpu/cpu_kernels.h"
#include "gpu/device_backend.h"

struct device_cpu {
    struct device_private private_; /* first: see device_backend.h */
    struct device device;
    struct cpu_kernels kernels;
};

static inline struct device_cpu *device_cpu_of(const struct stream *stream)
{
    return stream->device->private_;
}
