/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/checkpoint_folders.h"

#include "ckpt/manifest.h"
#include "core/faults.h"

#define TMP_PREFIX ".tmp-"

static bool folder_name_begins(const char *text, const char *with)
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

/* The end of a number of at least `width` digits (longer ones have no leading zero). NULL: not a number. */
static const char *folder_number_end(const char *text, size_t width)
{
    size_t digits = strspn(text, "0123456789");
    return digits == width || (digits > width && *text != '0') ? text + digits : NULL;
}

bool checkpoint_own_name(const char *name, bool *aside)
{
    static const char *const suffixes[] = {".replaced-", ".damaged-", ".aside-"};
    const char *end = folder_name_begins(name, "step-")    ? folder_number_end(name + strlen("step-"), 8)
                      : folder_name_begins(name, "epoch-") ? folder_number_end(name + strlen("epoch-"), 4)
                                                           : NULL;
    *aside = false;
    while (end && *end) {
        size_t k = 0;
        while (k < COUNT_OF(suffixes) && !folder_name_begins(end, suffixes[k])) k++;
        if (k == COUNT_OF(suffixes)) return false;
        *aside = *aside || k > 0;
        end = folder_number_end(end + strlen(suffixes[k]), 1);
    }
    return end != NULL;
}

bool checkpoint_is_folder(const char *dir, const struct dirent *entry)
{
    char path[FS_PATH_MAX];
    struct stat facts;
    if (entry->d_type == DT_DIR) return true;
    if (fs_join(path, dir, entry->d_name, STATUS_CHECKPOINT, NULL) != STATUS_OK) return false;
    return io_stat(path, &facts) == 0 ? S_ISDIR(facts.st_mode) : fs_exists(path);
}

enum status checkpoint_find_folder(const char *dir, bool *there, struct error *err)
{
    enum status status = fs_find_dir(dir, there, STATUS_CHECKPOINT, err);
    if (status != STATUS_OK && !error_is_unreadable(err))
        error_hint(err, "mount its disk or put the folder back, so that nothing of the run is lost; if there is none, "
                        "remove what is in its place");
    return status;
}

enum status checkpoint_any(const char *dir, bool history, bool *any, struct error *err)
{
    const struct dirent *entry;
    bool there, aside = false;
    *any = false;
    TRY(checkpoint_find_folder(dir, &there, err));
    if (!there) return STATUS_OK;
    OWNED_DIR *folder = io_opendir(dir);
    while (folder && !*any && (entry = io_readdir(folder)))
        *any = (history ? checkpoint_own_name(entry->d_name, &aside) && !aside
                        : folder_name_begins(entry->d_name, "epoch-") || folder_name_begins(entry->d_name, "step-")) &&
               checkpoint_is_folder(dir, entry);
    if (!folder || (!*any && errno)) /* of io_opendir() or io_readdir() */
        return error_system(err, STATUS_CHECKPOINT, errno, "cannot list the checkpoints in '%s'", dir);
    return STATUS_OK;
}

/* ---- finding ------------------------------------------------------------- */

enum status checkpoint_locate(const char *dir, bool *is_checkpoint, char folder[FS_PATH_MAX], struct error *err)
{
    static const char hint[] = "name a checkpoint or a run's folder (of several adapters RUN/ADAPTER)";
    char path[FS_PATH_MAX], rank_name[MANIFEST_NAME_MAX];
    bool there;
    *is_checkpoint = false;
    enum status status = fs_find_dir(dir, &there, STATUS_CHECKPOINT, err);
    if (status == STATUS_OK && !there)
        status = error_set(err, STATUS_CHECKPOINT, "cannot open the checkpoint '%s': %s", dir, strerror(ENOENT));
    if (status != STATUS_OK && !error_is_unreadable(err)) error_hint(err, "%s", hint);
    TRY(status);
    if (strlen(dir) >= FS_PATH_MAX) return error_set(err, STATUS_CHECKPOINT, "the path '%.100s…' is too long", dir);
    strcpy(folder, dir);
    TRY(fs_join(path, dir, MANIFEST_NAME, STATUS_CHECKPOINT, err));
    struct stat facts;
    *is_checkpoint = io_stat(path, &facts) == 0;
    if (*is_checkpoint) return STATUS_OK;
    if (errno != ENOENT && errno != ENOTDIR && errno != ELOOP && errno != ENAMETOOLONG)
        return error_system(err, STATUS_CHECKPOINT, errno, "cannot open '%s'", path);
    manifest_rank_name(0, rank_name);
    TRY(fs_join(path, dir, rank_name, STATUS_CHECKPOINT, err));
    if (fs_exists(path))
        return error_set(err, STATUS_CHECKPOINT, "the checkpoint '%s' is damaged: " MANIFEST_NAME " is missing", dir);
    TRY(fs_join(path, dir, "checkpoints", STATUS_CHECKPOINT, err));
    TRY(checkpoint_find_folder(path, &there, err));
    if (there) {
        strcpy(folder, path);
        return STATUS_OK;
    }
    TRY(checkpoint_any(dir, false, &there, err));
    if (there) return STATUS_OK;
    TRY(fs_join(path, dir, "run.yaml", STATUS_CHECKPOINT, err)); /* a run without a checkpoint so far */
    if (fs_exists(path)) {
        error_set(err, STATUS_CHECKPOINT, "run folder '%s' holds no checkpoint yet", dir);
        return error_hint(err, "%s", CHECKPOINT_NONE_HINT);
    }
    error_set(err, STATUS_CHECKPOINT, "'%s' is neither a checkpoint (there is no " MANIFEST_NAME ") nor a run folder",
              dir);
    return error_hint(err, "%s", hint);
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

/* ---- moving and deleting ------------------------------------------------- */

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
    if (length == (ssize_t)strlen(name) && !memcmp(now, name, (size_t)length)) return;
    if ((FAULT(REMOVE, io_remove(fresh)) && errno != ENOENT) || FAULT(LINK, io_symlink(name, fresh)) ||
        FAULT(RENAME, io_rename(fresh, path))) {
        log_warn("cannot point '%s' at %s: %s; the checkpoint itself is complete", path, name, strerror(errno));
        FAULT(REMOVE, io_remove(fresh));
    } else if (fs_sync_dir(dir, STATUS_CHECKPOINT, &err) != STATUS_OK)
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
    if (io_lstat(path, &own) != 0 || !S_ISLNK(own.st_mode)) return;
    if (!always && (io_stat(path, &target) == 0 || errno != ENOENT)) return;
    if (FAULT(REMOVE, io_remove(path)) && errno != ENOENT)
        log_warn("cannot remove the link '%s': %s", path, strerror(errno));
}

