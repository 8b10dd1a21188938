/* run_samples.h: writes the continuations of train.samples at an evaluation. */
#pragma once

#include "cmd/run/run_state.h"

/* Collective: continues each prompt, and writes a line in metrics.jsonl and one on the console for it. A request to
 * stop leaves out the prompts that are not begun. */
enum status run_samples(struct run *run, struct error *err);
