/* zero_offload.c: the optimizer's state of some units in host memory, where the CPU updates it. See zero_internal.h.
 *
 *     device      reduced slice or bucket                                            parameters (own slice)
 *                        | down, while backward continues                                    ^ up, while the next
 *                        v                                                                   | forward runs
 *     host        gradients ---------- AdamW (stream host): master, m, v ----------> two copies of a piece, in the
 *                                                                                    compute dtype, or the master
 *
 * With accumulation at stages 2 and 3 the host's sum comes up again before a micro-batch adds to it, so that the
 * addition takes place where it takes place without offload. The norm is computed on the device from what comes down.
 * So all bits are those of a run without offload, except that the CPU's AdamW may round otherwise than a GPU's.
 * Gradients that are accumulated in bf16 are rounded on the device as well, in a staging slice.
 *
 * With nvme all that is in host memory above is in two files (slice_file.h) instead, apart from the copies, and passes
 * through buffers in pieces of a slice. AdamW works element by element, and its random bits follow from the place in
 * the unit, so cutting changes no bit.
 *
 * Stream rule. Copies down wait for the reduction (world 1: for backward). AdamW waits for the decision about the step,
 * which comes after every use of the parameters in this step, and for the unit's copy down. A copy up waits for AdamW
 * alone, and the users of a unit wait for its copy up alone. On the CPU device the stream `host` is inline, so that
 * AdamW has all threads; on a GPU it runs host functions. */
#include "comm/zero/zero_internal.h"

#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

/* ---- creation ------------------------------------------------------------ */

int zero_offload_first(const struct zero_config *config)
{
    const struct offload_settings *settings = &config->zero.offload_optimizer;
    const struct shard_layout *layout = config->layout;
    int first = layout->num_trained;
    if (!config->training || settings->device == OFFLOAD_NONE)
        return first;
    double wanted = settings->ratio * (double)layout->trained_numel;
    while (first > 0 && (double)(layout->trained_numel - zero_shard_offset(layout, first)) < wanted)
        first--;
    return first;
}

enum { GRAD_WALK_BUFFERS = 3, GRAD_STREAM_BUFFERS = 4 };

/* The files of master, m and v, and of gradients, which `down` writes, and `up` and `host` read. */
static void describe_files(struct zero *z)
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
    if (o->first_unit == z->units)
        return STATUS_OK;
    const int64_t wanted = z->config.zero.sub_group_size;
    o->piece = slice_file_piece(wanted > 0 && wanted < SUB_GROUP_MAX ? wanted : SUB_GROUP_MAX);
    if (z->config.zero.offload_optimizer.device == OFFLOAD_NVME)
        describe_files(z);
    if (!z->comm)
        return STATUS_OK;
    if (o->disk) {
        TRY(slice_file_open(o->disk, z->config.disk, err));
        TRY(slice_file_open(o->grads_disk, z->config.disk, err));
    }
    enum stream_kind host = z->device->kind == DEVICE_CPU ? STREAM_COMPUTE : STREAM_COMM;
    TRY(stream_new(z->device, STREAM_COMM, &o->d2h, err));
    TRY(stream_new(z->device, STREAM_COMM, &o->h2d, err));
    TRY(stream_new(z->device, host, &o->host, err));
    TRY(zero_event_new(z, &o->decided, err));
    TRY(zero_event_new(z, &o->written, err));
    for (int i = 0; i < ZERO_STEPS; i++)
        TRY(zero_event_new(z, &o->searched[i], err));
    for (int i = 0; i < OFFLOAD_BUFFERS; i++) {
        TRY(zero_event_new(z, &o->copies[i].h2d_done, err));
        TRY(zero_event_new(z, &o->staging[i].filled, err));
        TRY(zero_event_new(z, &o->staging[i].d2h_done, err));
    }
    o->d2h_done = memory_zeroed((size_t)z->units, sizeof *o->d2h_done);
    o->h2d_done = memory_zeroed((size_t)z->units, sizeof *o->h2d_done);
    for (int u = o->first_unit; u < z->units; u++) {
        TRY(zero_event_new(z, &o->d2h_done[u], err));
        TRY(zero_event_new(z, &o->h2d_done[u], err));
    }
    return STATUS_OK;
}

void zero_offload_close(struct zero *z)
{
    struct zero_offload *o = &z->offload;
    stream_free(o->host); /* in the order in which work passes through them */
    stream_free(o->h2d);
    stream_free(o->d2h);
    free(o->d2h_done);
    free(o->h2d_done);
    slice_file_free(o->disk);
    slice_file_free(o->grads_disk);
}

