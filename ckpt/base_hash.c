/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/base_hash.h"

#include <xxhash.h>

uint64_t base_hash_bytes(int number, int64_t first, const void *bytes, size_t count)
{
    const uint64_t seed = (uint64_t)number << 48;
    const int64_t blocks = (int64_t)((count + BASE_HASH_BLOCK - 1) / BASE_HASH_BLOCK);
    uint64_t sum = 0;
    ASSERT(first % BASE_HASH_BLOCK == 0);
#pragma omp parallel for reduction(+ : sum)
    for (int64_t i = 0; i < blocks; i++) {
        const size_t begin = (size_t)i * BASE_HASH_BLOCK, left = count - begin;
        sum += XXH3_64bits_withSeed((const char *)bytes + begin, left < BASE_HASH_BLOCK ? left : BASE_HASH_BLOCK,
                                    seed + (uint64_t)(first / BASE_HASH_BLOCK + i));
    }
    return sum;
}

uint64_t base_hash_part(const struct tensor_table *table, const struct shard_layout *layout, int rank, int number,
                        const float *slice)
{
    const struct unit_info *unit = &table->units[number];
    const int64_t word = unit->stored_bytes ? table->word : (int64_t)sizeof *slice;
    const int64_t size = layout->slice[number] * word, first = size * rank;
    const int64_t end = unit->stored_bytes ? unit->stored_bytes : unit->numel * word;
    const int64_t count = end - first < size ? end - first : size;
    return count > 0 ? base_hash_bytes(number - layout->num_trained, first, slice, (size_t)count) : 0;
}

/* The slice that was written last. */
static void base_hash_take(struct base_hash *hash)
{
    if (hash->written) hash->sum += base_hash_part(hash->table, hash->layout, hash->rank, hash->unit, hash->written);
    hash->written = NULL;
}

static enum status base_hash_slice(void *owner, enum slice_access access, enum state_kind kind, int unit, float **slice,
                                   struct error *err)
{
    struct base_hash *hash = owner;
    base_hash_take(hash);
    TRY(state_slice(hash->slices, access, kind, unit, slice, err));
    if (access == SLICE_WRITE && unit >= hash->layout->num_trained) {
        hash->written = *slice;
        hash->unit = unit;
    }
    return STATUS_OK;
}

struct state_slices base_hash_watch(struct base_hash *hash, const struct tensor_table *table,
                                    const struct shard_layout *layout, int rank, struct state_slices slices)
{
    *hash = (struct base_hash){.slices = slices, .table = table, .layout = layout, .rank = rank};
    return (struct state_slices){.owner = hash, .count = slices.count, .get = base_hash_slice};
}

uint64_t base_hash_end(struct base_hash *hash)
{
    base_hash_take(hash);
    return hash->sum;
}

enum status base_hash_join(struct comm *comm, uint64_t *sum, struct error *err)
{
    const int world = comm_world(comm);
    OWNED uint64_t *parts = memory_alloc((size_t)world * sizeof *parts);
    TRY(comm_exchange(comm, sum, sizeof *sum, parts, err));
    *sum = 0;
    for (int r = 0; r < world; r++) *sum += parts[r];
    return STATUS_OK;
}
