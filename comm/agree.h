/* agree.h: ranks that fail together say it once.
 *
 * At points that all ranks reach, whatever happens to them, they exchange how it went. If it went wrong anywhere, all
 * end, with the exit code of the lowest rank that failed; an error is printed by the lowest rank that found it, so that
 * a missing file is one line and not one per rank. The others' log files have it, too. */
#ifndef ZTRAIN_COMM_AGREE_H
#define ZTRAIN_COMM_AGREE_H

#include "comm/comm.h"
#include "comm/launch/bootstrap.h"

#include <stdint.h>

/* Collective. status and err: how it went for this rank. Returns the job's status. Where another rank prints the error,
 * err->text is empty (and err->code set): there is nothing left to say. */
enum status agree(struct comm *comm, enum status status, struct error *err);

/* The same before there is a communicator, for ranks of a launcher, connected by bootstrap_connect(). fingerprint: of
 * the input that has to be the same on all ranks (run spec, options); a rank with another one is an error. */
enum status agree_at_start(struct bootstrap *boot, uint64_t fingerprint, enum status status, struct error *err);

#endif
