/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/report/watched_run.h"

#include "ckpt/manifest.h"
#include "cmd/run/run_lock.h"
#include "core/metrics/metrics_reader.h"

const char *const run_state_words[] = {"running", "finished", "ended early", "stopped", "over"};

/* Reads the manifest, again after each new checkpoint. */
static void read_model(struct watched_run *run)
{
    RELEASED(checkpoint_drop) struct checkpoint *checkpoint = NULL;
    struct error why;
    char folder[FS_PATH_MAX];
    bool any;
    const int64_t events = run->metrics.events[EVENT_CHECKPOINT].total;
    if ((run->model.known && run->model.events == events) ||
        fs_join(folder, run->folder, "checkpoints", STATUS_CHECKPOINT, NULL) != STATUS_OK)
        return;
    if (checkpoint_any(folder, false, &any, &why) != STATUS_OK) {
        if (!run->model.warned) log_warn("%s", why.text);
        run->model.warned = true;
        return;
    }
    if (!any || checkpoint_open(run->folder, false, &checkpoint, NULL) != STATUS_OK) return;
    const char *type = json_string_value(json_object_get(checkpoint->model, "model_type"));
    run->model.known = true;
    run->model.events = events;
    run->model.parameters = checkpoint_manifest(checkpoint)->num_params;
    run->model.world = checkpoint->world;
    snprintf(run->model.model_type, sizeof run->model.model_type, "%s", type ? type : "?");
    snprintf(run->model.dtype, sizeof run->model.dtype, "%s", dtype_name(checkpoint->dtype));
}

static int compare_watched_formers(const void *a, const void *b)
{
    const struct former_file *one = a, *two = b;
    return (one->number > two->number) - (one->number < two->number);
}

static void read_formers(struct watched_run *run)
{
    OWNED_DIR *entries = io_opendir(run->folder);
    run->num_formers = 0;
    for (struct dirent *entry; entries && (entry = io_readdir(entries)) && run->num_formers < WATCHED_FORMERS;) {
        static const char name[] = "metrics.jsonl.";
        char *end;
        if (strncmp(entry->d_name, name, sizeof name - 1) != 0) continue;
        long number = strtol(entry->d_name + sizeof name - 1, &end, 10);
        if (*end || number <= 0 || number >= INT_MAX) continue;
        OWNED char *path = memory_printf("%s.%ld", run->metrics.path, number);
        RELEASED(metrics_reader_close) struct metrics_reader own = {0}, other = {0};
        struct former_file *former = &run->formers[run->num_formers++];
        *former = (struct former_file){.number = (int)number};
        metrics_reader_open(&own, run->metrics.path, NULL);
        metrics_reader_open(&other, path, NULL);
        while (metrics_reader_next(&other)) {
            if (other.number == 1)
                former->same_history = metrics_reader_next(&own) && own.length == other.length &&
                                       !memcmp(own.text, other.text, own.length);
            if (json_object_get(other.object, "loss") && other.step > former->last_step) former->last_step = other.step;
        }
    }
    qsort(run->formers, (size_t)run->num_formers, sizeof *run->formers, compare_watched_formers);
}

/* 0: the spec has none. */
static double spec_number(const struct watched_run *run, const char *key)
{
    const char *text = spec_pairs_find(run->spec, key);
    return text ? strtod(text, NULL) : 0;
}

/* Sets the run's length, by train.max_steps, and by train.epochs once an epoch has ended; returns its state. */
static enum run_state state_of(struct watched_run *run)
{
    const struct report_events *early = &run->metrics.events[EVENT_EARLY];
    const double most = spec_number(run, "train.max_steps"), epochs = spec_number(run, "train.epochs");
    const int64_t max_steps = most > 0 && most < 0x1p62 ? (int64_t)most : 0, per_epoch = run->metrics.steps_per_epoch;
    run->total_steps = epochs > 0 && per_epoch > 0 ? spec_run_length(epochs, max_steps, per_epoch) : max_steps;
    if (run_lock_in_use(run->folder)) return RUN_RUNNING;
    if (early->count && early->items[early->count - 1].step >= run->metrics.last_step) return RUN_ENDED_EARLY;
    if (!run->total_steps) return RUN_UNKNOWN;
    return run->metrics.last_step >= run->total_steps ? RUN_FINISHED : RUN_STOPPED;
}

