/* SPDX-License-Identifier: Apache-2.0 */
/* bad_disk.c: a disk that fails for a while, or is slow; loaded with LD_PRELOAD into the program under test.
 *
 * ZTRAIN_TEST_DISK names a file, which may come and go while the program runs. Its lines:
 *
 *   CALL ERRNO PART    CALL is write, fsync, pread, pwrite, fallocate, open, opendir, stat, access or mkdir: those of a file whose path
 *                      has PART in it fail with that errno; of a write of more than one byte the first byte is written, and the
 *                      next write to the file fails, as on a disk that fills up
 *   CALL hold PART     they wait until the file has no such line any more
 *   CALL slow PART     they take 15 ms
 *   CALL exit PART     they end the process with exit(1), as a library might
 *   start hold PART    a process that begins waits; its "path" is rank-N, restart (of the supervisor) or first
 *   start kill PART    it is killed
 *   start broken PART  it ends with ztrain's exit code of a broken device, 8 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define REAL(type, name) ((type)dlsym(RTLD_NEXT, name))

static const struct {
    const char *name;
    int code;
} codes[] = {{"ENOSPC", ENOSPC}, {"EIO", EIO},       {"ESTALE", ESTALE}, {"EACCES", EACCES},
             {"EDQUOT", EDQUOT}, {"EAGAIN", EAGAIN}, {"EROFS", EROFS}, {"EPERM", EPERM}, {"EFBIG", EFBIG}, {"hold", -1},    {"slow", -2},
             {"exit", -3}, {"kill", -4}, {"broken", -5}};

/* The file's instruction for this call: 0, an errno, or -1, hold. */
static int look(const char *call, const char *path)
{
    const char *control = getenv("ZTRAIN_TEST_DISK");
    char name[16], what[16], part[256];
    int code = 0;
    FILE *file = control && !strstr(path, control) && access(control, F_OK) == 0 ? fopen(control, "re") : NULL;
    if (!file)
        return 0;
    while (!code && fscanf(file, "%15s %15s %255s", name, what, part) == 3)
        for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
            if (!strcmp(name, call) && !strcmp(what, codes[i].name) && strstr(path, part))
                code = codes[i].code;
    fclose(file);
    return code;
}

static int verdict(const char *call, const char *path)
{
    int code;
    while ((code = look(call, path)) == -1)
        usleep(2000);
    if (code == -2)
        usleep(15000);
    if (code == -3)
        exit(1);
    if (code == -4)
        kill(getpid(), SIGKILL);
    if (code == -5)
        _exit(8);
    return code > 0 ? code : 0;
}

__attribute__((constructor)) static void start(void)
{
    char rank[32];
    snprintf(rank, sizeof rank, "rank-%s", getenv("ZTRAIN_LOCAL_RANK") ? getenv("ZTRAIN_LOCAL_RANK") : "");
    verdict("start", rank[5] ? rank : getenv("ZTRAIN_RESTART") ? "restart" : "first");
}

static int verdict_of(const char *call, int fd)
{
    char link[64], path[4096];
    int reason = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    errno = reason;
    path[n > 0 ? n : 0] = 0;
    return getenv("ZTRAIN_TEST_DISK") ? verdict(call, path) : 0;
}

static atomic_int written_in_part = -1; /* the descriptor whose last write wrote one byte */

ssize_t write(int fd, const void *data, size_t bytes)
{
    int code = verdict_of("write", fd);
    ssize_t (*real)(int, const void *, size_t) = REAL(ssize_t(*)(int, const void *, size_t), "write");
    if (!code)
        return real(fd, data, bytes);
    if (bytes > 1 && atomic_exchange(&written_in_part, fd) != fd)
        return real(fd, data, 1);
    atomic_store(&written_in_part, -1);
    errno = code;
    return -1;
}

ssize_t pread(int fd, void *data, size_t bytes, off_t offset)
{
    int code = verdict_of("pread", fd);
    if (!code)
        return REAL(ssize_t(*)(int, void *, size_t, off_t), "pread64")(fd, data, bytes, offset);
    errno = code;
    return -1;
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    int code = verdict_of("pwrite", fd);
    if (!code)
        return REAL(ssize_t(*)(int, const void *, size_t, off_t), "pwrite64")(fd, data, bytes, offset);
    errno = code;
    return -1;
}

ssize_t pwrite64(int fd, const void *data, size_t bytes, off_t offset)
{
    return pwrite(fd, data, bytes, offset);
}

int fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    int code = verdict_of("fallocate", fd);
    if (!code)
        return REAL(int (*)(int, int, off_t, off_t), "fallocate64")(fd, mode, offset, bytes);
    errno = code;
    return -1;
}

int fallocate64(int fd, int mode, off_t offset, off_t bytes)
{
    return fallocate(fd, mode, offset, bytes);
}

ssize_t pread64(int fd, void *data, size_t bytes, off_t offset)
{
    return pread(fd, data, bytes, offset);
}

int fsync(int fd)
{
    int code = verdict_of("fsync", fd);
    if (!code)
        return REAL(int (*)(int), "fsync")(fd);
    errno = code;
    return -1;
}

int access(const char *path, int mode)
{
    const char *control = getenv("ZTRAIN_TEST_DISK"); /* look() asks for it with this very call */
    int code = control && strcmp(path, control) != 0 ? verdict("access", path) : 0;
    if (!code)
        return REAL(int (*)(const char *, int), "access")(path, mode);
    errno = code;
    return -1;
}

DIR *opendir(const char *path)
{
    int code = verdict("opendir", path);
    if (!code)
        return REAL(DIR *(*)(const char *), "opendir")(path);
    errno = code;
    return NULL;
}

int mkdir(const char *path, mode_t mode)
{
    int code = verdict("mkdir", path);
    if (!code)
        return REAL(int (*)(const char *, mode_t), "mkdir")(path, mode);
    errno = code;
    return -1;
}

int stat(const char *path, struct stat *facts)
{
    int code = verdict("stat", path);
    if (!code)
        return REAL(int (*)(const char *, struct stat *), "stat64")(path, facts);
    errno = code;
    return -1;
}

int stat64(const char *path, struct stat64 *facts)
{
    return stat(path, (struct stat *)facts);
}

int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0;
    va_end(args);
    int code = verdict("open", path);
    if (!code)
        return REAL(int (*)(const char *, int, ...), "open64")(path, flags, mode);
    errno = code;
    return -1;
}

int open64(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0;
    va_end(args);
    return open(path, flags, mode);
}
