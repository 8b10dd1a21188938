/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/observe/run_hash.h"

#include "ckpt/state_hash.h"

bool run_hash_is_due(const struct run *run, int64_t step)
{
    const int64_t interval = run->spec->train.hash_interval_steps;
    return interval && step % interval == 0;
}

enum status run_hash_state(struct run *run, int states, uint64_t *hashes, struct error *err)
{
    const struct shard_layout *layout = &run->engine.layout;
    const struct state_slices slices = zero_slices(run->engine.zero);
    struct state_hash hash;
    enum status status = STATUS_OK;
    state_hash_init(&hash, layout, comm_rank(run->comm), states);
    for (int s = 0; s < states; s++)
        for (int unit = 0; unit < state_units(layout, (enum state_kind)s); unit++) {
            float *own;
            TRY_END(state_slice(slices, SLICE_READ, (enum state_kind)s, unit, &own, err));
            state_hash_add(&hash, (enum state_kind)s, unit, own);
        }
    status = state_hash_join(&hash, run->comm, hashes, err);
end:
    state_hash_release(&hash);
    return status;
}
