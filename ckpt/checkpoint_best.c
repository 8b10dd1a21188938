/* checkpoint_best.c: opens the checkpoint of a run that had the best evaluation. */
#include "ckpt/checkpoint_retention.h"

#include <string.h>

/* The choice of the run's newest checkpoint: checkpoint.metric and checkpoint.mode of its spec. Checkpoints of versions
 * without these keys give the defaults. */
static enum status read_choice(const char *dir, struct checkpoint_keep *keep, struct error *err)
{
    struct checkpoint *newest;
    TRY(checkpoint_open(dir, false, &newest, err));
    const char *metric = json_string_value(json_object_get(newest->spec, "checkpoint.metric"));
    const char *mode = json_string_value(json_object_get(newest->spec, "checkpoint.mode"));
    *keep = (struct checkpoint_keep){.metric = EVAL_METRIC_LOSS};
    for (int i = 0; metric && i < EVAL_METRIC_COUNT; i++)
        if (!strcmp(metric, eval_metric_name((enum eval_metric)i)))
            keep->metric = (enum eval_metric)i;
    if (mode && strcmp(mode, "auto") != 0)
        keep->mode = strcmp(mode, "min") ? EVAL_MODE_MAX : EVAL_MODE_MIN;
    checkpoint_close(newest);
    return STATUS_OK;
}

/* Opens the best of the listed checkpoints. */
static enum status open_listed(const char *folder, const struct checkpoint_list *list,
                               const struct checkpoint_keep *keep, bool full, struct checkpoint **checkpoint,
                               struct error *err)
{
    char path[FS_PATH_MAX];
    const struct checkpoint_entry *best = checkpoint_best(list, keep, INT64_MAX);
    if (!best) {
        error_set(err, STATUS_CHECKPOINT, "no checkpoint in '%s' was written after an evaluation with %s", folder,
                  eval_metric_name(keep->metric));
        return error_hint(err, "checkpoint.keep_best writes one at each of the best evaluations");
    }
    TRY(fs_join(path, folder, best->name, STATUS_CHECKPOINT, err));
    return checkpoint_open(path, full, checkpoint, err);
}

enum status checkpoint_open_best(const char *dir, bool full, struct checkpoint **checkpoint, struct error *err)
{
    bool is_checkpoint;
    char folder[FS_PATH_MAX];
    struct checkpoint_keep keep;
    struct checkpoint_list list;
    TRY(checkpoint_locate(dir, &is_checkpoint, folder, err));
    if (is_checkpoint)
        return error_set(err, STATUS_USAGE,
                         "'%s' is one checkpoint, and the best is chosen among those of a run; hint: name the run "
                         "folder, or leave out --best",
                         dir);
    TRY(read_choice(folder, &keep, err));
    TRY(checkpoint_list_init(&list, folder, err));
    enum status status = open_listed(folder, &list, &keep, full, checkpoint, err);
    checkpoint_list_release(&list);
    return status;
}
