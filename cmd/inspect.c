/* SPDX-License-Identifier: Apache-2.0 */
/* inspect.c: `ztrain inspect DIR [--tensors]` prints what a checkpoint holds, from its manifest; of a run folder also
 * the checkpoints that were moved aside or cannot be read. --tensors reads and verifies the weights. */
#include "ckpt/checkpoint_list.h"
#include "ckpt/state_hash.h"
#include "cmd/command_line.h"

enum { CHUNK = 1 << 20 }; /* elements that are read at a time */

static const char USAGE[] = "usage: ztrain inspect DIR [--tensors]\n\n"
                            "Prints what a checkpoint holds, and which checkpoints of a run were moved aside.\n\n"
                            "  DIR          a checkpoint, or a run folder (its newest checkpoint)\n"
                            "  --tensors    print each tensor with mean, standard deviation, minimum and maximum\n";

static const char *inspect_string(const json_t *object, const char *member)
{
    const char *text = json_string_value(json_object_get(object, member));
    return text ? text : "?";
}

static void inspect_members(const char *title, const json_t *object)
{
    const char *name;
    json_t *value;
    printf("\n%s\n", title);
    json_object_foreach ((json_t *)object, name, value) {
        OWNED char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(12));
        printf("  %s: %s\n", PRINTABLE(name), text ? PRINTABLE(text) : "?");
    }
}

static void inspect_others(const char *dir)
{
    RELEASED(checkpoint_list_release) struct checkpoint_list list = {0}, aside = {0};
    char folder[FS_PATH_MAX];
    bool is_checkpoint;
    if (checkpoint_locate(dir, &is_checkpoint, folder, NULL) != STATUS_OK || is_checkpoint) return;
    checkpoint_list_init(&list, folder, false, NULL);
    for (int i = 0, n = 0; i < list.count; i++) {
        const struct checkpoint_entry *entry = &list.entries[i];
        if (entry->unread && !n++) printf("unread       checkpoints of this run that cannot be read now\n");
        if (entry->unread) printf("  %-28s %s\n", PRINTABLE(entry->name), PRINTABLE(entry->damage));
    }
    checkpoint_list_init(&aside, folder, true, NULL);
    if (aside.count)
        printf("aside        set aside: no resume of the run takes them; --resume %s/NAME continues the run from one\n",
               PRINTABLE(folder));
    for (int i = 0; i < aside.count; i++) {
        const struct checkpoint_entry *entry = &aside.entries[i];
        if (entry->ok)
            printf("  %-28s step %" PRId64 "%s, %s\n", PRINTABLE(entry->name), entry->position.step,
                   entry->position.evaluation_due ? ", before its evaluation" : "", SIZE(round, entry->bytes));
        else
            printf("  %-28s %s: %s\n", PRINTABLE(entry->name), entry->unread ? "unread" : "damaged",
                   PRINTABLE(entry->damage));
    }
}

static void inspect_evaluation(const struct train_position *position, const json_t *spec)
{
    const struct early_stop *stopping = &position->stopping;
    const double min_delta = json_number_value(json_object_get(spec, "train.early_stopping.min_delta"));
    const char *before = "evaluation   ";
    char margin[64] = "";
    for (int i = 0; position->scores.known && i < EVAL_METRIC_COUNT; i++) {
        if (isnan(position->scores.values[i])) continue;
        printf("%s%s %.6g", before, eval_metric_name((enum eval_metric)i), position->scores.values[i]);
        before = ", ";
    }
    if (*before == ',') putchar('\n');
    if (min_delta > 0) /* the best value may be better, by less */
        snprintf(margin, sizeof margin, " by more than %g", min_delta);
    if (position->stopped_early)
        printf("ended early  %s has not improved on %.6g%s in %" PRId64 " evaluations\n",
               eval_metric_name(stopping->metric), stopping->best, margin, stopping->evaluations);
}

