/* plan.h: the plan of a run: its batch sizes, learning rates and memory. */
#pragma once

#include "core/spec/spec.h"
#include "core/status.h"

/* --dry-run: prints the effective spec, the batch sizes, the first five learning rates and the memory plan for `world`
 * ranks that share `cores`. The spec's batch sizes are resolved. Reads the headers of the data and, unless the run
 * resumes, of the model's files, with the errors that a run has; missing data are reported, and are not an error. */
enum status plan_dry_run(struct run_spec *spec, int world, const char *world_source, int cores, bool resumes,
                         struct error *err);
