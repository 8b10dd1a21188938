/* choose_device.h: the device that this rank computes on: one kind for all ranks of a job, and a different GPU for
 * each rank of a node. */
#pragma once

#include "comm/comm.h"
#include "comm/launch/bootstrap.h"
#include "core/spec/spec.h"
#include "gpu/device.h"

struct device_choice {
    enum device_kind kind;
    int index;      /* the GPU's number for device_open() */
    bool may_share; /* several ranks may use one GPU (ZTRAIN_SHARE_GPUS=1) */
    bool to_plan;   /* a plan for a GPU on a machine without one: simulated_device_open() */
};

/* Collective, unless comm and boot are NULL (a plan, which needs no GPU). With train.device: cuda it fails with
 * STATUS_DEVICE if some rank has no GPU, and with STATUS_USAGE if a node has more ranks than GPUs; with auto all ranks
 * use the CPU if some rank has no GPU, and a line reports that. */
enum status choose_device(const struct run_spec *spec, struct comm *comm, const struct bootstrap *boot,
                          struct device_choice *choice, struct error *err);
