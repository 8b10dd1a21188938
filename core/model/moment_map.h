/* SPDX-License-Identifier: Apache-2.0 */
/* moment_map.h: where the moments of AdamW8bit lie in slices of a unit, which are words of 4 bytes in memory and files:
 *
 *     | block | block | … | fp32 | fp32 | … |      blocks: 65 words for 256 elements of a tensor that has them
 *                                                  fp32: one word for each element of all else, gaps included
 *
 * Slices begin at multiples of MOMENT_BLOCK, so none cuts a block. Ranks' slices of a unit have as many words as the
 * longest of them: its *room*; the words after a shorter one's are 0. */
#pragma once

#include "core/quantization/moment_block.h"

#include <stdbool.h>

struct moment_range {
    int64_t first, end; /* elements of the unit */
};

/* All zero: there are no blocks, and every element has a word. */
struct moment_map {
    int num_ranges;
    int *first;                  /* [units + 1] owned: the unit's first range */
    struct moment_range *ranges; /* [num_ranges] owned; of a unit in rising order */
};

/* Takes memory for the ranges of `tensors` tensors. */
void moment_map_init(struct moment_map *map, int units, int tensors);
/* Adds a tensor that has blocks: by unit, then by offset. */
void moment_map_add(struct moment_map *map, int units, int unit, int64_t offset, int64_t numel);
void moment_map_release(struct moment_map *map);

/* The words of elements [from, to) of a unit; neither lies inside a block. */
int64_t moment_map_words(const struct moment_map *map, int unit, int64_t from, int64_t to);

/* The words that each of `world` slices has room for, of `count` elements from its element `at` on. */
int64_t moment_map_room(const struct moment_map *map, int unit, int64_t slice, int world, int64_t at, int64_t count);
