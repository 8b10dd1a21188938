/* SPDX-License-Identifier: Apache-2.0 */
/* init_plan.c: the settings of a run that `ztrain init` writes, by its plan. See init.h. */
#include "cmd/init.h"
#include "core/log.h"
#include "core/machine.h"
#include "core/printable.h"
#include "core/size_text.h"
#include "gpu/open/device_open.h"
#include "gpu/simulate/simulated_device.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Reads what init_spec() writes. */
static enum status init_load_spec(const struct init *t, struct run_spec **spec, struct error *err)
{
    struct spec_report report = {0};
    char *text = init_spec(t);
    const enum status status = spec_load_text("run.yaml", text, spec, &report);
    if (status != STATUS_OK)
        error_set(err, status, "%s", report.errors.items[0]);
    spec_report_release(&report);
    free(text);
    if (status != STATUS_OK)
        return status;
    const enum status fits = spec_resolve_batch(*spec, t->ranks, "--gpus", err);
    if (fits != STATUS_OK) {
        spec_free(*spec);
        *spec = NULL;
    }
    return fits;
}

/* Builds the run on the CPU, or on a GPU that need not be here. `opens`: opens its data and its weights' headers. */
static enum status init_build(struct init *t, bool opens, struct error *err)
{
    struct engine engine = {.quiet = true, .node_ranks = t->node_ranks};
    const int threads = bootstrap_threads(bootstrap_cores(), 1);
    struct run_spec *spec;
    enum status status;
    bool absent;
    TRY(init_load_spec(t, &spec, err));
    TRY_END(t->cuda ? simulated_device_open(t->gpu.option, &engine.simulation.device, err)
                    : device_open(DEVICE_CPU, 0, threads, &engine.simulation.device, err));
    TRY_END(engine_build(&engine, spec, 0, t->ranks, NULL, threads, err));
    t->trained = engine.table.num_params - engine.table.frozen_params;
    if (!t->cuda)
        t->choice.node_bytes = memory_plan_node_bytes(&engine);
    if (opens)
        TRY_END(engine_open_data(&engine, err));
    if (opens)
        TRY_END(engine_weights_check(&engine, &absent, err));
end:
    engine_release(&engine);
    spec_free(spec);
    return status;
}

/* ---- the CPU ------------------------------------------------------------- */

/* The largest micro-batch up to eight that fits, without recomputation or, if none does, with it. */
static enum status init_plan_cpu(struct init *t, struct error *err)
{
    struct machine_memory machine;
    struct memory_setting *setting = &t->choice.setting;
    char need[SIZE_TEXT_MAX], limit[SIZE_TEXT_MAX];
    const int64_t samples = t->virtual_ranks ? t->batch / t->virtual_ranks : t->batch;
    machine_memory("", &machine);
    const uint64_t whole = machine.total < machine.limit ? machine.total : machine.limit;
    const double most = memory_auto_share * (double)whole;
    for (int recompute = RECOMPUTE_NONE; recompute <= RECOMPUTE_BLOCK; recompute += RECOMPUTE_BLOCK - RECOMPUTE_NONE) {
        setting->values[TUNABLE_RECOMPUTE] = recompute;
        for (setting->micro = 8; setting->micro > 0; setting->micro /= 2) {
            if (samples % setting->micro != 0)
                continue;
            TRY(init_build(t, false, err));
            if ((double)t->choice.node_bytes <= most)
                return STATUS_OK;
        }
    }
    error_set(err, STATUS_DEVICE, "the run needs at least %s of memory, and may take %s of this machine's",
              size_round((int64_t)t->choice.node_bytes, need), size_round((int64_t)most, limit));
    return error_hint(err, "a shorter --seq-length or a smaller model takes less; --gpus N plans for GPUs");
}

/* ---- GPUs ---------------------------------------------------------------- */

static void init_note_choice(const struct init *t)
{
    const int *values = t->choice.setting.values;
    char node[SIZE_TEXT_MAX];
    if (values[TUNABLE_OPTIMIZER] || values[TUNABLE_PARAM] || values[TUNABLE_INPUTS])
        init_note("the fastest settings that fit offload to the CPU: %s of a node's memory, and its link to the GPUs",
                  size_round((int64_t)t->choice.node_bytes, node));
    if (values[TUNABLE_STATES])
        init_note("nothing fits with optimizer state in fp32: it is in bf16, which rounds updates stochastically");
}

/* The plan's choice for the spec as it is. */
static enum status init_choose(struct init *t, struct error *err)
{
    const struct machine_question question = {.world = t->ranks, .per_node = t->node_ranks, .device = t->gpu.option};
    struct run_spec *spec;
    t->choice = (struct plan_choice){.setting.micro = 1};
    TRY(init_load_spec(t, &spec, err));
    spec->train.memory_limit = t->memory;
    const enum status status = plan_fit_choose(&question, NULL, spec, &t->choice, err);
    spec_free(spec);
    return status;
}

/* Virtual ranks may take a tenth more time than the best settings without them. */
static enum status init_plan_gpus(struct init *t, struct error *err)
{
    const int virtual_ranks = t->virtual_ranks;
    const double most = 1.1;
    struct error none;
    t->virtual_ranks = 0;
    TRY(init_choose(t, err));
    const struct plan_choice without = t->choice;
    t->virtual_ranks = virtual_ranks;
    if (virtual_ranks && init_choose(t, &none) != STATUS_OK) {
        t->virtual_ranks = 0;
        init_note("train.virtual_ranks is left out: by the plan it does not fit");
    } else if (virtual_ranks && t->choice.seconds > most * without.seconds) {
        t->virtual_ranks = 0;
        init_note("train.virtual_ranks is left out: by the plan it takes %.0f %% more time",
                  100 * (t->choice.seconds / without.seconds - 1));
    }
    if (!t->virtual_ranks)
        t->choice = without;
    init_note_choice(t);
    return STATUS_OK;
}

enum status init_plan(struct init *t, struct error *err)
{
    TRY(t->cuda ? init_plan_gpus(t, err) : init_plan_cpu(t, err));
    return init_build(t, true, err);
}
