/* plan_fit.h: `ztrain plan --fit`: the fastest settings of a run with which it fits into the memory of its GPUs, which
 * need not be here. Estimated, not measured. */
#pragma once

#include "cmd/engine/simulated_run.h"

struct fit_question {
    struct machine_question machine;
    const char *memory;      /* "80GiB" of each GPU; NULL: train.memory_limit, else what the GPU has */
    const char *node_memory; /* "2TiB" of host memory of each node; NULL: enough */
};

/* Searches the settings of cmd/engine/memory_tunables.h and the micro-batch at the spec's train_batch_size, and prints
 * the fastest that fits, the lines of the run spec for it, and the runners-up. The spec's batch sizes are resolved.
 * STATUS_USAGE: see simulated_machine_find(); a size that is none. STATUS_DEVICE: nothing fits; the message has the
 * smallest need. */
enum status plan_fit(const struct fit_question *question, const struct run_spec *spec, struct error *err);
