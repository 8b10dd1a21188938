/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_kernels_baseline.c: the CPU's ops with the instructions that every CPU of the architecture has. */
#define OPS_CPU_LEVEL ops_cpu_baseline
#include "gpu/cpu/kernels/cpu_all_kernels.h"
