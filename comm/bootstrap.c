/* bootstrap.c: where this process's rank comes from. See bootstrap.h.
 *
 * Local ranks get three variables from their supervisor; they count before anything else. Otherwise the variables of
 * launchers are looked at: one rank is as good as alone, several are refused until their bootstraps exist, and a
 * half-set environment is refused at all times, because ranks that each believe to be alone would write one run folder.
 */
#include "comm/bootstrap.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char local_rank_name[] = "ZTRAIN_LOCAL_RANK", local_world_name[] = "ZTRAIN_LOCAL_WORLD",
                  local_fd_name[] = "ZTRAIN_LOCAL_FD";

/* Launchers by the variables that give a rank and the number of ranks. `only_with`: the variables count only if this
 * one is set, too: a batch script has SLURM_PROCID and SLURM_NTASKS without being a rank. */
static const struct launcher_variables {
    const char *name, *rank, *world, *only_with;
} launchers[] = {
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID"},
    {"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID"},
    {"srun (PMI)", "PMI_RANK", "PMI_SIZE", NULL},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", NULL},
    {"torchrun", "RANK", "WORLD_SIZE", NULL},
};

/* A whole non-negative number, or -1. */
static int parse_number(const char *text)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    return errno || end == text || *end || value < 0 || value > INT_MAX ? -1 : (int)value;
}

static enum status check_launcher(const struct launcher_variables *launcher, struct error *err)
{
    const char *rank = getenv(launcher->rank), *world = getenv(launcher->world);
    if ((launcher->only_with && !getenv(launcher->only_with)) || (!rank && !world))
        return STATUS_OK;
    if (!rank || !world) {
        if (launcher->only_with) /* another line of the table has the pair that this Slurm sets */
            return STATUS_OK;
        error_set(err, STATUS_USAGE, "%s is set and %s is not: half of an environment of %s",
                  rank ? launcher->rank : launcher->world, rank ? launcher->world : launcher->rank, launcher->name);
        return error_hint(err, "unset it, or start ranks on this machine with --local-gpus N");
    }
    int r = parse_number(rank), n = parse_number(world);
    if (r < 0 || n < 1 || r >= n) {
        error_set(err, STATUS_USAGE, "%s=%s and %s=%s are no rank and number of ranks", launcher->rank, rank,
                  launcher->world, world);
        return error_hint(err, "unset them, or start ranks on this machine with --local-gpus N");
    }
    if (n > 1) {
        error_set(err, STATUS_USAGE, "rank %d of %d started by %s (%s, %s): not supported yet", r, n, launcher->name,
                  launcher->rank, launcher->world);
        return error_hint(err, "start one task, with --local-gpus %d for %d ranks on this machine", n, n);
    }
    return STATUS_OK;
}

enum status bootstrap_check_launcher(struct error *err)
{
    for (size_t i = 0; i < COUNT_OF(launchers); i++)
        TRY(check_launcher(&launchers[i], err));
    return STATUS_OK;
}

bool bootstrap_is_local_rank(void)
{
    return getenv(local_rank_name) != NULL;
}

void bootstrap_host(char *host, size_t size)
{
    ASSERT(size > 1);
    if (gethostname(host, size) != 0)
        snprintf(host, size, "localhost");
    host[size - 1] = 0;
}

int bootstrap_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN); /* more cores than a cpu_set_t holds */
    return online > 0 ? (int)online : 1;
}

static enum status local_ranks(struct bootstrap *bootstrap, struct error *err)
{
    const char *rank = getenv(local_rank_name), *world = getenv(local_world_name), *fd = getenv(local_fd_name);
    int r = rank ? parse_number(rank) : -1, n = world ? parse_number(world) : -1, shared = fd ? parse_number(fd) : -1;
    if (r < 0 || n < 1 || r >= n || n > BOOTSTRAP_MAX_RANKS || shared < 0 || fcntl(shared, F_GETFD) < 0) {
        error_set(err, STATUS_USAGE, "%s=%s, %s=%s, %s=%s do not describe a local rank", local_rank_name,
                  rank ? rank : "", local_world_name, world ? world : "", local_fd_name, fd ? fd : "");
        return error_hint(err, "--local-gpus N sets them; do not set them by hand");
    }
    fcntl(shared, F_SETFD, FD_CLOEXEC); /* what this rank executes is no rank */
    bootstrap->rank = bootstrap->local_rank = r;
    bootstrap->world = bootstrap->local_world = n;
    bootstrap->shared_fd = shared;
    snprintf(bootstrap->source, sizeof bootstrap->source, "--local-gpus %d", n);
    return STATUS_OK;
}

