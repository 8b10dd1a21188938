/* SPDX-License-Identifier: Apache-2.0 */
/* peft_export.c: writes the adapter of a checkpoint as a folder that PEFT loads. Weights go through one window; only
 * the A of an embedding, which is transposed, is in memory as a whole. */
#include "ckpt/huggingface/hf_write.h"
#include "ckpt/huggingface/peft_names.h"

#include "core/memory.h"
#include "core/model/adapter_config.h"

#include <stdlib.h>
#include <string.h>

/* (V, r) of the checkpoint as (r, V). */
static enum status export_peft_transposed(struct hf_writer *writer, const struct tensor_info *tensor, struct error *err)
{
    const int64_t rows = tensor->shape[0], r = tensor->shape[1];
    float *all = memory_alloc((size_t)tensor->numel * sizeof *all);
    enum status status = STATUS_OK;
    for (int64_t done = 0, n; done < tensor->numel; done += n) {
        const float *values;
        TRY_END(hf_writer_read(writer, tensor, done, &values, &n, err));
        for (int64_t i = done; i < done + n; i++)
            all[i % r * rows + i / r] = values[i - done];
    }
    status = hf_writer_values(writer, all, tensor->numel, err);
end:
    free(all);
    return status;
}

static enum status export_peft_tensor(struct hf_writer *writer, const struct hf_tensor *entry, void *context,
                                      struct error *err)
{
    return peft_transposes(entry->tensor) ? export_peft_transposed(writer, entry->tensor, err)
                                          : hf_writer_tensor(writer, entry, context, err);
}

/* The trained tensors; of a tied matrix a second time as the head. Returns how many. */
static int list_peft_tensors(const struct model_desc *desc, const struct tensor_table *table, enum dtype dtype,
                             struct hf_tensor *entries)
{
    int count = 0;
    for (int i = 0; i < table->num_tensors; i++) {
        const struct tensor_info *tensor = &table->tensors[i];
        if (tensor->frozen)
            continue;
        struct hf_tensor *entry = &entries[count++];
        *entry = hf_tensor_of(PEFT_PREFIX, tensor, dtype);
        if (peft_transposes(tensor)) {
            entry->shape[0] = tensor->shape[1];
            entry->shape[1] = tensor->shape[0];
        }
        if (desc->tied && tensor->role == ROLE_WTE && tensor->part == PART_BASE) {
            entries[count] = *entry;
            strcpy(entries[count++].name, PEFT_HEAD);
        }
    }
    return count;
}

enum status peft_export(const struct checkpoint *checkpoint, const struct model_desc *desc,
                        const struct tensor_table *table, const char *out, enum dtype dtype, bool force,
                        struct error *err)
{
    ASSERT(checkpoint->adapter && table->adapted);
    TRY(checkpoint_check_table(checkpoint, table, err));
    struct hf_tensor *entries = memory_zeroed((size_t)table->num_tensors + 1, sizeof *entries);
    const struct hf_folder folder = {.checkpoint = checkpoint,
                                     .table = table,
                                     .out = out,
                                     .stem = PEFT_WEIGHTS,
                                     .max_bytes = INT64_MAX,
                                     .force = force,
                                     .tensors = entries,
                                     .count = list_peft_tensors(desc, table, dtype, entries),
                                     .write = export_peft_tensor};
    const enum status status = hf_write_folder(&folder, ADAPTER_CONFIG_FILE, json_deep_copy(checkpoint->adapter), err);
    free(entries);
    return status;
}
