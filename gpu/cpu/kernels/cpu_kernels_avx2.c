/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_kernels_avx2.c: the CPU's ops for AVX2 (the Makefile gives this file its instruction-set flags). */
#if defined(__x86_64__)
#ifndef __AVX2__
#error "this file was compiled without its instruction set: see CFLAGS_gpu_cpu_kernels_cpu_kernels_avx2 in the Makefile"
#endif
#define OPS_CPU_LEVEL ops_cpu_avx2
#include "gpu/cpu/kernels/cpu_all_kernels.h"
#endif
