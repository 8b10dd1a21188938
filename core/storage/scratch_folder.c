/* SPDX-License-Identifier: Apache-2.0 */
/* scratch_folder.c: a folder cannot be made and locked in one step, so its maker and the processes that look for
 * abandoned ones may meet in between. The maker takes a folder for its own only once it holds the lock of a file that
 * still has its name there:
 *
 *     maker                         a process that finds the folder at that moment
 *     mkdir                         no lock file: rmdir succeeds, and open fails in the maker
 *     open lock                     gets the lock and deletes the folder; the maker gets no lock, or that of a file
 *     flock                           without a name
 *     lock has its name             cannot get the lock any more
 *
 * A maker that loses its folder makes another one. */
#include "core/storage/scratch_folder.h"

#include "core/core.h"
#include "core/faults.h"
#include "core/storage/async_io.h"

#include <sys/file.h>
#include <sys/random.h>
#include <sys/statvfs.h>

#define PREFIX "ztrain-offload-"
#define LOCK_NAME "lock"
enum { TRIES = 100, FILL_BYTES = 1 << 20 };

struct scratch_folder {
    char path[FS_PATH_MAX];
    int lock_fd; /* -1: none */
};

/* ---- folders ------------------------------------------------------------- */

/* Deletes a folder with its entries, the lock last. Returns 0 or the first errno. *files: deleted besides the lock. */
static int delete_folder(const char *path, int *files)
{
    char entry[FS_PATH_MAX];
    int code = 0;
    *files = 0;
    OWNED_DIR *folder = io_opendir(path);
    if (!folder) return errno;
    struct dirent *e;
    while ((e = io_readdir(folder))) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") || !strcmp(e->d_name, LOCK_NAME)) continue;
        if (fs_join(entry, path, e->d_name, STATUS_DEVICE, NULL) != STATUS_OK) continue;
        if (FAULT(REMOVE, io_remove(entry)) == 0)
            ++*files;
        else if (!code)
            code = errno;
    }
    if (!code) /* of the listing: what it did not name still needs the lock */
        code = errno;
    if (!code && fs_join(entry, path, LOCK_NAME, STATUS_DEVICE, NULL) == STATUS_OK && FAULT(REMOVE, io_remove(entry)) &&
        errno != ENOENT)
        code = errno;
    /* without its lock the folder is anybody's */
    if (!code && FAULT(REMOVE, io_remove(path)) && errno != ENOENT) code = errno;
    return code;
}

/* Takes the lock of the folder if it is free. Returns its descriptor or, with errno, -1. */
static int take_folder_lock(const char *path, int flags)
{
    char lock[FS_PATH_MAX];
    struct stat named, ours;
    if (fs_join(lock, path, LOCK_NAME, STATUS_DEVICE, NULL) != STATUS_OK) return errno = ENAMETOOLONG, -1;
    int fd = io_open(lock, flags | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0) return -1;
    int code = flock(fd, LOCK_EX | LOCK_NB) ? errno : 0;
    if (!code && (io_stat(lock, &named) || fstat(fd, &ours) || named.st_ino != ours.st_ino)) code = ENOENT;
    if (!code) return fd;
    io_close(fd);
    return errno = code, -1;
}

static void sweep_scratch(const char *path)
{
    char entry[FS_PATH_MAX];
    OWNED_DIR *folder = io_opendir(path);
    for (struct dirent *e; folder && (e = io_readdir(folder));) {
        if (strncmp(e->d_name, PREFIX, sizeof PREFIX - 1) != 0 ||
            fs_join(entry, path, e->d_name, STATUS_DEVICE, NULL) != STATUS_OK)
            continue;
        RELEASED(fs_close) int fd = take_folder_lock(entry, O_RDWR);
        if (fd < 0) {
            if (errno == ENOENT) /* killed before it had a lock */
                io_remove(entry);
            continue;
        }
        int files, code = delete_folder(entry, &files);
        if (code == 0 && files > 0)
            log_info("deleted '%s', which a process that ended early has left", entry);
        else if (code && code != ENOENT)
            log_warn("cannot delete '%s', which a process that ended early has left: %s", entry, strerror(code));
    }
}

/* One attempt; *again: another process has taken the folder for an abandoned one. */
static enum status make_scratch_folder(struct scratch_folder *folder, const char *path, int rank, bool *again,
                                       struct error *err)
{
    uint64_t random;
    char name[64], who[512], host[256] = "";
    *again = false;
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
        return error_system(err, STATUS_DEVICE, errno, "cannot get random numbers");
    snprintf(name, sizeof name, PREFIX "%05d-%016" PRIx64, rank, random);
    TRY(fs_join(folder->path, path, name, STATUS_DEVICE, err));
    if (FAULT(MKDIR, io_mkdir(folder->path, 0777))) {
        error_system(err, STATUS_DEVICE, errno, "cannot make the folder '%s'", folder->path);
        return error_hint(err, "nvme_path has to be a folder on a local disk in which this user may write");
    }
    folder->lock_fd = take_folder_lock(folder->path, O_RDWR | O_CREAT);
    if (folder->lock_fd < 0) {
        int code = errno;
        *again = code == ENOENT || code == EWOULDBLOCK;
        if (*again) return STATUS_OK;
        int files;
        delete_folder(folder->path, &files);
        error_system(err, STATUS_DEVICE, code, "cannot lock '%s/" LOCK_NAME "'", folder->path);
        return error_hint(err, "nvme_path has to be on a local disk, whose file system has locks");
    }
    gethostname(host, sizeof host - 1);
    snprintf(who, sizeof who, "rank %d, process %ld on %s\n", rank, (long)getpid(), host);
    return fs_write(folder->lock_fd, folder->path, who, strlen(who), STATUS_DEVICE, err);
}

