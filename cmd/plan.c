/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/plan.h"

#include "cmd/command_line.h"
#include "cmd/options.h"
#include "gpu/open/device_open.h"

static void plan_print_schedule(const struct engine *t, bool data_known)
{
    const struct run_spec *spec = t->spec;
    if (data_known) printf("steps: %" PRId64 " in all, %" PRId64 " an epoch\n", t->total_steps, t->steps_per_epoch);
    printf("learning rates of steps 1 to 5 (%s):", schedule_name(spec->scheduler.type));
    if (schedule_needs_total(&spec->scheduler) && !spec->scheduler.total_steps) {
        printf(" depend on the run's length, so on data.train\n");
        return;
    }
    for (int64_t k = 1; k <= 5; k++)
        printf(" %.9g", schedule_lr(&spec->scheduler, optimizer_base_lr(&spec->optimizer), k));
    putchar('\n');
}

static void plan_print_batch(const struct run_spec *spec, int world, const char *source)
{
    printf("batch: train_batch_size %" PRId64 " = train_micro_batch_size_per_gpu %" PRId64
           " x gradient_accumulation_steps %" PRId64 " x ",
           spec->train_batch_size, spec->train_micro_batch_size_per_gpu, spec->gradient_accumulation_steps);
    if (spec->train.virtual_ranks) printf("virtual_ranks %" PRId64 "; ", spec->train.virtual_ranks);
    printf("world size %d (%s)\n", world, source);
}

/* What a rank computes and reduces in a step. Without virtual ranks stages 0 and 1 reduce once. */
static void plan_print_virtual_ranks(const struct engine *t)
{
    int64_t gathered, reduced, without;
    if (!t->spec->train.virtual_ranks) return;
    printf("virtual ranks: %d on each rank, which computes %" PRId64 " micro-batch%s a step", t->turns, t->micros,
           t->micros == 1 ? "" : "es");
    zero_theory(t->zero, (int)t->micros, &gathered, &reduced);
    zero_theory(t->zero, t->spec->zero.stage >= 2 ? (int)t->micros : 1, &gathered, &without);
    if (t->world > 1)
        printf(" and reduces %s; without train.virtual_ranks %s", SIZE(round, reduced), SIZE(round, without));
    putchar('\n');
}

static void plan_print_mixture(const struct run_spec *spec)
{
    const bool weighs = spec->data.amount == SPEC_AMOUNT_WEIGHT;
    double sum = 0;
    for (int i = 0; spec->data.amount && i < spec->data.train.count; i++) sum += spec->data.amounts[i];
    for (int i = 0; spec->data.amount && i < spec->data.train.count; i++) {
        const double amount = spec->data.amounts[i];
        printf("mixture: %s: ", PRINTABLE(spec->data.train.items[i]));
        if (weighs)
            printf("weight %.6g, %.4g %% of the samples\n", amount, 100 * amount / sum);
        else
            printf("%.6g epochs in each epoch of the run\n", amount);
    }
}

static enum status plan_print_policies(const struct engine *t, bool in_bytes, struct error *err)
{
    const double gib = 1 << 30;
    printf("activations by activation_checkpointing.policy, %s (this spec: %s):\n ", in_bytes ? "bytes" : "GiB",
           recompute_name(t->spec->transformer.recompute));
    for (int i = 0; i < RECOMPUTE_COUNT; i++) {
        size_t bytes;
        TRY(engine_activation_bytes(t, (enum recompute)i, &bytes, err));
        printf(in_bytes ? " %s %.0f%s" : " %s %.3f%s", recompute_name((enum recompute)i),
               (double)bytes / (in_bytes ? 1 : gib), i + 1 < RECOMPUTE_COUNT ? "," : "\n");
    }
    return STATUS_OK;
}

static enum status check_plan_printed(struct error *err)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) return STATUS_OK;
    return error_set(err, STATUS_USAGE, "cannot print the plan: standard output cannot be written");
}

/* Builds the run on the device that train.device names, or --device NAME. A GPU that is not here is assumed. */
static enum status build_plan(struct engine *t, struct run_spec *spec, int world, const char *option, int threads,
                              struct error *err)
{
    char why[256] = "";
    const bool cuda = !option && spec->train.device != SPEC_DEVICE_CPU && device_cuda_available(why);
    const bool assumed = option || (spec->train.device == SPEC_DEVICE_CUDA && !cuda);
    int ctas;
    if (assumed && !option)
        log_info("no GPU here (%s): the plan assumes one, and estimates cuDNN's workspace", why);
    else if (*why)
        log_info("device: the CPU (%s)", why);
    if (assumed)
        TRY(simulated_device_open(option, &t->simulation.device, err));
    else
        TRY(device_open(cuda ? DEVICE_CUDA : DEVICE_CPU, 0, threads, &t->simulation.device, err));
    TRY(engine_build(t, spec, 0, world, NULL, threads, err));
    return assumed ? STATUS_OK : choose_sm_target(t, &ctas, err);
}

