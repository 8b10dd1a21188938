/* SPDX-License-Identifier: Apache-2.0 */
/* adapter_config.c: reads PEFT's adapter_config.json by the rows of `peft` in the key table, and writes it. */
#include "core/spec/adapter_config.h"

#include "core/model/adapter.h"
#include "core/spec/spec_keys.h"

#define UNMERGED "PROMPT_TUNING MULTITASK_PROMPT_TUNING P_TUNING PREFIX_TUNING ADAPTION_PROMPT CPT CARTRIDGE POLY"

/* ---- reading ------------------------------------------------------------- */

/* Whether a key without a field leaves plain LoRA on the base's own weights, whatever A and B started as. */
static bool is_plain_lora(const struct spec_key *row, const char *key, const json_t *value)
{
    if (strcmp(key, "init_lora_weights") == 0 && json_is_string(value))
        return spec_has_word("gaussian orthogonal eva", json_string_value(value)); /* they leave the base as it is */
    const bool empty =
        (json_is_array(value) || json_is_object(value)) && json_array_size(value) + json_object_size(value) == 0;
    if (json_is_null(value) || json_is_false(value) || empty || strcmp(key, "eva_config") == 0 ||
        (row && row->verdict == VERDICT_NOTICE))
        return true;
    return row && spec_key_is_default(row, value);
}

/* One key of the file. Its mistakes go to ctx; the status and err are of those that ztrain lacks. */
static enum status read_config_key(struct spec_context *ctx, struct spec_full *full, const struct spec_node *node,
                                   const json_t *value, struct error *err)
{
    const struct spec_key *row = spec_key_find(spec_arena_printf(ctx->arena, "peft.%s", node->key));
    if (!row || row->verdict != VERDICT_USED || row->offset == offsetof(struct spec_full, spec.adapter.base_dtype)) {
        if (is_plain_lora(row, node->key, value)) return STATUS_OK;
        OWNED char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
        return error_set(err, STATUS_USAGE,
                         "'%s' is %.200s, and ztrain has LoRA and rsLoRA only; hint: merge the adapter with PEFT "
                         "(merge_and_unload), and train on the merged folder",
                         node->key, text);
    }
    const bool names_none = row->type == KEY_MODULES && node->kind == NODE_LIST && !node->count;
    if (node->kind == NODE_NULL || names_none || row->offset == offsetof(struct spec_full, peft_task)) return STATUS_OK;
    struct spec_key named = *row;
    named.path = node->key; /* for messages */
    json_t *converted = spec_key_convert(ctx, &named, node);
    if (converted) spec_key_store(full, row, converted);
    return STATUS_OK;
}

static const char *config_text(struct spec_context *ctx, struct spec_full *full, const struct spec_node *root,
                               const char *key)
{
    const struct spec_node *node = spec_child(root, key);
    if (!node || node->kind == NODE_NULL) return NULL;
    if (node->kind == NODE_STRING) return spec_arena_text(&full->arena, node->text);
    return spec_error(ctx, node->pos, "'%s' must be text", key);
}

static enum status read_config(struct spec_context *ctx, const json_t *json, struct adapter_config *config,
                               struct error *err)
{
    struct spec_full *full = config->full;
    OWNED char *text = json_dumps(json, JSON_COMPACT);
    const struct spec_node *root = spec_parse_json(ctx, 0, text, strlen(text));
    const char *type = config_text(ctx, full, root, "peft_type");
    if (root && (!type || strcasecmp(type, "LORA") != 0))
        return error_set(err, STATUS_USAGE, "'peft_type' is %.100s, and ztrain has LORA only; hint: %s",
                         type ? type : "not set",
                         !type || spec_has_word(UNMERGED, type) ? "an adapter of peft_type LORA"
                                                                : "merge the adapter with PEFT (merge_and_unload)");
    for (const struct spec_key *key = spec_keys; key->path; key++)
        if (spec_adapter_has(key) && key->size) spec_key_store(full, key, spec_key_default(key));
    for (const struct spec_node *node = root ? root->first : NULL; node; node = node->next)
        TRY(read_config_key(ctx, full, node, json_object_get(json, node->key), err));
    config->base_model = config_text(ctx, full, root, "base_model_name_or_path");
    config->task_type = config_text(ctx, full, root, "task_type");
    full->spec.adapter.on = true;
    config->settings = full->spec.adapter;
    return ctx->errors.count ? error_set(err, STATUS_DATA, "%s", ctx->errors.items[0].text) : STATUS_OK;
}

