/* SPDX-License-Identifier: Apache-2.0 */
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

/* ---- creation ------------------------------------------------------------ */

static bool is_muon_matrix(const struct zero *z, const struct tensor_info *tensor)
{
    return z->muon.on && tensor_is_matrix(tensor) && zero_is_block(z, tensor->unit);
}

static bool zero_same_range(const struct zero *z, const struct tensor_info *a, const struct tensor_info *b)
{
    const bool all = z->config.optimizer.weight_decay_all;
    const struct tensor_table *table = z->config.table;
    return tensor_decays(a, all) == tensor_decays(b, all) && !is_muon_matrix(z, a) && !is_muon_matrix(z, b) &&
           tensor_has_blocks(table, a) == tensor_has_blocks(table, b);
}

/* Muon's second moments lie in the order of the ranges that have them. */
static void zero_add_range(struct zero *z, int *n, struct decay_range range)
{
    range.second = z->muon.seconds;
    if (!range.matrix) z->muon.seconds += round_up(range.count, SHARD_ALIGN);
    z->ranges[(*n)++] = range;
}

/* The ranges of a unit in its elements [first, end). A gap belongs to the tensor before it, unless that is Muon's or
 * has blocks. */
static void zero_add_ranges(struct zero *z, int u, int64_t first, int64_t end, int *n)
{
    const struct tensor_table *table = z->config.table;
    const struct unit_info *unit = &table->units[u];
    const struct tensor_info *tensors = table->tensors + unit->first_tensor;
    for (int t = 0; t < unit->num_tensors;) {
        const struct tensor_info *matrix = is_muon_matrix(z, &tensors[t]) ? &tensors[t] : NULL;
        const bool decays = tensor_decays(&tensors[t], z->config.optimizer.weight_decay_all);
        const bool blocks = tensor_has_blocks(table, &tensors[t]);
        int next = t + 1;
        while (next < unit->num_tensors && zero_same_range(z, &tensors[t], &tensors[next])) next++;
        const int64_t from = max64(t == 0 ? 0 : tensors[t].offset, first);
        const int64_t after = next < unit->num_tensors ? tensors[next].offset : shard_padded(z->config.layout, u);
        const int64_t last = tensors[next - 1].offset + tensors[next - 1].numel;
        const int64_t to = min64(matrix || blocks ? last : after, end);
        if (from < to) zero_add_range(z, n, (struct decay_range){from, to - from, decays, blocks, matrix, 0, 0});
        t = next;
    }
}

/* Slices of a unit whose ranges are apart: moments in 8 bits have words between slices. */
static int zero_sections(const struct zero *z, int unit)
{
    return z->state_whole[STATE_EXP_AVG] && z->config.table->moment_blocks ? z->unit[unit].ranks : 1;
}

/* Ranges with one weight decay in the state kept here. */
static void zero_new_ranges(struct zero *z)
{
    const bool whole = z->state_whole[STATE_EXP_AVG];
    int n = 0;
    z->muon.seconds = 0;
    for (int u = 0; u < z->units; u++) {
        const int sections = zero_sections(z, u);
        const int64_t first = whole ? zero_first(z, u) : zero_own(z, u);
        const int64_t size = (whole ? zero_padded(z, u) : z->config.layout->slice[u]) / sections;
        z->unit[u].ranges = z->ranges + n;
        for (int s = 0; s < sections; s++) zero_add_ranges(z, u, first + s * size, first + (s + 1) * size, &n);
    }
    z->unit[z->units].ranges = z->ranges + n;
    zero_join_ranges(z);
}

