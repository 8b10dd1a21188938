/* SPDX-License-Identifier: Apache-2.0 */
#include "core/piece_hash.h"

#include "core/heartbeat.h"

#include <xxhash.h>

enum { HASH_PIECE = 1 << 20, HASH_PIECES = 64 /* hashed in parallel */ };

uint64_t piece_hash(uint64_t hash, const void *memory, size_t bytes)
{
    uint64_t pieces[HASH_PIECES];
    for (size_t from = 0; from < bytes; from += (size_t)HASH_PIECES * HASH_PIECE) {
        size_t rest = bytes - from, batch = (size_t)HASH_PIECES * HASH_PIECE;
        int count = (int)(((rest < batch ? rest : batch) + HASH_PIECE - 1) / HASH_PIECE);
#pragma omp parallel for schedule(dynamic) if (count > 1)
        for (int i = 0; i < count; i++) {
            size_t at = from + (size_t)i * HASH_PIECE, left = bytes - at;
            pieces[i] = XXH3_64bits((const char *)memory + at, left < HASH_PIECE ? left : HASH_PIECE);
            heartbeat_beat();
        }
        hash = XXH3_64bits_withSeed(pieces, (size_t)count * sizeof *pieces, hash);
    }
    return hash;
}
