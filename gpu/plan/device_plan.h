/* device_plan.h: a GPU that need not exist, for plans, in every build: it answers how much memory the ops need, and
 * runs nothing. Its properties are assumed, which its name states. */
#ifndef ZTRAIN_GPU_PLAN_DEVICE_PLAN_H
#define ZTRAIN_GPU_PLAN_DEVICE_PLAN_H

#include "gpu/device.h"

/* A GPU of 80 GiB for memory plans: ops_workspace_bytes() and layouts in dry arenas work, but nothing can be allocated
 * or run. */
enum status device_plan_open(struct device **device, struct error *err);

#endif
