/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/options.h"

#include "cmd/command_line.h"
#include "cmd/supervise/supervise.h"
#include "gpu/simulate/op_estimate.h"

enum option_scope { IN_BOTH, IN_TRAINING, IN_PLAN }; /* IN_PLAN: training refuses it with a separate message */

static const struct option_row option_table[] = {
    {"config", "FILE", offsetof(struct options, config), OPTION_MAYBE_EMPTY, IN_BOTH,
     "the run spec (YAML); --help-spec lists its keys"},
    {"local-gpus", "N", offsetof(struct options, local_gpus), OPTION_COUNT, IN_BOTH,
     "start and supervise N ranks on this machine (on the CPU device: N processes that share the cores); with "
     "--dry-run: plan for N ranks"},
    {"resume", "DIR", offsetof(struct options, rank.resume), OPTION_MAYBE_EMPTY, IN_TRAINING,
     "continue from a checkpoint, or from the newest valid one of a run folder; auto: from the newest of this run's "
     "own folder, or from the beginning if it holds none"},
    {"max-restarts", "K", offsetof(struct options, rank.max_restarts), OPTION_COUNT, IN_TRAINING,
     "with --local-gpus: start the ranks again, up to K times, when one was killed or its device failed, unless the "
     "last restart has gained no checkpoint"},
    {"min-gpus", "M", offsetof(struct options, min_gpus), OPTION_COUNT, IN_TRAINING,
     "with --max-restarts: continue on fewer ranks, M or more, without a GPU that is gone or broken; it is tried again "
     "at a later restart"},
    {"set", "KEY=VALUE", offsetof(struct options, set), OPTION_LIST, IN_BOTH,
     "override a key of the run spec, e.g. train.max_steps=30 (repeatable; VALUE is YAML)"},
    {"deepspeed", "FILE", offsetof(struct options, deepspeed), OPTION_MAYBE_EMPTY, IN_BOTH,
     "take DeepSpeed's keys from its JSON file"},
    {"dry-run", NULL, offsetof(struct options, dry_run), OPTION_USUAL, IN_TRAINING,
     "check the input and print the effective spec, batch sizes, first learning rates and the memory plan"},
    {"verbose", NULL, offsetof(struct options, verbose), OPTION_USUAL, IN_TRAINING,
     "print at the start what else goes to log/rank-00000.log only: the memory plan, kernels, collectives, CUDA "
     "graphs"},
    {"profile", NULL, offsetof(struct options, rank.profile), OPTION_USUAL, IN_TRAINING,
     "print time, FLOP/s and bytes/s of all steps by operation, before the last checkpoint"},
    {"trace", "FILE", offsetof(struct options, rank.trace), OPTION_MAYBE_EMPTY, IN_TRAINING,
     "write a few steps in Chrome's trace format (Perfetto, chrome://tracing)"},
    {"trace-steps", "A-B", offsetof(struct options, rank.trace_steps), OPTION_MAYBE_EMPTY, IN_TRAINING,
     "with --trace: the steps; default: the third to the fifth of this process"},
    {"world", "N", offsetof(struct options, world), OPTION_COUNT, IN_PLAN, "with plan: the number of ranks"},
    {"speed", NULL, offsetof(struct options, speed), OPTION_USUAL, IN_PLAN,
     "with plan: estimate the time of a step and of the run on a GPU that need not be here"},
    {"fit", NULL, offsetof(struct options, fit), OPTION_USUAL, IN_PLAN,
     "with plan: search the settings with which the run fits into the memory of such GPUs: the simplest of about the "
     "fastest first"},
    {"device", "NAME", offsetof(struct options, machine.device), OPTION_MAYBE_EMPTY, IN_PLAN,
     "with plan: the GPU: h100 (the default), h100-pcie, h100-nvl, gh200, h200, a100, a100-40gb, a100-pcie, "
     "a100-pcie-40gb, a10, a40, b200, l4, l40, l40s, rtx3090, rtx3090ti, rtx4090, rtx5090, rtx-a6000, rtx6000-ada, "
     "rtx-pro6000"},
    {"link", "RATE", offsetof(struct options, machine.link), OPTION_MAYBE_EMPTY, IN_PLAN,
     "with plan --speed or --fit: bandwidth of a GPU's link: of the network if there are several nodes (e.g. 400Gbit), "
     "else inside the node (450GB)"},
    {"assume", "WORDS", offsetof(struct options, machine.assume), OPTION_MAYBE_EMPTY, IN_PLAN,
     "with plan --speed or --fit: a step without these overheads, e.g. bf16-logits,fused-bias (ztrain plan --help "
     "lists them)"},
    {"memory", "SIZE", offsetof(struct options, machine.memory), OPTION_MAYBE_EMPTY, IN_PLAN,
     "with plan and plan --fit: the memory that a rank may take of its device, e.g. 24GiB; default: "
     "train.memory_limit, else what the GPU has"},
    {"node-memory", "SIZE", offsetof(struct options, machine.node_memory), OPTION_MAYBE_EMPTY, IN_PLAN,
     "with plan --fit: the host memory of each node, e.g. 2TiB; default: no limit"},
    {"row", "N", offsetof(struct options, row), OPTION_COUNT, IN_PLAN,
     "with plan --fit: print the lines of the run spec for row N of its table; default: 1"},
    {"price", "X", offsetof(struct options, price), OPTION_MAYBE_EMPTY, IN_PLAN,
     "with plan --speed: what an hour of a GPU costs, in any currency, e.g. 2.5; the plan then prints what the run "
     "costs"},
    {"bytes", NULL, offsetof(struct options, bytes), OPTION_USUAL, IN_PLAN, "with plan: print bytes in place of GiB"},
    {"help", NULL, offsetof(struct options, help), OPTION_USUAL, IN_BOTH, "print this text"},
    {"help-spec", NULL, offsetof(struct options, help_spec), OPTION_USUAL, IN_TRAINING,
     "print every key of the run spec"},
    {"json", NULL, offsetof(struct options, json), OPTION_USUAL, IN_TRAINING, "with --help-spec: as JSON"},
    {"version", NULL, offsetof(struct options, version), OPTION_USUAL, IN_TRAINING,
     "print the versions of ztrain and of the libraries in use"},
};

