/* io.h: the system calls on files, as POSIX has them, for a rank whose peers wait for it.
 *
 * Any of them may wait for a disk or a file server for minutes. Each is the call of its name with a slow call
 * (core/progress.h) around it: the rank counts as alive up to comm.io_timeout_seconds, and is named with the file after
 * that. Results and errno are those of the call. Calls that may fail on purpose in test builds go through
 * core/faults.h, which uses these. For what has no wrapper here (stdio, glob) there are progress_slow_begin() and
 * _end(). */
#ifndef ZTRAIN_CORE_IO_H
#define ZTRAIN_CORE_IO_H

#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/types.h>

int io_open(const char *path, int flags, ...);
int io_close(int fd);
ssize_t io_pread(int fd, void *data, size_t bytes, off_t offset);
ssize_t io_write(int fd, const void *data, size_t bytes);
int io_fsync(int fd);
int io_ftruncate(int fd, off_t bytes);

int io_rename(const char *from, const char *to);
int io_rename2(const char *from, const char *to, unsigned flags); /* renameat2() */
int io_mkdir(const char *path, mode_t mode);
int io_remove(const char *path);
int io_unlink(const char *path);
int io_link(const char *path, const char *name);
int io_symlink(const char *target, const char *path);
int io_stat(const char *path, struct stat *facts);
int io_lstat(const char *path, struct stat *facts);
int io_access(const char *path, int mode);

DIR *io_opendir(const char *path); /* NULL is never for want of memory (core/memory.h) */
struct dirent *io_readdir(DIR *folder);
int io_closedir(DIR *folder);

#endif
