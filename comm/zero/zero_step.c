/* SPDX-License-Identifier: Apache-2.0 */
/* zero_step.c: the end of a step: gradient norm, clipping, the optimizer on this rank's slices. The device decides, and
 * the host reads the decision when it collects the step:
 *
 *     every unit: wait for its reduction, sum the squares of this rank's slice (double)
 *     gather the ranks' reports: those sums, and the loss
 *     decide_step: norm, clipping, whether the step is skipped, the next loss scale; the same bits on all ranks
 *     the optimizer; stages 1 and 2 gather each updated unit while the next one is updated
 *     copy the decision to the host
 *
 * For a skipped step every rank searches its gradients for the first non-finite value, and the ranks compare. */
#include "comm/zero/zero_internal.h"
#include "gpu/spans.h"

struct bad_position {
    int64_t unit, offset; /* unit == units: there is none */
};

void zero_set_position(struct zero *z, int64_t optimizer_step, const struct loss_scaler *scaler, struct stream *compute)
{
    struct step_state state = {.optimizer_step = optimizer_step, .scaler = *scaler, .loss_scale = (float)scaler->scale};
    ASSERT(z->config.training && !z->begun && scaler->scale > 0);
    stream_copy(compute, z->step, &state, sizeof state);
    stream_copy(compute, z->range_segments, z->segments,
                (size_t)(z->unit[z->units].ranges - z->ranges) * sizeof *z->segments);
    z->positioned = true;
}

const float *zero_loss_scale(const struct zero *z)
{
    return z->config.dtype == DTYPE_F16 ? &z->step->loss_scale : NULL;
}

void zero_begin_step(struct zero *z, const struct step_schedule *schedule, struct stream *compute)
{
    ASSERT(z->config.training && z->positioned && z->begun == z->ended);
    ASSERT(z->begun - z->collected < ZERO_STEPS);
    stream_copy(compute, z->schedule, schedule, sizeof *schedule);
    z->bad_rank = z->bad_rank_records + z->begun++ % ZERO_STEPS * z->units;
    for (int u = 0; u < z->units; u++) z->bad_rank[u] = RANK_NONE;
    zero_rewind_step(z);
}

void zero_rewind_step(struct zero *z)
{
    z->micro = -1;
    zero_slots_clear(z);
}

void zero_begin_micro(struct zero *z, bool last)
{
    z->micro++;
    z->last_micro = last;
}

/* ---- reports of the ranks ------------------------------------------------ */

static void step_report_sums(struct zero *z, const double *loss_sum, struct stream *compute)
{
    const int parts = z->config.layout->parts;
    ASSERT(z->num_due == 0);                  /* the embedding, which backward finishes last, does not wait */
    for (int u = z->units - 1; u >= 0; u--) { /* in the order in which backward finished them */
        ASSERT(u > zero_head(z) || !z->unit[u].open);
        bool summed = zero_is_offloaded(z, u) && !z->grads_whole; /* on their way down */
        if (zero_parallel(z) || summed) stream_wait(compute, z->unit[u].reduced);
        if (summed) continue;
        for (int part = 0; part < parts; part++) {
            const struct sumsq_args args = zero_part_squares(z, u, part, zero_grad(z, u, zero_own(z, u)));
            z->device->ops->sumsq(compute, &args);
        }
    }
    for (int part = 0; part < parts; part++)
        stream_copy(compute, &zero_report(z, part)[z->units], &loss_sum[part], sizeof *loss_sum);
    const size_t extra = (size_t)parts * (size_t)z->config.extra_sums;
    double *own_extra = z->extra + (size_t)z->rank * extra;
    if (extra) stream_copy(compute, own_extra, loss_sum + parts, extra * sizeof *loss_sum);
    if (!zero_parallel(z)) return;
    zero_follow_compute(z, compute);
    struct data_op ops[2] = {{.send = zero_report(z, 0),
                              .recv = z->reports,
                              .count = (size_t)parts * ((size_t)z->units + 1) * (sizeof(double) / sizeof(float)),
                              .dtype = DTYPE_F32,
                              .purpose = COMM_REPORTS,
                              .unit = -1}};
    ops[1] = ops[0];
    ops[1].send = own_extra;
    ops[1].recv = z->extra;
    ops[1].count = extra * (sizeof(double) / sizeof(float));
    comm_all_gather_group(z->comm, ops, extra ? 2 : 1, z->stream);
    zero_follow_comm(z, compute); /* peers have read the own slices, so these may change */
}

/* ---- update -------------------------------------------------------------- */

