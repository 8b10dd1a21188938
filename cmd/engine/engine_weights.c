/* SPDX-License-Identifier: Apache-2.0 */
/* engine_weights.c: the weights with which a run begins. See engine.h. */
#include "ckpt/base_hash.h"
#include "ckpt/huggingface/huggingface.h"
#include "cmd/engine/engine.h"

static struct huggingface_source pretrained_weights(const struct engine *t)
{
    return (struct huggingface_source){.dir = t->spec->model.pretrained ? t->spec->model.folder : NULL,
                                       .desc = &t->desc,
                                       .table = &t->table,
                                       .ignore = &t->spec->model.ignore_tensors,
                                       .trained_only = t->first != NULL};
}

enum status engine_weights_check(const struct engine *t, bool *absent, struct error *err)
{
    const struct huggingface_source source = pretrained_weights(t);
    *absent = false;
    if (source.dir) TRY(huggingface_check(&source, absent, err));
    return t->spec->model.adapter ? peft_check(t->spec->model.adapter, &t->desc, &t->table, err) : STATUS_OK;
}

/* Rank 0 hashes the tensors of a multimodal folder that are not the text model's. */
static enum status engine_hash_rest(struct engine *t, const struct huggingface_source *source, struct error *err)
{
    struct huggingface_source again = *source;
    RELEASED(huggingface_drop) struct huggingface_reader *reader = NULL;
    t->base_folder = source->dir ? realpath(source->dir, NULL) : NULL;
    t->base = (struct checkpoint_base){.folder = t->base_folder, .seed = (int64_t)t->spec->run.seed};
    if (!t->desc.multimodal || t->rank != 0) return STATUS_OK;
    again.quiet = true;
    TRY(huggingface_open(&again, 0, 0, &reader, err));
    return huggingface_rest_hash(reader, &t->base.hash, err);
}

/* Each rank reads the biases of its routers in fp32: those of a base are not in the checkpoint. */
static enum status engine_load_corrections(struct engine *t, const struct checkpoint *checkpoint,
                                           const struct huggingface_source *source, struct error *err)
{
    struct huggingface_source again = *source;
    RELEASED(huggingface_drop) struct huggingface_reader *reader = NULL;
    if (!t->desc.experts.sigmoid) return STATUS_OK;
    OWNED float *bias = memory_alloc((size_t)t->desc.experts.count * sizeof *bias);
    again.quiet = true;
    for (int64_t layer = 0; layer < t->desc.num_layers; layer++) {
        const struct tensor_info *tensor = tensor_find(&t->table, (int)layer + 1, ROLE_ROUTER_CORRECTION);
        const bool saved = checkpoint && tensor && !tensor->frozen;
        if (!tensor) continue;
        if (!saved && !reader) TRY(huggingface_open(&again, t->rank, t->spec->run.seed, &reader, err));
        TRY(saved ? checkpoint_read(checkpoint, STATE_MASTER, tensor->unit, tensor->offset, tensor->numel, bias, err)
                  : huggingface_values(reader, tensor->unit, tensor->offset, tensor->numel, bias, err));
        transformer_set_correction(t->transformer, layer, bias, t->compute);
    }
    return STATUS_OK;
}

enum status engine_weights_load(struct engine *t, const struct checkpoint *checkpoint, struct error *err)
{
    const struct huggingface_source source = pretrained_weights(t);
    struct state_slices slices = zero_slices(t->zero);
    slices.weights_only = t->scores;
    if (t->scores) slices.count = 1;
    const uint64_t seed = t->spec->run.seed;
    TRY(engine_load_corrections(t, checkpoint, &source, err));
    if (t->first) {
        TRY(huggingface_load(&source, &t->layout, t->rank, seed, slices, err));
        t->base = t->first->base;
    } else if (t->table.adapted) {
        struct base_hash hash;
        const struct state_slices hashed = base_hash_watch(&hash, &t->table, &t->layout, t->rank, slices);
        TRY(huggingface_load(&source, &t->layout, t->rank, seed, hashed, err));
        TRY(engine_hash_rest(t, &source, err));
        t->base.hash += base_hash_end(&hash);
    } else if (t->desc.multimodal) {
        TRY(engine_hash_rest(t, &source, err));
    }
    if (checkpoint) return checkpoint_load(checkpoint, &t->table, &t->layout, t->rank, slices, err);
    if (!t->table.adapted) return huggingface_load(&source, &t->layout, t->rank, seed, slices, err);
    if (t->spec->model.adapter)
        return peft_load(t->spec->model.adapter, &t->desc, &t->table, &t->layout, t->rank, slices, err);
    return STATUS_OK;
}

enum status engine_weights_load_reference(struct engine *t, const char *dir, struct error *err)
{
    struct run_spec *const spec = t->spec, other_weights = *spec;
    char config[FS_PATH_MAX];
    OWNED char *place = dir ? memory_text(dir) : NULL;
    if (dir) TRY(fs_join(config, dir, "config.json", STATUS_USAGE, err));
    if (dir && !fs_exists(config)) {
        RELEASED(checkpoint_drop) struct checkpoint *checkpoint = NULL;
        struct state_slices master = zero_slices(t->zero);
        master.count = 1;
        master.weights_only = true;
        TRY(checkpoint_open(dir, false, &checkpoint, err));
        const struct huggingface_source source = pretrained_weights(t);
        TRY(checkpoint_check_table(checkpoint, &t->table, err));
        TRY(engine_load_corrections(t, checkpoint, &source, err));
        return checkpoint_load(checkpoint, &t->table, &t->layout, t->rank, master, err);
    }
    if (dir) other_weights.model.pretrained = other_weights.model.folder = place;
    other_weights.model.adapter = NULL;
    t->spec = &other_weights;
    free(TAKEN(t->base_folder));
    const enum status status = engine_weights_load(t, NULL, err);
    free(TAKEN(t->base_folder));
    t->spec = spec;
    return status;
}

enum status engine_weights_check_base(struct engine *t, const struct checkpoint *checkpoint, struct error *err)
{
    if (!t->table.adapted && !t->desc.multimodal) return STATUS_OK;
    if (!t->first) TRY(base_hash_join(t->comm, &t->base.hash, err));
    return checkpoint ? checkpoint_check_base(checkpoint, &t->base, err) : STATUS_OK;
}
