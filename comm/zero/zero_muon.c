/* SPDX-License-Identifier: Apache-2.0 */
/* zero_muon.c: the optimizer Muon, whose update of a matrix needs the whole matrix, on slices of it.
 *
 * Blocks take turns in rounds of as many as there are ranks; each rank makes the matrices of one block orthogonal:
 *
 *     for each block of the round      momentum of the own slice, rounded to bf16; gathered by all ranks, of which the
 *                                      block's keeps the result
 *     one block on each rank           its matrices, in place (op orthogonalize)
 *     for each block of the round      summed over the ranks, of which all but the block's give zeros: each rank gets
 *                                      its own slice of the matrices and updates its slice of the weights
 *
 * At stage 0 every rank has all momentum: only the slices at the end are gathered. All that is not a matrix of a block
 * is AdamW's, and only that has second moments: zero_is_sparse(). */
#include "comm/zero/zero_internal.h"

/* The blocks take turns in the order of units, without the head. */
static int muon_turn(const struct zero *z, int unit)
{
    return unit - 1 - (unit > zero_head(z));
}

/* Whether this rank makes the block's matrices orthogonal. */
static bool muon_is_mine(const struct zero *z, int unit)
{
    return muon_turn(z, unit) % z->world == z->rank;
}

/* A rank has its own block in the first half, and the others in turn in the second. */
static uint16_t *muon_updates(const struct zero *z, int unit)
{
    return z->muon.updates + (muon_is_mine(z, unit) ? 0 : z->muon.room);
}

void zero_muon_layout(struct zero *z, struct arena *local, struct arena *shared)
{
    if (!z->muon.on) return;
    struct orthogonalize_args *scratch = &z->muon.scratch;
    int64_t largest = 0, side = 0;
    for (int u = 1; u < z->units; u++)
        if (zero_is_block(z, u)) z->muon.room = max64(zero_padded(z, u), z->muon.room);
    for (int t = 0; t < z->config.table->num_tensors; t++) {
        const struct tensor_info *tensor = &z->config.table->tensors[t];
        if (!zero_is_block(z, tensor->unit)) continue;
        largest = max64(tensor->numel, largest);
        const int64_t *shape = &tensor->shape[tensor->ndim > 2];
        side = tensor_is_matrix(tensor) ? max64(min64(shape[0], shape[1]), side) : side;
    }
    const size_t padded = (size_t)z->muon.room, halves = sizeof *z->muon.updates, square = (size_t)(side * side);
    z->muon.updates = zero_parallel(z) ? arena_take(shared, MEM_COMM, 2 * padded * halves)
                                       : arena_take(local, MEM_WORKSPACE, padded * halves);
    scratch->product = arena_take(local, MEM_WORKSPACE, (size_t)largest * sizeof *scratch->product);
    scratch->iterate = arena_take(local, MEM_WORKSPACE, (size_t)largest * halves);
    scratch->gram = arena_take(local, MEM_WORKSPACE, square * halves);
    scratch->polynomial = arena_take(local, MEM_WORKSPACE, square * halves);
    scratch->sum = arena_take(local, MEM_WORKSPACE, sizeof *scratch->sum);
}

/* ---- a round ------------------------------------------------------------- */

/* Updates the momentum kept here, and rounds it for the exchange. */
static void muon_take_momentum(struct zero *z, int unit, struct stream *compute)
{
    const struct optimizer_settings *optimizer = &z->config.optimizer;
    for (const struct decay_range *range = z->unit[unit].ranges; range < z->unit[unit + 1].ranges; range++) {
        if (!range->matrix) continue;
        RUN_OP(z->device->ops, muon_momentum, compute, .n = range->count,
               .m = zero_state_at(z, STATE_EXP_AVG, unit, range->offset), .grad = zero_grad(z, unit, range->offset),
               .grad_dtype = z->config.grad_dtype, .step = z->step, .update = muon_updates(z, unit) + range->offset,
               .momentum = (float)optimizer->momentum, .nesterov = optimizer->nesterov);
    }
}

static void orthogonalize_block(struct zero *z, int unit, struct stream *compute)
{
    const struct unit_info *block = &z->config.table->units[unit];
    for (int t = 0; t < block->num_tensors; t++) {
        const struct tensor_info *tensor = &z->config.table->tensors[block->first_tensor + t];
        if (!tensor_is_matrix(tensor)) continue;
        struct orthogonalize_args args = z->muon.scratch;
        args.rows = tensor->shape[tensor->ndim - 2];
        args.cols = tensor->shape[tensor->ndim - 1];
        args.steps = (int32_t)z->config.optimizer.ns_steps;
        for (int64_t m = 0; m < tensor_matrices(tensor); m++) {
            args.y = muon_updates(z, unit) + tensor->offset + m * args.rows * args.cols;
            args.x = args.y;
            z->device->ops->orthogonalize(compute, &args);
        }
    }
}

