/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/base_hash.h"
#include "ckpt/huggingface/huggingface.h"

#include "core/model/model_folder.h"
#include "core/model/stored_base.h"

static void read_peft_list(const struct checkpoint *checkpoint, const char *key, struct string_list *list)
{
    size_t i;
    json_t *item;
    json_array_foreach (json_object_get(checkpoint->spec, key), i, item)
        if (json_is_string(item)) string_list_add(list, json_string_value(item));
}

static bool peft_spec_has(const struct checkpoint *checkpoint, const char *key)
{
    return json_is_true(json_object_get(checkpoint->spec, key));
}

void peft_base_store(const struct checkpoint *checkpoint, const struct model_desc *desc, struct tensor_table *table)
{
    const char *name = json_string_value(json_object_get(checkpoint->spec, "peft.base_dtype"));
    struct quantization_settings wanted = {.method = QUANTIZATION_NF4, .compute_dtype = DTYPE_COUNT};
    const enum dtype named = dtype_find(name), plain = named == DTYPE_COUNT ? checkpoint->dtype : named;
    wanted.double_quant = peft_spec_has(checkpoint, "model.quantization_config.bnb_4bit_use_double_quant");
    read_peft_list(checkpoint, "model.quantization_config.llm_int8_skip_modules", &wanted.skip);
    const bool quantized = peft_spec_has(checkpoint, "model.quantization_config.load_in_4bit");
    const struct stored_settings settings = stored_settings_of(desc, quantized ? &wanted : NULL, plain);
    stored_base_lay_out(table, checkpoint->dtype, &settings);
    string_list_release(&wanted.skip);
}

enum status peft_base_find(const struct checkpoint *checkpoint, const char *moved, struct model_desc *desc,
                           const struct tensor_table *table, struct peft_base *base, struct error *err)
{
    memset(base, 0, sizeof *base);
    base->source = (struct huggingface_source){.desc = desc, .table = table, .quiet = true};
    const char *was = checkpoint->base.folder, *name = moved ? moved : was;
    if (!name && !desc->multimodal) return STATUS_OK;
    if (!was)
        return error_set(err, STATUS_USAGE,
                         "the base of '%s' were initial values with run.seed %lld, which are in no folder; hint: leave "
                         "--base out",
                         checkpoint->path, (long long)checkpoint->base.seed);
    if (!model_folder_find(name, base->folder)) {
        error_set(err, STATUS_DATA, "the base of the %s in '%s' is not there: '%s'",
                  checkpoint->adapter ? "adapter" : "multimodal model", checkpoint->path, PRINTABLE(name));
        return error_hint(err, "--base DIR names the folder with these weights, wherever it is now");
    }
    read_peft_list(checkpoint, "model.ignore_tensors", &base->ignore);
    base->source.dir = base->folder;
    base->source.ignore = &base->ignore;
    RELEASED(model_desc_release) struct model_desc folder = {.num_labels = 0};
    TRY(model_desc_load(base->folder, &folder, err));
    desc->new_head = desc->num_labels > 0 && folder.num_labels == 0;
    return STATUS_OK;
}

void peft_base_release(struct peft_base *base)
{
    string_list_release(&base->ignore);
}

/* Words to read at a time, from `done` on: reading a part of a quantized matrix takes as long as all of it. */
static int64_t peft_base_piece(const struct tensor_table *table, const struct unit_info *unit, int64_t done)
{
    enum { PIECE = 1 << 20 };
    for (int t = unit->first_tensor; unit->stored_bytes && t < unit->first_tensor + unit->num_tensors; t++) {
        const struct stored_tensor *stored = &table->stored[t];
        const int64_t left = (stored->offset + stored->begin[STORED_PARTS]) / table->word - done;
        if (left > 0) return stored->quantized || left < PIECE ? left : PIECE;
    }
    return PIECE;
}

enum status peft_base_check(const struct checkpoint *checkpoint, const struct tensor_table *table,
                            struct huggingface_reader *reader, const char *folder, struct error *err)
{
    const int trained = tensor_table_trained(table);
    struct checkpoint_base base = {.folder = folder};
    OWNED float *values = NULL;
    TRY(huggingface_rest_hash(reader, &base.hash, err));
    for (int unit = trained; unit < table->num_units; unit++) {
        const struct unit_info *info = &table->units[unit];
        const int64_t count = unit_words(table, unit);
        const int64_t word = info->stored_bytes ? table->word : (int64_t)sizeof *values;
        const int64_t bytes = info->stored_bytes ? info->stored_bytes : count * word;
        for (int64_t done = 0, n; done < count; done += n) {
            n = min64(peft_base_piece(table, info, done), count - done);
            const int64_t end = min64((done + n) * word, bytes);
            values = memory_resize(values, (size_t)(n * word));
            TRY(huggingface_read(reader, unit, done, n, values, err));
            base.hash += base_hash_bytes(unit - trained, done * word, values, (size_t)(end - done * word));
        }
    }
    return checkpoint_check_base(checkpoint, &base, err);
}
