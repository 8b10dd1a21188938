#include "cmd/engine/attention_price.h"

#include "cmd/engine/simulated_run.h"
#include "core/log.h"
#include "gpu/device_avoid.h"

#include <stdio.h>

/* The times of a step with cuDNN, and without, in seconds. */
static enum status walk_both(const struct engine *t, const char *gpu, double *with, double *without, struct error *err)
{
    const struct machine_question question = {.world = t->world, .per_node = t->node_ranks, .device = gpu};
    struct run_spec copy = *t->spec;
    struct simulated_machine machine;
    struct simulated_times times;
    struct simulated_run walk;
    enum status status;
    TRY(simulated_machine_find(&question, &machine, err));
    TRY_END(simulated_run_build(&walk, &machine, &copy, true, err));
    machine.settings.attention = ATTENTION_CUDNN;
    TRY_END(simulated_run_step(&walk, 0, &machine.link, &times, err));
    *with = times.seconds;
    machine.settings.attention = ATTENTION_OWN;
    TRY_END(simulated_run_step(&walk, 0, &machine.link, &times, err));
    *without = times.seconds;
end:
    simulated_run_release(&walk);
    return status;
}

/* Writes "; by `ztrain plan --speed`, a step takes about 12 % longer for it", or nothing where that is not known. Of a
 * tiny model nearly all of the time goes into launches: less than 1 % then. */
static void estimate(const struct engine *t, char *text, size_t size)
{
    double with, without;
    char percent[32] = "less than 1";
    struct error ignored;
    struct gpu_model known;
    const bool here = gpu_catalog_find(t->device->name, &known, &ignored) == STATUS_OK;
    const char *gpu = here ? t->device->name : NULL;
    text[0] = '\0';
    if (walk_both(t, gpu, &with, &without, &ignored) != STATUS_OK || with <= 0)
        return;
    const double more = 100 * (without / with - 1);
    if (more >= 1)
        snprintf(percent, sizeof percent, "about %.0f", more);
    snprintf(text, size, "; by `ztrain plan --speed`, a step takes %s %% longer for it%s", percent,
             gpu ? "" : " (on an H100)");
}

/* What of the run cuDNN cannot compute on any machine; NULL: nothing. */
static const char *obstacle_of_run(const struct engine *t)
{
    if (t->spec->dtype == DTYPE_F32)
        return "cuDNN computes attention in 16 bits only; hint: bf16: {enabled: true}";
    return t->desc.attention_softcap > 0 ? "cuDNN has no soft cap of the scores" : NULL;
}

void attention_price_warn(const struct engine *t)
{
    char price[160];
    if (t->rank != 0 || t->device->kind != DEVICE_CUDA)
        return;
    const char *chosen = obstacle_of_run(t), *why = chosen ? chosen : device_attention_obstacle(t->device);
    if (!why)
        return;
    estimate(t, price, sizeof price);
    if (chosen)
        log_info("attention runs on ztrain's kernels, not on cuDNN's%s: %s", price, why);
    else
        log_warn("attention runs on ztrain's kernels, not on cuDNN's%s: %s", price, why);
}
