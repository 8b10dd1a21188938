/* ops_profile.h: the profile of ops (ops_profile_enable() in ops.h) by the part of the step in which they ran. */
#ifndef ZTRAIN_GPU_OPS_PROFILE_H
#define ZTRAIN_GPU_OPS_PROFILE_H

#include "gpu/ops.h"
#include "gpu/trace.h"

/* What the ops of a unit took in a range: those whose innermost range it was. */
struct module_profile {
    enum trace_range range;
    int unit; /* TRACE_WHOLE: of none */
    int64_t calls;
    double seconds, flops, bytes;
};

/* Sets *modules to the entries that are not empty and returns their number; they are valid until the next op. Resets
 * them. */
int ops_profile_modules(struct device *device, const struct module_profile **modules);

/* Called by trace_begin() and trace_end(): where the ops that follow belong. */
void ops_profile_enter(struct stream *stream, enum trace_range range, int unit);
void ops_profile_leave(struct stream *stream);

#endif
