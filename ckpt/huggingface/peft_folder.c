/* SPDX-License-Identifier: Apache-2.0 */
/* peft_folder.c: reads an adapter from a PEFT folder, each rank its slices of the trained units; and writes one.
 *
 * First the tensors in the header are matched with those of the table that are trained, then values are read. If an
 * embedding is a target, PEFT puts the base's matrix into the file as well (base_layer): it is skipped. If a tied
 * matrix is trained as a whole, the file has it twice, as the embedding and as the head. */
#include "ckpt/huggingface/hf_write.h"

#include "core/spec/adapter_config.h"

#define PEFT_WEIGHTS "adapter_model"
#define PEFT_PREFIX "base_model.model."
#define PEFT_HEAD PEFT_PREFIX "lm_head.weight"

/* The A of an embedding is (V, r) in the table, and (r, V) in files; the B of experts (E, out, r), and (out, r E). */
static bool peft_transposes(const struct tensor_info *tensor)
{
    return tensor->part == PART_LORA_A ? role_is_embedding(tensor->role)
                                       : tensor->part == PART_LORA_B && tensor->ndim == 3;
}

/* Where an element of such a tensor is in files. */
static int64_t peft_place(const struct tensor_info *tensor, int64_t i)
{
    const int64_t *shape = tensor->shape, r = shape[tensor->ndim - 1];
    if (tensor->ndim == 2) return i % r * shape[0] + i / r;
    return (i / r % shape[1] * r + i % r) * shape[0] + i / (shape[1] * r);
}

/* Writes the shape in files. */
static void peft_shape(const struct tensor_info *tensor, int64_t shape[2])
{
    const bool turned = peft_transposes(tensor), experts = tensor->ndim == 3 && tensor->part != PART_BASE;
    shape[0] = experts && !turned ? tensor->shape[0] * tensor->shape[1] : tensor->shape[turned];
    shape[1] = experts ? tensor->numel / shape[0] : tensor->shape[!turned];
}

struct peft_import {
    const struct model_desc *desc;
    const struct tensor_table *table;
    char path[FS_PATH_MAX];
    struct hf_files files; /* the one of `path` */
    struct safetensors_header header;
    const struct safetensors_entry **entries; /* [num_tensors] owned: of each tensor; NULL: not found */
    const struct safetensors_entry *head;     /* of a tied matrix that is trained; NULL: none */
    float *row;                               /* owned: a transposed tensor, or values of the head */
};

/* ---- which tensors ------------------------------------------------------- */

static enum status find_peft_file(struct peft_import *import, struct error *err)
{
    static const char name[] = PEFT_WEIGHTS ".safetensors";
    const char *dir = import->files.dir;
    char pickled[FS_PATH_MAX];
    string_list_add(&import->files.names, name);
    TRY(fs_join(import->path, dir, name, STATUS_DATA, err));
    TRY(fs_join(pickled, dir, PEFT_WEIGHTS ".bin", STATUS_DATA, err));
    if (fs_exists(import->path)) return STATUS_OK;
    error_set(err, STATUS_DATA, "no adapter in '%s': there is no %s", dir, name);
    if (fs_exists(pickled))
        return error_hint(err, PEFT_WEIGHTS ".bin is not read; peft's save_pretrained() writes safetensors");
    return error_hint(err, "expected a folder that peft's save_pretrained() or ztrain export wrote");
}

