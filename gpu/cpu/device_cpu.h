/* device_cpu.h: what the CPU backend's files share. */
#ifndef ZTRAIN_GPU_CPU_DEVICE_CPU_H
#define ZTRAIN_GPU_CPU_DEVICE_CPU_H

#include "gpu/cpu/cpu_kernels.h"
#include "gpu/device_backend.h"
#include "gpu/ops.h"

#include <pthread.h>

struct gemm;

struct device_cpu {
    struct device_private private_; /* first: see device_backend.h */
    struct device device;
    struct cpu_kernels kernels;
    struct gemm *gemm; /* owned */
    pthread_mutex_t error_mutex;
    struct error error; /* sticky; code STATUS_OK: none */
};

static inline struct device_cpu *device_cpu_of(const struct stream *stream)
{
    return stream->device->private_;
}

/* Remembers the first asynchronous failure for device_check(). Any thread. */
void device_cpu_fail(struct device_cpu *cpu, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Opens the CPU as a device; device_open_cpu() says how. */
enum status device_cpu_open(const struct cpu_kernels *kernels, int threads, struct device **device, struct error *err);

/* The kernels that an open CPU device computes with. */
const struct cpu_kernels *device_cpu_kernels(const struct device *device);

/* The op table of an instruction-set level. */
const struct op_table *ops_cpu_table(enum cpu_isa isa);

/* A micro-kernel of the built-in product for bf16, to be timed: `calls` runs on packed panels (CPU_MICRO_ROWS,
 * CPU_MICRO_UNITS), 64-byte aligned. The CPU has to have its instructions. Returns the FLOPs of all runs, 0 if the
 * level has no such kernel. */
enum cpu_micro_kernel { CPU_MICRO_WIDEN, CPU_MICRO_DOT, CPU_MICRO_TILES };
enum { CPU_MICRO_ROWS = 64, CPU_MICRO_UNITS = 512 };
typedef double cpu_micro_run(enum cpu_micro_kernel kernel, int calls, const uint32_t *panels);
cpu_micro_run *ops_cpu_micro_run(enum cpu_isa isa);

/* ops_workspace_bytes() of this device. */
size_t ops_cpu_workspace_bytes(struct device *device, const struct op_limits *limits);

#endif