static enum status zero_new_stream(struct zero *z, struct error *err)
{
    if (z->config.base) /* one order of all collectives */
        z->stream = z->config.base->stream;
    else
        TRY(stream_new(z->device, STREAM_COMM, &z->stream, err));
    ZERO_NEW_EVENTS(z, err, &z->computed, &z->updated, &z->drained);
    for (int i = 0; i < ZERO_STEPS; i++) ZERO_NEW_EVENTS(z, err, &z->done[i]);
    TRY(device_alloc_host(z->device, ZERO_STEPS * sizeof *z->records, (void **)&z->records, err));
    const size_t extra_bytes = ZERO_STEPS * (size_t)zero_extra_count(z) * sizeof *z->extra_records;
    if (extra_bytes) TRY(device_alloc_host(z->device, extra_bytes, (void **)&z->extra_records, err));
    for (int u = 0; u < z->units; u++) ZERO_NEW_EVENTS(z, err, &z->unit[u].reduced, &z->unit[u].fetched);
    for (int p = 0; p < SLOTS; p++)
        ZERO_NEW_EVENTS(z, err, &z->slots[p].gathered, &z->slots[p].released, &z->buckets[p].reduced,
                        &z->comm_buffers[p].sent);
    return STATUS_OK;
}

/* Lays out the units that are acquired with `owner`, and kept here, one after the other. */
static void zero_new_slot(struct zero *z, int owner)
{
    struct zero_unit *last = NULL;
    int64_t place = 0;
    for (int frozen = 0; frozen < 2; frozen++)
        for (int u = owner; u >= 0; u = zero_next(z, u)) {
            const int kept = frozen ? zero_frozen(z, u) : u;
            if (frozen && !kept) continue;
            z->unit[kept].place = place;
            place += zero_padded(z, kept);
            if (last) last->next = kept;
            last = &z->unit[kept];
        }
}

static void zero_new_units(struct zero *z)
{
    const struct shard_layout *layout = z->config.layout;
    const int groups = z->config.expert_parallel > 1 ? z->config.expert_parallel : 1;
    z->unit = memory_zeroed((size_t)z->all_units + 1, sizeof *z->unit);
    for (int u = 0; u < z->all_units; u++) z->unit[u].ranks = z->world;
    for (int u = zero_head(z) + 1; u < z->units; u++) {
        z->unit[u].ranks = z->world / groups;
        z->unit[zero_frozen(z, u) ? zero_frozen(z, u) : u].ranks = z->world / groups;
        ASSERT(groups == 1 || z->config.table->units[u].numel % shard_padded(layout, u) == 0); /* or none */
    }
    for (int u = 0; u < z->all_units; u++) {
        z->unit[u + 1].whole = z->unit[u].whole + zero_padded(z, u);
        z->unit[u + 1].room = z->unit[u].room + layout->room[u] * z->unit[u].ranks;
    }
    for (int u = 0; u <= zero_head(z); u++) zero_new_slot(z, u);
}

/* The last unit that backward acquires: parameter_verbs.h. */
static int zero_backward_end(const struct zero_config *config)
{
    const int first = config->training ? tensor_table_first_trained(config->table) : 0;
    const bool acquires =
        tensor_find_part(config->table, 0, ROLE_WTE, PART_LORA_A) || tensor_find(config->table, 0, ROLE_LAYER_IN_W);
    return first > 0 || acquires ? first : 1;
}

