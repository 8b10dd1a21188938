/* SPDX-License-Identifier: Apache-2.0 */
/* permute.c: a keyed permutation of [0, n) that is computed, not stored. A Feistel network is a bijection on 2h bits
 * whatever its round function is. The smallest even number of bits that holds n - 1 is taken, so the network's domain
 * is less than 4n (and at least 4); an image outside [0, n) goes through the network again until one falls inside
 * ("cycle walking"). The walk from an index of [0, n) follows that index's cycle, which returns to [0, n), so it ends,
 * and the result is a bijection of [0, n). */
#include "core/data/permute.h"

#include "core/status.h"

#define ROUNDS 8

/* The finalizer of SplitMix64 (Steele, Lea, Flood 2014): every input bit reaches every output bit. */
static uint64_t permute_mix64(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

uint64_t permute_index(uint64_t index, uint64_t n, uint64_t seed, uint64_t epoch)
{
    ASSERT(index < n);
    int half = 1;
    while (half < 32 && (n - 1) >> (2 * half) != 0) half++;
    uint64_t mask = (UINT64_C(1) << half) - 1;
    uint64_t key = permute_mix64(permute_mix64(seed) ^ epoch);

    do {
        uint64_t left = index >> half, right = index & mask;
        for (int round = 0; round < ROUNDS; round++) {
            uint64_t swapped = left ^ (permute_mix64(key + permute_mix64(right) + (uint64_t)round) >> (64 - half));
            left = right;
            right = swapped;
        }
        index = left << half | right;
    } while (index >= n);
    return index;
}
