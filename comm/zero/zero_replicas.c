/* zero_replicas.c: compares the ranks' copies of the model.
 *
 * At stages 0 to 2 every rank keeps all parameters, at stage 0 also the optimizer's state, and a checkpoint takes each
 * rank's own slices. If the copies have drifted apart, it would be a mixture of models that no rank has trained. Copies
 * drift if a GPU or a CPU computes wrongly, memory flips a bit, or ranks use different kernels.
 *
 * Each rank hashes its whole arrays, and the ranks exchange one number. Only if that differs, they walk through arrays
 * and units, and through the tensors of the first unit that differs, and exchange the hash of each. */
#include "comm/zero/zero_internal.h"
#include "core/clock.h"
#include "core/liveness.h"
#include "core/log.h"
#include "core/memory.h"

#include <stdlib.h>
#include <xxhash.h>

enum { HASH_PIECE = 1 << 20, HASH_PIECES = 64 /* hashed in parallel */ };

/* Arrays that may be kept whole: the parameters in the compute dtype, and the state. */
enum { ARRAY_PARAMS, ARRAY_STATE, ARRAY_COUNT = ARRAY_STATE + STATE_KIND_COUNT };

static const char *array_name(int array)
{
    return array == ARRAY_PARAMS ? "parameters" : state_kind_names[array - ARRAY_STATE];
}

static bool is_replicated(const struct zero *z, int array)
{
    if (array == ARRAY_PARAMS)
        return z->params_whole;
    int state = array - ARRAY_STATE;
    return z->state[state] && z->state_whole[state] && z->state[state] != z->params;
}

static size_t element_size(const struct zero *z, int array)
{
    return dtype_size(array == ARRAY_PARAMS ? z->config.dtype
                                            : zero_state_dtype(z, (enum state_kind)(array - ARRAY_STATE)));
}

static const char *array_at(const struct zero *z, int array, int unit, int64_t offset, size_t *element)
{
    *element = element_size(z, array);
    if (array == ARRAY_PARAMS)
        return zero_param(z, unit, offset);
    return zero_state_at(z, (enum state_kind)(array - ARRAY_STATE), unit, offset);
}

/* Continues `hash` over host memory. */
static uint64_t hash_memory(uint64_t hash, const char *memory, size_t bytes)
{
    uint64_t pieces[HASH_PIECES];
    for (size_t from = 0; from < bytes; from += (size_t)HASH_PIECES * HASH_PIECE) {
        size_t rest = bytes - from, batch = (size_t)HASH_PIECES * HASH_PIECE;
        int count = (int)(((rest < batch ? rest : batch) + HASH_PIECE - 1) / HASH_PIECE);
#pragma omp parallel for schedule(dynamic) if (count > 1)
        for (int i = 0; i < count; i++) {
            size_t at = from + (size_t)i * HASH_PIECE, left = bytes - at;
            pieces[i] = XXH3_64bits(memory + at, left < HASH_PIECE ? left : HASH_PIECE);
            liveness_tick();
        }
        hash = XXH3_64bits_withSeed(pieces, (size_t)count * sizeof *pieces, hash);
    }
    return hash;
}

/* Continues *hash over memory, copied from the device if necessary. */
static enum status hash_bytes(struct zero *z, const char *memory, size_t bytes, uint64_t *hash, struct error *err)
{
    if (z->device->kind == DEVICE_CPU) {
        *hash = hash_memory(*hash, memory, bytes);
        return STATUS_OK;
    }
    TRY(zero_host_buffer(z, err));
    for (size_t at = 0; at < bytes; at += z->host_slice_bytes) {
        size_t n = bytes - at < z->host_slice_bytes ? bytes - at : z->host_slice_bytes;
        stream_copy(z->stream, z->host_slice, memory + at, n);
        stream_sync(z->stream);
        *hash = hash_memory(*hash, (const char *)z->host_slice, n);
    }
    return device_check(z->device, err);
}