enum status watched_run_refresh(struct watched_run *run, bool *changed, struct error *err)
{
    struct run_metrics *h = &run->metrics;
    int64_t damaged = h->damaged, unordered = h->unordered;
    const enum run_state state = run->state;
    const ino_t inode = h->inode;
    TRY(run_metrics_read(h, changed, err));
    if (h->inode != inode) damaged = unordered = 0;
    if (h->damaged > damaged)
        log_warn("'%s': %" PRId64 " damaged line%s left out, the first is line %" PRId64, h->path, h->damaged,
                 h->damaged == 1 ? " is" : "s are", h->first_damaged);
    if (h->unordered > unordered)
        log_warn("'%s': %" PRId64 " line%s left out: an earlier line has the step", h->path, h->unordered,
                 h->unordered == 1 ? " is" : "s are");
    if (h->lines && h->damaged == h->lines)
        return error_set(err, STATUS_CHECKPOINT,
                         "'%s' has no sound line; hint: it should be the metrics.jsonl of a run", h->path);
    if (h->inode != inode) read_formers(run);
    read_model(run);
    run->state = state_of(run);
    *changed = *changed || run->state != state;
    return STATUS_OK;
}

enum status watched_run_open(struct watched_run *run, const char *folder, struct error *err)
{
    char path[FS_PATH_MAX], real[PATH_MAX];
    struct error why;
    struct stat facts;
    bool changed, there;
    *run = (struct watched_run){.folder = memory_text(folder)};
    for (size_t n = strlen(run->folder); n > 1 && run->folder[n - 1] == '/'; n--) run->folder[n - 1] = 0;
    if (io_stat(folder, &facts) == 0 && !S_ISDIR(facts.st_mode)) {
        const char *name = basename(run->folder);
        return error_set(err, STATUS_CHECKPOINT, "'%s' is a file; hint: its folder: ztrain report %.*s", folder,
                         name > run->folder + 1 ? (int)(name - run->folder) - 1 : 1,
                         name > run->folder ? run->folder : ".");
    }
    TRY(fs_find_dir(folder, &there, STATUS_CHECKPOINT, err));
    if (!there)
        return error_set(err, STATUS_CHECKPOINT, "there is no folder '%s'; hint: ztrain report takes run folders",
                         folder);
    TRY(fs_join(path, folder, "metrics.jsonl", STATUS_CHECKPOINT, err));
    if (!fs_exists(path))
        return error_set(err, STATUS_CHECKPOINT,
                         "'%s' has no metrics.jsonl; hint: ztrain report takes run folders, such as runs/NAME, or of "
                         "several adapters runs/NAME/ADAPTER",
                         folder);
    run->name = memory_text(basename(realpath(run->folder, real) ? real : run->folder));
    char spec[FS_PATH_MAX];
    TRY(fs_join(spec, folder, "run.yaml", STATUS_CHECKPOINT, err));
    if (spec_pairs_read(&run->spec, spec, &why) != STATUS_OK) log_warn("%s; the report lacks the run's spec", why.text);
    const char *mode = spec_pairs_find(run->spec, "checkpoint.mode");
    const enum eval_metric metric = eval_metric_find(spec_pairs_find(run->spec, "checkpoint.metric"));
    run_metrics_init(&run->metrics, path, metric == EVAL_METRIC_COUNT ? EVAL_METRIC_LOSS : metric,
                     mode && !strcmp(mode, "min")   ? EVAL_MODE_MIN
                     : mode && !strcmp(mode, "max") ? EVAL_MODE_MAX
                                                    : EVAL_MODE_AUTO);
    return watched_run_refresh(run, &changed, err);
}

void watched_run_close(struct watched_run *run)
{
    run_metrics_release(&run->metrics);
    json_decref(run->spec);
    free(run->folder);
    free(run->name);
    *run = (struct watched_run){.folder = NULL};
}

struct string_list watched_runs_differences(const struct watched_run *runs, int count)
{
    struct string_list all = {.count = 0};
    const char *key;
    json_t *value;
    for (int r = 0; r < count; r++)
        json_object_foreach (runs[r].spec, key, value) {
            bool seen = !strcmp(key, "run.name") || !strcmp(key, "run.dir");
            for (int k = 0; k < all.count && !seen; k++) seen = !strcmp(all.items[k], key);
            bool same = true; /* a value is not the same as none */
            for (int k = 1; k < count; k++)
                same &= json_equal(json_object_get(runs[0].spec, key), json_object_get(runs[k].spec, key));
            if (!seen && !same) string_list_add(&all, key);
        }
    return all;
}

void watched_runs_name(struct watched_run *runs, int count)
{
    for (int i = 0; i < count; i++) {
        bool alone = true;
        for (int k = 0; k < count && alone; k++) alone = k == i || strcmp(runs[i].name, basename(runs[k].folder)) != 0;
        if (alone) continue;
        free(runs[i].name);
        runs[i].name = memory_text(runs[i].folder);
    }
}
