/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_kernels_avx512.c: the CPU's ops for AVX-512 (the Makefile gives this file its instruction-set flags). */
#if defined(__x86_64__)
#ifndef __AVX512F__
#error \
    "this file was compiled without its instruction set: see CFLAGS_gpu_cpu_kernels_cpu_kernels_avx512 in the Makefile"
#endif
#define OPS_CPU_LEVEL ops_cpu_avx512
#include "gpu/cpu/kernels/cpu_all_kernels.h"
#endif