static void inspect_adapter(const struct checkpoint *checkpoint)
{
    const struct checkpoint_base *base = &checkpoint->base;
    const struct manifest *manifest = checkpoint_manifest(checkpoint);
    int64_t params = 0, tensors = 0;
    if (!checkpoint->adapter && !base->folder) return;
    for (int i = 0; i < manifest->num_tensors; i++)
        if (checkpoint_stores(checkpoint, manifest->tensors[i].unit)) {
            params += manifest->tensors[i].numel;
            tensors++;
        }
    if (checkpoint->adapter)
        printf("adapter      %s, r %" PRId64 ": %" PRId64 " of these parameters, in %" PRId64 " tensors\n",
               PRINTABLE(inspect_string(checkpoint->adapter, "peft_type")),
               (int64_t)json_integer_value(json_object_get(checkpoint->adapter, "r")), params, tensors);
    if (base->folder)
        printf("base         %s, hash %s\n", PRINTABLE(base->folder), hash_digits(base->hash).text);
    else
        printf("base         initial values with run.seed %" PRId64 ", hash %s\n", base->seed,
               hash_digits(base->hash).text);
}

static void inspect_summary(const struct checkpoint *checkpoint, const char *dir)
{
    const json_t *json = checkpoint->manifest;
    const struct manifest *manifest = checkpoint_manifest(checkpoint);
    const struct train_position *position = &checkpoint->position;
    int64_t stored = 0, state = 0;
    for (int u = 0; u < manifest->num_trained; u++) state += manifest->slice[u] * checkpoint->world;
    /* of fp32, with padding, before it was compressed; moments in 8 bits count as fp32 */
    const int64_t state_bytes = 4 * state * checkpoint->num_states;
    for (int i = 0; i < checkpoint->world; i++) stored += manifest->files[i].bytes;

    printf("checkpoint   %s\n", PRINTABLE(checkpoint->path));
    printf("written      %s by ztrain %s\n", PRINTABLE(inspect_string(json, "time")),
           PRINTABLE(inspect_string(json, "ztrain_version")));
    printf("position     step %" PRId64 ", %s epoch %" PRId64 ", %" PRId64 " optimizer steps, %" PRId64 " tokens%s\n",
           position->step, position->epoch_end ? "end of" : "in", position->epoch, position->optimizer_step,
           position->tokens, position->evaluation_due ? ", before its evaluation" : "");
    inspect_evaluation(position, checkpoint->spec);
    printf("model        %s, %" PRId64 " parameters in %d tensors\n",
           PRINTABLE(inspect_string(checkpoint->model, "model_type")), manifest->num_params, manifest->num_tensors);
    inspect_adapter(checkpoint);
    printf("trained in   %s on %d rank%s", dtype_name(checkpoint->dtype), checkpoint->world, PLURAL(checkpoint->world));
    if (checkpoint->virtual_ranks)
        printf(", %d virtual rank%s", checkpoint->virtual_ranks, PLURAL(checkpoint->virtual_ranks));
    putchar('\n');
    if (checkpoint->moment_blocks)
        printf("state        fp32 (master) and 8 bits (exp_avg, exp_avg_sq) in %s: compressed", SIZE(round, stored));
    else
        printf("state        %s of fp32 (master, exp_avg, exp_avg_sq) in %s: compressed %.2f times",
               SIZE(round, state_bytes), SIZE(round, stored), (double)state_bytes / (double)stored);
    printf(" (level %" PRId64 ")\n", (int64_t)json_integer_value(json_object_get(json, "compression_level")));
    for (int s = 0; s < checkpoint->num_states && checkpoint->hashed; s++)
        printf("%-12s %-10s %s\n", s ? "" : "hashes", state_hash_name((enum state_kind)s),
               hash_digits(checkpoint->hashes[s]).text);
    printf("files        %s\n", SIZE(round, checkpoint->bytes));
    for (int i = 0; i < manifest->num_files; i++)
        printf("  %-28s %s\n", PRINTABLE(manifest->files[i].name), SIZE(round, manifest->files[i].bytes));
    inspect_others(dir);
    if (checkpoint->adapter) inspect_members("adapter", checkpoint->adapter);
    if (checkpoint->machine) inspect_members("machine", checkpoint->machine);
    inspect_members("model", checkpoint->model);
    inspect_members("spec", checkpoint->spec);
}

/* By Welford's update, in one pass. */
struct statistics {
    int64_t count, not_finite;
    double mean, squares, min, max;
};

