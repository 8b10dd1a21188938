/* SPDX-License-Identifier: Apache-2.0 */
/* piece_hash.h: the hash of long memory, on all threads. */
#pragma once

#include "core/status.h"

/* Continues `hash` (0: begins) by memory: of each 64 MiB (the last may be shorter) it becomes the XXH3, seeded with
 * itself, of the XXH3s of pieces of 1 MiB. Threads change no bit; where calls cut the memory does. Beats. */
uint64_t piece_hash(uint64_t hash, const void *memory, size_t bytes);
