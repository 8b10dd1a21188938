/* ops_cpu.h: the CPU backend's ops at an instruction-set level, and the workspace that they need.
 *
 *     kernels/cpu_*.h              the kernels, each written once over the vectors of cpu_vector.h: bodies of
 * functions, which include no other header and stand in the order of … kernels/cpu_all_kernels.h    … which makes them
 * one op table kernels/cpu_kernels_*.c      compile that table, once for each level ops_cpu.c chooses among the tables
 */
#pragma once

#include "gpu/cpu/cpuid.h"
#include "gpu/cpu/ops_cpu_level.h"

/* The op table of a level, which the CPU must have. */
const struct op_table *ops_cpu_table(enum cpu_isa isa);

/* The micro-kernels of a level, to be timed. */
cpu_micro_run *ops_cpu_micro_run(enum cpu_isa isa);

/* ops_workspace_bytes() of the CPU device. */
size_t ops_cpu_workspace_bytes(struct device *device, const struct op_limits *limits);
