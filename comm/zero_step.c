/* zero_step.c: the end of a step: gradient norm, clipping, the optimizer on the own slices.
 *
 *     every unit: wait for its reduction, sum of squares of the own slice (double, on the device)
 *     exchange the sums: the same total on all ranks, added up by unit, then by rank
 *     finite: scale = clip / norm / loss scale; AdamW on what is kept here; stages 1 and 2 gather each updated unit
 *             while the next one is updated, and nobody waits for it until it is acquired
 *     else:   agree on the first tensor with a non-finite value and on the rank that it came from; update nothing */
#include "comm/zero_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* What a rank says of its slice of one unit. */
struct unit_report {
    double sum;       /* of squares */
    int64_t bad_rank; /* the lowest whose contribution to this slice was not finite, or RANK_NONE */
};

/* Where a rank found its first non-finite value. */
struct bad_place {
    int64_t unit, offset; /* unit == units: nowhere */
};

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void zero_begin_step(struct zero *z)
{
    ASSERT(z->config.training);
    z->micro = -1;
    for (int u = 0; u < z->units; u++)
        z->bad_rank[u] = RANK_NONE;
    zero_places_clear(z);
}

void zero_begin_micro(struct zero *z, bool last)
{
    z->micro++;
    z->last_micro = last;
}

/* ---------------------------------------------------------------- norm */

static float *own_grad(const struct zero *z, int unit)
{
    return zero_grad(z, unit, zero_own(z, unit));
}

/* Sums of squares of the own slices, in z->host_sums, once they are reduced. */
static enum status own_sums(struct zero *z, struct stream *compute, struct error *err)
{
    for (int u = z->units - 1; u >= 0; u--) { /* in the order in which backward finished them */
        ASSERT(!z->open[u]);
        if (zero_parallel(z))
            stream_wait(compute, z->reduced[u]);
        struct sumsq_args args = {.n = z->config.layout->slice[u], .x = own_grad(z, u), .out = &z->sums[u]};
        z->device->ops->sumsq(compute, &args);
    }
    stream_copy(compute, z->host_sums, z->sums, (size_t)z->units * sizeof *z->sums);
    stream_sync(compute);
    TRY(device_check(z->device, err));
    return comm_status(z->comm, err);
}

/* Everyone's sums, and who contributed what was not finite: all is (world, units). */
static enum status exchange_reports(struct zero *z, struct unit_report *all, struct error *err)
{
    struct unit_report *own = all + (size_t)z->rank * (size_t)z->units;
    for (int u = 0; u < z->units; u++)
        own[u] = (struct unit_report){z->host_sums[u], z->bad_rank[u]};
    enum { BATCH = COMM_EXCHANGE_MAX / sizeof(struct unit_report) };
    struct unit_report *batch = malloc((size_t)z->world * BATCH * sizeof *batch);
    if (!batch)
        return error_set(err, STATUS_DEVICE, "out of memory");
    enum status status = STATUS_OK;
    for (int first = 0; status == STATUS_OK && first < z->units; first += BATCH) {
        size_t n = z->units - first < BATCH ? (size_t)(z->units - first) : (size_t)BATCH;
        status = comm_exchange(z->comm, own + first, n * sizeof *own, batch, err);
        for (int r = 0; status == STATUS_OK && r < z->world; r++)
            memcpy(all + (size_t)r * (size_t)z->units + first, batch + (size_t)r * n, n * sizeof *all);
    }
    free(batch);
    return status;
}

/* ---------------------------------------------------------------- non-finite gradients */

/* First non-finite element of the own slices, read back in pieces (only in a step that is skipped anyway). */
static struct bad_place find_bad(struct zero *z, struct stream *compute)
{
    float piece[4096];
    for (int u = 0; u < z->units; u++) {
        if (isfinite(z->host_sums[u]))
            continue;
        int64_t slice = z->config.layout->slice[u];
        for (int64_t at = 0; at < slice; at += (int64_t)COUNT_OF(piece)) {
            int64_t n = slice - at < (int64_t)COUNT_OF(piece) ? slice - at : (int64_t)COUNT_OF(piece);
            stream_copy(compute, piece, own_grad(z, u) + at, (size_t)n * sizeof *piece);
            stream_sync(compute);
            for (int64_t i = 0; i < n; i++)
                if (!isfinite(piece[i]))
                    return (struct bad_place){u, zero_own(z, u) + at + i};
        }
        return (struct bad_place){u, zero_own(z, u)}; /* finite, but too large to square */
    }
    return (struct bad_place){z->units, 0};
}