enum status adapter_config_from_json(const json_t *json, const char *where, struct adapter_config *config,
                                     struct error *err)
{
    *config = (struct adapter_config){0};
    if (!json_is_object(json))
        return error_set(err, STATUS_DATA, "%s is not a mapping; hint: PEFT's save_pretrained() writes it", where);
    RELEASED(spec_arena_release) struct spec_arena scratch = {0};
    struct spec_context ctx = {.arena = &scratch, .sources = &where, .num_sources = 1};
    config->full = spec_full_new();
    if (read_config(&ctx, json, config, err) == STATUS_OK) return STATUS_OK;
    adapter_config_release(config);
    return error_prefix(err, "%s", where);
}

enum status adapter_config_load(const char *folder, struct adapter_config *config, struct error *err)
{
    char path[FS_PATH_MAX];
    json_auto_t *json = NULL;
    *config = (struct adapter_config){0};
    TRY(fs_join(path, folder, ADAPTER_CONFIG_FILE, STATUS_DATA, err));
    TRY(fs_read_json(path, SPEC_MAX_BYTES, 0, &json, err));
    return adapter_config_from_json(json, path, config, err);
}

void adapter_config_release(struct adapter_config *config)
{
    if (config->full) spec_free(&config->full->spec);
    *config = (struct adapter_config){0};
}

/* ---- writing ------------------------------------------------------------- */

static const char lora_suffix[] = ".lora_A.weight", lora_embedding_suffix[] = ".lora_embedding_A";

/* The module that a tensor is A of: the length of its name; 0: none. */
static size_t target_of(const struct tensor_info *tensor)
{
    const char *suffix = fs_has_suffix(tensor->name, lora_suffix) ? lora_suffix : lora_embedding_suffix;
    return tensor->part == PART_LORA_A ? strlen(tensor->name) - strlen(suffix) : 0;
}

static bool is_target_name(const struct tensor_table *table, const char *name, size_t length)
{
    for (int i = 0; i < table->num_tensors; i++)
        if (target_of(&table->tensors[i]) == length && strncmp(table->tensors[i].name, name, length) == 0) return true;
    return false;
}

/* Whether every module of this name is a target, also those that hold others. */
static bool leaf_is_enough(const struct tensor_table *table, const char *leaf, size_t length)
{
    for (int i = 0; i < table->num_tensors; i++) {
        const struct tensor_info *tensor = &table->tensors[i];
        for (const char *at = tensor->name, *dot; tensor->part == PART_BASE && (dot = strchr(at, '.')); at = dot + 1)
            if ((size_t)(dot - at) == length && strncmp(at, leaf, length) == 0 &&
                !is_target_name(table, tensor->name, (size_t)(dot - tensor->name)))
                return false;
    }
    return true;
}

/* Writes what target_parameters calls the base of an A. false: target_modules names it. */
static bool parameter_of(const struct model_desc *desc, const struct tensor_info *tensor, char *name, size_t size)
{
    const size_t length = target_of(tensor);
    if (!length || !adapter_is_parameter(desc, tensor)) return false;
    if (role_is_expert(tensor->role) || tensor->role == ROLE_ROUTER_W)
        adapter_parameter_name(desc, tensor, name, size);
    else
        snprintf(name, size, "%.*s.weight", (int)length, tensor->name);
    return true;
}

/* By what follows the block's number, if all that end so are targets. */
static json_t *list_written_parameters(const struct model_desc *desc, const struct tensor_table *table)
{
    json_auto_t *names = json_object();
    for (int i = 0; i < table->num_tensors; i++) {
        const struct tensor_info *tensor = &table->tensors[i];
        char name[sizeof tensor->name];
        int all = 0, targets = 0, last = -1;
        if (!parameter_of(desc, tensor, name, sizeof name)) continue;
        for (int k = 0; k < table->num_tensors; k++) {
            const struct tensor_info *other = &table->tensors[k];
            if (other->role != tensor->role) continue;
            targets += other->part == PART_LORA_A;
            all += other->part == PART_BASE && other->unit != last;
            last = other->part == PART_BASE ? other->unit : last;
        }
        const char *mlp = strstr(name, ".mlp."), *block = strstr(name, ".block_sparse_moe.");
        const char *end = mlp ? mlp : block;
        json_object_set_new(names, targets == all && end ? end + 1 : name, json_null());
    }
    json_t *list = json_object_size(names) ? json_array() : json_null();
    const char *key;
    json_t *value;
    json_object_foreach (names, key, value) {
        json_array_append_new(list, json_string(key));
    }
    return list;
}

