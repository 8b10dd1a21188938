/* ranks.h: runs the ranks of a job as forked processes inside a test.
 *
 * The parent opens no device (OpenMP does not survive a fork). A rank that finds something wrong says so and exits with
 * 1: cmocka's assertions belong to the parent. */
#ifndef ZTRAIN_TESTS_RANKS_H
#define ZTRAIN_TESTS_RANKS_H

#include "comm/bootstrap.h"
#include "comm/comm.h"
#include "comm/control.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                  \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition); \
            _exit(1);                                                                     \
        }                                                                                 \
    } while (0)
#define CHECK_OK(expression)                                                                 \
    do {                                                                                     \
        if ((expression) != STATUS_OK) {                                                     \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #expression, error.text); \
            _exit(1);                                                                        \
        }                                                                                    \
    } while (0)

enum {
    RANKS_MAX = 64,
    RANKS_LIMIT = 120 /* seconds until a rank that hangs is killed */
};

struct ranks {
    int world, fd;
    pid_t pids[RANKS_MAX];
};

static inline double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Forks `world` ranks that run body(bootstrap, context) and exit with 0. */
static inline void ranks_start(struct ranks *ranks, int world, void (*body)(const struct bootstrap *, void *),
                               void *context)
{
    struct error error;
    ranks->world = world;
    ranks->fd = -1;
    const struct control_shape shape = {.world = world, .local_world = world, .num_nodes = 1};
    if (world > 1)
        CHECK_OK(control_create(&shape, &ranks->fd, &error));
    fflush(NULL);
    for (int r = 0; r < world; r++) {
        ranks->pids[r] = fork();
        CHECK(ranks->pids[r] >= 0);
        if (ranks->pids[r] == 0) {
            alarm(RANKS_LIMIT);
            struct bootstrap bootstrap = {.rank = r,
                                          .world = world,
                                          .local_rank = r,
                                          .local_world = world,
                                          .num_nodes = 1,
                                          .host = "here",
                                          .shared_fd = ranks->fd,
                                          .cores = 1};
            body(&bootstrap, context);
            exit(0); /* not _exit: leaks are looked for */
        }
    }
}

/* wait status of one rank */
static inline int ranks_wait(struct ranks *ranks, int rank)
{
    int status = -1;
    while (waitpid(ranks->pids[rank], &status, 0) < 0)
        ;
    return status;
}

static inline void ranks_end(struct ranks *ranks)
{
    if (ranks->fd >= 0)
        close(ranks->fd);
}

/* Runs all ranks to their end; whether all exited with 0. */
static inline bool ranks_run(int world, void (*body)(const struct bootstrap *, void *), void *context)
{
    struct ranks ranks;
    bool good = true;
    ranks_start(&ranks, world, body, context);
    for (int r = 0; r < world; r++)
        good &= ranks_wait(&ranks, r) == 0;
    ranks_end(&ranks);
    return good;
}

/* Memory that parent and ranks share, zeroed. */
static inline void *ranks_memory(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}

#endif
