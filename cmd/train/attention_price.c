#include "cmd/train/attention_price.h"

#include "cmd/train/plan_walk.h"
#include "core/log.h"
#include "gpu/device_avoid.h"

#include <stdio.h>

/* The times of a step with cuDNN, and without, in seconds. */
static enum status walk_both(const struct trainer *t, const char *gpu, double *with, double *without, struct error *err)
{
    const struct machine_question question = {.world = t->world, .per_node = t->node_ranks, .device = gpu};
    struct run_spec copy = *t->spec;
    struct planned_machine machine;
    struct plan_times times;
    struct plan_walk walk;
    enum status status;
    TRY(planned_machine_find(&question, &machine, err));
    TRY_END(plan_walk_build(&walk, &machine, &copy, true, err));
    TRY_END(plan_walk_step(&walk, 0, &machine.link, &times, err));
    *with = times.seconds;
    machine.settings.own_attention = true;
    TRY_END(plan_walk_step(&walk, 0, &machine.link, &times, err));
    *without = times.seconds;
end:
    plan_walk_release(&walk);
    return status;
}

/* Writes "; by `ztrain plan --speed`, a step takes about 12 % longer for it", or nothing where that is not known. */
static void estimate(const struct trainer *t, char *text, size_t size)
{
    double with, without;
    struct error ignored;
    struct gpu_model known;
    const bool here = gpu_catalog_find(t->device->name, &known, &ignored) == STATUS_OK;
    const char *gpu = here ? t->device->name : NULL;
    text[0] = '\0';
    if (walk_both(t, gpu, &with, &without, &ignored) == STATUS_OK && with > 0)
        snprintf(text, size, "; by `ztrain plan --speed`, a step takes about %.0f %% longer for it%s",
                 100 * (without / with - 1), gpu ? "" : " (on an H100)");
}

void attention_price_warn(const struct trainer *t)
{
    const struct model_desc *desc = &t->desc;
    char price[160];
    /* these have no alternative, which another line states */
    if (t->rank != 0 || t->device->kind != DEVICE_CUDA || t->spec->dtype == DTYPE_F32 || desc->attention_softcap > 0)
        return;
    const char *why = device_attention_obstacle(t->device);
    if (!why)
        return;
    estimate(t, price, sizeof price);
    log_warn("attention runs on ztrain's kernels, not on cuDNN's%s: %s", price, why);
}
