/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_bf16.h: the instruction that multiplies bf16 on the CPU device, chosen by a measurement, or by the CPU's type.
 *
 * VDPBF16PS adds two products of bf16 numbers to each sum. On AMD's Zen 4 it issues at the rate of fp32 multiply-adds;
 * on Intel's Emerald Rapids at a quarter of that, so that widening operands to fp32 is twice as fast. CPUID does not
 * tell, so both micro-kernels are timed. With AMX, tiles multiply whole matrices, and the choice applies to the blocks
 * of attention only.
 *
 * A run whose kernels are fixed (train.virtual_ranks) does not measure: it follows from the instruction sets. */
#pragma once

#include "gpu/cpu/cpu_kernels.h"

/* "widen", "dot" */
const char *cpu_bf16_name(enum cpu_bf16_products products);

/* FLOP/s of one core with operands in its caches; 0: the kernels lack the instruction. */
struct cpu_bf16_rates {
    double products[CPU_BF16_COUNT], tiles;
};

/* Times the micro-kernels in turns on the calling thread, and keeps the best turn of each: about 0.3 ms. */
void cpu_bf16_measure(const struct cpu_kernels *kernels, struct cpu_bf16_rates *rates);

/* CPU_BF16_DOT if the CPU has it, unless CPU_BF16_WIDEN is clearly faster. */
enum cpu_bf16_products cpu_bf16_fastest(const struct cpu_bf16_rates *rates);

/* Sets kernels->bf16 by a measurement (fixed: without one), or to ZTRAIN_CPU_BF16=dot|widen, which then applies
 * to whole matrices as well: kernels->amx_bf16 is cleared. STATUS_USAGE: another value, or dot on a CPU without it. */
enum status cpu_bf16_choose(struct cpu_kernels *kernels, bool fixed, struct error *err);

/* For people: "amx 2800, dot 82, widen 168 GFLOP/s a core". text has CPU_BF16_TEXT bytes and is returned. */
enum { CPU_BF16_TEXT = 80 };
const char *cpu_bf16_rates_text(const struct cpu_bf16_rates *rates, char *text);
