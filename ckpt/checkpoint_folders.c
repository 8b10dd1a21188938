#include "ckpt/checkpoint_folders.h"

#include "ckpt/manifest.h"
#include "core/faults.h"
#include "core/fsutil.h"
#include "core/io.h"
#include "core/liveness.h"
#include "core/log.h"
#include "core/memory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* Whether a folder of this name may be a checkpoint, possibly one that a user has renamed. */
static bool resembles_checkpoint(const char *name)
{
    return begins(name, "epoch-") || begins(name, "step-");
}

/* The end of a number as ztrain writes it with `width` digits (longer numbers have no leading zero). NULL: not a
 * number. */
static const char *number_end(const char *text, size_t width)
{
    size_t digits = strspn(text, "0123456789");
    return digits == width || (digits > width && *text != '0') ? text + digits : NULL;
}

/* Whether ztrain writes this name: step-%08d or epoch-%04d, with the suffixes of folders that were moved out of the
 * way. *aside: it was moved aside, or is damaged. */
static bool is_own_name(const char *name, bool *aside)
{
    static const char *const suffixes[] = {".replaced-", ".damaged-", ".aside-"};
    const char *end = begins(name, "step-")    ? number_end(name + strlen("step-"), 8)
                      : begins(name, "epoch-") ? number_end(name + strlen("epoch-"), 4)
                                               : NULL;
    *aside = false;
    while (end && *end) {
        size_t k = 0;
        while (k < COUNT_OF(suffixes) && !begins(end, suffixes[k]))
            k++;
        if (k == COUNT_OF(suffixes))
            return false;
        *aside = *aside || k > 0;
        end = number_end(end + strlen(suffixes[k]), 1);
    }
    return end != NULL;
}

/* Whether anything has this name; it is an error if the file system does not answer. */
static enum status look_for(const char *path, bool *there, struct error *err)
{
    struct stat facts;
    *there = io_stat(path, &facts) == 0;
    if (*there || errno == ENOENT || errno == ENOTDIR || errno == ELOOP || errno == ENAMETOOLONG)
        return STATUS_OK;
    return error_system(err, STATUS_CHECKPOINT, errno, "cannot open '%s'", path);
}

/* Whether an entry of dir is a folder with such a name. course: one that was not moved aside. */
static enum status is_such_folder(const char *dir, const struct dirent *entry, bool course, bool *such,
                                  struct error *err)
{
    bool aside = false, there;
    char path[FS_PATH_MAX];
    *such = course ? is_own_name(entry->d_name, &aside) && !aside : resembles_checkpoint(entry->d_name);
    if (!*such || entry->d_type == DT_DIR)
        return STATUS_OK;
    TRY(fs_join(path, dir, entry->d_name, STATUS_CHECKPOINT, err));
    TRY(look_for(path, &there, err));
    *such = there && fs_is_dir(path);
    return STATUS_OK;
}

/* Whether dir has such a folder. Only a dir that does not exist has none: one that cannot be listed is an error, or a
 * run would begin anew over its own checkpoints. */
static enum status any_folder(const char *dir, bool course, bool *any, struct error *err)
{
    enum status status = STATUS_OK;
    const struct dirent *entry;
    DIR *folder = io_opendir(dir);
    *any = false;
    if (!folder && (errno == ENOENT || errno == ENOTDIR))
        return STATUS_OK;
    while (folder && status == STATUS_OK && !*any && (entry = io_readdir(folder)))
        status = is_such_folder(dir, entry, course, any, err);
    if (status == STATUS_OK && !*any && errno) /* of io_opendir() or io_readdir() */
        status = error_system(err, STATUS_CHECKPOINT, errno, "cannot list the checkpoints in '%s'", dir);
    if (folder)
        io_closedir(folder);
    return status;
}

enum status checkpoint_any(const char *dir, bool *any, struct error *err)
{
    return any_folder(dir, false, any, err);
}

enum status checkpoint_any_of_course(const char *dir, bool *any, struct error *err)
{
    return any_folder(dir, true, any, err);
}

/* ---- listing ------------------------------------------------------------- */

