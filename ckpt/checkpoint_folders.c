#include "ckpt/checkpoint_folders.h"

#include "ckpt/manifest.h"
#include "core/faults.h"
#include "core/fsutil.h"
#include "core/io.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/progress.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TMP_PREFIX ".tmp-"

static bool begins(const char *text, const char *with)
{
    return !strncmp(text, with, strlen(with));
}

void checkpoint_name(const struct train_position *position, char name[64])
{
    if (position->epoch_end)
        snprintf(name, 64, "epoch-%04" PRId64, position->epoch);
    else
        snprintf(name, 64, "step-%08" PRId64, position->step);
}

/* Whether a folder of that name is, or once was, a checkpoint. */
static bool is_checkpoint_name(const char *name)
{
    return begins(name, "epoch-") || begins(name, "step-");
}

static bool is_aside_name(const char *name)
{
    return strstr(name, ".damaged-") || strstr(name, ".aside-");
}

bool checkpoint_any(const char *dir)
{
    bool any = false;
    char path[FS_PATH_MAX];
    DIR *folder = io_opendir(dir);
    if (!folder)
        return false;
    for (struct dirent *entry; !any && (entry = io_readdir(folder));)
        any = is_checkpoint_name(entry->d_name) &&
              fs_join(path, dir, entry->d_name, STATUS_CHECKPOINT, NULL) == STATUS_OK && fs_is_dir(path);
    io_closedir(folder);
    return any;
}

/* ------------------------------------------------------------------------------------------------- what there is */

enum status checkpoint_locate(const char *dir, bool *is_checkpoint, char folder[FS_PATH_MAX], struct error *err)
{
    static const char hint[] = "name a checkpoint folder, or a run folder for its newest one";
    char path[FS_PATH_MAX], rank_name[MANIFEST_NAME_MAX];
    *is_checkpoint = false;
    if (!fs_is_dir(dir)) {
        error_set(err, STATUS_CHECKPOINT, "cannot open the checkpoint '%s': %s", dir,
                  fs_exists(dir) ? "it is not a folder, or a link to nothing" : strerror(ENOENT));
        error_hint(err, "%s", hint);
        return STATUS_CHECKPOINT;
    }
    if (strlen(dir) >= FS_PATH_MAX)
        return error_set(err, STATUS_CHECKPOINT, "the path '%.100s…' is too long", dir);
    strcpy(folder, dir);
    TRY(fs_join(path, dir, MANIFEST_NAME, STATUS_CHECKPOINT, err));
    *is_checkpoint = fs_exists(path);
    if (*is_checkpoint)
        return STATUS_OK;
    manifest_rank_name(0, rank_name);
    TRY(fs_join(path, dir, rank_name, STATUS_CHECKPOINT, err));
    if (fs_exists(path))
        return error_set(err, STATUS_CHECKPOINT, "the checkpoint '%s' is damaged: " MANIFEST_NAME " is missing", dir);
    TRY(fs_join(path, dir, "checkpoints", STATUS_CHECKPOINT, err));
    if (fs_is_dir(path)) {
        strcpy(folder, path);
        return STATUS_OK;
    }
    if (checkpoint_any(dir))
        return STATUS_OK;
    TRY(fs_join(path, dir, "run.yaml", STATUS_CHECKPOINT, err)); /* a run that did not get that far */
    if (fs_exists(path)) {
        error_set(err, STATUS_CHECKPOINT, "run folder '%s' holds no checkpoint yet", dir);
        error_hint(err, "until its first one a run is started without --resume");
        return STATUS_CHECKPOINT;
    }
    error_set(err, STATUS_CHECKPOINT, "'%s' is neither a checkpoint (there is no " MANIFEST_NAME ") nor a run folder",
              dir);
    error_hint(err, "%s", hint);
    return STATUS_CHECKPOINT;
}

static int by_step_newest_first(const void *left, const void *right)
{
    const struct checkpoint_entry *a = left, *b = right;
    if (a->step != b->step)
        return a->step < b->step ? 1 : -1;
    if (a->evaluation_due != b->evaluation_due)
        return a->evaluation_due ? 1 : -1;
    return strcmp(b->name, a->name);
}

static enum status entry_read(struct checkpoint_entry *entry, const char *path, const char *name, struct error *err)
{
    struct manifest *manifest;
    struct error damage = {0};
    long long step;
    memset(entry, 0, sizeof *entry);
    snprintf(entry->name, sizeof entry->name, "%s", name);
    enum status status = manifest_load(path, &manifest, &damage);
    if (status != STATUS_OK && status != STATUS_CHECKPOINT) /* out of memory is no damage */
        return error_set(err, status, "%s", damage.text);
    entry->ok = status == STATUS_OK;
    if (entry->ok) {
        entry->step = manifest->position.step;
        entry->evaluation_due = manifest->position.evaluation_due;
        manifest_free(manifest);
        return STATUS_OK;
    }
    entry->step = sscanf(name, "step-%lld", &step) == 1 && step >= 0 ? step : INT64_MAX;
    entry->damage = memory_text(damage.text);
    return STATUS_OK;
}

