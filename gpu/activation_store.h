/* activation_store.h: the inputs of blocks in host memory from forward to backward (cpu_checkpointing).
 *
 * They lie on the device in three buffers in turn. A stream of the store's own copies a block's input down while the
 * next blocks compute, and up again two blocks ahead of its backward; the last three blocks' inputs are still on the
 * device when backward begins, and are never copied:
 *
 *     compute   forward 0 │ forward 1 │ forward 2 │ forward 3 … backward L-1 │ backward L-2 │ backward L-3 │ …
 *     store               │ down 0 ───┼─ down 1 ──┼─ down 2   …              │ up L-4 ──────┼─ up L-5 ─────┼─ …
 *
 * Forward of block 3 waits until buffer 0 has gone down, backward of block L-4 until its input has come up, and a copy
 * up until the block that had the buffer before has computed its backward. All of that is events: the host waits for
 * nothing. The bits are those of a run that keeps the inputs on the device. */
#pragma once

#include "gpu/activation_verbs.h"
#include "gpu/arena.h"

struct activation_store;

/* A store for the inputs of `blocks` blocks, at most `bytes` each. */
enum status activation_store_new(struct device *device, int64_t blocks, size_t bytes, struct activation_store **store,
                                 struct error *err);
void activation_store_free(struct activation_store *store); /* waits for its copies; may be NULL */

/* Takes the inputs' memory from the rank's host memory (device_alloc_host()): first dry, then real. */
void activation_store_layout(struct activation_store *store, struct arena *host);

/* Owned by the store. */
const struct activation_verbs *activation_store_verbs(const struct activation_store *store);
