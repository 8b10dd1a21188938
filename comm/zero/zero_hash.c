/* SPDX-License-Identifier: Apache-2.0 */
/* zero_hash.c: hashes of a rank's arrays, and the comparison of the ranks' copies of the model: a checkpoint takes each
 * rank's own slices, and would mix models if copies had drifted apart (a faulty chip, a flipped bit, other kernels).
 * Ranks exchange one hash of all arrays; if it differs, those of each array and unit, and of the tensors of the first
 * unit that differs. */
#include "comm/zero/zero_internal.h"
#include "core/piece_hash.h"

enum status zero_hash(struct zero *z, const void *memory, bool in_host, size_t bytes, uint64_t *hash, struct error *err)
{
    if (in_host || z->device->kind == DEVICE_CPU) {
        *hash = piece_hash(*hash, memory, bytes);
        return STATUS_OK;
    }
    TRY(zero_host_buffer(z, err));
    for (size_t at = 0; at < bytes; at += z->host_slice_bytes) {
        size_t n = bytes - at < z->host_slice_bytes ? bytes - at : z->host_slice_bytes;
        stream_copy(z->stream, z->host_slice, (const char *)memory + at, n);
        stream_sync(z->stream);
        *hash = piece_hash(*hash, z->host_slice, n);
    }
    return device_check(z->device, err);
}

static enum status hash_seconds(struct zero *z, int unit, int64_t offset, int64_t count, uint64_t *hash,
                                struct error *err)
{
    for (const struct decay_range *range = z->unit[unit].ranges; range < z->unit[unit + 1].ranges; range++) {
        const int64_t from = max64(range->offset, offset), end = min64(range->offset + range->count, offset + count);
        if (range->matrix || from >= end) continue;
        const float *values = zero_second_at(z, range) + (from - range->offset);
        TRY(zero_hash(z, values, false, (size_t)(end - from) * sizeof *values, hash, err));
    }
    return STATUS_OK;
}

const char *zero_array_name(int array)
{
    return array == ARRAY_PARAMS ? "parameters" : state_kind_names[array - ARRAY_STATE];
}

struct zero_kept zero_kept_of(const struct zero *z, int array, int unit)
{
    const struct zero_kept nothing = {.first = 0};
    const enum state_kind state = (enum state_kind)(array - ARRAY_STATE);
    const bool params = array == ARRAY_PARAMS, offloaded = zero_is_offloaded(z, unit);
    if (params ? zero_param_on_disk(z, unit) : unit >= z->units || (int)state >= zero_states(z)) return nothing;
    if (!params && !(offloaded ? z->offload.state[state] : z->state[state])) return nothing;
    if (!params && state == STATE_MASTER && zero_one_copy(z) && (!offloaded || zero_master_is_params(z)))
        return nothing;
    const bool whole = params ? z->params_whole : !offloaded && z->state_whole[state];
    const int64_t own = zero_own(z, unit), first = zero_first(z, unit);
    return (struct zero_kept){.first = whole ? first : own,
                              .end = whole ? first + zero_padded(z, unit) : own + z->config.layout->slice[unit],
                              .in_host = params ? zero_offloads_params(z) : offloaded,
                              .dtype = params ? z->config.dtype : zero_state_dtype(z, state)};
}

char *zero_array_at(const struct zero *z, int array, int unit, int64_t offset)
{
    return array == ARRAY_PARAMS ? zero_param(z, unit, offset)
                                 : zero_state_at(z, (enum state_kind)(array - ARRAY_STATE), unit, offset);
}

enum status zero_hash_array(struct zero *z, int array, int unit, int64_t offset, int64_t count, uint64_t *hash,
                            struct error *err)
{
    if (array != ARRAY_PARAMS && zero_is_sparse(z, (enum state_kind)(array - ARRAY_STATE), unit))
        return hash_seconds(z, unit, offset, count, hash, err);
    const char *first = zero_array_at(z, array, unit, offset), *end = zero_array_at(z, array, unit, offset + count);
    return zero_hash(z, first, zero_kept_of(z, array, unit).in_host, (size_t)(end - first), hash, err);
}