/* ---- memory -------------------------------------------------------------- */

/* Elements of the largest own slice among the offloaded units. */
static int64_t largest_slice(const struct zero *z)
{
    int64_t largest = 0;
    for (int u = z->offload.first_unit; u < z->units; u++)
        if (z->config.layout->slice[u] > largest)
            largest = z->config.layout->slice[u];
    return largest;
}

void zero_offload_layout(struct zero *z, struct arena *local, struct arena *host)
{
    struct zero_offload *o = &z->offload;
    const struct zero_config *config = &z->config;
    if (o->first_unit == z->units)
        return;
    const size_t own = (size_t)(config->layout->trained_numel - zero_shard_offset(config->layout, o->first_unit));
    const size_t largest = (size_t)largest_slice(z), grad_size = dtype_size(config->grad_dtype);
    const size_t piece = largest < (size_t)o->piece ? largest : (size_t)o->piece;
    if (o->disk)
        slice_file_layout(o->disk, host, MEM_OPTIMIZER);
    for (int s = 0; !o->disk && s < zero_states(z); s++)
        if (s == STATE_MASTER && zero_master_is_params(z))
            o->state[s] = zero_param(z, o->first_unit, zero_own(z, o->first_unit));
        else
            o->state[s] = arena_take(host, MEM_OPTIMIZER, own * dtype_size(zero_state_dtype(z, (enum state_kind)s)));
    if (o->grads_disk)
        slice_file_layout(o->grads_disk, host, MEM_GRADS);
    else
        o->grads = arena_take(host, MEM_GRADS, own * grad_size);
    const bool copies = !zero_offloads_params(z) && (o->disk || !zero_one_copy(z));
    for (int i = 0; copies && i < OFFLOAD_BUFFERS; i++)
        o->copies[i].memory = arena_take(host, MEM_COMM, piece * dtype_size(config->dtype));
    o->step = arena_take(host, MEM_WORKSPACE, sizeof *o->step);
    if (z->grads_whole)
        return;
    const bool staged = zero_parallel(z) || config->grad_dtype != DTYPE_F32;
    for (int i = 0; staged && i < OFFLOAD_BUFFERS; i++)
        o->staging[i].memory = arena_take(local, MEM_COMM, largest * grad_size);
    void *workspace = arena_take(local, MEM_WORKSPACE, OPS_SUMS_WORKSPACE);
    if (workspace)
        stream_set_workspace(o->d2h, workspace, OPS_SUMS_WORKSPACE);
}

/* ---- gradients ----------------------------------------------------------- */

/* Not with nvme. */
static char *host_grad(const struct zero *z, int unit)
{
    const struct shard_layout *layout = z->config.layout;
    const int64_t index = layout->shard_offset[unit] - layout->shard_offset[z->offload.first_unit];
    return z->offload.grads + (size_t)index * dtype_size(z->config.grad_dtype);
}

static size_t grad_bytes(const struct zero *z, int unit)
{
    return (size_t)z->config.layout->slice[unit] * dtype_size(z->config.grad_dtype);
}

/* Brings the unit's sum of the micro-batches so far up to `memory`, which is free after `free_`; then records `filled`.
 */
static void sum_h2d(struct zero *z, int unit, void *memory, struct event *free_, struct event *filled)
{
    struct zero_offload *o = &z->offload;
    stream_wait(o->h2d, free_);
    stream_wait(o->h2d, o->d2h_done[unit]);
    if (o->grads_disk)
        slice_file_h2d(o->grads_disk, unit, memory, o->h2d);
    else
        stream_copy_in_order(o->h2d, memory, host_grad(z, unit), grad_bytes(z, unit));
    event_record(filled, o->h2d);
}

void zero_offload_fill_bucket(struct zero *z, int unit, struct bucket *bucket, struct stream *stream)
{
    sum_h2d(z, unit, bucket->memory, bucket->reduced, z->offload.staging[0].filled);
    stream_wait(stream, z->offload.staging[0].filled);
}

struct d2h_buffer *zero_offload_staging(struct zero *z, int unit, struct stream *stream)
{
    struct zero_offload *o = &z->offload;
    struct d2h_buffer *staging = &o->staging[o->next_staging++ % OFFLOAD_BUFFERS];
    if (z->micro > 0) {
        sum_h2d(z, unit, staging->memory, staging->d2h_done, staging->filled);
        stream_wait(stream, staging->filled);
    } else {
        stream_wait(stream, staging->d2h_done);
    }
    return staging;
}

