/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/ops_profile.h"

#include "core/memory.h"
#include "gpu/span_recorder.h"

/* Ops that the host is ahead of the device at most. */
enum { OPS_AHEAD = 512 };

struct ops_profiler {
    struct span_recorder *recorder; /* owned */
    struct op_profile ops[OPS_COUNT];
    struct module_profile *modules, *read; /* (num_modules), owned */
    int num_modules;
};

static struct op_profile *module_of(struct ops_profiler *p, struct span_place place)
{
    for (int i = 0; i < p->num_modules; i++)
        if (p->modules[i].place.phase == place.phase && p->modules[i].place.unit == place.unit)
            return &p->modules[i].work;
    p->modules = memory_grow(p->modules, (size_t)p->num_modules, sizeof *p->modules);
    p->read = memory_grow(p->read, (size_t)p->num_modules, sizeof *p->read);
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

static bool profile_wants(void *context, const struct span *span)
{
    (void)context;
    return span->kind == SPAN_OP;
}

static void profile_deliver(void *context, const struct span *span)
{
    struct ops_profiler *p = context;
    p->ops[span->what].name = span->name;
    count_op(&p->ops[span->what], span, span->seconds);
    count_op(module_of(p, span->outer), span, span->seconds);
}

enum status ops_profiler_new(struct device *device, struct ops_profiler **profiler, struct error *err)
{
    RELEASED(ops_profiler_drop) struct ops_profiler *p = memory_zeroed(1, sizeof *p);
    const struct span_recorder_config config = {
        .capacity = OPS_AHEAD, .takes_ops = true, .wants = profile_wants, .deliver = profile_deliver, .context = p};
    TRY(span_recorder_new(device, &config, &p->recorder, err));
    *profiler = TAKEN(p);
    return STATUS_OK;
}

void ops_profiler_free(struct ops_profiler *p)
{
    if (!p) return;
    span_recorder_free(p->recorder);
    free(p->modules);
    free(p->read);
    free(p);
}

int ops_profiler_read(struct ops_profiler *p, struct op_profile *out, int max)
{
    int count = 0;
    if (!p) return 0;
    span_recorder_collect(p->recorder, true);
    for (int i = 0; i < OPS_COUNT && count < max; i++)
        if (p->ops[i].calls) out[count++] = p->ops[i];
    memset(p->ops, 0, sizeof p->ops);
    return count;
}

int ops_profiler_modules(struct ops_profiler *p, const struct module_profile **modules)
{
    int count = 0;
    span_recorder_collect(p->recorder, true);
    for (struct module_profile *entry = p->modules; entry < p->modules + p->num_modules; entry++) {
        if (entry->work.calls) p->read[count++] = *entry;
        entry->work = (struct op_profile){0};
    }
    *modules = p->read;
    return count;
}
