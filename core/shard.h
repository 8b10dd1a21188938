/* shard.h: which elements of which unit a rank owns. The same for every ZeRO stage, so a checkpoint knows no stage.
 *
 * Unit u of n elements is padded at its end to world × slice(u), slice(u) = ceil(n / world) rounded up to SHARD_ALIGN:
 *
 *     unit u   | slice of rank 0 | slice of rank 1 | … | slice of rank N-1 ..pad |
 *
 * A rank's own slices of all units, one after the other, are its *shard*: shard_offset[u] is where unit u's slice
 * starts in it, shard_numel its length. The fp32 master weights, m and v are each one such flat array. */
#ifndef ZTRAIN_CORE_SHARD_H
#define ZTRAIN_CORE_SHARD_H

#include "core/tensor_table.h"

enum { SHARD_ALIGN = 64 }; /* elements */

struct shard_layout {
    int world, num_units;
    int64_t *slice;        /* [num_units] elements of unit u that each rank owns, padding included */
    int64_t *shard_offset; /* [num_units] where unit u's slice starts in a rank's shard */
    int64_t shard_numel;   /* sum of slice[] */
    int64_t max_padded;    /* largest world × slice[u] */
};

enum status shard_layout_init(struct shard_layout *layout, const struct tensor_table *table, int world,
                              struct error *err);
void shard_layout_release(struct shard_layout *layout);

/* elements of unit u with padding: world × slice */
static inline int64_t shard_padded(const struct shard_layout *layout, int unit)
{
    return layout->slice[unit] * layout->world;
}

#endif