/* Alone, or ranks of one supervisor: all on this node. */
static enum status places_here(struct bootstrap *bootstrap, struct error *err)
{
    bootstrap->places = calloc((size_t)bootstrap->world, sizeof *bootstrap->places);
    if (!bootstrap->places)
        return error_set(err, STATUS_DEVICE, "out of memory");
    for (int r = 0; r < bootstrap->world; r++) {
        struct rank_place *place = &bootstrap->places[r];
        place->local_rank = r;
        place->pid = r == bootstrap->rank ? (int)getpid() : 0;
        snprintf(place->host, sizeof place->host, "%.63s", bootstrap->host);
    }
    return STATUS_OK;
}

enum status bootstrap_connect(struct bootstrap *bootstrap, double timeout_seconds, const char *interface,
                              struct error *err)
{
    (void)interface; /* for the launchers that need a store of our own */
    bootstrap->start_seconds = fmax(timeout_seconds, 10) + 0.25 * bootstrap->world;
    if (!bootstrap->places)
        TRY(places_here(bootstrap, err));
    return STATUS_OK;
}

/* No launcher is supported yet that starts several ranks, so these have no peers. */
enum status bootstrap_put(struct bootstrap *bootstrap, const char *key, const char *value, struct error *err)
{
    (void)value;
    return error_set(err, STATUS_BUG, "rank %d has no launcher to put '%s'", bootstrap->rank, key);
}

enum status bootstrap_fence(struct bootstrap *bootstrap, struct error *err)
{
    return error_set(err, STATUS_BUG, "rank %d has no launcher for a fence", bootstrap->rank);
}

enum status bootstrap_get(struct bootstrap *bootstrap, int rank, const char *key, char *value, struct error *err)
{
    value[0] = 0;
    return error_set(err, STATUS_BUG, "rank %d has no launcher to get '%s' of rank %d", bootstrap->rank, key, rank);
}

enum status bootstrap_exchange(struct bootstrap *bootstrap, const char *key, const void *own, size_t bytes, void *all,
                               struct error *err)
{
    ASSERT(bytes <= BOOTSTRAP_EXCHANGE_MAX);
    if (bootstrap->world > 1)
        return error_set(err, STATUS_BUG, "rank %d has no launcher to exchange '%s'", bootstrap->rank, key);
    memcpy(all, own, bytes);
    return STATUS_OK;
}

void bootstrap_abort(struct bootstrap *bootstrap, enum status code, const char *text)
{
    (void)bootstrap, (void)code, (void)text;
}

void bootstrap_finish(struct bootstrap *bootstrap)
{
    (void)bootstrap;
}

void bootstrap_release(struct bootstrap *bootstrap)
{
    free(bootstrap->places);
    bootstrap->places = NULL;
}

enum status bootstrap_init(struct bootstrap *bootstrap, struct error *err)
{
    *bootstrap = (struct bootstrap){
        .world = 1, .local_world = 1, .num_nodes = 1, .source = "alone", .shared_fd = -1, .cores = bootstrap_cores()};
    bootstrap_host(bootstrap->host, sizeof bootstrap->host);
    const char *job = getenv("SLURM_JOB_ID");
    snprintf(bootstrap->job_id, sizeof bootstrap->job_id, "%s", job ? job : "");
    if (getenv(local_rank_name) || getenv(local_world_name) || getenv(local_fd_name))
        return local_ranks(bootstrap, err);
    return bootstrap_check_launcher(err);
}

void bootstrap_local_env(int rank, int world, int shared_fd)
{
    const struct {
        const char *name;
        int value;
    } variables[] = {{local_rank_name, rank}, {local_world_name, world}, {local_fd_name, shared_fd}};
    for (size_t i = 0; i < COUNT_OF(variables); i++) {
        char text[16];
        snprintf(text, sizeof text, "%d", variables[i].value);
        setenv(variables[i].name, text, 1);
    }
    fcntl(shared_fd, F_SETFD, 0);
}
