/* SPDX-License-Identifier: Apache-2.0 */
/* score_rank.h: `ztrain score` on a rank: log-probabilities of documents under a model, without a run folder. */
#pragma once

#include "cmd/run/run_state.h"

/* Identifies what documents are scored under: a hash of weights, config, adapter and dtype, whatever the number of
 * ranks. Collective. */
enum status score_model(struct run *run, uint64_t *model, struct error *err);

/* After run_prepare(), which has loaded the weights: scores data.train into options->score; rank 0 prints the
 * perplexity. STATUS_REQUEUE: stopped. Collective. */
enum status score_rank(struct run *run, struct error *err);
