/* SPDX-License-Identifier: Apache-2.0 */
/* adapter_config.c: reads and writes PEFT's adapter_config.json. */
#include "core/model/adapter_config.h"

#include "core/fsutil.h"
#include "core/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_BYTES_MAX = 4 << 20 };
enum { RANK_MAX = 1 << 16 };
static const double ALPHA_MAX = 1e15;
static const char all_linear[] = "all-linear";

/* Keys of LoraConfig that other values than these would make another adapter, as JSON; and null stands for each. */
static const char *const PLAIN[][2] = {
    {"bias", "\"none\""},    {"lora_bias", "false"}, {"use_dora", "false"},
    {"use_qalora", "false"}, {"loftq_config", "{}"}, {"target_parameters", "[]"},
};

/* Keys without a meaning for an adapter that is trained already. */
static const char *const IDLE[] = {"auto_mapping",   "base_model_name_or_path", "eva_config",       "fan_in_fan_out",
                                   "inference_mode", "megatron_core",           "peft_version",     "qalora_group_size",
                                   "revision",       "runtime_config",          "init_lora_weights"};

/* Keys that have a field. */
static const char *const FIELDS[] = {
    "alpha_pattern", "ensure_weight_tying", "exclude_modules", "layers_pattern", "layers_to_transform",
    "lora_alpha",    "lora_dropout",        "modules_to_save", "peft_type",      "r",
    "rank_pattern",  "target_modules",      "task_type",       "use_rslora"};

struct config_input {
    const json_t *json;
    const char *where;
    struct error *err;
    enum status status; /* the first fault */
};

/* ---- reading ------------------------------------------------------------- */

static void config_fail(struct config_input *in, enum status code, const char *key, const char *expected)
{
    char *value = json_dumps(json_object_get(in->json, key), JSON_ENCODE_ANY | JSON_COMPACT);
    if (in->status == STATUS_OK)
        in->status = error_set(in->err, code, "%s: '%s' is %.200s, and %s", in->where, key, value, expected);
    free(value);
}

/* The value of a key; NULL: absent or null. */
static const json_t *config_get(const struct config_input *in, const char *key)
{
    const json_t *value = json_object_get(in->json, key);
    return json_is_null(value) ? NULL : value;
}

static double config_number(struct config_input *in, const char *key, double absent, double least, double most)
{
    const json_t *value = config_get(in, key);
    const double number = value ? json_number_value(value) : absent;
    if (value && (!json_is_number(value) || !(number >= least && number <= most)))
        config_fail(in, STATUS_DATA, key, "must be a number of that range: see PEFT's LoraConfig");
    return number;
}

static bool config_bool(struct config_input *in, const char *key)
{
    const json_t *value = config_get(in, key);
    if (value && !json_is_boolean(value))
        config_fail(in, STATUS_DATA, key, "must be true or false");
    return json_is_true(value);
}

static char *config_text(struct config_input *in, const char *key)
{
    const json_t *value = config_get(in, key);
    if (value && !json_is_string(value))
        config_fail(in, STATUS_DATA, key, "must be text");
    return json_is_string(value) ? memory_text(json_string_value(value)) : NULL;
}

static void config_list(struct config_input *in, const char *key, const json_t *value, struct string_list *list)
{
    size_t i;
    const json_t *item;
    if (value && !json_is_array(value))
        config_fail(in, STATUS_DATA, key, "must be a list of names");
    json_array_foreach(value, i, item)
    {
        if (json_is_string(item))
            string_list_add(list, json_string_value(item));
        else
            config_fail(in, STATUS_DATA, key, "must be a list of names");
    }
}

/* A list, or a text that is a list of one. */
static void config_names(struct config_input *in, const char *key, struct string_list *list)
{
    const json_t *value = config_get(in, key);
    if (json_is_string(value))
        string_list_add(list, json_string_value(value));
    else
        config_list(in, key, value, list);
}

