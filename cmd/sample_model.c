#include "cmd/sample_model.h"

#include "ckpt/huggingface/huggingface.h"
#include "core/memory.h"
#include "core/model/model_folder.h"
#include "core/printable.h"
#include "gpu/open/device_open.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- the folder ---------------------------------------------------------- */

static bool has_file(const char *dir, const char *name)
{
    char path[FS_PATH_MAX];
    struct error err;
    return fs_join(path, dir, name, STATUS_DATA, &err) == STATUS_OK && fs_exists(path);
}

/* A Hugging Face folder has config.json; checkpoints and runs have not. */
static bool is_hugging_face(const char *dir)
{
    return has_file(dir, "config.json") && !has_file(dir, "manifest.json") && !has_file(dir, "checkpoints");
}

static enum status read_description(struct sample_model *m, const char *dir, bool best, struct error *err)
{
    if (is_hugging_face(dir)) {
        m->folder = dir;
        if (best)
            return error_set(err, STATUS_USAGE, "--best is for runs, and '%s' is a Hugging Face folder",
                             PRINTABLE(dir));
        return model_desc_load(dir, &m->desc, err);
    }
    if (has_file(dir, "model.safetensors") || has_file(dir, "model.safetensors.index.json"))
        return error_set(err, STATUS_DATA, "'%s' has safetensors, but no config.json that describes the model",
                         PRINTABLE(dir));
    if (best)
        TRY(checkpoint_open_best(dir, false, &m->checkpoint, err));
    else
        TRY(checkpoint_open(dir, false, &m->checkpoint, err));
    m->folder = m->checkpoint->path;
    return model_desc_from_json(m->checkpoint->model, m->checkpoint->path, &m->desc, err);
}

enum status sample_model_open(struct sample_model *m, const char *dir, bool best, struct error *err)
{
    bool there;
    memset(m, 0, sizeof *m);
    if (!model_folder_find(dir, m->found)) {
        TRY(fs_find_dir(dir, &there, STATUS_CHECKPOINT, err));
        if (model_folder_is_name(dir))
            return model_folder_missing(dir, STATUS_USAGE, err);
        error_set(err, STATUS_USAGE, "'%s' is not a folder", PRINTABLE(dir));
        return error_hint(err, "name a checkpoint, a run or a Hugging Face folder");
    }
    TRY(read_description(m, m->found, best, err));
    if (m->desc.num_labels > 0) {
        error_set(err, STATUS_USAGE, "'%s' is a classifier, which has no next token to sample", PRINTABLE(m->folder));
        return error_hint(err, "name a causal language model");
    }
    if (m->desc.bidirectional) {
        error_set(err, STATUS_USAGE, "'%s' is a %s model, which looks both ways and has no next token to sample",
                  PRINTABLE(m->folder), model_family_name(m->desc.family));
        return error_hint(err, "name a causal language model");
    }
    return end_tokens_read(m->folder, m->desc.source, &m->ends, err);
}

/* ---- device and memory --------------------------------------------------- */

static enum status open_device(struct sample_model *m, const char *name, struct error *err)
{
    char why[256];
    const bool automatic = !strcmp(name, "auto"), cuda = strcmp(name, "cpu") != 0 && device_cuda_available(why);
    if (!cuda && !automatic && strcmp(name, "cpu") != 0)
        return error_set(err, STATUS_DEVICE, "--device cuda: %s", why);
    TRY(device_open(cuda ? DEVICE_CUDA : DEVICE_CPU, 0, 0, &m->device, err));
    return stream_new(m->device, STREAM_COMPUTE, &m->stream, err);
}

