/* SPDX-License-Identifier: Apache-2.0 */
/* zero_gather_reduce.c: the four verbs: parameters are gathered before they are used, gradients are reduced while
 * backward continues.
 *
 * Units 0 (embedding), 1 … L (blocks), L+1 (head) come in a known order: 0, 1, … L, the head, then L, … 1; the
 * embedding's backward needs no parameters. Units share slots, so that at stage 3 no rank ever holds the model:
 *
 *     slot 0    embedding; and the head, unless it is tied to the embedding: then both are needed at once
 *     slot 1    a tied head
 *     slot 2, 3 blocks, in turn: one computes while the next one is gathered
 *
 * A unit stays in its slot until another is gathered there, a step begins, or the parameters change. Acquiring one that
 * is not there gathers it, and the next one where the order is certain: the volume is zero_theory().
 *
 * Stream rule. A gather waits for the release of the slot's last unit and for the update of the own slices; compute
 * waits for the gather. A reduction waits for the unit's gradients; the next writer of a bucket for the reduction. On a
 * GPU units whose reductions are short are reduced together (z->due). */
#include "comm/zero/zero_internal.h"

void zero_slots_clear(struct zero *z)
{
    for (int p = 0; p < SLOTS; p++) {
        ASSERT(z->slots[p].holds == 0);
        z->slots[p].unit = z->decoded_unit[p] = -1;
    }
}

/* ---- collectives in pieces ----------------------------------------------- */

typedef void collective(struct comm *comm, const struct data_op *ops, int count, struct stream *stream);

/* Enqueues `run` in pieces of at most `bucket` elements of all ranks together; whole: on whole slices. */
static void gather_reduce_pieces(struct zero *z, collective *run, struct data_op whole, int64_t bucket)
{
    const int64_t slice = (int64_t)whole.count, ranks = whole.group.size ? whole.group.size : z->world;
    int64_t piece = slice;
    if (bucket > 0 && bucket < slice * ranks) piece = max64(bucket / ranks / SHARD_ALIGN * SHARD_ALIGN, SHARD_ALIGN);
    struct data_op op = whole;
    op.stride = (size_t)slice;
    for (int64_t at = 0; at < slice; at += piece) {
        op.send = (const char *)whole.send + (size_t)at * dtype_size(op.dtype);
        op.recv = (char *)whole.recv + (size_t)at * dtype_size(op.recv_dtype);
        op.count = (size_t)min64(slice - at, piece);
        run(z->comm, &op, 1, z->stream);
    }
}

/* Enqueues gathers, or else reductions, of whole slices (or of op.count elements of each rank): as one group, or each
 * in pieces. */
static void run_group(struct zero *z, bool gathers, struct data_op *ops, int count)
{
    const int64_t bucket = gathers ? z->config.zero.allgather_bucket_size : z->config.zero.reduce_bucket_size;
    collective *run = gathers ? comm_all_gather_group : comm_reduce_scatter_group;
    const int64_t room = bucket > 0 ? min64(bucket, z->inbox_numel) : z->inbox_numel;
    struct data_op whole[COMM_GROUP_MAX];
    int wholes = 0;
    for (int i = 0; i < count; i++) {
        const bool ordered = ops[i].ordered && z->inbox;
        if (!ops[i].count) ops[i].count = (size_t)z->config.layout->slice[ops[i].unit];
        if (ordered || comm_takes_pieces(z->comm))
            gather_reduce_pieces(z, run, ops[i], ordered ? room : bucket);
        else
            whole[wholes++] = ops[i];
    }
    if (wholes > 0) run(z->comm, whole, wholes, z->stream);
}

static struct data_op slices_op(const struct zero *z, enum comm_purpose purpose, int unit, const void *send, void *recv,
                                enum dtype dtype)
{
    return (struct data_op){.send = send,
                            .recv = recv,
                            .dtype = dtype,
                            .recv_dtype = dtype,
                            .purpose = purpose,
                            .unit = unit,
                            .group = zero_group(z, unit)};
}

void zero_gather(struct zero *z, enum comm_purpose purpose, int unit, const void *send, void *recv, enum dtype dtype)
{
    struct data_op op = slices_op(z, purpose, unit, send, recv, dtype);
    run_group(z, true, &op, 1);
}

