/* SPDX-License-Identifier: Apache-2.0 */
/* hf_import.c: reads weights from a Hugging Face folder. First the tensors in the headers of all files are matched with
 * the table, so that a missing, extra or misshapen one is named before a byte of the weights is read. Then the slice of
 * every unit is filled from the byte ranges it covers:
 *
 *     unit's flat range   | tensor A ........ | tensor B ..... |gap| tensor C ...... |
 *     this rank's slice            [______________________________________]
 *     read                         [part of A | whole B        | 0 | part of C]
 *
 * A unit that is kept as bytes (stored_base.h) gets those of quantized matrices as the files have them; where values
 * are wanted, such a matrix is decoded.
 *
 * A tied model's file may have the shared matrix as the embedding, as the head, or as both, which must be equal then:
 * transformers would train them as an untied model. */
#include "ckpt/huggingface/hf_quantized.h"
#include "ckpt/huggingface/hf_write.h"

#include <fnmatch.h>

enum {
    COMPARED_BYTES = 256 << 10,
    MAX_INDEX_BYTES = 64 << 20,
    TENSOR_NAME_MAX = sizeof(((struct tensor_info *)0)->name),
    NAMES_SHOWN = 8 /* of tensors that are left out */
};

static const char LM_HEAD[] = "lm_head.weight";
static const char SINGLE_FILE[] = "model.safetensors", INDEX_FILE[] = "model.safetensors.index.json";

/* Weights as torch.save() writes them. */
static const char *const PICKLED[] = {"pytorch_model.bin", "pytorch_model.bin.index.json"};

struct huggingface_reader {
    const char *dir; /* NULL: no folder, and all values are initial ones */
    const struct model_desc *desc;
    const struct tensor_table *table;
    const struct string_list *ignore; /* patterns of tensors to leave out; may be NULL */
    uint64_t seed;                    /* of tensors that start fresh */
    json_t *by_name;                  /* name -> index in the table */
    struct hf_files files;
    struct hf_place *places;        /* (tensors) of the table */
    struct hf_quantized *quantized; /* (tensors) of the table; NULL: the folder is not quantized */
    void *decoded; /* bytes of the quantized tensor that was decoded last; of a stack an expert's values */
    int decoded_tensor;
    int64_t decoded_expert;
    struct hf_place tied_head; /* LM_HEAD of a tied model: the embedding, or the embedding again */
    json_t *weight_map;        /* of the index, or NULL */
    size_t seen;               /* tensors in the files, skipped ones included */
    int left_out;              /* tensors that is_left_out() */
    int ignored, extra;        /* tensors that a pattern leaves out; that are not part of the model */
    char ignored_names[1024];
    char extra_name[256], extra_path[FS_PATH_MAX]; /* of the first extra one */
    bool absent;                                   /* the folder has no weights of any kind */
    bool new_pooler;                               /* the files have no pooler, and need none */
    struct safetensors_header rest;                /* of a multimodal folder: what is not its text model */
    char (*names)[HF_NAME_MAX]; /* (tensors) those that a multimodal folder's text model has there; NULL: another one */
    float *compared;            /* (COMPARED_BYTES) of tied_head */
};

/* ---- which files --------------------------------------------------------- */

static enum status read_index(struct huggingface_reader *import, const char *path, struct error *err)
{
    json_auto_t *index = NULL;
    TRY(fs_read_json(path, MAX_INDEX_BYTES, 0, &index, err));
    import->weight_map = json_incref(json_object_get(index, "weight_map"));
    if (!json_is_object(import->weight_map) || json_object_size(import->weight_map) == 0)
        return error_set(err, STATUS_DATA, "%s: weight_map must be an object with tensor names", path);

    RELEASED(string_list_release) struct string_list names = {0};
    const char *tensor;
    json_t *value;
    json_object_foreach (import->weight_map, tensor, value) {
        const char *file = json_string_value(value);
        if (!file || !*file || strchr(file, '/') || file[0] == '.') /* only a name in this folder is allowed */
            return error_set(err, STATUS_DATA, "%s: weight_map: tensor '%.200s' must name a file in the folder", path,
                             tensor);
        string_list_add(&names, file);
    }
    string_list_sort(&names);
    for (int i = 0; i < names.count; i++)
        if (i == 0 || strcmp(names.items[i], names.items[i - 1]) != 0)
            string_list_add(&import->files.names, names.items[i]);
    return STATUS_OK;
}

