/* plan.h: what a run would do and hold, without doing it. */
#ifndef ZTRAIN_CMD_PLAN_H
#define ZTRAIN_CMD_PLAN_H

#include "core/spec/spec.h"
#include "core/status.h"

/* --dry-run: effective spec, batch triangle, first five learning rates, memory plan for `world` ranks that share
 * `cores`. Data that are not there are reported, not an error. The spec's batch sizes are resolved. */
enum status plan_dry_run(struct run_spec *spec, int world, const char *world_source, int cores, struct error *err);

#endif
