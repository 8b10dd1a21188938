/* ops_cpu_level.h: the tables that cpu_kernels_*.c define: all ops of the CPU backend, compiled for one instruction-set
 * level. */
#pragma once

#include "gpu/ops.h"

/* A micro-kernel of the built-in bf16 product, to be timed: runs it `calls` times on packed panels (CPU_MICRO_ROWS,
 * CPU_MICRO_UNITS), 64-byte aligned. The CPU must have its instructions. Returns the FLOPs of all calls, 0 if the level
 * has no such kernel. */
enum cpu_micro_kernel { CPU_MICRO_WIDEN, CPU_MICRO_DOT, CPU_MICRO_TILES };
enum { CPU_MICRO_ROWS = 64, CPU_MICRO_UNITS = 512 };
typedef double cpu_micro_run(enum cpu_micro_kernel kernel, int calls, const uint32_t *panels);

struct ops_cpu_level {
    struct op_table table;
    cpu_micro_run *micro_run;
};

extern const struct ops_cpu_level ops_cpu_baseline;
#if defined(__x86_64__)
extern const struct ops_cpu_level ops_cpu_avx2, ops_cpu_avx512;
#endif