/* transformers would put the adapter on top of its base model: whose weights are meant is not clear. */
static enum status refuse_adapter(const struct huggingface_reader *import, struct error *err)
{
    char path[FS_PATH_MAX];
    TRY(fs_join(path, import->dir, "adapter_config.json", STATUS_DATA, err));
    if (!fs_exists(path)) return STATUS_OK;
    error_set(err, STATUS_DATA, "'%s' holds a model and a LoRA adapter (adapter_config.json)", import->dir);
    return error_hint(err, "model.adapter starts from an adapter in a folder of its own; remove adapter_config.json if "
                           "the model is the merged one");
}

static enum status find_files(struct huggingface_reader *import, struct error *err)
{
    char path[FS_PATH_MAX];
    TRY(fs_join(path, import->dir, SINGLE_FILE, STATUS_DATA, err));
    if (fs_exists(path)) {
        string_list_add(&import->files.names, SINGLE_FILE);
        return STATUS_OK;
    }
    TRY(fs_join(path, import->dir, INDEX_FILE, STATUS_DATA, err));
    if (fs_exists(path)) return read_index(import, path, err);
    const char *pickled = NULL;
    for (size_t i = 0; i < COUNT_OF(PICKLED) && !pickled; i++) {
        TRY(fs_join(path, import->dir, PICKLED[i], STATUS_DATA, err));
        pickled = fs_exists(path) ? PICKLED[i] : NULL;
    }
    TRY(fs_join(path, import->dir, "adapter_model.safetensors", STATUS_DATA, err));
    bool adapter = fs_exists(path);
    import->absent = !pickled && !adapter;
    error_set(err, STATUS_DATA, "no weights in '%s': neither %s nor %s", import->dir, SINGLE_FILE, INDEX_FILE);
    if (adapter)
        return error_hint(err, "adapter_model.safetensors is a LoRA adapter: model.adapter takes its folder, and "
                               "model.pretrained that of its base model");
    if (!pickled)
        return error_hint(err, "expected a Hugging Face folder with config.json and safetensors; hf download NAME "
                               "completes a model of the local cache");
    const char *class = import->desc->num_labels > 0 && !import->desc->new_head ? "ForSequenceClassification"
                        : import->desc->family == FAMILY_BERT                   ? ""
                                                                                : "ForCausalLM";
    return error_hint(
        err,
        "%s is not read; python3 -c 'from transformers import AutoModel%s as M; "
        "M.from_pretrained(\"%s\", dtype=\"auto\").save_pretrained(\"NEW\")' writes NEW with safetensors (copy "
        "the tokenizer's files there)",
        pickled, class, PRINTABLE(import->dir));
}

/* ---- which tensors ------------------------------------------------------- */

static const struct tensor_info *find_name(const struct huggingface_reader *import, const char *name)
{
    const json_t *index = json_object_get(import->by_name, name);
    return index ? &import->table->tensors[json_integer_value(index)] : NULL;
}

/* The number of the layer in a name; -1: it has none. *rest: what follows the number. */
static int64_t layer_of_name(const char *name, const char **rest)
{
    const char *layer = strstr(name, "layers.");
    char *end = NULL;
    const int64_t number = layer ? strtoll(layer + strlen("layers."), &end, 10) : -1;
    *rest = end;
    return number;
}

/* A tensor of keys or values in a layer that reads those of a layer before: transformers leaves it out. */
static bool shares_keys(const struct model_desc *desc, const char *name)
{
    static const char *const parts[] = {"k_proj.", "v_proj.", "k_norm.", "v_norm."};
    const char *end;
    const int64_t i = layer_of_name(name, &end);
    if (i < 0 || i >= desc->num_layers || desc->layers[i].kv_source == i || strncmp(end, ".self_attn.", 11) != 0)
        return false;
    for (size_t p = 0; p < COUNT_OF(parts); p++)
        if (strncmp(end + 11, parts[p], strlen(parts[p])) == 0) return true;
    return false;
}

static bool is_skipped_by_import(const struct model_desc *desc, const char *name)
{
    if (desc->family == FAMILY_BERT && fs_has_suffix(name, "embeddings.position_ids")) return true;
    static const char *const masks[] = {".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias"};
    const bool old = desc->family == FAMILY_GPT2 || desc->family == FAMILY_GPTJ || desc->family == FAMILY_GPT_NEOX;
    for (size_t i = 0; old && i < COUNT_OF(masks); i++)
        if (fs_has_suffix(name, masks[i])) return true;
    if (shares_keys(desc, name)) return true;
    if (desc->family == FAMILY_QWEN3_5 && strncmp(name, "mtp.", 4) == 0) /* to predict further tokens */
        return true;
    if (desc->num_labels > 0 && desc->new_head && strncmp(name, "lm_head.", 8) == 0) /* a classifier has another head */
        return true;
    return fs_has_suffix(name, "rotary_emb.inv_freq");
}

