/* agree.h: ranks compare their outcomes at points that all of them reach, and end together if one has failed: with the
 * exit code of the lowest rank that failed, and each error printed once (verdict.h). */
#pragma once

#include "comm/comm.h"
#include "comm/control/verdict.h"
#include "comm/launch/bootstrap.h"

#include <stdint.h>

/* Collective. status and err: this rank's outcome. Returns the job's status; if it is not STATUS_OK, err is set, and
 * marked as printed on the ranks that have nothing to print. */
enum status agree(struct comm *comm, enum status status, struct error *err);

/* The same with a record of each rank, which begins with a struct outcome: see verdict_reach(). */
enum status agree_with(struct comm *comm, struct outcome *own, size_t bytes, void *all, enum status status, int *lowest,
                       struct error *err);

/* The same as agree() before there is a communicator, for ranks of a launcher, connected by bootstrap_connect().
 * fingerprint: of the input that has to be the same on all ranks (run spec, options); STATUS_USAGE if it differs. */
enum status agree_at_start(struct bootstrap *boot, uint64_t fingerprint, enum status status, struct error *err);