void zero_gather_state(struct zero *z, enum state_kind state, int unit)
{
    struct data_op op = slices_op(z, COMM_OTHER, unit, zero_state_at(z, state, unit, zero_own(z, unit)),
                                  zero_state_at(z, state, unit, zero_first(z, unit)), zero_state_dtype(z, state));
    op.count = (size_t)state_words(z->config.layout, state, unit);
    run_group(z, true, &op, 1);
}

void zero_sum_halves(struct zero *z, int unit, const void *send, void *recv)
{
    struct data_op op = slices_op(z, COMM_UPDATES, unit, send, recv, DTYPE_BF16);
    run_group(z, false, &op, 1);
}

/* ---- parameters ---------------------------------------------------------- */

/* Gathers the unit, and those that go with it, into their slot, unless they are there. */
static void gather_into_slot(struct zero *z, int unit)
{
    struct gather_slot *slot = &z->slots[zero_slot(z, unit)];
    if (slot->unit == unit) return;
    ASSERT(slot->holds == 0);
    slot->unit = unit;
    if (zero_offloads_params(z))
        zero_param_h2d(z, unit, true, z->stream);
    else
        for (int u = unit; u >= 0; u = zero_next(z, u))
            stream_wait(z->stream, zero_is_offloaded(z, u) ? z->unit[u].h2d_done : z->updated);
    stream_wait(z->stream, slot->released);
    char *staged = slot->staging;
    struct data_op ops[2 * UNIT_PARTS];
    int count = 0;
    for (int u = zero_parallel(z) ? unit : -1; u >= 0; u = zero_next_gathered(z, u)) {
        const void *own = zero_offloads_params(z) ? staged : zero_param(z, u, zero_own(z, u));
        if (zero_is_resident(z, u)) continue;
        ops[count++] = slices_op(z, COMM_PARAMETERS, u, own, zero_in_slot(z, slot, u), z->config.dtype);
        staged += zero_slice_bytes(z, u, z->config.dtype);
    }
    run_group(z, true, ops, count);
    event_record(slot->gathered, z->stream);
}

/* The unit that is needed next; -1: not certain. */
static int next_to_gather(const struct zero *z, int unit, enum param_pass pass)
{
    int head = zero_head(z);
    bool for_head = unit == 0 && z->config.tied && z->slots[zero_slot(z, head)].holds > 0;
    if (for_head || (unit == 0 && pass == PASS_BACKWARD)) return -1;
    if (pass != PASS_BACKWARD) return unit < head ? unit + 1 : -1;
    if (unit > z->backward_end) return unit - 1;
    return z->last_micro ? -1 : 0; /* the next micro-batch begins */
}

/* Fills *params, whose units are in `slot`, or where they are kept (NULL). */
static void fill_unit_params(struct zero *z, int unit, const struct gather_slot *slot, struct stream *stream,
                             struct unit_params *params)
{
    for (int u = unit, part = 0; u >= 0 && part < UNIT_PARTS; u = zero_next(z, u), part++) {
        const int frozen = zero_frozen(z, u);
        params->trained[part] = slot ? zero_in_slot(z, slot, u) : zero_param(z, u, zero_first(z, u));
        if (!frozen) continue;
        const char *values = slot ? zero_in_slot(z, slot, frozen) : zero_param(z, frozen, zero_first(z, frozen));
        params->frozen[part] = zero_base_decode(z, u, values, stream);
    }
    z->decoded_unit[zero_base_slot(z, unit)] = unit;
}

/* The units' parameters that are kept here. */
static enum status gather_own(struct zero *z, int unit, enum param_pass pass, struct stream *stream,
                              struct unit_params *params, struct error *err)
{
    *params = (struct unit_params){.trained = {NULL}};
    if (!zero_gathers_on_demand(z)) {
        for (int u = unit; u >= 0; u = zero_next(z, u)) {
            stream_wait(stream, z->unit[u].fetched);
            if (zero_is_offloaded(z, u) && !zero_parallel(z)) stream_wait(stream, z->unit[u].h2d_done);
        }
        fill_unit_params(z, unit, NULL, stream, params);
        return comm_status(z->comm, err);
    }
    struct gather_slot *slot = &z->slots[zero_slot(z, unit)];
    gather_into_slot(z, unit);
    slot->holds++;
    int next = z->config.zero.overlap_comm ? next_to_gather(z, unit, pass) : -1;
    if (next >= 0 && z->slots[zero_slot(z, next)].holds == 0) gather_into_slot(z, next);
    zero_read_ahead(z, next < 0 ? -1 : next_to_gather(z, next, pass));
    stream_wait(stream, slot->gathered);
    fill_unit_params(z, unit, slot, stream, params);
    if (z->observer) TRY(z->observer->gathered(z, unit, slot->memory, err));
    TRY(zero_disk_status(z, err));
    return comm_status(z->comm, err);
}

