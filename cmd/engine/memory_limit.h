/* memory_limit.h: whether a plan fits into the memory that the run spec and the machine give it, and if not, what
 * would. */
#pragma once

#include "cmd/engine/engine.h"

/* STATUS_DEVICE if a rank takes more than train.memory_limit; the hint names settings that fit, or the least that any
 * setting takes. Not collective; the outcome is the same on all ranks. */
enum status memory_limit_check(const struct engine *engine, struct error *err);

/* STATUS_DEVICE, with the same hint, if what a rank takes without the reserve is more than its GPU has: no other
 * process could leave room for it, and nothing need be tested or measured before. Not collective. */
enum status memory_size_check(const struct engine *engine, struct error *err);

/* STATUS_DEVICE if the host memory that is planned exceeds what this machine has, or its control group may use: the
 * kernel would kill a rank. It counts the rank's own plan, or those of all ranks of a supervisor. Not collective, and
 * machines may differ: the caller agrees. */
enum status memory_node_check(const struct engine *engine, struct error *err);

/* Adds to an error the hint which settings fit, where `ranks` share a GPU with `available` bytes of free memory. The
 * hint's bytes are those that the arenas of these ranks would take, without the reserve, which is taken already or is
 * not asked for. Returns err's code. */
enum status memory_limit_advise(const struct engine *engine, size_t available, int ranks, struct error *err);
