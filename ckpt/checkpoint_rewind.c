/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_rewind.c: the steps that docs/checkpoint-format.md lists, each on disk before the next. In step 2 two
 * checkpoints exchange their names in one call (renameat2, RENAME_EXCHANGE); in step 3 the newest goes last, and with
 * it the old history ends.
 *
 * On a file system that cannot exchange two names, the checkpoint that has the name goes aside first; a kill just then
 * leaves the run with the checkpoints before both. */
#include "ckpt/checkpoint_rewind.h"

#include "core/faults.h"
#include "core/metrics/metrics.h"

/* ---- planning ------------------------------------------------------------ */

/* ".aside-3" and ".damaged-1" at the end of a name; *number is N. NULL: neither. */
static const char *rewound_suffix(const char *name, int *number)
{
    static const char *const kinds[] = {".aside-", ".damaged-"};
    for (size_t k = 0; k < COUNT_OF(kinds); k++) {
        const char *suffix = strstr(name, kinds[k]);
        char *end;
        long n = suffix ? strtol(suffix + strlen(kinds[k]), &end, 10) : 0;
        if (suffix && n > 0 && n <= INT_MAX && !*end) {
            *number = (int)n;
            return suffix;
        }
    }
    return NULL;
}

static const struct checkpoint_entry *rewind_find_entry(const struct checkpoint_list *list, const char *name)
{
    for (int i = 0; i < list->count; i++)
        if (!strcmp(list->entries[i].name, name)) return &list->entries[i];
    return NULL;
}

/* The entry of `path` in either list, or NULL. dir: the real path of the listed folder. */
static const struct checkpoint_entry *
rewind_entry(const char *path, const char *dir, const struct checkpoint_list *list, const struct checkpoint_list *aside)
{
    char parent[FS_PATH_MAX], real[PATH_MAX];
    fs_parent(path, parent);
    if (!realpath(parent, real) || strcmp(real, dir) != 0) return NULL;
    const struct checkpoint_entry *entry = rewind_find_entry(list, basename(path));
    return entry ? entry : rewind_find_entry(aside, basename(path));
}

/* The checkpoint's name in the folder: its present one, X for X.aside-N, or the name of its position. */
static enum status plan_name(struct checkpoint_rewind *rewind, const struct checkpoint *checkpoint,
                             const struct checkpoint_list *list, const struct checkpoint_list *aside, struct error *err)
{
    char dir[PATH_MAX], target[PATH_MAX], path[FS_PATH_MAX];
    int number;
    snprintf(path, sizeof path, "%s", checkpoint->path);
    for (size_t end = strlen(path); end > 1 && path[end - 1] == '/';) path[--end] = '\0';
    if (!realpath(rewind->dir, dir) || !realpath(path, target))
        return error_set(err, STATUS_CHECKPOINT, "cannot open the checkpoint '%s': %s", path, strerror(errno));
    const struct checkpoint_entry *inside = rewind_entry(path, dir, list, aside);
    if (!inside) inside = rewind_entry(target, dir, list, aside);
    const char *suffix = inside ? rewound_suffix(inside->name, &number) : NULL;
    if (inside && !suffix) {
        snprintf(rewind->name, sizeof rewind->name, "%s", inside->name);
        return STATUS_OK;
    }
    if (suffix) {
        snprintf(rewind->from, sizeof rewind->from, "%s", inside->name);
        snprintf(rewind->name, sizeof rewind->name, "%.*s", (int)(suffix - inside->name), inside->name);
    } else { /* a copy made by the user: a link gives it a name in the course */
        char plain[64];
        checkpoint_name(&checkpoint->position, plain);
        snprintf(rewind->name, sizeof rewind->name, "%s", plain);
        snprintf(rewind->target, sizeof rewind->target, "%s", target);
    }
    rewind->taken = rewind_find_entry(list, rewind->name) != NULL;
    if (rewind->taken && *rewind->target) { /* the link may exist already */
        char real[PATH_MAX];
        TRY(fs_join(path, rewind->dir, rewind->name, STATUS_CHECKPOINT, err));
        rewind->taken = !realpath(path, real) || strcmp(real, target) != 0;
        if (!rewind->taken) rewind->target[0] = '\0';
    }
    return STATUS_OK;
}

/* Whether an entry is ahead of the checkpoint or, unless that is -1, of branch_step. */
static bool past_rewind(const struct checkpoint_entry *entry, const struct train_position *position,
                        int64_t branch_step)
{
    if (!entry->read) /* its name has told that it is not */
        return false;
    if (entry->unread && branch_step < 0) return checkpoint_may_be_later(entry, position);
    if (!entry->ok && entry->position.step == INT64_MAX) /* not known */
        return entry->position.epoch_end && entry->position.epoch >= position->epoch;
    if (branch_step >= 0) return entry->position.step > branch_step;
    if (entry->position.step != position->step) return entry->position.step > position->step;
    if (entry->position.evaluation_due != position->evaluation_due) return position->evaluation_due;
    return entry->position.epoch_end && !position->epoch_end;
}

