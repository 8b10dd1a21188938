/* device_cpu_state.h: the CPU device's struct and its sticky error, below all other files of the CPU backend. */
#pragma once

#include "gpu/cpu/cpu_kernels.h"
#include "gpu/device_backend.h"

#include <pthread.h>

struct gemm_onednn;

struct device_cpu {
    struct device_private private_; /* first: see device_backend.h */
    struct device device;
    struct cpu_kernels kernels;
    struct gemm_onednn *onednn; /* owned */
    pthread_mutex_t error_mutex;
    struct error error; /* sticky; code STATUS_OK: none */
};

static inline struct device_cpu *device_cpu_of(const struct stream *stream)
{
    return stream->device->private_;
}

/* Stores an asynchronous failure for device_check(); only the first one is kept. Any thread. */
void device_cpu_fail(struct device_cpu *cpu, const char *format, ...) __attribute__((format(printf, 2, 3)));