static enum status refuse_local_gpus(int64_t count, struct error *err)
{
    error_set(err, STATUS_USAGE, "--local-gpus must be a number from 1 to %d, not '%" PRId64 "'", SUPERVISE_MAX_RANKS,
              count);
    return error_hint(err, "srun starts more ranks than that");
}

static enum status set_option_count(const struct option_row *row, const char *value, int *field, struct error *err)
{
    const bool local = row->offset == offsetof(struct options, local_gpus);
    const int most = local ? SUPERVISE_MAX_RANKS : 65536;
    int64_t n = 0;
    const enum status status = option_integer(row->name, value, "a number", 1, most, &n, err);
    if (local && n > BOOTSTRAP_MAX_RANKS) return refuse_local_gpus(n, err);
    if (status != STATUS_OK && (!local || n <= most)) return status; /* a dry run may have more: check_together() */
    *field = (int)n;
    return STATUS_OK;
}

static enum status refuse_option_word(const char *word, int i, struct error *err)
{
#define COMMAND(name) #name,
    static const char *const commands[] = {"train", COMMANDS(COMMAND)};
#undef COMMAND
    if (word[0] == '-' && strchr(word, '.'))
        return error_set(err, STATUS_USAGE,
                         "unknown option '%s'; hint: keys of the run spec are set by --set KEY=VALUE", word);
    if (word[0] == '-') return option_unknown("", word, option_table, COUNT_OF(option_table), err);
    const char *nearest = nearest_name(word, commands, COUNT_OF(commands));
    error_set(err, STATUS_USAGE, "unknown argument '%s'", word);
    if (nearest == commands[0])
        return error_hint(err, "training takes no word before its options: ztrain --config run.yaml");
    if (nearest)
        return error_hint(err, i == 1 ? "did you mean ztrain %s?" : "a command comes first: ztrain %s …", nearest);
    if (strstr(word, ".yaml") || strstr(word, ".yml"))
        return error_hint(err, "the run spec is named by --config %s", word);
    return error_hint(err, "ztrain --help lists commands and options");
}

