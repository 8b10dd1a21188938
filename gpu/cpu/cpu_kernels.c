/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/cpu/cpu_kernels.h"

#include "core/env_switch.h"
#include "gpu/cpu/cpu_bf16.h"

enum status cpu_kernels_detect(struct cpu_kernels *kernels, struct error *err)
{
    const char *words[CPU_ISA_COUNT];
    struct cpu_features features;
    int wish;
    for (int i = 0; i < CPU_ISA_COUNT; i++) words[i] = cpu_isa_name((enum cpu_isa)i);
    TRY(env_choice("ZTRAIN_CPU_ISA", words, CPU_ISA_COUNT, &wish, err));
    cpu_features_detect(&features);
    memset(kernels, 0, sizeof *kernels);
    if (wish > (int)features.isa)
        return error_set(err, STATUS_USAGE,
                         "ZTRAIN_CPU_ISA is '%s', which this CPU (%s) does not have; hint: its best level is %s",
                         words[wish], features.name, words[features.isa]);
    kernels->isa = wish < 0 ? features.isa : (enum cpu_isa)wish;
    kernels->avx512_bf16 = features.avx512_bf16 && kernels->isa == CPU_ISA_AVX512;
    kernels->amx_bf16 = features.amx_bf16 && kernels->isa == CPU_ISA_AVX512;
    kernels->bf16 = kernels->avx512_bf16 ? CPU_BF16_DOT : CPU_BF16_WIDEN;
    return STATUS_OK;
}

bool cpu_kernels_keep(struct cpu_kernels *kernels, const struct cpu_kernels *before)
{
    const char *wish = getenv("ZTRAIN_CPU_ISA");
    struct cpu_kernels had;
    if (wish && *wish) return false;
    memcpy(&had, kernels, sizeof had);
    kernels->isa = before->isa < had.isa ? before->isa : had.isa;
    kernels->avx512_bf16 = had.avx512_bf16 && before->avx512_bf16;
    kernels->amx_bf16 = had.amx_bf16 && before->amx_bf16;
    kernels->bf16 = kernels->avx512_bf16 ? had.bf16 : CPU_BF16_WIDEN;
    return !cpu_kernels_equal(kernels, &had);
}

enum status cpu_kernels_choose_products(struct cpu_kernels *kernels, const struct cpu_kernels *before, bool fixed,
                                        struct error *err)
{
    static const char *const words[] = {"builtin"};
    const char *wish = getenv("ZTRAIN_CPU_BF16");
    int builtin;
    TRY(env_choice("ZTRAIN_CPU_GEMM", words, COUNT_OF(words), &builtin, err));
    if ((wish && *wish) || !before || before->avx512_bf16 != kernels->avx512_bf16)
        return cpu_bf16_choose(kernels, fixed, err);
    kernels->bf16 = before->bf16; /* the alternatives are the same here */
    return STATUS_OK;
}

void cpu_kernels_common(const struct cpu_kernels *all, int count, struct cpu_kernels *common)
{
    struct cpu_kernels lowest;
    ASSERT(count > 0);
    memcpy(&lowest, &all[0], sizeof lowest);
    for (int i = 1; i < count; i++) {
        const struct cpu_kernels *k = &all[i];
        lowest.isa = k->isa < lowest.isa ? k->isa : lowest.isa;
        lowest.avx512_bf16 = lowest.avx512_bf16 && k->avx512_bf16;
        lowest.amx_bf16 = lowest.amx_bf16 && k->amx_bf16;
        lowest.bf16 = lowest.avx512_bf16 && k->bf16 == CPU_BF16_DOT ? lowest.bf16 : CPU_BF16_WIDEN;
    }
    memcpy(common, &lowest, sizeof lowest);
}

bool cpu_kernels_equal(const struct cpu_kernels *a, const struct cpu_kernels *b)
{
    return a->isa == b->isa && a->avx512_bf16 == b->avx512_bf16 && a->amx_bf16 == b->amx_bf16 && a->bf16 == b->bf16;
}

const char *cpu_kernels_instructions(const struct cpu_kernels *k, char *text)
{
    snprintf(text, CPU_KERNELS_TEXT, "%s%s%s%s%s", cpu_isa_name(k->isa), k->avx512_bf16 || k->amx_bf16 ? " with " : "",
             k->avx512_bf16 ? "avx512_bf16" : "", k->avx512_bf16 && k->amx_bf16 ? " and " : "",
             k->amx_bf16 ? "amx_bf16" : "");
    return text;
}

const char *cpu_kernels_products(const struct cpu_kernels *k, char *text)
{
    snprintf(text, CPU_KERNELS_TEXT, "fp32 builtin, bf16 builtin");
    if (k->avx512_bf16 || k->amx_bf16) /* otherwise there is no choice to name */
        snprintf(text, CPU_KERNELS_TEXT, "fp32 builtin, bf16 builtin (%s%s)", k->amx_bf16 ? "amx, " : "",
                 cpu_bf16_name(k->bf16));
    return text;
}
