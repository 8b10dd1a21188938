/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_open_best.c: opens the checkpoint of a run that had the best evaluation. */
#include "ckpt/checkpoint_retention.h"
#include "core/log.h"

#include <string.h>

/* checkpoint.metric and checkpoint.mode of the run's newest checkpoint; of versions without these keys the defaults. */
static enum status read_best_choice(const char *dir, struct checkpoint_keep *keep, struct error *err)
{
    struct checkpoint *newest;
    TRY(checkpoint_open(dir, false, &newest, err));
    enum eval_metric metric = eval_metric_find(json_string_value(json_object_get(newest->spec, "checkpoint.metric")));
    const char *mode = json_string_value(json_object_get(newest->spec, "checkpoint.mode"));
    *keep = (struct checkpoint_keep){.metric = metric == EVAL_METRIC_COUNT ? EVAL_METRIC_LOSS : metric};
    if (mode && strcmp(mode, "auto") != 0)
        keep->mode = strcmp(mode, "min") ? EVAL_MODE_MAX : EVAL_MODE_MIN;
    checkpoint_close(newest);
    return STATUS_OK;
}

/* Scores compare with those of the newest evaluation: of the data that the run evaluates on now. Warns of checkpoints
 * whose scores cannot be read. */
static void read_best_list(const char *folder, const struct checkpoint_list *list, struct checkpoint_keep *keep)
{
    bool found = false;
    for (int i = 0; i < list->count; i++) {
        const struct checkpoint_entry *entry = &list->entries[i];
        if (!entry->ok)
            log_warn("the checkpoint '%s/%s' is not used: %s", folder, entry->name, entry->damage);
        if (!found && entry->ok && entry->position.scores.known)
            keep->data = entry->position.scores.data;
        found |= entry->ok && entry->position.scores.known;
    }
}

/* The best of the listed checkpoints that has all of its files; NULL: none has a score. Only the files of those that
 * would be the best are looked at. *again: the run has deleted it meanwhile, which is an error. */
static enum status best_whole(const char *folder, struct checkpoint_list *list, const struct checkpoint_keep *keep,
                              const struct checkpoint_entry **best, bool *again, struct error *err)
{
    char path[FS_PATH_MAX];
    *again = false;
    while ((*best = checkpoint_best(list, keep, INT64_MAX))) {
        struct checkpoint_entry *entry = &list->entries[*best - list->entries];
        TRY(checkpoint_entry_settle(entry, folder, err));
        if (entry->ok)
            return STATUS_OK;
        TRY(fs_join(path, folder, entry->name, STATUS_CHECKPOINT, err));
        *again = !fs_exists(path);
        if (*again)
            return error_set(err, STATUS_CHECKPOINT, "the checkpoint '%s' was deleted while it was read", path);
        log_warn("the checkpoint '%s' is not used: %s", path, entry->damage);
    }
    return STATUS_OK;
}

static enum status open_listed(const char *folder, struct checkpoint_list *list, struct checkpoint_keep *keep,
                               bool full, struct checkpoint **checkpoint, bool *again, struct error *err)
{
    char path[FS_PATH_MAX];
    struct stat identity;
    const struct checkpoint_entry *best;
    read_best_list(folder, list, keep);
    TRY(best_whole(folder, list, keep, &best, again, err));
    if (!best) {
        *again = list->changed;
        error_set(err, STATUS_CHECKPOINT, "no checkpoint in '%s' was written after an evaluation with %s", folder,
                  eval_metric_name(keep->metric));
        return error_hint(err, "checkpoint.keep_best writes one at each of the best evaluations");
    }
    TRY(fs_join(path, folder, best->name, STATUS_CHECKPOINT, err));
    bool known = checkpoint_identify(path, &identity);
    enum status status = checkpoint_open(path, full, checkpoint, err);
    *again = status == STATUS_CHECKPOINT && (!known || !checkpoint_is_still(path, &identity));
    if (status == STATUS_CHECKPOINT && !*again)
        error_hint(err, "without --best the newest one is taken; 'ztrain verify' shows which ones are whole");
    return status;
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
    TRY(read_best_choice(dir, &keep, err));
    enum status status = STATUS_OK;
    bool again = true;
    for (int i = 0; i < CHECKPOINT_TRIES && again; i++) {
        TRY(checkpoint_list_init(&list, folder, false, err));
        status = open_listed(folder, &list, &keep, full, checkpoint, &again, err);
        checkpoint_list_release(&list);
    }
    return status;
}
