/* SPDX-License-Identifier: Apache-2.0 */
/* hf_write.c: see hf_write.h; and the export of a checkpoint as a folder that transformers loads. */
#include "ckpt/huggingface/hf_write.h"

#include "ckpt/manifest.h"

enum { WINDOW = 2 << 20 /* elements: 8 MiB of fp32; HF_REST_PIECE has room there */ };

struct hf_writer {
    const struct hf_folder *folder; /* borrowed */
    /* the window: elements [begin, end) of the unit */
    float *values; /* owned */
    int unit;
    int64_t begin, end;

    int num_files;
    const struct hf_tensor *tensor; /* that is written */
    int64_t left;                   /* elements of it that are not written yet */
    int fd;                         /* -1: no file is open */
    char path[FS_PATH_MAX];
    uint16_t *converted; /* owned */
};

enum status hf_writer_read(struct hf_writer *writer, const struct tensor_info *tensor, int64_t first,
                           const float **values, int64_t *count, struct error *err)
{
    const int64_t at = tensor->offset + first, end = tensor->offset + tensor->numel;
    ASSERT(first >= 0 && at < end);
    if (tensor->unit != writer->unit || at < writer->begin || at >= writer->end) {
        writer->unit = -1;
        writer->begin = at / WINDOW * WINDOW;
        writer->end = min64(writer->begin + WINDOW, writer->folder->table->units[tensor->unit].numel);
        TRY(checkpoint_read(writer->folder->checkpoint, STATE_MASTER, tensor->unit, writer->begin,
                            writer->end - writer->begin, writer->values, err));
        writer->unit = tensor->unit;
    }
    *values = writer->values + (at - writer->begin);
    *count = min64(end, writer->end) - at;
    return STATUS_OK;
}

/* ---- safetensors --------------------------------------------------------- */

static int64_t hf_tensor_bytes(const struct hf_tensor *tensor)
{
    return tensor->rest ? tensor->rest->place.bytes : tensor->tensor->numel * (int64_t)dtype_size(tensor->dtype);
}

struct hf_tensor hf_tensor_of(const char *prefix, const struct tensor_info *tensor, enum dtype dtype)
{
    struct hf_tensor entry = {.tensor = tensor, .dtype = dtype};
    snprintf(entry.name, sizeof entry.name, "%s%s", prefix, tensor->name);
    return entry;
}

struct hf_tensor hf_model_tensor(const struct model_desc *desc, const struct tensor_info *tensor, enum dtype dtype)
{
    struct hf_tensor entry = hf_tensor_of("", tensor, dtype);
    if (desc->family == FAMILY_GPT_NEOX && tensor->role == ROLE_LM_HEAD)
        snprintf(entry.name, sizeof entry.name, HF_NEOX_HEAD);
    if (desc->experts.sigmoid && (tensor->role == ROLE_ROUTER_W || tensor->role == ROLE_ROUTER_CORRECTION))
        entry.dtype = DTYPE_F32; /* as transformers keeps them */
    return entry;
}

static void hf_file_name(const struct hf_writer *writer, int file, char name[HF_NAME_MAX])
{
    if (writer->num_files == 1)
        snprintf(name, HF_NAME_MAX, "%s.safetensors", writer->folder->stem);
    else
        snprintf(name, HF_NAME_MAX, "%s-%05d-of-%05d.safetensors", writer->folder->stem, file + 1, writer->num_files);
}

