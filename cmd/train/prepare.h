/* prepare.h: a run before its first step: the run folder, the checkpoint to resume from, memory, weights, outputs. */
#pragma once

#include "cmd/run/run_state.h"

/* Collective. Takes a run with the fields under "Given" set and all others zero; builds the rest. A run folder that
 * exists is locked before anything in it is read; a new one is made last, when nothing can refuse the run any more.
 * The caller releases what was built, also after a failure. */
enum status run_prepare(struct run *run, struct error *err);