struct d2h_buffer *zero_offload_round(struct zero *z, int unit, const struct bucket *bucket, struct stream *stream)
{
    struct d2h_buffer *staging = zero_offload_staging(z, unit, stream);
    struct accumulate_args args = {.dst_dtype = z->config.grad_dtype,
                                   .src_dtype = DTYPE_F32,
                                   .n = z->config.layout->slice[unit],
                                   .dst = staging->memory,
                                   .src = bucket->memory,
                                   .scale = 1,
                                   .accumulate = z->micro > 0};
    z->device->ops->accumulate(stream, &args);
    return staging;
}

struct sum_of_squares {
    const struct op_table *ops;
    struct sumsq_args args;
};

static void run_sumsq(void *argument)
{
    const struct sum_of_squares *sum = argument;
    sum->ops->sumsq(NULL, &sum->args);
}

/* sumsq in the order of the stream `down`: the CPU's ops run when they are called, so there a host function calls it.
 */
static void sum_squares(struct zero *z, int unit, const void *grads)
{
    struct sumsq_args args = {.dtype = z->config.grad_dtype,
                              .n = z->config.layout->slice[unit],
                              .x = grads,
                              .out = &z->reports[z->rank * (z->units + 1) + unit]};
    if (z->device->kind != DEVICE_CPU) {
        z->device->ops->sumsq(z->offload.d2h, &args);
        return;
    }
    struct sum_of_squares sum = {z->device->host_ops, args};
    stream_submit(z->offload.d2h, run_sumsq, &sum, sizeof sum);
}

void zero_offload_d2h(struct zero *z, int unit, const void *grads, struct event *ready, struct event *free_)
{
    struct zero_offload *o = &z->offload;
    stream_wait(o->d2h, ready);
    if (!z->grads_whole && z->last_micro) {
        sum_squares(z, unit, grads);
        event_record(z->reduced[unit], o->d2h);
    }
    if (o->grads_disk)
        slice_file_d2h(o->grads_disk, unit, 0, grads, o->d2h);
    else
        stream_copy(o->d2h, host_grad(z, unit), grads, grad_bytes(z, unit));
    event_record(o->d2h_done[unit], o->d2h);
    if (free_)
        event_record(free_, o->d2h);
}

/* ---- the update ---------------------------------------------------------- */

/* The elements of a slice that the host works on at a time. */
struct host_piece {
    int unit;
    int64_t at, count;
};

/* The piece that begins at element `at`: up to the end of the slice, or of a buffer. */
static struct host_piece piece_from(const struct zero *z, int unit, int64_t at)
{
    int64_t end = z->config.layout->slice[unit];
    int64_t cuts[] = {z->offload.disk || z->offload.copies[0].memory ? z->offload.piece : end,
                      zero_param_on_disk(z, unit) ? z->offloaded_params.piece : end};
    for (int i = 0; i < (int)COUNT_OF(cuts); i++)
        if ((at / cuts[i] + 1) * cuts[i] < end)
            end = (at / cuts[i] + 1) * cuts[i];
    return (struct host_piece){unit, at, end - at};
}

/* Where the gradients of a piece are; with nvme in the buffer that holds them now. */
static const void *find_grads(const struct zero *z, struct host_piece piece)
{
    void *grads = NULL;
    if (z->offload.grads_disk)
        slice_file_walk_to(z->offload.grads_disk, piece.unit, piece.at, &grads);
    else
        grads = host_grad(z, piece.unit) + (size_t)piece.at * dtype_size(z->config.grad_dtype);
    return grads;
}

struct search {
    const struct zero *zero;
    int64_t *index;
};

/* In a skipped step, finds the first gradient on the host that is not finite. */
static void run_search(void *argument)
{
    const struct search *search = argument;
    const struct zero *z = search->zero;
    const struct shard_layout *layout = z->config.layout;
    int64_t before = 0; /* elements that are finite */
    for (int u = z->offload.first_unit; u < z->units && z->offload.step->skipped; u++)
        for (int64_t at = 0; at < layout->slice[u];) {
            const struct host_piece piece = piece_from(z, u, at);
            int64_t found = piece.count;
            struct find_nonfinite_args args = {.dtype = z->config.grad_dtype,
                                               .n = piece.count,
                                               .x = find_grads(z, piece),
                                               .enabled = &z->offload.step->skipped,
                                               .index = &found};
            z->device->host_ops->find_nonfinite(NULL, &args);
            *search->index = before + found;
            if (found < piece.count)
                return;
            before += piece.count;
            at += piece.count;
        }
}

