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

#include <stdlib.h>

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

/* Finds the first unit and tensor that differ, the same on all ranks. all: (world), scratch. */
static enum status locate(struct zero *z, uint64_t *all, struct replica_difference *difference, struct error *err)
{
    const struct tensor_table *table = z->config.table;
    for (int array = 0; array < ARRAY_COUNT; array++) {
        for (int u = 0; is_replicated(z, array) && u < units_of(z, array); u++) {
            uint64_t hash = 0;
            TRY(zero_hash_array(z, array, u, 0, shard_padded(z->config.layout, u), false, &hash, err));
            TRY(comm_exchange(z->comm, &hash, sizeof hash, all, err));
            if (zero_same_hashes(all, z->world, difference))
                continue;
            difference->what = zero_array_name(array);
            difference->unit = &table->units[u];
            for (int t = 0; t < difference->unit->num_tensors && !difference->tensor; t++) {
                const struct tensor_info *tensor = &table->tensors[difference->unit->first_tensor + t];
                hash = 0;
                TRY(zero_hash_array(z, array, u, tensor->offset, tensor->numel, false, &hash, err));
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
            TRY_END(zero_hash_array(z, array, u, 0, count, false, &hash, err));
            bytes += count * (int64_t)dtype_size(zero_array_dtype(z, array));
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