static enum status match_peft_entry(struct peft_import *import, const json_t *by_name,
                                    const struct safetensors_entry *entry, struct error *err)
{
    const struct tensor_info *embedding = tensor_find(import->table, 0, ROLE_WTE);
    const size_t prefix = strlen(PEFT_PREFIX);
    const bool own = strncmp(entry->name, PEFT_PREFIX, prefix) == 0;
    char text_name[sizeof embedding->name];
    const char *name = own ? entry->name + prefix : "";
    if (import->desc->multimodal) /* as transformers 4 named it */
        name = model_multimodal_name(name, text_name, sizeof text_name);
    const json_t *index = json_object_get(by_name, name);
    int i = index ? (int)json_integer_value(index) : -1; /* of the trained tensor of that name in the table */
    if (import->desc->tied && !embedding->frozen && !strcmp(entry->name, PEFT_HEAD))
        i = (int)(embedding - import->table->tensors);
    if (fs_has_suffix(entry->name, ".base_layer.weight") || fs_has_suffix(entry->name, ".base_layer.bias"))
        return STATUS_OK;
    if (i < 0) {
        error_set(err, STATUS_DATA, "%s: tensor '%s' is not part of this adapter", import->path, entry->name);
        if (import->desc->multimodal && !model_multimodal_is_text(name))
            return error_hint(err, "ztrain adapts the text model only: train the adapter without the other layers");
        return error_hint(err, "adapter_config.json must be that of the weights, and model.pretrained its base model");
    }
    const struct tensor_info *tensor = &import->table->tensors[i];
    const bool whole = tensor->part == PART_BASE;
    int64_t shape[2];
    peft_shape(tensor, shape);
    if (safetensors_expect(entry, import->path, whole ? tensor->ndim : 2, whole ? tensor->shape : shape,
                           ", and the model asks for", err) != STATUS_OK)
        return error_hint(err, "the adapter is of another base, or r of its adapter_config.json is of other weights");
    if (import->desc->tied && !strcmp(entry->name, PEFT_HEAD))
        import->head = entry;
    else
        import->entries[i] = entry;
    return STATUS_OK;
}

static enum status peft_begin(struct peft_import *import, const char *dir, const struct model_desc *desc,
                              const struct tensor_table *table, struct error *err)
{
    *import = (struct peft_import){.files.dir = dir, .desc = desc, .table = table};
    import->entries = memory_zeroed((size_t)table->num_tensors, sizeof *import->entries);
    TRY(find_peft_file(import, err));
    TRY(safetensors_read_header(import->path, &import->header, err));
    json_auto_t *by_name = json_object();
    for (int i = 0; i < table->num_tensors; i++)
        if (!table->tensors[i].frozen) json_object_set_new(by_name, table->tensors[i].name, json_integer(i));
    for (int i = 0; i < import->header.count; i++)
        TRY(match_peft_entry(import, by_name, &import->header.entries[i], err));
    const struct safetensors_entry **embedding = &import->entries[tensor_find(table, 0, ROLE_WTE) - table->tensors];
    if (!*embedding) { /* the head stands for both */
        *embedding = import->head;
        import->head = NULL;
    }
    const struct tensor_info *absent = NULL;
    int missing = 0;
    for (int i = 0; i < table->num_tensors; i++)
        if (!table->tensors[i].frozen && !import->entries[i]) {
            absent = absent ? absent : &table->tensors[i];
            missing++;
        }
    if (!missing) return STATUS_OK;
    error_set(err, STATUS_DATA, "%s: tensor '" PEFT_PREFIX "%s' is missing", import->path, absent->name);
    if (missing > 1)
        return error_hint(err, "%d tensors in all are missing; adapter_config.json must be that of the weights",
                          missing);
    return error_hint(err, "adapter_config.json must be that of the weights");
}

static void peft_end(struct peft_import *import)
{
    hf_files_release(&import->files);
    safetensors_header_release(&import->header);
    free(import->entries);
    free(import->row);
}

/* ---- reading ------------------------------------------------------------- */

static enum status read_peft_tensor(void *context, int i, int64_t first, int64_t count, float *out, struct error *err)
{
    struct peft_import *import = context;
    const struct tensor_info *tensor = &import->table->tensors[i];
    const struct safetensors_entry *entry = import->entries[i];
    if (peft_transposes(tensor)) { /* from all of it */
        import->row = memory_resize(import->row, (size_t)tensor->numel * sizeof *import->row);
        TRY(hf_files_values(&import->files, &entry->place, 0, tensor->numel, import->row, err));
        for (int64_t k = 0; k < count; k++) out[k] = import->row[peft_place(tensor, first + k)];
    } else {
        TRY(hf_files_values(&import->files, &entry->place, first, count, out, err));
    }
    if (import->head && tensor->role == ROLE_WTE) { /* the head of a tied matrix has the same values */
        import->row = memory_resize(import->row, (size_t)count * sizeof *import->row);
        TRY(hf_files_values(&import->files, &import->head->place, first, count, import->row, err));
        if (memcmp(import->row, out, (size_t)count * sizeof *out) != 0)
            return error_set(err, STATUS_DATA, "%s: tensor '%s' differs from the embedding, and the model ties them",
                             import->path, import->head->name);
    }
    const int64_t bad = huggingface_not_finite(out, count);
    if (bad == count) return STATUS_OK;
    error_set(err, STATUS_DATA, "'%s': tensor '%s' holds %s", import->path, entry->name,
              isnan(out[bad]) ? "NaN" : "an infinity");
    return error_hint(err, "the file is damaged, or its training had diverged; take an earlier copy");
}

