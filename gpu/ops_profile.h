/* ops_profile.h: time and work of each op, by op and by phase and unit, for benchmarks, --profile and flops_profiler: a
 * sink of spans (spans.h) that times every op between two stream_sync() calls, which slows a GPU down. */
#pragma once

#include "gpu/ops.h"
#include "gpu/spans.h"

struct op_profile {
    const char *name; /* NULL in struct module_profile */
    int64_t calls;
    double seconds, flops, bytes;
};

/* What the ops took whose innermost phase it was. */
struct module_profile {
    struct span_place place;
    struct op_profile work;
};

void ops_profile_enable(struct device *device, bool on); /* off at first */

/* Entries of the ops with calls since the last reset. Returns their number; resets them. */
int ops_profile_read(struct device *device, struct op_profile *out, int max);

/* The same by module, valid until the next op. */
int ops_profile_modules(struct device *device, const struct module_profile **modules);
