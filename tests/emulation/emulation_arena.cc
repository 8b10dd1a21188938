/* SPDX-License-Identifier: Apache-2.0 */
/* emulation_arena.cc: red zones between the pieces of an arena (gpu/arena.h), which the device sees as one allocation.
 *
 * The linker sends calls of arena_init() and arena_take() here (--wrap). Each piece is followed by RED_ZONE bytes that
 * no code may access; a dry arena counts them as well, so the plan stays exact. */
#include "emulation.h"

extern "C" {
#include "gpu/arena.h"

void __real_arena_init(struct arena *arena, void *base, size_t capacity);
void *__real_arena_take(struct arena *arena, enum mem_kind kind, size_t bytes);

void __wrap_arena_init(struct arena *arena, void *base, size_t capacity)
{
    __real_arena_init(arena, base, capacity);
    if (emulation::is_device(base) && capacity) {
        emulation::guard lock(emulation::big_lock);
        emulation::shadow_red_zone(base, capacity, false);
    }
}

void *__wrap_arena_take(struct arena *arena, enum mem_kind kind, size_t bytes)
{
    enum { RED_ZONE = 2 * ARENA_ALIGN };
    void *piece = __real_arena_take(arena, kind, bytes);
    if (!bytes)
        return piece;
    char *behind = static_cast<char *>(__real_arena_take(arena, kind, RED_ZONE));
    if (piece && emulation::is_device(piece)) {
        emulation::guard lock(emulation::big_lock);
        char *end = static_cast<char *>(piece) + (bytes + 7) / 8 * 8;
        emulation::shadow_red_zone(end, static_cast<size_t>(behind + RED_ZONE - end), true);
    }
    return piece;
}
}
