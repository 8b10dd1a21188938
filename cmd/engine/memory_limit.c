/* SPDX-License-Identifier: Apache-2.0 */
/* memory_limit.c: whether a plan fits into the memory that the run spec and the machine give it, and what would. */
#include "cmd/engine/engine.h"
#include "cmd/engine/memory_tunables.h"
#include "gpu/cuda/nvml.h"
#include "gpu/simulate/simulated_device.h"

struct search {
    const struct engine *engine;
    size_t limit; /* bytes of device memory, reserve included */
    size_t apart; /* bytes of them that messages do not count */
    int ranks;    /* that messages count together */
    struct memory_setting given;
    struct memory_choice cheapest;   /* that fits */
    struct memory_choice same_micro; /* the cheapest that fits with the spec's micro-batch */
    struct memory_choice least;      /* of all, whether it fits or not */
};

/* The bytes that the run would take with another spec, of a rank's device and of a node. A GPU is assumed. */
static enum status measure_plan(const struct engine *t, struct run_spec *spec, struct memory_choice *choice,
                                struct error *err)
{
    const bool borrowed = t->device->kind == DEVICE_CPU;
    struct engine other = {.quiet = true, .simulation.device = t->device, .node_ranks = t->node_ranks};
    enum status status;
    if (!borrowed) {
        TRY(simulated_device_open(NULL, &other.simulation.device, err));
        other.simulation.device->memory_bytes = t->device->memory_bytes;
    }
    TRY_END(engine_build(&other, spec, t->rank, t->world, NULL, 1, err));
    choice->device = memory_plan_device_bytes(&other.plan);
    choice->node = memory_plan_node_bytes(&other);
end:
    if (borrowed) other.device = NULL; /* engine_release() would close it */
    engine_release(&other);
    return status;
}

/* The one that costs less is better, then the larger micro-batch, then less memory. */
static void keep_better_memory_setting(struct memory_choice *best, const struct memory_choice *other)
{
    const bool worse = other->price != best->price                   ? other->price > best->price
                       : other->setting.micro != best->setting.micro ? other->setting.micro < best->setting.micro
                                                                     : other->device >= best->device;
    if (!best->device || !worse) *best = *other;
}

static enum status search_memory_limit(struct search *s, struct error *err)
{
    const struct engine *t = s->engine;
    const uint64_t most = memory_plan_node_limit(t);
    const int64_t samples = t->spec->train_batch_size / t->world;
    const size_t here = memory_plan_device_bytes(&t->plan);
    struct memory_choice found = {.setting.micro = 0};
    struct run_spec copy = *t->spec;
    memory_setting_of(t->spec, &s->given);
    TRY(measure_plan(t, &copy, &found, err));
    /* an assumed GPU only estimates cuDNN's workspace; a smaller micro-batch has no larger surplus */
    const size_t surplus = here > found.device ? here - found.device : 0;
    while (memory_setting_next(t->spec, t->world, &found.setting)) {
        if (memory_setting_uses_disk(&found.setting) != memory_setting_uses_disk(&s->given))
            continue; /* NVMe takes as much of the device as host memory */
        memory_setting_apply(&found.setting, t->spec, t->world, &copy);
        TRY(measure_plan(t, &copy, &found, err));
        found.device += surplus;
        found.price = memory_setting_price(&found.setting, &s->given, samples);
        if (!s->least.device || found.device < s->least.device) s->least = found;
        if (found.device > s->limit || found.node > most) continue;
        keep_better_memory_setting(&s->cheapest, &found);
        if (found.setting.micro == s->given.micro) keep_better_memory_setting(&s->same_micro, &found);
    }
    return STATUS_OK;
}

/* ---- the message --------------------------------------------------------- */

/* Writes "key=value, key=value (270.1 MiB)": bytes as the error before it counts them. */
static const char *describe_limit(const struct search *s, const struct memory_choice *c, char text[MEMORY_SETTING_TEXT])
{
    struct run_spec copy;
    memory_setting_apply(&c->setting, s->engine->spec, s->engine->world, &copy);
    memory_setting_text(&c->setting, &s->given, &copy, text);
    size_t used = strlen(text);
    const size_t bytes = c->device > s->apart ? c->device - s->apart : 0;
    snprintf(text + used, MEMORY_SETTING_TEXT - used, "%s(%s)", used ? " " : "this spec ",
             SIZE(round, (int64_t)bytes * s->ranks));
    return text;
}

static enum status advise_on_memory_limit(const struct search *s, struct error *err)
{
    const char *faster = s->engine->device->kind == DEVICE_CPU ? "" : "; `ztrain plan --fit` finds the fastest";
    char first[MEMORY_SETTING_TEXT], second[MEMORY_SETTING_TEXT];
    if (!s->cheapest.device)
        return error_hint(err,
                          "no micro-batch and no setting of ztrain's fits: the least is %s; more ranks, a shorter "
                          "data.seq_length or a smaller model take less",
                          describe_limit(s, &s->least, first));
    describe_limit(s, &s->cheapest, first);
    if (s->same_micro.device && s->cheapest.setting.micro != s->given.micro)
        return error_hint(err, "it fits with %s; with the same micro-batch, with %s%s", first,
                          describe_limit(s, &s->same_micro, second), faster);
    return error_hint(err, "it fits with %s%s", first, faster);
}