enum status zero_new(const struct zero_config *config, struct device *device, struct comm *comm, struct zero **zero,
                     struct error *err)
{
    const struct tensor_table *table = config->table;
    ASSERT(config->zero.stage >= 0 && config->zero.stage <= 3 && table->num_units == config->layout->num_units);
    ASSERT(config->layout->num_trained >= 2 && (!comm || comm_world(comm) == config->layout->world));
    *zero = NULL;
    RELEASED(zero_drop) struct zero *z = memory_zeroed(1, sizeof *z);
    z->config = *config;
    z->config.disk = config->disk ? config->disk : &local_disk;
    z->device = device;
    z->comm = comm;
    z->world = config->layout->world;
    z->rank = comm ? comm_rank(comm) : 0;
    z->units = config->layout->num_trained;
    z->all_units = config->base ? z->units : config->layout->num_units;
    zero_new_units(z);
    z->backward_end = zero_backward_end(config);
    if (config->base && z->backward_end < config->base->backward_end) config->base->backward_end = z->backward_end;
    z->micro = -1;
    z->params_whole = config->zero.stage <= 2;
    z->grads_whole = config->zero.stage == 0 || (config->zero.stage == 1 && !zero_ordered(z));
    z->state_whole[STATE_EXP_AVG] = z->state_whole[STATE_EXP_AVG_SQ] = config->zero.stage == 0 && config->training;
    z->state_whole[STATE_MASTER] = zero_one_copy(z) ? z->params_whole : z->state_whole[STATE_EXP_AVG];
    z->offload.first_unit = zero_offload_first(config);
    z->muon.on = config->training && config->optimizer.type == OPTIMIZER_MUON && z->units > 2;
    ASSERT(!z->muon.on || (z->offload.first_unit == z->units && !zero_offloads_params(z) &&
                           config->moment_dtype == DTYPE_F32 && config->master_dtype == DTYPE_F32));
    ASSERT(config->moment_dtype == DTYPE_F32 || config->master_dtype == DTYPE_BF16);
    ASSERT(config->master_dtype == DTYPE_F32 || config->dtype == DTYPE_BF16);
    ASSERT(z->offload.first_unit == z->units || config->zero.stage > 0);
    ASSERT(config->layout->parts == 1 || config->ordered || !config->training);
    ASSERT(!zero_ordered(z) || config->grad_dtype == DTYPE_F32);
    ASSERT(!table->stored || table->word == (int64_t)dtype_size(config->dtype));
    ASSERT(!table->moment_blocks || !config->training ||
           (config->optimizer.type == OPTIMIZER_ADAMW8BIT && config->moment_dtype == DTYPE_F32));
    for (int p = 0; p < SLOTS; p++) z->slots[p].unit = z->buckets[p].unit = z->decoded_unit[p] = -1;
    z->bad_rank_records = memory_zeroed(ZERO_STEPS * (size_t)z->units, sizeof *z->bad_rank_records);
    const size_t ranges = (size_t)table->num_tensors * (size_t)zero_sections(z, 0);
    z->ranges = memory_zeroed(ranges, sizeof *z->ranges);
    z->segments = memory_zeroed(ranges, sizeof *z->segments);
    zero_new_ranges(z);
    TRY(zero_offload_params_init(z, err));
    if (comm) TRY(zero_new_stream(z, err));
    TRY(zero_offload_open(z, err));
    *zero = TAKEN(z);
    return STATUS_OK;
}

void zero_free(struct zero *z)
{
    if (!z) return;
    if (!z->config.base)
        stream_free(z->stream);
    else if (z->stream) /* it goes on, but without this one's memory */
        stream_sync(z->stream);
    zero_offload_close(z); /* after that stream, which waits for its events */
    zero_offload_params_release(z);
    for (int i = 0; i < z->num_events; i++) event_free(z->events[i]);
    free(z->events);
    if (z->host_slice && !z->host_slice_planned)
        device_free_host(z->device, z->host_slice_memory, z->host_slice_bytes + ASYNC_IO_ALIGN);
    device_free_host(z->device, z->records, ZERO_STEPS * sizeof *z->records);
    device_free_host(z->device, z->extra_records, ZERO_STEPS * (size_t)zero_extra_count(z) * sizeof *z->extra_records);
    free(z->unit);
    free(z->bad_rank_records);
    free(z->ranges);
    free(z->segments);
    free(z->check);
    free(z);
}

bool zero_has_matrix_sums(const struct zero *z)
{
    return zero_gives_matrix_sums(z, 1); /* a block */
}

/* ---- memory -------------------------------------------------------------- */

/* At stages 0 and 1 the gradients are reduced where they are, or their sums gathered. */
static bool zero_peers_read_grads(const struct zero *z)
{
    bool reduced_in_place = z->config.grad_dtype == DTYPE_F32 && !zero_narrow_comm(z);
    return zero_parallel(z) && z->grads_whole && (z->config.zero.stage == 0 || reduced_in_place);
}

static bool is_on_gpu(const struct zero *z)
{
    return z->device && z->device->kind == DEVICE_CUDA; /* NULL: a dry layout */
}

/* Of memory that collectives use, but no peer reads on the CPU: NCCL works without copies if it knows both ends. */
static struct arena *used_by_peers(const struct zero *z, struct arena *local, struct arena *shared)
{
    return zero_parallel(z) && is_on_gpu(z) ? shared : local;
}