enum status scratch_folder_check(const char *path, struct error *err)
{
    struct stat facts;
    const int code = io_stat(path, &facts) != 0 ? errno : S_ISDIR(facts.st_mode) ? 0 : ENOTDIR;
    if (!code) return STATUS_OK;
    error_system(err, STATUS_DEVICE, code, "cannot use nvme_path '%s'", path);
    return error_hint(err, "mount the disk, or make the folder: ztrain does not, as it might fill the wrong disk");
}

enum status scratch_folder_new(const char *path, int rank, struct scratch_folder **out, struct error *err)
{
    bool again = true;
    *out = NULL;
    TRY(scratch_folder_check(path, err));
    sweep_scratch(path);
    RELEASED(scratch_folder_drop) struct scratch_folder *folder = memory_zeroed(1, sizeof *folder);
    folder->lock_fd = -1;
    for (int i = 0; i < TRIES && again; i++) TRY(make_scratch_folder(folder, path, rank, &again, err));
    if (again) return error_set(err, STATUS_DEVICE, "cannot make a folder in '%s': others delete it each time", path);
    *out = TAKEN(folder);
    return STATUS_OK;
}

void scratch_folder_free(struct scratch_folder *folder)
{
    if (!folder) return;
    if (folder->lock_fd >= 0) {
        int files, code = delete_folder(folder->path, &files);
        if (code) log_warn("cannot delete '%s': %s", folder->path, strerror(code));
        io_close(folder->lock_fd);
    }
    free(folder);
}

const char *scratch_folder_path(const struct scratch_folder *folder)
{
    return folder->path;
}

/* ---- files --------------------------------------------------------------- */

/* Writes zeros where a file system cannot reserve space: the file grows until the disk is full or all is there. */
static enum status scratch_fill_zeros(int fd, const char *path, int64_t bytes, struct error *err)
{
    OWNED void *zeros = memory_zeroed(1, FILL_BYTES);
    for (int64_t at = 0; at < bytes; at += FILL_BYTES) {
        int64_t rest = bytes - at;
        TRY(fs_write(fd, path, zeros, (size_t)(rest < FILL_BYTES ? rest : FILL_BYTES), STATUS_DEVICE, err));
    }
    return STATUS_OK;
}

static enum status reserve(struct scratch_file *file, int64_t bytes, struct error *err)
{
    struct statvfs facts;
    enum status status = STATUS_OK;
    char size[SIZE_TEXT_MAX];
    file->reserved = FAULT(ALLOCATE, io_allocate(file->fd, bytes)) == 0;
    if (file->reserved) return STATUS_OK;
    if (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL)
        status = scratch_fill_zeros(file->fd, file->path, bytes, err);
    else
        status =
            error_system(err, STATUS_DEVICE, errno, "cannot reserve %s for '%s'", size_round(bytes, size), file->path);
    if (status != STATUS_OK && err->cause == ENOSPC && fstatvfs(file->fd, &facts) == 0)
        error_hint(err, "the disk has %s free; `ztrain plan` prints the bytes that each rank needs on it",
                   size_round((int64_t)facts.f_bavail * (int64_t)facts.f_frsize, size));
    return status;
}

/* Whether a block can be written and read with O_DIRECT; some file systems refuse that only at the first transfer. */
static bool scratch_takes_direct(int fd)
{
    _Alignas(ASYNC_IO_ALIGN) static char block[ASYNC_IO_ALIGN];
    return io_pwrite(fd, block, sizeof block, 0) == (ssize_t)sizeof block &&
           io_pread(fd, block, sizeof block, 0) == (ssize_t)sizeof block;
}

static void open_direct(struct scratch_file *file, int64_t bytes)
{
    int fd = bytes < ASYNC_IO_ALIGN ? -1 : io_open(file->path, O_RDWR | O_CLOEXEC | O_DIRECT);
    file->direct = fd >= 0 && scratch_takes_direct(fd);
    fs_close(file->direct ? &file->fd : &fd);
    if (file->direct) file->fd = fd;
}

enum status scratch_file_new(const struct scratch_folder *folder, const char *name, int64_t bytes,
                             struct scratch_file *file, struct error *err)
{
    char path[FS_PATH_MAX];
    *file = (struct scratch_file){.fd = -1};
    TRY(fs_join(path, folder->path, name, STATUS_DEVICE, err));
    file->path = memory_text(path);
    file->fd = io_open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    const enum status status =
        file->fd < 0 ? error_system(err, STATUS_DEVICE, errno, "cannot make '%s'", path) : reserve(file, bytes, err);
    if (status == STATUS_OK)
        open_direct(file, bytes);
    else
        scratch_file_release(file);
    return status;
}

void scratch_file_release(struct scratch_file *file)
{
    if (file->path && file->fd >= 0) io_close(file->fd);
    free(file->path);
    *file = (struct scratch_file){.fd = -1};
}
