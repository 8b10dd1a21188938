#include "comm/agree.h"

#include "core/memory.h"

#include <stdlib.h>

static enum status exchange_by_comm(void *comm, const void *own, size_t bytes, void *all, struct error *err)
{
    return comm_exchange(comm, own, bytes, all, err);
}

enum status agree_with(struct comm *comm, struct outcome *own, size_t bytes, void *all, enum status status, int *lowest,
                       struct error *err)
{
    const struct verdict_ranks ranks = {comm_rank(comm), comm_world(comm), exchange_by_comm, comm};
    return verdict_reach(&ranks, own, bytes, all, status, lowest, err);
}

enum status agree(struct comm *comm, enum status status, struct error *err)
{
    int world = comm_world(comm), lowest;
    if (world == 1)
        return status;
    struct outcome own, *all = memory_alloc((size_t)world * sizeof *all);
    status = agree_with(comm, &own, sizeof own, all, status, &lowest, err);
    free(all);
    return status;
}

/* What a rank brings to agree_at_start(). */
struct start {
    struct outcome outcome;
    uint64_t fingerprint;
};

/* All ranks have the same table, so all find the same difference. Rank 0 prints it. */
static enum status check_fingerprints(const struct bootstrap *boot, const struct start *all, struct error *err)
{
    int r = 1;
    while (r < boot->world && all[r].fingerprint == all[0].fingerprint)
        r++;
    if (r == boot->world)
        return STATUS_OK;
    error_set(err, STATUS_USAGE, "rank %d on %s has another run spec or other options than rank 0 on %s", r,
              boot->places[r].host, boot->places[0].host);
    error_hint(err, "one run spec for all, on a file system that every node sees");
    if (boot->rank != 0)
        error_mark_printed(err);
    return STATUS_USAGE;
}

enum status agree_at_start(struct bootstrap *boot, uint64_t fingerprint, enum status status, struct error *err)
{
    if (boot->world == 1 || !boot->launcher)
        return status;
    int lowest;
    struct start own = {.fingerprint = fingerprint}, *all = memory_zeroed((size_t)boot->world, sizeof *all);
    status = verdict_at_start(boot, "start", &own.outcome, sizeof own, all, status, &lowest, err);
    if (status == STATUS_OK)
        status = check_fingerprints(boot, all, err);
    free(all);
    return status;
}