/* Gathered units and buckets; with world 1 only those that offload needs. */
static void zero_layout_slots(struct zero *z, struct arena *local, struct arena *shared)
{
    const struct zero_config *config = &z->config;
    const bool parallel = zero_parallel(z);
    const size_t size = dtype_size(config->dtype);
    const bool peers_read_buckets = parallel && !zero_narrow_comm(z);
    bool blocks_alike = true;
    int64_t room[SLOTS] = {0}, own_room[SLOTS] = {0}, trained_room[SLOTS] = {0}, bucket_room[SLOTS] = {0};
    for (int u = 0; u < z->all_units; u++) {
        const int p = zero_slot(z, u);
        const int64_t end = z->unit[u].place + zero_padded(z, u);
        if (!zero_is_resident(z, u)) room[p] = max64(end, room[p]);
        if (u < z->units) trained_room[p] = max64(end, trained_room[p]);
        if (u < z->units && zero_fills_bucket(z, u)) bucket_room[p] = max64(end, bucket_room[p]);
        int64_t own = 0;
        for (int v = u; v >= 0; v = zero_next_gathered(z, v)) own += config->layout->slice[v];
        own_room[p] = max64(own, own_room[p]);
    }
    for (int u = 2; u < zero_head(z); u++) blocks_alike &= zero_alike(z, 1, u);
    for (int p = 0; p < SLOTS; p++) {
        struct gather_slot *slot = &z->slots[p];
        if (zero_gathers_on_demand(z))
            slot->memory = arena_take(used_by_peers(z, local, shared), MEM_COMM, (size_t)room[p] * size);
        if (zero_offloads_params(z))
            slot->staging = parallel ? arena_take(shared, MEM_COMM, (size_t)own_room[p] * size) : slot->memory;
        /* only the compute stream uses them */
        if (p == 3 && !peers_read_buckets && z->offload.first_unit == z->units && blocks_alike)
            z->buckets[p].memory = z->buckets[2].memory;
        else
            z->buckets[p].memory =
                arena_take(peers_read_buckets ? shared : local, MEM_COMM, (size_t)bucket_room[p] * sizeof(float));
    }
    for (int p = 0; p < SLOTS && zero_narrow_comm(z); p++)
        z->comm_buffers[p].memory =
            arena_take(parallel ? shared : local, MEM_COMM, (size_t)trained_room[p] * dtype_size(config->comm_dtype));
}

enum { INBOX_BYTES = 64 << 20 }; /* at most: longer slices are reduced in pieces */

static void zero_layout_inbox(struct zero *z, struct arena *shared)
{
    const int64_t size = (int64_t)dtype_size(z->config.comm_dtype), least = (int64_t)SHARD_ALIGN * z->world;
    const bool ordered = zero_ordered(z) || (z->config.training && z->config.expert_parallel > 1);
    if (!ordered || !zero_parallel(z) || !is_on_gpu(z)) return;
    z->inbox_numel = max64(min64(zero_largest_slice(z, 0, z->units) * z->world, INBOX_BYTES / size), least);
    z->inbox = arena_take(shared, MEM_COMM, (size_t)(z->inbox_numel * size));
}

static bool has_narrow_state(const struct zero *z)
{
    return z->config.master_dtype != DTYPE_F32 || (z->all_units > z->units && z->config.dtype != DTYPE_F32);
}

/* Sets the bytes of host_slice, and returns those before host_halves. */
static size_t size_host_slice(struct zero *z)
{
    const int64_t largest = zero_largest_slice(z, 0, z->all_units);
    const int64_t room = z->config.table->moment_blocks ? ASYNC_IO_ALIGN : 0; /* of slice_file_transfer() */
    const int64_t floats = round_up(largest * (int64_t)sizeof *z->host_slice, ASYNC_IO_ALIGN) + room;
    const int64_t halves = round_up(largest * (int64_t)sizeof *z->host_halves, ASYNC_IO_ALIGN);
    z->host_slice_bytes = (size_t)(floats + (has_narrow_state(z) ? halves : 0));
    return (size_t)floats;
}