static void *step_state_or_none(const struct zero *z, enum state_kind state, int unit, int64_t offset)
{
    return (int)state < zero_states(z) ? zero_state_at(z, state, unit, offset) : NULL;
}

static void step_update_unit(struct zero *z, int unit, struct stream *compute)
{
    bool writes_params = !zero_one_copy(z) && !zero_offloads_params(z);
    char *staged = zero_offloads_params(z) && zero_one_copy(z) ? zero_param_h2d(z, unit, false, compute) : NULL;
    for (const struct decay_range *range = z->unit[unit].ranges; range < z->unit[unit + 1].ranges; range++) {
        if (range->matrix || range->joined == 0) continue; /* zero_muon_update(); a range before it */
        struct adam_args args = {
            .master = zero_state_at(z, STATE_MASTER, unit, range->offset),
            .m = step_state_or_none(z, STATE_EXP_AVG, unit, range->offset),
            .v = z->muon.on ? zero_second_at(z, range) : step_state_or_none(z, STATE_EXP_AVG_SQ, unit, range->offset),
            .grad = zero_grad(z, unit, range->offset),
            .rounding = {z->config.rounding_seed, unit, range->offset},
            .step = z->step,
            .param = writes_params ? zero_param(z, unit, range->offset) : NULL,
        };
        if (staged)
            args.master = staged + (size_t)(range->offset - zero_own(z, unit)) * dtype_size(z->config.master_dtype);
        zero_update_joined(z, range, args, compute);
    }
    zero_param_end_update(z, unit, compute);
}

static void step_gather_updated(struct zero *z, int unit, struct stream *compute)
{
    if (zero_is_offloaded(z, unit))
        stream_wait(z->stream, z->unit[unit].h2d_done);
    else
        zero_follow_compute(z, compute);
    zero_gather(z, COMM_PARAMETERS, unit, zero_param(z, unit, zero_own(z, unit)),
                zero_param(z, unit, zero_first(z, unit)), z->config.dtype);
    event_record(z->unit[unit].fetched, z->stream);
    if (!z->config.zero.overlap_comm) stream_wait(compute, z->unit[unit].fetched);
}

static void step_update_all(struct zero *z, struct stream *compute)
{
    bool gathers = zero_parallel(z) && (z->config.zero.stage == 1 || z->config.zero.stage == 2);
    zero_offload_begin_update(z, compute);
    for (int u = 0; u < z->units; u++) { /* in the order in which the next forward needs them */
        struct span span = phase_begin(compute, PHASE_OPTIMIZER, u);
        zero_muon_update(z, u, compute);
        if (zero_is_offloaded(z, u))
            zero_offload_update(z, u, false);
        else
            step_update_unit(z, u, compute);
        if (gathers) step_gather_updated(z, u, compute);
        span_end(&span);
    }
    event_record(z->updated, zero_offloads_params(z) ? z->offloaded_params.d2h : compute);
}

static int64_t nonfinite_searched(const struct zero *z)
{
    return z->grads_whole ? z->unit[z->units].whole : z->config.layout->shard_offset[z->offload.first_unit];
}

enum status zero_finish_step(struct zero *z, const double *loss_sum, struct stream *compute, struct error *err)
{
    ASSERT(z->config.training && z->micro >= 0 && z->last_micro && z->begun == z->ended + 1);
    struct span span = phase_begin(compute, PHASE_REDUCE, UNIT_NONE);
    step_report_sums(z, loss_sum, compute);
    span_end(&span);
    span = phase_begin(compute, PHASE_OPTIMIZER, UNIT_NONE);
    RUN_OP(z->device->ops, decide_step, compute, .world = z->world * z->config.layout->parts,
           .turns = z->config.layout->parts, .units = z->units, .reports = z->reports,
           .grad_factor = (double)zero_grad_factor(z), .clip = z->config.clip, .scaler = z->config.scaler,
           .schedule = z->schedule, .state = z->step);
    step_update_all(z, compute);
    zero_slots_clear(z);
    /* of a skipped step all on the device, at stages 0 and 1 more than this rank's, which are not finite for their
     * owner either; zero_offload_begin_update() has the rest searched */
    RUN_OP(z->device->ops, find_nonfinite, compute, .dtype = z->config.grad_dtype, .n = nonfinite_searched(z),
           .x = z->grads, .enabled = &z->step->skipped, .index = z->bad_index);
    span_end(&span);
    return comm_status(z->comm, err);
}