/* The base of several adapters is in its slot when the next one's pass comes to a unit: it is gathered once. */
static enum status gather_acquire(void *self, int unit, enum param_pass pass, struct stream *stream,
                                  struct unit_params *params, struct error *err)
{
    struct zero *z = self;
    struct unit_params base = {0};
    ASSERT(unit >= 0 && unit <= zero_head(z));
    if (z->config.base) TRY(gather_own(z->config.base, unit, pass, stream, &base, err));
    TRY(gather_own(z, unit, pass, stream, params, err));
    if (z->config.base) memcpy(params->frozen, base.frozen, sizeof base.frozen);
    return STATUS_OK;
}

static void gather_release(void *self, int unit, enum param_pass pass, struct stream *stream)
{
    struct zero *z = self;
    if (!zero_gathers_on_demand(z)) return;
    if (z->config.base) gather_release(z->config.base, unit, pass, stream);
    struct gather_slot *slot = &z->slots[zero_slot(z, unit)];
    ASSERT(slot->unit == unit && slot->holds > 0);
    slot->holds--;
    event_record(slot->released, stream);
}

/* ---- gradients that are not fp32 ----------------------------------------- */

/* A gradient is computed in fp32 and rounded in at most two places:
 *
 *     communication_data_type   each rank's contribution is rounded once; they are added up in fp32, in rank order
 *     grad_accum_dtype bf16     after a micro-batch's gradient, or sum over the ranks, was added to it in fp32
 *
 * With bf16 accumulators gradients are computed in buckets. Stages 0 and 1 add those of all micro-batches but the last
 * to the accumulator, and in the last the accumulator to the bucket: the sum is reduced unrounded.
 *
 * Where that is bf16, products round the gradients of the blocks' matrices (matrix_sums): at stages 2 and 3 they write
 * each rank's contribution; with world 1 they add to the accumulator. An embedding's, and a head's in chunks, are sums
 * of several ops. */
static enum dtype zero_sent_dtype(const struct zero *z)
{
    return zero_narrow_comm(z) ? z->config.comm_dtype : DTYPE_F32;
}

/* Whether the bucket has the tensor's gradient. A constant has none: it is like a gap. */
static bool has_fp32_gradient(const struct zero *z, const struct tensor_info *tensor)
{
    return !zero_in_matrix_sums(z, tensor) && !role_is_constant(tensor->role);
}

/* Neighbours with has_fp32_gradient(), from tensor *t of the unit on: [*first, *end), without their gaps. */
static bool next_fp32_tensors(const struct zero *z, int unit, int *t, int64_t *first, int64_t *end)
{
    const struct unit_info *info = &z->config.table->units[unit];
    const struct tensor_info *tensors = z->config.table->tensors + info->first_tensor;
    while (*t < info->num_tensors && !has_fp32_gradient(z, &tensors[*t])) ++*t;
    if (*t == info->num_tensors) return false;
    *first = *end = tensors[*t].offset;
    for (; *t < info->num_tensors && has_fp32_gradient(z, &tensors[*t]) && tensors[*t].offset == *end; ++*t)
        *end += tensors[*t].numel;
    return true;
}

/* [first, end) of the unit's flat range */
static void fill_reduce_range(struct zero *z, void *buffer, const float *grads, int64_t first, int64_t end,
                              struct stream *stream)
{
    RUN_OP(z->device->ops, accumulate, stream, .dst_dtype = z->config.comm_dtype, .src_dtype = DTYPE_F32,
           .n = end - first, .dst = (char *)buffer + (size_t)first * dtype_size(z->config.comm_dtype),
           .src = grads + first, .scale = zero_grad_factor(z));
}

