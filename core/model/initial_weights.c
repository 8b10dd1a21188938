/* SPDX-License-Identifier: Apache-2.0 */
#include "core/model/initial_weights.h"

#include "core/heartbeat.h"

#include <string.h>

void initial_weights_fill(const struct tensor_table *table, int unit, uint64_t seed, int64_t begin, int64_t count,
                          float *out)
{
    enum { PIECE = 1 << 16 };
    const struct unit_info *info = &table->units[unit];
    const int64_t end = begin + count;
    memset(out, 0, (size_t)count * sizeof *out);
    for (int i = info->first_tensor; i < info->first_tensor + info->num_tensors; i++) {
        const struct tensor_info *tensor = &table->tensors[i];
        const int64_t first = tensor->offset > begin ? tensor->offset : begin;
        const int64_t last = tensor->offset + tensor->numel < end ? tensor->offset + tensor->numel : end;
#pragma omp parallel for schedule(dynamic)
        for (int64_t at = first; at < last; at += PIECE) {
            const int64_t n = last - at < PIECE ? last - at : PIECE;
            tensor_init_range(table, i, seed, at - tensor->offset, n, out + (at - begin));
            heartbeat_beat();
        }
    }
}
