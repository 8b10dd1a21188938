/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_kernels.h: the kernels that a rank computes with on the CPU. They decide the bits of all results, so the ranks of
 * a job compute with the same kernels, and a resumed run with those of its checkpoint:
 *
 *     cpu_kernels_detect()            the instruction sets of this CPU, as far as ZTRAIN_CPU_ISA allows them
 *     cpu_kernels_common()            those that all ranks have
 *     cpu_kernels_choose_products()   the bf16 instruction of matrix products
 *     cpu_kernels_common()            again: the choices that all ranks share
 *     device_open_cpu()               opens a device that computes with them
 *
 * A struct cpu_kernels is sent to other ranks as bytes, so its padding is zero; every function here sees to that. */
#pragma once

#include "gpu/cpu/cpuid.h"

/* The instruction that multiplies bf16 numbers outside AMX's tiles: see cpu_bf16.h. */
enum cpu_bf16_products {
    CPU_BF16_WIDEN, /* fp32 multiply-adds of operands that are widened while they are packed: on every CPU */
    CPU_BF16_DOT,   /* VDPBF16PS: on CPUs with avx512_bf16 */
    CPU_BF16_COUNT
};

struct cpu_kernels {
    enum cpu_isa isa; /* the level of the ops */
    bool avx512_bf16; /* VDPBF16PS may be used; only at CPU_ISA_AVX512 */
    bool amx_bf16;    /* TDPBF16PS multiplies whole bf16 matrices; only at CPU_ISA_AVX512 */
    enum cpu_bf16_products bf16;
};

/* The best instruction sets of this CPU, or those of ZTRAIN_CPU_ISA=baseline|avx2|avx512. STATUS_USAGE: it has another
 * value, or names a level that this CPU lacks. */
enum status cpu_kernels_detect(struct cpu_kernels *kernels, struct error *err);

/* Removes the instruction sets that `before`, the kernels that a run began with, lack, unless ZTRAIN_CPU_ISA names a
 * level. Returns whether *kernels changed. */
bool cpu_kernels_keep(struct cpu_kernels *kernels, const struct cpu_kernels *before);

/* cpu_bf16_choose(); fixed: without a measurement. A run that began with `before` (may be NULL) keeps its choice, if it
 * is possible here, unless ZTRAIN_CPU_BF16 says otherwise. STATUS_USAGE: that variable or ZTRAIN_CPU_GEMM is wrong. */
enum status cpu_kernels_choose_products(struct cpu_kernels *kernels, const struct cpu_kernels *before, bool fixed,
                                        struct error *err);

/* The common part of `count` (at least 1) kernels: instruction sets that all have, VDPBF16PS if all chose it. */
void cpu_kernels_common(const struct cpu_kernels *all, int count, struct cpu_kernels *common);

bool cpu_kernels_equal(const struct cpu_kernels *a, const struct cpu_kernels *b);

/* For messages. text has CPU_KERNELS_TEXT bytes and is returned. */
enum { CPU_KERNELS_TEXT = 160 };
/* "avx512 with avx512_bf16 and amx_bf16" */
const char *cpu_kernels_instructions(const struct cpu_kernels *kernels, char *text);
/* "fp32 builtin, bf16 builtin (amx, dot)" */
const char *cpu_kernels_products(const struct cpu_kernels *kernels, char *text);
