/* SPDX-License-Identifier: Apache-2.0 */
/* zero_offload.c: the optimizer's state of some units in host memory, where the CPU updates it. See zero_internal.h.
 *
 *     device      reduced slice or bucket                                   parameters (own slice)
 *                        | down, while backward continues                           ^ up, while the next forward runs
 *                        v                                                          |
 *     host        gradients ---------- AdamW (stream host): master, m, v ----> two copies of a piece, or the master
 *
 * With accumulation at stages 2 and 3 the host's sum comes up before a micro-batch adds to it: the device adds, rounds
 * and computes the norm as without offload. Only the CPU's AdamW may round otherwise than a GPU's.
 *
 * With nvme all that is in two files (slice_file.h) and passes through buffers in pieces, which changes no bit.
 *
 * Stream rule. Copies down wait for the reduction (world 1: for backward). AdamW waits for the decision about the step
 * and the unit's copy down; a copy up for AdamW; the users of a unit for its copy up. On the CPU device the stream
 * `host` is inline, so that AdamW has all threads; on a GPU it runs host functions. */
#include "comm/zero/zero_internal.h"
#include "core/storage/scratch_file.h"

#ifdef _OPENMP
#include <omp.h>
#endif

/* ---- creation ------------------------------------------------------------ */

int zero_offload_first(const struct zero_config *config)
{
    const struct offload_settings *settings = &config->zero.offload_optimizer;
    const struct shard_layout *layout = config->layout;
    int first = layout->num_trained;
    if (!config->training || settings->device == OFFLOAD_NONE) return first;
    double wanted = settings->ratio * (double)layout->trained_numel;
    while (first > 0 && (double)(layout->trained_numel - layout->shard_offset[first]) < wanted) first--;
    return first;
}

enum { GRAD_WALK_BUFFERS = 3, GRAD_STREAM_BUFFERS = 4 };

/* The gradients' file is written by `down` and read by `up` and `host`. */
static void offload_files(struct zero *z)
{
    const struct offload_settings *settings = &z->config.zero.offload_optimizer;
    struct slice_file_config config = {
        .name = "optimizer",
        .folder = settings->nvme_path,
        .rank = z->rank,
        .layout = z->config.layout,
        .first = z->offload.first_unit,
        .end = z->units,
        .parts = zero_states(z),
        .dtype = {z->config.master_dtype, z->config.moment_dtype, z->config.moment_dtype},
        .piece = z->offload.piece,
        .io = z->config.aio,
        .walk_buffers = (int)settings->buffer_count,
        .read_ahead = settings->pipeline_read,
        .write_behind = settings->pipeline_write};
    STATIC_ASSERT(STATE_MASTER == 0 && (int)STATE_KIND_COUNT == (int)SLICE_FILE_PARTS, "parts are kinds of state");
    z->offload.disk = slice_file_new(&config);
    config.name = "gradients";
    config.parts = 1;
    config.dtype[0] = z->config.grad_dtype;
    config.walk_buffers = GRAD_WALK_BUFFERS;
    config.stream_buffers = GRAD_STREAM_BUFFERS;
    config.writers = 1;
    z->offload.grads_disk = slice_file_new(&config);
}

enum status zero_offload_open(struct zero *z, struct error *err)
{
    struct zero_offload *o = &z->offload;
    if (o->first_unit == z->units) return STATUS_OK;
    const int64_t wanted = z->config.zero.sub_group_size;
    o->piece = round_up(wanted > 0 && wanted < SUB_GROUP_MAX ? wanted : SUB_GROUP_MAX, SLICE_FILE_ALIGN);
    if (z->config.zero.offload_optimizer.device == OFFLOAD_NVME) offload_files(z);
    if (!z->comm) return STATUS_OK;
    if (o->disk) {
        TRY(slice_file_open(o->disk, z->config.disk, err));
        TRY(slice_file_open(o->grads_disk, z->config.disk, err));
    }
    TRY(stream_new(z->device, STREAM_COMM, &o->d2h, err));
    TRY(stream_new(z->device, STREAM_COMM, &o->h2d, err));
    TRY(stream_new(z->device, z->device->kind == DEVICE_CPU ? STREAM_COMPUTE : STREAM_COMM, &o->host, err));
    ZERO_NEW_EVENTS(z, err, &o->decided, &o->written);
    for (int i = 0; i < ZERO_STEPS; i++) ZERO_NEW_EVENTS(z, err, &o->searched[i]);
    for (int i = 0; i < OFFLOAD_BUFFERS; i++)
        ZERO_NEW_EVENTS(z, err, &o->copies[i].h2d_done, &o->staging[i].filled, &o->staging[i].d2h_done);
    for (int u = o->first_unit; u < z->units; u++) ZERO_NEW_EVENTS(z, err, &z->unit[u].d2h_done, &z->unit[u].h2d_done);
    return STATUS_OK;
}