static const void *fill_reduce_buffer(struct zero *z, int slot, int unit, const float *grads, struct stream *stream)
{
    struct comm_buffer *buffer = &z->comm_buffers[slot];
    void *to = (char *)buffer->memory + (size_t)z->unit[unit].place * dtype_size(z->config.comm_dtype);
    int64_t first, end;
    if (zero_sends_matrices(z, unit)) {
        for (int t = 0; next_fp32_tensors(z, unit, &t, &first, &end);)
            fill_reduce_range(z, to, grads, first, end, stream);
        return to;
    }
    stream_wait(stream, buffer->sent);
    fill_reduce_range(z, to, grads, 0, zero_padded(z, unit), stream);
    return to;
}

static void reduce_fold_range(struct zero *z, int unit, float *bucket, bool to_bucket, int64_t first, int64_t count,
                              struct stream *stream)
{
    void *accumulator = zero_grad(z, unit, first);
    float *values = bucket + (first - zero_first(z, unit));
    if (to_bucket)
        zero_accumulate(z, count, values, DTYPE_F32, accumulator, z->config.grad_dtype, stream);
    else
        zero_accumulate(z, count, accumulator, z->config.grad_dtype, values, DTYPE_F32, stream);
}

static void reduce_fold_grads(struct zero *z, int unit, float *bucket, bool to_bucket, struct stream *stream)
{
    const bool summed = zero_gives_matrix_sums(z, unit);
    int64_t first, end;
    ASSERT(!to_bucket || !summed);
    for (int t = 0; summed && next_fp32_tensors(z, unit, &t, &first, &end);)
        reduce_fold_range(z, unit, bucket, false, first, end - first, stream);
    if (!summed && (!to_bucket || z->micro > 0))
        reduce_fold_range(z, unit, bucket, to_bucket, zero_first(z, unit), zero_padded(z, unit), stream);
}

/* ---- gradients ----------------------------------------------------------- */

/* Zeroes the gaps between tensors, where the bucket's last user has left values. A layer's scalar is one. size: of an
 * element. */
static void reduce_clear_gaps(const struct zero *z, int unit, char *grads, size_t size, struct stream *stream)
{
    const struct unit_info *info = &z->config.table->units[unit];
    const struct tensor_info *tensors = z->config.table->tensors + info->first_tensor;
    int64_t end = 0;                      /* of the previous tensor */
    if (zero_group(z, unit).size) return; /* experts that ranks share have none */
    for (int t = 0; t <= info->num_tensors; t++) {
        int64_t next = t < info->num_tensors ? tensors[t].offset : zero_padded(z, unit);
        if (next > end) stream_fill_zero(stream, grads + (size_t)end * size, (size_t)(next - end) * size);
        if (t < info->num_tensors && !role_is_constant(tensors[t].role)) end = next + tensors[t].numel;
    }
}

/* adds: the gradients are added to the host's sum */
static void open_bucket(struct zero *z, int unit, struct bucket *bucket, bool adds, struct stream *stream)
{
    const bool clears = bucket->unit >= 0 && !zero_alike(z, bucket->unit, unit);
    ASSERT(bucket->unit < 0 || !z->unit[bucket->unit].open);
    stream_wait(stream, bucket->reduced);
    if (zero_sends_matrices(z, unit)) stream_wait(stream, z->comm_buffers[zero_slot(z, unit)].sent);
    for (int u = unit; u >= 0; u = zero_next(z, u)) {
        if (!zero_uses_bucket(z, u)) continue;
        if (adds)
            zero_offload_fill_bucket(z, u, bucket, stream);
        else if (clears && zero_sends_matrices(z, u))
            reduce_clear_gaps(z, u, zero_matrix_sums(z, u), dtype_size(DTYPE_BF16), stream);
        else if (clears)
            reduce_clear_gaps(z, u, (char *)(bucket->memory + z->unit[u].place), sizeof *bucket->memory, stream);
    }
    bucket->unit = unit;
}

/* Where the unit's gradients are computed; NULL: all in bf16. */
static float *grads_of(const struct zero *z, int unit)
{
    if (zero_sends_matrices(z, unit) && !zero_fills_bucket(z, unit)) return NULL;
    return zero_uses_bucket(z, unit) ? z->buckets[zero_slot(z, unit)].memory + z->unit[unit].place
                                     : zero_grad(z, unit, zero_first(z, unit));
}

