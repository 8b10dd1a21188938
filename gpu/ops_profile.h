/* SPDX-License-Identifier: Apache-2.0 */
/* ops_profile.h: time and work of each op, by op and by phase and unit, for benchmarks, --profile and flops_profiler: a
 * recorder of spans (span_recorder.h) between events on the device. The host does not wait, so a GPU's times have no
 * launches in them; ops of several streams that run side by side each count in full. */
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

/* Takes the spans of all ops from now on. STATUS_DEVICE: the device has no more events. Freed before the device is
 * closed; may be NULL. */
struct ops_profiler;
enum status ops_profiler_new(struct device *device, struct ops_profiler **profiler, struct error *err);
void ops_profiler_free(struct ops_profiler *profiler);
RELEASER(ops_profiler_drop, struct ops_profiler, ops_profiler_free)

/* Both wait for ops that are under way.
 * Entries of the ops with calls since the last reading, and their number; 0 without a profiler. */
int ops_profiler_read(struct ops_profiler *profiler, struct op_profile *out, int max);

/* The same by module, valid until the next op. */
int ops_profiler_modules(struct ops_profiler *profiler, const struct module_profile **modules);
