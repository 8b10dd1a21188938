/* memory_limit.h: whether a plan fits into the memory that the run spec and the machine give it, and if not, what
 * would. */
#pragma once

#include "cmd/engine/engine.h"

/* STATUS_DEVICE if a rank takes more than train.memory_limit, or, in a run, if its arenas take more than its GPU has;
 * the hint names settings that fit, or the least that any takes. Not collective; the same on all ranks. */
enum status memory_limit_check(const struct engine *engine, struct error *err);

/* STATUS_DEVICE if the planned host memory of this rank, or of all ranks of a supervisor, exceeds what the machine has
 * or its control group may use. Not collective, and machines may differ: the caller agrees. */
enum status memory_node_check(const struct engine *engine, struct error *err);

/* When libraries are loaded and communicators connected, before an arena is allocated: STATUS_DEVICE if the arenas of
 * the ranks on this GPU take more than is free; the message names other processes on it, and settings that fit. Warns
 * if they leave less than the kernels that are loaded later take. Collective; results may differ: the caller agrees. */
enum status memory_free_check(const struct engine *engine, struct error *err);
