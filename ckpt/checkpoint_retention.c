/* checkpoint_retention.c: see checkpoint_retention.h. */
#include "ckpt/checkpoint_retention.h"

#include "ckpt/checkpoint_save_cache.h"
#include "core/fsutil.h"
#include "core/log.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Whether `name` is X.replaced-N and X exists, so that the replaced checkpoint is no longer needed. */
static bool is_replaced(const char *dir, const char *name)
{
    char path[FS_PATH_MAX];
    const char *suffix = strstr(name, ".replaced-");
    if (!suffix || fs_join(path, dir, name, STATUS_CHECKPOINT, NULL) != STATUS_OK)
        return false;
    path[strlen(path) - strlen(suffix)] = '\0';
    return fs_is_dir(path);
}

static enum status move_later_aside(const char *dir, const struct checkpoint_entry *entry, struct error *err)
{
    char aside[FS_PATH_MAX];
    TRY(checkpoint_move_aside(dir, entry->name, "aside", aside, err));
    log_warn("the checkpoint '%s/%s' is of step %" PRId64 ", which this run has not reached again yet; it is now '%s'",
             dir, entry->name, entry->step, aside);
    return STATUS_OK;
}

/* The score that counts; NAN: the checkpoint has none. */
static double score(const struct checkpoint_entry *entry, const struct checkpoint_keep *keep)
{
    bool counts = entry->ok && !entry->evaluation_due && entry->scores.data == keep->data;
    return counts ? eval_scores_value(&entry->scores, keep->metric) : NAN;
}

int64_t checkpoint_rank(const struct checkpoint_list *list, const struct checkpoint_keep *keep, int64_t newest,
                        int64_t step, double value)
{
    int64_t better = 0;
    for (int i = 0; i < list->count; i++) {
        const struct checkpoint_entry *entry = &list->entries[i];
        double other = score(entry, keep);
        if (entry->step > newest || entry->step == step)
            continue;
        better += eval_metric_better(keep->metric, keep->mode, other, value) || (other == value && entry->step < step);
    }
    return better;
}

const struct checkpoint_entry *checkpoint_best(const struct checkpoint_list *list, const struct checkpoint_keep *keep,
                                               int64_t newest)
{
    const struct checkpoint_entry *best = NULL;
    for (int i = 0; i < list->count; i++) {
        const struct checkpoint_entry *entry = &list->entries[i];
        double value = score(entry, keep);
        if (entry->step > newest || isnan(value))
            continue;
        if (!best || eval_metric_better(keep->metric, keep->mode, value, score(best, keep)) ||
            (value == score(best, keep) && entry->step < best->step))
            best = entry;
    }
    return best;
}

/* Settles those that would be among the best ones: a checkpoint with a missing file must not take the place of a whole
 * one. */
static enum status settle_best(const char *dir, struct checkpoint_list *list, const struct checkpoint_keep *keep,
                               int64_t newest, struct error *err)
{
    for (int i = 0; keep->best && i < list->count; i++) {
        struct checkpoint_entry *entry = &list->entries[i];
        double value = score(entry, keep);
        if (entry->settled || isnan(value) || checkpoint_rank(list, keep, newest, entry->step, value) >= keep->best)
            continue;
        TRY(checkpoint_entry_settle(entry, dir, err));
        if (!entry->ok)
            i = -1; /* others have moved up */
    }
    return STATUS_OK;
}

bool checkpoint_is_among_best(struct checkpoint_save_cache *cache, const char *dir, const struct checkpoint_keep *keep,
                              const struct train_position *position)
{
    struct error err;
    double value = eval_scores_value(&position->scores, keep->metric);
    if (!keep->best || isnan(value))
        return false;
    if (!fs_is_dir(dir))
        return true; /* the first checkpoint of the run */
    if (checkpoint_list_update(&cache->known, dir, &err) != STATUS_OK ||
        settle_best(dir, &cache->known, keep, position->step, &err) != STATUS_OK) {
        log_warn("%s; so the checkpoint of step %" PRId64 " is taken for one of the best", err.text, position->step);
        return true;
    }
    return checkpoint_rank(&cache->known, keep, position->step, position->step, value) < keep->best;
}

/* Whether `keep` names this checkpoint for its scores or for its step. */
static bool is_kept(const struct checkpoint_list *list, const struct checkpoint_keep *keep, int64_t newest,
                    const struct checkpoint_entry *entry)
{
    double value = score(entry, keep);
    if (keep->every_steps && entry->step % keep->every_steps == 0 && !entry->evaluation_due)
        return true;
    return keep->best && !isnan(value) && checkpoint_rank(list, keep, newest, entry->step, value) < keep->best;
}

static void point_best(const char *dir, const struct checkpoint_list *list, const struct checkpoint_keep *keep,
                       int64_t newest)
{
    const struct checkpoint_entry *best = keep->best ? checkpoint_best(list, keep, newest) : NULL;
    if (best)
        checkpoint_point(dir, "best", best->name);
    else
        checkpoint_unpoint(dir, "best", true);
}

void checkpoint_retention_apply(const char *dir, const char *name, int64_t step, const struct checkpoint_keep *keep,
                                struct checkpoint_list *known)
{
    struct error err;
    if (checkpoint_list_update(known, dir, &err) != STATUS_OK ||
        settle_best(dir, known, keep, step, &err) != STATUS_OK) {
        log_warn("%s", err.text);
        return;
    }
    int64_t kept = 1, last = keep->last ? keep->last : INT64_MAX;
    point_best(dir, known, keep, step);
    for (int i = 0; i < known->count; i++) {
        struct checkpoint_entry *entry = &known->entries[i];
        if (!strcmp(entry->name, name)) { /* the save has just seen its files */
            entry->settled = true;
            continue;
        }
        if (!entry->ok)
            continue;
        bool later = entry->step > step, replaced = !later && is_replaced(dir, entry->name);
        bool needless = !later && (replaced || (kept >= last && !is_kept(known, keep, step, entry)));
        enum status status = STATUS_OK;
        if ((keep->last && kept < last) || later || needless) /* damaged ones do not count, and stay */
            status = checkpoint_entry_settle(entry, dir, &err);
        if (status != STATUS_OK || !entry->ok)
            ;
        else if (later)
            status = move_later_aside(dir, entry, &err);
        else if (needless)
            status = checkpoint_delete(dir, entry->name, &err);
        else
            kept++;
        if (status != STATUS_OK)
            log_warn("%s", err.text);
    }
    checkpoint_unpoint(dir, "best", false);
}
