/* SPDX-License-Identifier: Apache-2.0 */
/* slow_files.c: preloaded, it makes one call on a file slow: the first SLOW_CALL (pread, write, fsync or close) of rank
 * SLOW_RANK of --local-gpus on a file whose path has SLOW_FILE in it takes SLOW_SECONDS. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static void wait_in(const char *name, int fd)
{
    static atomic_int waited;
    const char *call = getenv("SLOW_CALL"), *file = getenv("SLOW_FILE"), *seconds = getenv("SLOW_SECONDS");
    const char *rank = getenv("ZTRAIN_LOCAL_RANK"), *slow_rank = getenv("SLOW_RANK");
    char link[64], path[4096];
    if (!call || !file || !seconds || !rank || !slow_rank || strcmp(call, name) != 0 || strcmp(rank, slow_rank) != 0)
        return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = 0;
    if (!strstr(path, file) || atomic_exchange(&waited, 1))
        return;
    struct timespec pause = {.tv_sec = atoi(seconds)};
    while (nanosleep(&pause, &pause) != 0)
        continue;
}

#define REAL(result, name, parameters) \
    wait_in(#name, fd);                \
    result(*real) parameters;          \
    *(void **)&real = dlsym(RTLD_NEXT, #name)

ssize_t pread64(int fd, void *data, size_t bytes, off_t offset);
ssize_t pread64(int fd, void *data, size_t bytes, off_t offset)
{
    wait_in("pread", fd);
    ssize_t (*real)(int, void *, size_t, off_t);
    *(void **)&real = dlsym(RTLD_NEXT, "pread64");
    return real(fd, data, bytes, offset);
}

ssize_t write(int fd, const void *data, size_t bytes)
{
    REAL(ssize_t, write, (int, const void *, size_t));
    return real(fd, data, bytes);
}

int fsync(int fd)
{
    REAL(int, fsync, (int));
    return real(fd);
}

int close(int fd)
{
    REAL(int, close, (int));
    return real(fd);
}