enum status checkpoint_rename(const char *dir, const char *from, const char *to, unsigned flags, struct error *err)
{
    char a[FS_PATH_MAX], b[FS_PATH_MAX];
    TRY(fs_join(a, dir, from, STATUS_CHECKPOINT, err));
    TRY(fs_join(b, dir, to, STATUS_CHECKPOINT, err));
    return FAULT(RENAME, io_rename2(a, b, flags))
               ? error_system(err, STATUS_CHECKPOINT, errno, "cannot rename '%s' to '%s'", a, b)
               : STATUS_OK;
}

enum status checkpoint_move_aside(const char *dir, const char *name, const char *kind, char to[FS_PATH_MAX],
                                  struct error *err)
{
    char target[FS_PATH_MAX], aside[CHECKPOINT_NAME_MAX + 64];
    int n = 0;
    do {
        snprintf(aside, sizeof aside, "%s.%s-%d", name, kind, ++n);
        TRY(fs_join(target, dir, aside, STATUS_CHECKPOINT, err));
    } while (fs_exists(target));
    TRY(checkpoint_rename(dir, name, aside, 0, err));
    memcpy(to, target, sizeof target);
    return STATUS_OK;
}

enum status checkpoint_remove_tree(const char *path, struct error *err)
{
    char inner[FS_PATH_MAX];
    heartbeat_beat();
    if (FAULT(REMOVE, io_remove(path)) == 0 || errno == ENOENT) return STATUS_OK;
    int code = errno;
    OWNED_DIR *folder = code == ENOTEMPTY || code == EEXIST ? io_opendir(path) : NULL;
    if (!folder) return error_system(err, STATUS_CHECKPOINT, code, "cannot delete '%s'", path);
    for (struct dirent *entry; (entry = io_readdir(folder));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        /* the length of the path bounds the depth */
        TRY(fs_join(inner, path, entry->d_name, STATUS_CHECKPOINT, err));
        TRY(checkpoint_remove_tree(inner, err));
    }
    if (FAULT(REMOVE, io_remove(path)) && errno != ENOENT)
        return error_system(err, STATUS_CHECKPOINT, errno, "cannot delete '%s'", path);
    return STATUS_OK;
}

enum status checkpoint_delete(const char *dir, const char *name, struct error *err)
{
    char doomed[FS_PATH_MAX], hidden[CHECKPOINT_NAME_MAX + 64];
    snprintf(hidden, sizeof hidden, TMP_PREFIX "delete-%s", name);
    TRY(fs_join(doomed, dir, hidden, STATUS_CHECKPOINT, err));
    TRY(checkpoint_rename(dir, name, hidden, 0, err));
    return checkpoint_remove_tree(doomed, err);
}

void checkpoint_sweep(const char *dir)
{
    char path[FS_PATH_MAX];
    struct error err;
    OWNED_DIR *folder = io_opendir(dir);
    for (struct dirent *entry; folder && (entry = io_readdir(folder));)
        if (folder_name_begins(entry->d_name, TMP_PREFIX) &&
            (fs_join(path, dir, entry->d_name, STATUS_CHECKPOINT, &err) != STATUS_OK ||
             checkpoint_remove_tree(path, &err) != STATUS_OK))
            log_warn("%s", err.text);
}

/* ---- small files --------------------------------------------------------- */

enum status checkpoint_io_error(const char *what, const char *path, struct error *err)
{
    const int code = errno;
    error_system(err, STATUS_CHECKPOINT, code, "cannot %s '%s'", what, path);
    if (code == ENOSPC || code == EDQUOT)
        error_hint(err, "free space there, or keep fewer checkpoints (checkpoint.keep_last)");
    return STATUS_CHECKPOINT;
}

enum status checkpoint_put_file(const char *folder, const char *name, const void *data, size_t bytes, struct error *err)
{
    char path[FS_PATH_MAX];
    TRY(fs_join(path, folder, name, STATUS_CHECKPOINT, err));
    int fd = io_open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return checkpoint_io_error("create", path, err);
    enum status status = fs_write(fd, path, data, bytes, STATUS_CHECKPOINT, NULL);
    if (status != STATUS_OK || FAULT(FSYNC, io_fsync(fd))) status = checkpoint_io_error("write", path, err);
    if (io_close(fd) && status == STATUS_OK) status = checkpoint_io_error("write", path, err);
    heartbeat_beat();
    return status;
}

enum status checkpoint_reads_from_disk(const char *path, struct error *err)
{
    RELEASED(fs_close) int fd = io_open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return checkpoint_io_error("open", path, err);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    return STATUS_OK;
}
