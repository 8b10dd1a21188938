/* SPDX-License-Identifier: Apache-2.0 */
/* zero_offload_params.c: stage 3's parameters in host memory or on a disk (offload_param.device: cpu, nvme).
 *
 * Host memory holds the own slices in the compute dtype (z->params). On the device each slot of gathered units has a
 * staging slice, through which the own slices of its units pass:
 *
 *     own slice  ── up ──► staging slice ── all-gather ──► slot       before a unit is used
 *     own slice  ◄─ down ─ staging slice ◄── AdamW                     if the optimizer's state is on the device
 *
 * Peers read the staging slices, which lie in the shared segment; with world 1 the slot is its own. Parameters that are
 * the master weights are updated there; else the master weights are rounded into it, in a skipped step too.
 *
 * With nvme the units beyond max_in_cpu are in a file (slice_file.h): a slice is read in pieces while the unit before
 * it computes, and written as it comes down.
 *
 * Stream rule. A staging slice has one user at a time. The copy up waits until the host's slice holds its latest values
 * (settled) and the staging slice is free: its all-gather is over, so no peer reads it (with world 1: its unit was
 * released), and its values have come down (d2h_done). */
#include "comm/zero/zero_internal.h"

static struct slice_file *params_file(struct zero *z)
{
    const struct offload_settings *settings = &z->config.zero.offload_param;
    z->offloaded_params.piece = round_up(settings->buffer_size, SLICE_FILE_ALIGN);
    struct slice_file_config config = {.name = "parameters",
                                       .folder = settings->nvme_path,
                                       .rank = z->rank,
                                       .layout = z->config.layout,
                                       .first = z->offloaded_params.resident,
                                       .end = z->all_units,
                                       .parts = 1,
                                       .dtype = {z->config.dtype},
                                       .piece = z->offloaded_params.piece,
                                       .io = z->config.aio,
                                       .stream_buffers = (int)settings->buffer_count,
                                       .writers = (z->offload.first_unit > 0) + (z->offload.first_unit < z->units)};
    return slice_file_new(&config);
}

enum status zero_offload_params_init(struct zero *z, struct error *err)
{
    struct offloaded_params *offload = &z->offloaded_params;
    const struct offload_settings *settings = &z->config.zero.offload_param;
    const int64_t *offset = z->config.layout->shard_offset;
    if (!zero_offloads_params(z)) return STATUS_OK;
    ASSERT(z->config.zero.stage == 3);
    while (offload->resident < z->all_units &&
           (settings->device != OFFLOAD_NVME || offset[offload->resident + 1] <= settings->max_in_cpu))
        offload->resident++;
    if (offload->resident < z->all_units) offload->disk = params_file(z);
    if (!z->comm) return STATUS_OK;
    if (offload->disk) TRY(slice_file_open(offload->disk, z->config.disk, err));
    TRY(stream_new(z->device, STREAM_COMM, &offload->h2d, err));
    TRY(stream_new(z->device, STREAM_COMM, &offload->d2h, err));
    for (int u = 0; u < z->all_units; u++) ZERO_NEW_EVENTS(z, err, &z->unit[u].settled);
    for (int p = 0; p < SLOTS; p++) ZERO_NEW_EVENTS(z, err, &z->slots[p].staged, &z->slots[p].d2h_done);
    return STATUS_OK;
}

void zero_offload_params_release(struct zero *z)
{
    stream_free(z->offloaded_params.h2d);
    stream_free(z->offloaded_params.d2h);
    slice_file_free(z->offloaded_params.disk);
}

static void await_params_staging(const struct zero *z, const struct gather_slot *slot, struct stream *stream)
{
    stream_wait(stream, slot->staged); /* brought up ahead, perhaps never gathered or released */
    stream_wait(stream, zero_parallel(z) ? slot->gathered : slot->released);
    stream_wait(stream, slot->d2h_done);
}

static void read_params_ahead(struct zero *z, int unit)
{
    struct offloaded_params *offload = &z->offloaded_params;
    if (!zero_param_on_disk(z, unit)) return;
    stream_wait(offload->h2d, z->unit[unit].settled);
    slice_file_read_ahead(offload->disk, unit, offload->h2d);
}

void zero_read_ahead(struct zero *z, int unit)
{
    if (unit < 0 || z->slots[zero_slot(z, unit)].unit == unit) return;
    for (int u = unit; u >= 0; u = zero_next_gathered(z, u)) read_params_ahead(z, u);
}

void *zero_param_h2d(struct zero *z, int unit, bool together, struct stream *stream)
{
    struct gather_slot *slot = &z->slots[zero_slot(z, unit)];
    struct stream *h2d = z->offloaded_params.h2d;
    char *to = slot->staging;
    for (int u = unit; u >= 0; u = together ? zero_next_gathered(z, u) : -1) {
        stream_wait(h2d, z->unit[u].settled);
        read_params_ahead(z, u); /* while the staging slice has its user */
        if (u == unit) await_params_staging(z, slot, h2d);
        const size_t bytes = zero_slice_bytes(z, u, z->config.dtype);
        if (zero_param_on_disk(z, u))
            slice_file_h2d(z->offloaded_params.disk, u, to, h2d);
        else
            stream_copy_in_order(h2d, to, zero_param(z, u, zero_own(z, u)), bytes);
        to += bytes;
    }
    event_record(slot->staged, h2d);
    stream_wait(stream, slot->staged);
    return slot->staging;
}

/* Copies the staging slice to the host's, after the work on `compute` so far. */
static void param_d2h(struct zero *z, int unit, struct stream *compute)
{
    struct gather_slot *slot = &z->slots[zero_slot(z, unit)];
    struct stream *d2h = z->offloaded_params.d2h;
    struct slice_file *disk = zero_param_on_disk(z, unit) ? z->offloaded_params.disk : NULL;
    event_record(z->computed, compute);
    stream_wait(d2h, z->computed);
    if (disk)
        slice_file_d2h(disk, unit, slot->staging, d2h);
    else
        stream_copy(d2h, zero_param(z, unit, zero_own(z, unit)), slot->staging,
                    zero_slice_bytes(z, unit, z->config.dtype));
    event_record(slot->d2h_done, d2h);
    event_record(z->unit[unit].settled, d2h);
    if (!z->config.zero.overlap_comm) stream_wait(compute, slot->d2h_done);
}

void zero_master_d2h(struct zero *z, int unit, struct stream *compute)
{
    struct gather_slot *slot = &z->slots[zero_slot(z, unit)];
    await_params_staging(z, slot, compute);
    zero_cast(z, z->device->ops, z->config.layout->slice[unit], zero_state_at(z, STATE_MASTER, unit, zero_own(z, unit)),
              slot->staging, compute);
    param_d2h(z, unit, compute);
}

void zero_param_end_update(struct zero *z, int unit, struct stream *compute)
{
    if (!zero_offloads_params(z)) return;
    if (zero_one_copy(z))
        param_d2h(z, unit, compute);
    else
        zero_master_d2h(z, unit, compute);
}
