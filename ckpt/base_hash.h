/* SPDX-License-Identifier: Apache-2.0 */
/* base_hash.h: the hash of an adapter's frozen base, which its checkpoints name in its place, whatever the number of
 * ranks and the ZeRO stage: the sum, modulo 2^64, of the XXH3 of each block of 64 bytes, whose seed has the unit and
 * the block's number. Gaps are zeros; padding is left out.
 *
 * The bytes are the fp32 values as they are read, before they are rounded to the compute dtype, so a run in another
 * dtype has the same base; those of a base that is read as stored bytes are these. */
#pragma once

#include "comm/comm.h"
#include "core/model/shard.h"

enum { BASE_HASH_BLOCK = 64 };

/* The part of bytes [first, first + count) of the frozen unit `number` (from 0: the first one) in the sum. `first` is a
 * multiple of BASE_HASH_BLOCK; so is count, unless the unit ends there. All threads. */
uint64_t base_hash_bytes(int number, int64_t first, const void *bytes, size_t count);

/* The part of this rank's slice of a unit, as it is read, without padding. */
uint64_t base_hash_part(const struct tensor_table *table, const struct shard_layout *layout, int rank, int unit,
                        const float *slice);

/* Adds up while a rank's slices are written. */
struct base_hash {
    struct state_slices slices;        /* the true ones */
    const struct tensor_table *table;  /* borrowed */
    const struct shard_layout *layout; /* borrowed */
    int rank;
    const float *written; /* of `unit`, not in the sum yet; NULL: none */
    int unit;
    uint64_t sum;
};

/* The slices, which pass through the hash. Whoever fills them writes each frozen unit once, as a whole. */
struct state_slices base_hash_watch(struct base_hash *hash, const struct tensor_table *table,
                                    const struct shard_layout *layout, int rank, struct state_slices slices);

/* Once all is written: this rank's part of the sum. */
uint64_t base_hash_end(struct base_hash *hash);

/* The sum of the ranks' parts, the same on all ranks. Collective. */
enum status base_hash_join(struct comm *comm, uint64_t *sum, struct error *err);