static enum dtype choose_dtype(const struct sample_model *m, const char *name)
{
    const enum dtype all[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    for (size_t i = 0; name && i < COUNT_OF(all); i++)
        if (!strcmp(name, dtype_name(all[i])))
            return all[i];
    if (m->checkpoint)
        return m->checkpoint->dtype;
    return m->device->kind == DEVICE_CUDA && m->desc.has_torch_dtype ? m->desc.torch_dtype : DTYPE_F32;
}

static enum status acquire_unit(void *self, int unit, enum param_pass pass, struct stream *stream,
                                struct unit_params *params, struct error *err)
{
    (void)pass, (void)stream, (void)err;
    const struct sample_model *m = self;
    const int frozen = m->table.units[unit].frozen;
    *params = (struct unit_params){m->units[unit], frozen ? m->units[frozen] : NULL};
    return STATUS_OK;
}

static void release_unit(void *self, int unit, enum param_pass pass, struct stream *stream)
{
    (void)self, (void)unit, (void)pass, (void)stream;
}

static void lay_out(struct sample_model *m, struct arena *arena, size_t workspace)
{
    for (int u = 0; u < m->table.num_units; u++)
        m->units[u] = arena_take(arena, MEM_PARAMS, (size_t)m->layout.slice[u] * dtype_size(m->dtype));
    transformer_layout(m->transformer, arena);
    generator_layout(m->generator, arena);
    m->workspace = arena_take(arena, MEM_WORKSPACE, workspace);
}

static enum status allocate_arena(struct sample_model *m, struct error *err)
{
    struct op_limits limits;
    struct arena arena;
    transformer_op_limits(m->transformer, &limits);
    const size_t workspace = ops_workspace_bytes(m->device, &limits);
    arena_init_dry(&arena);
    lay_out(m, &arena, workspace);
    TRY(device_alloc(m->device, arena.used, &m->memory, err));
    m->bytes = arena.used;
    arena_init(&arena, m->memory, m->bytes);
    lay_out(m, &arena, workspace);
    arena_finish(&arena);
    stream_set_workspace(m->stream, m->workspace, workspace);
    return transformer_start(m->transformer, m->stream, err);
}

/* ---- weights ------------------------------------------------------------- */

/* Takes units one by one from a reader, as fp32, to the device. */
struct staging {
    struct sample_model *model;
    float *floats;   /* owned: the largest unit */
    void *converted; /* owned: the same in the model's dtype; NULL: fp32 */
    int unit;        /* in floats, not on the device yet; -1: none */
};

static void staging_flush(struct staging *s)
{
    struct sample_model *m = s->model;
    if (s->unit < 0)
        return;
    const int64_t n = m->layout.slice[s->unit];
    const void *from = s->floats;
    if (s->converted) {
        const struct cast_args cast = {
            .dst_dtype = m->dtype, .src_dtype = DTYPE_F32, .n = n, .dst = s->converted, .src = s->floats};
        m->device->host_ops->cast(NULL, &cast);
        from = s->converted;
    }
    stream_copy(m->stream, m->units[s->unit], from, (size_t)n * dtype_size(m->dtype));
    stream_sync(m->stream);
    s->unit = -1;
}

static enum status staging_get(void *owner, enum slice_access access, enum state_kind kind, int unit, float **slice,
                               struct error *err)
{
    struct staging *s = owner;
    (void)err;
    ASSERT(kind == STATE_MASTER && access == SLICE_WRITE);
    staging_flush(s);
    memset(s->floats, 0, (size_t)s->model->layout.slice[unit] * sizeof *s->floats);
    s->unit = unit;
    *slice = s->floats;
    return STATUS_OK;
}

static enum status read_checkpoint(const struct sample_model *m, struct state_slices slices, struct error *err)
{
    TRY(checkpoint_check_table(m->checkpoint, &m->table, err));
    for (int u = 0; u < m->table.num_units; u++) {
        float *unit;
        TRY(state_slice(slices, SLICE_WRITE, STATE_MASTER, u, &unit, err));
        TRY(checkpoint_read(m->checkpoint, STATE_MASTER, u, 0, m->table.units[u].numel, unit, err));
    }
    return STATUS_OK;
}

static enum status read_weights(struct sample_model *m, struct error *err)
{
    const int64_t largest = m->layout.max_padded;
    const size_t size = dtype_size(m->dtype);
    struct staging s = {.model = m, .unit = -1, .floats = malloc((size_t)largest * sizeof(float))};
    if (m->dtype != DTYPE_F32)
        s.converted = malloc((size_t)largest * size);
    const struct state_slices slices = {.owner = &s, .count = 1, .get = staging_get};
    enum status status = STATUS_OK;
    if (!s.floats || (m->dtype != DTYPE_F32 && !s.converted))
        status =
            error_set(err, STATUS_DEVICE, "cannot read the weights: out of memory for %" PRId64 " values", largest);
    else if (m->checkpoint)
        status = read_checkpoint(m, slices, err);
    else
        status = huggingface_load(&(struct huggingface_source){.dir = m->folder, .desc = &m->desc, .table = &m->table},
                                  &m->layout, 0, 0, slices, err);
    if (status == STATUS_OK)
        staging_flush(&s);
    free(s.floats);
    free(s.converted);
    return status;
}

enum status sample_model_start(struct sample_model *m, const struct sample_request *request, struct error *err)
{
    TRY(open_device(m, request->device, err));
    m->dtype = choose_dtype(m, request->dtype);
    m->verbs = (struct param_verbs){.self = m, .acquire = acquire_unit, .release = release_unit};
    tensor_table_build(&m->desc, &m->table);
    if (m->checkpoint)
        checkpoint_freeze_table(m->checkpoint, &m->table);
    shard_layout_init(&m->layout, &m->table, 1);
    m->units = memory_zeroed((size_t)m->table.num_units, sizeof *m->units);
    const struct transformer_config config = {
        .desc = &m->desc,
        .table = &m->table,
        .dtype = m->dtype,
        .max_tokens = request->prompt,
        .max_seqs = 1,
        .max_seq = (int32_t)request->prompt,
        .max_position = request->context,
        .logits_dtype = DTYPE_F32,
        .logit_chunk = 1,
    };
    TRY(transformer_new(&config, m->device, &m->transformer, err));
    m->generator = generator_new(m->transformer, request->context);
    TRY(allocate_arena(m, err));
    return read_weights(m, err);
}

void sample_model_close(struct sample_model *m)
{
    generator_free(m->generator);
    transformer_free(m->transformer);
    if (m->memory)
        device_free(m->device, m->memory, m->bytes);
    free(m->units);
    stream_free(m->stream);
    device_close(m->device);
    shard_layout_release(&m->layout);
    tensor_table_release(&m->table);
    model_desc_release(&m->desc);
    checkpoint_close(m->checkpoint);
    memset(m, 0, sizeof *m);
}