/* Computes the updates of the blocks from `unit` on, one for each rank, as far as this rank takes part. */
static void muon_begin_round(struct zero *z, int unit, struct stream *compute)
{
    int mine = 0;
    const int end = muon_turn(z, unit) + z->world;
    for (int u = unit; u < z->units && muon_turn(z, u) < end; u++) {
        if (!zero_is_block(z, u)) continue;
        uint16_t *updates = muon_updates(z, u);
        mine = muon_is_mine(z, u) ? u : mine;
        muon_take_momentum(z, u, compute);
        if (!zero_parallel(z) || z->config.zero.stage == 0) continue;
        zero_follow_compute(z, compute);
        zero_gather(z, COMM_UPDATES, u, updates + zero_own(z, u), updates, DTYPE_BF16);
        zero_follow_comm(z, compute);
    }
    if (mine) orthogonalize_block(z, mine, compute);
}

/* Every rank gets its slice of the block's matrices, at stage 0 all of them. */
static void muon_deal_out(struct zero *z, int unit, struct stream *compute)
{
    uint16_t *updates = muon_updates(z, unit), *own = updates + zero_own(z, unit);
    if (!muon_is_mine(z, unit)) stream_fill_zero(compute, updates, (size_t)zero_padded(z, unit) * sizeof *updates);
    zero_follow_compute(z, compute);
    zero_sum_halves(z, unit, updates, own);
    if (z->config.zero.stage == 0) zero_gather(z, COMM_UPDATES, unit, own, updates, DTYPE_BF16);
    zero_follow_comm(z, compute);
}

/* The factor of the learning rate for a matrix. */
static double muon_adjustment(const struct zero *z, const struct tensor_info *matrix)
{
    const double rows = (double)matrix->shape[matrix->ndim - 2], columns = (double)matrix->shape[matrix->ndim - 1];
    switch (z->config.optimizer.adjust_lr_fn) {
    case ADJUST_ORIGINAL: break;
    case ADJUST_MATCH_RMS_ADAMW: return 0.2 * sqrt(fmax(rows, columns));
    case ADJUST_SPECTRAL: return sqrt(rows / columns);
    }
    return sqrt(fmax(1, rows / columns));
}

void zero_muon_update(struct zero *z, int unit, struct stream *compute)
{
    const struct optimizer_settings *optimizer = &z->config.optimizer;
    if (!z->muon.on || !zero_is_block(z, unit)) return;
    if (muon_turn(z, unit) % z->world == 0) muon_begin_round(z, unit, compute);
    if (zero_parallel(z)) muon_deal_out(z, unit, compute);
    for (const struct decay_range *range = z->unit[unit].ranges; range < z->unit[unit + 1].ranges; range++) {
        if (!range->matrix) continue;
        RUN_OP(z->device->ops, muon_update, compute, .n = range->count,
               .master = zero_state_at(z, STATE_MASTER, unit, range->offset),
               .update = muon_updates(z, unit) + range->offset, .step = z->step,
               .param = zero_one_copy(z) ? NULL : zero_param(z, unit, range->offset), .param_dtype = z->config.dtype,
               .weight_decay = (float)optimizer->weight_decay, .lr_factor = optimizer_muon_factor(optimizer),
               .adjust = muon_adjustment(z, range->matrix));
    }
}

/* ---- second moments ------------------------------------------------------ */

void zero_muon_copy_seconds(struct zero *z, int unit, int64_t first, int64_t count, float *values, bool back,
                            struct stream *stream)
{
    ASSERT(zero_is_sparse(z, STATE_EXP_AVG_SQ, unit));
    for (const struct decay_range *range = z->unit[unit].ranges; range < z->unit[unit + 1].ranges; range++) {
        const int64_t from = max64(range->offset, first), end = min64(range->offset + range->count, first + count);
        if (range->matrix || from >= end) continue;
        float *seconds = zero_second_at(z, range) + (from - range->offset), *there = values + (from - first);
        stream_copy(stream, back ? seconds : there, back ? there : seconds, (size_t)(end - from) * sizeof *seconds);
    }
}

/* The two halves of muon.updates have room for the block in fp32. */
void zero_muon_gather_seconds(struct zero *z, int unit)
{
    float *whole = (float *)z->muon.updates, *own = whole + zero_own(z, unit);
    zero_muon_copy_seconds(z, unit, zero_own(z, unit), z->config.layout->slice[unit], own, false, z->stream);
    zero_gather(z, COMM_OTHER, unit, own, whole, DTYPE_F32);
    zero_muon_copy_seconds(z, unit, 0, zero_padded(z, unit), whole, true, z->stream);
}
