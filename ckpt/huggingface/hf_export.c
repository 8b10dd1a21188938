/* SPDX-License-Identifier: Apache-2.0 */
/* hf_export.c: writes a checkpoint as a folder that transformers loads.
 *
 * The model goes through one window, a piece of a unit's flat range: the tensors in it are converted and written, in
 * the order of the table. So the window is all the memory, and every frame of the checkpoint is read about once. */
#include "ckpt/huggingface/hf_write.h"

#include "core/fsutil.h"
#include "core/memory.h"

#include <stdio.h>
#include <stdlib.h>

static enum status export_weights(const struct checkpoint *checkpoint, const struct tensor_table *table,
                                  const char *out, enum dtype dtype, int64_t max_shard_bytes, bool force,
                                  struct error *err)
{
    struct hf_tensor *tensors = memory_zeroed((size_t)table->num_tensors, sizeof *tensors);
    struct hf_window window;
    struct hf_writer writer;
    enum status status;
    for (int i = 0; i < table->num_tensors; i++) {
        const struct tensor_info *tensor = &table->tensors[i];
        tensors[i] = (struct hf_tensor){.dtype = dtype,
                                        .ndim = tensor->ndim,
                                        .shape = {tensor->shape[0], tensor->shape[1]},
                                        .numel = tensor->numel};
        snprintf(tensors[i].name, sizeof tensors[i].name, "%s", tensor->name);
    }
    hf_window_init(&window, checkpoint, table, force);
    hf_writer_init(&writer, out, "model", tensors, table->num_tensors, max_shard_bytes);
    for (int i = 0; i < table->num_tensors; i++)
        TRY_END(hf_writer_tensor(&writer, &window, &table->tensors[i], err));
    status = hf_writer_finish(&writer, err);
end:
    hf_writer_release(&writer);
    hf_window_release(&window);
    free(tensors);
    return status;
}

enum status huggingface_export(const struct checkpoint *checkpoint, const char *out, enum dtype dtype,
                               int64_t max_shard_bytes, bool force, struct error *err)
{
    struct model_desc desc;
    struct tensor_table table;
    enum status status;
    TRY_END(checkpoint_model(checkpoint, &desc, &table, err));
    ASSERT(!table.adapted);
    TRY_END(checkpoint_check_table(checkpoint, &table, err));
    TRY_END(hf_make_folder(out, err));
    TRY_END(export_weights(checkpoint, &table, out, dtype, max_shard_bytes, force, err));
    TRY_END(hf_write_tokenizer(checkpoint, out, err));
    TRY_END(hf_write_json(out, "config.json", model_desc_export_config(&desc, dtype), err));
    TRY_END(fs_sync_dir(out, STATUS_DATA, err));
end:
    tensor_table_release(&table);
    model_desc_release(&desc);
    return status;
}