/* Fills bad_tensor and bad_rank, the same on all ranks. */
static enum status blame(struct zero *z, const struct unit_report *all, struct stream *compute,
                         struct zero_result *result, struct error *err)
{
    struct bad_place own = find_bad(z, compute), first = {z->units, 0};
    struct bad_place *places = calloc((size_t)z->world, sizeof *places);
    enum status status;
    if (!places)
        return error_set(err, STATUS_DEVICE, "out of memory");
    TRY_GOTO(comm_exchange(z->comm, &own, sizeof own, places, err));
    int owner = 0; /* of the slice with the first bad value */
    for (int r = 0; r < z->world; r++) {
        if (places[r].unit < first.unit || (places[r].unit == first.unit && places[r].offset < first.offset)) {
            first = places[r];
            owner = r;
        }
    }
    if (first.unit < z->units) {
        int64_t rank = zero_parallel(z) ? all[(size_t)owner * (size_t)z->units + (size_t)first.unit].bad_rank : 0;
        result->bad_tensor = tensor_at(z->config.table, (int)first.unit, first.offset);
        result->bad_rank = rank == RANK_NONE ? -1 : (int)rank;
    }
fail:
    free(places);
    return status;
}

/* ---------------------------------------------------------------- update */

static void update_unit(struct zero *z, int unit, const struct zero_update *update, struct stream *compute)
{
    bool mixed = z->config.dtype != DTYPE_F32;
    for (int i = z->first_range[unit]; i < z->first_range[unit + 1]; i++) {
        const struct decay_range *range = &z->ranges[i];
        struct adam_args args = {.n = range->count,
                                 .master = zero_state_at(z, ZERO_MASTER, unit, range->offset),
                                 .m = zero_state_at(z, ZERO_EXP_AVG, unit, range->offset),
                                 .v = zero_state_at(z, ZERO_EXP_AVG_SQ, unit, range->offset),
                                 .grad = zero_grad(z, unit, range->offset),
                                 .grad_scale = z->grad_scale,
                                 .param = mixed ? zero_param(z, unit, range->offset) : NULL,
                                 .param_dtype = z->config.dtype,
                                 .lr = update->lr,
                                 .beta1 = update->beta1,
                                 .beta2 = update->beta2,
                                 .eps = update->eps,
                                 .weight_decay = range->decays ? update->weight_decay : 0,
                                 .correction1 = update->correction1,
                                 .correction2 = update->correction2,
                                 .adamw = update->adamw};
        z->device->ops->adam(compute, &args);
    }
}

static void update_all(struct zero *z, const struct zero_update *update, struct stream *compute)
{
    bool gathers = zero_parallel(z) && (z->config.stage == 1 || z->config.stage == 2);
    for (int u = 0; u < z->units; u++) { /* in the order in which the next forward needs them */
        update_unit(z, u, update, compute);
        if (!gathers)
            continue;
        event_record(z->computed, compute);
        stream_wait(z->stream, z->computed);
        zero_gather(z, u, zero_param(z, u, zero_own(z, u)), zero_param(z, u, 0), z->config.dtype);
        event_record(z->fetched[u], z->stream);
        if (!z->config.overlap_comm)
            stream_wait(compute, z->fetched[u]);
    }
    event_record(z->updated, compute);
}

enum status zero_finish_step(struct zero *z, const struct zero_update *update, struct stream *compute,
                             struct zero_result *result, struct error *err)
{
    ASSERT(z->config.training && z->micro >= 0 && z->last_micro && update->loss_scale > 0);
    enum status status;
    *result = (struct zero_result){.bad_rank = -1};
    double start = seconds_now();
    struct unit_report *all = malloc((size_t)z->world * (size_t)z->units * sizeof *all);
    if (!all)
        return error_set(err, STATUS_DEVICE, "out of memory");
    TRY_GOTO(own_sums(z, compute, err));
    TRY_GOTO(exchange_reports(z, all, err));
    double total = 0;
    for (int u = 0; u < z->units; u++)
        for (int r = 0; r < z->world; r++)
            total += all[(size_t)r * (size_t)z->units + (size_t)u].sum;
    double reduced = seconds_now();
    result->reduce_seconds = reduced - start;

    double norm = sqrt(total) / update->loss_scale;
    result->grad_norm = norm;
    result->skipped = !isfinite(total);
    if (result->skipped) {
        TRY_GOTO(blame(z, all, compute, result, err));
    } else {
        double scale = update->clip > 0 && norm > update->clip ? update->clip / (norm + 1e-6) : 1;
        z->host_scale = (float)(scale / update->loss_scale);
        event_record(z->drained, z->stream); /* peers have read the own slices: they may change */
        stream_wait(compute, z->drained);
        stream_copy(compute, z->grad_scale, &z->host_scale, sizeof z->host_scale);
        update_all(z, update, compute);
        zero_places_clear(z);
    }
    result->optimizer_seconds = seconds_now() - reduced;
    status = device_check(z->device, err);
fail:
    free(all);
    return status;
}
