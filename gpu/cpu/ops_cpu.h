/* SPDX-License-Identifier: Apache-2.0 */
/* ops_cpu.h: the CPU backend's ops, compiled for each instruction-set level, and the workspace that they need.
 *
 *     kernels/cpu_*.h              templates over the vectors of cpu_vector.h, which include no other header
 *     kernels/cpu_all_kernels.h    makes them one op table
 *     kernels/cpu_kernels_*.c      compile that table, once for each level
 *     ops_cpu.c                    chooses among the tables */
#pragma once

#include "gpu/cpu/cpuid.h"
#include "gpu/ops.h"

/* A micro-kernel of the built-in bf16 product, to be timed: runs it `calls` times on packed panels (CPU_MICRO_ROWS,
 * CPU_MICRO_UNITS), 64-byte aligned. The CPU must have its instructions. Returns the FLOPs of all calls, 0 if the level
 * has no such kernel. */
enum cpu_micro_kernel { CPU_MICRO_WIDEN, CPU_MICRO_DOT, CPU_MICRO_TILES };
enum { CPU_MICRO_ROWS = 64, CPU_MICRO_UNITS = 512 };
typedef double cpu_micro_run(enum cpu_micro_kernel kernel, int calls, const uint32_t *panels);

struct ops_cpu {
    struct op_table table;
    cpu_micro_run *micro_run;
};

/* The ops of a level, which the CPU must have. */
const struct ops_cpu *ops_cpu_of(enum cpu_isa isa);

extern const struct ops_cpu ops_cpu_baseline;
#if defined(__x86_64__)
extern const struct ops_cpu ops_cpu_avx2, ops_cpu_avx512;
#endif

/* ops_workspace_bytes() of the CPU device. */
size_t ops_cpu_workspace_bytes(struct device *device, const struct op_limits *limits);
