/* SPDX-License-Identifier: Apache-2.0 */
/* score.c: `ztrain score DIR --data PREFIX`, the command: its options. cmd/train/score_rank.c scores. */
#include "cmd/command_line.h"
#include "cmd/options.h"
#include "cmd/run/stop_signal.h"
#include "cmd/supervise/supervise.h"
#include "core/data/token_set.h"
#include "core/model/model_folder.h"

static const char USAGE[] =
    "usage: ztrain score DIR --data PREFIX --out FILE [--per-document] [--adapter-off]\n"
    "                        [--mismatched M | --top-k K] [--config FILE] [--local-gpus N] [--set KEY=VALUE]\n\n"
    "Computes the log-probability of each document of PREFIX under a model: the sum over the tokens whose loss mask "
    "is\n"
    "1, over all but the first without a mask. Prints the perplexity, and writes FILE, which preference.reference\n"
    "reads. What an interrupted command has written is not computed again. The numbers do not depend on the number of\n"
    "ranks; under srun, each task is a rank.\n\n"
    "  DIR              a Hugging Face folder, a checkpoint or a run (its newest checkpoint)\n"
    "  --data PREFIX    a token shard, as data.train names it\n"
    "  --out FILE       PREFIX.logps\n"
    "  --per-document   prints a line for each document\n"
    "  --adapter-off    of a run with peft: its base\n"
    "  --mismatched M   for preference.loss kto with micro-batches of M: mismatched answers, too, which are cut to\n"
    "                   the tokens of the run's samples: --set data.seq_length=N\n"
    "  --top-k K        FILE is a teacher's for distill.logps instead: the K most probable tokens after each token\n"
    "  --config FILE    a run spec for the rest: device, dtype, zero_optimization; default: that of the run\n"
    "  --set KEY=VALUE  a value of the run spec, e.g. train_micro_batch_size_per_gpu=8\n"
    "  --local-gpus N   start N ranks on this machine\n";

struct score_words {
    const char *dir, *data, *out, *mismatched, *top_k, *config, *local_gpus;
    struct string_list set;
    bool per_document, adapter_off, verbose;
};

/* Of one sequence each, so that a micro-batch has some thousand tokens. */
enum { MICRO_TOKENS = 8192, MOST_MICRO = 64 };

static enum status longest_document(const char *prefix, int64_t *longest, struct error *err)
{
    RELEASED(token_set_drop) struct token_set *set = NULL;
    TRY(token_set_open(&prefix, 1, &set, err));
    *longest = 2;
    for (int64_t i = 0; i < token_set_documents(set); i++) {
        int64_t first, length;
        TRY(token_set_document(set, i, &first, &length, err));
        *longest = length > *longest ? length : *longest;
    }
    return STATUS_OK;
}

/* The run.yaml of a run, or of a checkpoint's; path empty: DIR is neither. */
static enum status find_run_spec(const char *dir, char path[FS_PATH_MAX], struct error *err)
{
    static const char *const places[] = {"run.yaml", "../run.yaml", "../../run.yaml"};
    char manifest[FS_PATH_MAX];
    TRY(fs_join(manifest, dir, "manifest.json", STATUS_USAGE, err));
    for (size_t i = 0; i < (fs_exists(manifest) ? COUNT_OF(places) : 1); i++) {
        TRY(fs_join(path, dir, places[i], STATUS_USAGE, err));
        if (fs_exists(path)) return STATUS_OK;
    }
    path[0] = '\0';
    return STATUS_OK;
}

/* Gives a --set option, in `texts`, which owns it. */
static void set_value(struct options *options, struct string_list *texts, const char *key, const char *value)
{
    char *text = memory_printf("%s=%s", key, value);
    string_list_add(texts, text);
    free(text);
    options->set[options->num_set++] = texts->items[texts->count - 1];
}

static enum status score_values(const struct score_words *words, const char *folder, struct options *options,
                                struct string_list *texts, struct error *err)
{
    char number[32], micro[32];
    int64_t longest;
    TRY(longest_document(words->data, &longest, err));
    snprintf(number, sizeof number, "%" PRId64, longest);
    snprintf(micro, sizeof micro, "%" PRId64,
             longest >= MICRO_TOKENS / 2            ? 1
             : longest * MOST_MICRO <= MICRO_TOKENS ? (int64_t)MOST_MICRO
                                                    : MICRO_TOKENS / longest);
    if (folder) set_value(options, texts, "model.pretrained", folder);
    set_value(options, texts, "data.train", words->data);
    set_value(options, texts, "data.seq_length", number);
    set_value(options, texts, "data.packing", "false");
    set_value(options, texts, "train_batch_size", "auto");
    set_value(options, texts, "train_micro_batch_size_per_gpu", micro);
    set_value(options, texts, "gradient_accumulation_steps", "1");
    set_value(options, texts, "train.virtual_ranks", "0");
    set_value(options, texts, "train.max_steps", "1");
    for (int i = 0; i < words->set.count; i++) options->set[options->num_set++] = words->set.items[i];
    return STATUS_OK;
}