/* A tensor that transformers leaves out: a head of BERT's pretraining, or of GLM-4.5's layer that predicts further
 * tokens. */
static bool is_left_out(const struct model_desc *desc, const char *name)
{
    const char *rest;
    return (desc->family == FAMILY_BERT && desc->new_head && strncmp(name, "cls.", 4) == 0) ||
           (desc->family == FAMILY_GLM4_MOE && layer_of_name(name, &rest) == desc->num_layers);
}

/* An adapter's tensor, the head of a new classifier, or the pooler, which a folder of BertForMaskedLM lacks. */
static bool starts_fresh(const struct huggingface_reader *import, const struct tensor_info *tensor)
{
    const bool pooler = tensor->role == ROLE_POOLER_W || tensor->role == ROLE_POOLER_B;
    const bool head = tensor->role == ROLE_SCORE_W || tensor->role == ROLE_SCORE_B;
    return !import->dir || tensor->part != PART_BASE ||
           (import->desc->new_head && (head || (pooler && import->new_pooler)));
}

/* Whether the model can do without the files' values: a layer's scalar is 1 then. */
static bool may_be_missing(const struct huggingface_reader *import, const struct tensor_info *tensor)
{
    return starts_fresh(import, tensor) || tensor->role == ROLE_LAYER_SCALAR;
}

/* A name's new ending in place of an old one; false: it has another ending, or is too long. */
static bool exchange_hf_name_end(const char *name, const char *old, const char *new, char out[TENSOR_NAME_MAX])
{
    int kept = (int)(strlen(name) - strlen(old));
    return fs_has_suffix(name, old) && snprintf(out, TENSOR_NAME_MAX, "%.*s%s", kept, name, new) < TENSOR_NAME_MAX;
}

static const struct {
    enum model_family family;
    const char *other, *own;
} OTHER_NAMES[] = {
    {FAMILY_BERT, "LayerNorm.gamma", "LayerNorm.weight"},
    {FAMILY_BERT, "LayerNorm.beta", "LayerNorm.bias"},
    {FAMILY_MIXTRAL, ".mlp.gate.weight", ".block_sparse_moe.gate.weight"},
    {FAMILY_GRANITE_MOE, ".router.weight", ".router.layer.weight"},
    {FAMILY_GRANITE_MOE, ".experts.gate_up_proj", ".input_linear.weight"},
    {FAMILY_GRANITE_MOE, ".experts.down_proj", ".output_linear.weight"},
};

/* The table's tensor for a name in a file: GPT-2's hub files, and those of a model without its head (LlamaModel,
 * BertModel), lack the prefix; old files of BERT have other names in its norms, and so do files of experts with the
 * names that transformers 5 has in memory. */
static const struct tensor_info *find_tensor(const struct huggingface_reader *import, const char *name)
{
    char current[TENSOR_NAME_MAX], prefixed[TENSOR_NAME_MAX];
    const struct tensor_info *tensor = find_name(import, name);
    for (size_t i = 0; i < COUNT_OF(OTHER_NAMES) && !tensor; i++)
        if (import->desc->family == OTHER_NAMES[i].family &&
            exchange_hf_name_end(name, OTHER_NAMES[i].other, OTHER_NAMES[i].own, current)) {
            name = current;
            tensor = find_name(import, name);
        }
    if (tensor) return tensor;
    char prefix[32];
    tensor_base_prefix(import->desc->family, prefix, sizeof prefix);
    int n = snprintf(prefixed, sizeof prefixed, "%s.%s", prefix, name);
    return n < (int)sizeof prefixed ? find_name(import, prefixed) : NULL;
}

static bool is_ignored(const struct huggingface_reader *import, const char *name)
{
    for (int i = 0; import->ignore && i < import->ignore->count; i++)
        if (fnmatch(import->ignore->items[i], name, 0) == 0) return true;
    return false;
}

