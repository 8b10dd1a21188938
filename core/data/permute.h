/* SPDX-License-Identifier: Apache-2.0 */
/* permute.h: the order of an epoch's samples. */
#pragma once

#include <stdint.h>

/* Keyed permutation of [0, n): a bijection computed per index (Feistel network with cycle walking), nothing stored.
 * Checkpoints rely on it: a resumed run continues in the same order, so the values must never change. index < n. */
uint64_t permute_index(uint64_t index, uint64_t n, uint64_t seed, uint64_t epoch);