static enum status score_take_words(const struct score_words *words, struct options *options, char path[FS_PATH_MAX],
                                    struct string_list *texts, struct error *err)
{
    static char folder[FS_PATH_MAX]; /* the options borrow it */
    int64_t ranks = 0;
    if (!words->data || !words->out) {
        error_set(err, STATUS_USAGE, "%s is missing", words->data ? "--out FILE" : "--data PREFIX");
        return error_hint(err, "ztrain score DIR --data PREFIX --out PREFIX.logps");
    }
    TRY(option_integer("local-gpus", words->local_gpus, "a number", 1, SUPERVISE_MAX_RANKS, &ranks, err));
    TRY(option_integer("top-k", words->top_k, "a number", 1, 1 << 20, &options->rank.score_top_k, err));
    TRY(option_integer("mismatched", words->mismatched, "a number", 2, 1 << 20, &options->rank.score_together, err));
    options->local_gpus = (int)ranks;
    if (words->top_k && (words->mismatched || words->per_document))
        return error_set(err, STATUS_USAGE, "--top-k writes a teacher's file, without %s",
                         words->mismatched ? "--mismatched" : "--per-document");
    if (words->set.count > OPTIONS_MAX_SET / 2)
        return error_set(err, STATUS_USAGE, "more than %d --set options", OPTIONS_MAX_SET / 2);
    if (!model_folder_find(words->dir, folder)) return model_folder_missing(PRINTABLE(words->dir), STATUS_USAGE, err);
    char adapter[FS_PATH_MAX];
    TRY(fs_join(adapter, folder, "adapter_config.json", STATUS_USAGE, err));
    if (fs_exists(adapter)) {
        error_set(err, STATUS_USAGE, "'%s' is an adapter, which is scored with its base", folder);
        return error_hint(err, "name its run, or a folder of ztrain export RUN --merge");
    }
    TRY(find_run_spec(folder, path, err));
    char config[FS_PATH_MAX];
    TRY(fs_join(config, folder, "config.json", STATUS_USAGE, err));
    if (!*path && !fs_exists(config)) {
        error_set(err, STATUS_USAGE, "'%s' has neither a config.json nor a run.yaml", folder);
        return error_hint(err, "name a Hugging Face folder, a run, or a checkpoint in its run's folder");
    }
    options->rank.score = words->out;
    options->rank.score_lines = words->per_document;
    options->rank.score_base = words->adapter_off;
    const bool of_run = *path;
    if (of_run) options->rank.resume = folder;
    options->config = words->config ? words->config : of_run ? path : NULL;
    if (!options->config) options->text = "optimizer: {type: AdamW, params: {lr: 0.001}}\n";
    return score_values(words, of_run ? NULL : folder, options, texts, err);
}

enum status cmd_score(int argc, char **argv, struct error *err)
{
    static const struct option_row rows[] = {
        OPTION(struct score_words, data, "data", "PREFIX"),
        OPTION(struct score_words, out, "out", "FILE"),
        OPTION(struct score_words, mismatched, "mismatched", "M"),
        OPTION(struct score_words, top_k, "top-k", "K"),
        OPTION(struct score_words, config, "config", "FILE"),
        OPTION(struct score_words, local_gpus, "local-gpus", "N"),
        {.name = "set", .value = "KEY=VALUE", .offset = offsetof(struct score_words, set), .kind = OPTION_LIST},
        OPTION(struct score_words, per_document, "per-document", NULL),
        OPTION(struct score_words, adapter_off, "adapter-off", NULL),
        OPTION(struct score_words, verbose, "verbose", NULL),
    };
    static const struct command_line line = {
        "score", USAGE, "folder", 1, "ztrain score DIR --data PREFIX --out PREFIX.logps", rows, COUNT_OF(rows)};
    struct score_words words = {.dir = NULL};
    RELEASED(string_list_release) struct string_list texts = {0};
    char path[FS_PATH_MAX] = "";
    struct options options;
    memset(&options, 0, sizeof options);
    enum status status = command_line_parse(&line, argc, argv, &words, err);
    if (status == STATUS_OK) status = score_take_words(&words, &options, path, &texts, err);
    options.verbose = words.verbose;
    log_show_details(options.verbose);
    if (status != STATUS_HELPED) /* argv[-1]: as for a replay */
        status = train_with(&options, argv - 1, status, err);
    string_list_release(&words.set);
    return status;
}
