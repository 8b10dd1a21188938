/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/huggingface/hf_write.h"

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

enum { WINDOW = 2 << 20 /* elements: 8 MiB of fp32 */ };

static const int64_t DEFAULT_FILE_BYTES = 5000000000;

/* ---- a checkpoint's weights ---------------------------------------------- */

void hf_window_init(struct hf_window *window, const struct checkpoint *checkpoint, const struct tensor_table *table,
                    bool force)
{
    *window = (struct hf_window){.checkpoint = checkpoint, .table = table, .force = force, .unit = -1};
    window->values = memory_alloc(WINDOW * sizeof *window->values);
}

void hf_window_release(struct hf_window *window)
{
    free(window->values);
    window->values = NULL;
}

static enum status move_window(struct hf_window *window, int unit, int64_t at, struct error *err)
{
    if (unit == window->unit && at >= window->begin && at < window->end)
        return STATUS_OK;
    int64_t numel = window->table->units[unit].numel, begin = at / WINDOW * WINDOW;
    int64_t end = begin + WINDOW < numel ? begin + WINDOW : numel;
    window->unit = -1;
    TRY(checkpoint_read(window->checkpoint, STATE_MASTER, unit, begin, end - begin, window->values, err));
    window->unit = unit;
    window->begin = begin;
    window->end = end;
    return STATUS_OK;
}

enum status hf_window_get(struct hf_window *window, const struct tensor_info *tensor, int64_t first,
                          const float **values, int64_t *count, struct error *err)
{
    const int64_t at = tensor->offset + first, end = tensor->offset + tensor->numel;
    ASSERT(first >= 0 && at < end);
    TRY(move_window(window, tensor->unit, at, err));
    const float *x = *values = window->values + (at - window->begin);
    *count = (end < window->end ? end : window->end) - at;
    const int64_t i = window->force ? *count : huggingface_not_finite(x, *count);
    if (i == *count)
        return STATUS_OK;
    error_set(err, STATUS_DIVERGED, "'%s': tensor '%s' holds %s: the run has diverged", window->checkpoint->path,
              tensor->name, isnan(x[i]) ? "NaN" : "an infinity");
    return error_hint(err, "an earlier checkpoint; --force exports this one as it is");
}

/* ---- safetensors --------------------------------------------------------- */

static int64_t hf_tensor_bytes(const struct hf_tensor *tensor)
{
    return tensor->numel * (int64_t)dtype_size(tensor->dtype);
}

void hf_writer_init(struct hf_writer *writer, const char *out, const char *stem, struct hf_tensor *tensors, int count,
                    int64_t max_bytes)
{
    int64_t used = 0;
    *writer = (struct hf_writer){.out = out, .stem = stem, .num_tensors = count, .tensors = tensors, .fd = -1};
    writer->converted = memory_alloc(WINDOW * sizeof *writer->converted);
    for (int i = 0; i < count; i++) {
        const int64_t bytes = hf_tensor_bytes(&tensors[i]);
        if (i > 0 && used + bytes > (max_bytes > 0 ? max_bytes : DEFAULT_FILE_BYTES)) {
            writer->num_files++;
            used = 0;
        }
        tensors[i].file = writer->num_files;
        used += bytes;
    }
    writer->num_files++;
}

static void hf_file_name(const struct hf_writer *writer, int file, char name[HF_NAME_MAX])
{
    if (writer->num_files == 1)
        snprintf(name, HF_NAME_MAX, "%s.safetensors", writer->stem);
    else
        snprintf(name, HF_NAME_MAX, "%s-%05d-of-%05d.safetensors", writer->stem, file + 1, writer->num_files);
}