static bool same_in_group(const uint64_t *hashes, int world, struct replica_difference *difference)
{
    int most = 0;
    for (int r = 0; r < world; r++) {
        int same = 0;
        for (int k = 0; k < world; k++) same += hashes[k] == hashes[r];
        if (same == world) return true;
        if (same > most) {
            most = same;
            difference->other = r;
        }
    }
    difference->majority = 2 * most > world;
    difference->rank = 0;
    while (hashes[difference->rank] == hashes[difference->other]) difference->rank++;
    return false;
}

bool zero_same_hashes(const uint64_t *hashes, int world, int ranks, struct replica_difference *difference)
{
    for (int first = 0; first < world; first += ranks) {
        if (same_in_group(hashes + first, ranks, difference)) continue;
        difference->rank += first;
        difference->other += first;
        return false;
    }
    return true;
}

/* The elements of a unit in an array that every rank keeps whole; 0: it is not such. */
static int64_t replicated(const struct zero *z, int array, int unit)
{
    const struct zero_kept kept = zero_kept_of(z, array, unit);
    const int64_t all = zero_padded(z, unit);
    return z->unit[unit].ranks > 1 && kept.end - kept.first == all ? all : 0;
}

/* The first unit and tensor that differ, the same on all ranks. all: (world), scratch. */
static enum status locate(struct zero *z, uint64_t *all, struct replica_difference *difference, struct error *err)
{
    const struct tensor_table *table = z->config.table;
    for (int array = 0; array < ARRAY_COUNT; array++) {
        for (int u = 0; u < z->all_units; u++) {
            uint64_t hash = 0;
            if (!replicated(z, array, u)) continue;
            TRY(zero_hash_array(z, array, u, zero_first(z, u), replicated(z, array, u), &hash, err));
            TRY(comm_exchange(z->comm, &hash, sizeof hash, all, err));
            if (zero_same_hashes(all, z->world, z->unit[u].ranks, difference)) continue;
            difference->what = zero_array_name(array);
            difference->unit = &table->units[u];
            for (int t = 0; t < difference->unit->num_tensors && !difference->tensor; t++) {
                const struct tensor_info *tensor = &table->tensors[difference->unit->first_tensor + t];
                hash = 0;
                const struct zero_words words = zero_tensor_words(z, tensor);
                const int64_t first = max64(words.first, zero_first(z, u));
                const int64_t end = min64(words.first + words.count, zero_first(z, u) + zero_padded(z, u));
                if (first < end) TRY(zero_hash_array(z, array, u, first, end - first, &hash, err));
                TRY(comm_exchange(z->comm, &hash, sizeof hash, all, err));
                if (!zero_same_hashes(all, z->world, z->unit[u].ranks, difference)) difference->tensor = tensor;
            }
            return STATUS_OK;
        }
    }
    return error_set(err, STATUS_DIVERGED,
                     "the ranks' copies of the model differed when they were read first, and no "
                     "longer when they were read again");
}

enum status zero_compare_replicas(struct zero *z, struct replica_difference *difference, struct error *err)
{
    uint64_t hashes[2] = {0}; /* of what all ranks have; of experts that they share */
    int64_t bytes = 0;
    double start = seconds_now();
    *difference = (struct replica_difference){.rank = -1};
    if (!zero_parallel(z) || !z->params_whole) return STATUS_OK;
    OWNED uint64_t *all = memory_alloc((size_t)z->world * sizeof *all);
    stream_wait(z->stream, z->updated);
    stream_sync(z->stream);
    for (int array = 0; array < ARRAY_COUNT; array++) {
        for (int u = 0; u < z->all_units; u++) {
            const int64_t count = replicated(z, array, u);
            uint64_t *hash = &hashes[z->unit[u].ranks < z->world];
            if (count) TRY(zero_hash_array(z, array, u, zero_first(z, u), count, hash, err));
            bytes += count * (int64_t)dtype_size(zero_kept_of(z, array, u).dtype);
        }
    }
    log_debug("%.1f MB of copies were hashed in %.4f s", (double)bytes / 1e6, seconds_now() - start);
    for (int shared = 0; shared < 2 && difference->rank < 0; shared++) {
        const int ranks = shared ? z->unit[z->units - 1].ranks : z->world; /* the last unit is one of experts, if any */
        TRY(comm_exchange(z->comm, &hashes[shared], sizeof *hashes, all, err));
        if (!zero_same_hashes(all, z->world, ranks, difference)) TRY(locate(z, all, difference, err));
    }
    return STATUS_OK;
}
