/* SPDX-License-Identifier: Apache-2.0 */
/* hf_export.c: writes a checkpoint as a folder that transformers loads.
 *
 * The model goes through one window, a piece of a unit's flat range: the tensors in it are converted and written, in
 * the order of the table. So the window is all the memory, and every frame of the checkpoint is read about once. */
#include "ckpt/huggingface/huggingface.h"

#include "ckpt/manifest.h"
#include "core/fsutil.h"
#include "core/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WINDOW = 2 << 20 /* elements: 8 MiB of fp32 */, NAME_BYTES = 256 };

static const int64_t DEFAULT_SHARD_BYTES = 5000000000;
static const char SINGLE_FILE[] = "model.safetensors", INDEX_FILE[] = "model.safetensors.index.json",
                  CONFIG_FILE[] = "config.json";

struct exporter {
    const struct checkpoint *checkpoint;
    const char *out;
    enum dtype dtype;
    bool force; /* weights that are not finite are exported as well */
    struct model_desc desc;
    struct tensor_table table;
    int num_shards;
    int *shard_of; /* [num_tensors], not decreasing */
    float *window; /* (WINDOW) elements [window_begin, window_end) of window_unit */
    int window_unit;
    int64_t window_begin, window_end;
    uint16_t *converted; /* (WINDOW) */
};

/* ---- files --------------------------------------------------------------- */

static enum status add_file(const struct exporter *exporter, const char *name, char path[FS_PATH_MAX],
                            struct error *err)
{
    if (strlen(name) >= NAME_BYTES)
        return error_set(err, STATUS_DATA, "file name too long: '%.200s…'", name);
    return fs_join(path, exporter->out, name, STATUS_DATA, err);
}

/* Takes value over. Numbers are as short as possible without losing a bit (1e-06, not 9.9999999999999995e-7). */
static enum status add_json(struct exporter *exporter, const char *name, json_t *value, struct error *err)
{
    const size_t flags = JSON_INDENT(2) | JSON_SORT_KEYS;
    char path[FS_PATH_MAX], *text = json_dumps(value, flags | JSON_REAL_PRECISION(15));
    json_t *again = json_loads(text, 0, NULL);
    if (!json_equal(value, again)) {
        free(text);
        text = json_dumps(value, flags);
    }
    json_decref(again);
    json_decref(value);
    char *line = memory_printf("%s\n", text);
    free(text);
    enum status status = add_file(exporter, name, path, err);
    if (status == STATUS_OK)
        status = fs_write_file(path, line, strlen(line), STATUS_DATA, err);
    free(line);
    return status;
}

/* ---- weights ------------------------------------------------------------- */

/* Divides the tensors, in order, among files of at most max_bytes (a larger tensor has a file to itself). */
static void plan_shards(struct exporter *exporter, int64_t max_bytes)
{
    int64_t used = 0;
    for (int i = 0; i < exporter->table.num_tensors; i++) {
        int64_t bytes = exporter->table.tensors[i].numel * (int64_t)dtype_size(exporter->dtype);
        if (i > 0 && used + bytes > max_bytes) {
            exporter->num_shards++;
            used = 0;
        }
        exporter->shard_of[i] = exporter->num_shards;
        used += bytes;
    }
    exporter->num_shards++;
}

static void shard_name(const struct exporter *exporter, int shard, char name[NAME_BYTES])
{
    if (exporter->num_shards == 1)
        snprintf(name, NAME_BYTES, "%s", SINGLE_FILE);
    else
        snprintf(name, NAME_BYTES, "model-%05d-of-%05d.safetensors", shard + 1, exporter->num_shards);
}

