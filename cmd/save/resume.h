/* SPDX-License-Identifier: Apache-2.0 */
/* resume.h: the checkpoint that --resume names, and whether the run may continue from it. */
#pragma once

#include "ckpt/checkpoint.h"
#include "ckpt/checkpoint_rewind.h"
#include "cmd/run/run_folder.h"
#include "core/spec/spec.h"

struct engine;

/* Collective: opens the checkpoint on all ranks; of a run folder the newest valid one, which rank 0 chooses. Every rank
 * verifies its share; the first fault in the files decides. A file that cannot be read is not damaged: it is read again
 * within the limits of `retry`, now and on loading, and then is STATUS_CHECKPOINT, with the cause. STATUS_REQUEUE:
 * asked to stop.
 *
 * host: this rank's. The caller agrees on the outcome. If rank 0 finds none, the others return STATUS_OK, and
 * *checkpoint is NULL. The caller closes *checkpoint, after an error too. */
enum status resume_open(struct comm *comm, const char *host, const char *resume, const struct retry *retry,
                        struct checkpoint **checkpoint, struct error *err);

/* Checks that a run on `world` ranks may continue: STATUS_USAGE for a difference that would silently change it. Fills
 * in the spec's batch sizes. source: where the world size comes from; print: prints the differences. */
enum status resume_check(const struct checkpoint *checkpoint, struct run_spec *spec, int world, const char *source,
                         bool print, struct error *err);

/* checkpoint_rewind_plan(): nothing if the run branches off into another folder. */
enum status resume_plan_rewind(const char *resume, const struct run_home *home, const struct checkpoint *checkpoint,
                               struct checkpoint_rewind *rewind, struct error *err);

/* --dry-run --resume: prints the checkpoint that would be taken, what has changed since, and the moves aside. */
enum status resume_dry(const char *resume, const struct run_home *home, struct run_spec *spec, int world,
                       const char *source, struct error *err);

/* Where training continues, with the data of now. A run that ended early continues with a larger patience. */
enum status resume_position(const struct checkpoint *checkpoint, const struct engine *engine,
                            struct train_position *position, struct error *err);

/* Moves a position from the end of an epoch to the beginning of the next. */
void begin_next_epoch(struct train_position *position);
