/* resume.h: the checkpoint that --resume names, and whether the run may go on from it. */
#ifndef ZTRAIN_CMD_TRAIN_RESUME_H
#define ZTRAIN_CMD_TRAIN_RESUME_H

#include "ckpt/checkpoint.h"
#include "ckpt/checkpoint_course.h"
#include "cmd/train/run_place.h"
#include "core/retry.h"
#include "core/spec/spec.h"

/* Opens it; of a run folder the newest valid one. What is there but cannot be read is tried again as `retry` says, now
 * and when the checkpoint is loaded, and is an error then (STATUS_CHECKPOINT, with the cause): it is not damage, and
 * nothing older is taken. STATUS_REQUEUE: asked to stop meanwhile. */
enum status resume_open(const char *resume, const struct retry *retry, struct checkpoint **checkpoint,
                        struct error *err);

/* Whether a run on `world` ranks may go on from it, without a difference that would silently change its course. Fills
 * the spec's batch sizes (spec_resolve_batch_resumed). source: where the world size comes from; say: prints what
 * differs. */
enum status resume_check(const struct checkpoint *checkpoint, struct run_spec *spec, int world, const char *source,
                         bool say, struct error *err);

/* What the resume has to change in the run folder: nothing where the run branches off into another one. Release it
 * (checkpoint_course.h). */
enum status resume_plan_course(const char *resume, const struct run_place *place, const struct checkpoint *checkpoint,
                               struct checkpoint_course *course, struct error *err);

/* --dry-run --resume: which checkpoint it would be, what has changed since, and what would be moved aside. */
enum status resume_dry(const char *resume, const struct run_place *place, struct run_spec *spec, int world,
                       const char *source, struct error *err);

/* Where training goes on; steps_per_epoch and fingerprint as the data are now. */
enum status resume_position(const struct checkpoint *checkpoint, int64_t steps_per_epoch, uint64_t data_fingerprint,
                            struct train_position *position, struct error *err);

/* After an epoch's last step. */
void begin_next_epoch(struct train_position *position);

#endif