/* The header of a file after its length, padded with blanks to a multiple of 8. The caller frees it. */
static char *hf_file_header(const struct hf_writer *writer, int file, size_t *size)
{
    static const char *const DTYPES[] = {[DTYPE_F32] = "F32", [DTYPE_BF16] = "BF16", [DTYPE_F16] = "F16"};
    json_auto_t *root = json_pack("{s:{s:s, s:s}}", "__metadata__", "format", "pt", "producer", "ztrain");
    json_int_t offset = 0;
    for (int i = 0; i < writer->folder->count; i++) {
        const struct hf_tensor *tensor = &writer->folder->tensors[i];
        if (tensor->file != file) continue;
        const json_int_t end = offset + hf_tensor_bytes(tensor);
        const struct safetensors_entry *rest = tensor->rest;
        const int64_t *sizes = rest ? rest->shape : tensor->tensor->shape;
        const int ndim = rest ? rest->ndim : tensor->tensor->ndim;
        json_t *shape =
            tensor->rows ? json_pack("[I, I]", tensor->rows, tensor->tensor->numel / tensor->rows) : json_array();
        for (int d = 0; d < ndim && !tensor->rows; d++) json_array_append_new(shape, json_integer(sizes[d]));
        json_object_set_new(root, tensor->name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", rest ? rest->dtype_name : DTYPES[tensor->dtype],
                                      "shape", shape, "data_offsets", offset, end));
        offset = end;
    }
    OWNED char *text = json_dumps(root, JSON_COMPACT);
    size_t length = strlen(text), padded = (length + 7) / 8 * 8;
    char *header = memory_alloc(SAFETENSORS_PREFIX + padded);
    for (int i = 0; i < SAFETENSORS_PREFIX; i++) header[i] = (char)(padded >> (8 * i) & 0xff);
    memset(header + SAFETENSORS_PREFIX, ' ', padded);
    memcpy(header + SAFETENSORS_PREFIX, text, length);
    *size = SAFETENSORS_PREFIX + padded;
    return header;
}

static enum status close_written_file(struct hf_writer *writer, struct error *err)
{
    const int fd = writer->fd;
    writer->fd = -1;
    if (fd < 0) return STATUS_OK;
    const int sync_error = fsync(fd) ? errno : 0;
    if (close(fd) != 0 && !sync_error)
        return error_set(err, STATUS_DATA, "cannot close '%s': %s", writer->path, strerror(errno));
    return sync_error ? error_set(err, STATUS_DATA, "cannot sync '%s': %s", writer->path, strerror(sync_error))
                      : STATUS_OK;
}

enum status hf_writer_values(struct hf_writer *writer, const float *values, int64_t count, struct error *err)
{
    const enum dtype dtype = writer->tensor->dtype;
    const struct tensor_info *tensor = writer->tensor->tensor;
    const int64_t bad = writer->folder->force ? count : huggingface_not_finite(values, count);
    ASSERT(count <= writer->left);
    if (bad < count) {
        const bool merged = tensor->frozen && writer->folder->table->adapted;
        error_set(err, STATUS_DIVERGED, "'%s': tensor '%s'%s holds %s%s", writer->folder->checkpoint->path,
                  tensor->name, merged ? " with its adapter" : "", isnan(values[bad]) ? "NaN" : "an infinity",
                  merged ? "" : ": the run has diverged");
        return error_hint(err, "an earlier checkpoint; --force exports this one as it is");
    }
    writer->left -= count;
    for (int64_t done = 0, n; done < count; done += n) {
        const void *bytes = values + done;
        n = min64(count - done, WINDOW);
        if (dtype != DTYPE_F32) {
            floats_to(writer->converted, bytes, (size_t)n, dtype);
            bytes = writer->converted;
        }
        TRY(fs_write(writer->fd, writer->path, bytes, (size_t)n * dtype_size(dtype), STATUS_DATA, err));
    }
    return STATUS_OK;
}

enum status hf_writer_tensor(struct hf_writer *writer, const struct hf_tensor *entry, void *context, struct error *err)
{
    (void)context;
    for (int64_t done = 0, n; done < entry->tensor->numel; done += n) {
        const float *values;
        TRY(hf_writer_read(writer, entry->tensor, done, &values, &n, err));
        TRY(hf_writer_values(writer, values, n, err));
    }
    return STATUS_OK;
}

/* ---- other files --------------------------------------------------------- */