/* *matched: the entry is a part of a quantized matrix, which counts as found with its codes. */
static enum status match_quantized(struct huggingface_reader *import, const char *path,
                                   const struct safetensors_entry *entry, bool *matched, struct error *err)
{
    char matrix[HF_MATRIX_NAME_MAX];
    enum hf_part part;
    const struct tensor_info *tensor = NULL;
    *matched = false;
    if (!import->quantized || !hf_quantized_part(import->desc->quantization.method, entry, matrix, &part))
        return STATUS_OK;
    tensor = find_tensor(import, matrix);
    const bool decoded = import->desc->quantization.decoded;
    if (!tensor || tensor->part != PART_BASE || tensor->ndim != (decoded ? 3 : 2)) return STATUS_OK;
    const ptrdiff_t index = tensor - import->table->tensors;
    *matched = true;
    if (part == HF_CODES) {
        import->places[index] = entry->place;
        import->places[index].dtype = import->desc->has_torch_dtype ? import->desc->torch_dtype
                                      : decoded                     ? DTYPE_BF16
                                                                    : DTYPE_F32;
    }
    struct hf_place *place = &import->quantized[index].parts[part];
    if (place->found) return error_set(err, STATUS_DATA, "%s: tensor '%s' occurs twice", path, entry->name);
    *place = entry->place;
    return STATUS_OK;
}

/* *matched: the entry is the gate and up, or down, of all of a layer's experts, as transformers 5 has them in memory.
 */
static enum status match_stack(struct huggingface_reader *import, const char *path, const char *name,
                               const struct safetensors_entry *entry, bool *matched, struct error *err)
{
    const struct experts_desc *experts = &import->desc->experts;
    const int64_t C = import->desc->hidden_size, I = experts->inner_size;
    const char *rest;
    const int64_t layer = layer_of_name(name, &rest);
    if (layer < 0 || layer >= import->desc->num_layers || !import->desc->layers[layer].sparse || experts->fused)
        return STATUS_OK;
    const bool down = strcmp(rest, ".mlp.experts.down_proj") == 0;
    *matched = down || strcmp(rest, ".mlp.experts.gate_up_proj") == 0;
    if (!*matched) return STATUS_OK;
    const int64_t shape[] = {experts->count, down ? C : 2 * I, down ? I : C}, parts = experts->count * (down ? 1 : 2);
    TRY(safetensors_expect(entry, path, 3, shape, ", but config.json asks for", err));
    const struct tensor_info *first =
        tensor_find(import->table, 1 + (int)layer, down ? ROLE_EXPERT_DOWN_W : ROLE_EXPERT_GATE_W);
    for (int64_t i = 0; i < parts; i++) {
        struct hf_place *place = &import->places[first + i - import->table->tensors];
        if (place->found) return error_set(err, STATUS_DATA, "%s: tensor '%s' occurs twice", path, first[i].name);
        *place = entry->place;
        place->bytes /= parts;
        place->begin += i * place->bytes;
    }
    return STATUS_OK;
}

static enum status match_entry(struct huggingface_reader *import, const char *path,
                               const struct safetensors_entry *entry, struct error *err)
{
    if (import->weight_map) {
        const char *expected = json_string_value(json_object_get(import->weight_map, entry->name));
        if (!expected)
            return error_set(err, STATUS_DATA, "%s: tensor '%.200s' is not in %s", path, entry->name, INDEX_FILE);
        if (strcmp(expected, import->files.names.items[entry->place.file]) != 0)
            return error_set(err, STATUS_DATA, "%s: tensor '%.200s' should be in '%.200s' according to %s", path,
                             entry->name, expected, INDEX_FILE);
    }
    if (is_ignored(import, entry->name)) {
        const size_t used = strlen(import->ignored_names);
        if (import->ignored++ < NAMES_SHOWN)
            snprintf(import->ignored_names + used, sizeof import->ignored_names - used, "%s%.100s", used ? ", " : "",
                     entry->name);
        return STATUS_OK;
    }
    char text_name[TENSOR_NAME_MAX];
    const char *name = import->names ? model_multimodal_name(entry->name, text_name, sizeof text_name) : entry->name;
    if (import->desc->family == FAMILY_GPT_NEOX && strcmp(name, HF_NEOX_HEAD) == 0) name = LM_HEAD;
    if (import->names && !model_multimodal_is_text(name)) return hf_rest_add(&import->rest, path, entry, err);
    if (is_skipped_by_import(import->desc, name)) return STATUS_OK;
    if (is_left_out(import->desc, name)) {
        import->left_out++;
        return STATUS_OK;
    }
    bool matched, tied_head = import->desc->tied && strcmp(name, LM_HEAD) == 0;
    TRY(match_quantized(import, path, entry, &matched, err));
    if (!matched) TRY(match_stack(import, path, name, entry, &matched, err));
    if (matched) return STATUS_OK;
    const struct tensor_info *tensor = tied_head ? tensor_find(import->table, 0, ROLE_WTE) : find_tensor(import, name);
    if (!tensor || starts_fresh(import, tensor)) {
        if (!import->extra++) {
            snprintf(import->extra_name, sizeof import->extra_name, "%s", entry->name);
            snprintf(import->extra_path, sizeof import->extra_path, "%s", path);
        }
        return STATUS_OK;
    }
    TRY(safetensors_expect(entry, path, tensor->ndim, tensor->shape, ", but config.json asks for", err));
    struct hf_place *place = tied_head ? &import->tied_head : &import->places[tensor - import->table->tensors];
    if (place->found)
        return error_set(err, STATUS_DATA, "%s: tensor '%s' occurs twice (also in '%s')", path, entry->name,
                         import->files.names.items[place->file]);
    *place = entry->place;
    if (import->names && !tied_head)
        snprintf(import->names[tensor - import->table->tensors], HF_NAME_MAX, "%s", entry->name);
    return STATUS_OK;
}

