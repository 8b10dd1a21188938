/* zero.c: which arrays a rank keeps at which stage, and their layout. See zero.h.
 *
 * Every array is laid out by units, as in the shard layout, in one of two ways:
 *
 *     whole       | unit 0: slice of rank 0, 1, … N-1 | unit 1: slice of rank 0, 1, … N-1 | …
 *     own slices  | unit 0: own slice | unit 1: own slice | …
 *
 * zero_index() computes the index of an element in both. */
#include "comm/zero/zero.h"

#include "comm/zero/zero_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- creation ------------------------------------------------------------ */

static int64_t clamp(int64_t x, int64_t low, int64_t high)
{
    return x < low ? low : x > high ? high : x;
}

/* Cuts the state kept here into ranges with the same weight decay; a gap belongs to the tensor before it. */
static void build_ranges(struct zero *z)
{
    const struct tensor_table *table = z->config.table;
    const struct shard_layout *layout = z->config.layout;
    bool whole = z->state_whole[STATE_EXP_AVG];
    int n = 0;
    for (int u = 0; u < z->units; u++) {
        const struct unit_info *unit = &table->units[u];
        const struct tensor_info *tensors = table->tensors + unit->first_tensor;
        int64_t first = whole ? 0 : zero_own(z, u), end = first + (whole ? shard_padded(layout, u) : layout->slice[u]);
        z->first_range[u] = n;
        for (int t = 0; t < unit->num_tensors;) {
            bool decays = tensor_decays(&tensors[t], z->config.optimizer.weight_decay_all);
            int next = t + 1;
            while (next < unit->num_tensors &&
                   tensor_decays(&tensors[next], z->config.optimizer.weight_decay_all) == decays)
                next++;
            int64_t from = clamp(t == 0 ? 0 : tensors[t].offset, first, end);
            int64_t to = clamp(next < unit->num_tensors ? tensors[next].offset : shard_padded(layout, u), first, end);
            if (from < to)
                z->ranges[n++] = (struct decay_range){from, to - from, decays};
            t = next;
        }
    }
    z->first_range[z->units] = n;
}

static enum status make_events(struct zero *z, struct error *err)
{
    TRY(stream_new(z->device, STREAM_COMM, &z->stream, err));
    TRY(event_new(z->device, &z->computed, err));
    TRY(event_new(z->device, &z->updated, err));
    TRY(event_new(z->device, &z->drained, err));
    for (int i = 0; i < ZERO_STEPS; i++)
        TRY(event_new(z->device, &z->done[i], err));
    TRY(stopwatch_new(z->device, &z->stopwatch, err));
    void *records;
    TRY(device_alloc_host(z->device, ZERO_STEPS * sizeof *z->records, &records, err));
    z->records = records;
    for (int u = 0; u < z->units; u++) {
        TRY(event_new(z->device, &z->reduced[u], err));
        TRY(event_new(z->device, &z->fetched[u], err));
    }
    for (int p = 0; p < PLACES; p++) {
        TRY(event_new(z->device, &z->places[p].gathered, err));
        TRY(event_new(z->device, &z->places[p].released, err));
        TRY(event_new(z->device, &z->buckets[p].reduced, err));
    }
    return STATUS_OK;
}

enum status zero_new(const struct zero_config *config, struct device *device, struct comm *comm, struct zero **zero,
                     struct error *err)
{
    const struct tensor_table *table = config->table;
    ASSERT(config->stage >= 0 && config->stage <= 3 && table->num_units == config->layout->num_units);
    ASSERT(table->num_units >= 2 && (!comm || comm_world(comm) == config->layout->world));
    enum status status;
    *zero = NULL;
    struct zero *z = calloc(1, sizeof *z);
    if (!z)
        return error_set(err, STATUS_DEVICE, "out of memory");
    z->config = *config;
    z->device = device;
    z->comm = comm;
    z->world = config->layout->world;
    z->rank = comm ? comm_rank(comm) : 0;
    z->units = table->num_units;
    z->micro = -1;
    z->params_whole = config->stage <= 2;
    z->grads_whole = config->stage <= 1;
    z->state_whole[STATE_EXP_AVG] = z->state_whole[STATE_EXP_AVG_SQ] = config->stage == 0 && config->training;
    z->state_whole[STATE_MASTER] = config->dtype == DTYPE_F32 ? z->params_whole : z->state_whole[STATE_EXP_AVG];
    for (int p = 0; p < PLACES; p++)
        z->places[p].unit = z->buckets[p].unit = -1;