enum status checkpoint_list_init(struct checkpoint_list *list, const char *dir, struct error *err)
{
    enum status status = STATUS_OK;
    char path[FS_PATH_MAX];
    int room = 0;
    memset(list, 0, sizeof *list);
    DIR *folder = io_opendir(dir);
    if (!folder)
        return error_set(err, STATUS_CHECKPOINT, "cannot open the folder '%s': %s", dir, strerror(errno));
    for (struct dirent *entry; (entry = io_readdir(folder));) {
        if (!is_checkpoint_name(entry->d_name) || is_aside_name(entry->d_name))
            continue;
        TRY_GOTO(fs_join(path, dir, entry->d_name, STATUS_CHECKPOINT, err));
        if (!fs_is_dir(path))
            continue;
        if (list->count == room) {
            room = room ? 2 * room : 16;
            list->entries = memory_resize(list->entries, (size_t)room * sizeof *list->entries);
        }
        TRY_GOTO(entry_read(&list->entries[list->count], path, entry->d_name, err));
        list->count++;
        progress_tick();
    }
    io_closedir(folder);
    if (list->count)
        qsort(list->entries, (size_t)list->count, sizeof *list->entries, by_step_newest_first);
    return STATUS_OK;
fail:
    io_closedir(folder);
    checkpoint_list_release(list);
    return status;
}

void checkpoint_list_release(struct checkpoint_list *list)
{
    for (int i = 0; i < list->count; i++)
        free(list->entries[i].damage);
    free(list->entries);
    memset(list, 0, sizeof *list);
}

/* ------------------------------------------------------------------------------------------- moving and deleting */

enum status checkpoint_move_aside(const char *dir, const char *name, const char *kind, char *to, struct error *err)
{
    char from[FS_PATH_MAX], target[FS_PATH_MAX], aside[CHECKPOINT_NAME_MAX + 64];
    TRY(fs_join(from, dir, name, STATUS_CHECKPOINT, err));
    int n = 0;
    do {
        snprintf(aside, sizeof aside, "%s.%s-%d", name, kind, ++n);
        TRY(fs_join(target, dir, aside, STATUS_CHECKPOINT, err));
    } while (fs_exists(target));
    if (fault_rename(from, target, 0))
        return error_set(err, STATUS_CHECKPOINT, "cannot rename '%s' to '%s': %s", from, target, strerror(errno));
    if (to)
        memcpy(to, target, sizeof target);
    return STATUS_OK;
}

enum status checkpoint_remove_tree(const char *path, struct error *err)
{
    enum status status = STATUS_OK;
    char inner[FS_PATH_MAX];
    progress_tick();
    if (fault_remove(path) == 0 || errno == ENOENT)
        return STATUS_OK;
    int code = errno;
    DIR *folder = code == ENOTEMPTY || code == EEXIST ? io_opendir(path) : NULL;
    if (!folder)
        return error_set(err, STATUS_CHECKPOINT, "cannot delete '%s': %s", path, strerror(code));
    for (struct dirent *entry; (entry = io_readdir(folder));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        /* the path's length bounds the depth */
        TRY_GOTO(fs_join(inner, path, entry->d_name, STATUS_CHECKPOINT, err));
        TRY_GOTO(checkpoint_remove_tree(inner, err));
    }
    if (fault_remove(path) && errno != ENOENT)
        status = error_set(err, STATUS_CHECKPOINT, "cannot delete '%s': %s", path, strerror(errno));
fail:
    io_closedir(folder);
    return status;
}

enum status checkpoint_delete(const char *dir, const char *name, struct error *err)
{
    char from[FS_PATH_MAX], doomed[FS_PATH_MAX], hidden[CHECKPOINT_NAME_MAX + 64];
    snprintf(hidden, sizeof hidden, TMP_PREFIX "delete-%s", name);
    TRY(fs_join(from, dir, name, STATUS_CHECKPOINT, err));
    TRY(fs_join(doomed, dir, hidden, STATUS_CHECKPOINT, err));
    if (fault_rename(from, doomed, 0))
        return error_set(err, STATUS_CHECKPOINT, "cannot rename '%s' to '%s': %s", from, doomed, strerror(errno));
    return checkpoint_remove_tree(doomed, err);
}

void checkpoint_sweep(const char *dir)
{
    char path[FS_PATH_MAX];
    struct error err;
    DIR *folder = io_opendir(dir);
    if (!folder)
        return;
    for (struct dirent *entry; (entry = io_readdir(folder));)
        if (begins(entry->d_name, TMP_PREFIX) &&
            (fs_join(path, dir, entry->d_name, STATUS_CHECKPOINT, &err) != STATUS_OK ||
             checkpoint_remove_tree(path, &err) != STATUS_OK))
            log_warn("%s", err.text);
    io_closedir(folder);
}
