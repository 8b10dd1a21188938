/* SPDX-License-Identifier: Apache-2.0 */
/* hf_rest.c: see hf_write.h. */
#include "ckpt/huggingface/hf_write.h"

#include "ckpt/base_hash.h"

enum status hf_rest_add(struct safetensors_header *rest, const char *path, const struct safetensors_entry *entry,
                        struct error *err)
{
    if (strlen(entry->name) >= HF_NAME_MAX)
        return error_set(err, STATUS_DATA, "%s: tensor '%.100s…' has a name of %zu letters, at most %d expected", path,
                         entry->name, strlen(entry->name), HF_NAME_MAX - 1);
    rest->entries = memory_grow(rest->entries, (size_t)rest->count, sizeof *rest->entries);
    struct safetensors_entry *copy = &rest->entries[rest->count++];
    *copy = *entry;
    copy->name = memory_text(entry->name);
    copy->dtype_name = memory_text(entry->dtype_name);
    return STATUS_OK;
}

enum status hf_rest_read(const struct safetensors_entry *tensor, struct hf_files *files, int64_t done, void *piece,
                         int64_t *count, struct error *err)
{
    struct hf_place part = tensor->place;
    part.begin += done;
    part.bytes = *count = min64(part.bytes - done, HF_REST_PIECE);
    return hf_files_read(files, &part, piece, err);
}

enum status hf_rest_hash(const struct safetensors_header *rest, struct hf_files *files, uint64_t *hash,
                         struct error *err)
{
    enum { FIRST_NUMBER = 1 << 15 }; /* for base_hash_bytes(): frozen units have those before */
    OWNED char *piece = memory_alloc(HF_REST_PIECE);
    char text[2 * HF_NAME_MAX];
    *hash = 0;
    for (int i = 0; i < rest->count; i++) {
        const struct safetensors_entry *tensor = &rest->entries[i];
        memset(text, 0, sizeof text);
        snprintf(text, HF_NAME_MAX, "%s", tensor->name);
        snprintf(text + HF_NAME_MAX, HF_NAME_MAX, "%s", tensor->dtype_name);
        memcpy(text + sizeof text - sizeof tensor->shape, tensor->shape, sizeof tensor->shape);
        *hash += base_hash_bytes(FIRST_NUMBER + i, 0, text, sizeof text);
        for (int64_t done = 0, n; done < tensor->place.bytes; done += n) {
            TRY(hf_rest_read(tensor, files, done, piece, &n, err));
            *hash += base_hash_bytes(FIRST_NUMBER + i, (int64_t)sizeof text + done, piece, (size_t)n);
        }
    }
    return STATUS_OK;
}