void zero_offload_close(struct zero *z)
{
    struct zero_offload *o = &z->offload;
    stream_free(o->host); /* in the order in which work passes through them */
    stream_free(o->h2d);
    stream_free(o->d2h);
    slice_file_free(o->disk);
    slice_file_free(o->grads_disk);
}

/* ---- memory -------------------------------------------------------------- */

void zero_offload_layout(struct zero *z, struct arena *local, struct arena *received, struct arena *host)
{
    struct zero_offload *o = &z->offload;
    const struct zero_config *config = &z->config;
    if (o->first_unit == z->units) return;
    const size_t own = (size_t)(config->layout->trained_numel - config->layout->shard_offset[o->first_unit]);
    const size_t largest = (size_t)zero_largest_slice(z, o->first_unit, z->units),
                 grad_size = dtype_size(config->grad_dtype);
    const size_t piece = largest < (size_t)o->piece ? largest : (size_t)o->piece;
    if (o->disk) slice_file_layout(o->disk, host, MEM_OPTIMIZER);
    for (int s = 0; !o->disk && s < zero_states(z); s++) {
        const enum state_kind kind = (enum state_kind)s;
        const int64_t words = zero_words_before(z, kind, z->units) - zero_words_before(z, kind, o->first_unit);
        if (kind == STATE_MASTER && zero_master_is_params(z))
            o->state[s] = zero_param(z, o->first_unit, zero_own(z, o->first_unit));
        else
            o->state[s] = arena_take(host, MEM_OPTIMIZER, (size_t)words * dtype_size(zero_state_dtype(z, kind)));
    }
    if (o->grads_disk)
        slice_file_layout(o->grads_disk, host, MEM_GRADS);
    else
        o->grads = arena_take(host, MEM_GRADS, own * grad_size);
    const bool copies = !zero_offloads_params(z) && (o->disk || !zero_one_copy(z));
    for (int i = 0; copies && i < OFFLOAD_BUFFERS; i++)
        o->copies[i].memory = arena_take(host, MEM_COMM, piece * dtype_size(config->dtype));
    o->step = arena_take(host, MEM_WORKSPACE, sizeof *o->step);
    if (z->grads_whole) return;
    const bool staged = zero_parallel(z) || zero_ordered(z) || config->grad_dtype != DTYPE_F32;
    for (int i = 0; staged && i < OFFLOAD_BUFFERS; i++)
        o->staging[i].memory = arena_take(received, MEM_COMM, largest * grad_size);
    void *workspace = arena_take(local, MEM_WORKSPACE, OPS_SUMS_WORKSPACE);
    if (workspace) stream_set_workspace(o->d2h, workspace, OPS_SUMS_WORKSPACE);
}

/* ---- gradients ----------------------------------------------------------- */

/* Not with nvme. */
static char *offload_grad(const struct zero *z, int unit)
{
    const struct shard_layout *layout = z->config.layout;
    const int64_t index = layout->shard_offset[unit] - layout->shard_offset[z->offload.first_unit];
    return z->offload.grads + (size_t)index * dtype_size(z->config.grad_dtype);
}

/* Brings the unit's sum so far up to `memory`, which is free after `free_`; then records `filled`. */
static void offload_sum_h2d(struct zero *z, int unit, void *memory, struct event *free_, struct event *filled)
{
    struct zero_offload *o = &z->offload;
    stream_wait(o->h2d, free_);
    stream_wait(o->h2d, z->unit[unit].d2h_done);
    if (o->grads_disk)
        slice_file_h2d(o->grads_disk, unit, memory, o->h2d);
    else
        stream_copy_in_order(o->h2d, memory, offload_grad(z, unit), zero_slice_bytes(z, unit, z->config.grad_dtype));
    event_record(filled, o->h2d);
}