static enum status grads(void *self, int unit, struct stream *stream, struct unit_grads *to, struct error *err)
{
    struct zero *z = self;
    ASSERT(z->config.training && z->micro >= 0 && unit >= 0 && unit <= zero_head(z));
    const bool later = z->micro > 0;
    bool buckets = false;
    *to = (struct unit_grads){.adds = zero_grads_home(z, unit) != GRADS_IN_BUCKET && later,
                              .matrix_adds = later && !zero_sends_matrices(z, unit)};
    for (int u = unit, part = 0; u >= 0 && part < UNIT_PARTS; u = zero_next(z, u), part++) {
        to->grads[part] = grads_of(z, u);
        to->numel[part] = z->config.table->units[u].numel / (z->world / z->unit[u].ranks);
        to->matrix_sums[part] = zero_matrix_sums(z, u);
        buckets |= zero_uses_bucket(z, u);
    }
    if (buckets && !z->unit[unit].open) open_bucket(z, unit, &z->buckets[zero_slot(z, unit)], to->adds, stream);
    z->unit[unit].open = true;
    return comm_status(z->comm, err);
}

/* With NCCL each group costs a launch, so short reductions wait until together they have this many bytes (as in DDP).
 */
enum { DUE_BYTES = 25 << 20 };

/* Whether `unit`, whose gradients are the last of z->due, may wait: nothing overwrites these before the next unit's are
 * complete, and nobody waits for the group. At stages 2 and 3 a block's bucket has a new user two blocks later. */
static bool waits_for_next(const struct zero *z, int unit)
{
    const bool in_place = zero_grads_home(z, unit) == GRADS_IN_PLACE && !zero_narrow_comm(z);
    const bool own_slot = z->config.table->units[z->due[0].unit].owner == unit && (unit == zero_head(z) || unit == 1);
    int64_t bytes = 0;
    bool offloaded = false;
    for (int i = 0; i < z->num_due; i++) {
        bytes += zero_padded(z, z->due[i].unit) * (int64_t)dtype_size(z->config.comm_dtype);
        offloaded |= zero_is_offloaded(z, z->due[i].unit);
    }
    return z->device->kind == DEVICE_CUDA && unit > 0 && !offloaded && (in_place || own_slot) &&
           z->num_due + UNIT_PARTS <= COMM_GROUP_MAX && bytes < DUE_BYTES;
}

/* The reduction of a unit's gradients into its own slice, of an offloaded one into *staging. */
static struct data_op reduction_of(struct zero *z, const struct due_unit *due, struct d2h_buffer **staging)
{
    const int unit = due->unit;
    if (!z->grads_whole && zero_is_offloaded(z, unit)) *staging = zero_offload_staging(z, unit, z->stream);
    return (struct data_op){.send = due->send,
                            .recv = *staging ? (*staging)->memory : zero_grad(z, unit, zero_own(z, unit)),
                            .dtype = z->config.comm_dtype,
                            .recv_dtype = z->config.grad_dtype,
                            .accumulate = (zero_ordered(z) || !z->grads_whole) && z->micro > 0,
                            .ordered = zero_ordered(z) || zero_group(z, unit).size,
                            .group = zero_group(z, unit),
                            .inbox = z->inbox,
                            .bad_rank = &z->bad_rank[unit],
                            .purpose = COMM_GRADIENTS,
                            .unit = unit};
}