enum status peft_check(const char *dir, const struct model_desc *desc, const struct tensor_table *table,
                       struct error *err)
{
    RELEASED(peft_end) struct peft_import import = {0};
    return peft_begin(&import, dir, desc, table, err);
}

enum status peft_load(const char *dir, const struct model_desc *desc, const struct tensor_table *table,
                      const struct shard_layout *layout, int rank, struct state_slices slices, struct error *err)
{
    RELEASED(peft_end) struct peft_import import = {0};
    ASSERT(table->adapted && rank >= 0 && rank < layout->world);
    TRY(peft_begin(&import, dir, desc, table, err));
    for (int unit = 0; unit < layout->num_trained; unit++) {
        float *own;
        TRY(state_slice(slices, SLICE_WRITE, STATE_MASTER, unit, &own, err));
        TRY(hf_unit_values(table, unit, rank * layout->slice[unit], layout->slice[unit], read_peft_tensor, &import, own,
                           err));
    }
    return STATUS_OK;
}

/* ---- writing ------------------------------------------------------------- */

/* A transposed one is as in the table in the checkpoint. */
static enum status export_peft_tensor(struct hf_writer *writer, const struct hf_tensor *entry, void *context,
                                      struct error *err)
{
    const struct tensor_info *tensor = entry->tensor;
    if (!peft_transposes(tensor)) return hf_writer_tensor(writer, entry, context, err);
    OWNED float *all = memory_alloc((size_t)tensor->numel * sizeof *all);
    for (int64_t done = 0, n; done < tensor->numel; done += n) {
        const float *values;
        TRY(hf_writer_read(writer, tensor, done, &values, &n, err));
        for (int64_t i = done; i < done + n; i++) all[peft_place(tensor, i)] = values[i - done];
    }
    return hf_writer_values(writer, all, tensor->numel, err);
}

enum status peft_export(const struct checkpoint *checkpoint, const struct model_desc *desc,
                        const struct tensor_table *table, const char *out, enum dtype dtype, bool force,
                        struct error *err)
{
    ASSERT(checkpoint->adapter && table->adapted);
    TRY(checkpoint_check_table(checkpoint, table, err));
    OWNED struct hf_tensor *entries = memory_zeroed((size_t)table->num_tensors + 1, sizeof *entries);
    int count = 0;
    for (int i = 0; i < table->num_tensors; i++) { /* the trained tensors; a tied matrix a second time as the head */
        const struct tensor_info *tensor = &table->tensors[i];
        int64_t shape[2];
        if (tensor->frozen) continue;
        struct hf_tensor *entry = &entries[count++];
        *entry = hf_tensor_of(PEFT_PREFIX, tensor, dtype);
        peft_shape(tensor, shape);
        entry->rows = tensor->part == PART_BASE ? 0 : shape[0];
        if (desc->tied && tensor->role == ROLE_WTE && tensor->part == PART_BASE) {
            entries[count] = *entry;
            strcpy(entries[count++].name, PEFT_HEAD);
        }
    }
    const struct hf_folder folder = {.checkpoint = checkpoint,
                                     .table = table,
                                     .out = out,
                                     .stem = PEFT_WEIGHTS,
                                     .max_bytes = INT64_MAX,
                                     .force = force,
                                     .tensors = entries,
                                     .count = count,
                                     .write = export_peft_tensor};
    return hf_write_folder(&folder, ADAPTER_CONFIG_FILE, json_deep_copy(checkpoint->adapter), err);
}