static enum status plan_moves(struct checkpoint_rewind *rewind, const struct checkpoint *checkpoint, bool newest,
                              int64_t branch_step, struct checkpoint_list *list, struct error *err)
{
    TRY(checkpoint_list_read_later(list, rewind->dir, branch_step < 0 ? &checkpoint->position : NULL, err));
    for (int i = 0; i < list->count; i++)
        if (past_rewind(&list->entries[i], &checkpoint->position, branch_step))
            TRY(checkpoint_entry_settle(&list->entries[i], rewind->dir, err));
    rewind->moves = memory_zeroed((size_t)list->count + 1, sizeof *rewind->moves);
    for (int valid = 0; valid < 2; valid++) /* damaged ones first, because they are never the newest valid one */
        for (int i = list->count - 1; i >= 0; i--) {
            const struct checkpoint_entry *entry = &list->entries[i];
            if ((entry->ok || entry->unread) != valid || !strcmp(entry->name, rewind->name) ||
                !past_rewind(entry, &checkpoint->position, branch_step))
                continue;
            if (newest && entry->unread) { /* unreadable by now: it may be the newest, which was to be taken */
                error_set(err, STATUS_CHECKPOINT, "%s", entry->damage);
                return error_cause(err, entry->cause);
            }
            struct rewind_move *move = &rewind->moves[rewind->count++];
            snprintf(move->name, sizeof move->name, "%s", entry->name);
            move->damaged = !entry->unread && (newest || !entry->ok);
            move->step = entry->position.step;
        }
    return STATUS_OK;
}

/* Whether `number` cannot be used: NAME.aside-number exists, or another history went aside under it. */
static bool number_is_taken(const struct checkpoint_rewind *rewind, const struct checkpoint_list *aside, int number)
{
    enum metrics_number metrics = metrics_history_number(rewind->metrics, number);
    int other;
    for (int i = 0; i < aside->count; i++) {
        const char *name = aside->entries[i].name, *suffix = rewound_suffix(name, &other);
        if (!suffix || other != number || suffix[1] != 'a') continue;
        if (metrics != METRICS_NUMBER_KEPT) return true;
        /* a resume was killed: the other checkpoints of that history may follow */
        size_t length = (size_t)(suffix - name);
        if (!strncmp(name, rewind->name, length) && !rewind->name[length]) return true;
        for (int k = 0; k < rewind->count; k++)
            if (!strncmp(name, rewind->moves[k].name, length) && !rewind->moves[k].name[length]) return true;
    }
    return metrics == METRICS_NUMBER_TAKEN;
}

/* N of a resume that was killed while it moved checkpoints aside: metrics.jsonl still is metrics.jsonl.N, and the
 * newest checkpoint is ahead of one that is aside already. 0: none, or not known (without hard links). */
static int find_interrupted(const struct checkpoint_rewind *rewind, const struct checkpoint *newest,
                            struct checkpoint_list *aside)
{
    int number = 0, looked_at = 0;
    bool kept = false;
    for (int i = 0; i < aside->count; i++) {
        struct checkpoint_entry *entry = &aside->entries[i];
        const char *suffix = rewound_suffix(entry->name, &number);
        if (!suffix || suffix[1] != 'a') continue;
        if (number != looked_at) kept = metrics_history_number(rewind->metrics, number) == METRICS_NUMBER_KEPT;
        if (kept && checkpoint_entry_read(entry, rewind->dir, NULL) == STATUS_OK &&
            entry->position.step < newest->position.step)
            return number;
        looked_at = number;
    }
    return 0;
}

enum status checkpoint_rewind_plan(const char *run, const struct checkpoint *checkpoint, bool newest,
                                   struct checkpoint_rewind *rewind, struct error *err)
{
    RELEASED(checkpoint_list_release) struct checkpoint_list list = {0}, aside = {0};
    int64_t parted, branch_step = -1; /* where the resumed history parted from the run's present one; -1: the same */
    int number = 0;
    memset(rewind, 0, sizeof *rewind);
    TRY(fs_join(rewind->dir, run, "checkpoints", STATUS_CHECKPOINT, err));
    TRY(fs_join(rewind->metrics, run, "metrics.jsonl", STATUS_CHECKPOINT, err));
    TRY(checkpoint_list_update(&list, rewind->dir, false, err));
    TRY(checkpoint_list_update(&aside, rewind->dir, true, err));
    TRY(plan_name(rewind, checkpoint, &list, &aside, err));
    if (newest) rewind->interrupted = find_interrupted(rewind, checkpoint, &aside);
    struct metrics_checkpoint_line line = {rewind->name, checkpoint->position.step, checkpoint->bytes};
    const bool apart = *rewind->from && strstr(rewind->from, ".aside-");
    if (apart) rewound_suffix(rewind->from, &number);
    rewind->metrics_from = metrics_find(rewind->metrics, &line, number, &parted);
    if (rewind->metrics_from > 0 && parted < line.step) branch_step = parted;
    if (rewind->metrics_from < 0 && !apart) /* its line was lost in a kill */
        rewind->metrics_from = 0;
    TRY(plan_moves(rewind, checkpoint, newest, branch_step, &list, err));
    for (rewind->number = 1; number_is_taken(rewind, &aside, rewind->number);) rewind->number++;
    return STATUS_OK;
}

