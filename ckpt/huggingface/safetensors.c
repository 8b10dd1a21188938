/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors.c: parses the header of a safetensors file: every number is checked against the file before it is used;
 * and reads the contents. */
#include "ckpt/huggingface/huggingface.h"

#include <float.h>

/* The format's dtype names with their element sizes and, if ztrain reads them, its dtypes. */
static const struct {
    const char *name;
    int bytes;
    int dtype; /* enum dtype, or -1 */
} DTYPES[] = {
    {"F32", 4, DTYPE_F32}, {"BF16", 2, DTYPE_BF16}, {"F16", 2, DTYPE_F16}, {"F64", 8, -1},     {"I64", 8, -1},
    {"U64", 8, -1},        {"I32", 4, -1},          {"U32", 4, -1},        {"I16", 2, -1},     {"U16", 2, -1},
    {"I8", 1, -1},         {"U8", 1, -1},           {"BOOL", 1, -1},       {"F8_E4M3", 1, -1},
};

enum status safetensors_prefix(const uint8_t prefix[SAFETENSORS_PREFIX], int64_t file_bytes, const char *where,
                               size_t *header_bytes, struct error *err)
{
    if (file_bytes < SAFETENSORS_PREFIX)
        return error_set(err, STATUS_DATA, "'%s' is truncated: %" PRId64 " bytes are not a safetensors file", where,
                         file_bytes);
    uint64_t n = 0;
    for (int i = SAFETENSORS_PREFIX - 1; i >= 0; i--) n = n << 8 | prefix[i];
    if (n > SAFETENSORS_MAX_HEADER)
        return error_set(err, STATUS_DATA,
                         "'%s' is not a safetensors file: header of %" PRIu64 " bytes, at most %d expected", where, n,
                         SAFETENSORS_MAX_HEADER);
    if ((int64_t)n > file_bytes - SAFETENSORS_PREFIX)
        return error_set(err, STATUS_DATA,
                         "'%s' is truncated: header of %" PRIu64 " bytes, but the file has %" PRId64 " bytes", where, n,
                         file_bytes);
    *header_bytes = (size_t)n;
    return STATUS_OK;
}

/* Parses an entry's dtype, shape and offsets. data_bytes: the number of bytes after the header. */
static enum status parse_entry(const json_t *value, int64_t header_end, int64_t data_bytes, const char *where,
                               struct safetensors_entry *entry, struct error *err)
{
    const char *name = entry->name, *dtype = json_string_value(json_object_get(value, "dtype"));
    const json_t *shape = json_object_get(value, "shape"), *offsets = json_object_get(value, "data_offsets");
    if (!dtype || !json_is_array(shape) || !json_is_array(offsets) || json_array_size(offsets) != 2)
        return error_set(err, STATUS_DATA,
                         "%s: tensor '%.200s' needs dtype, shape and two data_offsets in the safetensors header", where,
                         name);

    /* the number of elements, checked for overflow */
    if (json_array_size(shape) > SAFETENSORS_MAX_DIMS)
        return error_set(err, STATUS_DATA, "%s: tensor '%.200s' has %zu dimensions, at most %d expected", where, name,
                         json_array_size(shape), SAFETENSORS_MAX_DIMS);
    entry->ndim = (int)json_array_size(shape);
    int64_t numel = 1;
    for (int i = 0; i < entry->ndim; i++) {
        const json_t *size = json_array_get(shape, (size_t)i);
        entry->shape[i] = json_is_integer(size) ? json_integer_value(size) : -1;
        if (entry->shape[i] < 0 || __builtin_mul_overflow(numel, entry->shape[i], &numel))
            return error_set(err, STATUS_DATA, "%s: tensor '%.200s' has an impossible shape", where, name);
    }

    const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
    int64_t begin = json_is_integer(first) ? json_integer_value(first) : -1;
    int64_t end = json_is_integer(last) ? json_integer_value(last) : -1;
    if (begin < 0 || end < begin)
        return error_set(err, STATUS_DATA, "%s: tensor '%.200s' has impossible data_offsets", where, name);
    if (end > data_bytes)
        return error_set(err, STATUS_DATA,
                         "'%s' is truncated: tensor '%.200s' ends at offset %" PRId64 ", the file at %" PRId64, where,
                         name, header_end + end, header_end + data_bytes);
    entry->place = (struct hf_place){.found = true, .begin = header_end + begin, .bytes = end - begin};
    entry->dtype_name = memory_text(dtype);