/* The header of a file after its length, padded with blanks to a multiple of 8. The caller frees it. */
static char *hf_file_header(const struct hf_writer *writer, int file, size_t *size)
{
    static const char *const DTYPES[] = {[DTYPE_F32] = "F32", [DTYPE_BF16] = "BF16", [DTYPE_F16] = "F16"};
    json_t *root = json_pack("{s:{s:s, s:s}}", "__metadata__", "format", "pt", "producer", "ztrain");
    json_int_t offset = 0;
    for (int i = 0; i < writer->num_tensors; i++) {
        const struct hf_tensor *tensor = &writer->tensors[i];
        if (tensor->file != file)
            continue;
        const json_int_t end = offset + hf_tensor_bytes(tensor);
        json_t *shape = json_pack("[I]", (json_int_t)tensor->shape[0]);
        if (tensor->ndim == 2)
            json_array_append_new(shape, json_integer(tensor->shape[1]));
        json_object_set_new(root, tensor->name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", DTYPES[tensor->dtype], "shape", shape,
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

/* Syncs and closes the file that is open, if one is. */
static enum status close_written_file(struct hf_writer *writer, struct error *err)
{
    const int fd = writer->fd;
    writer->fd = -1;
    if (fd < 0)
        return STATUS_OK;
    const int sync_error = fsync(fd) ? errno : 0;
    if (close(fd) != 0 && !sync_error)
        return error_set(err, STATUS_DATA, "cannot close '%s': %s", writer->path, strerror(errno));
    return sync_error ? error_set(err, STATUS_DATA, "cannot sync '%s': %s", writer->path, strerror(sync_error))
                      : STATUS_OK;
}

static enum status open_written_file(struct hf_writer *writer, int file, struct error *err)
{
    char name[HF_NAME_MAX];
    size_t size;
    TRY(close_written_file(writer, err));
    hf_file_name(writer, file, name);
    TRY(fs_join(writer->path, writer->out, name, STATUS_DATA, err));
    writer->fd = open(writer->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (writer->fd < 0)
        return error_set(err, STATUS_DATA, "cannot create '%s': %s", writer->path, strerror(errno));
    char *header = hf_file_header(writer, file, &size);
    const enum status status = fs_write(writer->fd, writer->path, header, size, STATUS_DATA, err);
    free(header);
    return status;
}

enum status hf_writer_begin(struct hf_writer *writer, struct error *err)
{
    const int i = writer->next++;
    ASSERT(i < writer->num_tensors && writer->left == 0);
    writer->left = writer->tensors[i].numel;
    if (i > 0 && writer->tensors[i].file == writer->tensors[i - 1].file)
        return STATUS_OK;
    return open_written_file(writer, writer->tensors[i].file, err);
}

enum status hf_writer_values(struct hf_writer *writer, const float *values, int64_t count, struct error *err)
{
    const enum dtype dtype = writer->tensors[writer->next - 1].dtype;
    ASSERT(count <= writer->left);
    writer->left -= count;
    for (int64_t done = 0, n; done < count; done += n) {
        const float *from = values + done;
        const void *bytes = from;
        n = count - done < WINDOW ? count - done : WINDOW;
        if (dtype != DTYPE_F32)
            bytes = writer->converted;
        if (dtype == DTYPE_BF16)
#pragma omp simd
            for (int64_t i = 0; i < n; i++)
                writer->converted[i] = bf16_from_f32(from[i]);
        if (dtype == DTYPE_F16)
            for (int64_t i = 0; i < n; i++)
                writer->converted[i] = f16_from_f32(from[i]);
        TRY(fs_write(writer->fd, writer->path, bytes, (size_t)n * dtype_size(dtype), STATUS_DATA, err));
    }
    return STATUS_OK;
}

enum status hf_writer_tensor(struct hf_writer *writer, struct hf_window *window, const struct tensor_info *tensor,
                             struct error *err)
{
    TRY(hf_writer_begin(writer, err));
    for (int64_t done = 0, n; done < tensor->numel; done += n) {
        const float *values;
        TRY(hf_window_get(window, tensor, done, &values, &n, err));
        TRY(hf_writer_values(writer, values, n, err));
    }
    return STATUS_OK;
}

enum status hf_writer_finish(struct hf_writer *writer, struct error *err)
{
    char name[HF_NAME_MAX];
    json_int_t bytes = 0;
    ASSERT(writer->next == writer->num_tensors && writer->left == 0);
    TRY(close_written_file(writer, err));
    if (writer->num_files == 1)
        return STATUS_OK;
    json_t *map = json_object();
    for (int i = 0; i < writer->num_tensors; i++) {
        hf_file_name(writer, writer->tensors[i].file, name);
        json_object_set_new(map, writer->tensors[i].name, json_string(name));
        bytes += hf_tensor_bytes(&writer->tensors[i]);
    }
    snprintf(name, sizeof name, "%s.safetensors.index.json", writer->stem);
    return hf_write_json(writer->out, name,
                         json_pack("{s:{s:I}, s:o}", "metadata", "total_size", bytes, "weight_map", map), err);
}

void hf_writer_release(struct hf_writer *writer)
{
    struct error ignored;
    close_written_file(writer, &ignored);
    free(writer->converted);
    writer->converted = NULL;
}

/* ---- other files --------------------------------------------------------- */

/* Numbers are as short as possible without losing a bit (1e-06, not 9.9999999999999995e-7). */
enum status hf_write_json(const char *out, const char *name, json_t *value, struct error *err)
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
    enum status status = fs_join(path, out, name, STATUS_DATA, err);
    if (status == STATUS_OK)
        status = fs_write_file(path, line, strlen(line), STATUS_DATA, err);
    free(line);
    return status;
}

/* Where a tokenizer file of a checkpoint goes: a chat template has a folder, which is made here. */
static enum status tokenizer_place(const char *out, const char *name, char path[FS_PATH_MAX], struct error *err)
{
    static const char prefix[] = TEMPLATES_FOLDER "-";
    if (strncmp(name, prefix, strlen(prefix)) != 0)
        return fs_join(path, out, name, STATUS_DATA, err);
    char folder[FS_PATH_MAX];
    TRY(fs_join(folder, out, TEMPLATES_FOLDER, STATUS_DATA, err));
    TRY(fs_mkdirs(folder, STATUS_DATA, err));
    return fs_join(path, folder, name + strlen(prefix), STATUS_DATA, err);
}

enum status hf_write_tokenizer(const struct checkpoint *checkpoint, const char *out, struct error *err)
{
    struct manifest *manifest;
    char to[FS_PATH_MAX], *data = NULL;
    enum status status = STATUS_OK;
    TRY(manifest_load(checkpoint->path, true, &manifest, err));
    for (int i = manifest->world; i < manifest->num_files; i++) {
        const struct manifest_file *file = &manifest->files[i];
        if (strcmp(file->name, "config.json") == 0 || strncmp(file->name, "model", 5) == 0 ||
            strncmp(file->name, "adapter", 7) == 0)
            TRY_END(error_set(err, STATUS_CHECKPOINT, "'%s/%s' is not a tokenizer file", checkpoint->path, file->name));
        TRY_END(manifest_read_file(checkpoint->path, file, &data, err));
        TRY_END(tokenizer_place(out, file->name, to, err));
        TRY_END(fs_write_file(to, data, (size_t)file->bytes, STATUS_DATA, err));
        free(data);
        data = NULL;
    }
end:
    free(data);
    manifest_free(manifest);
    return status;
}

enum status hf_make_folder(const char *out, struct error *err)
{
    return mkdir(out, 0777) == 0 ? STATUS_OK
                                 : error_system(err, STATUS_DATA, errno, "cannot make the folder '%s'", out);
}
