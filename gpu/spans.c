/* SPDX-License-Identifier: Apache-2.0 */
/* spans.c: hands spans to the sinks, and wraps the op table while a sink takes ops. */
#include "gpu/spans.h"

#include "core/flight/flight.h"
#include "gpu/device_backend.h"
#include "gpu/op_cost.h"
#include "gpu/op_operands.h"

#if ZTRAIN_CUDA && __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define HAS_NVTX 1
#else
#define HAS_NVTX 0
#endif

static const char *phase_name(enum phase phase)
{
    static const char *const words[] = {
        [PHASE_OTHER] = "other",           [PHASE_FORWARD] = "forward",      [PHASE_HEAD] = "head",
        [PHASE_BACKWARD] = "backward",     [PHASE_REDUCE] = "reduce",        [PHASE_OPTIMIZER] = "optimizer",
        [PHASE_EVALUATION] = "evaluation", [PHASE_GENERATION] = "generation"};
    _Static_assert(COUNT_OF(words) == PHASE_COUNT, "every phase has a name");
    return words[phase];
}

static int64_t flight_span_begin(void *context, const struct span *span)
{
    static const enum flight_kind kinds[PHASE_COUNT] = {
        [PHASE_FORWARD] = FLIGHT_FORWARD,   [PHASE_HEAD] = FLIGHT_HEAD,           [PHASE_BACKWARD] = FLIGHT_BACKWARD,
        [PHASE_REDUCE] = FLIGHT_REDUCE,     [PHASE_OPTIMIZER] = FLIGHT_OPTIMIZER, [PHASE_EVALUATION] = FLIGHT_FORWARD,
        [PHASE_GENERATION] = FLIGHT_FORWARD};
    (void)context;
    if (span->kind != SPAN_PHASE || kinds[span->what] == FLIGHT_NONE) return -1;
    return (int64_t)flight_begin(kinds[span->what], span->unit, 0, -1);
}

static void flight_span_end(void *context, const struct span *span, int64_t mark)
{
    (void)context, (void)span;
    flight_end((uint64_t)mark);
}

static int64_t nvtx_span_begin(void *context, const struct span *span)
{
    (void)context;
    if (!HAS_NVTX || span->kind != SPAN_PHASE) return -1;
#if HAS_NVTX
    char text[48];
    snprintf(text, sizeof text, "%s unit %d", span->name, span->unit);
    nvtxRangePushA(span->unit == UNIT_NONE ? span->name : text);
#endif
    return 0;
}

static void nvtx_span_end(void *context, const struct span *span, int64_t mark)
{
    (void)context, (void)span, (void)mark;
#if HAS_NVTX
    nvtxRangePop();
#endif
}

static const struct span_sink always[SPAN_ALWAYS] = {{.begin = flight_span_begin, .end = flight_span_end},
                                                     {.begin = nvtx_span_begin, .end = nvtx_span_end}};

static struct span_sinks *sinks_of(const struct device *device)
{
    return &((struct device_private *)device->private_)->spans;
}

void span_begin(struct span *span)
{
    struct span_sinks *sinks = sinks_of(stream_device(span->stream));
    span->outer = sinks->now.phase == PHASE_OTHER ? (struct span_place){PHASE_OTHER, UNIT_NONE} : sinks->now;
    if (span->kind == SPAN_PHASE) sinks->now = (struct span_place){(enum phase)span->what, span->unit};
    if (span->kind == SPAN_OP) span->unit = span->outer.unit;
    for (int i = 0; i < SPAN_ALWAYS; i++) span->marks[i] = always[i].begin(NULL, span);
    for (int i = 0; i < SPAN_SINKS - SPAN_ALWAYS; i++)
        span->marks[SPAN_ALWAYS + i] = i < sinks->count ? sinks->rows[i].sink->begin(sinks->rows[i].context, span) : -1;
}

void span_end(struct span *span)
{
    struct span_sinks *sinks = sinks_of(stream_device(span->stream));
    if (span->kind == SPAN_PHASE) sinks->now = span->outer;
    for (int i = sinks->count - 1; i >= 0; i--)
        if (span->marks[SPAN_ALWAYS + i] >= 0)
            sinks->rows[i].sink->end(sinks->rows[i].context, span, span->marks[SPAN_ALWAYS + i]);
    for (int i = SPAN_ALWAYS - 1; i >= 0; i--)
        if (span->marks[i] >= 0) always[i].end(NULL, span, span->marks[i]);
}

struct span phase_begin(struct stream *stream, enum phase phase, int unit)
{
    struct span span = {
        .kind = SPAN_PHASE, .what = (int)phase, .unit = unit, .name = phase_name(phase), .stream = stream};
    span_begin(&span);
    return span;
}

#define OPS_SPANNED(op)                                                           \
    static void spanned_##op(struct stream *stream, const struct op##_args *args) \
    {                                                                             \
        const struct op_cost cost = op_cost_##op(args);                           \
        struct span span = {.kind = SPAN_OP,                                      \
                            .what = OP_##op,                                      \
                            .name = #op,                                          \
                            .bytes = (int64_t)cost.bytes,                         \
                            .flops = cost.flops,                                  \
                            .stream = stream};                                    \
        span_begin(&span);                                                        \
        sinks_of(stream_device(stream))->plain->op(stream, args);                 \
        span_end(&span);                                                          \
    }
OPS_LIST(OPS_SPANNED)

#define OPS_SPANNED_MEMBER(op) .op = spanned_##op,
static const struct op_table spanned = {OPS_LIST(OPS_SPANNED_MEMBER)};

static void span_wrap_ops(struct device *device)
{
    struct span_sinks *sinks = sinks_of(device);
    bool wanted = false;
    for (int i = 0; i < sinks->count; i++) wanted |= sinks->rows[i].sink->takes_ops;
    if (wanted == (sinks->plain != NULL)) return;
    if (wanted) sinks->plain = device->ops;
    device->ops = wanted ? &spanned : sinks->plain;
    if (!wanted) sinks->plain = NULL;
}

void span_sink_add(struct device *device, const struct span_sink *sink, void *context)
{
    struct span_sinks *sinks = sinks_of(device);
    ASSERT(sinks->count < SPAN_SINKS - SPAN_ALWAYS);
    sinks->rows[sinks->count].sink = sink;
    sinks->rows[sinks->count++].context = context;
    span_wrap_ops(device);
}

void span_sink_remove(struct device *device, const struct span_sink *sink, void *context)
{
    struct span_sinks *sinks = sinks_of(device);
    int kept = 0;
    for (int i = 0; i < sinks->count; i++)
        if (sinks->rows[i].sink != sink || sinks->rows[i].context != context) sinks->rows[kept++] = sinks->rows[i];
    sinks->count = kept;
    span_wrap_ops(device);
}
