/* memory_free.h: whether a GPU has the memory that the plan takes, by what its driver reports as free. */
#pragma once

#include "cmd/engine/engine.h"

/* To be called when libraries are loaded and communicators connected, and no arena is allocated yet: what they take is
 * no longer free then. STATUS_DEVICE if the arenas of the ranks on this GPU take more than is free; the message names
 * the other processes on it, and settings that would fit. A warning if they leave less than the kernels that are loaded
 * later are expected to take. Collective, but ranks may return different results: the caller agrees. */
enum status memory_free_check(const struct engine *engine, struct error *err);
