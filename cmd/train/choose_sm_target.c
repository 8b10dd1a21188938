#include "cmd/train/choose_sm_target.h"

#include "core/log.h"

/* With auto, a GPU gives up a sixth of its multiprocessors at most: smaller GPUs have no NVLink that needs
 * so many blocks. Only at stage 3 every micro-batch's products run beside collectives; docs/performance.md has the
 * share of time from which the limit pays. */
enum { AUTO_LEAST = 6 * SM_TARGET_CTAS };

static enum status refuse_limit(const struct device *device, struct error *err)
{
    if (device->kind == DEVICE_CPU)
        error_set(err, STATUS_USAGE, "train.sm_count_target is true, but the CPU device has no multiprocessors");
    else
        error_set(err, STATUS_USAGE,
                  "train.sm_count_target is true, but %s has only %d multiprocessors, and NCCL gets %d", device->name,
                  device->multiprocessors, SM_TARGET_CTAS);
    return error_hint(err, "auto limits matrix products where it helps");
}

enum status choose_sm_target(const struct run_spec *spec, const struct device *device, int world, int *ctas,
                             struct error *err)
{
    const bool forced = spec->train.sm_count_target == SPEC_SM_TARGET_ON;
    *ctas = 0;
    if (spec->train.sm_count_target == SPEC_SM_TARGET_OFF)
        return STATUS_OK;
    if (forced && device->multiprocessors <= SM_TARGET_CTAS)
        return refuse_limit(device, err);
    const bool beside = world > 1 && spec->zero.stage == 3 && spec->zero.overlap_comm;
    if (forced || (beside && device->multiprocessors >= AUTO_LEAST))
        *ctas = SM_TARGET_CTAS;
    return STATUS_OK;
}

void apply_sm_target(struct device *device, int ctas, bool log)
{
    if (ctas == 0)
        return;
    device_leave_multiprocessors(device, ctas);
    if (log)
        log_info("matrix products use %d of the GPU's %d multiprocessors and leave %d to NCCL (train.sm_count_target)",
                 device->multiprocessors - ctas, device->multiprocessors, ctas);
}
