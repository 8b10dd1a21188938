/* SPDX-License-Identifier: Apache-2.0 */
/* philox.h: counter-based random numbers, Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
 * SC 2011). There is no state: a value is a function of key and counter, so any rank can compute any element by itself.
 * The inline functions also serve device code (CUDA compiles this header too). */
#pragma once

#include "core/host_device.h"

enum { PHILOX_ROUNDS = 10 };

/* One round in place: x = (hi(M1·x2) ^ x1 ^ k0, lo(M1·x2), hi(M0·x0) ^ x3 ^ k1, lo(M0·x0)). */
HOST_DEVICE void philox_round(uint32_t *x0, uint32_t *x1, uint32_t *x2, uint32_t *x3, uint32_t k0, uint32_t k1)
{
    uint64_t p0 = (uint64_t)0xd2511f53u * *x0, p1 = (uint64_t)0xcd9e8d57u * *x2;
    uint32_t y0 = (uint32_t)(p1 >> 32) ^ *x1 ^ k0, y2 = (uint32_t)(p0 >> 32) ^ *x3 ^ k1;
    *x1 = (uint32_t)p1;
    *x3 = (uint32_t)p0;
    *x0 = y0;
    *x2 = y2;
}

/* All rounds in place: the counter becomes the random words. */
HOST_DEVICE void philox_rounds(uint32_t *x0, uint32_t *x1, uint32_t *x2, uint32_t *x3, uint32_t k0, uint32_t k1)
{
    for (int round = 0; round < PHILOX_ROUNDS; round++)
        philox_round(x0, x1, x2, x3, k0 + (uint32_t)round * 0x9e3779b9u, k1 + (uint32_t)round * 0xbb67ae85u);
}

/* out = Philox4x32-10(key, counter) */
void philox4x32(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4]);

/* out (count): element first + i of the normal stream (seed, stream), by Box-Muller on 32-bit uniforms. */
void philox_normal(uint64_t seed, uint64_t stream, int64_t first, int64_t count, float *out);

/* Returns 64 random bits: element `index` of (seed, stream). */
uint64_t philox_u64(uint64_t seed, uint64_t stream, uint64_t index);
