/* SPDX-License-Identifier: Apache-2.0 */
#include "core/io.h"

#include "core/core.h"

/* A wrapper's body: `call`, which returns `type`; `doing` names the operation on `path`, or NULL: the file of `fd`. */
#define SLOW_CALL(type, doing, path, fd, call)             \
    do {                                                   \
        struct slow_call slow_;                            \
        heartbeat_slow_begin(&slow_, (doing), (path), fd); \
        type result_ = (call);                             \
        heartbeat_slow_end(&slow_);                        \
        return result_;                                    \
    } while (0)

int io_open(const char *path, int flags, ...)
{
    mode_t mode = 0;
    if (flags & O_CREAT) {
        va_list args;
        va_start(args, flags);
        mode = va_arg(args, mode_t);
        va_end(args);
    }
    SLOW_CALL(int, "opening", path, -1, open(path, flags, mode));
}

/* While a descriptor is being closed, /proc does not have its name any more. */
int io_close(int fd)
{
    char link[64], path[2000];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = 0;
    SLOW_CALL(int, "closing", length > 0 ? path : "?", -1, close(fd));
}

ssize_t io_pread(int fd, void *data, size_t bytes, off_t offset)
{
    SLOW_CALL(ssize_t, "reading", NULL, fd, pread(fd, data, bytes, offset));
}

ssize_t io_pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    SLOW_CALL(ssize_t, "writing", NULL, fd, pwrite(fd, data, bytes, offset));
}

ssize_t io_write(int fd, const void *data, size_t bytes)
{
    SLOW_CALL(ssize_t, "writing", NULL, fd, write(fd, data, bytes));
}

int io_fsync(int fd)
{
    SLOW_CALL(int, "syncing", NULL, fd, fsync(fd));
}

int io_ftruncate(int fd, off_t bytes)
{
    SLOW_CALL(int, "cutting", NULL, fd, ftruncate(fd, bytes));
}

int io_allocate(int fd, off_t bytes)
{
    SLOW_CALL(int, "reserving space for", NULL, fd, fallocate(fd, 0, 0, bytes));
}

int io_rename(const char *from, const char *to)
{
    SLOW_CALL(int, "renaming", from, -1, rename(from, to));
}

int io_rename2(const char *from, const char *to, unsigned flags)
{
    SLOW_CALL(int, "renaming", from, -1, renameat2(AT_FDCWD, from, AT_FDCWD, to, flags));
}

int io_mkdir(const char *path, mode_t mode)
{
    SLOW_CALL(int, "making the folder", path, -1, mkdir(path, mode));
}

int io_remove(const char *path)
{
    SLOW_CALL(int, "deleting", path, -1, remove(path));
}

int io_unlink(const char *path)
{
    SLOW_CALL(int, "deleting", path, -1, unlink(path));
}

int io_link(const char *path, const char *name)
{
    SLOW_CALL(int, "linking", name, -1, link(path, name));
}

int io_symlink(const char *target, const char *path)
{
    SLOW_CALL(int, "linking", path, -1, symlink(target, path));
}

int io_stat(const char *path, struct stat *facts)
{
    SLOW_CALL(int, "looking at", path, -1, stat(path, facts));
}

int io_lstat(const char *path, struct stat *facts)
{
    SLOW_CALL(int, "looking at", path, -1, lstat(path, facts));
}

int io_access(const char *path, int mode)
{
    SLOW_CALL(int, "looking at", path, -1, access(path, mode));
}

DIR *io_opendir(const char *path)
{
    SLOW_CALL(DIR *, "listing", path, -1, memory_opendir(path));
}

struct dirent *io_readdir(DIR *folder)
{
    SLOW_CALL(struct dirent *, "listing", NULL, dirfd(folder), (errno = 0, readdir(folder)));
}

int io_closedir(DIR *folder)
{
    SLOW_CALL(int, "closing", NULL, dirfd(folder), closedir(folder));
}
