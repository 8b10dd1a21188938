#include "gpu/trace.h"

#include "gpu/ops_profile.h"

#if ZTRAIN_CUDA && __has_include(<nvtx3/nvToolsExt.h>)

#include <nvtx3/nvToolsExt.h>
#include <stdio.h>

static void push_range(enum trace_range range, int unit)
{
    char text[48];
    if (unit == TRACE_WHOLE) {
        nvtxRangePushA(trace_range_name(range));
        return;
    }
    snprintf(text, sizeof text, "%s unit %d", trace_range_name(range), unit);
    nvtxRangePushA(text);
}

static void pop_range(void)
{
    nvtxRangePop();
}

#else

static void push_range(enum trace_range range, int unit)
{
    (void)range, (void)unit;
}

static void pop_range(void)
{
}

#endif

void trace_begin(struct stream *stream, enum trace_range range, int unit)
{
    push_range(range, unit);
    ops_profile_enter(stream, range, unit);
}

void trace_end(struct stream *stream)
{
    ops_profile_leave(stream);
    pop_range();
}
