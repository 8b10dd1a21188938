/* pmi2_refusal.h: how a rank of srun --mpi=pmi2 that cannot open libpmi2 lets the others know that it does not come.
 *
 * They would wait for it, and srun -K would kill them when it ends: nobody could tell an installation that is broken
 * from a rank that was lost. So it speaks as much of PMI-2 as that takes by itself: init, one put, one fence. */
#ifndef ZTRAIN_COMM_LAUNCH_PMI2_REFUSAL_H
#define ZTRAIN_COMM_LAUNCH_PMI2_REFUSAL_H

#include "core/status.h"

/* Puts `value` under `key` over PMI_FD's descriptor and takes part in the fence that follows. key, value: printable
 * characters without ';'. */
enum status pmi2_refuse(int fd, int rank, const char *key, const char *value, double seconds, struct error *err);

#endif
