/* SPDX-License-Identifier: Apache-2.0 */
/* zero_snapshot.c: a copy of this rank's slices in host memory, from which a checkpoint is written while training goes
 * on. In fp32, kind by kind and unit by unit:
 *
 *     | master: unit 0, unit 1, … | exp_avg: unit 0, … | exp_avg_sq: … |
 *
 * fp32 slices on a GPU are copied straight into it; all others come through zero_slices(). */
#include "comm/zero/zero_internal.h"

void zero_keep_snapshot(struct zero *zero, bool keep)
{
    zero->has_snapshot = keep;
}

bool zero_has_snapshot(const struct zero *zero)
{
    return zero->has_snapshot;
}

int64_t zero_snapshot_bytes(const struct zero *zero)
{
    const struct shard_layout *layout = zero->config.layout;
    return (layout->trained_numel + (zero_states(zero) - 1) * layout->room_offset[zero->units]) *
           (int64_t)sizeof *zero->snapshot;
}

void zero_snapshot_layout(struct zero *zero, struct arena *host)
{
    if (!zero->has_snapshot) return;
    zero->snapshot = arena_take(host, MEM_SNAPSHOT, (size_t)zero_snapshot_bytes(zero));
}

static float *snapshot_at(const struct zero *zero, enum state_kind kind, int unit)
{
    const struct shard_layout *layout = zero->config.layout;
    const int64_t before =
        kind == STATE_MASTER ? 0 : layout->trained_numel + (kind - 1) * layout->room_offset[zero->units];
    return zero->snapshot + before + zero_words_before(zero, kind, unit);
}

static bool snapshot_directly(const struct zero *zero, enum state_kind kind, int unit)
{
    return zero->device->kind != DEVICE_CPU && !zero_is_offloaded(zero, unit) && !zero_is_sparse(zero, kind, unit) &&
           zero_slice_dtype(zero, kind, unit) == DTYPE_F32 &&
           !(zero_offloads_params(zero) && (unit >= zero->units || zero->state[kind] == zero->params));
}

static enum status snapshot_slice(struct zero *zero, enum state_kind kind, int unit, struct error *err)
{
    const size_t bytes = (size_t)state_words(zero->config.layout, kind, unit) * sizeof *zero->snapshot;
    float *to = snapshot_at(zero, kind, unit), *from;
    heartbeat_beat();
    if (snapshot_directly(zero, kind, unit)) {
        stream_copy(zero->stream, to, zero_slice(zero, kind, unit), bytes);
        return STATUS_OK;
    }
    TRY(state_slice(zero_slices(zero), SLICE_READ, kind, unit, &from, err));
    memcpy(to, from, bytes);
    return STATUS_OK;
}

enum status zero_take_snapshot(struct zero *zero, struct error *err)
{
    ASSERT(zero->snapshot);
    stream_wait(zero->stream, zero->updated);
    for (int kind = 0; kind < zero_states(zero); kind++)
        for (int unit = 0; unit < zero->config.layout->num_trained; unit++)
            TRY(snapshot_slice(zero, (enum state_kind)kind, unit, err));
    stream_sync(zero->stream);
    TRY(zero_disk_status(zero, err));
    return device_check(zero->device, err);
}

static enum status zero_snapshot_slice(void *owner, enum slice_access access, enum state_kind kind, int unit,
                                       float **slice, struct error *err)
{
    (void)err;
    ASSERT(access == SLICE_READ);
    *slice = snapshot_at(owner, kind, unit);
    return STATUS_OK;
}

struct state_slices zero_snapshot(struct zero *zero)
{
    ASSERT(zero->snapshot);
    return (struct state_slices){.owner = zero, .count = zero_states(zero), .get = zero_snapshot_slice};
}
