/* SPDX-License-Identifier: Apache-2.0 */
/* init.c: `ztrain init` writes a run spec from flags, and on a terminal from answers to a few questions. What it writes
 * passes `ztrain --dry-run`: it was read, planned, and compared with data and weights before. */
#include "cmd/init.h"
#include "gpu/open/device_open.h"

static const char USAGE[] =
    "usage: ztrain init [--model DIR --data PREFIX] [options]\n"
    "\n"
    "Writes a run spec with a reason at each choice. ZeRO stage, micro-batch, recomputation and offload are those "
    "that\n"
    "`ztrain plan --fit` puts first. On a terminal it asks for the model, the data, the GPUs and the epochs, unless\n"
    "flags give them.\n"
    "\n"
    "  --model DIR          a Hugging Face folder, the name of a model in the local Hugging Face cache\n"
    "                       (Qwen/Qwen2.5-0.5B), or a config.json; without weights the run trains from scratch\n"
    "  --data PREFIX        token shards that ztrain-tokenize wrote, or a glob in quotes (repeatable: one stream)\n"
    "  --validation PREFIX  shards for evaluation (default: PREFIX-validation of the data, if it is there)\n"
    "  --gpus N             GPUs of all nodes; 0: the CPU (default: those of this machine)\n"
    "  --device NAME        the GPU, as `ztrain plan --help` names them, or cpu (default: this machine's, else h100)\n"
    "  --memory SIZE        memory of each GPU that the run may take, e.g. 40GiB (default: all of it)\n"
    "  --method NAME        full: all weights are trained (default); lora: an adapter on frozen weights;\n"
    "                       qlora: on frozen weights in 4 bits\n"
    "  --seq-length N       tokens of a sample (default: by the lengths of the documents)\n"
    "  --batch N            samples of a step on all GPUs, train_batch_size (default: about 128 Ki tokens)\n"
    "  --epochs N           passes over the data (default: 3 with a loss mask or labels, else 1)\n"
    "  --lr X               learning rate (default: 2e-5, of an adapter 2e-4, from scratch 3e-4)\n"
    "  --out FILE           the run spec (default: run.yaml); -: standard output\n"
    "  --force              replace FILE\n";

static const struct option_row options[] = {
    OPTION(struct init_flags, model, "model", "DIR"),
    {.name = "data", .value = "PREFIX", .offset = offsetof(struct init_flags, data), .kind = OPTION_LIST},
    OPTION(struct init_flags, validation, "validation", "PREFIX"),
    OPTION(struct init_flags, gpus, "gpus", "N"),
    OPTION(struct init_flags, device, "device", "NAME"),
    OPTION(struct init_flags, memory, "memory", "SIZE"),
    OPTION(struct init_flags, method, "method", "NAME"),
    OPTION(struct init_flags, seq_length, "seq-length", "N"),
    OPTION(struct init_flags, batch, "batch", "N"),
    OPTION(struct init_flags, epochs, "epochs", "N"),
    OPTION(struct init_flags, lr, "lr", "X"),
    OPTION(struct init_flags, out, "out", "FILE"),
    OPTION(struct init_flags, force, "force", NULL),
};
static const struct command_line command_line = {
    .command = "init", .usage = USAGE, .options = options, .count = COUNT_OF(options)};

static bool init_to_stdout(const struct init *t)
{
    return strcmp(t->flags.out, "-") == 0;
}

static enum status init_load_spec(const struct init *t, struct run_spec **spec, struct error *err)
{
    RELEASED(spec_report_release) struct spec_report report = {0};
    OWNED char *text = init_spec(t);
    *spec = NULL;
    const enum status status = spec_load_text("run.yaml", text, NULL, 0, spec, &report);
    if (status != STATUS_OK) return error_set(err, status, "%s", report.errors.items[0]);
    return spec_resolve_batch(*spec, t->ranks, "--gpus", err);
}

/* Builds the run on the CPU, or on a GPU that need not be here. `opens`: opens its data and its weights' headers. */
static enum status init_build(struct init *t, bool opens, struct error *err)
{
    RELEASED(spec_drop) struct run_spec *spec = NULL;
    RELEASED(engine_release) struct engine engine = {.quiet = true, .node_ranks = t->node_ranks};
    const int threads = bootstrap_threads(bootstrap_cores(), 1);
    bool absent;
    TRY(init_load_spec(t, &spec, err));
    TRY(t->cuda ? simulated_device_open(t->gpu.option, &engine.simulation.device, err)
                : device_open(DEVICE_CPU, 0, threads, &engine.simulation.device, err));
    TRY(engine_build(&engine, spec, 0, t->ranks, NULL, threads, err));
    t->trained = engine.table.num_params - engine.table.frozen_params;
    if (!t->cuda) t->choice.node = memory_plan_node_bytes(&engine);
    if (opens) TRY(engine_open_data(&engine, err));
    return opens ? engine_weights_check(&engine, &absent, err) : STATUS_OK;
}