static enum status check_together(const struct options *options, struct error *err)
{
    static const char by_speed[] = "ztrain plan --speed --config run.yaml";
    static const char by_fit[] =
        "ztrain plan --fit --config run.yaml; a run's cap is train.memory_limit in the run spec";
    const bool plan = options->plan, speed = options->speed, fit = options->fit;
    char row_hint[64];
    snprintf(row_hint, sizeof row_hint, "ztrain plan --fit --row %d --config run.yaml", options->row);
    const struct {
        bool misused;
        const char *name, *of, *hint;
    } rules[] = {
        {speed && !plan, "speed", "plan", by_speed},
        {fit && !plan, "fit", "plan", "ztrain plan --fit --config run.yaml"},
        {options->machine.memory && (!plan || speed), "memory", "plan and plan --fit", by_fit},
        {options->machine.node_memory && !fit, "node-memory", "plan --fit", by_fit},
        {options->machine.device && !plan, "device", "plan",
         "a run's device is train.device in the run spec: --set train.device=cuda"},
        {options->machine.link && !speed && !fit, "link", "plan --speed and --fit", by_speed},
        {options->machine.assume && !speed && !fit, "assume", "plan --speed and --fit", by_speed},
        {options->bytes && (!plan || speed || fit), "bytes", "plan without --speed and --fit", NULL},
        {options->row && !fit, "row", "plan --fit", row_hint},
        {options->price && !speed, "price", "plan --speed", "ztrain plan --speed --price 2.5 --config run.yaml"},
        {options->json && !options->help_spec, "json", "--help-spec", "ztrain --help-spec --json"},
    };
    if (options->local_gpus > SUPERVISE_MAX_RANKS && !options->dry_run)
        return refuse_local_gpus(options->local_gpus, err);
    if (plan && speed && fit)
        return error_set(err, STATUS_USAGE, "--speed and --fit are two plans; hint: one of the two");
    for (size_t i = 0; i < COUNT_OF(rules); i++)
        if (rules[i].misused) {
            error_set(err, STATUS_USAGE, "--%s is an option of %s", rules[i].name, rules[i].of);
            return rules[i].hint ? error_hint(err, "%s", rules[i].hint) : STATUS_USAGE;
        }
    return STATUS_OK;
}

enum status options_parse(int argc, char **argv, struct options *options, struct error *err)
{
    memset(options, 0, sizeof *options);
    options->plan = !strcmp(argv[0], "plan");
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        if (!strcmp(word, "-h")) {
            options->help = true;
            continue;
        }
        const char *value;
        const struct option_row *row = option_find(option_table, COUNT_OF(option_table), word, &value);
        if (!row) return refuse_option_word(word, i, err);
        if (options->plan && row->scope == IN_TRAINING)
            return error_set(err, STATUS_USAGE, "--%s is not an option of plan", row->name);
        TRY(option_take_value(row, argc, argv, &i, &value, err));
        void *field = (char *)options + row->offset;
        switch (row->kind) {
        case OPTION_USUAL: *(bool *)field = true; break;
        case OPTION_MAYBE_EMPTY: *(const char **)field = value; break;
        case OPTION_LIST:
            if (options->num_set == OPTIONS_MAX_SET)
                return error_set(err, STATUS_USAGE, "more than %d --set options", OPTIONS_MAX_SET);
            options->set[options->num_set++] = value;
            break;
        case OPTION_COUNT: TRY(set_option_count(row, value, field, err));
        }
    }
    return check_together(options, err);
}

static void print_options(FILE *out, bool plan)
{
    static const char in_plan[] = "with plan: ", in_mode[] = "with plan --";
    fputs("options:\n", out);
    for (size_t k = 0; k < COUNT_OF(option_table); k++) {
        const struct option_row *row = &option_table[k];
        char left[64];
        if (plan && row->scope == IN_TRAINING) continue;
        snprintf(left, sizeof left, "--%s%s%s", row->name, row->value ? " " : "", row->value ? row->value : "");
        fprintf(out, "  %-18s  ", left);
        if (plan && row->offset == offsetof(struct options, local_gpus))
            fputs("the number of ranks on each node; without --world it is the number of all ranks\n", out);
        else if (plan && !strncmp(row->help, in_plan, sizeof in_plan - 1))
            fprintf(out, "%s\n", row->help + sizeof in_plan - 1);
        else if (plan && !strncmp(row->help, in_mode, sizeof in_mode - 1))
            fprintf(out, "with --%s\n", row->help + sizeof in_mode - 1);
        else
            fprintf(out, "%s\n", row->help);
    }
}

void options_help_plan(FILE *out)
{
#define LINE(name, word, text) {word, text},
    static const char *const assumptions[][2] = {ASSUMPTIONS(LINE)}, *const rates[][2] = {ASSUMED_RATES(LINE)};
#undef LINE
    fputs(
        "ztrain plan --config run.yaml [--world N] [--device h100] [--memory 24GiB]\n"
        "    Prints the GiB that a run needs on each rank, in all and by kind, and on each node, next to that memory.\n"
        "ztrain plan --speed --config run.yaml [--device h100] [--world N]\n"
        "    Estimates the time of a step and of the run on a GPU that need not be here, by kind of op, with MFU and\n"
        "    overheads.\n"
        "ztrain plan --fit --config run.yaml [--device h100] [--memory 80GiB] [--world N]\n"
        "    Searches micro-batch, ZeRO stage, recomputation and offload at the same train_batch_size, and prints the\n"
        "    fastest settings that fit, with the lines of the run spec for the first one, or for --row N.\n"
        "\n",
        out);
    print_options(out, true);
    fputs("\nwords of --assume, each with the overhead that it removes:\n", out);
    for (size_t i = 0; i < COUNT_OF(assumptions); i++)
        fprintf(out, "  %-20s  %s\n", assumptions[i][0], assumptions[i][1]);
    fputs("\nrates that --assume sets, e.g. host-link=50GB (per second), for offload:\n", out);
    for (size_t i = 0; i < COUNT_OF(rates); i++) fprintf(out, "  %-20s  %s\n", rates[i][0], rates[i][1]);
}

