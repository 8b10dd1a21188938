/* SPDX-License-Identifier: Apache-2.0 */
/* shard.h: which elements of which unit a rank owns, at every ZeRO stage.
 *
 * Unit u of n elements is padded at its end to world × slice(u), slice(u) = ceil(n / world) rounded up to SHARD_ALIGN:
 *
 *     unit u   | slice of rank 0 | slice of rank 1 | … | slice of rank N-1 ..pad |
 *
 * A rank's slices of all units, one after the other, are its *shard*: unit u's slice starts at shard_offset[u], and the
 * shard has shard_numel elements. The optimizer's state (master, m, v) is one such flat array of each kind, of the
 * first num_trained units only: those after them are frozen (tensor_table.h).
 *
 * A unit that is kept as bytes (stored_base.h) counts in words; one without elements has a slice of padding.
 *
 * With W virtual ranks (train.virtual_ranks) the unit is laid out for W: it has W canonical slices, and rank r of N
 * owns the `parts` = W / N neighbours from r × parts on. So the padded unit and its canonical slices are the same at
 * any N. */
#pragma once

#include "core/model/state_slices.h"
#include "core/model/tensor_table.h"

enum { SHARD_ALIGN = TENSOR_ALIGN }; /* elements; with moments in 8 bits MOMENT_BLOCK */

/* Where the moments of AdamW8bit lie in slices of a unit, which are words of 4 bytes in memory and files:
 *
 *     | block | block | … | fp32 | fp32 | … |      blocks: 65 words for 256 elements of a tensor that has them
 *                                                  fp32: one word for each element of all else, gaps included
 *
 * Slices begin at multiples of MOMENT_BLOCK, so none cuts a block. Ranks' slices of a unit have as many words as the
 * longest of them: its *room*; the words after a shorter one's are 0. */
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

struct shard_layout {
    int world, num_units;
    int parts;             /* canonical slices that a rank's slice consists of; 1 without virtual ranks */
    int num_trained;       /* the first units, which have optimizer state and are in checkpoints */
    int64_t *slice;        /* [num_units] elements of unit u that each rank owns, padding included */
    int64_t *shard_offset; /* [num_units + 1] first element of unit u's slice in a rank's shard */
    int64_t shard_numel;   /* sum of slice[] */
    int64_t trained_numel; /* of the first num_trained */
    int64_t max_padded;    /* largest world × slice[u] */
    struct moment_map map; /* moments in 8 bits, which have fewer words than elements; else without blocks */
    int64_t *room;         /* [num_units] words that unit u's slice of a moment has room for; without blocks slice[] */
    int64_t *room_offset;  /* [num_units + 1] the same of all units before u */
};

/* The slice of a unit of `numel` elements. */
int64_t shard_slice_of(const struct tensor_table *table, int64_t numel, int world, int parts);

/* Computes the layout of the table's units; release it with shard_layout_release(). parts: see above. */
void shard_layout_init_parts(struct shard_layout *layout, const struct tensor_table *table, int world, int parts);
void shard_layout_release(struct shard_layout *layout);

static inline void shard_layout_init(struct shard_layout *layout, const struct tensor_table *table, int world)
{
    shard_layout_init_parts(layout, table, world, 1);
}

/* Elements of one of the unit's canonical slices. */
static inline int64_t shard_part(const struct shard_layout *layout, int unit)
{
    return layout->slice[unit] / layout->parts;
}

/* Elements of the unit with padding: world × slice. */
static inline int64_t shard_padded(const struct shard_layout *layout, int unit)
{
    return layout->slice[unit] * layout->world;
}

/* The words of 4 bytes of a rank's slice of this kind of state, padding included. */
static inline int64_t state_words(const struct shard_layout *layout, enum state_kind kind, int unit)
{
    return kind == STATE_MASTER ? layout->slice[unit] : layout->room[unit];
}

/* Those of elements [from, to) of the unit, which lie in one slice. */
static inline int64_t state_words_between(const struct shard_layout *layout, enum state_kind kind, int unit,
                                          int64_t from, int64_t to)
{
    return kind == STATE_MASTER ? to - from : moment_map_words(&layout->map, unit, from, to);
}
