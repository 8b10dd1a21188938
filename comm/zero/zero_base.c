/* SPDX-License-Identifier: Apache-2.0 */
/* zero_base.c: frozen units that are kept as bytes (core/model/stored_base.h). They are sharded, gathered and copied as
 * words; whoever acquires a unit gets it decoded, on the compute stream, in memory that belongs to its slot. Blocks
 * share theirs: one is in use at a time, and the stream puts the next one's values there after that. They stay until
 * another unit's come or a step begins: a step may be a graph, whose replay the host does not see. */
#include "comm/zero/zero_internal.h"
#include "core/model/stored_base.h"

/* Elements of the unit's frozen tensors that are decoded. */
static int64_t decoded_numel(const struct zero *z, int unit)
{
    const struct unit_info *frozen = &z->config.table->units[zero_frozen(z, unit)];
    return zero_frozen(z, unit) && frozen->stored_bytes ? round_up(frozen->numel, TENSOR_ALIGN) : 0;
}

void zero_base_layout(struct zero *z, struct arena *local)
{
    int64_t *room = z->decoded_numel;
    memset(room, 0, sizeof z->decoded_numel);
    for (int owner = 0; owner <= zero_head(z); owner++) {
        int64_t numel = 0;
        for (int u = owner; u >= 0; u = zero_next(z, u)) numel += decoded_numel(z, u);
        room[zero_base_slot(z, owner)] = max64(numel, room[zero_base_slot(z, owner)]);
    }
    for (int p = 0; p < SLOTS; p++)
        if (room[p]) z->decoded[p] = arena_take(local, MEM_PARAMS, (size_t)room[p] * dtype_size(z->config.dtype));
}

/* A padded head reads the gap after the embedding (transformer_new.c). */
void zero_base_clear(struct zero *z, struct stream *compute)
{
    for (int p = 0; p < SLOTS; p++)
        if (z->decoded[p])
            stream_fill_zero(compute, z->decoded[p], (size_t)z->decoded_numel[p] * dtype_size(z->config.dtype));
}

const void *zero_base_decode(struct zero *z, int unit, const char *bytes, struct stream *compute)
{
    const struct tensor_table *table = z->config.table;
    const struct unit_info *frozen = &table->units[zero_frozen(z, unit)];
    const enum dtype dtype = z->config.dtype;
    const int owner = table->units[unit].owner, slot = zero_base_slot(z, unit);
    char *decoded = z->decoded[slot];
    if (!frozen->stored_bytes) return bytes;
    for (int u = owner; u != unit; u = zero_next(z, u)) decoded += (size_t)decoded_numel(z, u) * dtype_size(dtype);
    if (z->decoded_unit[slot] == owner) return decoded;
    for (int t = frozen->first_tensor; t < frozen->first_tensor + frozen->num_tensors; t++) {
        const struct tensor_info *tensor = &table->tensors[t];
        const struct stored_tensor *stored = &table->stored[t];
        const char *from = bytes + stored->offset;
        char *to = decoded + (size_t)tensor->offset * dtype_size(dtype);
        if (stored->quantized) {
            const struct dequantize_args args = stored_dequantize(tensor, stored, from, dtype, to);
            z->device->ops->dequantize(compute, &args);
        } else {
            RUN_OP(z->device->ops, cast, compute, .dst_dtype = dtype, .src_dtype = stored->dtype, .n = tensor->numel,
                   .dst = to, .src = from);
        }
    }
    return decoded;
}

struct zero_words zero_tensor_words(const struct zero *z, const struct tensor_info *tensor)
{
    const struct tensor_table *table = z->config.table;
    if (!table->units[tensor->unit].stored_bytes) return (struct zero_words){tensor->offset, tensor->numel};
    const struct stored_tensor *stored = &table->stored[tensor - table->tensors];
    return (struct zero_words){stored->offset / table->word, stored->begin[STORED_PARTS] / table->word};
}
