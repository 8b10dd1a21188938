#include "cmd/engine/choose_kernels.h"

#include "comm/agree.h"
#include "core/log.h"
#include "core/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The lowest of the ranks with the most kernels. */
static int best_rank(const struct cpu_kernels *all, int world)
{
    int best = 0;
    for (int r = 1; r < world; r++) {
        const struct cpu_kernels *k = &all[r], *most = &all[best];
        int more = k->isa != most->isa ? (int)k->isa - (int)most->isa
                                       : k->avx512_bf16 + k->amx_bf16 - most->avx512_bf16 - most->amx_bf16;
        best = more > 0 ? r : best;
    }
    return best;
}

/* The lowest rank that has no more kernels than all ranks have in common; else one whose kernels differ from `best`. */
static int lowering_rank(const struct cpu_kernels *all, int world, int best, const struct cpu_kernels *common)
{
    int other = -1;
    for (int r = 0; r < world; r++) {
        if (cpu_kernels_equal(&all[r], common))
            return r;
        other = other < 0 && !cpu_kernels_equal(&all[r], &all[best]) ? r : other;
    }
    return other;
}

static void log_instructions(const struct bootstrap *boot, const struct cpu_kernels *all,
                             const struct cpu_kernels *common)
{
    char had[CPU_KERNELS_TEXT], have[CPU_KERNELS_TEXT];
    int best = best_rank(all, boot->world);
    if (cpu_kernels_equal(&all[best], common))
        return;
    int low = lowering_rank(all, boot->world, best, common);
    log_warn("all ranks compute with %s kernels instead of %s: rank %d on %s supports no more (because of its CPU, or "
             "of ZTRAIN_CPU_ISA there), rank %d on %s would support the latter",
             cpu_kernels_instructions(common, have), cpu_kernels_instructions(&all[best], had), low,
             boot->places[low].host, best, boot->places[best].host);
}

static void log_products(const struct bootstrap *boot, const struct cpu_kernels *all, const struct cpu_kernels *common)
{
    char here[CPU_KERNELS_TEXT], there[CPU_KERNELS_TEXT], result[CPU_KERNELS_TEXT];
    for (int r = 1; r < boot->world; r++) {
        if (cpu_kernels_equal(&all[r], &all[0]))
            continue;
        log_warn("all ranks multiply matrices with %s: rank 0 on %s would use %s, rank %d on %s %s",
                 cpu_kernels_products(common, result), boot->places[0].host, cpu_kernels_products(&all[0], here), r,
                 boot->places[r].host, cpu_kernels_products(&all[r], there));
        return;
    }
}

/* Collective: reduces `own` to the kernels that all ranks have. say: logs the differences (rank 0). */
static enum status settle(struct comm *comm, const struct bootstrap *boot, struct cpu_kernels *own,
                          void (*say)(const struct bootstrap *boot, const struct cpu_kernels *all,
                                      const struct cpu_kernels *common),
                          struct error *err)
{
    struct cpu_kernels *all = memory_alloc((size_t)boot->world * sizeof *all);
    enum status status = comm_exchange(comm, own, sizeof *own, all, err);
    if (status == STATUS_OK) {
        cpu_kernels_common(all, boot->world, own);
        if (boot->rank == 0)
            say(boot, all, own);
    }
    free(all);
    return status;
}

/* Leaves out kernels that the run did not begin with. */
static void keep(const struct bootstrap *boot, const struct cpu_kernels *before, struct cpu_kernels *kernels)
{
    char kept[CPU_KERNELS_TEXT], had[CPU_KERNELS_TEXT];
    cpu_kernels_instructions(kernels, had);
    enum cpu_isa best = kernels->isa;
    if (cpu_kernels_keep(kernels, before) && boot->rank == 0)
        log_info(
            "the run continues with the %s kernels that it began with, so that its bits stay the same; this CPU has "
            "%s; hint: ZTRAIN_CPU_ISA=%s uses them",
            cpu_kernels_instructions(kernels, kept), had, cpu_isa_name(best));
}

enum status choose_kernels(struct comm *comm, const struct bootstrap *boot, const struct cpu_kernels *before,
                           struct cpu_kernels *kernels, struct error *err)
{
    if (!comm) {
        TRY(cpu_kernels_detect(kernels, err));
        return cpu_kernels_choose_products(kernels, NULL, err);
    }
    TRY(agree(comm, cpu_kernels_detect(kernels, err), err));
    if (before)
        keep(boot, before, kernels);
    TRY(settle(comm, boot, kernels, log_instructions, err));
    TRY(agree(comm, cpu_kernels_choose_products(kernels, before, err), err));
    return settle(comm, boot, kernels, log_products, err);
}