/* memory: host_slice_bytes + ASYNC_IO_ALIGN */
static void set_host_slice(struct zero *z, void *memory)
{
    const size_t floats = size_host_slice(z);
    z->host_slice_memory = memory;
    z->host_slice = (void *)round_up((int64_t)memory, ASYNC_IO_ALIGN);
    z->host_halves = (uint16_t *)((char *)z->host_slice + floats);
}

/* Offloaded state that is on a disk or in bf16 passes through host_slice at the start and for each checkpoint. */
static void lay_out_host_slice(struct zero *z, struct arena *host)
{
    const bool offloads = z->offload.first_unit < z->units || zero_offloads_params(z);
    z->host_slice_planned = z->offload.disk || z->offloaded_params.disk || (offloads && has_narrow_state(z));
    if (!z->host_slice_planned) return;
    size_host_slice(z);
    void *memory = arena_take(host, MEM_WORKSPACE, z->host_slice_bytes + ASYNC_IO_ALIGN);
    if (memory) set_host_slice(z, memory);
}

/* Of a state's array on the device. */
static int64_t zero_words_here(const struct zero *z, enum state_kind state)
{
    if (state == STATE_EXP_AVG_SQ && z->muon.on) return z->muon.seconds;
    if (!z->state_whole[state]) return zero_words_before(z, state, z->offload.first_unit);
    return state == STATE_MASTER ? z->unit[z->units].whole : z->unit[z->units].room;
}

void zero_layout(struct zero *z, struct arena *local, struct arena *shared, struct arena *host)
{
    const struct zero_config *config = &z->config;
    const int64_t own = config->layout->shard_offset[z->all_units];
    const int64_t kept = config->layout->shard_offset[z->offload.first_unit]; /* own slices on the device */
    struct arena *read_by_peers = zero_parallel(z) ? shared : local;
    struct arena *of_params = zero_offloads_params(z) ? host : config->zero.stage == 0 ? local : read_by_peers;

    const int64_t params = z->params_whole           ? z->unit[z->all_units].whole
                           : zero_offloads_params(z) ? config->layout->shard_offset[z->offloaded_params.resident]
                                                     : own;
    z->params = arena_take(of_params, MEM_PARAMS, (size_t)params * dtype_size(config->dtype));
    if (z->offloaded_params.disk) slice_file_layout(z->offloaded_params.disk, host, MEM_PARAMS);
    for (int k = 0; k < zero_states(z); k++) {
        const size_t state_size = dtype_size(zero_state_dtype(z, (enum state_kind)k));
        if (k == STATE_MASTER && zero_one_copy(z))
            z->state[k] = z->params;
        else if (k == STATE_MASTER || config->training)
            z->state[k] = arena_take(local, MEM_OPTIMIZER, (size_t)zero_words_here(z, (enum state_kind)k) * state_size);
    }
    if (config->training) {
        z->grads =
            arena_take(zero_peers_read_grads(z) ? shared : used_by_peers(z, local, shared), MEM_GRADS,
                       (size_t)(z->grads_whole ? z->unit[z->units].whole : kept) * dtype_size(config->grad_dtype));
        z->reports =
            arena_take(read_by_peers, MEM_WORKSPACE,
                       (size_t)(z->world * config->layout->parts) * ((size_t)z->units + 1) * sizeof *z->reports);
        z->extra = arena_take(read_by_peers, MEM_WORKSPACE, (size_t)zero_extra_count(z) * sizeof *z->extra);
        z->step = arena_take(local, MEM_WORKSPACE, sizeof *z->step);
        z->schedule = arena_take(local, MEM_WORKSPACE, sizeof *z->schedule);
        z->bad_index = arena_take(local, MEM_WORKSPACE, sizeof *z->bad_index);
        z->range_segments = arena_take(local, MEM_WORKSPACE,
                                       (size_t)(z->unit[z->units].ranges - z->ranges) * sizeof *z->range_segments);
    }
    zero_layout_slots(z, local, shared);
    zero_base_layout(z, local);
    zero_layout_inbox(z, shared);
    /* a rank's own block and those of others lie apart, which NCCL does not allow in memory that it knows */
    zero_muon_layout(z, local, is_on_gpu(z) ? local : shared);
    zero_offload_layout(z, local, used_by_peers(z, local, shared), host);
    lay_out_host_slice(z, host);
}

