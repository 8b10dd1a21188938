/* SPDX-License-Identifier: Apache-2.0 */
#include "core/storage/scratch_file.h"

#include "core/core.h"
#include "core/faults.h"
#include "core/storage/async_io.h"

#include <sys/statvfs.h>

enum { FILL_BYTES = 1 << 20 };

enum status scratch_folder_check(const char *path, struct error *err)
{
    struct stat facts;
    const int code = io_stat(path, &facts) != 0 ? errno : S_ISDIR(facts.st_mode) ? 0 : ENOTDIR;
    if (!code) return STATUS_OK;
    error_system(err, STATUS_DEVICE, code, "cannot use nvme_path '%s'", path);
    return error_hint(err, "mount the disk, or make the folder: ztrain does not, as it might fill the wrong disk");
}

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

/* Writes and reads a block with O_DIRECT: some file systems refuse that only at the first transfer. */
static void try_direct(struct scratch_file *file, int64_t bytes)
{
    _Alignas(ASYNC_IO_ALIGN) static char block[ASYNC_IO_ALIGN];
    const int flags = fcntl(file->fd, F_GETFL);
    file->direct = bytes >= ASYNC_IO_ALIGN && fcntl(file->fd, F_SETFL, flags | O_DIRECT) == 0 &&
                   io_pwrite(file->fd, block, sizeof block, 0) == (ssize_t)sizeof block &&
                   io_pread(file->fd, block, sizeof block, 0) == (ssize_t)sizeof block;
    if (!file->direct) fcntl(file->fd, F_SETFL, flags);
}

/* Makes the file; `path` ends with the six letters that mkostemp() replaces. */
static enum status make_nameless(char *path, int *fd, struct error *err)
{
    SLOW("making", path, -1);
    *fd = mkostemp(path, O_CLOEXEC);
    if (*fd < 0) {
        error_system(err, STATUS_DEVICE, errno, "cannot make '%s'", path);
        return error_hint(err, "nvme_path has to be a folder on a local disk in which this user may write");
    }
    if (unlink(path) == 0) return STATUS_OK;
    return error_system(err, STATUS_DEVICE, errno, "cannot take its name from '%s'", path);
}

enum status scratch_file_new(const char *folder, int rank, const char *name, int64_t bytes, struct scratch_file *file,
                             struct error *err)
{
    char path[FS_PATH_MAX], unique[128];
    *file = (struct scratch_file){.fd = -1};
    TRY(scratch_folder_check(folder, err));
    snprintf(unique, sizeof unique, "ztrain-offload-%05d-%s-XXXXXX", rank, name);
    TRY(fs_join(path, folder, unique, STATUS_DEVICE, err));
    enum status status = make_nameless(path, &file->fd, err);
    file->path = memory_text(path);
    if (status == STATUS_OK) status = reserve(file, bytes, err);
    if (status == STATUS_OK)
        try_direct(file, bytes);
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
