/* SPDX-License-Identifier: Apache-2.0 */
/* engine_weights.c: the weights with which a run begins. See engine.h. */
#include "ckpt/base_hash.h"
#include "ckpt/huggingface/huggingface.h"
#include "cmd/engine/engine.h"
#include "core/heartbeat.h"

#include <string.h>

/* Each element depends only on seed, tensor and index. */
static enum status initialise_weights(const struct engine *t, struct state_slices slices, struct error *err)
{
    enum { PIECE = 1 << 16 };
    for (int u = 0; u < t->table.num_units; u++) {
        float *slice;
        TRY(state_slice(slices, SLICE_WRITE, STATE_MASTER, u, &slice, err));
        int64_t begin = t->layout.slice[u] * t->rank, end = begin + t->layout.slice[u];
        const struct unit_info *unit = &t->table.units[u];
        memset(slice, 0, (size_t)t->layout.slice[u] * sizeof *slice);
        for (int i = unit->first_tensor; i < unit->first_tensor + unit->num_tensors; i++) {
            const struct tensor_info *tensor = &t->table.tensors[i];
            int64_t first = tensor->offset > begin ? tensor->offset : begin;
            int64_t last = tensor->offset + tensor->numel < end ? tensor->offset + tensor->numel : end;
#pragma omp parallel for schedule(dynamic)
            for (int64_t at = first; at < last; at += PIECE) {
                int64_t count = last - at < PIECE ? last - at : PIECE;
                tensor_init_range(&t->table, i, t->spec->run.seed, at - tensor->offset, count, slice + (at - begin));
                heartbeat_beat();
            }
        }
    }
    return STATUS_OK;
}

static struct huggingface_source pretrained_weights(const struct engine *t)
{
    return (struct huggingface_source){.dir = t->spec->model.pretrained ? t->spec->model.folder : NULL,
                                       .desc = &t->desc,
                                       .table = &t->table,
                                       .ignore = &t->spec->model.ignore_tensors};
}

enum status engine_weights_check(const struct engine *t, bool *absent, struct error *err)
{
    const struct huggingface_source source = pretrained_weights(t);
    *absent = false;
    return source.dir ? huggingface_check(&source, absent, err) : STATUS_OK;
}

/* From the folder that the spec names, or initial values. */
static enum status load_fresh_weights(struct engine *t, struct state_slices slices, struct error *err)
{
    const struct huggingface_source source = pretrained_weights(t);
    return source.dir ? huggingface_load(&source, &t->layout, t->rank, t->spec->run.seed, slices, err)
                      : initialise_weights(t, slices, err);
}

enum status engine_weights_load(struct engine *t, const struct checkpoint *checkpoint, struct error *err)
{
    const struct state_slices slices = zero_slices(t->zero);
    if (t->table.adapted) {
        struct base_hash hash;
        TRY(load_fresh_weights(t, base_hash_watch(&hash, &t->table, &t->layout, t->rank, slices), err));
        t->base = (struct checkpoint_base){
            .hash = base_hash_end(&hash), .folder = pretrained_weights(t).dir, .seed = (int64_t)t->spec->run.seed};
    }
    if (checkpoint)
        return checkpoint_load(checkpoint, &t->table, &t->layout, t->rank, slices, err);
    return t->table.adapted ? STATUS_OK : load_fresh_weights(t, slices, err);
}

enum status engine_weights_check_base(struct engine *t, const struct checkpoint *checkpoint, struct error *err)
{
    if (!t->table.adapted)
        return STATUS_OK;
    TRY(base_hash_join(t->comm, &t->base.hash, err));
    return checkpoint ? checkpoint_check_base(checkpoint, &t->base, err) : STATUS_OK;
}
