/* ops_profile.c: the time and work of each op, measured by a table that wraps the device's op table.
 *
 * While the profile is on, device->ops points to `profiled`. Its entries time the wrapped op between two stream_sync()
 * calls and add up its work (op_cost.h), by op and by the range of the step (trace.h). Only one thread may call ops
 * while the profile is on. */
#include "gpu/ops_profile.h"

#include "core/clock.h"
#include "core/memory.h"
#include "gpu/device_backend.h"
#include "gpu/op_cost.h"

#include <stdlib.h>
#include <string.h>

enum { RANGES_DEEP = 8 /* deeper ranges, which only an error leaves behind, count as their parent */ };

struct ops_profiler {
    const struct op_table *inner; /* the table that is wrapped */
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

#define OPS_INDEX(name) INDEX_##name,
enum { OPS_LIST(OPS_INDEX) };

#define OPS_PROFILED(op)                                                           \
    static void profiled_##op(struct stream *stream, const struct op##_args *args) \
    {                                                                              \
        struct ops_profiler *profiler = *profiler_of(stream_device(stream));       \
        struct op_cost work = op_cost_##op(args);                                  \
        stream_sync(stream);                                                       \
        double start = seconds_now();                                              \
        profiler->inner->op(stream, args);                                         \
        stream_sync(stream);                                                       \
        count_op(profiler, INDEX_##op, &work, seconds_now() - start);              \
    }
OPS_LIST(OPS_PROFILED)

#define OPS_PROFILED_MEMBER(op) .op = profiled_##op,
static const struct op_table profiled = {OPS_LIST(OPS_PROFILED_MEMBER)};

#define OPS_NAME(op) #op,
static const char *const names[] = {OPS_LIST(OPS_NAME)};

/* ---- ranges -------------------------------------------------------------- */

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
    if (p->depth < RANGES_DEEP)
        p->open[p->depth] = module_index(p, range, unit);
    p->depth++;
}

void ops_profile_leave(struct stream *stream)
{
    struct ops_profiler *p = *profiler_of(stream_device(stream));
    if (p && p->depth > 0)
        p->depth--;
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

void ops_profile_enable(struct device *device, bool on)
{
    struct ops_profiler **profiler = profiler_of(device);
    if (on == (*profiler != NULL))
        return;
    if (on) {
        *profiler = memory_zeroed(1, sizeof **profiler);
        (*profiler)->inner = device->ops;
        module_index(*profiler, TRACE_OTHER, TRACE_WHOLE);
        device->ops = &profiled;
    } else {
        device->ops = (*profiler)->inner;
        free((*profiler)->modules);
        free((*profiler)->read);
        free(*profiler);
        *profiler = NULL;
    }
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