/* The largest micro-batch up to eight that fits, without recomputation or, if none does, with it. */
static enum status init_plan_cpu(struct init *t, struct error *err)
{
    struct machine_memory machine;
    struct memory_setting *setting = &t->choice.setting;
    const int64_t samples = t->virtual_ranks ? t->batch / t->virtual_ranks : t->batch;
    machine_memory("", &machine);
    const uint64_t whole = machine.total < machine.limit ? machine.total : machine.limit;
    const double most = memory_auto_share * (double)whole;
    for (int recompute = RECOMPUTE_NONE; recompute <= RECOMPUTE_BLOCK; recompute += RECOMPUTE_BLOCK - RECOMPUTE_NONE) {
        setting->values[TUNABLE_RECOMPUTE] = recompute;
        for (setting->micro = 8; setting->micro > 0; setting->micro /= 2) {
            if (samples % setting->micro != 0) continue;
            TRY(init_build(t, false, err));
            if ((double)t->choice.node <= most) return STATUS_OK;
        }
    }
    error_set(err, STATUS_DEVICE, "the run needs at least %s of memory, and may take %s of this machine's",
              SIZE(round, t->choice.node), SIZE(round, most));
    return error_hint(err, "a shorter --seq-length or a smaller model takes less; --gpus N plans for GPUs");
}

static enum status init_choose(struct init *t, struct error *err)
{
    const struct machine_question question = {.world = t->ranks, .per_node = t->node_ranks, .device = t->gpu.option};
    RELEASED(spec_drop) struct run_spec *spec = NULL;
    t->choice = (struct memory_choice){.setting.micro = 1};
    TRY(init_load_spec(t, &spec, err));
    spec->train.memory_limit = t->memory;
    return plan_fit_choose(&question, spec, &t->choice, err);
}

/* Virtual ranks may take a tenth more time than the best settings without them. */
static enum status init_plan_gpus(struct init *t, struct error *err)
{
    const int virtual_ranks = t->virtual_ranks;
    const double most = 1.1;
    struct error none;
    t->virtual_ranks = 0;
    TRY(init_choose(t, err));
    const struct memory_choice without = t->choice;
    t->virtual_ranks = virtual_ranks;
    if (virtual_ranks && init_choose(t, &none) != STATUS_OK) {
        t->virtual_ranks = 0;
        init_note("train.virtual_ranks is left out: by the plan it does not fit");
    } else if (virtual_ranks && t->choice.seconds > most * without.seconds) {
        t->virtual_ranks = 0;
        init_note("train.virtual_ranks is left out: by the plan it takes %.0f %% more time",
                  100 * (t->choice.seconds / without.seconds - 1));
    }
    if (!t->virtual_ranks) t->choice = without;
    const int *values = t->choice.setting.values;
    if (values[TUNABLE_OPTIMIZER] || values[TUNABLE_PARAM] || values[TUNABLE_INPUTS])
        init_note("the fastest settings that fit offload to the CPU: %s of a node's memory, and its link to the GPUs",
                  SIZE(round, t->choice.node));
    if (values[TUNABLE_STATES])
        init_note("nothing fits with optimizer state in fp32: it is in bf16, which rounds updates stochastically");
    return STATUS_OK;
}

static void init_print_next(const struct init *t)
{
    const char *file = init_to_stdout(t) ? "run.yaml" : t->flags.out;
    char name[INIT_TEXT], launch[128] = "", local[32] = "";
    init_run_name(t, name);
    if (t->ranks > t->node_ranks)
        snprintf(launch, sizeof launch, "srun --nodes=%d --ntasks-per-node=%d --gpus-per-node=%d ",
                 t->ranks / t->node_ranks, t->node_ranks, t->node_ranks);
    else if (t->ranks > 1)
        snprintf(local, sizeof local, " --local-gpus %d", t->ranks);
    OWNED char *word = shell_word(file);
    if (!init_to_stdout(t)) fprintf(stderr, "ztrain: %s is written\n", PRINTABLE(file));
    fprintf(stderr,
            "next:\n"
            "  %sztrain --config %s%s --dry-run  # checks it\n"
            "  %sztrain --config %s%s  # trains\n"
            "  ztrain report runs/%s  # shows the curves\n",
            launch, word, local, launch, word, local, name);
}

enum status cmd_init(int argc, char **argv, struct error *err)
{
    RELEASED(init_release)
    struct init made = {.flags.out = "run.yaml", .asks = isatty(STDIN_FILENO) && isatty(STDERR_FILENO)};
    struct init *t = &made;
    enum init_method method;
    TRY(command_line_parse(&command_line, argc, argv, &t->flags, err));
    if (t->flags.method && init_find_method(t->flags.method, &method, err) != STATUS_OK) /* before any question */
        return error_prefix(err, "--method");
    TRY(command_check_out(t->flags.out, t->flags.force || init_to_stdout(t), err));
    TRY(init_take_inputs(t, err));
    TRY(t->cuda ? init_plan_gpus(t, err) : init_plan_cpu(t, err));
    TRY(init_build(t, true, err));
    OWNED char *text = init_spec(t);
    TRY(command_check_out(t->flags.out, t->flags.force || init_to_stdout(t),
                          err)); /* again: answers may have taken minutes */
    if (init_to_stdout(t))
        fputs(text, stdout); /* main() looks for errors */
    else
        TRY(named_file_write(t->flags.out, text, strlen(text), STATUS_USAGE, err));
    init_print_next(t);
    return STATUS_OK;
}