/* The header of a shard after its length, padded with blanks to a multiple of 8. The caller frees it. */
static char *shard_header(const struct exporter *exporter, int shard, size_t *size)
{
    static const char *const DTYPES[] = {[DTYPE_F32] = "F32", [DTYPE_BF16] = "BF16", [DTYPE_F16] = "F16"};
    json_t *root = json_pack("{s:{s:s, s:s}}", "__metadata__", "format", "pt", "producer", "ztrain");
    json_int_t offset = 0;
    for (int i = 0; i < exporter->table.num_tensors; i++) {
        if (exporter->shard_of[i] != shard)
            continue;
        const struct tensor_info *tensor = &exporter->table.tensors[i];
        json_int_t end = offset + tensor->numel * (json_int_t)dtype_size(exporter->dtype);
        json_t *shape = json_pack("[I]", (json_int_t)tensor->shape[0]);
        if (tensor->ndim == 2)
            json_array_append_new(shape, json_integer(tensor->shape[1]));
        json_object_set_new(root, tensor->name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", DTYPES[exporter->dtype], "shape", shape,
                                      "data_offsets", offset, end));
        offset = end;
    }
    char *text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    size_t length = strlen(text), padded = (length + 7) / 8 * 8;
    char *header = memory_alloc(SAFETENSORS_PREFIX + padded);
    for (int i = 0; i < SAFETENSORS_PREFIX; i++)
        header[i] = (char)(padded >> (8 * i) & 0xff);
    memset(header + SAFETENSORS_PREFIX, ' ', padded);
    memcpy(header + SAFETENSORS_PREFIX, text, length);
    free(text);
    *size = SAFETENSORS_PREFIX + padded;
    return header;
}

static enum status move_window(struct exporter *exporter, int unit, int64_t at, struct error *err)
{
    if (unit == exporter->window_unit && at >= exporter->window_begin && at < exporter->window_end)
        return STATUS_OK;
    int64_t numel = exporter->table.units[unit].numel, begin = at / WINDOW * WINDOW;
    int64_t end = begin + WINDOW < numel ? begin + WINDOW : numel;
    exporter->window_unit = -1;
    TRY(checkpoint_read(exporter->checkpoint, STATE_MASTER, unit, begin, end - begin, exporter->window, err));
    exporter->window_unit = unit;
    exporter->window_begin = begin;
    exporter->window_end = end;
    return STATUS_OK;
}

static enum status check_weights(const struct exporter *exporter, const struct tensor_info *tensor, const float *x,
                                 int64_t count, struct error *err)
{
    const int64_t i = exporter->force ? count : huggingface_not_finite(x, count);
    if (i == count)
        return STATUS_OK;
    error_set(err, STATUS_DIVERGED, "'%s': tensor '%s' holds %s: the run has diverged", exporter->checkpoint->path,
              tensor->name, isnan(x[i]) ? "NaN" : "an infinity");
    return error_hint(err, "an earlier checkpoint; --force exports this one as it is");
}

static enum status write_tensor(struct exporter *exporter, const struct tensor_info *tensor, int fd, const char *path,
                                struct error *err)
{
    int64_t end = tensor->offset + tensor->numel;
    for (int64_t at = tensor->offset; at < end;) {
        TRY(move_window(exporter, tensor->unit, at, err));
        int64_t n = (end < exporter->window_end ? end : exporter->window_end) - at;
        const float *values = exporter->window + (at - exporter->window_begin);
        const void *bytes = values;
        TRY(check_weights(exporter, tensor, values, n, err));
        if (exporter->dtype != DTYPE_F32)
            bytes = exporter->converted;
        if (exporter->dtype == DTYPE_BF16)
#pragma omp simd
            for (int64_t i = 0; i < n; i++)
                exporter->converted[i] = bf16_from_f32(values[i]);
        if (exporter->dtype == DTYPE_F16)
            for (int64_t i = 0; i < n; i++)
                exporter->converted[i] = f16_from_f32(values[i]);
        TRY(fs_write(fd, path, bytes, (size_t)n * dtype_size(exporter->dtype), STATUS_DATA, err));
        at += n;
    }
    return STATUS_OK;
}

static enum status write_shard(struct exporter *exporter, int shard, struct error *err)
{
    char name[NAME_BYTES], path[FS_PATH_MAX];
    size_t size;
    enum status status;
    shard_name(exporter, shard, name);
    TRY(add_file(exporter, name, path, err));
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return error_set(err, STATUS_DATA, "cannot create '%s': %s", path, strerror(errno));
    char *header = shard_header(exporter, shard, &size);
    TRY_END(fs_write(fd, path, header, size, STATUS_DATA, err));
    for (int i = 0; i < exporter->table.num_tensors; i++)
        if (exporter->shard_of[i] == shard)
            TRY_END(write_tensor(exporter, &exporter->table.tensors[i], fd, path, err));
    if (fsync(fd) != 0)
        TRY_END(error_set(err, STATUS_DATA, "cannot sync '%s': %s", path, strerror(errno)));
end:
    free(header);
    if (close(fd) != 0 && status == STATUS_OK)
        status = error_set(err, STATUS_DATA, "cannot close '%s': %s", path, strerror(errno));
    return status;
}