static void config_modules(struct config_input *in, const char *key, struct module_names *names)
{
    const json_t *value = config_get(in, key);
    if (json_is_string(value))
        names->expression = memory_text(json_string_value(value));
    else
        config_list(in, key, value, &names->list);
}

static struct pattern_value *config_patterns(struct config_input *in, const char *key, bool ranks, int *count)
{
    const json_t *value = config_get(in, key);
    const char *pattern = "";
    json_t *item = NULL;
    struct pattern_value *patterns = memory_zeroed(json_object_size(value) + 1, sizeof *patterns);
    if (value && !json_is_object(value))
        config_fail(in, STATUS_DATA, key, "must be a mapping of names to numbers");
    json_object_foreach((json_t *)(uintptr_t)value, pattern, item)
    {
        const double number = json_number_value(item);
        if (!json_is_number(item) || !(number > 0) || number > (ranks ? RANK_MAX : ALPHA_MAX) ||
            (ranks && number != floor(number)))
            config_fail(in, STATUS_DATA, key,
                        ranks ? "must have ranks from 1 to 65536" : "must have numbers above 0, up to 1e15");
        patterns[(*count)++] = (struct pattern_value){memory_text(pattern), number};
    }
    return patterns;
}

static void config_layers(struct config_input *in, struct adapter_settings *settings)
{
    static const char key[] = "layers_to_transform";
    const json_t *value = config_get(in, key);
    const size_t count = json_is_array(value) ? json_array_size(value) : value != NULL;
    settings->layers_to_transform = memory_zeroed(count + 1, sizeof *settings->layers_to_transform);
    settings->num_layers_to_transform = (int)count;
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
        if (!json_is_integer(item) || json_integer_value(item) < 0)
            config_fail(in, STATUS_DATA, key, "must be numbers of blocks");
        settings->layers_to_transform[i] = json_integer_value(item);
    }
}

static bool config_lists(const char *const *keys, size_t count, const char *key)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(keys[i], key) == 0)
            return true;
    return false;
}