/* Numbers are as short as possible without losing a bit (1e-06, not 9.9999999999999995e-7). */
static enum status hf_write_json(const char *out, const char *name, const json_t *value, struct error *err)
{
    const size_t flags = JSON_INDENT(2) | JSON_SORT_KEYS;
    OWNED char *brief = json_dumps(value, flags | JSON_REAL_PRECISION(15));
    json_auto_t *again = json_loads(brief, 0, NULL);
    OWNED char *text = json_equal(value, again) ? NULL : json_dumps(value, flags);
    OWNED char *line = memory_printf("%s\n", text ? text : brief);
    char path[FS_PATH_MAX];
    TRY(fs_join(path, out, name, STATUS_DATA, err));
    return fs_write_file(path, line, strlen(line), STATUS_DATA, err);
}

/* Where a tokenizer file of a checkpoint goes: a chat template has a folder, which is made here. */
static enum status tokenizer_place(const char *out, const char *name, char path[FS_PATH_MAX], struct error *err)
{
    static const char prefix[] = TEMPLATES_FOLDER "-";
    if (strncmp(name, prefix, strlen(prefix)) != 0) return fs_join(path, out, name, STATUS_DATA, err);
    char folder[FS_PATH_MAX];
    TRY(fs_join(folder, out, TEMPLATES_FOLDER, STATUS_DATA, err));
    TRY(fs_mkdirs(folder, STATUS_DATA, err));
    return fs_join(path, folder, name + strlen(prefix), STATUS_DATA, err);
}

static enum status hf_write_tokenizer(const struct checkpoint *checkpoint, const char *out, struct error *err)
{
    RELEASED(manifest_drop) struct manifest *manifest = NULL;
    char to[FS_PATH_MAX];
    TRY(manifest_load(checkpoint->path, true, &manifest, err));
    for (int i = manifest->facts.world; i < manifest->num_files; i++) {
        const struct manifest_file *file = &manifest->files[i];
        OWNED char *data = NULL;
        if (strcmp(file->name, "config.json") == 0 || strncmp(file->name, "model", 5) == 0 ||
            strncmp(file->name, "adapter", 7) == 0)
            return error_set(err, STATUS_CHECKPOINT, "'%s/%s' is not a tokenizer file", checkpoint->path, file->name);
        TRY(manifest_read_file(checkpoint->path, file, &data, err));
        TRY(tokenizer_place(out, file->name, to, err));
        TRY(fs_write_file(to, data, (size_t)file->bytes, STATUS_DATA, err));
    }
    return STATUS_OK;
}

/* ---- a folder ------------------------------------------------------------ */

