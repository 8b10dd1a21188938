/* ranks.h: runs the ranks of a job as forked processes inside a test: those of one supervisor, or of a launcher on
 * several nodes, which are all this machine: ranks of two nodes do not share memory and talk over TCP.
 *
 * The parent opens no device (OpenMP does not survive a fork). A rank that finds an error prints it and exits with
 * 1: cmocka's assertions belong to the parent. */
#pragma once

#include "comm/comm.h"
#include "comm/control/control_wait.h"
#include "comm/launch/bootstrap.h"
#include "comm/launch/launcher.h"
#include "core/clock.h"

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

/* Memory that parent and ranks share, zeroed. */
static inline void *ranks_memory(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}

/* ---- a launcher whose key-value exchange is shared memory ---------------- */

enum { RANKS_KEYS = 8 };

struct ranks_board {
    _Atomic int arrived; /* at fences */
    struct {
        char key[BOOTSTRAP_KEY_MAX + 1], value[BOOTSTRAP_VALUE_MAX + 1];
    } entries[RANKS_MAX][RANKS_KEYS];
    _Atomic int counts[RANKS_MAX];
};

struct ranks_launcher {
    struct launcher base;
    struct ranks_board *board;
    int fences;
};

static inline enum status ranks_put(struct launcher *launcher, const char *key, const char *value, double seconds,
                                    struct error *err)
{
    (void)seconds;
    (void)err;
    struct ranks_board *board = ((struct ranks_launcher *)launcher)->board;
    int at = board->counts[launcher->rank]++;
    CHECK(at < RANKS_KEYS);
    snprintf(board->entries[launcher->rank][at].key, sizeof board->entries[0][0].key, "%s", key);
    snprintf(board->entries[launcher->rank][at].value, sizeof board->entries[0][0].value, "%s", value);
    return STATUS_OK;
}

static inline enum status ranks_fence(struct launcher *launcher, double seconds, struct error *err)
{
    struct ranks_launcher *own = (struct ranks_launcher *)launcher;
    int target = ++own->fences * launcher->world;
    own->board->arrived++;
    for (double start = seconds_now(); own->board->arrived < target; usleep(1000))
        if (seconds_now() - start > seconds)
            return error_set(err, STATUS_PEER, "not all ranks have come to the fence");
    return STATUS_OK;
}

static inline enum status ranks_get(struct launcher *launcher, int rank, const char *key, char *values, double seconds,
                                    struct error *err)
{
    (void)seconds;
    struct ranks_board *board = ((struct ranks_launcher *)launcher)->board;
    for (int r = rank < 0 ? 0 : rank; r < (rank < 0 ? launcher->world : rank + 1);
         r++, values += BOOTSTRAP_VALUE_MAX + 1) {
        int at = 0;
        while (at < board->counts[r] && strcmp(board->entries[r][at].key, key) != 0)
            at++;
        if (at == board->counts[r])
            return error_set(err, STATUS_PEER, "rank %d has not put '%s'", r, key);
        memcpy(values, board->entries[r][at].value, sizeof board->entries[r][at].value);
    }
    return STATUS_OK;
}

static inline void ranks_nothing(struct launcher *launcher)
{
    (void)launcher;
}

/* This rank's bootstrap as bootstrap_connect() leaves it. nodes: (world) node of each rank. */
static inline void ranks_launched(struct bootstrap *boot, struct ranks_launcher *launcher, struct ranks_board *board,
                                  const int *nodes)
{
    static const struct launcher_verbs verbs = {.name = "test",
                                                .put = ranks_put,
                                                .fence = ranks_fence,
                                                .get = ranks_get,
                                                .finish = ranks_nothing,
                                                .release = ranks_nothing};
    *launcher =
        (struct ranks_launcher){.base = {.verbs = &verbs, .rank = boot->rank, .world = boot->world}, .board = board};
    boot->launcher = &launcher->base;
    boot->shared_fd = -1;
    boot->places = calloc((size_t)boot->world, sizeof *boot->places);
    CHECK(boot->places);
    boot->node = nodes[boot->rank];
    boot->local_world = 0;
    for (int r = 0; r < boot->world; r++) {
        struct rank_place *place = &boot->places[r];
        place->node = nodes[r];
        for (int before = 0; before < r; before++)
            place->local_rank += nodes[before] == nodes[r];
        boot->num_nodes = nodes[r] >= boot->num_nodes ? nodes[r] + 1 : boot->num_nodes;
        boot->local_world += nodes[r] == boot->node;
        snprintf(place->host, sizeof place->host, "node%d", nodes[r]);
    }
    boot->local_rank = boot->places[boot->rank].local_rank;
    snprintf(boot->host, sizeof boot->host, "node%d", boot->node);
    snprintf(boot->job_id, sizeof boot->job_id, "test.%d", getppid());
    memcpy(boot->secret, "a secret that every rank knows!", sizeof boot->secret);
    /* first memory, then the process: everybody needs the numbers of all */
    char value[BOOTSTRAP_VALUE_MAX + 1];
    struct error error;
    snprintf(value, sizeof value, "%d", (int)getpid());
    ranks_put(boot->launcher, "pid", value, 10, &error);
    CHECK_OK(ranks_fence(boot->launcher, 60, &error));
    for (int r = 0; r < boot->world; r++) {
        CHECK_OK(ranks_get(boot->launcher, r, "pid", value, 10, &error));
        boot->places[r].pid = atoi(value);
    }
}

/* ---- running ------------------------------------------------------------- */

/* Forks `world` ranks that run body(bootstrap, context) and exit with 0. nodes: (world) node of each rank, for ranks of
 * a launcher; NULL: those of a supervisor. */
static inline void ranks_start(struct ranks *ranks, int world, const int *nodes,
                               void (*body)(struct bootstrap *, void *), void *context)
{
    struct error error;
    struct ranks_board *board = nodes ? ranks_memory(sizeof *board) : NULL;
    ranks->world = world;
    ranks->fd = -1;
    const struct control_shape shape = {.world = world, .local_world = world, .num_nodes = 1};
    if (world > 1 && !nodes)
        CHECK_OK(control_create(&shape, &ranks->fd, &error));
    fflush(NULL);
    for (int r = 0; r < world; r++) {
        ranks->pids[r] = fork();
        CHECK(ranks->pids[r] >= 0);
        if (ranks->pids[r] == 0) {
            alarm(RANKS_LIMIT);
            struct ranks_launcher launcher;
            struct bootstrap bootstrap = {.rank = r,
                                          .world = world,
                                          .local_rank = r,
                                          .local_world = world,
                                          .num_nodes = 1,
                                          .host = "here",
                                          .shared_fd = ranks->fd,
                                          .cores = 1};
            if (nodes)
                ranks_launched(&bootstrap, &launcher, board, nodes);
            body(&bootstrap, context);
            bootstrap_release(&bootstrap);
            exit(0); /* not _exit: leaks are looked for */
        }
    }
    if (board)
        munmap(board, sizeof *board);
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
static inline bool ranks_run(int world, const int *nodes, void (*body)(struct bootstrap *, void *), void *context)
{
    struct ranks ranks;
    bool good = true;
    ranks_start(&ranks, world, nodes, body, context);
    for (int r = 0; r < world; r++)
        good &= ranks_wait(&ranks, r) == 0;
    ranks_end(&ranks);
    return good;
}
