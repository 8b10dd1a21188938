/* SPDX-License-Identifier: Apache-2.0 */
/* hf_rest.c: see hf_write.h. */
#include "ckpt/huggingface/hf_write.h"

#include "ckpt/base_hash.h"

enum status hf_rest_add(struct hf_rest *rest, int file, const char *path, const struct safetensors_entry *entry,
                        struct error *err)
{
    if (strlen(entry->name) >= HF_NAME_MAX)
        return error_set(err, STATUS_DATA, "%s: tensor '%.100s…' has a name of %zu letters, at most %d expected", path,
                         entry->name, strlen(entry->name), HF_NAME_MAX - 1);
    rest->tensors = memory_grow(rest->tensors, (size_t)rest->count, sizeof *rest->tensors);
    struct hf_rest_tensor *tensor = &rest->tensors[rest->count++];
    *tensor = (struct hf_rest_tensor){*entry, hf_place_of(file, entry)};
    tensor->entry.name = memory_text(entry->name);
    tensor->entry.dtype_name = memory_text(entry->dtype_name);
    rest->bytes += tensor->place.bytes;
    return STATUS_OK;
}

void hf_rest_release(struct hf_rest *rest)
{
    for (int i = 0; i < rest->count; i++) {
        free(rest->tensors[i].entry.name);
        free(rest->tensors[i].entry.dtype_name);
    }
    free(rest->tensors);
}

enum status hf_rest_read(const struct hf_rest_tensor *tensor, struct hf_files *files, int64_t done, void *piece,
                         int64_t *count, struct error *err)
{
    struct hf_place part = tensor->place;
    part.begin += done;
    part.bytes = *count = min64(part.bytes - done, HF_REST_PIECE);
    return hf_files_read(files, &part, piece, err);
}

enum status hf_rest_hash(const struct hf_rest *rest, struct hf_files *files, uint64_t *hash, struct error *err)
{
    enum { FIRST_NUMBER = 1 << 15 }; /* for base_hash_bytes(): frozen units have those before */
    OWNED char *piece = memory_alloc(HF_REST_PIECE);
    char text[2 * HF_NAME_MAX];
    *hash = 0;
    for (int i = 0; i < rest->count; i++) {
        const struct hf_rest_tensor *tensor = &rest->tensors[i];
        memset(text, 0, sizeof text);
        snprintf(text, HF_NAME_MAX, "%s", tensor->entry.name);
        snprintf(text + HF_NAME_MAX, HF_NAME_MAX, "%s", tensor->entry.dtype_name);
        memcpy(text + sizeof text - sizeof tensor->entry.shape, tensor->entry.shape, sizeof tensor->entry.shape);
        *hash += base_hash_bytes(FIRST_NUMBER + i, 0, text, sizeof text);
        for (int64_t done = 0, n; done < tensor->place.bytes; done += n) {
            TRY(hf_rest_read(tensor, files, done, piece, &n, err));
            *hash += base_hash_bytes(FIRST_NUMBER + i, (int64_t)sizeof text + done, piece, (size_t)n);
        }
    }
    return STATUS_OK;
}