void options_help(FILE *out)
{
    fputs(
        "ztrain trains causal language models, sharded by ZeRO stage 0 to 3: the families of GPT-2, GPT-J, GPT-NeoX,\n"
        "Llama, Mistral, Qwen, Phi, Gemma, GLM, Granite, SmolLM, OLMo, Cohere, StarCoder, EXAONE and Seed-OSS.\n\n"
        "  ztrain init --model DIR --data PREFIX [--gpus N]\n"
        "                                              write a run spec, with the settings of the plan; asks on a "
        "terminal\n"
        "  ztrain --config run.yaml                    train on one rank\n"
        "  ztrain --config run.yaml --local-gpus 2     train on two ranks of this machine\n"
        "  ztrain --config run.yaml --resume DIR       continue from a checkpoint or a run folder\n"
        "  ztrain --config run.yaml --resume auto      start, or continue if there is a checkpoint\n"
        "  ztrain plan --config run.yaml [--world N]   print the memory of a rank, by kind\n"
        "  ztrain plan --speed --config run.yaml [--device h100] [--world N]\n"
        "                                              estimate a step's time by kind of op, MFU and overheads\n"
        "  ztrain plan --fit --config run.yaml [--device h100] [--memory 80GiB] [--world N]\n"
        "                                              search the fastest settings that fit into that memory\n"
        "  ztrain convert FILE… [--out run.yaml]       turn the configuration of another trainer into a run spec\n"
        "  ztrain data PREFIX… [--show N] [--tokenizer DIR]\n"
        "                                              count token shards, and show documents with what is learned\n"
        "  ztrain export DIR --out HFDIR [--dtype fp32|bf16]\n"
        "                                              write a checkpoint as a Hugging Face folder\n"
        "  ztrain verify DIR                           check every byte of a checkpoint, or of a run's checkpoints\n"
        "  ztrain inspect DIR [--tensors]              print what a checkpoint holds\n"
        "  ztrain report RUN… [--out FILE [--watch]]   show the curves of runs in the terminal, or write a page for a "
        "browser\n"
        "  ztrain sample DIR --prompt TEXT             continue a prompt with a checkpoint, a run or a Hugging Face "
        "folder\n"
        "  ztrain why RUN                              name the rank that a run failed by, or that it waits for\n"
        "  ztrain replay RUN --step S [--local-gpus N]\n"
        "                                              compute steps of a run again, and compare them with its record\n"
        "  ztrain score DIR --data PREFIX --out FILE   log-probabilities of documents under a model, perplexity\n"
        "  ztrain doctor [--gpu-test]                  print what ztrain finds on this machine; test its GPU\n"
        "  ztrain version                              print the versions of ztrain and of the libraries in use\n"
        "\n",
        out);
    print_options(out, false);
    fputs("\n"
          "exit codes: 0 finished, 2 usage or run spec, 3 data or model files, 4 checkpoint or a full disk,\n"
          "5 no such device at the start or out of memory, 6 a peer or the network, 7 diverged,\n"
          "8 a device, its driver or a library failed after the start, 70 a bug, 75 stopped on request\n"
          "with a checkpoint written, 130 ended at once by a second Ctrl-C\n",
          out);
}

enum status options_load_spec(const struct options *options, bool quiet, struct run_spec **spec, struct error *err)
{
    if (!options->config && !options->text) {
        error_set(err, STATUS_USAGE, "no run spec given");
        return options->plan ? error_hint(err, "ztrain plan --config run.yaml; ztrain plan --help shows more")
                             : error_hint(err, "ztrain --config run.yaml; ztrain --help shows more");
    }
    RELEASED(spec_report_release) struct spec_report report = {0};
    const char *name = options->config ? options->config : "the command line";
    enum status status = options->config
                             ? spec_load(name, options->deepspeed, options->set, options->num_set, spec, &report)
                             : spec_load_text(name, options->text, options->set, options->num_set, spec, &report);
    if (!quiet) {
        for (int i = 0; i < report.errors.count; i++) log_line(PRINTABLE(report.errors.items[i]));
        for (int i = 0; i < report.notices.count; i++) log_info("%s", report.notices.items[i]);
    }
    if (status != STATUS_OK)
        error_set(err, status, "%d error%s in the run spec '%s'", report.errors.count, PLURAL(report.errors.count),
                  name);
    return status;
}
