/* arena.h: all of a rank's memory, planned before anything is allocated.
 *
 * Every module lays out its buffers in a function M_layout(module, arena) that calls arena_take(). The function runs
 * twice: with a dry arena (base NULL), which only counts and gives the plan, and with the real one of exactly that
 * size. The same code does both, so the plan is exact; arena_finish() asserts it.
 *
 *     | params | master | m | v | grads | activations | … |      each piece starts at a multiple of ARENA_ALIGN bytes
 */
#ifndef ZTRAIN_GPU_ARENA_H
#define ZTRAIN_GPU_ARENA_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ARENA_ALIGN = 128 };

enum mem_kind {
    MEM_PARAMS,      /* parameters in the compute dtype */
    MEM_GRADS,       /* gradients kept (full or own slices) */
    MEM_OPTIMIZER,   /* fp32 master weights (where they are not the parameters themselves), m, v */
    MEM_ACTIVATIONS, /* kept from forward to backward, and their gradients */
    MEM_COMM,        /* gathered units, gradient buckets, staging */
    MEM_WORKSPACE,   /* scratch of ops */
    MEM_DATA,        /* token batches */
    MEM_KIND_COUNT
};
const char *mem_kind_name(enum mem_kind kind); /* "parameters", "gradients", … */

struct arena {
    char *base;      /* NULL: dry */
    size_t capacity; /* bytes; dry: 0 */
    size_t used;
    size_t by_kind[MEM_KIND_COUNT]; /* bytes asked for, alignment counted with the piece before it */
};

void arena_init_dry(struct arena *arena);
void arena_init(struct arena *arena, void *base, size_t capacity); /* base NULL: capacity 0, nothing may be taken */

/* bytes of that kind, ARENA_ALIGN-aligned; a dry arena returns NULL. Running over capacity is a bug. bytes 0: NULL. */
void *arena_take(struct arena *arena, enum mem_kind kind, size_t bytes);

/* Asserts that exactly the planned capacity was used. */
void arena_finish(const struct arena *arena);

#endif