static enum status resolve_pooler(struct huggingface_reader *import, struct error *err)
{
    const int head = tensor_table_head(import->table);
    const struct tensor_info *pooler[] = {tensor_find(import->table, head, ROLE_POOLER_W),
                                          tensor_find(import->table, head, ROLE_POOLER_B)};
    import->new_pooler = import->desc->new_head && import->desc->pooler;
    for (size_t i = 0; import->new_pooler && i < COUNT_OF(pooler); i++)
        import->new_pooler = !import->places[pooler[i] - import->table->tensors].found;
    if (!import->new_pooler || !pooler[0]->frozen) return STATUS_OK;
    error_set(err, STATUS_DATA, "'%s' has no pooler, and a random one would be frozen", import->dir);
    return error_hint(err, "peft.modules_to_save: [pooler] trains it with the adapter");
}

static void tell_differences(const struct huggingface_reader *import)
{
    if (import->left_out)
        log_info("model: left out %s in '%s': %d tensor%s%s",
                 import->desc->family == FAMILY_BERT ? "the heads of pretraining" : "the layer for further tokens",
                 import->dir, import->left_out, PLURAL(import->left_out),
                 import->desc->family == FAMILY_BERT ? ", cls.…" : "");
    if (import->new_pooler)
        log_info("model: '%s' has no pooler: 'bert.pooler' starts from random values (run.seed)", import->dir);
    if (import->ignored)
        log_info("model: model.ignore_tensors leaves out %d tensor%s of '%s': %s%s", import->ignored,
                 PLURAL(import->ignored), import->dir, import->ignored_names,
                 import->ignored > NAMES_SHOWN ? ", …" : "");
    int64_t rest_bytes = 0;
    for (int i = 0; i < import->rest.count; i++) rest_bytes += import->rest.entries[i].place.bytes;
    if (import->names)
        log_info(
            "model: '%s' is multimodal: its text model is trained; %d other tensors (%s) are not, and exports take "
            "them from there",
            import->dir, import->rest.count, SIZE(round, rest_bytes));
    for (int i = 0; !import->ignored && import->ignore && i < import->ignore->count; i++)
        log_info("model: model.ignore_tensors: no tensor of '%s' matches '%s'", import->dir, import->ignore->items[i]);
}

/* A pattern that matches an extra tensor and those like it: its whole layer if the model lacks that layer, else the
 * same tensor in every layer. A tensor outside the layers is matched with its siblings. */
static void suggest_pattern(const struct huggingface_reader *import, char *pattern, size_t size)
{
    const char *name = import->extra_name;
    for (const char *part = name; part; part = strchr(part, '.') ? strchr(part, '.') + 1 : NULL) {
        const size_t digits = strspn(part, "0123456789");
        const int before = (int)(part - name);
        if (!digits || part[digits] != '.') continue;
        if (strtoll(part, NULL, 10) >= import->desc->num_layers)
            snprintf(pattern, size, "%.*s.*", before + (int)digits, name);
        else
            snprintf(pattern, size, "%.*s*%s", before, name, part + digits);
        return;
    }
    const char *last = strrchr(name, '.');
    snprintf(pattern, size, "%.*s%s", (int)(last ? last - name : (long)strlen(name)), name, last ? ".*" : "");
}