void zero_offload_fill_bucket(struct zero *z, int unit, struct bucket *bucket, struct stream *stream)
{
    offload_sum_h2d(z, unit, bucket->memory + z->unit[unit].place, bucket->reduced, z->offload.staging[0].filled);
    stream_wait(stream, z->offload.staging[0].filled);
}

struct d2h_buffer *zero_offload_staging(struct zero *z, int unit, struct stream *stream)
{
    struct zero_offload *o = &z->offload;
    struct d2h_buffer *staging = &o->staging[o->next_staging++ % OFFLOAD_BUFFERS];
    if (z->micro > 0) {
        offload_sum_h2d(z, unit, staging->memory, staging->d2h_done, staging->filled);
        stream_wait(stream, staging->filled);
    } else {
        stream_wait(stream, staging->d2h_done);
    }
    return staging;
}

struct sum_of_squares {
    const struct op_table *ops;
    struct sumsq_args args;
};

static void offload_run_sumsq(void *argument)
{
    const struct sum_of_squares *sum = argument;
    sum->ops->sumsq(NULL, &sum->args);
}

/* In the order of the stream `down`; a CPU's op runs when it is called, so there a host function calls it. */
static void offload_sum_squares(struct zero *z, int unit, const void *grads)
{
    for (int part = 0; part < z->config.layout->parts; part++) {
        const struct sum_of_squares sum = {z->device->host_ops, zero_part_squares(z, unit, part, grads)};
        if (z->device->kind != DEVICE_CPU)
            z->device->ops->sumsq(z->offload.d2h, &sum.args);
        else
            stream_submit(z->offload.d2h, offload_run_sumsq, &sum, sizeof sum);
    }
}

void zero_offload_d2h(struct zero *z, int unit, const void *grads, struct event *ready, struct event *free_)
{
    struct zero_offload *o = &z->offload;
    stream_wait(o->d2h, ready);
    if (!z->grads_whole && z->last_micro) {
        offload_sum_squares(z, unit, grads);
        event_record(z->unit[unit].reduced, o->d2h);
    }
    if (o->grads_disk)
        slice_file_d2h(o->grads_disk, unit, grads, o->d2h);
    else
        stream_copy(o->d2h, offload_grad(z, unit), grads, zero_slice_bytes(z, unit, z->config.grad_dtype));
    event_record(z->unit[unit].d2h_done, o->d2h);
    if (free_) event_record(free_, o->d2h);
}

/* ---- the update ---------------------------------------------------------- */

/* What the host works on at a time. */
struct host_piece {
    int unit;
    int64_t at, count;
};

/* Up to the end of the slice, or of a buffer. */
static struct host_piece piece_from(const struct zero *z, int unit, int64_t at)
{
    int64_t end = z->config.layout->slice[unit];
    int64_t cuts[] = {z->offload.disk || z->offload.copies[0].memory ? z->offload.piece : end,
                      zero_param_on_disk(z, unit) ? z->offloaded_params.piece : end};
    for (int i = 0; i < (int)COUNT_OF(cuts); i++)
        if ((at / cuts[i] + 1) * cuts[i] < end) end = (at / cuts[i] + 1) * cuts[i];
    return (struct host_piece){unit, at, end - at};
}

static const void *find_grads(const struct zero *z, struct host_piece piece)
{
    void *grads = NULL;
    if (z->offload.grads_disk)
        slice_file_walk_to(z->offload.grads_disk, piece.unit, piece.at, &grads);
    else
        grads = offload_grad(z, piece.unit) + (size_t)piece.at * dtype_size(z->config.grad_dtype);
    return grads;
}

struct search {
    const struct zero *zero;
    int64_t *index;
};

static void offload_run_search(void *argument)
{
    const struct search *search = argument;
    const struct zero *z = search->zero;
    int64_t before = 0; /* elements that are finite */
    for (int u = z->offload.first_unit; u < z->units && z->offload.step->skipped; u++)
        for (int64_t at = 0; at < z->config.layout->slice[u];) {
            const struct host_piece piece = piece_from(z, u, at);
            int64_t found = piece.count;
            RUN_OP(z->device->host_ops, find_nonfinite, NULL, .dtype = z->config.grad_dtype, .n = piece.count,
                   .x = find_grads(z, piece), .enabled = &z->offload.step->skipped, .index = &found);
            *search->index = before + found;
            if (found < piece.count) return;
            before += piece.count;
            at += piece.count;
        }
}

