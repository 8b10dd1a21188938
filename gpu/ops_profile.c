#include "gpu/ops_profile.h"

#include "core/clock.h"
#include "core/memory.h"

#include <stdlib.h>
#include <string.h>

struct ops_profiler {
    double start; /* of the op that runs */
    struct op_profile ops[OPS_COUNT];
    struct module_profile *modules, *read; /* (num_modules), owned */
    int num_modules;
};

/* ---- counting ------------------------------------------------------------ */

static struct op_profile *module_of(struct ops_profiler *p, struct span_place place)
{
    for (int i = 0; i < p->num_modules; i++)
        if (p->modules[i].place.phase == place.phase && p->modules[i].place.unit == place.unit)
            return &p->modules[i].work;
    const size_t bytes = ((size_t)p->num_modules + 1) * sizeof *p->modules;
    p->modules = memory_resize(p->modules, bytes);
    p->read = memory_resize(p->read, bytes);
    p->modules[p->num_modules] = (struct module_profile){.place = place};
    return &p->modules[p->num_modules++].work;
}

static void count_op(struct op_profile *entry, const struct span *span, double seconds)
{
    entry->calls++;
    entry->seconds += seconds;
    entry->flops += span->flops;
    entry->bytes += (double)span->bytes;
}

static int64_t profile_begin(void *context, const struct span *span)
{
    struct ops_profiler *p = context;
    if (span->kind != SPAN_OP)
        return -1;
    stream_sync(span->stream);
    p->start = seconds_now();
    return 0;
}

static void profile_end(void *context, const struct span *span, int64_t mark)
{
    struct ops_profiler *p = context;
    (void)mark;
    stream_sync(span->stream);
    const double seconds = seconds_now() - p->start;
    p->ops[span->what].name = span->name;
    count_op(&p->ops[span->what], span, seconds);
    count_op(module_of(p, span->outer), span, seconds);
}

static const struct span_sink profile = {.takes_ops = true, .begin = profile_begin, .end = profile_end};

/* ---- reading ------------------------------------------------------------- */

void ops_profile_enable(struct device *device, bool on)
{
    struct ops_profiler *p = span_sink_context(device, &profile);
    if (on == (p != NULL))
        return;
    if (on) {
        span_sink_add(device, &profile, memory_zeroed(1, sizeof *p));
        return;
    }
    span_sink_remove(device, &profile, p);
    free(p->modules);
    free(p->read);
    free(p);
}

int ops_profile_read(struct device *device, struct op_profile *out, int max)
{
    struct ops_profiler *p = span_sink_context(device, &profile);
    int count = 0;
    for (int i = 0; p && i < OPS_COUNT && count < max; i++)
        if (p->ops[i].calls)
            out[count++] = p->ops[i];
    if (p)
        memset(p->ops, 0, sizeof p->ops);
    return count;
}

int ops_profile_modules(struct device *device, const struct module_profile **modules)
{
    struct ops_profiler *p = span_sink_context(device, &profile);
    int count = 0;
    *modules = p ? p->read : NULL;
    for (int i = 0; p && i < p->num_modules; i++) {
        struct module_profile *entry = &p->modules[i];
        if (entry->work.calls)
            p->read[count++] = *entry;
        entry->work = (struct op_profile){0};
    }
    return count;
}