/* null, false, {}, []: a feature that is off. */
static bool is_off(const json_t *value)
{
    return json_is_null(value) || json_is_false(value) || (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

/* Keys that make it more than LoRA on the base's own weights. */
static void config_check_rest(struct config_input *in)
{
    static const char *const starts[] = {"gaussian", "orthogonal", "eva"}; /* they leave the base as it is */
    static const char lacks[] = "ztrain has LoRA and rsLoRA only; hint: merge the adapter with PEFT "
                                "(merge_and_unload), and train on the merged folder";
    const json_t *start = config_get(in, "init_lora_weights");
    const char *key = "", *name = json_string_value(start);
    json_t *value = NULL;
    if (start && !json_is_boolean(start) && !(name && config_lists(starts, COUNT_OF(starts), name)))
        config_fail(in, STATUS_USAGE, "init_lora_weights", lacks);
    json_object_foreach((json_t *)(uintptr_t)in->json, key, value)
    {
        bool plain = config_lists(FIELDS, COUNT_OF(FIELDS), key) || config_lists(IDLE, COUNT_OF(IDLE), key);
        for (size_t i = 0; i < COUNT_OF(PLAIN) && !plain; i++) {
            json_t *usual = strcmp(PLAIN[i][0], key) == 0 ? json_loads(PLAIN[i][1], JSON_DECODE_ANY, NULL) : NULL;
            plain = usual && json_equal(usual, value);
            json_decref(usual);
        }
        if (!plain && !is_off(value))
            config_fail(in, STATUS_USAGE, key, lacks);
    }
}

static void config_read_fields(struct config_input *in, struct adapter_config *config)
{
    struct adapter_settings *settings = &config->settings;
    const char *expression;
    settings->on = true;
    settings->base_dtype = DTYPE_COUNT;
    settings->r = (int64_t)config_number(in, "r", 8, 1, RANK_MAX);
    if (config_get(in, "r") && !json_is_integer(config_get(in, "r")))
        config_fail(in, STATUS_DATA, "r", "must be an integer");
    settings->lora_alpha = config_number(in, "lora_alpha", 8, 0x1p-1000, ALPHA_MAX);
    settings->lora_dropout = config_number(in, "lora_dropout", 0, 0, 1);
    settings->use_rslora = config_bool(in, "use_rslora");
    settings->ensure_weight_tying = config_bool(in, "ensure_weight_tying");
    config_modules(in, "target_modules", &settings->target_modules);
    config_modules(in, "exclude_modules", &settings->exclude_modules);
    config_names(in, "modules_to_save", &settings->modules_to_save);
    config_names(in, "layers_pattern", &settings->layers_pattern);
    settings->rank_pattern = config_patterns(in, "rank_pattern", true, &settings->num_rank_patterns);
    settings->alpha_pattern = config_patterns(in, "alpha_pattern", false, &settings->num_alpha_patterns);
    config_layers(in, settings);
    expression = settings->target_modules.expression;
    settings->all_linear = expression && strcasecmp(expression, all_linear) == 0;
    if (settings->all_linear) {
        free((char *)(uintptr_t)expression);
        settings->target_modules.expression = NULL;
    }
    config->base_model = config_text(in, "base_model_name_or_path");
    config->task_type = config_text(in, "task_type");
}

enum status adapter_config_from_json(const json_t *json, const char *where, struct adapter_config *config,
                                     struct error *err)
{
    struct config_input in = {.json = json, .where = where, .err = err};
    *config = (struct adapter_config){0};
    if (!json_is_object(json))
        return error_set(err, STATUS_DATA, "%s is not a mapping; hint: PEFT's save_pretrained() writes it", where);
    char *type = config_text(&in, "peft_type");
    if (!type || strcasecmp(type, "LORA") != 0)
        in.status = error_set(err, STATUS_USAGE,
                              "%s: 'peft_type' is %.100s, and ztrain has LORA only; hint: merge the "
                              "adapter with PEFT (merge_and_unload)",
                              where, type ? type : "not set");
    free(type);
    config_check_rest(&in);
    config_read_fields(&in, config);
    if (in.status != STATUS_OK)
        adapter_config_release(config);
    return in.status;
}

enum status adapter_config_load(const char *folder, struct adapter_config *config, struct error *err)
{
    char path[FS_PATH_MAX], *text;
    size_t size;
    json_error_t fault;
    *config = (struct adapter_config){0};
    TRY(fs_join(path, folder, ADAPTER_CONFIG_FILE, STATUS_DATA, err));
    TRY(fs_read_file(path, CONFIG_BYTES_MAX, STATUS_DATA, &text, &size, err));
    json_t *json = json_loadb(text, size, JSON_REJECT_DUPLICATES, &fault);
    free(text);
    if (!json)
        return error_set(err, STATUS_DATA, "%s:%d: %s", path, fault.line, fault.text);
    const enum status status = adapter_config_from_json(json, path, config, err);
    json_decref(json);
    return status;
}

static void release_modules(struct module_names *names)
{
    free((char *)(uintptr_t)names->expression);
    string_list_release(&names->list);
}

static void release_patterns(struct pattern_value *patterns, int count)
{
    for (int i = 0; i < count; i++)
        free((char *)(uintptr_t)patterns[i].pattern);
    free(patterns);
}

void adapter_config_release(struct adapter_config *config)
{
    struct adapter_settings *settings = &config->settings;
    release_modules(&settings->target_modules);
    release_modules(&settings->exclude_modules);
    string_list_release(&settings->modules_to_save);
    string_list_release(&settings->layers_pattern);
    release_patterns(settings->rank_pattern, settings->num_rank_patterns);
    release_patterns(settings->alpha_pattern, settings->num_alpha_patterns);
    free(settings->layers_to_transform);
    free(config->base_model);
    free(config->task_type);
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
        if (target_of(&table->tensors[i]) == length && strncmp(table->tensors[i].name, name, length) == 0)
            return true;
    return false;
}

/* Whether every module that is called `leaf` is a target, also those that hold others. */
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

static json_t *list_written_targets(const struct tensor_table *table)
{
    json_t *list = json_array(), *leaves = json_object(); /* of each leaf, whether it is enough */
    for (int i = 0; i < table->num_tensors; i++) {
        const char *name = table->tensors[i].name;
        const size_t length = target_of(&table->tensors[i]);
        size_t start = length;
        while (start > 0 && name[start - 1] != '.')
            start--;
        if (!length)
            continue;
        char *leaf = memory_printf("%.*s", (int)(length - start), name + start);
        const json_t *enough = json_object_get(leaves, leaf);
        if (!enough) {
            json_object_set_new(leaves, leaf, json_boolean(leaf_is_enough(table, leaf, length - start)));
            if (json_is_true(json_object_get(leaves, leaf)))
                json_array_append_new(list, json_string(leaf));
        }
        if (json_is_false(json_object_get(leaves, leaf)))
            json_array_append_new(list, json_stringn(name, length));
        free(leaf);
    }
    json_decref(leaves);
    return list;
}

static json_t *written_patterns(const struct pattern_value *patterns, int count)
{
    json_t *mapping = json_object();
    for (int i = 0; i < count; i++)
        json_object_set_new(mapping, patterns[i].pattern,
                            patterns[i].value == floor(patterns[i].value) ? json_integer((json_int_t)patterns[i].value)
                                                                          : json_real(patterns[i].value));
    return mapping;
}

static json_t *written_saved(const struct adapter_settings *settings, const struct model_desc *desc)
{
    static const char *const heads[] = {"classifier", "score"}; /* as PEFT does for SEQ_CLS */
    const struct string_list *given = &settings->modules_to_save;
    json_t *list = json_array();
    for (int i = 0; i < given->count; i++)
        json_array_append_new(list, json_string(given->items[i]));
    for (size_t i = 0; i < COUNT_OF(heads) && desc->num_labels > 0; i++)
        if (!config_lists((const char *const *)given->items, (size_t)given->count, heads[i]))
            json_array_append_new(list, json_string(heads[i]));
    if (json_array_size(list))
        return list;
    json_decref(list);
    return json_null();
}

json_t *adapter_config_to_json(const struct adapter_settings *settings, const struct model_desc *desc,
                               const struct tensor_table *table, const char *base_model)
{
    static const char *const nulls[] = {"auto_mapping", "layers_pattern", "layers_to_transform", "megatron_config",
                                        "revision"};
    const double alpha = settings->lora_alpha;
    json_t *json = json_pack(
        "{ss, ss?, ss, ss, sb, sb, sb, sI, sf, sb, so, so, so, so, so, s{}, ss, sb}", "peft_type", "LORA",
        "base_model_name_or_path", base_model, "bias", "none", "task_type",
        desc->num_labels > 0 ? "SEQ_CLS" : "CAUSAL_LM", "fan_in_fan_out", desc->weights_in_out, "inference_mode", true,
        "init_lora_weights", true, "r", (json_int_t)settings->r, "lora_dropout", settings->lora_dropout, "use_rslora",
        settings->use_rslora, "lora_alpha", alpha == floor(alpha) ? json_integer((json_int_t)alpha) : json_real(alpha),
        "target_modules", list_written_targets(table), "modules_to_save", written_saved(settings, desc), "rank_pattern",
        written_patterns(settings->rank_pattern, settings->num_rank_patterns), "alpha_pattern",
        written_patterns(settings->alpha_pattern, settings->num_alpha_patterns), "loftq_config", "megatron_core",
        "megatron.core", "use_dora", false);
    ASSERT(json);
    for (size_t i = 0; i < COUNT_OF(nulls); i++)
        json_object_set_new(json, nulls[i], json_null());
    if (settings->ensure_weight_tying) /* a new key, as are those that are left out */
        json_object_set_new(json, "ensure_weight_tying", json_true());
    return json;
}
