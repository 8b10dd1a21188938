/* ops_profile.c: the time and work of each op, measured by a table that wraps the device's op table.
 *
 * While a profile or a trace is on, device->ops points to `profiled`. For a profile, its entries time the wrapped op
 * between two stream_sync() calls and add up its work (op_cost.h), by op and by the range of the step (trace.h); for a
 * trace, they put two events around it (spans.h). Only one thread may call ops meanwhile. */
#include "gpu/ops_profile.h"

#include "core/clock.h"
#include "core/memory.h"
#include "gpu/device_backend.h"
#include "gpu/op_cost.h"

#include <stdlib.h>
#include <string.h>

enum {
    RANGES_DEEP = 8, /* deeper ranges, which only an error leaves behind, count as their parent */
    WORK_AHEAD = 2048,
    RANGES_AHEAD = 2048 /* spans that are not over yet */
};

struct ops_profiler {
    const struct op_table *inner; /* the table that is wrapped */
    bool timed;                   /* there is a profile */
    struct spans *work, *phases;  /* owned; of ops and collectives, of ranges; NULL: there is no trace */
    int open_phases[RANGES_DEEP]; /* numbers of the open ranges' spans */
    struct op_profile entries[OPS_COUNT];
    struct module_profile *modules, *read; /* (num_modules), owned; the first is that of ops outside of all ranges */
    int num_modules;
    int open[RANGES_DEEP], depth; /* indices in `modules` of the open ranges */
};

/* ---- the wrapping table -------------------------------------------------- */

static struct ops_profiler **profiler_of(struct device *device)
{
    return &((struct device_private *)device->private_)->profiler;
}

/* The entry to which ops belong now. */
static struct module_profile *module_now(struct ops_profiler *p)
{
    int top = p->depth < RANGES_DEEP ? p->depth : RANGES_DEEP;
    return &p->modules[top ? p->open[top - 1] : 0];
}

static void count_op(struct ops_profiler *p, int index, const struct op_cost *work, double seconds)
{
    struct op_profile *entry = &p->entries[index];
    struct module_profile *module = module_now(p);
    entry->calls++;
    entry->seconds += seconds;
    entry->flops += work->flops;
    entry->bytes += work->bytes;
    module->calls++;
    module->seconds += seconds;
    module->flops += work->flops;
    module->bytes += work->bytes;
}

#define OPS_NAME(op) #op,
static const char *const names[] = {OPS_LIST(OPS_NAME)};

struct op_start {
    double seconds;
    int number; /* of its span */
};

static struct op_start begin_op(struct ops_profiler *p, struct stream *stream, int index, const struct op_cost *work)
{
    struct op_start start = {.number = -1};
    if (p->timed)
        stream_sync(stream);
    if (p->work) {
        const struct span span = {.name = names[index],
                                  .kind = TRACE_OP,
                                  .unit = module_now(p)->unit,
                                  .bytes = (int64_t)work->bytes,
                                  .flops = work->flops};
        start.number = spans_begin(p->work, stream, &span);
    }
    start.seconds = p->timed ? seconds_now() : 0;
    return start;
}

static void end_op(struct ops_profiler *p, struct stream *stream, int index, const struct op_cost *work,
                   const struct op_start *start)
{
    if (p->work)
        spans_end(p->work, start->number);
    if (!p->timed)
        return;
    stream_sync(stream);
    count_op(p, index, work, seconds_now() - start->seconds);
}

#define OPS_INDEX(name) INDEX_##name,
enum { OPS_LIST(OPS_INDEX) };