enum status memory_limit_check(const struct engine *t, struct error *err)
{
    const size_t bytes = memory_plan_device_bytes(&t->plan), arenas = bytes - t->plan.reserve.total;
    const bool exceeds = t->spec->train.memory_limit && bytes > (size_t)memory_plan_cap(t);
    const bool too_large = t->comm && t->device->kind == DEVICE_CUDA && arenas > t->device->memory_bytes;
    if (!exceeds && !too_large) return STATUS_OK;
    const int64_t limit = t->spec->train.memory_limit, cap = memory_plan_cap(t); /* or the device's memory */
    struct search s = {.engine = t, .limit = (size_t)cap, .ranks = 1};
    char reserve[64] = "";
    TRY(search_memory_limit(&s, err));
    if (t->plan.reserve.total)
        snprintf(reserve, sizeof reserve, ", %s of it reserve", SIZE(round, t->plan.reserve.total));
    error_set(err, STATUS_DEVICE, "the plan needs %s (%zu bytes%s) of device memory on each rank, more than %s %s",
              SIZE(round, bytes), bytes, reserve, cap == limit ? "train.memory_limit" : "the GPU's",
              cap == limit ? SIZE(format, cap) : SIZE(round, cap));
    return advise_on_memory_limit(&s, err);
}

enum status memory_node_check(const struct engine *t, struct error *err)
{
    const int all = t->node_ranks, ranks = bootstrap_is_local_rank() ? all : 1;
    const uint64_t need = memory_plan_node_bytes(t) / (size_t)all * (size_t)ranks, limit = memory_plan_node_limit(t);
    struct machine_memory machine;
    machine_memory("", &machine);
    comm_note_plan(t->comm, need / (uint64_t)ranks);
    if (need <= limit || machine.swap) /* what is swapped out has no limit that is known here */
        return STATUS_OK;
    error_set(err, STATUS_DEVICE,
              "the plan%s of %d rank%s take%s %s (%" PRIu64 " bytes) of host memory, more than %s %s", PLURAL(ranks),
              ranks, PLURAL(ranks), ranks == 1 ? "s" : "", SIZE(round, need), need,
              machine.limit < machine.total ? "the control group's limit of" : "the machine's", SIZE(round, limit));
    return error_hint(err, "fewer ranks on a machine, a smaller micro batch, activation recomputation, a higher ZeRO "
                           "stage, or offload to nvme; `ztrain plan` shows what takes the memory");
}

/* ---- what is free on a GPU ----------------------------------------------- */

/* What a rank will take of its GPU. */
struct share {
    char id[sizeof((struct device *)NULL)->id];
    uint64_t bytes;
};

/* Writes "; process 4711 (python, 12.0 GiB) computes on it as well", or nothing. */
static const char *others_in_gpu_memory(const char *id, char *text, size_t size)
{
    enum { NAMED = 3 };
    struct nvml_process others[NAMED];
    const int count = nvml_processes(NULL, id, others, NAMED);
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < count && i < NAMED && used < size; i++) {
        const struct nvml_process *p = &others[i];
        char bytes[SIZE_TEXT_MAX] = "";
        if (p->bytes) size_round((int64_t)p->bytes, bytes);
        used += (size_t)snprintf(text + used, size - used, "%s%u (%s%s%s)", i ? ", " : "; on it are processes ", p->pid,
                                 *p->name ? p->name : "unknown", *bytes ? ", " : "", bytes);
    }
    if (count > NAMED && used < size) snprintf(text + used, size - used, " and %d more", count - NAMED);
    return text;
}

enum status memory_free_check(const struct engine *t, struct error *err)
{
    char hint[96] = "free memory on the GPU (nvidia-smi)";
    size_t need = 0, available;
    int ranks = 0; /* that share this rank's GPU; need: of the arenas of all of them */
    struct share own = {.bytes = t->plan.local.used + t->plan.shared.used};
    OWNED struct share *all = memory_zeroed((size_t)t->world, sizeof *all);
    snprintf(own.id, sizeof own.id, "%s", t->device->id);
    TRY(comm_exchange(t->comm, &own, sizeof own, all, err));
    for (int r = 0; r < t->world; r++) {
        if (strcmp(all[r].id, own.id) != 0) continue;
        need += (size_t)all[r].bytes;
        ranks++;
    }
    if (!device_available_bytes(t->device, &available)) return STATUS_OK;
    if (need > available) {
        char others[512], who[64] = "the plan takes";
        const size_t apart = t->plan.reserve.total; /* it is taken already, or not asked for */
        struct search s = {.engine = t, .limit = available / (size_t)ranks + apart, .apart = apart, .ranks = ranks};
        struct error ignored;
        if (ranks > 1) snprintf(who, sizeof who, "the plans of %d ranks take", ranks);
        error_set(err, STATUS_DEVICE, "%s %s (%zu bytes) of device memory, but only %s of the %s of %s are free%s", who,
                  SIZE(round, need), need, SIZE(round, available), SIZE(round, t->device->memory_bytes),
                  t->device->name, others_in_gpu_memory(t->device->id, others, sizeof others));
        return search_memory_limit(&s, &ignored) == STATUS_OK ? advise_on_memory_limit(&s, err) : err->code;
    }
    const size_t *reserve = t->plan.reserve.parts;
    const size_t later = (reserve[CUDA_RESERVE_KERNELS] + reserve[CUDA_RESERVE_NVLS]) * (size_t)ranks;
    if (available - need >= later) return STATUS_OK;
    const size_t room = available > later ? (available - later) / (size_t)ranks + t->plan.reserve.total : 0;
    if (room) snprintf(hint, sizeof hint, "train.memory_limit=%zuMiB names settings that leave enough", room >> 20);
    log_warn("the plan leaves %s of the GPU's free memory, less than the %s that kernels and NCCL's NVLS buffers, "
             "which come later, are expected to take: the run may end for lack of memory; hint: %s",
             SIZE(round, available - need), SIZE(round, later), hint);
    return STATUS_OK;
}