static enum status check_complete(const struct huggingface_reader *import, struct error *err)
{
    const struct tensor_info *first = NULL;
    int missing = 0;
    if (import->extra) {
        char pattern[sizeof import->extra_name + 8], more[48] = "";
        if (import->extra > 1) snprintf(more, sizeof more, " (the first of %d)", import->extra);
        suggest_pattern(import, pattern, sizeof pattern);
        error_set(err, STATUS_DATA, "%s: tensor '%s' is not part of this model%s", import->extra_path,
                  import->extra_name, more);
        return error_hint(err,
                          "config.json must be that of the weights (model_type %s, %" PRId64
                          " layers); model.ignore_tensors: ['%s'] in a run spec leaves tensors out",
                          model_family_name(import->desc->family), import->desc->num_layers, pattern);
    }
    for (int i = 0; i < import->table->num_tensors; i++) {
        if (!import->places[i].found && !may_be_missing(import, &import->table->tensors[i])) {
            first = first ? first : &import->table->tensors[i];
            missing++;
        }
    }
    /* each tensor seen is in the index once, so equal counts mean that every tensor of the index was seen */
    if (!missing && import->weight_map && import->seen != json_object_size(import->weight_map))
        return error_set(err, STATUS_DATA, "'%s': %s names %zu tensors, its files hold %zu", import->dir, INDEX_FILE,
                         json_object_size(import->weight_map), import->seen);
    if (!missing) return STATUS_OK;
    error_set(err, STATUS_DATA, "'%s': tensor '%s' is missing", import->dir, first->name);
    if (is_ignored(import, first->name))
        return error_hint(err, "model.ignore_tensors leaves it out; the model cannot do without it");
    if (missing > 1)
        return error_hint(err, "%d tensors in all are missing; are all files of the model there?", missing);
    if (first->role == ROLE_LM_HEAD)
        return error_hint(err, "config.json does not tie the head to the embedding (tie_word_embeddings); a model that "
                               "was saved without its head (LlamaModel) has none to start from");
    return error_hint(err, "is the file complete?");
}

/* ---- quantized folders --------------------------------------------------- */

static bool import_is_quantized(const struct huggingface_reader *import, int tensor)
{
    return import->quantized && import->quantized[tensor].parts[HF_CODES].found;
}

static enum status import_part(void *context, int tensor, enum stored_part part, void *out, struct error *err)
{
    struct huggingface_reader *import = context;
    return hf_quantized_read(&import->quantized[tensor], &import->table->tensors[tensor], part, &import->files, out,
                             err);
}

/* Elements of a quantized matrix of `source`; its bytes are kept for the next ones. */
static enum status import_decode(struct huggingface_reader *import, int tensor, const struct stored_tensor *stored,
                                 const struct stored_source *source, int64_t first, int64_t count, float *out,
                                 struct error *err)
{
    const struct tensor_info *info = &import->table->tensors[tensor];
    if (import->decoded_tensor != tensor) {
        import->decoded_tensor = -1;
        free(import->decoded);
        import->decoded = memory_alloc((size_t)stored->begin[STORED_PARTS]);
        TRY(stored_tensor_read(info, stored, tensor, source, import->decoded, err));
        import->decoded_tensor = tensor;
    }
    stored_values(info, stored, import->decoded, first, count, out);
    return STATUS_OK;
}

/* Elements of a stack of quantized matrices; an expert's values are kept for the next ones. */
static enum status import_stack(struct huggingface_reader *import, int tensor, int64_t first, int64_t count, float *out,
                                struct error *err)
{
    const struct tensor_info *info = &import->table->tensors[tensor];
    const int64_t size = info->numel / info->shape[0];
    for (int64_t at = first, n; at < first + count; at += n) {
        const int64_t expert = at / size;
        n = min64((expert + 1) * size, first + count) - at;
        if (import->decoded_tensor != tensor || import->decoded_expert != expert) {
            import->decoded_tensor = -1;
            import->decoded = memory_resize(import->decoded, (size_t)size * sizeof *out);
            TRY(hf_quantized_expert(&import->quantized[tensor], info, expert, &import->files, import->decoded, err));
            import->decoded_tensor = tensor;
            import->decoded_expert = expert;
            heartbeat_beat();
        }
        memcpy(out + (at - first), (const float *)import->decoded + (at - expert * size), (size_t)n * sizeof *out);
    }
    return STATUS_OK;
}

