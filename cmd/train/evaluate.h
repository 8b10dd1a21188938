/* evaluate.h: the loss of the model on the validation data. */
#pragma once

#include "cmd/run/run_state.h"

/* Collective, with no step under way: computes the mean loss over the validation set (or its train.eval_batches first
 * batches); rank 0 logs it and writes it to the metrics. If the ranks vote to stop (stop_vote.h), the evaluation is
 * broken off, run->position.evaluation_due is set, and run->evaluation_part has what is done of it for the checkpoint:
 * the resumed run does the rest. */
enum status run_evaluate(struct run *run, struct error *err);
