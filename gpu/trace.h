/* trace.h: named ranges of a step: its phases, and in them the units of the model.
 *
 * A profiler sees them as NVTX ranges of the calling thread, which Nsight Systems shows above the kernels that were
 * launched in them, and the profile and the trace of ops (ops_profile.h) as the place of each op. A range costs a few
 * nanoseconds while none of them is on. */
#pragma once

#include "gpu/device.h"

enum trace_range {
    TRACE_FORWARD,
    TRACE_HEAD, /* forward and backward; in it the two as ranges of their own */
    TRACE_BACKWARD,
    TRACE_REDUCE,
    TRACE_OPTIMIZER,
    TRACE_EVALUATION,
    TRACE_GENERATION,
    TRACE_OTHER, /* outside of all ranges */
    TRACE_RANGE_COUNT
};
enum { TRACE_WHOLE = -1 /* instead of a unit: the phase as a whole */ };

const char *trace_range_name(enum trace_range range);

/* Ranges nest, for a stream and the thread that enqueues its work. A range that is still open after an error does no
 * harm. */
void trace_begin(struct stream *stream, enum trace_range range, int unit);
void trace_end(struct stream *stream);
