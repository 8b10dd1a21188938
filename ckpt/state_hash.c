/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/state_hash.h"

#include "core/piece_hash.h"

#include <xxhash.h>

enum { EXCHANGED_HASHES = COMM_EXCHANGE_MAX / sizeof(uint64_t) }; /* of a rank, at a time */

void state_hash_init(struct state_hash *hash, const struct shard_layout *layout, int rank, int states)
{
    *hash = (struct state_hash){.layout = layout,
                                .rank = rank,
                                .states = states,
                                .parts = memory_zeroed((size_t)layout->parts * (size_t)states, sizeof *hash->parts)};
}

void state_hash_release(struct state_hash *hash)
{
    free(TAKEN(hash->parts));
}

void state_hash_add(struct state_hash *hash, enum state_kind kind, int unit, const float *slice)
{
    const int64_t part = shard_part(hash->layout, unit);
    int64_t first = hash->layout->slice[unit] * hash->rank;
    for (int p = 0; p < hash->layout->parts; p++, first += part) {
        uint64_t *own = &hash->parts[(size_t)p * (size_t)hash->states + (size_t)kind];
        const int64_t words = state_words_between(hash->layout, kind, unit, first, first + part);
        *own = piece_hash(*own, slice, (size_t)words * sizeof *slice);
        slice += words;
    }
}

enum status state_hash_join(const struct state_hash *hash, struct comm *comm, uint64_t *hashes, struct error *err)
{
    const size_t states = (size_t)hash->states, own = (size_t)hash->layout->parts * states;
    const size_t slices = (size_t)hash->layout->world * (size_t)hash->layout->parts;
    const size_t world = (size_t)hash->layout->world, most = own < EXCHANGED_HASHES ? own : EXCHANGED_HASHES;
    OWNED uint64_t *all = memory_alloc(slices * states * sizeof *all), *kind = memory_alloc(slices * sizeof *kind);
    OWNED uint64_t *exchanged = memory_alloc(world * most * sizeof *exchanged);
    for (size_t first = 0, n; first < own; first += n) {
        n = own - first < most ? own - first : most;
        TRY(comm_exchange(comm, hash->parts + first, n * sizeof *exchanged, exchanged, err));
        for (size_t r = 0; r < world; r++) memcpy(all + r * own + first, exchanged + r * n, n * sizeof *all);
    }
    for (size_t s = 0; s < states; s++) {
        for (size_t v = 0; v < slices; v++) kind[v] = all[v * states + s];
        hashes[s] = XXH3_64bits(kind, slices * sizeof *kind);
    }
    return STATUS_OK;
}

const char *state_hash_name(enum state_kind kind)
{
    return kind == STATE_MASTER ? "parameters" : state_kind_names[kind];
}
