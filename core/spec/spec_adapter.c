/* SPDX-License-Identifier: Apache-2.0 */
/* spec_adapter.c: values of `peft` that no other section has: names of modules, patterns, blocks. */
#include "core/spec/spec_keys.h"

#include <math.h>
#include <string.h>

static const char all_linear[] = "all-linear";

/* ---- parsing ------------------------------------------------------------- */

static json_t *adapter_wrong(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node,
                             const char *expected)
{
    spec_error(ctx, node->pos, "'%s' must be %s", key->path, expected);
    return NULL;
}

static json_t *convert_modules(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    static const char expected[] =
        "a list of names of modules, such as [q_proj, v_proj], or a regular expression that matches whole names";
    if (node->kind == NODE_STRING && *node->text)
        return json_string(strcasecmp(node->text, all_linear) == 0 ? all_linear : node->text);
    if (node->kind != NODE_LIST || node->count == 0)
        return adapter_wrong(ctx, key, node, expected);
    json_t *list = json_array();
    for (const struct spec_node *name = node->first; name; name = name->next) {
        if (name->kind != NODE_STRING || !*name->text) {
            json_decref(list);
            return adapter_wrong(ctx, key, name, expected);
        }
        json_array_append_new(list, json_string(name->text));
    }
    return list;
}

static json_t *convert_patterns(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    const bool ranks = strcmp(spec_key_leaf(key->path), "rank_pattern") == 0;
    if (node->kind != NODE_MAPPING)
        return adapter_wrong(ctx, key, node, "a mapping of names or regular expressions to numbers, {v_proj: 16}");
    json_t *patterns = json_object();
    for (const struct spec_node *item = node->first; item; item = item->next) {
        const bool fits = ranks ? item->kind == NODE_INT && item->integer >= 1 && item->integer <= 1 << 16
                                : spec_is_number(item) && item->real > 0 && item->real < 1e15;
        if (!fits) {
            json_decref(patterns);
            return adapter_wrong(ctx, key, item,
                                 ranks ? "a mapping to ranks, integers from 1 to 65536"
                                       : "a mapping to values of lora_alpha, numbers above 0");
        }
        json_object_set_new(patterns, item->key,
                            item->kind == NODE_INT ? json_integer(item->integer) : json_real(item->real));
    }
    return patterns;
}

static json_t *convert_blocks(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    json_t *blocks = json_array();
    const bool list = node->kind == NODE_LIST;
    for (const struct spec_node *item = list ? node->first : node; item; item = list ? item->next : NULL) {
        if (item->kind != NODE_INT || item->integer < 0) {
            json_decref(blocks);
            return adapter_wrong(ctx, key, item, "the number of a block, the first is 0, or a list of these");
        }
        json_array_append_new(blocks, json_integer(item->integer));
    }
    return blocks;
}

json_t *spec_adapter_convert(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    return key->type == KEY_MODULES    ? convert_modules(ctx, key, node)
           : key->type == KEY_PATTERNS ? convert_patterns(ctx, key, node)
                                       : convert_blocks(ctx, key, node);
}

/* ---- fields -------------------------------------------------------------- */

static char *adapter_text(struct spec_full *full, const char *text)
{
    return spec_arena_copy(&full->arena, text, strlen(text));
}

static void store_modules(struct spec_full *full, struct module_names *names, const json_t *value)
{
    const size_t count = json_array_size(value);
    struct adapter_settings *adapter = &full->spec.adapter;
    const char *text = json_string_value(value);
    *names = (struct module_names){0};
    if (names == &adapter->target_modules)
        adapter->all_linear = text && strcmp(text, all_linear) == 0;
    if (text && !(names == &adapter->target_modules && adapter->all_linear))
        names->expression = adapter_text(full, text);
    names->list.count = (int)count;
    names->list.items = spec_arena_alloc(&full->arena, (count + 1) * sizeof *names->list.items);
    for (size_t i = 0; i < count; i++)
        names->list.items[i] = adapter_text(full, json_string_value(json_array_get(value, i)));
}

static void store_patterns(struct spec_full *full, struct pattern_value **patterns, int *count, const json_t *value)
{
    const char *pattern = "";
    json_t *item = NULL;
    *count = 0;
    *patterns = spec_arena_alloc(&full->arena, (json_object_size(value) + 1) * sizeof **patterns);
    json_object_foreach((json_t *)(uintptr_t)value, pattern, item)(*patterns)[(*count)++] =
        (struct pattern_value){adapter_text(full, pattern), json_number_value(item)};
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
        json_t *list = names->list.count ? json_array() : NULL;
        for (int i = 0; i < names->list.count; i++)
            json_array_append_new(list, json_string(names->list.items[i]));
        return list;
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