/* Reduces the gradients of z->due, which `compute` computes; at stage 0 gathers the sums. */
static enum status reduce_due(struct zero *z, struct stream *compute, struct error *err)
{
    struct data_op reductions[COMM_GROUP_MAX] = {{.unit = 0}}, gathers[COMM_GROUP_MAX] = {{.unit = 0}};
    struct d2h_buffer *staging[COMM_GROUP_MAX] = {NULL};
    const int count = z->num_due;
    z->num_due = 0;
    zero_follow_compute(z, compute);
    for (int i = 0; i < count; i++) reductions[i] = reduction_of(z, &z->due[i], &staging[i]);
    run_group(z, false, reductions, count);
    for (int i = 0; i < count; i++) {
        const int slot = zero_slot(z, z->due[i].unit);
        event_record(zero_narrow_comm(z) ? z->comm_buffers[slot].sent : z->buckets[slot].reduced, z->stream);
    }
    const bool gathers_sums = z->config.zero.stage == 0 && z->last_micro;
    for (int i = 0; i < count && gathers_sums; i++)
        gathers[i] = slices_op(z, COMM_GRADIENTS, z->due[i].unit, reductions[i].recv,
                               zero_grad(z, z->due[i].unit, zero_first(z, z->due[i].unit)), z->config.grad_dtype);
    run_group(z, true, gathers, gathers_sums ? count : 0);
    for (int i = 0; i < count; i++) {
        const int unit = z->due[i].unit;
        event_record(z->unit[unit].reduced, z->stream);
        if (zero_is_offloaded(z, unit))
            zero_offload_d2h(z, unit, reductions[i].recv, z->unit[unit].reduced,
                             staging[i] ? staging[i]->d2h_done : NULL);
        if (z->observer) TRY(z->observer->reduced(z, unit, reductions[i].recv, err));
        if (!z->config.zero.overlap_comm) stream_wait(compute, z->unit[unit].reduced);
    }
    return STATUS_OK;
}

/* World 1: copies an offloaded unit's gradients down. send: as in due_unit. */
static void reduce_grads_d2h(struct zero *z, int unit, const void *send, struct stream *stream)
{
    const void *grads = zero_grad(z, unit, 0);
    struct event *free_ = NULL;
    if (zero_grads_home(z, unit) == GRADS_SUM_IN_BUCKET) {
        grads = grads_of(z, unit);
        free_ = z->buckets[zero_slot(z, unit)].reduced;
    } else if (!z->grads_whole) {
        struct d2h_buffer *staging = zero_offload_staging(z, unit, stream);
        grads = staging->memory;
        zero_accumulate(z, z->config.layout->slice[unit], staging->memory, z->config.grad_dtype, send,
                        zero_sent_dtype(z), stream);
        free_ = staging->d2h_done;
    }
    event_record(z->computed, stream);
    zero_offload_d2h(z, unit, grads, z->computed, free_);
}

/* Of one of the units that are acquired together; those that go to other ranks join z->due. */
static enum status grads_of_unit_ready(struct zero *z, int unit, struct stream *stream, struct error *err)
{
    const bool leaves = (zero_parallel(z) || zero_is_offloaded(z, unit)) && /* for their owner, or the host */
                        (zero_ordered(z) || z->last_micro || !z->grads_whole);
    const float *grads = grads_of(z, unit);
    const void *send = grads;
    if (z->observer && (z->last_micro || zero_uses_bucket(z, unit)))
        TRY(z->observer->gradients(z, unit, grads, stream, err));
    if (z->config.grad_dtype != DTYPE_F32 && (z->grads_whole || !leaves))
        reduce_fold_grads(z, unit, grads_of(z, unit), leaves && zero_parallel(z), stream);
    if (!leaves && !zero_ordered(z)) return STATUS_OK;
    if (zero_narrow_comm(z)) send = fill_reduce_buffer(z, zero_slot(z, unit), unit, grads, stream);
    if (!leaves) { /* world 1, ordered: what the reduction would do with one rank */
        zero_accumulate(z, zero_padded(z, unit), zero_grad(z, unit, 0), DTYPE_F32, send, zero_sent_dtype(z), stream);
    } else if (zero_parallel(z)) {
        z->due[z->num_due++] = (struct due_unit){unit, send};
        if (zero_is_offloaded(z, unit)) TRY(reduce_due(z, stream, err)); /* two buffers hold what comes down */
    } else {
        reduce_grads_d2h(z, unit, send, stream);
        if (!z->config.zero.overlap_comm) stream_wait(stream, z->unit[unit].reduced);
    }
    return STATUS_OK;
}

/* The last unit comes first, so that offloaded ones come down in the order that the host waits for. */
static enum status grads_ready(void *self, int unit, struct stream *stream, struct error *err)
{
    struct zero *z = self;
    int parts[UNIT_PARTS] = {unit}, count = 1;
    ASSERT(z->unit[unit].open);
    z->unit[unit].open = false;
    if (z->last_micro && unit == zero_head(z)) zero_offload_read_ahead(z); /* backward has just begun */
    for (int u = zero_next(z, unit); u >= 0 && count < UNIT_PARTS; u = zero_next(z, u)) parts[count++] = u;
    while (count > 0) TRY(grads_of_unit_ready(z, parts[--count], stream, err));
    if (z->num_due && !waits_for_next(z, unit)) TRY(reduce_due(z, stream, err));
    return comm_status(z->comm, err);
}

