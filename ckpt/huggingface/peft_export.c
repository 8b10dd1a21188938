/* SPDX-License-Identifier: Apache-2.0 */
/* peft_export.c: writes the adapter of a checkpoint as a folder that PEFT loads. Weights go through one window; only
 * the A of an embedding, which is transposed, is in memory as a whole. */
#include "ckpt/huggingface/hf_write.h"
#include "ckpt/huggingface/peft_names.h"

#include "core/fsutil.h"
#include "core/memory.h"
#include "core/model/adapter_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* (V, r) of the checkpoint as (r, V). */
static enum status export_peft_transposed(struct hf_window *window, struct hf_writer *writer,
                                          const struct tensor_info *tensor, struct error *err)
{
    const int64_t rows = tensor->shape[0], r = tensor->shape[1];
    float *all = memory_alloc((size_t)tensor->numel * sizeof *all);
    enum status status = STATUS_OK;
    TRY_END(hf_writer_begin(writer, err));
    for (int64_t done = 0, n; done < tensor->numel; done += n) {
        const float *values;
        TRY_END(hf_window_get(window, tensor, done, &values, &n, err));
        for (int64_t i = done; i < done + n; i++)
            all[i % r * rows + i / r] = values[i - done];
    }
    status = hf_writer_values(writer, all, tensor->numel, err);
end:
    free(all);
    return status;
}

/* The trained tensors, and their entries; of a tied matrix a second time as the head. Returns how many. */
static int list_peft_tensors(const struct model_desc *desc, const struct tensor_table *table, enum dtype dtype,
                             struct hf_tensor *entries, const struct tensor_info **tensors)
{
    int count = 0;
    for (int i = 0; i < table->num_tensors; i++) {
        const struct tensor_info *tensor = &table->tensors[i];
        const bool turned = peft_transposes(tensor);
        if (tensor->frozen)
            continue;
        tensors[count] = tensor;
        struct hf_tensor *entry = &entries[count++];
        *entry = (struct hf_tensor){.dtype = dtype,
                                    .ndim = tensor->ndim,
                                    .shape = {tensor->shape[turned], tensor->shape[!turned]},
                                    .numel = tensor->numel};
        snprintf(entry->name, sizeof entry->name, PEFT_PREFIX "%s", tensor->name);
        if (desc->tied && tensor->role == ROLE_WTE && tensor->part == PART_BASE) {
            tensors[count] = tensor;
            entries[count] = *entry;
            strcpy(entries[count++].name, PEFT_HEAD);
        }
    }
    return count;
}

static enum status export_peft_weights(const struct checkpoint *checkpoint, const struct model_desc *desc,
                                       const struct tensor_table *table, const char *out, enum dtype dtype, bool force,
                                       struct error *err)
{
    const size_t most = (size_t)table->num_tensors + 1;
    struct hf_tensor *entries = memory_zeroed(most, sizeof *entries);
    const struct tensor_info **tensors = memory_zeroed(most, sizeof *tensors);
    const int count = list_peft_tensors(desc, table, dtype, entries, tensors);
    struct hf_window window;
    struct hf_writer writer;
    enum status status = STATUS_OK;
    hf_window_init(&window, checkpoint, table, force);
    hf_writer_init(&writer, out, PEFT_WEIGHTS, entries, count, INT64_MAX);
    for (int i = 0; i < count; i++)
        if (peft_transposes(tensors[i]))
            TRY_END(export_peft_transposed(&window, &writer, tensors[i], err));
        else
            TRY_END(hf_writer_tensor(&writer, &window, tensors[i], err));
    status = hf_writer_finish(&writer, err);
end:
    hf_writer_release(&writer);
    hf_window_release(&window);
    free(tensors);
    free(entries);
    return status;
}

enum status peft_export(const struct checkpoint *checkpoint, const struct model_desc *desc,
                        const struct tensor_table *table, const char *out, enum dtype dtype, bool force,
                        struct error *err)
{
    ASSERT(checkpoint->adapter && table->adapted);
    TRY(checkpoint_check_table(checkpoint, table, err));
    TRY(hf_make_folder(out, err));
    TRY(export_peft_weights(checkpoint, desc, table, out, dtype, force, err));
    TRY(hf_write_tokenizer(checkpoint, out, err));
    TRY(hf_write_json(out, ADAPTER_CONFIG_FILE, json_deep_copy(checkpoint->adapter), err));
    return fs_sync_dir(out, STATUS_DATA, err);
}
