/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/arena.h"

static const char *const kind_names[] = {[MEM_PARAMS] = "parameters",   [MEM_GRADS] = "gradients",
                                         [MEM_OPTIMIZER] = "optimizer", [MEM_ACTIVATIONS] = "activations",
                                         [MEM_COMM] = "communication",  [MEM_WORKSPACE] = "workspace",
                                         [MEM_DATA] = "data",           [MEM_SNAPSHOT] = "snapshot"};
_Static_assert(COUNT_OF(kind_names) == MEM_KIND_COUNT, "every kind of memory has a name");

const char *mem_kind_name(enum mem_kind kind)
{
    ASSERT((unsigned)kind < MEM_KIND_COUNT);
    return kind_names[kind];
}

void arena_init_dry(struct arena *arena)
{
    memset(arena, 0, sizeof *arena);
}

void arena_init(struct arena *arena, void *base, size_t capacity)
{
    ASSERT((base || capacity == 0) && (uintptr_t)base % ARENA_ALIGN == 0);
    memset(arena, 0, sizeof *arena);
    arena->base = base;
    arena->capacity = capacity;
}

void *arena_take(struct arena *arena, enum mem_kind kind, size_t bytes)
{
    ASSERT((unsigned)kind < MEM_KIND_COUNT);
    if (!bytes) return NULL;
    ASSERT(bytes <= SIZE_MAX - ARENA_ALIGN - arena->used);
    size_t offset = arena->used, taken = (bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    arena->used = offset + taken;
    arena->by_kind[kind] += taken;
    if (!arena->base) return NULL;
    ASSERT(arena->used <= arena->capacity);
    return arena->base + offset;
}

void arena_finish(const struct arena *arena)
{
    ASSERT((arena->base || arena->capacity == 0) && arena->used == arena->capacity);
}
