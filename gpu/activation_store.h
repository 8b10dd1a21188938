/* SPDX-License-Identifier: Apache-2.0 */
/* activation_store.h: the inputs of blocks in host memory from forward to backward (cpu_checkpointing).
 *
 * They lie on the device in three buffers in turn. The store's stream copies a block's input down while the next blocks
 * compute, and up again two blocks ahead of its backward; the last three blocks' inputs are never copied:
 *
 *     compute   forward 0 │ forward 1 │ forward 2 │ forward 3 … backward L-1 │ backward L-2 │ backward L-3 │ …
 *     store               │ down 0 ───┼─ down 1 ──┼─ down 2   …              │ up L-4 ──────┼─ up L-5 ─────┼─ …
 *
 * Forward of block 3 waits until buffer 0 has gone down, backward of block L-4 until its input has come up, a copy up
 * until the block that had the buffer has computed its backward: all by events, the host waits for nothing. */
#pragma once

#include "gpu/activation_verbs.h"
#include "gpu/arena.h"

struct activation_store;

/* For the inputs of `blocks` blocks of at most `bytes` each. Backward ends with block `first`: the inputs of those
 * before it are not copied. */
enum status activation_store_new(struct device *device, int64_t first, int64_t blocks, size_t bytes,
                                 struct activation_store **store, struct error *err);
void activation_store_free(struct activation_store *store); /* waits for its copies; may be NULL */
RELEASER(activation_store_drop, struct activation_store, activation_store_free)

/* From the rank's host memory (device_alloc_host()): first dry, then real. */
void activation_store_layout(struct activation_store *store, struct arena *host);
const struct activation_verbs *activation_store_verbs(const struct activation_store *store); /* the store's */
