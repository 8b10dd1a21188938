/* SPDX-License-Identifier: Apache-2.0 */
/* spec_adapter.c: values of `peft` that no other section has: names of modules, patterns, blocks. */
#include "core/spec/spec_keys.h"

static const char all_linear[] = "all-linear";

static json_t *convert_modules(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    const struct spec_node *wrong = node->kind == NODE_LIST && node->count > 0 ? node->first : node;
    if (node->kind == NODE_STRING && *node->text)
        return json_string(strcasecmp(node->text, all_linear) == 0 ? all_linear : node->text);
    json_t *list = json_array();
    for (; wrong && wrong != node && wrong->kind == NODE_STRING && *wrong->text; wrong = wrong->next)
        json_array_append_new(list, json_string(wrong->text));
    if (!wrong) return list;
    json_decref(list);
    return spec_error(ctx, wrong->pos,
                      "'%s' must be a list of names of modules, such as [q_proj, v_proj], or a regular expression that "
                      "matches whole names",
                      key->path);
}

static json_t *convert_patterns(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    const bool ranks = strcmp(spec_key_leaf(key->path), "rank_pattern") == 0;
    const struct spec_node *item = node->first;
    if (node->kind != NODE_MAPPING)
        return spec_error(ctx, node->pos,
                          "'%s' must be a mapping of names or regular expressions to numbers, {v_proj: 16}", key->path);
    json_t *patterns = json_object();
    for (; item && (ranks ? item->kind == NODE_INT && item->integer >= 1 && item->integer <= 1 << 16
                          : spec_is_number(item) && item->real > 0 && item->real < 1e15);
         item = item->next)
        json_object_set_new(patterns, item->key, spec_node_json(ctx, item));
    if (!item) return patterns;
    json_decref(patterns);
    return spec_error(ctx, item->pos, "'%s' must be a mapping to %s", key->path,
                      ranks ? "ranks, integers from 1 to 65536" : "values of lora_alpha, numbers above 0");
}

static json_t *convert_blocks(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    json_t *blocks = json_array();
    const bool list = node->kind == NODE_LIST;
    const struct spec_node *item = list ? node->first : node;
    for (; item && item->kind == NODE_INT && item->integer >= 0; item = list ? item->next : NULL)
        json_array_append_new(blocks, json_integer(item->integer));
    if (!item) return blocks;
    json_decref(blocks);
    return spec_error(ctx, item->pos, "'%s' must be the number of a block, the first is 0, or a list of these",
                      key->path);
}

json_t *spec_adapter_convert(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    return key->type == KEY_MODULES    ? convert_modules(ctx, key, node)
           : key->type == KEY_PATTERNS ? convert_patterns(ctx, key, node)
                                       : convert_blocks(ctx, key, node);
}

static void store_modules(struct spec_full *full, struct module_names *names, const json_t *value)
{
    const char *text = json_string_value(value);
    const bool targets = names == &full->spec.adapter.target_modules;
    const bool all = targets && text && strcmp(text, all_linear) == 0;
    if (targets) full->spec.adapter.all_linear = all;
    names->expression = text && !all ? spec_arena_text(&full->arena, text) : NULL;
    spec_arena_list(&full->arena, &names->list, value);
}

static void store_patterns(struct spec_full *full, struct pattern_value **patterns, int *count, const json_t *value)
{
    const char *pattern = "";
    json_t *item = NULL;
    *count = 0;
    *patterns = spec_arena_alloc(&full->arena, (json_object_size(value) + 1) * sizeof **patterns);
    json_object_foreach ((json_t *)(uintptr_t)value, pattern, item)
        (*patterns)[(*count)++] =
            (struct pattern_value){spec_arena_text(&full->arena, pattern), json_number_value(item)};
}

static void store_blocks(struct spec_full *full, const json_t *value)
{
    struct adapter_settings *adapter = &full->spec.adapter;
    adapter->num_layers_to_transform = (int)json_array_size(value);
    adapter->layers_to_transform =
        spec_arena_alloc(&full->arena, (json_array_size(value) + 1) * sizeof *adapter->layers_to_transform);
    for (int i = 0; i < adapter->num_layers_to_transform; i++)
        adapter->layers_to_transform[i] = json_integer_value(json_array_get(value, (size_t)i));
}

/* The array of a row of patterns, and *count of its items. */
static struct pattern_value **patterns_of(struct spec_full *full, const struct spec_key *key, int **count)
{
    struct adapter_settings *adapter = &full->spec.adapter;
    const bool ranks = key->offset == offsetof(struct spec_full, spec.adapter.rank_pattern);
    *count = ranks ? &adapter->num_rank_patterns : &adapter->num_alpha_patterns;
    return ranks ? &adapter->rank_pattern : &adapter->alpha_pattern;
}

void spec_adapter_store(struct spec_full *full, const struct spec_key *key, const json_t *value)
{
    int *count;
    if (key->type == KEY_MODULES) {
        store_modules(full, (struct module_names *)(void *)((char *)full + key->offset), value);
    } else if (key->type == KEY_PATTERNS) {
        struct pattern_value **patterns = patterns_of(full, key, &count);
        store_patterns(full, patterns, count, value);
    } else {
        store_blocks(full, value);
    }
}

json_t *spec_adapter_patterns(const struct pattern_value *patterns, int count)
{
    json_t *mapping = json_object();
    for (int i = 0; i < count; i++)
        json_object_set_new(mapping, patterns[i].pattern,
                            patterns[i].value == floor(patterns[i].value) ? json_integer((json_int_t)patterns[i].value)
                                                                          : json_real(patterns[i].value));
    return mapping;
}

json_t *spec_adapter_fetch(const struct spec_full *full, const struct spec_key *key)
{
    const struct adapter_settings *adapter = &full->spec.adapter;
    int *count;
    if (key->type == KEY_MODULES) {
        const struct module_names *names = (const void *)((const char *)full + key->offset);
        if (names->expression || (names == &adapter->target_modules && adapter->all_linear))
            return json_string(names->expression ? names->expression : all_linear);
        return spec_list_json(&names->list);
    }
    if (key->type == KEY_PATTERNS) {
        struct pattern_value *patterns = *patterns_of((struct spec_full *)(uintptr_t)full, key, &count);
        return *count ? spec_adapter_patterns(patterns, *count) : NULL;
    }
    json_t *blocks = adapter->num_layers_to_transform ? json_array() : NULL;
    for (int i = 0; i < adapter->num_layers_to_transform; i++)
        json_array_append_new(blocks, json_integer(adapter->layers_to_transform[i]));
    return blocks;
}
