/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/cpu/cpu_bf16.h"

#include "core/clock.h"
#include "core/env_switch.h"
#include "gpu/cpu/ops_cpu.h"

static const char *const names[CPU_BF16_COUNT] = {[CPU_BF16_WIDEN] = "widen", [CPU_BF16_DOT] = "dot"};

const char *cpu_bf16_name(enum cpu_bf16_products products)
{
    return names[products];
}

/* Four calls take 10 to 40 µs: long enough for the clock, short enough that one of eight turns is not interrupted. */
enum { CALLS = 4, TURNS = 8 };

static double better_of(double best, cpu_micro_run *run, enum cpu_micro_kernel kernel, const uint32_t *panels)
{
    const double start = seconds_now(), flops = run(kernel, CALLS, panels);
    const double seconds = seconds_now() - start, rate = seconds > 0 ? flops / seconds : 0;
    return rate > best ? rate : best;
}

void cpu_bf16_measure(const struct cpu_kernels *kernels, struct cpu_bf16_rates *rates)
{
    enum { WORDS = CPU_MICRO_ROWS * CPU_MICRO_UNITS };
    const uint32_t ones = 0x3f803f80; /* two ones in bf16, about one in fp32: not a subnormal, which would be slow */
    _Alignas(64) uint32_t panels[WORDS];
    for (size_t i = 0; i < WORDS; i++) panels[i] = ones;
    cpu_micro_run *run = ops_cpu_of(kernels->isa)->micro_run;
    double widen = 0, dot = 0, tiles = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        widen = better_of(widen, run, CPU_MICRO_WIDEN, panels);
        if (kernels->avx512_bf16) dot = better_of(dot, run, CPU_MICRO_DOT, panels);
        if (kernels->amx_bf16) tiles = better_of(tiles, run, CPU_MICRO_TILES, panels);
    }
    *rates = (struct cpu_bf16_rates){.products = {[CPU_BF16_WIDEN] = widen, [CPU_BF16_DOT] = dot}, .tiles = tiles};
}

enum cpu_bf16_products cpu_bf16_fastest(const struct cpu_bf16_rates *rates)
{
    const double clearly = 1.1; /* CPUs differ by a factor of two in either direction; a small difference is noise */
    const double widen = rates->products[CPU_BF16_WIDEN], dot = rates->products[CPU_BF16_DOT];
    return dot > 0 && widen <= clearly * dot ? CPU_BF16_DOT : CPU_BF16_WIDEN;
}

enum status cpu_bf16_choose(struct cpu_kernels *kernels, bool fixed, struct error *err)
{
    int wish;
    struct cpu_bf16_rates rates;
    TRY(env_choice("ZTRAIN_CPU_BF16", names, CPU_BF16_COUNT, &wish, err));
    if (wish == CPU_BF16_DOT && !kernels->avx512_bf16)
        return error_set(err, STATUS_USAGE,
                         "ZTRAIN_CPU_BF16 is 'dot', which needs avx512_bf16: %s kernels lack it; hint: set it to "
                         "widen, or leave it unset",
                         cpu_isa_name(kernels->isa));
    kernels->bf16 = wish < 0 ? CPU_BF16_WIDEN : (enum cpu_bf16_products)wish;
    kernels->amx_bf16 = kernels->amx_bf16 && wish < 0;
    if (wish < 0 && fixed) {
        /* CPUs with tiles were seen to issue the instruction slowly */
        kernels->bf16 = kernels->avx512_bf16 && !kernels->amx_bf16 ? CPU_BF16_DOT : CPU_BF16_WIDEN;
    } else if (wish < 0 && kernels->avx512_bf16) {
        cpu_bf16_measure(kernels, &rates);
        kernels->bf16 = cpu_bf16_fastest(&rates);
    }
    return STATUS_OK;
}

const char *cpu_bf16_rates_text(const struct cpu_bf16_rates *rates, char *text)
{
    const double rate[] = {rates->tiles, rates->products[CPU_BF16_DOT], rates->products[CPU_BF16_WIDEN]};
    const char *const words[] = {"amx", names[CPU_BF16_DOT], names[CPU_BF16_WIDEN]};
    int used = 0;
    for (size_t i = 0; i < COUNT_OF(rate); i++)
        if (rate[i] > 0)
            used += snprintf(text + used, (size_t)(CPU_BF16_TEXT - used), "%s%s %.0f", used ? ", " : "", words[i],
                             1e-9 * rate[i]);
    snprintf(text + used, (size_t)(CPU_BF16_TEXT - used), " GFLOP/s a core");
    return text;
}
