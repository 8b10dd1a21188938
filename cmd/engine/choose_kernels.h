/* choose_kernels.h: the CPU kernels of a job, the same for all ranks. Otherwise replicas that each rank updates by
 * itself would drift apart, and the results would depend on the placement of the ranks on nodes. */
#pragma once

#include "comm/comm.h"
#include "comm/launch/bootstrap.h"
#include "gpu/cpu/cpu_kernels.h"

/* Chooses the best kernels that all ranks support. A run that began with the kernels `before` (NULL: the run begins
 * now, or its checkpoint does not record them) keeps them as far as they are available here. Rank 0 logs which kernels
 * other ranks have to do without, and which rank is the cause. Collective, unless comm and boot are NULL (a plan).
 * STATUS_USAGE on all ranks: some rank's environment asks for kernels that it does not have. */
enum status choose_kernels(struct comm *comm, const struct bootstrap *boot, const struct cpu_kernels *before,
                           struct cpu_kernels *kernels, struct error *err);