#define OPS_PROFILED(op)                                                           \
    static void profiled_##op(struct stream *stream, const struct op##_args *args) \
    {                                                                              \
        struct ops_profiler *profiler = *profiler_of(stream_device(stream));       \
        struct op_cost work = op_cost_##op(args);                                  \
        struct op_start start = begin_op(profiler, stream, INDEX_##op, &work);     \
        profiler->inner->op(stream, args);                                         \
        end_op(profiler, stream, INDEX_##op, &work, &start);                       \
    }
OPS_LIST(OPS_PROFILED)

#define OPS_PROFILED_MEMBER(op) .op = profiled_##op,
static const struct op_table profiled = {OPS_LIST(OPS_PROFILED_MEMBER)};

/* ---- ranges -------------------------------------------------------------- */

const char *trace_range_name(enum trace_range range)
{
    static const char *const words[] = {
        [TRACE_FORWARD] = "forward",       [TRACE_HEAD] = "head",           [TRACE_BACKWARD] = "backward",
        [TRACE_REDUCE] = "reduce",         [TRACE_OPTIMIZER] = "optimizer", [TRACE_EVALUATION] = "evaluation",
        [TRACE_GENERATION] = "generation", [TRACE_OTHER] = "other"};
    _Static_assert(COUNT_OF(words) == TRACE_RANGE_COUNT, "every range has a name");
    return words[range];
}

/* The index of the entry of a range, which is made if there is none. */
static int module_index(struct ops_profiler *p, enum trace_range range, int unit)
{
    for (int i = 0; i < p->num_modules; i++)
        if (p->modules[i].range == range && p->modules[i].unit == unit)
            return i;
    size_t bytes = ((size_t)p->num_modules + 1) * sizeof *p->modules;
    p->modules = memory_resize(p->modules, bytes);
    p->read = memory_resize(p->read, bytes);
    p->modules[p->num_modules] = (struct module_profile){.range = range, .unit = unit};
    return p->num_modules++;
}

void ops_profile_enter(struct stream *stream, enum trace_range range, int unit)
{
    struct ops_profiler *p = *profiler_of(stream_device(stream));
    if (!p)
        return;
    if (p->depth < RANGES_DEEP) {
        const struct span span = {.name = trace_range_name(range), .kind = TRACE_RANGE, .unit = unit};
        p->open[p->depth] = module_index(p, range, unit);
        p->open_phases[p->depth] = p->phases ? spans_begin(p->phases, stream, &span) : -1;
    }
    p->depth++;
}

void ops_profile_leave(struct stream *stream)
{
    struct ops_profiler *p = *profiler_of(stream_device(stream));
    if (!p || p->depth == 0)
        return;
    if (--p->depth < RANGES_DEEP && p->phases)
        spans_end(p->phases, p->open_phases[p->depth]);
}

int ops_profile_modules(struct device *device, const struct module_profile **modules)
{
    struct ops_profiler *p = *profiler_of(device);
    int count = 0;
    *modules = p ? p->read : NULL;
    for (int i = 0; p && i < p->num_modules; i++) {
        struct module_profile *entry = &p->modules[i];
        if (entry->calls)
            p->read[count++] = *entry;
        *entry = (struct module_profile){.range = entry->range, .unit = entry->unit};
    }
    return count;
}

/* ---- on and off ---------------------------------------------------------- */

/* Wraps the op table, or takes the wrapping off when nobody needs it any more. */
static struct ops_profiler *wrap_ops(struct device *device)
{
    struct ops_profiler **profiler = profiler_of(device);
    if (!*profiler) {
        *profiler = memory_zeroed(1, sizeof **profiler);
        (*profiler)->inner = device->ops;
        module_index(*profiler, TRACE_OTHER, TRACE_WHOLE);
        device->ops = &profiled;
    }
    return *profiler;
}

static void unwrap_ops(struct device *device)
{
    struct ops_profiler **profiler = profiler_of(device);
    if ((*profiler)->timed || (*profiler)->work)
        return;
    device->ops = (*profiler)->inner;
    free((*profiler)->modules);
    free((*profiler)->read);
    free(*profiler);
    *profiler = NULL;
}

void ops_profile_enable(struct device *device, bool on)
{
    if (!on && !*profiler_of(device))
        return;
    wrap_ops(device)->timed = on;
    unwrap_ops(device);
}

enum status ops_trace_enable(struct device *device, struct stream *base,
                             void (*sink)(void *context, const struct span *span), void *context, struct error *err)
{
    struct ops_profiler *p = wrap_ops(device);
    ASSERT(!p->work);
    enum status status = spans_new(device, WORK_AHEAD, sink, context, &p->work, err);
    if (status == STATUS_OK)
        status = spans_new(device, RANGES_AHEAD, sink, context, &p->phases, err);
    if (status != STATUS_OK) {
        ops_trace_disable(device);
        return status;
    }
    spans_base(p->work, base);
    spans_base_as(p->phases, p->work);
    return STATUS_OK;
}

void ops_trace_disable(struct device *device)
{
    struct ops_profiler *p = *profiler_of(device);
    if (!p)
        return;
    struct spans *both[] = {p->work, p->phases};
    p->work = p->phases = NULL;
    for (size_t i = 0; i < COUNT_OF(both); i++)
        if (both[i])
            spans_collect(both[i], true);
    spans_free(both[1]); /* whose base is the other's */
    spans_free(both[0]);
    unwrap_ops(device);
}

int ops_trace_begin(struct stream *stream, const char *name, int unit, int64_t bytes)
{
    struct ops_profiler *p = *profiler_of(stream_device(stream));
    const struct span span = {.name = name, .kind = TRACE_WORK, .unit = unit, .bytes = bytes};
    return p && p->work ? spans_begin(p->work, stream, &span) : -1;
}

void ops_trace_end(struct stream *stream, int number)
{
    struct ops_profiler *p = *profiler_of(stream_device(stream));
    if (p && p->work)
        spans_end(p->work, number);
}

int ops_profile_read(struct device *device, struct op_profile *out, int max)
{
    struct ops_profiler *profiler = *profiler_of(device);
    int count = 0;
    if (!profiler)
        return 0;
    for (int i = 0; i < OPS_COUNT && count < max; i++) {
        if (!profiler->entries[i].calls)
            continue;
        out[count] = profiler->entries[i];
        out[count++].name = names[i];
    }
    memset(profiler->entries, 0, sizeof profiler->entries);
    return count;
}
