/* SPDX-License-Identifier: Apache-2.0 */
/* arena.h: all memory that a rank's steps use, planned before anything is allocated: an arena each for its own memory,
 * for the segment that peers read, and for host memory of offload (struct memory_plan).
 *
 * Every module lays out its buffers in one function, MODULE_layout(module, arena), which runs twice: with a dry arena
 * (base NULL), which counts and yields the plan, then with a real arena of exactly that size (arena_finish()).
 *
 *     | params | master | m | v | grads | activations | … |      each piece starts at a multiple of ARENA_ALIGN bytes
 */
#pragma once

#include "core/status.h"

enum { ARENA_ALIGN = 128 };

enum mem_kind {
    MEM_PARAMS,      /* parameters in the compute dtype */
    MEM_GRADS,       /* gradients: of all parameters, or of the rank's slices */
    MEM_OPTIMIZER,   /* m, v, and the fp32 master weights unless the parameters are fp32 themselves */
    MEM_ACTIVATIONS, /* activations kept from forward to backward, and their gradients */
    MEM_COMM,        /* gathered units, gradient buckets, staging */
    MEM_WORKSPACE,   /* scratch of ops */
    MEM_DATA,        /* token batches */
    MEM_SNAPSHOT,    /* host memory: the rank's slices as the checkpoint that is being written has them */
    MEM_KIND_COUNT
};
const char *mem_kind_name(enum mem_kind kind); /* "parameters", "gradients", … */

struct arena {
    char *base;      /* NULL: dry */
    size_t capacity; /* bytes; dry: 0 */
    size_t used;
    size_t by_kind[MEM_KIND_COUNT]; /* bytes taken, each piece rounded up to ARENA_ALIGN */
};

void arena_init_dry(struct arena *arena);
/* base NULL: capacity must be 0, and nothing can be taken. */
void arena_init(struct arena *arena, void *base, size_t capacity);

/* ARENA_ALIGN-aligned; NULL from a dry arena, or for 0 bytes. To exceed the capacity is a bug. */
void *arena_take(struct arena *arena, enum mem_kind kind, size_t bytes);

void arena_finish(const struct arena *arena); /* asserts that the planned capacity was used exactly */
