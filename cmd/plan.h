/* SPDX-License-Identifier: Apache-2.0 */
/* plan.h: what `ztrain plan` and --dry-run print of a run: its memory, and estimates for GPUs that need not be here.
 * The spec's batch sizes are resolved. */
#pragma once

#include "cmd/engine/memory_tunables.h"
#include "cmd/engine/simulated_run.h"

/* --dry-run, for `world` ranks that share `cores`. Reads the headers of the data and, unless the run resumes, of the
 * model's files, with a run's errors; missing data are no error. */
enum status plan_dry_run(struct run_spec *spec, int world, const char *world_source, int cores, bool resumes,
                         struct error *err);

/* --speed: how fast the run would be. price: of a GPU's hour ("2.5"), NULL: not known. STATUS_USAGE: see
 * simulated_machine_find(); a price that is not a number. */
enum status plan_speed(const struct machine_question *question, const char *price, struct run_spec *spec,
                       struct error *err);

/* --fit. memory: "80GiB" of each GPU; NULL: train.memory_limit, else what the GPU has. node_memory: of each node's host
 * memory; NULL: enough. row: of the table, whose lines are printed; 0: the first. STATUS_USAGE: see
 * simulated_machine_find(); a malformed size; no such row. STATUS_DEVICE: nothing fits;
 * the message has the smallest need. */
enum status plan_fit(const struct machine_question *question, const char *memory, const char *node_memory, int row,
                     const struct run_spec *spec, struct error *err);

/* The setting that --fit prints first. */
struct plan_choice {
    struct memory_setting setting;
    size_t device_bytes, node_bytes; /* of a rank's device; of the host memory that a node's ranks take */
    double seconds, mfu;             /* of a step */
};

/* Finds it without printing; parameters and errors are those of plan_fit(). */
enum status plan_fit_choose(const struct machine_question *question, const struct run_spec *spec,
                            struct plan_choice *choice, struct error *err);

/* Parses the size of an option; text NULL: it was not given, and *bytes stays. STATUS_USAGE: it is none. */
enum status plan_size(const char *option, const char *text, int64_t *bytes, struct error *err);
