/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/checkpoint_retention.h"

#include "ckpt/checkpoint_save_cache.h"

/* The score that counts; NAN: the checkpoint has none. */
static double retention_score(const struct checkpoint_entry *entry, const struct checkpoint_keep *keep)
{
    bool counts = entry->ok && !entry->position.evaluation_due && entry->position.scores.data == keep->data;
    return counts ? eval_scores_value(&entry->position.scores, keep->metric) : NAN;
}

/* How many other steps of at most `newest` have a checkpoint with a better score than `value`, that of `step`. */
static int64_t count_better(const struct checkpoint_list *list, const struct checkpoint_keep *keep, int64_t newest,
                            int64_t step, double value)
{
    int64_t better = 0;
    for (int i = 0; i < list->count; i++) {
        const struct checkpoint_entry *entry = &list->entries[i];
        double other = retention_score(entry, keep);
        if (entry->position.step > newest || entry->position.step == step) continue;
        better += eval_metric_better(keep->metric, keep->mode, other, value) ||
                  (other == value && entry->position.step < step);
    }
    return better;
}

const struct checkpoint_entry *checkpoint_best(const struct checkpoint_list *list, const struct checkpoint_keep *keep,
                                               int64_t newest)
{
    const struct checkpoint_entry *best = NULL;
    for (int i = 0; i < list->count; i++) {
        const struct checkpoint_entry *entry = &list->entries[i];
        double value = retention_score(entry, keep);
        if (entry->position.step > newest || isnan(value)) continue;
        if (!best || eval_metric_better(keep->metric, keep->mode, value, retention_score(best, keep)) ||
            (value == retention_score(best, keep) && entry->position.step < best->position.step))
            best = entry;
    }
    return best;
}

/* Settles those that would be among the best: one with a missing file must not take the place of a whole one. */
static enum status settle_retained_best(const char *dir, struct checkpoint_list *list,
                                        const struct checkpoint_keep *keep, int64_t newest, struct error *err)
{
    bool changed;
    for (int i = 0; keep->best && i < list->count; i++) {
        struct checkpoint_entry *entry = &list->entries[i];
        double value = retention_score(entry, keep);
        if (isnan(value) || count_better(list, keep, newest, entry->position.step, value) >= keep->best) continue;
        TRY(checkpoint_entry_renew(entry, dir, &changed, err));
        if (!entry->ok || changed) i = -1; /* others have moved up */
    }
    return STATUS_OK;
}

bool checkpoint_is_among_best(struct checkpoint_save_cache *cache, const char *dir, const struct checkpoint_keep *keep,
                              const struct train_position *position)
{
    struct error err;
    double value = eval_scores_value(&position->scores, keep->metric);
    if (!keep->best || isnan(value)) return false;
    if (!fs_is_dir(dir)) return true; /* the first checkpoint of the run */
    if (checkpoint_list_update(&cache->known, dir, false, &err) != STATUS_OK ||
        checkpoint_list_read_later(&cache->known, dir, NULL, &err) != STATUS_OK ||
        settle_retained_best(dir, &cache->known, keep, position->step, &err) != STATUS_OK) {
        log_warn("%s; so the checkpoint of step %" PRId64 " is taken for one of the best", err.text, position->step);
        return true;
    }
    return count_better(&cache->known, keep, position->step, position->step, value) < keep->best;
}

struct retention {
    const char *dir, *name; /* of the new checkpoint */
    int64_t step;           /* its step */
    const struct checkpoint_keep *keep;
    struct checkpoint_list *known;
    int64_t kept; /* the newest ones that stay so far, with the new one; not above keep->last, unless that is 0 */
};