    for (size_t i = 0; i < COUNT_OF(DTYPES); i++) {
        if (strcmp(dtype, DTYPES[i].name) != 0) continue;
        int64_t bytes;
        if (__builtin_mul_overflow(numel, DTYPES[i].bytes, &bytes) || bytes != end - begin)
            return error_set(err, STATUS_DATA,
                             "%s: tensor '%.200s' has %" PRId64 " bytes, which do not fit its shape and dtype", where,
                             name, end - begin);
        entry->place.known_dtype = DTYPES[i].dtype >= 0;
        if (entry->place.known_dtype) entry->place.dtype = (enum dtype)DTYPES[i].dtype;
        entry->codes = !strcmp(dtype, "U8") ? CODES_U8 : !strcmp(dtype, "F8_E4M3") ? CODES_E4M3 : CODES_NONE;
    }
    return STATUS_OK;
}

static int compare_safetensors_begin(const void *a, const void *b)
{
    const struct hf_place *x = &((const struct safetensors_entry *)a)->place;
    const struct hf_place *y = &((const struct safetensors_entry *)b)->place;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty tensors first */
}

static enum status check_cover(struct safetensors_header *header, int64_t header_end, int64_t file_bytes,
                               const char *where, struct error *err)
{
    qsort(header->entries, (size_t)header->count, sizeof *header->entries, compare_safetensors_begin);
    int64_t end = header_end;
    for (int i = 0; i < header->count; i++) {
        const struct safetensors_entry *entry = &header->entries[i];
        if (entry->place.begin != end)
            return error_set(err, STATUS_DATA,
                             "%s: tensor '%.200s' begins at offset %" PRId64 ", %" PRId64
                             " expected: a hole or an overlap",
                             where, entry->name, entry->place.begin, end);
        end += entry->place.bytes;
    }
    if (end != file_bytes)
        return error_set(err, STATUS_DATA,
                         "'%s' has %" PRId64 " bytes, but its tensors end at offset %" PRId64 ": trailing bytes", where,
                         file_bytes, end);
    return STATUS_OK;
}

enum status safetensors_parse(const void *header, size_t header_bytes, int64_t file_bytes, const char *where,
                              struct safetensors_header *out, struct error *err)
{
    memset(out, 0, sizeof *out);
    ASSERT(header_bytes <= SAFETENSORS_MAX_HEADER && file_bytes >= SAFETENSORS_PREFIX + (int64_t)header_bytes);
    json_error_t parse;
    json_auto_t *root = json_loadb(header, header_bytes, JSON_REJECT_DUPLICATES, &parse);
    if (!json_is_object(root))
        return error_set(err, STATUS_DATA, "'%s' is not a safetensors file: header at offset %d: %s", where,
                         root ? SAFETENSORS_PREFIX : SAFETENSORS_PREFIX + parse.position,
                         root ? "not a JSON object" : parse.text);
    const int64_t header_end = SAFETENSORS_PREFIX + (int64_t)header_bytes;
    const char *name;
    json_t *value;
    out->entries = memory_zeroed(json_object_size(root) + 1, sizeof *out->entries);
    json_object_foreach (root, name, value) {
        if (strcmp(name, "__metadata__") == 0) {
            const char *producer = json_string_value(json_object_get(value, "producer"));
            out->by_ztrain = producer && strcmp(producer, "ztrain") == 0;
            continue;
        }
        struct safetensors_entry *entry = &out->entries[out->count++];
        entry->name = memory_text(name);
        TRY(parse_entry(value, header_end, file_bytes - header_end, where, entry, err));
    }
    return check_cover(out, header_end, file_bytes, where, err);
}

enum status safetensors_read_header(const char *path, struct safetensors_header *out, struct error *err)
{
    memset(out, 0, sizeof *out);
    RELEASED(fs_close) int fd = -1;
    int64_t file_bytes;
    uint8_t prefix[SAFETENSORS_PREFIX] = {0};
    size_t header_bytes = 0;
    TRY(fs_open_read(path, STATUS_DATA, &fd, &file_bytes, err));
    if (file_bytes >= SAFETENSORS_PREFIX) TRY(fs_pread(fd, path, prefix, sizeof prefix, 0, STATUS_DATA, err));
    TRY(safetensors_prefix(prefix, file_bytes, path, &header_bytes, err));
    OWNED char *header = malloc(header_bytes + 1);
    if (!header)
        return error_set(err, STATUS_DEVICE, "out of memory: %zu bytes for the header of '%s'", header_bytes, path);
    TRY(fs_pread(fd, path, header, header_bytes, SAFETENSORS_PREFIX, STATUS_DATA, err));
    return safetensors_parse(header, header_bytes, file_bytes, path, out, err);
}

