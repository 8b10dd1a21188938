/* cpu_kernels.h: by which kernels a rank computes on the CPU. The bits of all results follow from them: vectors of
 * other widths add up in another order, and an instruction that multiplies pairs of bf16 rounds otherwise than FMA. So
 * the ranks of a job compute by the same kernels, and a resumed run by those of its checkpoint:
 *
 *     cpu_kernels_detect()            what this CPU has, and ZTRAIN_CPU_ISA allows
 *     cpu_kernels_common()            what all ranks have
 *     cpu_kernels_choose_products()   who multiplies matrices at that level, ztrain or oneDNN, and what multiplies bf16
 *     cpu_kernels_common()            again: only what is the same everywhere
 *     device_open_cpu()               computes by them
 *
 * A struct cpu_kernels is sent to other ranks as bytes: its padding is zero (every function here sees to it). */
#ifndef ZTRAIN_GPU_CPU_CPU_KERNELS_H
#define ZTRAIN_GPU_CPU_CPU_KERNELS_H

#include "core/dtype.h"
#include "core/status.h"
#include "gpu/cpu/cpuid.h"

#include <stdbool.h>
#include <stdint.h>

/* What multiplies bf16 numbers where AMX's tiles do not: cpu_bf16.h. */
enum cpu_bf16_products {
    CPU_BF16_WIDEN, /* fp32 multiply-adds of operands that are widened while they are packed: every CPU can */
    CPU_BF16_DOT,   /* VDPBF16PS: the CPUs with avx512_bf16 */
    CPU_BF16_COUNT
};

struct cpu_kernels {
    enum cpu_isa isa; /* the level that the ops are compiled for */
    bool avx512_bf16; /* VDPBF16PS may be used; only at CPU_ISA_AVX512 */
    bool amx_bf16;    /* whole matrices of bf16 are multiplied by TDPBF16PS; only at CPU_ISA_AVX512 */
    enum cpu_bf16_products bf16;
    bool onednn[DTYPE_COUNT]; /* products of this dtype by oneDNN; else by ztrain */
    char onednn_version[24];  /* "2.6.3"; "" where no product is oneDNN's */
    uint32_t onednn_isa;      /* the instruction set that oneDNN has chosen, as it counts them; 0: not known */
};

/* The best instruction sets of this CPU, or those of ZTRAIN_CPU_ISA=baseline|avx2|avx512; the products are ztrain's.
 * STATUS_USAGE: a word that is none of these, or a level that this CPU does not have. */
enum status cpu_kernels_detect(struct cpu_kernels *kernels, struct error *err);

/* A run that began with the kernels `before` keeps them, so that its bits stay the same: leaves out of *kernels the
 * instruction sets that those lack, unless ZTRAIN_CPU_ISA names a level. Whether that changes anything. */
bool cpu_kernels_keep(struct cpu_kernels *kernels, const struct cpu_kernels *before);

/* What multiplies bf16, as cpu_bf16_choose() says, and who multiplies matrices at kernels->isa: ztrain, except that
 * oneDNN does it in fp32 on the baseline level where it is installed (a warning where it is not: that is slow). A run
 * that began with `before` (may be NULL) goes on as it began where the same is here. ZTRAIN_CPU_BF16=dot|widen and
 * ZTRAIN_CPU_GEMM=builtin|onednn override that. Opens oneDNN where it is to be used. STATUS_USAGE: another word.
 * STATUS_DEVICE: oneDNN is asked for and cannot be used. */
enum status cpu_kernels_choose_products(struct cpu_kernels *kernels, const struct cpu_kernels *before,
                                        struct error *err);

/* The lowest of `count` (at least 1): the instruction sets that all have; VDPBF16PS where all have chosen it; oneDNN
 * where all use the same of it. */
void cpu_kernels_common(const struct cpu_kernels *all, int count, struct cpu_kernels *common);

bool cpu_kernels_equal(const struct cpu_kernels *a, const struct cpu_kernels *b);

/* For messages; text: CPU_KERNELS_TEXT bytes, which are returned. */
enum { CPU_KERNELS_TEXT = 160 };
/* "avx512 with avx512_bf16 and amx_bf16" */
const char *cpu_kernels_instructions(const struct cpu_kernels *kernels, char *text);
/* "fp32 builtin, bf16 oneDNN 2.6.3", "fp32 builtin, bf16 builtin (amx, dot)" */
const char *cpu_kernels_products(const struct cpu_kernels *kernels, char *text);

#endif