struct stream *zero_stream(struct zero *zero)
{
    return zero->stream;
}

void *zero_slice(struct zero *zero, enum state_kind state, int unit)
{
    ASSERT(unit >= 0 && unit < zero->all_units);
    return zero_state_at(zero, state, unit, zero_own(zero, unit));
}

/* Copies a written host buffer to its slice; rounding to 16 bits changes no value that came from there. */
static enum status host_slice_write_back(struct zero *z, struct error *err)
{
    const struct written_slice written = z->written;
    const bool narrow = written.dtype != DTYPE_F32;
    void *source = narrow ? (void *)z->host_halves : z->host_slice;
    const size_t bytes = (size_t)written.count * dtype_size(written.dtype);
    z->written = (struct written_slice){0};
    if (narrow) floats_to(z->host_halves, z->host_slice, (size_t)written.count, written.dtype);
    if (written.disk) return slice_file_transfer(written.disk, true, written.unit, written.part, source, err);
    if (written.sparse)
        zero_muon_copy_seconds(z, written.unit, zero_own(z, written.unit), written.count, source, true, z->stream);
    else if (written.host)
        memcpy(written.slice, source, bytes);
    else if (written.slice)
        stream_copy(z->stream, written.slice, source, bytes);
    else
        return STATUS_OK;
    stream_sync(z->stream);
    return STATUS_OK;
}

enum status zero_host_buffer(struct zero *z, struct error *err)
{
    TRY(host_slice_write_back(z, err));
    if (z->host_slice) return STATUS_OK;
    void *memory;
    size_host_slice(z);
    TRY(device_alloc_host(z->device, z->host_slice_bytes + ASYNC_IO_ALIGN, &memory, err));
    set_host_slice(z, memory);
    return STATUS_OK;
}

/* Reads the slice into `to`, in its dtype; a sparse one has zeros for the rest. */
static enum status host_slice_read(struct zero *z, const struct written_slice *home, void *to, struct error *err)
{
    const size_t bytes = (size_t)home->count * dtype_size(home->dtype);
    if (home->disk) return slice_file_transfer(home->disk, false, home->unit, home->part, to, err);
    if (home->sparse) {
        memset(to, 0, bytes);
        zero_muon_copy_seconds(z, home->unit, zero_own(z, home->unit), home->count, to, false, z->stream);
    } else if (home->host) {
        memcpy(to, home->slice, bytes);
    } else {
        stream_copy(z->stream, to, home->slice, bytes);
    }
    stream_sync(z->stream);
    return device_check(z->device, err);
}

static enum status host_slice_buffer(struct zero *z, enum slice_access access, const struct written_slice *home,
                                     float **slice, struct error *err)
{
    TRY(zero_host_buffer(z, err));
    *slice = z->host_slice;
    if (access == SLICE_WRITE) {
        z->written = *home;
        memset(z->host_slice, 0, home->disk ? z->host_slice_bytes : 0); /* a disk takes more than the slice */
        return STATUS_OK;
    }
    if (home->dtype == DTYPE_F32) return host_slice_read(z, home, z->host_slice, err);
    TRY(host_slice_read(z, home, z->host_halves, err));
    floats_from(z->host_slice, z->host_halves, (size_t)home->count, home->dtype);
    return STATUS_OK;
}

/* Whether the slice is one of the parameters' own. */
static bool host_slice_is_param(const struct zero *z, enum state_kind state, int unit)
{
    return unit >= z->units || (state == STATE_MASTER && zero_one_copy(z) && !zero_is_offloaded(z, unit));
}