static void inspect_add(struct statistics *s, const float *data, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        double x = data[i];
        if (!isfinite(x)) {
            s->not_finite++;
            continue;
        }
        double delta = x - s->mean;
        s->mean += delta / (double)++s->count;
        s->squares += delta * (x - s->mean);
        s->min = s->count == 1 || x < s->min ? x : s->min;
        s->max = s->count == 1 || x > s->max ? x : s->max;
    }
}

static enum status inspect_read_statistics(const struct checkpoint *checkpoint, struct statistics *all,
                                           struct error *err)
{
    const struct manifest *manifest = checkpoint_manifest(checkpoint);
    OWNED float *chunk = memory_alloc(CHUNK * sizeof *chunk);
    for (int i = 0; i < manifest->num_tensors; i++) {
        const struct manifest_tensor *tensor = &manifest->tensors[i];
        if (!checkpoint_stores(checkpoint, tensor->unit)) continue;
        for (int64_t done = 0; done < tensor->numel; done += CHUNK) {
            int64_t n = tensor->numel - done < CHUNK ? tensor->numel - done : CHUNK;
            TRY(checkpoint_read(checkpoint, STATE_MASTER, tensor->unit, tensor->offset + done, n, chunk, err));
            inspect_add(&all[i], chunk, n);
        }
    }
    return STATUS_OK;
}

static void inspect_tensors(const struct checkpoint *checkpoint, const struct statistics *all)
{
    const struct manifest *manifest = checkpoint_manifest(checkpoint);
    printf("\n%-48s %-16s %12s %12s %12s %12s\n", "tensor", "shape", "mean", "deviation", "minimum", "maximum");
    for (int i = 0; i < manifest->num_tensors; i++) {
        const struct statistics *s = &all[i];
        const struct manifest_tensor *tensor = &manifest->tensors[i];
        char shape[SHAPE_TEXT];
        if (!checkpoint_stores(checkpoint, tensor->unit)) continue;
        printf("%-48s %-16s %12.5g %12.5g %12.5g %12.5g", PRINTABLE(tensor->name),
               shape_text(tensor->ndim, tensor->shape, shape), s->mean,
               s->count ? sqrt(s->squares / (double)s->count) : 0.0, s->min, s->max);
        if (s->not_finite) printf("  %" PRId64 " not finite", s->not_finite);
        printf("\n");
    }
}

/* *again: nothing is printed, as a run that trains meanwhile has deleted or replaced the checkpoint. */
static enum status inspect_once(const char *dir, bool tensors, bool *again, struct error *err)
{
    RELEASED(checkpoint_drop) struct checkpoint *checkpoint = NULL;
    OWNED struct statistics *all = NULL;
    *again = false;
    enum status status = checkpoint_open(dir, false, &checkpoint, err);
    if (status != STATUS_OK) {
        inspect_others(dir);
        return status;
    }
    if (tensors) {
        all = memory_zeroed((size_t)checkpoint_manifest(checkpoint)->num_tensors, sizeof *all);
        status = inspect_read_statistics(checkpoint, all, err);
        *again = status == STATUS_CHECKPOINT && checkpoint_is_gone(checkpoint);
    }
    if (!*again) inspect_summary(checkpoint, dir); /* also of one whose tensors are damaged */
    if (all && status == STATUS_OK) inspect_tensors(checkpoint, all);
    return status;
}

enum status cmd_inspect(int argc, char **argv, struct error *err)
{
    struct arguments {
        const char *dir;
        bool tensors;
    } arguments = {NULL, false};
    static const struct option_row options[] = {OPTION(struct arguments, tensors, "tensors", NULL)};
    static const struct command_line line = {
        "inspect", USAGE, "folder", 1, "ztrain inspect DIR [--tensors]", options, COUNT_OF(options)};
    TRY(command_line_parse(&line, argc, argv, &arguments, err));
    bool again = true;
    enum status status = STATUS_OK;
    for (int i = 0; i < CHECKPOINT_TRIES && again; i++)
        status = inspect_once(arguments.dir, arguments.tensors, &again, err);
    return status;
}
