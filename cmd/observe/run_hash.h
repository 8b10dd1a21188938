/* SPDX-License-Identifier: Apache-2.0 */
/* run_hash.h: hashes of a run's state (ckpt/state_hash.h), between steps: train.hash_interval_steps, ztrain replay. */
#pragma once

#include "cmd/run/run_state.h"

/* Whether the line of this step in metrics.jsonl has a hash of the parameters. */
bool run_hash_is_due(const struct run *run, int64_t step);

/* With no step under way: the hashes of the first `states` kinds of state, the same on all ranks. Collective; a rank
 * that cannot read its state fails alone. */
enum status run_hash_state(struct run *run, int states, uint64_t *hashes, struct error *err);
