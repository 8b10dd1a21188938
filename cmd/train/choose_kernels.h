/* choose_kernels.h: by which kernels the ranks of a job compute on the CPU: all by the same. Replicas that each rank
 * updates for itself would drift apart otherwise, and the results would depend on which rank lies on which node. */
#ifndef ZTRAIN_CMD_TRAIN_CHOOSE_KERNELS_H
#define ZTRAIN_CMD_TRAIN_CHOOSE_KERNELS_H

#include "comm/comm.h"
#include "comm/launch/bootstrap.h"
#include "gpu/cpu/cpu_kernels.h"

/* Chooses the best kernels that all ranks have; a run that began with the kernels `before` (NULL: the run begins now,
 * or its checkpoint does not name them) keeps those that are available here. Rank 0 logs which kernels the other ranks
 * have to do without, and which rank is the cause. Collective, unless comm and boot are NULL (a plan). STATUS_USAGE:
 * some rank's environment asks for what there is not; all fail if one does. */
enum status choose_kernels(struct comm *comm, const struct bootstrap *boot, const struct cpu_kernels *before,
                           struct cpu_kernels *kernels, struct error *err);

#endif
