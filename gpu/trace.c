#include "gpu/trace.h"

#include "core/flight/flight.h"
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

/* ---- the flight recorder ------------------------------------------------- */

enum { DEEPEST = 8 };
static _Thread_local uint64_t open_entries[DEEPEST];
static _Thread_local int depth;

/* Ranges without a counterpart in the flight recorder are FLIGHT_NONE. */
static enum flight_kind flight_kind_of(enum trace_range range)
{
    static const enum flight_kind kinds[TRACE_RANGE_COUNT] = {
        [TRACE_FORWARD] = FLIGHT_FORWARD,   [TRACE_HEAD] = FLIGHT_HEAD,           [TRACE_BACKWARD] = FLIGHT_BACKWARD,
        [TRACE_REDUCE] = FLIGHT_REDUCE,     [TRACE_OPTIMIZER] = FLIGHT_OPTIMIZER, [TRACE_EVALUATION] = FLIGHT_FORWARD,
        [TRACE_GENERATION] = FLIGHT_FORWARD};
    return kinds[range];
}

static void enter(enum trace_range range, int unit)
{
    const enum flight_kind kind = flight_kind_of(range);
    if (depth < DEEPEST)
        open_entries[depth] = kind == FLIGHT_NONE ? 0 : flight_begin(kind, unit, 0, -1);
    depth++;
}

static void leave(void)
{
    depth -= depth > 0;
    if (depth < DEEPEST)
        flight_end(open_entries[depth]);
}

void trace_begin(struct stream *stream, enum trace_range range, int unit)
{
    push_range(range, unit);
    enter(range, unit);
    ops_profile_enter(stream, range, unit);
}

void trace_end(struct stream *stream)
{
    ops_profile_leave(stream);
    leave();
    pop_range();
}