static enum status zero_host_slice(void *owner, enum slice_access access, enum state_kind state, int unit,
                                   float **slice, struct error *err)
{
    struct zero *z = owner;
    if (unit >= z->all_units) return zero_host_slice(z->config.base, access, state, unit, slice, err);
    struct written_slice home = {.dtype = zero_slice_dtype(z, state, unit),
                                 .count = state_words(z->config.layout, state, unit),
                                 .host = z->device->kind == DEVICE_CPU || zero_is_offloaded(z, unit) ||
                                         (zero_offloads_params(z) && host_slice_is_param(z, state, unit)),
                                 .sparse = zero_is_sparse(z, state, unit),
                                 .unit = unit};
    if (z->config.table->units[unit].stored_bytes) { /* they count as floats */
        home.count = home.count * (int64_t)dtype_size(home.dtype) / (int64_t)sizeof(float);
        home.dtype = DTYPE_F32;
    }
    if (zero_is_offloaded(z, unit)) {
        zero_offload_sync(z);
        home.disk = z->offload.disk;
        home.part = (int)state;
    } else {
        stream_wait(z->stream, z->updated); /* a captured step has recorded it, which the host cannot wait for */
        stream_sync(z->stream);
        if (host_slice_is_param(z, state, unit) && zero_param_on_disk(z, unit)) home.disk = z->offloaded_params.disk;
    }
    TRY(device_check(z->device, err));
    TRY(zero_disk_status(z, err)); /* a failed read may have made state in memory, or on another disk, wrong */
    home.slice = home.disk || home.sparse ? NULL : zero_slice(z, state, unit);
    if (!home.slice || !home.host || home.dtype != DTYPE_F32) return host_slice_buffer(z, access, &home, slice, err);
    *slice = home.slice;
    return STATUS_OK;
}

struct state_slices zero_slices(struct zero *z)
{
    return (struct state_slices){.owner = z, .count = zero_states(z), .get = zero_host_slice};
}

/* ---- from own slices to everything else ---------------------------------- */

static void zero_cast_unit(struct zero *z, int unit, struct stream *compute)
{
    bool whole = z->state_whole[STATE_MASTER];
    int64_t first = whole ? zero_first(z, unit) : zero_own(z, unit);
    zero_cast(z, z->device->ops, whole ? zero_padded(z, unit) : z->config.layout->slice[unit],
              zero_state_at(z, STATE_MASTER, unit, first), zero_param(z, unit, first), compute);
}

static void zero_gather_states(struct zero *z, int unit)
{
    for (int s = 0; s < zero_states(z); s++) {
        const bool whole = z->state[s] && z->state_whole[s];
        if (whole && zero_is_sparse(z, (enum state_kind)s, unit))
            zero_muon_gather_seconds(z, unit);
        else if (whole && !zero_is_offloaded(z, unit))
            zero_gather_state(z, (enum state_kind)s, unit);
    }
}

static void zero_compute_params(struct zero *z, struct stream *compute)
{
    for (int u = 0; u < z->units; u++) {
        if (zero_is_offloaded(z, u)) {
            zero_offload_update(z, u, true);
            stream_wait(z->stream, z->unit[u].h2d_done);
        } else if (!zero_one_copy(z) && zero_offloads_params(z)) {
            zero_master_d2h(z, u, compute);
        } else if (!zero_one_copy(z)) {
            zero_cast_unit(z, u, compute);
        }
    }
}

enum status zero_params_changed(struct zero *z, struct stream *compute, struct error *err)
{
    const bool cast_own = !zero_one_copy(z) && !z->state_whole[STATE_MASTER];
    zero_slots_clear(z);
    zero_base_clear(z, compute);
    TRY(host_slice_write_back(z, err));
    zero_follow_compute(z, compute);
    for (int u = 0; zero_parallel(z) && u < z->units; u++) zero_gather_states(z, u);
    zero_follow_comm(z, compute);
    zero_compute_params(z, compute);
    zero_follow_compute(z, compute);
    for (int u = 0; zero_parallel(z) && z->params_whole && u < z->all_units; u++)
        if (zero_is_offloaded(z, u) || cast_own || u >= z->units)
            zero_gather(z, COMM_PARAMETERS, u, zero_param(z, u, zero_own(z, u)), zero_param(z, u, zero_first(z, u)),
                        z->config.dtype);
    if (zero_offloads_params(z)) stream_sync(z->offloaded_params.d2h);
    zero_offload_sync(z);
    stream_sync(z->stream);
    stream_sync(compute);
    TRY(zero_disk_status(z, err));
    TRY(device_check(z->device, err));
    return comm_status(z->comm, err);
}
