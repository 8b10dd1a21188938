/* ops_profile.c: the time and work of each op, measured by a table that wraps the device's op table.
 *
 * While the profile is on, device->ops points to `profiled`. Its entries time the wrapped op between two stream_sync()
 * calls and add up its work (op_cost.h). Only one thread may call ops while the profile is on. */
#include "core/clock.h"
#include "core/memory.h"
#include "gpu/device_backend.h"
#include "gpu/op_cost.h"

#include <stdlib.h>
#include <string.h>

struct ops_profiler {
    const struct op_table *inner; /* the table that is wrapped */
    struct op_profile entries[OPS_COUNT];
};

/* ---- the wrapping table -------------------------------------------------- */

static struct ops_profiler **profiler_of(struct device *device)
{
    return &((struct device_private *)device->private_)->profiler;
}

#define OPS_INDEX(name) INDEX_##name,
enum { OPS_LIST(OPS_INDEX) };

#define OPS_PROFILED(op)                                                           \
    static void profiled_##op(struct stream *stream, const struct op##_args *args) \
    {                                                                              \
        struct ops_profiler *profiler = *profiler_of(stream_device(stream));       \
        struct op_profile *entry = &profiler->entries[INDEX_##op];                 \
        struct op_cost work = op_cost_##op(args);                                  \
        stream_sync(stream);                                                       \
        double start = seconds_now();                                              \
        profiler->inner->op(stream, args);                                         \
        stream_sync(stream);                                                       \
        entry->seconds += seconds_now() - start;                                   \
        entry->calls++;                                                            \
        entry->flops += work.flops;                                                \
        entry->bytes += work.bytes;                                                \
    }
OPS_LIST(OPS_PROFILED)

#define OPS_PROFILED_MEMBER(op) .op = profiled_##op,
static const struct op_table profiled = {OPS_LIST(OPS_PROFILED_MEMBER)};

#define OPS_NAME(op) #op,
static const char *const names[] = {OPS_LIST(OPS_NAME)};

void ops_profile_enable(struct device *device, bool on)
{
    struct ops_profiler **profiler = profiler_of(device);
    if (on == (*profiler != NULL))
        return;
    if (on) {
        *profiler = memory_zeroed(1, sizeof **profiler);
        (*profiler)->inner = device->ops;
        device->ops = &profiled;
    } else {
        device->ops = (*profiler)->inner;
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
