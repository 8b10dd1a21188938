/* resume_together.h: all ranks open the checkpoint to resume from, and share the work of verifying it.
 *
 * Rank 0 chooses the checkpoint by the rules of resume_open(). When it wants the contents of one verified, every rank
 * opens that one, verifies its share (checkpoint_verify_part()), and the ranks exchange their outcomes; the fault that
 * comes first in the files decides, as if one rank had read them all. So this takes as long as a rank needs for the
 * bytes that it has written itself, however many ranks there are. */
#pragma once

#include "ckpt/checkpoint.h"

/* Collective. host: this rank's. STATUS_OK on a rank does not mean that the others have opened theirs: the caller
 * agrees. If rank 0 finds no checkpoint, the other ranks return STATUS_OK and *checkpoint is NULL. Whatever is in
 * *checkpoint is the caller's to close. */
enum status resume_open_together(struct comm *comm, const char *host, const char *resume, const struct retry *retry,
                                 struct checkpoint **checkpoint, struct error *err);
