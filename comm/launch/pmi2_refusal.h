/* pmi2_refusal.h: how a rank of srun --mpi=pmi2 that cannot open libpmi2 informs the others that it does not come.
 *
 * Otherwise they would wait for it, srun -K would kill them when it ends, and a broken installation would look like a
 * lost rank. So this file implements the part of PMI-2 that is needed: init, one put, one fence. */
#pragma once

#include "core/status.h"

/* Puts `value` under `key` over PMI_FD's descriptor and takes part in the fence that follows. key, value: printable
 * characters without ';'. */
enum status pmi2_refuse(int fd, int rank, const char *key, const char *value, double seconds, struct error *err);
