/* SPDX-License-Identifier: Apache-2.0 */
/* replay.c: `ztrain replay RUN --step S`, the command: its options. cmd/train/replay_steps.c has the replay. */
#include "cmd/command_line.h"
#include "cmd/options.h"
#include "cmd/run/stop_signal.h"
#include "cmd/supervise/supervise.h"

static const char USAGE[] =
    "usage: ztrain replay RUN --step S [--local-gpus N] [--set KEY=VALUE]\n\n"
    "Computes steps of a run again, from its newest valid checkpoint before step S up to S, and compares each with "
    "the\n"
    "run's metrics.jsonl: loss, grad_norm and lr, the hash of the parameters if the line has one "
    "(train.hash_interval_steps),\n"
    "and the state after S if there is a checkpoint of it. Reads the run spec RUN/run.yaml, and writes nothing into "
    "RUN.\n\n"
    "  RUN                a run folder\n"
    "  --step S           the last step to compute\n"
    "  --local-gpus N     start and supervise N ranks on this machine; under srun the ranks are srun's. A run without\n"
    "                     train.virtual_ranks replays only on the number of ranks that computed the steps\n"
    "  --set KEY=VALUE    override a key of the run spec that changes no bits, e.g. train.device=cuda (repeatable)\n"
    "  --verbose          print the memory plan, kernels and collectives as well\n\n"
    "exit codes: 0 everything is the same, 7 a step differs (the error names the first one and both values),\n"
    "4 there is no valid checkpoint before S, 2 nothing is recorded of S, or the number of ranks is wrong,\n"
    "75 stopped on request\n";

struct replay_words {
    const char *run, *step, *local_gpus;
    struct string_list set;
    bool verbose;
};

/* path: of the run spec. */
static enum status replay_take_words(const struct replay_words *words, struct options *options, char path[FS_PATH_MAX],
                                     struct error *err)
{
    static const int64_t most_steps = (int64_t)1 << 53;
    int64_t ranks = 0;
    if (!words->step) {
        error_set(err, STATUS_USAGE, "no step was named");
        return error_hint(err, "ztrain replay %s --step S; S is the last step to compute", words->run);
    }
    TRY(option_integer("step", words->step, "a number", 1, most_steps, &options->rank.replay_step, err));
    TRY(option_integer("local-gpus", words->local_gpus, "a number", 1, SUPERVISE_MAX_RANKS, &ranks, err));
    if (words->set.count > OPTIONS_MAX_SET)
        return error_set(err, STATUS_USAGE, "more than %d --set options", OPTIONS_MAX_SET);
    options->local_gpus = (int)ranks;
    options->num_set = words->set.count;
    for (int i = 0; i < words->set.count; i++) options->set[i] = words->set.items[i];
    if (!fs_is_dir(words->run)) return error_set(err, STATUS_CHECKPOINT, "there is no run folder '%s'", words->run);
    TRY(fs_join(path, words->run, "run.yaml", STATUS_CHECKPOINT, err));
    return fs_exists(path)
               ? STATUS_OK
               : error_set(err, STATUS_CHECKPOINT, "'%s' is not a run folder: it has no run.yaml", words->run);
}

enum status cmd_replay(int argc, char **argv, struct error *err)
{
    static const struct option_row rows[] = {
        OPTION(struct replay_words, step, "step", "S"),
        OPTION(struct replay_words, local_gpus, "local-gpus", "N"),
        {.name = "set", .value = "KEY=VALUE", .offset = offsetof(struct replay_words, set), .kind = OPTION_LIST},
        OPTION(struct replay_words, verbose, "verbose", NULL),
    };
    static const struct command_line line = {"replay", USAGE,         "run folder", 1, "ztrain replay RUN --step S",
                                             rows,     COUNT_OF(rows)};
    struct replay_words words = {.run = NULL};
    char path[FS_PATH_MAX];
    struct options options;
    memset(&options, 0, sizeof options);
    enum status status = command_line_parse(&line, argc, argv, &words, err);
    if (status == STATUS_OK) {
        status = replay_take_words(&words, &options, path, err);
        options.rank.replay = words.run;
        options.config = path;
        options.verbose = words.verbose;
    }
    log_show_details(options.verbose);
    stop_signal_of_replay();
    if (status != STATUS_HELPED) /* argv[-1] is the program's name: a supervisor starts its ranks with the same words */
        status = train_with(&options, argv - 1, status, err);
    string_list_release(&words.set);
    return status;
}