void zero_offload_begin_update(struct zero *z, struct stream *compute)
{
    struct zero_offload *o = &z->offload;
    if (o->first_unit == z->units) return;
    int slot = (int)(z->ended % ZERO_STEPS);
    stream_copy(compute, o->step, z->step, sizeof *o->step);
    event_record(o->decided, compute);
    stream_wait(o->host, o->decided);
    if (!z->grads_whole) {
        struct search search = {z, &z->records[slot].host_bad_index};
        stream_wait(o->host, z->unit[o->first_unit].d2h_done); /* the last one that comes down */
        stream_submit(o->host, offload_run_search, &search, sizeof search);
    }
    event_record(o->searched[slot], o->host);
}

struct host_update {
    const struct zero *zero;
    struct host_piece piece;
    bool cast_only; /* the master weights have changed otherwise */
    char *copy;     /* receives the piece in the compute dtype; NULL: the master weights are these parameters */
};

static void find_state(const struct zero *z, struct host_piece piece, void *state[STATE_KIND_COUNT])
{
    if (z->offload.disk)
        slice_file_walk_to(z->offload.disk, piece.unit, piece.at, state);
    else
        for (int s = 0; s < zero_states(z); s++)
            state[s] = zero_state_at(z, (enum state_kind)s, piece.unit, zero_own(z, piece.unit) + piece.at);
}

static void *offload_element(void *array, int64_t index, enum dtype dtype)
{
    return array ? (char *)array + (size_t)index * dtype_size(dtype) : NULL;
}

/* param: NULL, or where the op rounds the master weights to */
static void update_on_host(const struct zero *z, struct host_piece piece, void *const state[STATE_KIND_COUNT],
                           char *param)
{
    const int64_t own = zero_own(z, piece.unit), end = piece.at + piece.count;
    const struct zero_config *config = &z->config;
    char *grads = (char *)(uintptr_t)find_grads(z, piece);
    for (const struct decay_range *range = z->unit[piece.unit].ranges; range < z->unit[piece.unit + 1].ranges;
         range++) {
        const int64_t first = max64(range->offset - own, piece.at);
        const int64_t last = min64(range->offset - own + range->count, end);
        if (first >= last) continue;
        const int64_t words = moment_map_words(&config->layout->map, piece.unit, own + piece.at, own + first);
        const struct adam_args args = {
            .n = last - first,
            .weight_decay = zero_weight_decay(z, range),
            .master = offload_element(state[STATE_MASTER], first - piece.at, config->master_dtype),
            .m = offload_element(state[STATE_EXP_AVG], words, config->moment_dtype),
            .v = offload_element(state[STATE_EXP_AVG_SQ], words, config->moment_dtype),
            .grad = offload_element(grads, first - piece.at, config->grad_dtype),
            .rounding = {config->rounding_seed, piece.unit, own + first},
            .step = z->offload.step,
            .param = offload_element(param, first - piece.at, config->dtype),
        };
        zero_update(z, z->device->host_ops, range->blocks, args, NULL);
    }
}

static bool ends_record(const struct zero *z, struct host_piece piece)
{
    const int64_t end = piece.at + piece.count;
    return end % z->offload.piece == 0 || end == z->config.layout->slice[piece.unit];
}

static void offload_run_update(void *argument)
{
    const struct host_update *update = argument;
    const struct zero *z = update->zero;
    const bool unchanged = update->cast_only || z->offload.step->skipped;
    void *state[STATE_KIND_COUNT] = {NULL};
    if (unchanged && !update->copy) return;
#ifdef _OPENMP
    omp_set_num_threads(z->device->threads); /* of this thread, which may be CUDA's */
#endif
    find_state(z, update->piece, state);
    if (!unchanged) update_on_host(z, update->piece, state, zero_one_copy(z) ? NULL : update->copy);
    if (update->copy && (unchanged || zero_one_copy(z)))
        zero_cast(z, z->device->host_ops, update->piece.count, state[STATE_MASTER], update->copy, NULL);
    if (!unchanged && z->offload.disk && ends_record(z, update->piece))
        slice_file_walk_store(z->offload.disk, update->piece.unit, update->piece.at);
}

static void offload_submit(struct zero *z, struct host_piece piece, bool cast_only, void *copy)
{
    struct host_update update = {.zero = z, .piece = piece, .cast_only = cast_only, .copy = copy};
    stream_submit(z->offload.host, offload_run_update, &update, sizeof update);
}