    size_t units = (size_t)z->units;
    z->reduced = calloc(units, sizeof *z->reduced);
    z->fetched = calloc(units, sizeof *z->fetched);
    z->open = calloc(units, sizeof *z->open);
    z->bad_rank_records = calloc(ZERO_STEPS * units, sizeof *z->bad_rank_records);
    z->ranges = calloc((size_t)table->num_tensors, sizeof *z->ranges);
    z->first_range = calloc(units + 1, sizeof *z->first_range);
    if (!z->reduced || !z->fetched || !z->open || !z->bad_rank_records || !z->ranges || !z->first_range) {
        status = error_set(err, STATUS_DEVICE, "out of memory");
        goto fail;
    }
    build_ranges(z);
    zero_verbs_init(z);
    if (comm)
        TRY_GOTO(make_events(z, err));
    *zero = z;
    return STATUS_OK;
fail:
    zero_free(z);
    return status;
}

static void free_event(struct event *event)
{
    if (event)
        event_free(event);
}

void zero_free(struct zero *z)
{
    if (!z)
        return;
    if (z->stream)
        stream_free(z->stream);
    for (int u = 0; u < z->units; u++) {
        free_event(z->reduced ? z->reduced[u] : NULL);
        free_event(z->fetched ? z->fetched[u] : NULL);
    }
    for (int p = 0; p < PLACES; p++) {
        free_event(z->places[p].gathered);
        free_event(z->places[p].released);
        free_event(z->buckets[p].reduced);
    }
    free_event(z->computed);
    free_event(z->updated);
    free_event(z->drained);
    for (int i = 0; i < ZERO_STEPS; i++)
        free_event(z->done[i]);
    stopwatch_free(z->stopwatch);
    if (z->host_slice)
        device_free_host(z->device, z->host_slice, z->host_slice_bytes);
    if (z->records)
        device_free_host(z->device, z->records, ZERO_STEPS * sizeof *z->records);
    free(z->reduced);
    free(z->fetched);
    free(z->open);
    free(z->bad_rank_records);
    free(z->ranges);
    free(z->first_range);
    free(z);
}

/* ---- memory -------------------------------------------------------------- */

static float *take_floats(struct arena *arena, enum mem_kind kind, int64_t count)
{
    return arena_take(arena, kind, (size_t)count * sizeof(float));
}

void zero_layout(struct zero *z, struct arena *local, struct arena *shared)
{
    const struct zero_config *config = &z->config;
    const int64_t own = config->layout->shard_numel, whole = own * z->world;
    const size_t size = dtype_size(config->dtype);
    struct arena *read_by_peers = zero_parallel(z) ? shared : local;

    z->params = arena_take(config->stage == 0 ? local : read_by_peers, MEM_PARAMS,
                           (size_t)(z->params_whole ? whole : own) * size);
    if (config->dtype == DTYPE_F32)
        z->state[STATE_MASTER] = (float *)z->params;
    else
        z->state[STATE_MASTER] = take_floats(local, MEM_OPTIMIZER, z->state_whole[STATE_MASTER] ? whole : own);
    if (config->training) {
        for (int s = STATE_EXP_AVG; s < STATE_KIND_COUNT; s++)
            z->state[s] = take_floats(local, MEM_OPTIMIZER, z->state_whole[s] ? whole : own);
        z->grads = take_floats(z->grads_whole ? read_by_peers : local, MEM_GRADS, z->grads_whole ? whole : own);
        z->reports =
            arena_take(read_by_peers, MEM_WORKSPACE, (size_t)z->world * ((size_t)z->units + 1) * sizeof *z->reports);
        z->step = arena_take(local, MEM_WORKSPACE, sizeof *z->step);
        z->schedule = arena_take(local, MEM_WORKSPACE, sizeof *z->schedule);
        z->bad_index = arena_take(local, MEM_WORKSPACE, sizeof *z->bad_index);
    }
    if (!zero_parallel(z))
        return;
    int64_t room[PLACES] = {0};
    for (int u = 0; u < z->units; u++) {
        int p = zero_place(z, u);
        int64_t padded = shard_padded(config->layout, u);
        room[p] = padded > room[p] ? padded : room[p];
    }
    for (int p = 0; p < PLACES; p++) {
        if (config->stage == 3)
            z->places[p].memory = arena_take(local, MEM_COMM, (size_t)room[p] * size);
        if (config->stage >= 2 && config->training)
            z->buckets[p].memory = take_floats(shared, MEM_COMM, room[p]);
    }
}

