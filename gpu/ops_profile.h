/* ops_profile.h: time and work of each op, by op and by the phase and unit in which it ran, for benchmarks, --profile
 * and flops_profiler. It is a sink of spans (spans.h) that times every op between two stream_sync() calls, so that a
 * run on a GPU is slower. */
#pragma once

#include "gpu/ops.h"
#include "gpu/spans.h"

struct op_profile {
    const char *name; /* NULL in struct module_profile */
    int64_t calls;
    double seconds, flops, bytes;
};

/* What the ops of a phase and unit took: those whose innermost phase it was. */
struct module_profile {
    struct span_place place;
    struct op_profile work;
};

void ops_profile_enable(struct device *device, bool on); /* off at first */

/* Entries of the ops since the last reset, those without calls left out. Returns their number; resets them. */
int ops_profile_read(struct device *device, struct op_profile *out, int max);

/* Sets *modules to the entries that are not empty and returns their number; they are valid until the next op. Resets
 * them. */
int ops_profile_modules(struct device *device, const struct module_profile **modules);
