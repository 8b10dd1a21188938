/* SPDX-License-Identifier: Apache-2.0 */
/* rank_under_test.c: what tests do to a rank from within; loaded with LD_PRELOAD.
 *
 *   ZTRAIN_TEST_PAUSE=MS         rank 0 rests so long at each step's line of metrics.jsonl: a tiny model's run then takes
 *                                its time on a fast machine and on a busy one alike, without using the cores
 *   ZTRAIN_TEST_LEAVE=FILE       when the file contains "RANK CODE", that rank ends with _exit(CODE), without a word */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static ssize_t (*real_write)(int, const void *, size_t);
static unsigned pause_us;

ssize_t write(int fd, const void *data, size_t bytes)
{
    static const char step[] = "{\"step\":";
    if (!real_write)
        real_write = (ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    if (pause_us && bytes > sizeof step && !memcmp(data, step, sizeof step - 1))
        usleep(pause_us);
    return real_write(fd, data, bytes);
}

static void *leave_when_told(void *path)
{
    const char *own = getenv("SLURM_PROCID");
    for (;;) {
        int rank, code;
        FILE *file = fopen(path, "re");
        if (file) {
            if (fscanf(file, "%d %d", &rank, &code) == 2 && rank == atoi(own))
                _exit(code);
            fclose(file);
        }
        usleep(2000);
    }
    return NULL;
}

__attribute__((constructor)) static void start(void)
{
    pthread_t thread;
    char *path = getenv("ZTRAIN_TEST_LEAVE"), *milliseconds = getenv("ZTRAIN_TEST_PAUSE");
    if (strcmp(program_invocation_short_name, "ztrain"))
        return;
    if (milliseconds)
        pause_us = 1000 * (unsigned)atoi(milliseconds);
    if (path && getenv("SLURM_PROCID"))
        pthread_create(&thread, NULL, leave_when_told, path);
}
