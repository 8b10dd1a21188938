/* SPDX-License-Identifier: Apache-2.0 */
/* philox.h: counter-based random numbers, Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
 * SC 2011). There is no state: a value is a function of key and counter, so any rank can compute any element by itself.
 */
#pragma once

#include <stdint.h>

/* out = Philox4x32-10(key, counter) */
void philox4x32(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4]);

/* out (count): out[i] = element first + i of the standard normal stream (seed, stream), by Box-Muller on 32-bit
 * uniforms. */
void philox_normal(uint64_t seed, uint64_t stream, int64_t first, int64_t count, float *out);

/* Returns 64 random bits: element `index` of (seed, stream). */
uint64_t philox_u64(uint64_t seed, uint64_t stream, uint64_t index);
