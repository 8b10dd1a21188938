#include "cmd/engine/choose_sm_target.h"

#include "core/log.h"
#include "core/memory.h"

#include <stdlib.h>
#include <string.h>

/* With auto, a GPU gives up a sixth of its multiprocessors at most: smaller GPUs have no NVLink that needs
 * so many blocks. Only at stage 3 every micro-batch's products run beside collectives; docs/performance.md has the
 * share of time from which the limit pays. */
enum { AUTO_LEAST = 6 * SM_TARGET_CTAS };

/* A rank's GPU. */
struct gpu_size {
    int rank, multiprocessors; /* of the CPU: 0 */
    char name[sizeof((struct device *)NULL)->name];
};

/* The smallest GPU of all ranks; of equal ones that of the lowest rank. comm is NULL in a plan, which has its own. */
static enum status find_smallest(const struct device *device, struct comm *comm, struct gpu_size *smallest,
                                 struct error *err)
{
    struct gpu_size own;
    memset(&own, 0, sizeof own); /* its padding is sent as well */
    own.rank = comm ? comm_rank(comm) : 0;
    own.multiprocessors = device->multiprocessors;
    memcpy(own.name, device->name, sizeof own.name);
    *smallest = own;
    if (!comm)
        return STATUS_OK;
    const int world = comm_world(comm);
    struct gpu_size *all = memory_zeroed((size_t)world, sizeof *all);
    const enum status status = comm_exchange(comm, &own, sizeof own, all, err);
    for (int r = world - 1; status == STATUS_OK && r >= 0; r--)
        if (all[r].multiprocessors <= smallest->multiprocessors)
            *smallest = all[r];
    free(all);
    return status;
}

static enum status refuse_limit(const struct device *device, const struct bootstrap *boot,
                                const struct gpu_size *smallest, struct error *err)
{
    char who[128] = ""; /* rank 0 prints it for all, and its messages begin with its name */
    if (smallest->rank != 0)
        snprintf(who, sizeof who, "rank %d on %s: ", smallest->rank, boot->places[smallest->rank].host);
    if (device->kind == DEVICE_CPU)
        error_set(err, STATUS_USAGE, "train.sm_count_target is true, but the CPU device has no multiprocessors");
    else
        error_set(err, STATUS_USAGE,
                  "train.sm_count_target is true, but %s%s has only %d multiprocessors, and NCCL gets %d", who,
                  smallest->name, smallest->multiprocessors, SM_TARGET_CTAS);
    error_blame(err, *who && device->kind != DEVICE_CPU ? smallest->rank : -1, FAILURE_NONE);
    return error_hint(err, "auto limits matrix products where it helps");
}

enum status choose_sm_target(const struct run_spec *spec, const struct device *device, int world, struct comm *comm,
                             const struct bootstrap *boot, int *ctas, struct error *err)
{
    const bool forced = spec->train.sm_count_target == SPEC_SM_TARGET_ON;
    const bool beside = world > 1 && spec->zero.stage == 3 && spec->zero.overlap_comm;
    struct gpu_size smallest;
    *ctas = 0;
    if (spec->train.sm_count_target == SPEC_SM_TARGET_OFF || !(forced || beside))
        return STATUS_OK;
    TRY(find_smallest(device, comm, &smallest, err));
    if (forced && smallest.multiprocessors <= SM_TARGET_CTAS)
        return refuse_limit(device, boot, &smallest, err);
    if (forced || smallest.multiprocessors >= AUTO_LEAST)
        *ctas = SM_TARGET_CTAS;
    return STATUS_OK;
}

void apply_sm_target(const struct run_spec *spec, struct device *device, const struct comm *comm, int ctas, bool log)
{
    if (ctas == 0 || !comm)
        return;
    if (!comm_can_capture(comm)) {
        if (log && spec->train.sm_count_target == SPEC_SM_TARGET_ON)
            log_info("train.sm_count_target: true has no effect: ranks share a GPU and do not use NCCL");
        return;
    }
    device_leave_multiprocessors(device, ctas);
    if (log)
        log_info("matrix products use %d of the GPU's %d multiprocessors and leave %d to NCCL (train.sm_count_target)",
                 device->multiprocessors - ctas, device->multiprocessors, ctas);
}