/* The same over those elements of a sparse unit that have a second moment. */
static enum status hash_seconds(struct zero *z, int unit, int64_t offset, int64_t count, uint64_t *hash,
                                struct error *err)
{
    for (int i = z->first_range[unit]; i < z->first_range[unit + 1]; i++) {
        const struct decay_range *range = &z->ranges[i];
        int64_t from = range->offset > offset ? range->offset : offset, end = range->offset + range->count;
        end = end < offset + count ? end : offset + count;
        if (range->matrix || from >= end)
            continue;
        const float *values = zero_second_at(z, range) + (from - range->offset);
        TRY(hash_bytes(z, (const char *)values, (size_t)(end - from) * sizeof *values, hash, err));
    }
    return STATUS_OK;
}

/* The same over elements of a unit. */
static enum status hash_range(struct zero *z, int array, int unit, int64_t offset, int64_t count, uint64_t *hash,
                              struct error *err)
{
    size_t element;
    if (array != ARRAY_PARAMS && zero_is_sparse(z, (enum state_kind)(array - ARRAY_STATE), unit))
        return hash_seconds(z, unit, offset, count, hash, err);
    const char *memory = array_at(z, array, unit, offset, &element);
    return hash_bytes(z, memory, (size_t)count * element, hash, err);
}

/* Whether all ranks have the same hash. If not, fills difference->other, a rank with the most frequent hash (in a tie
 * the one of the lowest ranks), and difference->rank, the lowest rank with another hash. */
static bool same_hashes(const uint64_t *hashes, int world, struct replica_difference *difference)
{
    int most = 0;
    for (int r = 0; r < world; r++) {
        int same = 0;
        for (int k = 0; k < world; k++)
            same += hashes[k] == hashes[r];
        if (same == world)
            return true;
        if (same > most) {
            most = same;
            difference->other = r;
        }
    }
    difference->rank = 0;
    while (hashes[difference->rank] == hashes[difference->other])
        difference->rank++;
    return false;
}

/* Finds the first unit and tensor that differ, the same on all ranks. all: (world), scratch. */
static enum status locate(struct zero *z, uint64_t *all, struct replica_difference *difference, struct error *err)
{
    const struct tensor_table *table = z->config.table;
    for (int array = 0; array < ARRAY_COUNT; array++) {
        for (int u = 0; is_replicated(z, array) && u < z->units; u++) {
            uint64_t hash = 0;
            TRY(hash_range(z, array, u, 0, shard_padded(z->config.layout, u), &hash, err));
            TRY(comm_exchange(z->comm, &hash, sizeof hash, all, err));
            if (same_hashes(all, z->world, difference))
                continue;
            difference->what = array_name(array);
            difference->unit = &table->units[u];
            for (int t = 0; t < difference->unit->num_tensors && !difference->tensor; t++) {
                const struct tensor_info *tensor = &table->tensors[difference->unit->first_tensor + t];
                hash = 0;
                TRY(hash_range(z, array, u, tensor->offset, tensor->numel, &hash, err));
                TRY(comm_exchange(z->comm, &hash, sizeof hash, all, err));
                if (!same_hashes(all, z->world, difference))
                    difference->tensor = tensor;
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
    enum status status = STATUS_OK;
    uint64_t hash = 0;
    int64_t bytes = 0;
    double start = seconds_now();
    *difference = (struct replica_difference){.rank = -1};
    if (!zero_parallel(z) || !z->params_whole)
        return STATUS_OK;
    uint64_t *all = memory_alloc((size_t)z->world * sizeof *all);
    stream_wait(z->stream, z->updated);
    stream_sync(z->stream);
    for (int array = 0; array < ARRAY_COUNT; array++) {
        for (int u = 0; is_replicated(z, array) && u < z->units; u++) {
            int64_t count = shard_padded(z->config.layout, u);
            TRY_END(hash_range(z, array, u, 0, count, &hash, err));
            bytes += count * (int64_t)element_size(z, array);
        }
    }
    log_debug("%.1f MB of copies were hashed in %.4f s", (double)bytes / 1e6, seconds_now() - start);
    TRY_END(comm_exchange(z->comm, &hash, sizeof hash, all, err));
    if (!same_hashes(all, z->world, difference))
        status = locate(z, all, difference, err);
end:
    free(all);
    return status;
}
