/* SPDX-License-Identifier: Apache-2.0 */
/* cpuid.h: the instruction sets of this CPU and its operating system, found at run time, for cpu_kernels.h. */
#pragma once

#include "core/status.h"

/* The levels that ops are compiled for; each includes the one before it. */
enum cpu_isa {
    CPU_ISA_BASELINE, /* x86-64, or the minimum of another architecture */
    CPU_ISA_AVX2,     /* x86-64-v3: AVX2, FMA, F16C */
    CPU_ISA_AVX512,   /* x86-64-v4: AVX-512 F, BW, CD, DQ, VL */
    CPU_ISA_COUNT
};

struct cpu_features {
    enum cpu_isa isa; /* the best one */
    bool avx512_bf16; /* VDPBF16PS, usable at isa CPU_ISA_AVX512 */
    bool amx_bf16;    /* TDPBF16PS, usable at isa CPU_ISA_AVX512 */
    char name[128];   /* the brand string, or the architecture's name */
};

void cpu_features_detect(struct cpu_features *features);

/* "baseline", "avx2", "avx512" */
const char *cpu_isa_name(enum cpu_isa isa);