struct stream *zero_stream(struct zero *zero)
{
    return zero->stream;
}

float *zero_slice(struct zero *zero, enum state_kind state, int unit)
{
    ASSERT(unit >= 0 && unit < zero->units && zero->state[state]);
    return zero_state_at(zero, state, unit, zero_own(zero, unit));
}

/* Copies a written host buffer to its slice. */
static void write_back(struct zero *z)
{
    if (!z->written)
        return;
    stream_copy(z->stream, z->written, z->host_slice, z->written_bytes);
    stream_sync(z->stream);
    z->written = NULL;
}

enum status zero_host_buffer(struct zero *z, struct error *err)
{
    write_back(z);
    if (z->host_slice)
        return STATUS_OK;
    int64_t largest = 0;
    for (int u = 0; u < z->units; u++)
        largest = z->config.layout->slice[u] > largest ? z->config.layout->slice[u] : largest;
    void *memory;
    TRY(device_alloc_host(z->device, (size_t)largest * sizeof *z->host_slice, &memory, err));
    z->host_slice = memory;
    z->host_slice_bytes = (size_t)largest * sizeof *z->host_slice;
    return STATUS_OK;
}

static enum status host_slice(void *owner, enum slice_access access, enum state_kind state, int unit, float **slice,
                              struct error *err)
{
    struct zero *z = owner;
    float *own = zero_slice(z, state, unit);
    *slice = own;
    if (z->device->kind == DEVICE_CPU)
        return STATUS_OK;
    size_t bytes = (size_t)z->config.layout->slice[unit] * sizeof *own;
    TRY(zero_host_buffer(z, err));
    *slice = z->host_slice;
    if (access == SLICE_WRITE) {
        z->written = own;
        z->written_bytes = bytes;
        return STATUS_OK;
    }
    stream_wait(z->stream, z->updated);
    stream_copy(z->stream, z->host_slice, own, bytes);
    stream_sync(z->stream);
    return device_check(z->device, err);
}

struct state_slices zero_slices(struct zero *z)
{
    return (struct state_slices){.owner = z, .get = host_slice};
}

/* ---- from own slices to everything else ---------------------------------- */

enum status zero_params_changed(struct zero *z, struct stream *compute, struct error *err)
{
    const struct zero_config *config = &z->config;
    const struct op_table *ops = z->device->ops;
    zero_places_clear(z);
    write_back(z);
    event_record(z->computed, compute);
    stream_wait(z->stream, z->computed);
    if (zero_parallel(z))
        for (int u = 0; u < z->units; u++)
            for (int s = 0; s < STATE_KIND_COUNT; s++)
                if (z->state[s] && z->state_whole[s])
                    zero_gather(z, u, zero_slice(z, s, u), zero_state_at(z, s, u, 0), DTYPE_F32);
    if (config->dtype != DTYPE_F32) {
        event_record(z->drained, z->stream);
        stream_wait(compute, z->drained);
        bool whole = z->state_whole[STATE_MASTER];
        for (int u = 0; u < z->units; u++) {
            int64_t first = whole ? 0 : zero_own(z, u);
            struct cast_args cast = {.dst_dtype = config->dtype,
                                     .src_dtype = DTYPE_F32,
                                     .n = whole ? shard_padded(config->layout, u) : config->layout->slice[u],
                                     .dst = zero_param(z, u, first),
                                     .src = zero_state_at(z, STATE_MASTER, u, first)};
            ops->cast(compute, &cast);
        }
        event_record(z->computed, compute);
        stream_wait(z->stream, z->computed);
        if (zero_parallel(z) && z->params_whole && !whole)
            for (int u = 0; u < z->units; u++)
                zero_gather(z, u, zero_param(z, u, zero_own(z, u)), zero_param(z, u, 0), config->dtype);
    }
    stream_sync(z->stream);
    stream_sync(compute);
    TRY(device_check(z->device, err));
    return comm_status(z->comm, err);
}
