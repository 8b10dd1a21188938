/* SPDX-License-Identifier: Apache-2.0 */
/* piece_hash.h: the hash of long memory, on all threads. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Continues `hash` (0: begins) by `bytes` of memory: of each 64 MiB, the last of them shorter, it becomes the XXH3,
 * with itself as the seed, of the XXH3s of the pieces of 1 MiB. The number of threads changes no bit; where the memory
 * is cut into calls does. Beats. */
uint64_t piece_hash(uint64_t hash, const void *memory, size_t bytes);