void safetensors_header_release(struct safetensors_header *header)
{
    for (int i = 0; i < header->count; i++) {
        free(header->entries[i].name);
        free(header->entries[i].dtype_name);
    }
    free(header->entries);
    memset(header, 0, sizeof *header);
}

enum status safetensors_expect(const struct safetensors_entry *entry, const char *path, int ndim, const int64_t *shape,
                               const char *asks, struct error *err)
{
    char have[SHAPE_TEXT], want[SHAPE_TEXT];
    if (entry->ndim != ndim || memcmp(entry->shape, shape, (size_t)ndim * sizeof *shape) != 0)
        return error_set(err, STATUS_DATA, "%s: tensor '%s' has shape %s%s %s", path, entry->name,
                         shape_text(entry->ndim, entry->shape, have), asks, shape_text(ndim, shape, want));
    return entry->place.known_dtype
               ? STATUS_OK
               : error_set(err, STATUS_DATA,
                           "%s: tensor '%s' has a dtype that is not supported; hint: F32, BF16 and F16 are", path,
                           entry->name);
}

/* ---- contents ------------------------------------------------------------ */

static enum status hf_files_open(struct hf_files *files, int file, struct error *err)
{
    if (files->open == file + 1) return STATUS_OK;
    if (files->open) io_close(files->fd);
    files->open = 0;
    TRY(fs_join(files->path, files->dir, files->names.items[file], STATUS_DATA, err));
    TRY(fs_open_read(files->path, STATUS_DATA, &files->fd, NULL, err));
    files->open = file + 1;
    return STATUS_OK;
}

enum status hf_files_read(struct hf_files *files, const struct hf_place *place, void *out, struct error *err)
{
    TRY(hf_files_open(files, place->file, err));
    return fs_pread(files->fd, files->path, out, (size_t)place->bytes, place->begin, STATUS_DATA, err);
}

enum status hf_files_values(struct hf_files *files, const struct hf_place *place, int64_t first, int64_t count,
                            float *out, struct error *err)
{
    enum { PIECE = 32 << 10 };
    uint16_t staging[PIECE];
    const int64_t size = (int64_t)dtype_size(place->dtype);
    TRY(hf_files_open(files, place->file, err));
    if (place->dtype == DTYPE_F32)
        return fs_pread(files->fd, files->path, out, (size_t)(count * size), place->begin + first * size, STATUS_DATA,
                        err);
    for (int64_t done = 0, n; done < count; done += n) {
        n = min64(count - done, PIECE);
        TRY(fs_pread(files->fd, files->path, staging, (size_t)(n * size), place->begin + (first + done) * size,
                     STATUS_DATA, err));
        floats_from(out + done, staging, (size_t)n, place->dtype);
    }
    return STATUS_OK;
}

int64_t huggingface_not_finite(const float *x, int64_t count)
{
    enum { BLOCK = 1024 };
    for (int64_t begin = 0; begin < count; begin += BLOCK) {
        int64_t end = begin + BLOCK < count ? begin + BLOCK : count;
        int found = 0;
#pragma omp simd reduction(| : found)
        for (int64_t i = begin; i < end; i++) found |= !(fabsf(x[i]) <= FLT_MAX);
        for (int64_t i = begin; found && i < end; i++)
            if (!isfinite(x[i])) return i;
    }
    return count;
}

void hf_files_release(struct hf_files *files)
{
    if (files->open) io_close(files->fd);
    string_list_release(&files->names);
}

enum status hf_unit_values(const struct tensor_table *table, int unit, int64_t begin, int64_t count,
                           enum status (*values)(void *context, int tensor, int64_t first, int64_t count, float *out,
                                                 struct error *err),
                           void *context, float *out, struct error *err)
{
    const struct unit_info *info = &table->units[unit];
    int64_t end = begin + count, filled = begin;
    for (int i = info->first_tensor; i < info->first_tensor + info->num_tensors; i++) {
        const struct tensor_info *tensor = &table->tensors[i];
        const int64_t from = max64(tensor->offset, begin), to = min64(tensor->offset + tensor->numel, end);
        if (from >= to) continue;
        memset(out + (filled - begin), 0, (size_t)(from - filled) * sizeof *out);
        filled = to;
        TRY(values(context, i, from - tensor->offset, to - from, out + (from - begin), err));
    }
    memset(out + (filled - begin), 0, (size_t)(end - filled) * sizeof *out);
    return STATUS_OK;
}