void checkpoint_rewind_release(struct checkpoint_rewind *rewind)
{
    free(TAKEN(rewind->moves));
    rewind->count = 0;
}

/* ---- taking -------------------------------------------------------------- */

/* NAME.aside-N, with the number of the history that goes aside now */
static void aside_name(const struct checkpoint_rewind *rewind, const char *name, char aside[CHECKPOINT_NAME_MAX + 32])
{
    snprintf(aside, CHECKPOINT_NAME_MAX + 32, "%s.aside-%d", name, rewind->number);
}

/* Step 2. */
static enum status give_name(const struct checkpoint_rewind *rewind, struct error *err)
{
    const char *dir = rewind->dir, *from = rewind->from;
    char aside[CHECKPOINT_NAME_MAX + 32], path[FS_PATH_MAX];
    aside_name(rewind, rewind->name, aside);
    if (*rewind->target) {
        from = aside;
        TRY(fs_join(path, dir, aside, STATUS_CHECKPOINT, err));
        if (FAULT(LINK, io_symlink(rewind->target, path)))
            return error_set(err, STATUS_CHECKPOINT, "cannot make the link '%s': %s", path, strerror(errno));
    }
    if (!*from) return STATUS_OK;
    if (rewind->taken && checkpoint_rename(dir, from, rewind->name, RENAME_EXCHANGE, NULL) == STATUS_OK) {
        TRY(fs_sync_dir(dir, STATUS_CHECKPOINT, err));
        if (strcmp(from, aside) != 0) TRY(checkpoint_rename(dir, from, aside, 0, err));
        return fs_sync_dir(dir, STATUS_CHECKPOINT, err);
    }
    if (rewind->taken && from == aside) { /* the link has the name that the taken checkpoint should get */
        TRY(fs_join(path, dir, aside, STATUS_CHECKPOINT, err));
        FAULT(REMOVE, io_remove(path));
        return error_set(err, STATUS_CHECKPOINT, "cannot link '%s/%s' to '%s': the name is taken", dir, rewind->name,
                         rewind->target);
    }
    if (rewind->taken) TRY(checkpoint_rename(dir, rewind->name, aside, 0, err));
    TRY(checkpoint_rename(dir, from, rewind->name, 0, err));
    return fs_sync_dir(dir, STATUS_CHECKPOINT, err);
}

enum status checkpoint_rewind_apply(const struct checkpoint_rewind *rewind, struct error *err)
{
    bool named = *rewind->from || *rewind->target;
    if (rewind->interrupted)
        log_warn(
            "an earlier resume of an older checkpoint was killed before it took effect: the checkpoints "
            "'%s/*.aside-%d' had already gone aside, and the run continues from the newest of the others, '%s'; hint: "
            "to continue from the older checkpoint after all, stop this run and name that one: --resume %s/NAME",
            rewind->dir, rewind->interrupted, rewind->name, rewind->dir);
    if (!named && !rewind->count) return STATUS_OK;
    TRY(metrics_keep(rewind->metrics, rewind->number, err));
    if (named) TRY(give_name(rewind, err));
    for (int i = 0; i < rewind->count; i++) {
        if (i == rewind->count - 1) TRY(fs_sync_dir(rewind->dir, STATUS_CHECKPOINT, err));
        const struct rewind_move *move = &rewind->moves[i];
        char aside[CHECKPOINT_NAME_MAX + 32], path[FS_PATH_MAX], step[48] = "";
        if (move->damaged) {
            TRY(checkpoint_move_aside(rewind->dir, move->name, "damaged", path, err));
            log_warn("the damaged checkpoint '%s/%s' is now '%s'", rewind->dir, move->name, basename(path));
            continue;
        }
        aside_name(rewind, move->name, aside);
        TRY(checkpoint_rename(rewind->dir, move->name, aside, 0, err));
        if (move->step != INT64_MAX) snprintf(step, sizeof step, " of step %" PRId64, move->step);
        log_info("the checkpoint '%s/%s'%s belongs to the history that this run leaves; it is now '%s'", rewind->dir,
                 move->name, step, aside);
    }
    TRY(fs_sync_dir(rewind->dir, STATUS_CHECKPOINT, err));
    checkpoint_point(rewind->dir, "latest", rewind->name);
    checkpoint_unpoint(rewind->dir, "best", false); /* the next save points it at the best of those that are left */
    return STATUS_OK;
}