static void exchange_tokens(void *self, const struct token_exchange *exchanges, int count, struct stream *stream)
{
    struct zero *z = self;
    struct data_op ops[COMM_GROUP_MAX];
    ASSERT(count <= COMM_GROUP_MAX);
    for (int i = 0; i < count; i++)
        ops[i] = (struct data_op){.send = exchanges[i].send,
                                  .recv = exchanges[i].recv,
                                  .count = (size_t)exchanges[i].count,
                                  .dtype = exchanges[i].dtype,
                                  .recv_dtype = exchanges[i].reduces ? DTYPE_F32 : exchanges[i].dtype,
                                  .ordered = exchanges[i].reduces,
                                  .inbox = exchanges[i].inbox,
                                  .purpose = COMM_TOKENS,
                                  .unit = -1,
                                  .group = {z->config.expert_parallel, z->world / z->config.expert_parallel}};
    zero_follow_compute(z, stream);
    (exchanges->reduces ? comm_reduce_scatter_group : comm_all_gather_group)(z->comm, ops, count, z->stream);
    zero_follow_comm(z, stream);
}

const struct param_verbs *zero_verbs(struct zero *z)
{
    z->verbs = (struct param_verbs){z, gather_acquire, gather_release, grads, grads_ready, exchange_tokens};
    return &z->verbs;
}

/* ---- theory -------------------------------------------------------------- */

struct gather_order {
    const struct zero *zero;
    int held[SLOTS];  /* unit in each slot, -1: none */
    int64_t elements; /* that this rank has got from others */
};

static void gather_next(struct gather_order *order, int unit)
{
    const struct zero *z = order->zero;
    int *held = &order->held[zero_slot(z, unit)];
    for (int u = *held != unit ? unit : -1; u >= 0; u = zero_next_gathered(z, u))
        order->elements += z->config.layout->slice[u] * (z->unit[u].ranks - 1);
    *held = unit;
}

/* Elements gathered in micro-batches, from empty slots. */
static int64_t elements_gathered(const struct zero *z, int micro_batches)
{
    struct gather_order order = {.zero = z, .held = {-1, -1, -1, -1}};
    const int head = zero_head(z);
    for (int micro = 0; micro < micro_batches; micro++) {
        for (int unit = 0; unit <= head; unit++) gather_next(&order, unit);
        if (z->config.tied) gather_next(&order, 0);
        for (int unit = head - 1; unit >= z->backward_end; unit--) gather_next(&order, unit);
    }
    return order.elements;
}

void zero_theory(const struct zero *z, int micro_batches, int64_t *gather_bytes, int64_t *reduce_bytes)
{
    const int64_t others = z->world - 1;
    int64_t own = 0; /* elements of the trained units that others have, or send */
    for (int u = 0; u < z->units; u++) own += z->config.layout->slice[u] * (z->unit[u].ranks - 1);
    int64_t size = (int64_t)dtype_size(z->config.dtype), grad_size = (int64_t)dtype_size(z->config.grad_dtype);
    int64_t sent_size = (int64_t)dtype_size(z->config.comm_dtype);
    int64_t gathered = z->config.zero.stage == 3 ? elements_gathered(z, micro_batches) : own;
    int64_t reports = z->config.layout->parts * (z->units + 1 + z->config.extra_sums) * (int64_t)sizeof(double);
    const bool each_micro = z->config.zero.stage >= 2 || zero_ordered(z);
    int64_t updates = 0; /* bytes of Muon's */
    for (int u = 1; z->muon.on && u < z->units; u++)
        updates += zero_is_block(z, u) ? z->config.layout->slice[u] * (int64_t)sizeof *z->muon.updates : 0;
    *gather_bytes = gathered * (z->config.zero.stage == 0 ? grad_size : size) + others * (reports + updates);
    *reduce_bytes = own * sent_size * (each_micro ? micro_batches : 1) + others * updates;
}