enum status checkpoint_locate(const char *dir, bool *is_checkpoint, char folder[FS_PATH_MAX], struct error *err)
{
    static const char hint[] = "name a checkpoint folder, or a run folder for its newest one";
    char path[FS_PATH_MAX], rank_name[MANIFEST_NAME_MAX];
    bool there;
    *is_checkpoint = false;
    TRY(look_for(dir, &there, err));
    if (!there || !fs_is_dir(dir)) {
        error_set(err, STATUS_CHECKPOINT, "cannot open the checkpoint '%s': %s", dir,
                  fs_exists(dir) ? "it is not a folder, or a link to nothing" : strerror(ENOENT));
        error_hint(err, "%s", hint);
        return STATUS_CHECKPOINT;
    }
    if (strlen(dir) >= FS_PATH_MAX)
        return error_set(err, STATUS_CHECKPOINT, "the path '%.100s…' is too long", dir);
    strcpy(folder, dir);
    TRY(fs_join(path, dir, MANIFEST_NAME, STATUS_CHECKPOINT, err));
    TRY(look_for(path, is_checkpoint, err));
    if (*is_checkpoint)
        return STATUS_OK;
    manifest_rank_name(0, rank_name);
    TRY(fs_join(path, dir, rank_name, STATUS_CHECKPOINT, err));
    if (fs_exists(path))
        return error_set(err, STATUS_CHECKPOINT, "the checkpoint '%s' is damaged: " MANIFEST_NAME " is missing", dir);
    TRY(fs_join(path, dir, "checkpoints", STATUS_CHECKPOINT, err));
    TRY(look_for(path, &there, err));
    if (there && fs_is_dir(path)) {
        strcpy(folder, path);
        return STATUS_OK;
    }
    TRY(checkpoint_any(dir, &there, err));
    if (there)
        return STATUS_OK;
    TRY(fs_join(path, dir, "run.yaml", STATUS_CHECKPOINT, err)); /* a run without a checkpoint so far */
    if (fs_exists(path)) {
        error_set(err, STATUS_CHECKPOINT, "run folder '%s' holds no checkpoint yet", dir);
        error_hint(err, "%s", CHECKPOINT_NONE_HINT);
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
    if (a->epoch_end != b->epoch_end) /* the same step; the end of the epoch was processed as well */
        return a->epoch_end ? -1 : 1;
    return strcmp(a->name, b->name); /* X before X.replaced-1 */
}

static enum status entry_read(struct checkpoint_entry *entry, const char *path, const char *name, bool files,
                              struct error *err)
{
    struct manifest *manifest;
    struct error damage = {0};
    long long step, epoch;
    memset(entry, 0, sizeof *entry);
    snprintf(entry->name, sizeof entry->name, "%s", name);
    enum status status = manifest_load(path, files, &manifest, &damage);
    if (status != STATUS_OK && status != STATUS_CHECKPOINT) { /* a lack of memory is not damage */
        if (err)
            *err = damage;
        return status;
    }
    entry->ok = status == STATUS_OK;
    entry->settled = files || !entry->ok;
    if (entry->ok) {
        entry->step = manifest->position.step;
        entry->evaluation_due = manifest->position.evaluation_due;
        entry->epoch_end = manifest->position.epoch_end;
        entry->epoch = manifest->position.epoch;
        entry->bytes = manifest->bytes;
        entry->scores = manifest->position.scores;
        manifest_free(manifest);
        return STATUS_OK;
    }
    entry->step = sscanf(name, "step-%lld", &step) == 1 && step >= 0 ? step : INT64_MAX;
    entry->epoch_end = sscanf(name, "epoch-%lld", &epoch) == 1 && epoch > 0;
    entry->epoch = entry->epoch_end ? epoch : 0;
    entry->damage = memory_text(damage.text);
    entry->unread = error_is_unreadable(&damage);
    entry->cause = entry->unread ? damage.cause : 0;
    return STATUS_OK;
}

bool checkpoint_may_be_later(const struct checkpoint_entry *unread, const struct train_position *position)
{
    if (unread->step != INT64_MAX)
        return unread->step > position->step || (unread->step == position->step && position->evaluation_due);
    return !unread->epoch_end || unread->epoch > position->epoch ||
           (unread->epoch == position->epoch && !position->epoch_end);
}

bool checkpoint_identify(const char *folder, struct stat *identity)
{
    return io_stat(folder, identity) == 0 && S_ISDIR(identity->st_mode);
}

bool checkpoint_is_still(const char *folder, const struct stat *identity)
{
    struct stat now;
    return checkpoint_identify(folder, &now) && now.st_ino == identity->st_ino && now.st_dev == identity->st_dev;
}

/* Reads an entry while a run may delete the folder (*gone) or replace it; the new folder then counts. */
static enum status entry_read_still(struct checkpoint_entry *entry, const char *path, const char *name, bool files,
                                    bool *gone, struct error *err)
{
    struct stat identity;
    *gone = false;
    for (int i = 0;; i++) {
        bool known = checkpoint_identify(path, &identity);
        TRY(entry_read(entry, path, name, files, err));
        if (entry->ok || (known && checkpoint_is_still(path, &identity)) || i == CHECKPOINT_TRIES)
            return STATUS_OK;
        if (!fs_exists(path)) {
            free(entry->damage);
            *gone = true;
            return STATUS_OK;
        }
        if (!known) /* the disk does not answer */
            return STATUS_OK;
        free(entry->damage);
    }
}

static int by_name(const void *left, const void *right)
{
    const struct checkpoint_entry *a = left, *b = right;
    return strcmp(a->name, b->name);
}

/* Appends a folder, from `known` (sorted by name) if it is there, else read anew. */
static enum status list_append(struct checkpoint_list *list, struct checkpoint_list *known, const char *path,
                               const struct dirent *found, bool files, int *room, struct error *err)
{
    struct checkpoint_entry key = {.ok = false}, *old;
    if (list->count == *room) {
        *room = *room ? 2 * *room : 16;
        list->entries = memory_resize(list->entries, (size_t)*room * sizeof *list->entries);
    }
    struct checkpoint_entry *entry = &list->entries[list->count];
    snprintf(key.name, sizeof key.name, "%s", found->d_name);
    old = known->count ? bsearch(&key, known->entries, (size_t)known->count, sizeof key, by_name) : NULL;
    if (old && old->inode == found->d_ino && !old->unread) {
        *entry = *old;
        old->damage = NULL; /* has moved */
    } else {
        bool gone;
        TRY(entry_read_still(entry, path, found->d_name, files, &gone, err));
        entry->inode = found->d_ino;
        liveness_tick();
        list->changed |= gone;
        if (gone)
            return STATUS_OK;
    }
    list->count++;
    return STATUS_OK;
}

/* Lists the checkpoints of the course, or those that were moved aside. files: looks at each one's files as well. */
static enum status list_update(struct checkpoint_list *list, const char *dir, bool want_aside, bool files,
                               struct error *err)
{
    enum status status = STATUS_OK;
    struct checkpoint_list known = *list;
    char path[FS_PATH_MAX];
    int room = 0;
    bool aside;
    memset(list, 0, sizeof *list);
    if (known.count)
        qsort(known.entries, (size_t)known.count, sizeof *known.entries, by_name);
    DIR *folder = io_opendir(dir);
    if (!folder)
        TRY_END(error_system(err, STATUS_CHECKPOINT, errno, "cannot open the folder '%s'", dir));
    for (;;) {
        errno = 0;
        struct dirent *entry = io_readdir(folder);
        if (!entry)
            break;
        if (!is_own_name(entry->d_name, &aside) || aside != want_aside)
            continue;
        TRY_END(fs_join(path, dir, entry->d_name, STATUS_CHECKPOINT, err));
        if (entry->d_type == DT_DIR || fs_is_dir(path))
            TRY_END(list_append(list, &known, path, entry, files, &room, err));
    }
    if (errno)
        TRY_END(error_system(err, STATUS_CHECKPOINT, errno, "cannot read the folder '%s'", dir));
    if (list->count)
        qsort(list->entries, (size_t)list->count, sizeof *list->entries, by_step_newest_first);
end:
    if (folder)
        io_closedir(folder);
    if (status != STATUS_OK)
        checkpoint_list_release(list);
    checkpoint_list_release(&known);
    return status;
}

enum status checkpoint_list_update(struct checkpoint_list *list, const char *dir, struct error *err)
{
    return list_update(list, dir, false, false, err);
}

enum status checkpoint_entry_settle(struct checkpoint_entry *entry, const char *dir, struct error *err)
{
    char path[FS_PATH_MAX];
    struct checkpoint_entry now;
    bool gone;
    if (entry->settled)
        return STATUS_OK;
    TRY(fs_join(path, dir, entry->name, STATUS_CHECKPOINT, err));
    TRY(entry_read_still(&now, path, entry->name, true, &gone, err));
    now.inode = entry->inode;
    if (gone) {
        now.ok = now.unread = false;
        now.damage = memory_text("it was deleted meanwhile");
    }
    *entry = now; /* which was ok, and had no text of its own */
    return STATUS_OK;
}

enum status checkpoint_list_init(struct checkpoint_list *list, const char *dir, struct error *err)
{
    memset(list, 0, sizeof *list);
    return list_update(list, dir, false, true, err);
}

enum status checkpoint_list_aside(struct checkpoint_list *list, const char *dir, struct error *err)
{
    memset(list, 0, sizeof *list);
    return list_update(list, dir, true, false, err);
}

void checkpoint_list_release(struct checkpoint_list *list)
{
    for (int i = 0; i < list->count; i++)
        free(list->entries[i].damage);
    free(list->entries);
    memset(list, 0, sizeof *list);
}

/* ---- moving and deleting ------------------------------------------------- */

enum status checkpoint_sync(const char *dir, struct error *err)
{
    int fd = io_open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return error_system(err, STATUS_CHECKPOINT, errno, "cannot open the folder '%s'", dir);
    enum status status = STATUS_OK;
    if (fault_fsync(fd))
        status = error_system(err, STATUS_CHECKPOINT, errno, "cannot write the folder '%s'", dir);
    io_close(fd);
    liveness_tick();
    return status;
}

void checkpoint_point(const char *dir, const char *link, const char *name)
{
    char path[FS_PATH_MAX], fresh[FS_PATH_MAX], hidden[CHECKPOINT_NAME_MAX], now[CHECKPOINT_NAME_MAX];
    struct error err;
    snprintf(hidden, sizeof hidden, TMP_PREFIX "%s", link);
    if (fs_join(path, dir, link, STATUS_CHECKPOINT, &err) != STATUS_OK ||
        fs_join(fresh, dir, hidden, STATUS_CHECKPOINT, &err) != STATUS_OK) {
        log_warn("%s", err.text);
        return;
    }
    ssize_t length = readlink(path, now, sizeof now);
    if (length == (ssize_t)strlen(name) && !memcmp(now, name, (size_t)length))
        return;
    if ((fault_remove(fresh) && errno != ENOENT) || fault_symlink(name, fresh) || fault_rename(fresh, path, 0)) {
        log_warn("cannot point '%s' at %s: %s; the checkpoint itself is complete", path, name, strerror(errno));
        fault_remove(fresh);
    } else if (checkpoint_sync(dir, &err) != STATUS_OK)
        log_warn("%s", err.text);
}

void checkpoint_unpoint(const char *dir, const char *link, bool always)
{
    char path[FS_PATH_MAX];
    struct stat own, target;
    struct error err;
    if (fs_join(path, dir, link, STATUS_CHECKPOINT, &err) != STATUS_OK) {
        log_warn("%s", err.text);
        return;
    }
    if (io_lstat(path, &own) != 0 || !S_ISLNK(own.st_mode))
        return;
    if (!always && (io_stat(path, &target) == 0 || errno != ENOENT))
        return;
    if (fault_remove(path) && errno != ENOENT)
        log_warn("cannot remove the link '%s': %s", path, strerror(errno));
}

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
        return error_system(err, STATUS_CHECKPOINT, errno, "cannot rename '%s' to '%s'", from, target);
    if (to)
        memcpy(to, target, sizeof target);
    return STATUS_OK;
}

enum status checkpoint_remove_tree(const char *path, struct error *err)
{
    enum status status = STATUS_OK;
    char inner[FS_PATH_MAX];
    liveness_tick();
    if (fault_remove(path) == 0 || errno == ENOENT)
        return STATUS_OK;
    int code = errno;
    DIR *folder = code == ENOTEMPTY || code == EEXIST ? io_opendir(path) : NULL;
    if (!folder)
        return error_system(err, STATUS_CHECKPOINT, code, "cannot delete '%s'", path);
    for (struct dirent *entry; (entry = io_readdir(folder));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        /* the length of the path bounds the depth */
        TRY_END(fs_join(inner, path, entry->d_name, STATUS_CHECKPOINT, err));
        TRY_END(checkpoint_remove_tree(inner, err));
    }
    if (fault_remove(path) && errno != ENOENT)
        status = error_system(err, STATUS_CHECKPOINT, errno, "cannot delete '%s'", path);
end:
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
        return error_system(err, STATUS_CHECKPOINT, errno, "cannot rename '%s' to '%s'", from, doomed);
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
