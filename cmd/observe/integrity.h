/* SPDX-License-Identifier: Apache-2.0 */
/* integrity.h: looks for silent corruption, and hashes a run's state (ckpt/state_hash.h).
 *
 * Every train.check_interval_steps gradients are computed twice, parameters and optimizer state are hashed after one
 * update and before the next (comm/zero/zero_check.h), and the ranks' copies are compared, as before each checkpoint.
 * The run ends before the update: STATUS_BROKEN if the rank is certain, STATUS_DIVERGED if copies differ. */
#pragma once

#include "cmd/run/run_state.h"

bool integrity_is_due(const struct run *run, int64_t step);

/* Compares both passes of a step. losses: this rank's (2, turns). One of stepper_calls (stepper.h). Collective. */
enum status integrity_compare_passes(void *context, const double *losses, struct error *err);

/* Compares the ranks' copies. STATUS_DIVERGED: they differ, which is also a line of metrics.jsonl. Collective. */
enum status integrity_compare_replicas(struct run *run, struct error *err);

/* With no step under way: the hashes of the first `states` kinds of state. Collective; a failure is this rank's own. */
enum status run_hash_state(struct run *run, int states, uint64_t *hashes, struct error *err);
