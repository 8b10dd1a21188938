/* SPDX-License-Identifier: Apache-2.0 */
#include "core/model/shard.h"

#include "core/memory.h"
#include "core/round_up.h"

const char *const state_kind_names[] = {
    [STATE_MASTER] = "master", [STATE_EXP_AVG] = "exp_avg", [STATE_EXP_AVG_SQ] = "exp_avg_sq"};

void moment_map_init(struct moment_map *map, int units, int tensors)
{
    *map = (struct moment_map){.first = memory_zeroed((size_t)units + 1, sizeof *map->first),
                               .ranges = memory_zeroed((size_t)tensors + 1, sizeof *map->ranges)};
}

void moment_map_add(struct moment_map *map, int units, int unit, int64_t offset, int64_t numel)
{
    map->ranges[map->num_ranges++] = (struct moment_range){offset, offset + numel};
    for (int u = unit; u < units; u++) map->first[u + 1] = map->num_ranges;
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

/* After all slices are known. */
static void shard_layout_moments(struct shard_layout *layout, const struct tensor_table *table)
{
    if (table->moment_blocks) moment_map_init(&layout->map, table->num_units, table->num_tensors);
    for (int i = 0; i < table->num_tensors; i++) {
        const struct tensor_info *tensor = &table->tensors[i];
        if (tensor_has_blocks(table, tensor))
            moment_map_add(&layout->map, table->num_units, tensor->unit, tensor->offset, tensor->numel);
    }
    layout->room = memory_zeroed((size_t)table->num_units, sizeof *layout->room);
    layout->room_offset = memory_zeroed((size_t)table->num_units + 1, sizeof *layout->room_offset);
    for (int u = 0; u < table->num_units; u++) {
        const int64_t slice = layout->slice[u];
        layout->room[u] = round_up(moment_map_room(&layout->map, u, slice, layout->world, 0, slice), SHARD_ALIGN);
        layout->room_offset[u + 1] = layout->room_offset[u] + layout->room[u];
    }
}

int64_t shard_slice_of(const struct tensor_table *table, int64_t numel, int world, int parts)
{
    const int64_t slices = (int64_t)world * parts, part = (numel + slices - 1) / slices;
    const int64_t align = tensor_table_align(table);
    return (part ? round_up(part, align) : align) * parts;
}

void shard_layout_init_parts(struct shard_layout *layout, const struct tensor_table *table, int world, int parts)
{
    ASSERT(world >= 1 && parts >= 1 && table->num_units > 0);
    memset(layout, 0, sizeof *layout);
    layout->world = world;
    layout->parts = parts;
    layout->num_units = table->num_units;
    layout->num_trained = tensor_table_trained(table);
    layout->slice = memory_zeroed((size_t)table->num_units, sizeof *layout->slice);
    layout->shard_offset = memory_zeroed((size_t)table->num_units + 1, sizeof *layout->shard_offset);
    for (int u = 0; u < table->num_units; u++) {
        const int64_t slice = shard_slice_of(table, unit_words(table, u), world, parts);
        layout->slice[u] = slice;
        layout->shard_numel += slice;
        layout->shard_offset[u + 1] = layout->shard_numel;
        layout->trained_numel += u < layout->num_trained ? slice : 0;
        layout->max_padded = max64(slice * world, layout->max_padded);
    }
    shard_layout_moments(layout, table);
}

void shard_layout_release(struct shard_layout *layout)
{
    free(layout->slice);
    free(layout->shard_offset);
    free(layout->room);
    free(layout->room_offset);
    moment_map_release(&layout->map);
    memset(layout, 0, sizeof *layout);
}
