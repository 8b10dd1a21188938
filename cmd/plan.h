/* SPDX-License-Identifier: Apache-2.0 */
/* plan.h: what `ztrain plan` and --dry-run print. The spec's batch sizes are resolved. */
#pragma once

#include "cmd/engine/memory_tunables.h"
#include "cmd/engine/simulated_run.h"

/* --dry-run, for `world` ranks that share `cores`. Reads headers with a run's errors; missing data are no error. */
enum status plan_dry_run(struct run_spec *spec, int world, const char *world_source, int cores, bool resumes,
                         struct error *err);

/* --speed. price: what a GPU costs an hour ("2.5"), or NULL. STATUS_USAGE: price is not a number, and the errors of
 * simulated_machine_find(). */
enum status plan_speed(const struct machine_question *question, const char *price, struct run_spec *spec,
                       struct error *err);

/* --fit. row: whose lines are printed, 0: the first. STATUS_USAGE: simulated_machine_find(), a malformed size, no such
 * row. STATUS_DEVICE: nothing fits; the message has the smallest need. */
enum status plan_fit(const struct machine_question *question, int row, const struct run_spec *spec, struct error *err);

/* Finds the one that --fit prints first, without printing; parameters and errors are those of plan_fit(). */
enum status plan_fit_choose(const struct machine_question *question, const struct run_spec *spec,
                            struct memory_choice *choice, struct error *err);

/* Parses the size of an option; text NULL: it was not given, and *bytes stays. STATUS_USAGE: it is none. */
enum status plan_size(const char *option, const char *text, int64_t *bytes, struct error *err);