void zero_offload_begin_update(struct zero *z, struct stream *compute)
{
    struct zero_offload *o = &z->offload;
    if (o->first_unit == z->units)
        return;
    int slot = (int)(z->ended % ZERO_STEPS);
    stream_copy(compute, o->step, z->step, sizeof *o->step);
    event_record(o->decided, compute);
    stream_wait(o->host, o->decided);
    if (!z->grads_whole) {
        struct search search = {z, &z->records[slot].host_bad_index};
        stream_wait(o->host, o->d2h_done[o->first_unit]); /* the last one that comes down */
        stream_submit(o->host, run_search, &search, sizeof search);
    }
    event_record(o->searched[slot], o->host);
}

/* The work of the host on a piece of a unit. */
struct host_update {
    const struct zero *zero;
    struct host_piece piece;
    bool cast_only; /* the master weights have changed otherwise */
    char *copy;     /* receives the piece in the compute dtype; NULL: the master weights are these parameters */
};

/* Where the piece is in each kind of state; on a disk, in the buffer that holds it now. */
static void find_state(const struct zero *z, struct host_piece piece, void *state[STATE_KIND_COUNT])
{
    if (z->offload.disk)
        slice_file_walk_to(z->offload.disk, piece.unit, piece.at, state);
    else
        for (int s = 0; s < zero_states(z); s++)
            state[s] = zero_state_at(z, (enum state_kind)s, piece.unit, zero_own(z, piece.unit) + piece.at);
}

static void *element(void *array, int64_t index, enum dtype dtype)
{
    return array ? (char *)array + (size_t)index * dtype_size(dtype) : NULL;
}

/* param: as host_update.copy, in which the op rounds the master weights, unless they have the parameters' type and it
 * is not fp32. */
static void update_on_host(const struct zero *z, struct host_piece piece, void *const state[STATE_KIND_COUNT],
                           char *param)
{
    const int64_t own = zero_own(z, piece.unit), end = piece.at + piece.count;
    const struct zero_config *config = &z->config;
    char *grads = (char *)(uintptr_t)find_grads(z, piece);
    for (int i = z->first_range[piece.unit]; i < z->first_range[piece.unit + 1]; i++) {
        const struct decay_range *range = &z->ranges[i];
        const int64_t first = range->offset - own > piece.at ? range->offset - own : piece.at;
        const int64_t last = range->offset - own + range->count < end ? range->offset - own + range->count : end;
        if (first >= last)
            continue;
        const struct decay_range part = {.offset = own + first, .count = last - first, .decays = range->decays};
        const struct update_operands operands = {
            .master = element(state[STATE_MASTER], first - piece.at, config->master_dtype),
            .m = element(state[STATE_EXP_AVG], first - piece.at, config->moment_dtype),
            .v = element(state[STATE_EXP_AVG_SQ], first - piece.at, config->moment_dtype),
            .grad = element(grads, first - piece.at, config->grad_dtype),
            .grad_dtype = config->grad_dtype,
            .rounding = {config->rounding_seed, piece.unit, own + first},
            .step = z->offload.step,
            .param = element(param, first - piece.at, config->dtype),
        };
        zero_update_range(z, z->device->host_ops, &part, &operands, NULL);
    }
}

/* Computes parameters from master weights. */
static void cast_on_host(const struct zero *z, int64_t count, const void *master, void *param)
{
    struct cast_args cast = {
        .dst_dtype = z->config.dtype, .src_dtype = z->config.master_dtype, .n = count, .dst = param, .src = master};
    z->device->host_ops->cast(NULL, &cast);
}

static bool ends_record(const struct zero *z, struct host_piece piece)
{
    const int64_t end = piece.at + piece.count;
    return end % z->offload.piece == 0 || end == z->config.layout->slice[piece.unit];
}