static enum status write_index(struct exporter *exporter, struct error *err)
{
    json_t *map = json_object(), *index;
    json_int_t bytes = exporter->table.num_params * (json_int_t)dtype_size(exporter->dtype);
    for (int i = 0; i < exporter->table.num_tensors; i++) {
        char name[NAME_BYTES];
        shard_name(exporter, exporter->shard_of[i], name);
        json_object_set_new(map, exporter->table.tensors[i].name, json_string(name));
    }
    index = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", bytes, "weight_map", map);
    return add_json(exporter, INDEX_FILE, index, err);
}

/* ---- tokenizer, configuration -------------------------------------------- */

/* Where a tokenizer file of a checkpoint goes: a chat template has a folder, which is made here. */
static enum status tokenizer_place(const struct exporter *exporter, const char *name, char path[FS_PATH_MAX],
                                   struct error *err)
{
    static const char prefix[] = TEMPLATES_FOLDER "-";
    if (strncmp(name, prefix, strlen(prefix)) != 0)
        return add_file(exporter, name, path, err);
    char folder[FS_PATH_MAX];
    TRY(fs_join(folder, exporter->out, TEMPLATES_FOLDER, STATUS_DATA, err));
    TRY(fs_mkdirs(folder, STATUS_DATA, err));
    return fs_join(path, folder, name + strlen(prefix), STATUS_DATA, err);
}

static enum status copy_tokenizer(struct exporter *exporter, struct error *err)
{
    struct manifest *manifest;
    char to[FS_PATH_MAX], *data = NULL;
    enum status status = STATUS_OK;
    TRY(manifest_load(exporter->checkpoint->path, true, &manifest, err));
    for (int i = manifest->world; i < manifest->num_files; i++) {
        const struct manifest_file *file = &manifest->files[i];
        if (strcmp(file->name, CONFIG_FILE) == 0 || strncmp(file->name, "model", 5) == 0)
            TRY_END(error_set(err, STATUS_CHECKPOINT, "'%s/%s' is not a tokenizer file", exporter->checkpoint->path,
                              file->name));
        TRY_END(manifest_read_file(exporter->checkpoint->path, file, &data, err));
        TRY_END(tokenizer_place(exporter, file->name, to, err));
        TRY_END(fs_write_file(to, data, (size_t)file->bytes, STATUS_DATA, err));
        free(data);
        data = NULL;
    }
end:
    free(data);
    manifest_free(manifest);
    return status;
}

enum status huggingface_export(const struct checkpoint *checkpoint, const char *out, enum dtype dtype,
                               int64_t max_shard_bytes, bool force, struct error *err)
{
    struct exporter exporter = {
        .checkpoint = checkpoint, .out = out, .dtype = dtype, .force = force, .window_unit = -1};
    enum status status;
    TRY(model_desc_from_json(checkpoint->model, checkpoint->path, &exporter.desc, err));
    tensor_table_build(&exporter.desc, &exporter.table);
    checkpoint_freeze_table(checkpoint, &exporter.table);
    TRY_END(checkpoint_check_table(checkpoint, &exporter.table, err));
    exporter.shard_of = memory_zeroed((size_t)exporter.table.num_tensors, sizeof *exporter.shard_of);
    exporter.window = memory_alloc(WINDOW * sizeof *exporter.window);
    exporter.converted = memory_alloc(WINDOW * sizeof *exporter.converted);
    plan_shards(&exporter, max_shard_bytes > 0 ? max_shard_bytes : DEFAULT_SHARD_BYTES);

    if (mkdir(out, 0777) != 0)
        TRY_END(error_system(err, STATUS_DATA, errno, "cannot make the folder '%s'", out));
    for (int shard = 0; shard < exporter.num_shards; shard++)
        TRY_END(write_shard(&exporter, shard, err));
    if (exporter.num_shards > 1)
        TRY_END(write_index(&exporter, err));
    TRY_END(copy_tokenizer(&exporter, err));
    TRY_END(add_json(&exporter, CONFIG_FILE, model_desc_export_config(&exporter.desc, dtype), err));
    TRY_END(fs_sync_dir(out, STATUS_DATA, err));
end:
    free(exporter.shard_of);
    free(exporter.window);
    free(exporter.converted);
    tensor_table_release(&exporter.table);
    model_desc_release(&exporter.desc);
    return status;
}
