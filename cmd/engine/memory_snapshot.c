/* SPDX-License-Identifier: Apache-2.0 */
/* memory_snapshot.c: the memory of a rank's copy of its slices, from which checkpoints are written in the background.
 * The plan counts it, but it lies outside of the arenas: with checkpoint.writer.decoupled auto it is taken when the
 * first save is due (cmd/save/background_save.c), and with true before the first step. */
#include "cmd/engine/engine.h"
#include "core/machine.h"
#include "gpu/host_pages.h"

bool memory_snapshot_fits(const struct engine *t)
{
    struct machine_memory machine;
    machine_memory("", &machine);
    const int ranks = t->node_ranks ? t->node_ranks : t->world;
    return (double)ranks * (double)t->snapshot_bytes <= memory_auto_share * (double)machine.available;
}

enum status memory_snapshot_take(struct engine *t, struct error *err)
{
    return host_pages_new(t->snapshot_bytes, &t->snapshot, err);
}

enum status memory_snapshot_place(struct engine *t, struct error *err)
{
    struct arena arena;
    if (t->snapshot)
        TRY(device_pin(t->device, t->snapshot, t->snapshot_bytes, err));
    else
        TRY(device_alloc_host(t->device, t->snapshot_bytes, &t->snapshot, err));
    t->snapshot_is_pinned = true;
    arena_init(&arena, t->snapshot, t->snapshot_bytes);
    zero_snapshot_layout(t->zero, &arena);
    arena_finish(&arena);
    return STATUS_OK;
}

void memory_snapshot_free(struct engine *t)
{
    if (t->snapshot_is_pinned)
        device_free_host(t->device, t->snapshot, t->snapshot_bytes);
    else
        host_pages_free(t->snapshot, t->snapshot_bytes);
    t->snapshot = NULL;
    t->snapshot_is_pinned = false;
}