static enum status hf_write_weights(struct hf_writer *writer, struct error *err)
{
    const struct hf_folder *folder = writer->folder;
    const int64_t most = folder->max_bytes ? folder->max_bytes : 5000000000;
    int64_t used = 0;
    for (int i = 0; i < folder->count; i++) { /* divides the tensors among files */
        const int64_t bytes = hf_tensor_bytes(&folder->tensors[i]);
        const bool begins = i > 0 && used + bytes > most;
        writer->num_files += begins;
        folder->tensors[i].file = writer->num_files;
        used = begins ? bytes : used + bytes;
    }
    writer->num_files++;
    for (int i = 0; i < folder->count; i++) {
        const struct hf_tensor *tensor = writer->tensor = &folder->tensors[i];
        writer->left = tensor->rest ? 0 : tensor->tensor->numel;
        if (i == 0 || tensor->file != tensor[-1].file) {
            char name[HF_NAME_MAX];
            size_t size;
            TRY(close_written_file(writer, err));
            hf_file_name(writer, tensor->file, name);
            TRY(fs_join(writer->path, folder->out, name, STATUS_DATA, err));
            writer->fd = open(writer->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
            if (writer->fd < 0)
                return error_set(err, STATUS_DATA, "cannot create '%s': %s", writer->path, strerror(errno));
            OWNED char *header = hf_file_header(writer, tensor->file, &size);
            TRY(fs_write(writer->fd, writer->path, header, size, STATUS_DATA, err));
        }
        if (tensor->rest)
            writer->unit = -1; /* the piece takes the place of the window */
        else
            TRY(folder->write(writer, tensor, folder->context, err));
        for (int64_t done = 0, n; tensor->rest && done < tensor->rest->place.bytes; done += n) {
            TRY(hf_rest_read(tensor->rest, folder->rest, done, writer->values, &n, err));
            TRY(fs_write(writer->fd, writer->path, writer->values, (size_t)n, STATUS_DATA, err));
        }
        ASSERT(writer->left == 0);
    }
    return close_written_file(writer, err);
}

static void hf_writer_release(struct hf_writer *writer)
{
    close_written_file(writer, NULL);
    free(writer->values);
    free(writer->converted);
}

enum status hf_write_folder(const struct hf_folder *folder, const char *name, json_t *config, struct error *err)
{
    json_auto_t *owned = config;
    RELEASED(hf_writer_release) struct hf_writer writer = {.folder = folder, .unit = -1, .fd = -1};
    writer.values = memory_alloc(WINDOW * sizeof *writer.values);
    writer.converted = memory_alloc(WINDOW * sizeof *writer.converted);
    if (mkdir(folder->out, 0777))
        return error_system(err, STATUS_DATA, errno, "cannot make the folder '%s'", folder->out);
    TRY(hf_write_weights(&writer, err));
    if (writer.num_files > 1) {
        char name_of[HF_NAME_MAX];
        json_int_t bytes = 0;
        json_t *map = json_object();
        for (const struct hf_tensor *tensor = folder->tensors; tensor <= writer.tensor; tensor++) {
            hf_file_name(&writer, tensor->file, name_of);
            json_object_set_new(map, tensor->name, json_string(name_of));
            bytes += hf_tensor_bytes(tensor);
        }
        snprintf(name_of, sizeof name_of, "%s.safetensors.index.json", folder->stem);
        json_auto_t *index = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", bytes, "weight_map", map);
        TRY(hf_write_json(folder->out, name_of, index, err));
    }
    TRY(hf_write_tokenizer(folder->checkpoint, folder->out, err));
    TRY(hf_write_json(folder->out, name, owned, err));
    return fs_sync_dir(folder->out, STATUS_DATA, err);
}

enum status huggingface_export(const struct checkpoint *checkpoint, const char *moved, const char *out,
                               enum dtype dtype, int64_t max_shard_bytes, bool force, struct error *err)
{
    RELEASED(model_desc_release) struct model_desc desc = {0};
    RELEASED(tensor_table_release) struct tensor_table table = {0};
    RELEASED(peft_base_release) struct peft_base from = {.folder = ""};
    RELEASED(huggingface_drop) struct huggingface_reader *reader = NULL;
    RELEASED(hf_folder_release)
    struct hf_folder folder = {.checkpoint = checkpoint,
                               .table = &table,
                               .out = out,
                               .stem = "model",
                               .max_bytes = max_shard_bytes,
                               .force = force,
                               .write = hf_writer_tensor};
    TRY(checkpoint_model(checkpoint, &desc, &table, err));
    ASSERT(!table.adapted);
    TRY(checkpoint_check_table(checkpoint, &table, err));
    folder.tensors = memory_zeroed((size_t)table.num_tensors, sizeof *folder.tensors);
    for (; folder.count < table.num_tensors; folder.count++)
        folder.tensors[folder.count] = hf_model_tensor(&desc, &table.tensors[folder.count], dtype);
    if (desc.multimodal) {
        TRY(peft_base_find(checkpoint, moved, &desc, &table, &from, err));
        TRY(huggingface_open(&from.source, 0, 0, &reader, err));
        TRY(peft_base_check(checkpoint, &table, reader, from.folder, err));
        hf_folder_complete(&folder, reader);
    }
    return hf_write_folder(&folder, "config.json", model_desc_export_config(&desc, dtype), err);
}