/* Deletes an entry, or moves it aside because it is later than the new one; a damaged or misnamed one stays. */
static enum status remove_entry(const struct retention *now, struct checkpoint_entry *entry, struct error *err)
{
    const bool known = entry->settled;
    bool changed;
    TRY(checkpoint_entry_renew(entry, now->dir, &changed, err));
    if (!entry->ok || changed) /* the next save decides about what has changed */
        return STATUS_OK;
    if (entry->position.step > now->step) {
        char aside[FS_PATH_MAX];
        TRY(checkpoint_move_aside(now->dir, entry->name, "aside", aside, err));
        log_warn("the checkpoint '%s/%s' is of step %" PRId64 ", which this run has not reached again yet; it is now "
                 "'%s'",
                 now->dir, entry->name, entry->position.step, aside);
        return STATUS_OK;
    }
    if (checkpoint_name_fits(entry)) return checkpoint_delete(now->dir, entry->name, err);
    if (!known)
        log_warn("the checkpoint '%s/%s' is of step %" PRId64 ", unlike its name; it is kept", now->dir, entry->name,
                 entry->position.step);
    return STATUS_OK;
}

/* Decides about one entry; those before it are newer, as long as there are fewer than keep->last. */
static enum status decide(struct retention *now, struct checkpoint_entry *entry, struct error *err)
{
    const struct checkpoint_keep *keep = now->keep;
    bool changed, replaced = false;        /* the entry is X.replaced-N, and X is whole, so that it can be deleted */
    if (!strcmp(entry->name, now->name)) { /* the save has just seen its files */
        if (now->keep->last) TRY(checkpoint_entry_read(entry, now->dir, err));
        entry->settled = entry->read;
        return STATUS_OK;
    }
    if (entry->read && !entry->ok) return STATUS_OK;
    if (entry->read && entry->position.step > now->step) return remove_entry(now, entry, err);
    const char *name = entry->name, *suffix = strstr(name, ".replaced-");
    for (int i = 0; suffix && i < now->known->count; i++) {
        struct checkpoint_entry *other = &now->known->entries[i];
        if (strncmp(other->name, name, (size_t)(suffix - name)) != 0 || other->name[suffix - name]) continue;
        TRY(checkpoint_entry_renew(other, now->dir, &changed, err));
        replaced = other->ok && !changed;
    }
    if (now->kept < now->keep->last && !replaced) { /* damaged ones do not count */
        TRY(checkpoint_entry_renew(entry, now->dir, &changed, err));
        now->kept += entry->ok && !changed;
        return STATUS_OK;
    }
    if (keep->every_steps &&
        entry->position.step == INT64_MAX) /* of an epoch; its step counts, else what its name tells */
        TRY(checkpoint_entry_read(entry, now->dir, err));
    const int64_t step = entry->position.step;
    const double value = retention_score(entry, keep);
    const bool stays =
        !replaced &&
        (!keep->last || (keep->every_steps && step % keep->every_steps == 0 && !entry->position.evaluation_due) ||
         (keep->best && !isnan(value) && count_better(now->known, keep, now->step, step, value) < keep->best));
    return stays ? STATUS_OK : remove_entry(now, entry, err);
}

void checkpoint_retention_apply(const char *dir, const char *name, const struct train_position *position,
                                const struct checkpoint_keep *keep, struct checkpoint_list *known)
{
    struct retention now = {.dir = dir, .name = name, .step = position->step, .keep = keep, .known = known, .kept = 1};
    struct error err;
    if (checkpoint_list_update(known, dir, false, &err) != STATUS_OK ||
        checkpoint_list_read_later(known, dir, keep->best ? NULL : position, &err) != STATUS_OK ||
        settle_retained_best(dir, known, keep, now.step, &err) != STATUS_OK) {
        log_warn("%s", err.text);
        return;
    }
    const struct checkpoint_entry *best = keep->best ? checkpoint_best(known, keep, now.step) : NULL;
    if (best)
        checkpoint_point(dir, "best", best->name);
    else
        checkpoint_unpoint(dir, "best", true);
    for (int i = 0; i < known->count; i++) {
        if (now.kept < keep->last && checkpoint_list_order(known, dir, i + 1, &err) != STATUS_OK) {
            log_warn("%s", err.text);
            break;
        }
        if (i < known->count && decide(&now, &known->entries[i], &err) != STATUS_OK) log_warn("%s", err.text);
    }
    checkpoint_unpoint(dir, "best", false);
}
