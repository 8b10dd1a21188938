/* SPDX-License-Identifier: Apache-2.0 */
/* io.h: POSIX calls on files, for a rank whose peers wait for it: each makes the system call of its name inside a slow
 * call (core/heartbeat.h), with its result and errno. Calls that fail on purpose in test builds: core/faults.h. Others
 * (stdio, glob) stand between heartbeat_slow_begin() and heartbeat_slow_end(). */
#pragma once

#include <dirent.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/types.h>

int io_open(const char *path, int flags, ...);
int io_close(int fd);
ssize_t io_pread(int fd, void *data, size_t bytes, off_t offset);
ssize_t io_pwrite(int fd, const void *data, size_t bytes, off_t offset);
ssize_t io_write(int fd, const void *data, size_t bytes);
int io_fsync(int fd);
int io_sync_range(int fd, off_t from, off_t bytes, unsigned flags); /* sync_file_range() */
int io_ftruncate(int fd, off_t bytes);
int io_allocate(int fd, off_t bytes); /* fallocate() from the start of the file */

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

DIR *io_opendir(const char *path);      /* NULL never means a lack of memory (core/memory.h) */
struct dirent *io_readdir(DIR *folder); /* NULL: the end, with errno 0, or a failure */
int io_closedir(DIR *folder);

/* A folder, or NULL: the end of its block closes it. */
#define OWNED_DIR RELEASED(io_drop_dir) DIR
static inline void io_drop_dir(DIR **entries)
{
    if (*entries) io_closedir(*entries);
}