static enum status import_values(void *context, int tensor, int64_t first, int64_t count, float *out, struct error *err)
{
    struct huggingface_reader *import = context;
    const struct tensor_info *info = &import->table->tensors[tensor];
    if (starts_fresh(import, info) || (!import->places[tensor].found && may_be_missing(import, info))) {
        enum { PIECE = 1 << 16 };
#pragma omp parallel for schedule(dynamic)
        for (int64_t at = 0; at < count; at += PIECE) {
            tensor_init_range(import->table, tensor, import->seed, first + at, min64(count - at, PIECE), out + at);
            heartbeat_beat();
        }
        return STATUS_OK;
    }
    const struct hf_place *place = &import->places[tensor];
    if (import_is_quantized(import, tensor) && info->ndim == 3)
        return import_stack(import, tensor, first, count, out, err);
    if (import_is_quantized(import, tensor)) {
        const struct stored_source codes = {.context = import, .part = import_part};
        return import_decode(import, tensor, &import->quantized[tensor].stored, &codes, first, count, out, err);
    }
    TRY(hf_files_values(&import->files, place, first, count, out, err));
    const int64_t i = huggingface_not_finite(out, count);
    if (i < count) {
        error_set(err, STATUS_DATA, "'%s' at byte %lld: tensor '%s' holds %s", import->files.path,
                  (long long)(place->begin + (first + i) * (int64_t)dtype_size(place->dtype)), info->name,
                  isnan(out[i]) ? "NaN" : "an infinity");
        return error_hint(err, "the file is damaged, or its training had diverged; take an earlier copy");
    }
    if (info->role != ROLE_WTE || !import->tied_head.found) return STATUS_OK;
    for (int64_t done = 0, n; done < count; done += n) { /* the tied head has the same values */
        n = min64(count - done, COMPARED_BYTES / 4);
        TRY(hf_files_values(&import->files, &import->tied_head, first + done, n, import->compared, err));
        if (memcmp(import->compared, out + done, (size_t)n * sizeof *out) == 0) continue;
        error_set(err, STATUS_DATA, "'%s': tensor '%s' differs from '%s', but config.json ties them", import->dir,
                  LM_HEAD, info->name);
        return error_hint(err, "tie_word_embeddings: false in config.json trains both, as transformers would");
    }
    return STATUS_OK;
}

/* What the run computes with: a matrix that it quantizes is decoded. */
static enum status import_used_values(void *context, int tensor, int64_t first, int64_t count, float *out,
                                      struct error *err)
{
    struct huggingface_reader *import = context;
    const struct tensor_table *table = import->table;
    const bool stored = table->units[table->tensors[tensor].unit].stored_bytes && table->stored[tensor].quantized;
    const struct stored_source values = {.context = import, .values = import_values};
    if (stored && !import->quantized)
        return import_decode(import, tensor, &table->stored[tensor], &values, first, count, out, err);
    return import_values(import, tensor, first, count, out, err);
}

/* ---- the whole import ---------------------------------------------------- */

static void import_end(struct huggingface_reader *import)
{
    hf_files_release(&import->files);
    json_decref(import->weight_map);
    json_decref(import->by_name);
    safetensors_header_release(&import->rest);
    free(import->names);
    free(import->compared);
    free(import->places);
    free(import->quantized);
    free(import->decoded);
}

/* Reads the headers and matches their tensors with the table; rank 0 tells the differences. */
static enum status import_begin(struct huggingface_reader *import, const struct huggingface_source *source, int rank,
                                struct error *err)
{
    const struct tensor_table *table = source->table;
    const size_t tensors = (size_t)table->num_tensors;
    *import = (struct huggingface_reader){.dir = source->dir,
                                          .desc = source->desc,
                                          .table = table,
                                          .ignore = source->ignore,
                                          .files.dir = source->dir,
                                          .decoded_tensor = -1};
    if (!source->dir) return STATUS_OK;
    import->by_name = json_object();
    import->places = memory_zeroed(tensors, sizeof *import->places);
    if (source->desc->quantization.method != QUANTIZATION_NONE)
        import->quantized = memory_zeroed(tensors, sizeof *import->quantized);
    if (source->desc->multimodal) import->names = memory_zeroed(tensors, sizeof *import->names);
    import->compared = memory_alloc(COMPARED_BYTES);
    for (size_t i = 0; i < tensors; i++)
        json_object_set_new(import->by_name, table->tensors[i].name, json_integer((json_int_t)i));
    TRY(find_files(import, err));
    TRY(refuse_adapter(import, err));
    for (int file = 0; file < import->files.names.count; file++) {
        char path[FS_PATH_MAX];
        RELEASED(safetensors_header_release) struct safetensors_header header = {0};
        TRY(fs_join(path, import->dir, import->files.names.items[file], STATUS_DATA, err));
        TRY(safetensors_read_header(path, &header, err));
        import->seen += (size_t)header.count;
        for (int i = 0; i < header.count; i++) {
            header.entries[i].place.file = file;
            TRY(match_entry(import, path, &header.entries[i], err));
        }
    }
    struct hf_place *embedding = &import->places[tensor_find(table, 0, ROLE_WTE) - table->tensors];
    if (!embedding->found) {
        *embedding = import->tied_head;
        import->tied_head.found = false;
    }
    TRY(resolve_pooler(import, err));
    if (rank == 0 && !source->quiet) tell_differences(import);
    TRY(check_complete(import, err));
    for (int t = 0; import->quantized && t < table->num_tensors; t++) {
        if (import_is_quantized(import, t)) {
            TRY(hf_quantized_open(&import->quantized[t], import->desc, &table->tensors[t], &import->files, err));
        } else if (table->stored && table->stored[t].quantized) {
            error_set(err, STATUS_DATA, "'%s': tensor '%s' is not quantized", import->dir, table->tensors[t].name);
            return error_hint(err, "config.json's quantization_config must name it among the modules that are not");
        }
    }
    return STATUS_OK;
}

