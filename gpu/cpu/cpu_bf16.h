/* cpu_bf16.h: which instructions multiply bf16 on the CPU device, chosen by a measurement.
 *
 * VDPBF16PS adds two products of bf16 numbers to each sum. On AMD's Zen 4 it issues at the rate of fp32 multiply-adds
 * and so does twice the work; on Intel's Emerald Rapids it issues at a quarter of that rate, and operands that are
 * widened to fp32 while they are packed are multiplied twice as fast. CPUID says which instructions there are, not how
 * fast they are, so both micro-kernels are timed. Where a CPU has AMX, its tiles multiply whole matrices; the choice
 * then is for attention's blocks, which are too small for tiles. */
#ifndef ZTRAIN_GPU_CPU_CPU_BF16_H
#define ZTRAIN_GPU_CPU_CPU_BF16_H

#include "core/status.h"
#include "gpu/cpu/cpu_kernels.h"

/* "widen", "dot" */
const char *cpu_bf16_name(enum cpu_bf16_products products);

/* FLOP/s of one core, operands in its caches; 0: the kernels lack the instruction. */
struct cpu_bf16_rates {
    double products[CPU_BF16_COUNT], tiles;
};

/* Times the micro-kernels of bf16 products that `kernels` have, on the calling thread, in turns, the best of several
 * each: about 0.3 ms. STATUS_DEVICE: out of memory. */
enum status cpu_bf16_measure(const struct cpu_kernels *kernels, struct cpu_bf16_rates *rates, struct error *err);

/* DOT where the CPU has it, unless WIDEN is clearly faster. */
enum cpu_bf16_products cpu_bf16_fastest(const struct cpu_bf16_rates *rates);

/* Sets kernels->bf16 by a measurement; or to what ZTRAIN_CPU_BF16=dot|widen says, which then multiplies whole matrices,
 * too: kernels->amx_bf16 is cleared. STATUS_USAGE: another word, or dot on a CPU that lacks it. */
enum status cpu_bf16_choose(struct cpu_kernels *kernels, struct error *err);

/* For people: "amx 2800, dot 82, widen 168 GFLOP/s a core"; text: CPU_BF16_TEXT bytes, which are returned. */
enum { CPU_BF16_TEXT = 80 };
const char *cpu_bf16_rates_text(const struct cpu_bf16_rates *rates, char *text);

#endif
