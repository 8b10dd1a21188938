#include "cmd/engine/memory_free.h"

#include "cmd/engine/memory_limit.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/size_text.h"
#include "gpu/cuda/nvml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a rank will take of its GPU. */
struct claim {
    char id[sizeof((struct device *)NULL)->id];
    uint64_t bytes;
};

/* The arenas of all ranks that share this rank's GPU (usually it is alone), and the number of these ranks. */
static enum status add_claims(const struct engine *t, size_t *bytes, int *ranks, struct error *err)
{
    struct claim own = {.bytes = t->plan.local.used}, *all = memory_zeroed((size_t)t->world, sizeof *all);
    snprintf(own.id, sizeof own.id, "%s", t->device->id);
    enum status status = comm_exchange(t->comm, &own, sizeof own, all, err);
    *bytes = 0;
    *ranks = 0;
    for (int r = 0; status == STATUS_OK && r < t->world; r++) {
        if (strcmp(all[r].id, own.id) != 0)
            continue;
        *bytes += (size_t)all[r].bytes;
        ++*ranks;
    }
    free(all);
    return status;
}

/* Writes "; process 4711 (python, 12.0 GiB) computes on it as well", or nothing. */
static const char *describe_others(const char *id, char *text, size_t size)
{
    enum { NAMED = 3 };
    struct nvml_process others[NAMED];
    const int count = nvml_processes(NULL, id, others, NAMED);
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < count && i < NAMED && used < size; i++) {
        const struct nvml_process *p = &others[i];
        char bytes[SIZE_TEXT_MAX] = "";
        if (p->bytes)
            size_round((int64_t)p->bytes, bytes);
        used += (size_t)snprintf(text + used, size - used, "%s%u (%s%s%s)", i ? ", " : "; on it are processes ", p->pid,
                                 *p->name ? p->name : "unknown", *bytes ? ", " : "", bytes);
    }
    if (count > NAMED && used < size)
        snprintf(text + used, size - used, " and %d more", count - NAMED);
    return text;
}

static enum status refuse(const struct engine *t, size_t need, int ranks, size_t available, struct error *err)
{
    char wanted[SIZE_TEXT_MAX], free_text[SIZE_TEXT_MAX], total[SIZE_TEXT_MAX], others[512], who[64] = "the plan takes";
    if (ranks > 1)
        snprintf(who, sizeof who, "the plans of %d ranks take", ranks);
    error_set(err, STATUS_DEVICE, "%s %s (%zu bytes) of device memory, but only %s of the %s of %s are free%s", who,
              size_round((int64_t)need, wanted), need, size_round((int64_t)available, free_text),
              size_round((int64_t)t->device->memory_bytes, total), t->device->name,
              describe_others(t->device->id, others, sizeof others));
    return memory_limit_advise(t, available, ranks, err);
}

/* The plan leaves too little for kernels that are loaded later: `later` bytes. */
static void warn(const struct engine *t, size_t need, int ranks, size_t available, size_t later)
{
    char left[SIZE_TEXT_MAX], expected[SIZE_TEXT_MAX], hint[96] = "";
    const size_t room = available > later ? (available - later) / (size_t)ranks + t->plan.reserve.total : 0;
    if (room)
        snprintf(hint, sizeof hint, "train.memory_limit=%zuMiB names settings that leave enough", room >> 20);
    log_warn("the plan leaves %s of the GPU's free memory, less than the %s that kernels which are loaded later are "
             "expected to take: the run may end for lack of memory; hint: %s",
             size_round((int64_t)(available - need), left), size_round((int64_t)later, expected),
             room ? hint : "free memory on the GPU (nvidia-smi)");
}

enum status memory_free_check(const struct engine *t, struct error *err)
{
    size_t need, available;
    int ranks;
    TRY(add_claims(t, &need, &ranks, err));
    if (!device_available_bytes(t->device, &available))
        return STATUS_OK;
    if (need > available)
        return refuse(t, need, ranks, available, err);
    const size_t later = t->plan.reserve.parts[CUDA_RESERVE_KERNELS] * (size_t)ranks;
    if (available - need < later)
        warn(t, need, ranks, available, later);
    return STATUS_OK;
}