enum status zero_end_step(struct zero *z, struct stream *compute, struct error *err)
{
    ASSERT(z->begun == z->ended + 1);
    int slot = (int)(z->ended % ZERO_STEPS);
    stream_copy(compute, &z->records[slot].state, z->step, sizeof *z->step);
    stream_copy(compute, &z->records[slot].bad_index, z->bad_index, sizeof *z->bad_index);
    if (z->extra)
        stream_copy(compute, z->extra_records + slot * zero_extra_count(z), z->extra,
                    (size_t)zero_extra_count(z) * sizeof *z->extra);
    event_record(z->done[slot], compute);
    z->ended++;
    TRY(comm_status(z->comm, err)); /* first: a failed job may have made the device fail */
    TRY(zero_disk_status(z, err));
    return device_check(z->device, err);
}

/* ---- collecting a step --------------------------------------------------- */

/* Of element `index` of the gradients kept here. */
static struct bad_position nonfinite_position(const struct zero *z, int64_t index)
{
    int64_t first = 0;
    for (int u = 0; u < z->units; u++) {
        const int64_t count = z->grads_whole ? zero_padded(z, u) : z->config.layout->slice[u];
        const int64_t begin = z->grads_whole ? zero_first(z, u) : zero_own(z, u);
        if (index < first + count) return (struct bad_position){.unit = u, .offset = index - first + begin};
        first += count;
    }
    return (struct bad_position){.unit = z->units};
}

/* Fills bad_tensor and bad_rank, the same on all ranks. */
static enum status find_culprit(struct zero *z, const struct step_record *record, const int32_t *bad_rank,
                                struct zero_result *result, struct error *err)
{
    int64_t on_device = nonfinite_searched(z), index = record->bad_index;
    if (index >= on_device && !z->grads_whole) index = on_device + record->host_bad_index;
    struct bad_position own = nonfinite_position(z, index), first = {.unit = z->units};
    OWNED struct bad_position *all = memory_alloc((size_t)z->world * sizeof *all);
    TRY(comm_exchange(z->comm, &own, sizeof own, all, err));
    for (int r = 0; r < z->world; r++)
        if (all[r].unit < first.unit || (all[r].unit == first.unit && all[r].offset < first.offset)) first = all[r];
    if (first.unit == z->units && record->state.bad_unit >= 0) /* finite, but too large to square */
        first.unit = record->state.bad_unit;
    const int32_t bad_loss = record->state.bad_loss_rank; /* a virtual rank */
    result->bad_rank = bad_loss < 0 ? -1 : bad_loss % z->world;
    if (first.unit == z->units) return STATUS_OK;
    result->bad_tensor = tensor_at(z->config.table, (int)first.unit, first.offset);
    if (!zero_parallel(z)) {
        result->bad_rank = 0;
        return STATUS_OK;
    }
    /* the owner of the slice has the rank that contributed it */
    int32_t rank = bad_rank[first.unit];
    TRY(comm_broadcast(z->comm, &rank, sizeof rank, (int)(first.offset / z->config.layout->slice[first.unit]), err));
    if (rank != RANK_NONE) result->bad_rank = rank;
    return STATUS_OK;
}

/* The step's extra sums over all virtual ranks, in their order; in place of the first row. */
static const double *step_extra_sums(const struct zero *z, int slot)
{
    const int parts = z->config.layout->parts, count = z->config.extra_sums;
    double *rows = z->extra_records + slot * zero_extra_count(z);
    for (int i = 0; i < count; i++) {
        double sum = 0;
        for (int row = 0; row < parts * z->world; row++)
            sum += rows[(row % z->world * parts + row / z->world) * count + i];
        rows[i] = sum;
    }
    return rows;
}

enum status zero_collect(struct zero *z, struct zero_result *result, struct error *err)
{
    ASSERT(z->collected < z->ended);
    int slot = (int)(z->collected % ZERO_STEPS);
    event_sync(z->done[slot]);
    if (z->offload.first_unit < z->units) event_sync(z->offload.searched[slot]);
    z->collected++;
    TRY(comm_status(z->comm, err));
    TRY(zero_disk_status(z, err));
    TRY(device_check(z->device, err));
    const struct step_record *record = &z->records[slot];
    const struct step_state *state = &record->state;
    *result = (struct zero_result){.loss_sum = state->loss_sum,
                                   .extra_sums = z->extra ? step_extra_sums(z, slot) : NULL,
                                   .grad_norm = state->grad_norm,
                                   .lr = state->lr,
                                   .loss_scale = (double)state->used_loss_scale,
                                   .skipped = state->skipped != 0,
                                   .bad_rank = -1,
                                   .optimizer_step = state->optimizer_step,
                                   .scaler = state->scaler};
    return result->skipped ? find_culprit(z, record, z->bad_rank_records + (int64_t)slot * z->units, result, err)
                           : STATUS_OK;
}
