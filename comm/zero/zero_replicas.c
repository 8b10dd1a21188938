/* SPDX-License-Identifier: Apache-2.0 */
/* zero_replicas.c: compares the ranks' copies of the model: a checkpoint takes each rank's own slices, and would mix
 * models if copies had drifted apart (a faulty chip, a flipped bit, other kernels). Ranks exchange one hash of all
 * arrays; if it differs, those of each array and unit, and of the tensors of the first unit that differs. */
#include "comm/zero/zero_internal.h"
#include "core/clock.h"
#include "core/log.h"

#include <stdlib.h>

/* The elements of a unit in an array that every rank keeps whole; 0: it is not such. */
static int64_t replicated(const struct zero *z, int array, int unit)
{
    const struct zero_kept kept = zero_kept_of(z, array, unit);
    const int64_t all = shard_padded(z->config.layout, unit);
    return kept.end - kept.first == all ? all : 0;
}

/* The first unit and tensor that differ, the same on all ranks. all: (world), scratch. */
static enum status locate(struct zero *z, uint64_t *all, struct replica_difference *difference, struct error *err)
{
    const struct tensor_table *table = z->config.table;
    for (int array = 0; array < ARRAY_COUNT; array++) {
        for (int u = 0; u < z->all_units; u++) {
            uint64_t hash = 0;
            if (!replicated(z, array, u))
                continue;
            TRY(zero_hash_array(z, array, u, 0, replicated(z, array, u), &hash, err));
            TRY(comm_exchange(z->comm, &hash, sizeof hash, all, err));
            if (zero_same_hashes(all, z->world, difference))
                continue;
            difference->what = zero_array_name(array);
            difference->unit = &table->units[u];
            for (int t = 0; t < difference->unit->num_tensors && !difference->tensor; t++) {
                const struct tensor_info *tensor = &table->tensors[difference->unit->first_tensor + t];
                hash = 0;
                const struct zero_words words = zero_tensor_words(z, tensor);
                TRY(zero_hash_array(z, array, u, words.first, words.count, &hash, err));
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
        for (int u = 0; u < z->all_units; u++) {
            const int64_t count = replicated(z, array, u);
            if (count)
                TRY_END(zero_hash_array(z, array, u, 0, count, &hash, err));
            bytes += count * (int64_t)dtype_size(zero_kept_of(z, array, u).dtype);
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
