/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a model.safetensors, and as its header alone: refused, or all tensors lie within the file; the import of
 * it into a small model fails with words or fills the slices. So does that of an adapter_model.safetensors. */
#include "ckpt/huggingface/huggingface.h"
#include "core/fsutil.h"
#include "core/model/adapter.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char CONFIG[] = "{\"model_type\":\"gpt2\",\"n_embd\":2,\"n_head\":1,\"n_layer\":1,\"vocab_size\":3,"
                             "\"n_positions\":2,\"n_inner\":2}";

static char folder[] = "/tmp/ztrain-fuzz-XXXXXX", file[64], adapter_file[64];
static struct model_desc desc;
static struct tensor_table table, adapted;
static struct shard_layout layout, adapted_layout;
static float *shard;

static void remove_folder(void)
{
    unlink(file);
    unlink(adapter_file);
    rmdir(folder);
}

/* A and B on the embedding and c_attn, and a norm as a whole. */
static void prepare_adapter(void)
{
    struct adapter_settings settings = {.on = true, .r = 1, .lora_alpha = 1};
    string_list_add(&settings.target_modules.list, "wte");
    string_list_add(&settings.target_modules.list, "c_attn");
    string_list_add(&settings.modules_to_save, "ln_f");
    tensor_table_build(&desc, &adapted);
    ASSERT(adapter_apply(&settings, &desc, &adapted, NULL, NULL) == STATUS_OK);
    string_list_release(&settings.target_modules.list);
    string_list_release(&settings.modules_to_save);
    shard_layout_init(&adapted_layout, &adapted, 2);
}

static void prepare(void)
{
    json_t *config = json_loads(CONFIG, 0, NULL);
    ASSERT(model_desc_from_json(config, "config", &desc, NULL) == STATUS_OK);
    json_decref(config);
    tensor_table_build(&desc, &table);
    shard_layout_init(&layout, &table, 2);
    prepare_adapter();
    const int64_t numel =
        layout.shard_numel > adapted_layout.shard_numel ? layout.shard_numel : adapted_layout.shard_numel;
    shard = malloc((size_t)numel * sizeof *shard);
    ASSERT(shard && mkdtemp(folder));
    snprintf(file, sizeof file, "%s/model.safetensors", folder);
    snprintf(adapter_file, sizeof adapter_file, "%s/adapter_model.safetensors", folder);
    atexit(remove_folder);
}

static enum status slice_of(void *context, enum slice_access access, enum state_kind state, int unit, float **slice,
                            struct error *err)
{
    const struct shard_layout *of = context;
    (void)state;
    (void)access;
    (void)err;
    *slice = shard + of->shard_offset[unit];
    return STATUS_OK;
}

static void check_header(const uint8_t *json, size_t json_bytes, int64_t file_bytes)
{
    struct safetensors_header header;
    struct error err;
    const enum status status = safetensors_parse(json, json_bytes, file_bytes, "f", &header, &err);
    for (int i = 0; status == STATUS_OK && i < header.count; i++) {
        const struct safetensors_entry *entry = &header.entries[i];
        const struct hf_place *place = &entry->place;
        ASSERT(place->begin >= SAFETENSORS_PREFIX && place->bytes >= 0 && place->begin <= file_bytes - place->bytes);
        int64_t numel = 1;
        for (int k = 0; k < entry->ndim; k++) numel *= entry->shape[k];
        ASSERT(!place->known_dtype || numel * (int64_t)dtype_size(place->dtype) == place->bytes);
    }
    safetensors_header_release(&header);
}

static void write_fuzzed(const char *path, const uint8_t *data, size_t size)
{
    FILE *out = fopen(path, "wb");
    ASSERT(out && fwrite(data, 1, size, out) == size && fclose(out) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!shard) prepare();
    size_t header_bytes;
    if (size >= SAFETENSORS_PREFIX && safetensors_prefix(data, (int64_t)size, "f", &header_bytes, NULL) == STATUS_OK)
        check_header(data + SAFETENSORS_PREFIX, header_bytes, (int64_t)size);
    check_header(data, size, SAFETENSORS_PREFIX + (int64_t)size + 48); /* as a header, before 48 bytes of data */
    write_fuzzed(file, data, size);
    const struct state_slices slices = {.owner = &layout, .get = slice_of};
    const struct state_slices adapter_slices = {.owner = &adapted_layout, .get = slice_of};
    struct error err = {.text = ""};
    const struct huggingface_source source = {.dir = folder, .desc = &desc, .table = &table};
    for (int rank = 0; rank < 2; rank++) {
        enum status status = huggingface_load(&source, &layout, rank, 1, slices, &err);
        ASSERT(status == STATUS_OK || (status == STATUS_DATA && err.text[0]));
        write_fuzzed(adapter_file, data, size);
        status = peft_load(folder, &desc, &adapted, &adapted_layout, rank, adapter_slices, &err);
        ASSERT(status == STATUS_OK || (status == STATUS_DATA && err.text[0]));
        unlink(adapter_file); /* else the model's import would name it */
    }
    return 0;
}
