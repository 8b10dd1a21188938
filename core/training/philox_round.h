/* SPDX-License-Identifier: Apache-2.0 */
/* philox_round.h: the rounds of Philox4x32-10 as inline functions, for the host and for device code (CUDA compiles this
 * header as well). philox.h has the random numbers that are made of them. */
#pragma once

#include <stdint.h>

#ifdef __CUDACC__
#define PHILOX_FUNCTION static __host__ __device__ inline
#else
#define PHILOX_FUNCTION static inline __attribute__((always_inline, unused))
#endif

enum { PHILOX_ROUNDS = 10 };

/* One round in place: x = (hi(M1·x2) ^ x1 ^ k0, lo(M1·x2), hi(M0·x0) ^ x3 ^ k1, lo(M0·x0)). */
PHILOX_FUNCTION void philox_round(uint32_t *x0, uint32_t *x1, uint32_t *x2, uint32_t *x3, uint32_t k0, uint32_t k1)
{
    uint64_t p0 = (uint64_t)0xd2511f53u * *x0, p1 = (uint64_t)0xcd9e8d57u * *x2;
    uint32_t y0 = (uint32_t)(p1 >> 32) ^ *x1 ^ k0, y2 = (uint32_t)(p0 >> 32) ^ *x3 ^ k1;
    *x1 = (uint32_t)p1;
    *x3 = (uint32_t)p0;
    *x0 = y0;
    *x2 = y2;
}

/* All rounds in place: the counter becomes the random words. */
PHILOX_FUNCTION void philox_rounds(uint32_t *x0, uint32_t *x1, uint32_t *x2, uint32_t *x3, uint32_t k0, uint32_t k1)
{
    for (int round = 0; round < PHILOX_ROUNDS; round++)
        philox_round(x0, x1, x2, x3, k0 + (uint32_t)round * 0x9e3779b9u, k1 + (uint32_t)round * 0xbb67ae85u);
}
