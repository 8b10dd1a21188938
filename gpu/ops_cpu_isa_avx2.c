/* ops_cpu_isa_avx2.c: the CPU's ops for AVX2 (the Makefile gives this file its instruction-set flags). */
#include "gpu/ops_cpu.h"

#if defined(__x86_64__)
#define OPS_CPU_LEVEL ops_cpu_avx2
#include "gpu/ops_cpu_table.h"
#endif
