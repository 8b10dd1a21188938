/* SPDX-License-Identifier: Apache-2.0 */
#include "core/model/moment_map.h"

#include "core/memory.h"
#include "core/round_up.h"

#include <stdlib.h>
#include <string.h>

void moment_map_init(struct moment_map *map, int units, int tensors)
{
    *map = (struct moment_map){.first = memory_zeroed((size_t)units + 1, sizeof *map->first),
                               .ranges = memory_zeroed((size_t)tensors + 1, sizeof *map->ranges)};
}

void moment_map_add(struct moment_map *map, int units, int unit, int64_t offset, int64_t numel)
{
    map->ranges[map->num_ranges++] = (struct moment_range){offset, offset + numel};
    for (int u = unit; u < units; u++)
        map->first[u + 1] = map->num_ranges;
}

void moment_map_release(struct moment_map *map)
{
    free(map->first);
    free(map->ranges);
    memset(map, 0, sizeof *map);
}

int64_t moment_map_words(const struct moment_map *map, int unit, int64_t from, int64_t to)
{
    int64_t blocks = 0;
    for (int i = map->first ? map->first[unit] : 0; map->first && i < map->first[unit + 1]; i++) {
        const int64_t first = max64(map->ranges[i].first, from), end = min64(map->ranges[i].end, to);
        ASSERT(first >= end || (end - first) % MOMENT_BLOCK == 0);
        blocks += first < end ? (end - first) / MOMENT_BLOCK : 0;
    }
    return to - from - blocks * (MOMENT_BLOCK - MOMENT_BLOCK_WORDS);
}

int64_t moment_map_room(const struct moment_map *map, int unit, int64_t slice, int world, int64_t at, int64_t count)
{
    const bool plain = !map->first || map->first[unit] == map->first[unit + 1];
    int64_t room = plain ? count : 0;
    for (int r = 0; !plain && r < world; r++)
        room = max64(moment_map_words(map, unit, slice * r + at, slice * r + at + count), room);
    return room;
}