enum status huggingface_check(const struct huggingface_source *source, bool *absent, struct error *err)
{
    RELEASED(import_end) struct huggingface_reader reader = {0};
    const enum status status = import_begin(&reader, source, 0, err);
    *absent = reader.absent;
    return status;
}

enum status huggingface_open(const struct huggingface_source *source, int rank, uint64_t seed,
                             struct huggingface_reader **out, struct error *err)
{
    RELEASED(huggingface_drop) struct huggingface_reader *reader = memory_zeroed(1, sizeof *reader);
    TRY(import_begin(reader, source, rank, err));
    reader->seed = seed;
    *out = TAKEN(reader);
    return STATUS_OK;
}

enum dtype huggingface_dtype(const struct huggingface_reader *reader, int tensor)
{
    const struct tensor_info *embedding = tensor_find(reader->table, 0, ROLE_WTE);
    if (!reader->dir) return DTYPE_F32;
    if (!reader->places[tensor].found) /* it starts fresh */
        tensor = (int)(embedding - reader->table->tensors);
    return reader->places[tensor].dtype;
}

enum status huggingface_values(struct huggingface_reader *reader, int unit, int64_t begin, int64_t count, float *out,
                               struct error *err)
{
    return hf_unit_values(reader->table, unit, begin, count, import_used_values, reader, out, err);
}

enum status huggingface_read(struct huggingface_reader *reader, int unit, int64_t begin, int64_t count, float *out,
                             struct error *err)
{
    const struct stored_source source = {reader, import_values, reader->quantized ? import_part : NULL};
    const int64_t word = reader->table->word;
    if (reader->table->units[unit].stored_bytes)
        return stored_unit_read(reader->table, unit, &source, begin * word, count * word, out, err);
    return huggingface_values(reader, unit, begin, count, out, err);
}

enum status huggingface_rest_hash(struct huggingface_reader *reader, uint64_t *hash, struct error *err)
{
    return hf_rest_hash(&reader->rest, &reader->files, hash, err);
}

void hf_folder_complete(struct hf_folder *folder, struct huggingface_reader *reader)
{
    const struct safetensors_header *rest = &reader->rest;
    for (int i = 0; i < folder->count && reader->names; i++) {
        struct hf_tensor *entry = &folder->tensors[i];
        const char *name = reader->names[entry->tensor - folder->table->tensors];
        if (*name && !entry->head) snprintf(entry->name, sizeof entry->name, "%s", name);
    }
    folder->tensors = memory_resize(folder->tensors, (size_t)(folder->count + rest->count) * sizeof *folder->tensors);
    for (int i = 0; i < rest->count; i++) {
        struct hf_tensor *entry = &folder->tensors[folder->count++];
        *entry = (struct hf_tensor){.rest = &rest->entries[i]};
        snprintf(entry->name, sizeof entry->name, "%s", rest->entries[i].name);
    }
    folder->rest = &reader->files;
}

void huggingface_close(struct huggingface_reader *reader)
{
    if (reader) import_end(reader);
    free(reader);
}

enum status huggingface_load(const struct huggingface_source *source, const struct shard_layout *layout, int rank,
                             uint64_t seed, struct state_slices slices, struct error *err)
{
    const int num_units = source->trained_only ? layout->num_trained : layout->num_units;
    ASSERT(layout->num_units == source->table->num_units && rank >= 0 && rank < layout->world);
    RELEASED(huggingface_drop) struct huggingface_reader *reader = NULL;
    TRY(huggingface_open(source, rank, seed, &reader, err));
    for (int unit = 0; unit < num_units; unit++) {
        float *own;
        TRY(state_slice(slices, SLICE_WRITE, STATE_MASTER, unit, &own, err));
        TRY(huggingface_read(reader, unit, rank * layout->slice[unit], layout->slice[unit], own, err));
    }
    return STATUS_OK;
}