/* What a run of this spec begins with; refused: what it would be refused for. */
static void plan_dry_one(struct engine *t, const char *world_source, bool resumes, struct error *refused)
{
    struct run_spec *spec = t->spec;
    RELEASED(string_list_release) struct string_list autos = {.count = 0};
    RELEASED(save_cache_drop) struct checkpoint_save_cache *cache = NULL;
    const bool data_known = engine_open_data(t, refused) == STATUS_OK;
    if (!data_known && spec->train.max_steps && spec->train.epochs <= 0 && !spec->scheduler.total_steps)
        spec->scheduler.total_steps = spec->train.max_steps;
    spec_auto_print(spec, &autos);
    for (int i = 0; i < autos.count; i++) printf("%s\n", PRINTABLE(autos.items[i]));
    printf("# effective run spec%s%s\n", spec->run.group ? " of " : "", spec->run.group ? spec->run.name : "");
    spec_write_yaml(spec, stdout);
    printf("# end of the run spec\n");
    plan_print_batch(spec, t->world, world_source);
    plan_print_virtual_ranks(t);
    plan_print_mixture(spec);
    plan_print_schedule(t, data_known);
    if (refused->code == STATUS_DATA && (refused->cause == ENOENT || refused->cause == ENOTDIR)) {
        printf("data: %s\n", PRINTABLE(refused->text)); /* nothing is known yet */
        refused->code = STATUS_OK;
    }
    if (data_known && !resumes) engine_check_reference(t, refused);
    if (refused->code == STATUS_OK && !resumes) { /* absent weights are no error: a config.json suffices for a plan */
        bool absent;
        struct error err;
        const enum status status = engine_weights_check(t, &absent, &err);
        if (absent)
            printf("weights: %s\n", PRINTABLE(err.text));
        else if (status != STATUS_OK)
            *refused = err;
    }
    if (refused->code == STATUS_OK) /* the files that a run takes into its checkpoints */
        checkpoint_save_cache_new(spec->model.tokenizer_folder, spec->model.folder, &cache, refused);
}

enum status plan_dry_run(struct run_spec *spec, int world, const char *world_source, int cores, bool resumes,
                         struct error *err)
{
    RELEASED(engine_release) struct engine engine = {0};
    TRY(build_plan(&engine, spec, world, NULL, bootstrap_threads(cores, world), err));
    struct error refused = {.code = STATUS_OK};
    for (struct engine *t = &engine; t && refused.code == STATUS_OK; t = t->next)
        plan_dry_one(t, world_source, resumes, &refused);
    memory_plan_print(&engine, false);
    TRY(plan_print_policies(&engine, false, err));
    TRY(check_plan_printed(err));
    TRY(zero_check_folders(engine.zero, err));
    if (refused.code != STATUS_OK) *err = refused;
    TRY(refused.code);
    return memory_limit_check(&engine, err);
}

enum status cmd_plan(int argc, char **argv, struct error *err)
{
    struct options options;
    RELEASED(spec_drop) struct run_spec *spec = NULL;
    RELEASED(engine_release) struct engine engine = {0};
    TRY(options_parse(argc, argv, &options, err));
    if (options.help) {
        options_help_plan(stdout);
        return STATUS_OK;
    }
    int world = options.world ? options.world : options.local_gpus ? options.local_gpus : 1;
    TRY(options_load_spec(&options, false, &spec, err));
    engine.node_ranks = options.local_gpus;
    if (options.machine.device || spec->train.device == SPEC_DEVICE_CUDA)
        engine.node_ranks = simulated_node_ranks(options.local_gpus, world);
    const char *source = options.world ? "--world" : options.local_gpus ? "--local-gpus" : "one rank";
    TRY(spec_resolve_batches(spec, world, source, err));
    options.machine.world = world;
    options.machine.per_node = options.local_gpus;
    if (options.speed) {
        TRY(plan_speed(&options.machine, options.price, spec, err));
    } else if (options.fit) {
        TRY(plan_fit(&options.machine, options.row, spec, err));
    } else {
        TRY(plan_size("memory", options.machine.memory, &spec->train.memory_limit, err));
        const int threads = bootstrap_threads(bootstrap_cores(), options.local_gpus);
        TRY(build_plan(&engine, spec, world, options.machine.device, threads, err));
        plan_print_batch(spec, world, "planned");
        plan_print_virtual_ranks(&engine);
        plan_print_mixture(spec);
        memory_plan_print(&engine, options.bytes);
        TRY(plan_print_policies(&engine, options.bytes, err));
    }
    TRY(check_plan_printed(err));
    return options.speed || options.fit ? STATUS_OK : memory_limit_check(&engine, err);
}
