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
#include "core/log.h"
#include "core/memory.h"

#include <stdlib.h>

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

/* Units that the array has. */
static int units_of(const struct zero *z, int array)
{
    return array == ARRAY_PARAMS ? z->all_units : z->units;
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

/* Continues *hash over elements of a unit. */
static enum status hash_range(struct zero *z, int array, int unit, int64_t offset, int64_t count, uint64_t *hash,
                              struct error *err)
{
    size_t element;
    if (array != ARRAY_PARAMS && zero_is_sparse(z, (enum state_kind)(array - ARRAY_STATE), unit))
        return zero_hash_seconds(z, unit, offset, count, hash, err);
    const char *memory = array_at(z, array, unit, offset, &element);
    return zero_hash(z, memory, false, (size_t)count * element, hash, err);
}

/* Finds the first unit and tensor that differ, the same on all ranks. all: (world), scratch. */
static enum status locate(struct zero *z, uint64_t *all, struct replica_difference *difference, struct error *err)
{
    const struct tensor_table *table = z->config.table;
    for (int array = 0; array < ARRAY_COUNT; array++) {
        for (int u = 0; is_replicated(z, array) && u < units_of(z, array); u++) {
            uint64_t hash = 0;
            TRY(hash_range(z, array, u, 0, shard_padded(z->config.layout, u), &hash, err));
            TRY(comm_exchange(z->comm, &hash, sizeof hash, all, err));
            if (zero_same_hashes(all, z->world, difference))
                continue;
            difference->what = array_name(array);
            difference->unit = &table->units[u];
            for (int t = 0; t < difference->unit->num_tensors && !difference->tensor; t++) {
                const struct tensor_info *tensor = &table->tensors[difference->unit->first_tensor + t];
                hash = 0;
                TRY(hash_range(z, array, u, tensor->offset, tensor->numel, &hash, err));
                TRY(comm_exchange(z->comm, &hash, sizeof hash, all, err));
                if (!zero_same_hashes(all, z->world, difference))
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
        for (int u = 0; is_replicated(z, array) && u < units_of(z, array); u++) {
            int64_t count = shard_padded(z->config.layout, u);
            TRY_END(hash_range(z, array, u, 0, count, &hash, err));
            bytes += count * (int64_t)element_size(z, array);
        }
    }
    log_debug("%.1f MB of copies were hashed in %.4f s", (double)bytes / 1e6, seconds_now() - start);
    TRY_END(comm_exchange(z->comm, &hash, sizeof hash, all, err));
    if (!zero_same_hashes(all, z->world, difference))
        status = locate(z, all, difference, err);
end:
    free(all);
    return status;
}