/* Of a multimodal model by whole names, because other parts of it have modules with such ends too. */
static json_t *list_written_targets(const struct model_desc *desc, const struct tensor_table *table)
{
    const bool whole = desc->multimodal;
    json_t *list = json_array();
    json_auto_t *leaves = json_object(); /* of each leaf, whether it is enough */
    for (int i = 0; i < table->num_tensors; i++) {
        const char *name = table->tensors[i].name;
        const size_t length = target_of(&table->tensors[i]);
        size_t start = length;
        while (start > 0 && name[start - 1] != '.') start--;
        if (!length || adapter_is_parameter(desc, &table->tensors[i])) continue;
        OWNED char *leaf = memory_printf("%.*s", (int)(length - start), name + start);
        const json_t *enough = json_object_get(leaves, leaf);
        if (!enough) {
            json_object_set_new(leaves, leaf, json_boolean(!whole && leaf_is_enough(table, leaf, length - start)));
            if (json_is_true(json_object_get(leaves, leaf))) json_array_append_new(list, json_string(leaf));
        }
        if (json_is_false(json_object_get(leaves, leaf))) json_array_append_new(list, json_stringn(name, length));
    }
    return list;
}

static json_t *written_saved(const struct adapter_settings *settings, const struct model_desc *desc)
{
    static const char *const heads[] = {"classifier", "score"}; /* as PEFT does for SEQ_CLS */
    const struct string_list *given = &settings->modules_to_save;
    json_t *list = spec_list_json(given);
    for (size_t i = 0; i < COUNT_OF(heads) && desc->num_labels > 0; i++) {
        int k = 0;
        while (k < given->count && strcmp(given->items[k], heads[i]) != 0) k++;
        list = list ? list : json_array();
        if (k == given->count) json_array_append_new(list, json_string(heads[i]));
    }
    return list ? list : json_null();
}

json_t *adapter_config_to_json(const struct adapter_settings *settings, const struct model_desc *desc,
                               const struct tensor_table *table, const char *base_model)
{
    const double alpha = settings->lora_alpha;
    json_t *json =
        json_pack("{ss, ss?, ss, ss, sb, sb, sb, sI, sf, sb, so, so, so, so, so, s{}, ss, sb, sn, sn, sn, sn, sn}",
                  "peft_type", "LORA", "base_model_name_or_path", base_model, "bias", "none", "task_type",
                  desc->num_labels > 0 ? "SEQ_CLS" : "CAUSAL_LM", "fan_in_fan_out", desc->weights_in_out,
                  "inference_mode", true, "init_lora_weights", true, "r", (json_int_t)settings->r, "lora_dropout",
                  settings->lora_dropout, "use_rslora", settings->use_rslora, "lora_alpha", spec_number_json(alpha),
                  "target_modules", list_written_targets(desc, table), "modules_to_save", written_saved(settings, desc),
                  "rank_pattern", spec_adapter_patterns(settings->rank_pattern, settings->num_rank_patterns),
                  "alpha_pattern", spec_adapter_patterns(settings->alpha_pattern, settings->num_alpha_patterns),
                  "loftq_config", "megatron_core", "megatron.core", "use_dora", false, "auto_mapping", "layers_pattern",
                  "layers_to_transform", "megatron_config", "revision");
    ASSERT(json);
    json_auto_t *parameters = list_written_parameters(desc, table);
    if (json_is_array(parameters)) json_object_set(json, "target_parameters", parameters);
    if (adapter_doubles_gate_up(settings, desc, table)) { /* as PEFT writes it, after the patterns that were given */
        static const char gate_up[] = ".*\\.gate_up_proj";
        json_object_set_new(json_object_get(json, "rank_pattern"), gate_up, json_integer(2 * settings->r));
        json_object_set_new(json_object_get(json, "alpha_pattern"), gate_up, spec_number_json(2 * alpha));
    }
    if (settings->ensure_weight_tying) /* a new key, as are those that are left out */
        json_object_set_new(json, "ensure_weight_tying", json_true());
    return json;
}