/* Parameters on a disk. buffer: the file's, in which the piece before this one is. Returns that of this one. */
static char *update_on_disk(struct zero *z, struct host_piece piece, bool cast_only, char *buffer)
{
    struct stream *host = z->offload.host;
    struct slice_file *disk = z->offloaded_params.disk;
    const int writer = z->offload.first_unit > 0; /* the other one is the stream `down` of units before it */
    const int64_t size = z->offloaded_params.piece, first = piece.at - piece.at % size, end = piece.at + piece.count;
    if (piece.at == first) buffer = slice_file_begin_write(disk, piece.unit, first, writer, host);
    offload_submit(z, piece, cast_only, buffer + (size_t)(piece.at - first) * dtype_size(z->config.dtype));
    if (end % size == 0 || end == z->config.layout->slice[piece.unit])
        slice_file_end_write(disk, piece.unit, first, writer, host);
    return buffer;
}

static void offload_on_device(struct zero *z, struct host_piece piece, bool cast_only)
{
    struct zero_offload *o = &z->offload;
    const int64_t offset = zero_own(z, piece.unit) + piece.at;
    struct h2d_buffer *copy = &o->copies[o->next_copy++ % OFFLOAD_BUFFERS];
    stream_wait(o->host, copy->h2d_done);
    offload_submit(z, piece, cast_only, copy->memory);
    event_record(o->written, o->host);
    stream_wait(o->h2d, o->written);
    const void *source = copy->memory ? copy->memory : zero_state_at(z, STATE_MASTER, piece.unit, offset);
    stream_copy_in_order(o->h2d, zero_param(z, piece.unit, offset), source,
                         (size_t)piece.count * dtype_size(z->config.dtype));
    event_record(copy->h2d_done, o->h2d);
}

void zero_offload_update(struct zero *z, int unit, bool cast_only)
{
    struct zero_offload *o = &z->offload;
    char *buffer = NULL;
    stream_wait(o->host, z->unit[unit].d2h_done);
    for (int64_t at = 0; at < z->config.layout->slice[unit];) {
        const struct host_piece piece = piece_from(z, unit, at);
        if (!zero_offloads_params(z))
            offload_on_device(z, piece, cast_only);
        else if (zero_param_on_disk(z, unit))
            buffer = update_on_disk(z, piece, cast_only, buffer);
        else
            offload_submit(z, piece, cast_only,
                           zero_master_is_params(z) ? NULL : zero_param(z, unit, zero_own(z, unit) + at));
        at += piece.count;
    }
    if (zero_offloads_params(z))
        event_record(z->unit[unit].settled, o->host);
    else
        event_record(z->unit[unit].h2d_done, o->h2d);
}

void zero_offload_sync(struct zero *z)
{
    if (z->offload.first_unit == z->units) return;
    stream_sync(z->offload.host);
    stream_sync(z->offload.h2d);
}

/* ---- nvme ---------------------------------------------------------------- */

static void offload_run_walk_ahead(void *argument)
{
    slice_file_walk_ahead(*(struct slice_file *const *)argument);
}

void zero_offload_read_ahead(struct zero *z)
{
    if (z->offload.disk)
        stream_submit(z->offload.host, offload_run_walk_ahead, &z->offload.disk, sizeof z->offload.disk);
}

int64_t zero_disk_bytes(const struct zero *z)
{
    const struct slice_file *const files[] = {z->offload.disk, z->offload.grads_disk, z->offloaded_params.disk};
    int64_t bytes = 0;
    for (size_t i = 0; i < COUNT_OF(files); i++) bytes += files[i] ? slice_file_bytes(files[i]) : 0;
    return bytes;
}

enum status zero_disk_status(const struct zero *z, struct error *err)
{
    if (z->offload.disk) TRY(slice_file_status(z->offload.disk, err));
    if (z->offload.grads_disk) TRY(slice_file_status(z->offload.grads_disk, err));
    return z->offloaded_params.disk ? slice_file_status(z->offloaded_params.disk, err) : STATUS_OK;
}

enum status zero_check_folders(const struct zero *z, struct error *err)
{
    if (z->offload.disk) TRY(scratch_folder_check(z->config.zero.offload_optimizer.nvme_path, err));
    return z->offloaded_params.disk ? scratch_folder_check(z->config.zero.offload_param.nvme_path, err) : STATUS_OK;
}
