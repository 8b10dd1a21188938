/* SPDX-License-Identifier: Apache-2.0 */
#include "core/io.h"

#include "core/core.h"

/* Defines the wrapper `name`, which returns the `type` of `call`; `doing` names it, on `path` (NULL: of `fd`). */
#define SLOW_CALL(type, name, parameters, doing, path, fd, call) \
    type name parameters                                         \
    {                                                            \
        SLOW(doing, path, fd);                                   \
        return (call);                                           \
    }

int io_open(const char *path, int flags, ...)
{
    mode_t mode = 0;
    if (flags & O_CREAT) {
        va_list args;
        va_start(args, flags);
        mode = va_arg(args, mode_t);
        va_end(args);
    }
    SLOW("opening", path, -1);
    return open(path, flags, mode);
}

/* While a descriptor is being closed, /proc does not have its name any more. */
int io_close(int fd)
{
    char link[64], path[2000];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = 0;
    SLOW("closing", length > 0 ? path : "?", -1);
    return close(fd);
}

SLOW_CALL(ssize_t, io_pread, (int fd, void *data, size_t bytes, off_t offset), "reading", NULL, fd,
          pread(fd, data, bytes, offset))
SLOW_CALL(ssize_t, io_pwrite, (int fd, const void *data, size_t bytes, off_t offset), "writing", NULL, fd,
          pwrite(fd, data, bytes, offset))
SLOW_CALL(ssize_t, io_write, (int fd, const void *data, size_t bytes), "writing", NULL, fd, write(fd, data, bytes))
SLOW_CALL(int, io_fsync, (int fd), "syncing", NULL, fd, fsync(fd))
SLOW_CALL(int, io_sync_range, (int fd, off_t from, off_t bytes, unsigned flags), "writing", NULL, fd,
          sync_file_range(fd, from, bytes, flags))
SLOW_CALL(int, io_ftruncate, (int fd, off_t bytes), "cutting", NULL, fd, ftruncate(fd, bytes))
SLOW_CALL(int, io_allocate, (int fd, off_t bytes), "reserving space for", NULL, fd, fallocate(fd, 0, 0, bytes))
SLOW_CALL(int, io_rename, (const char *from, const char *to), "renaming", from, -1, rename(from, to))
SLOW_CALL(int, io_rename2, (const char *from, const char *to, unsigned flags), "renaming", from, -1,
          renameat2(AT_FDCWD, from, AT_FDCWD, to, flags))
SLOW_CALL(int, io_mkdir, (const char *path, mode_t mode), "making the folder", path, -1, mkdir(path, mode))
SLOW_CALL(int, io_remove, (const char *path), "deleting", path, -1, remove(path))
SLOW_CALL(int, io_unlink, (const char *path), "deleting", path, -1, unlink(path))
SLOW_CALL(int, io_link, (const char *path, const char *name), "linking", name, -1, link(path, name))
SLOW_CALL(int, io_symlink, (const char *target, const char *path), "linking", path, -1, symlink(target, path))
SLOW_CALL(int, io_stat, (const char *path, struct stat *facts), "looking at", path, -1, stat(path, facts))
SLOW_CALL(int, io_lstat, (const char *path, struct stat *facts), "looking at", path, -1, lstat(path, facts))
SLOW_CALL(int, io_access, (const char *path, int mode), "looking at", path, -1, access(path, mode))
SLOW_CALL(DIR *, io_opendir, (const char *path), "listing", path, -1, memory_opendir(path))
SLOW_CALL(struct dirent *, io_readdir, (DIR * folder), "listing", NULL, dirfd(folder), (errno = 0, readdir(folder)))
SLOW_CALL(int, io_closedir, (DIR * folder), "closing", NULL, dirfd(folder), closedir(folder))
