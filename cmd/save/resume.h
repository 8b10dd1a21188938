/* resume.h: the checkpoint that --resume names, and whether the run may continue from it. */
#pragma once

#include "ckpt/checkpoint.h"
#include "ckpt/checkpoint_rewind.h"
#include "cmd/run/run_home.h"
#include "core/retry.h"
#include "core/spec/spec.h"

/* Opens the checkpoint; in a run folder the newest valid one, whose contents are verified by `verify`. A file that
 * exists but cannot be read is read again within the limits of `retry`, now and when the checkpoint is loaded, and then
 * is an error (STATUS_CHECKPOINT, with the cause): it is not damaged, so no older checkpoint is taken. STATUS_REQUEUE:
 * asked to stop meanwhile. */
enum status resume_open(const char *resume, const struct retry *retry, checkpoint_verifier *verify, void *context,
                        struct checkpoint **checkpoint, struct error *err);

/* The same of a checkpoint that rank 0 has opened, for another rank: it looks only at the files of which it verifies
 * share `part` of `parts` (checkpoint_open_part()). */
enum status resume_open_share(const char *folder, int part, int parts, const struct retry *retry,
                              struct checkpoint **checkpoint, struct error *err);

/* Checks that a run on `world` ranks may continue from it: STATUS_USAGE for a difference that would silently change the
 * run. Fills in the spec's batch sizes (spec_resolve_batch_resumed). source: where the world size comes from; print:
 * prints the differences. */
enum status resume_check(const struct checkpoint *checkpoint, struct run_spec *spec, int world, const char *source,
                         bool print, struct error *err);

/* Plans what the resume has to change in the run folder: nothing if the run branches off into another one. The caller
 * releases the plan (checkpoint_rewind.h), also after an error. */
enum status resume_plan_rewind(const char *resume, const struct run_home *home, const struct checkpoint *checkpoint,
                               struct checkpoint_rewind *rewind, struct error *err);

/* --dry-run --resume: prints the checkpoint that would be taken, what has changed since, and the moves aside. */
enum status resume_dry(const char *resume, const struct run_home *home, struct run_spec *spec, int world,
                       const char *source, struct error *err);

/* The position at which training continues; steps_per_epoch and data_fingerprint are those of the data now. A run that
 * has ended early continues if `rules` have a larger patience now. */
enum status resume_position(const struct checkpoint *checkpoint, const struct early_stop_rules *rules,
                            int64_t steps_per_epoch, const struct data_fingerprint *data_fingerprint,
                            struct train_position *position, struct error *err);

/* Moves a position from the end of an epoch to the beginning of the next. */
void begin_next_epoch(struct train_position *position);
