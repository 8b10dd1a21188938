/* choose_device.h: which device this rank computes on: one kind for all ranks of a job, and of several GPUs its own. */
#ifndef ZTRAIN_CMD_TRAIN_CHOOSE_DEVICE_H
#define ZTRAIN_CMD_TRAIN_CHOOSE_DEVICE_H

#include "comm/comm.h"
#include "comm/launch/bootstrap.h"
#include "core/spec/spec.h"
#include "gpu/device.h"

struct device_choice {
    enum device_kind kind;
    int index;      /* of the GPU, as device_open() takes it */
    bool may_share; /* ranks that have one GPU are meant to (ZTRAIN_SHARE_GPUS=1) */
    bool to_plan;   /* a plan for GPUs where there is none: device_plan_open() */
};

/* Collective, unless comm and boot are NULL (a plan, which needs no GPU). cuda: STATUS_DEVICE if some rank has no GPU
 * to use, STATUS_USAGE if a node has more ranks than GPUs; auto: the CPU for all if some rank has none, and says so. */
enum status choose_device(const struct run_spec *spec, struct comm *comm, const struct bootstrap *boot,
                          struct device_choice *choice, struct error *err);

#endif