static void run_update(void *argument)
{
    const struct host_update *update = argument;
    const struct zero *z = update->zero;
    const bool unchanged = update->cast_only || z->offload.step->skipped;
    void *state[STATE_KIND_COUNT] = {NULL};
    if (unchanged && !update->copy)
        return;
#ifdef _OPENMP
    omp_set_num_threads(z->device->threads); /* of this thread, which may be CUDA's */
#endif
    find_state(z, update->piece, state);
    if (!unchanged)
        update_on_host(z, update->piece, state, zero_one_copy(z) ? NULL : update->copy);
    if (update->copy && (unchanged || zero_one_copy(z)))
        cast_on_host(z, update->piece.count, state[STATE_MASTER], update->copy);
    if (!unchanged && z->offload.disk && ends_record(z, update->piece))
        slice_file_walk_store(z->offload.disk, update->piece.unit, update->piece.at);
}

/* Enqueues it on `host`. */
static void submit_update(struct zero *z, struct host_piece piece, bool cast_only, void *copy)
{
    struct host_update update = {.zero = z, .piece = piece, .cast_only = cast_only, .copy = copy};
    stream_submit(z->offload.host, run_update, &update, sizeof update);
}

/* The parameters are on a disk. */
static void update_params_on_disk(struct zero *z, int unit, bool cast_only)
{
    struct stream *host = z->offload.host;
    struct slice_file *disk = z->offloaded_params.disk;
    const int writer = z->offload.first_unit > 0; /* the other one is the stream `down` of units before it */
    const int64_t slice = z->config.layout->slice[unit], buffer = z->offloaded_params.piece;
    char *memory = NULL;
    for (int64_t at = 0; at < slice;) {
        const struct host_piece piece = piece_from(z, unit, at);
        const int64_t first = at - at % buffer;
        if (at == first)
            memory = slice_file_begin_write(disk, unit, first, writer, host);
        submit_update(z, piece, cast_only, memory + (size_t)(at - first) * dtype_size(z->config.dtype));
        at += piece.count;
        if (at % buffer == 0 || at == slice)
            slice_file_end_write(disk, unit, first, writer, host);
    }
}

/* The parameters are in host memory. */
static void update_params_in_memory(struct zero *z, int unit, bool cast_only)
{
    for (int64_t at = 0; at < z->config.layout->slice[unit];) {
        const struct host_piece piece = piece_from(z, unit, at);
        submit_update(z, piece, cast_only,
                      zero_master_is_params(z) ? NULL : zero_param(z, unit, zero_own(z, unit) + at));
        at += piece.count;
    }
}

/* The parameters are on the device. */
static void update_params_on_device(struct zero *z, int unit, bool cast_only)
{
    struct zero_offload *o = &z->offload;
    for (int64_t at = 0; at < z->config.layout->slice[unit];) {
        const struct host_piece piece = piece_from(z, unit, at);
        const int64_t offset = zero_own(z, unit) + at;
        struct h2d_buffer *copy = &o->copies[o->next_copy++ % OFFLOAD_BUFFERS];
        stream_wait(o->host, copy->h2d_done);
        submit_update(z, piece, cast_only, copy->memory);
        event_record(o->written, o->host);
        stream_wait(o->h2d, o->written);
        const void *source = copy->memory ? copy->memory : zero_state_at(z, STATE_MASTER, unit, offset);
        stream_copy_in_order(o->h2d, zero_param(z, unit, offset), source,
                             (size_t)piece.count * dtype_size(z->config.dtype));
        event_record(copy->h2d_done, o->h2d);
        at += piece.count;
    }
    event_record(o->h2d_done[unit], o->h2d);
}

void zero_offload_update(struct zero *z, int unit, bool cast_only)
{
    stream_wait(z->offload.host, z->offload.d2h_done[unit]);
    if (!zero_offloads_params(z)) {
        update_params_on_device(z, unit, cast_only);
        return;
    }
    if (zero_param_on_disk(z, unit))
        update_params_on_disk(z, unit, cast_only);
    else
        update_params_in_memory(z, unit, cast_only);
    event_record(z->offloaded_params.settled[unit], z->offload.host);
}

void zero_offload_sync(struct zero *z)
{
    if (z->offload.first_unit == z->units)
        return;
    stream_sync(z->offload.host);
    stream_sync(z->offload.h2d);
}

/* ---- nvme ---------------------------------------------------------------- */

static void run_walk_ahead(void *argument)
{
    slice_file_walk_ahead(*(struct slice_file *const *)argument);
}

void zero_offload_read_ahead(struct zero *z)
{
    if (z->offload.disk)
        stream_submit(z->offload.host, run_walk_ahead, &z->offload.disk, sizeof z->offload.disk);
}
