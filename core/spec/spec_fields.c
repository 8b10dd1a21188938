/* SPDX-License-Identifier: Apache-2.0 */
/* spec_fields.c: a key's field in struct spec_full: stores JSON in it, and fetches it as JSON. */
#include "core/size_text.h"
#include "core/spec/spec_keys.h"

#include <math.h>
#include <string.h>

struct spec_full *spec_full_new(void)
{
    struct spec_arena own = {0};
    struct spec_full *full = spec_arena_alloc(&own, sizeof *full); /* lives in the arena that it contains */
    full->arena = own;
    full->spec.private_ = full;
    return full;
}

const char *const spec_amount_names[] = {
    [SPEC_AMOUNT_NONE] = NULL, [SPEC_AMOUNT_WEIGHT] = "weight", [SPEC_AMOUNT_EPOCHS] = "epochs"};

static void store_choice_field(char *field, const struct spec_key *key, const char *name)
{
    const struct spec_choice *choice = key->choices;
    while (strcmp(choice->name, name) != 0)
        choice++;
    if (key->size == sizeof(bool))
        *(bool *)(void *)field = choice->value != 0;
    else
        *(int *)(void *)field = choice->value;
}

static void store_prompts_field(struct spec_full *full, const json_t *value)
{
    const size_t count = json_array_size(value);
    struct spec_prompt *prompts = spec_arena_alloc(&full->arena, (count + 1) * sizeof *prompts);
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(value, i);
        const char *text = json_string_value(item);
        struct spec_prompt *prompt = &prompts[i];
        if (text)
            prompt->text = spec_arena_text(&full->arena, text);
        prompt->count = text ? 0 : (int64_t)json_array_size(item);
        prompt->tokens = spec_arena_alloc(&full->arena, ((size_t)prompt->count + 1) * sizeof *prompt->tokens);
        for (int64_t k = 0; k < prompt->count; k++)
            prompt->tokens[k] = (int32_t)json_integer_value(json_array_get(item, (size_t)k));
    }
    full->spec.train.samples = prompts;
    full->spec.train.num_samples = (int)count;
}

static void store_sources_field(struct spec_full *full, const json_t *value)
{
    const size_t count = json_array_size(value);
    struct string_list *paths = &full->spec.data.train;
    full->spec.data.amount = SPEC_AMOUNT_NONE;
    full->spec.data.amounts = NULL;
    if (!json_is_object(json_array_get(value, 0)))
        return;
    const bool weighs = json_object_get(json_array_get(value, 0), "weight");
    full->spec.data.amount = weighs ? SPEC_AMOUNT_WEIGHT : SPEC_AMOUNT_EPOCHS;
    full->spec.data.amounts = spec_arena_alloc(&full->arena, count * sizeof *full->spec.data.amounts);
    paths->count = (int)count;
    paths->items = spec_arena_alloc(&full->arena, (count + 1) * sizeof *paths->items);
    for (size_t i = 0; i < count; i++) {
        const json_t *source = json_array_get(value, i);
        const char *path = json_string_value(json_object_get(source, "path"));
        paths->items[i] = spec_arena_text(&full->arena, path);
        full->spec.data.amounts[i] =
            json_number_value(json_object_get(source, spec_amount_names[full->spec.data.amount]));
    }
}

void spec_key_store(struct spec_full *full, const struct spec_key *key, json_t *value)
{
    ASSERT(key->size > 0);
    char *field = (char *)full + key->offset;
    const char *text = json_is_string(value) ? json_string_value(value) : NULL;
    char *copy = text ? spec_arena_text(&full->arena, text) : NULL;
    switch (key->type) {
    case KEY_BOOL: *(bool *)(void *)field = json_is_true(value); break;
    case KEY_INT:
        if (key->size == sizeof(int))
            *(int *)(void *)field = (int)json_integer_value(value);
        else
            *(int64_t *)(void *)field = json_integer_value(value);
        break;
    case KEY_REAL: *(double *)(void *)field = value ? json_number_value(value) : -1; break;
    case KEY_REAL_PAIR:
        for (size_t i = 0; i < 2; i++)
            ((double *)(void *)field)[i] = json_number_value(json_array_get(value, i));
        break;
    case KEY_SIZE:
        *(int64_t *)(void *)field = 0;
        if (text && !size_parse(text, (int64_t *)(void *)field))
            BUG("'%s' holds '%s'", key->path, text);
        break;
    case KEY_STRING: *(char **)(void *)field = copy; break;
    case KEY_STRING_LIST: spec_arena_list(&full->arena, (struct string_list *)(void *)field, value); break;
    case KEY_SOURCES:
        store_sources_field(full, value);
        if (!full->spec.data.amount)
            spec_arena_list(&full->arena, (struct string_list *)(void *)field, value);
        break;
    case KEY_PROMPTS: store_prompts_field(full, value); break;
    case KEY_MODULES:
    case KEY_PATTERNS:
    case KEY_BLOCKS: spec_adapter_store(full, key, value); break;
    case KEY_CHOICE: store_choice_field(field, key, text ? text : json_is_true(value) ? "true" : "false"); break;
    case KEY_MODEL_CONFIG:
        full->spec.model.config_path = copy;
        json_decref(full->spec.model.config);
        full->spec.model.config = json_is_object(value) ? json_incref(value) : NULL;
        break;
    default: BUG("'%s' has no field", key->path);
    }
    json_decref(value);
}

static json_t *fetch_choice_field(const char *field, const struct spec_key *key)
{
    int value = key->size == sizeof(bool) ? *(const bool *)(const void *)field : *(const int *)(const void *)field;
    for (const struct spec_choice *choice = key->choices; choice->name; choice++)
        if (choice->verdict == VERDICT_USED && choice->value == value)
            return spec_choice_json(choice->name);
    BUG("'%s' holds %d", key->path, value);
}

static json_t *fetch_prompts_field(const struct spec_full *full)
{
    json_t *list = full->spec.train.num_samples ? json_array() : NULL;
    for (int i = 0; i < full->spec.train.num_samples; i++) {
        const struct spec_prompt *prompt = &full->spec.train.samples[i];
        json_t *item = prompt->text ? json_string(prompt->text) : json_array();
        for (int64_t k = 0; k < prompt->count; k++)
            json_array_append_new(item, json_integer(prompt->tokens[k]));
        json_array_append_new(list, item);
    }
    return list;
}

static json_t *fetch_sources_field(const struct spec_full *full)
{
    json_t *list = json_array();
    for (int i = 0; i < full->spec.data.train.count; i++)
        json_array_append_new(list, json_pack("{sssf}", "path", full->spec.data.train.items[i],
                                              spec_amount_names[full->spec.data.amount], full->spec.data.amounts[i]));
    return list;
}

json_t *spec_key_fetch(const struct spec_full *full, const struct spec_key *key)
{
    ASSERT(key->size > 0);
    const char *field = (const char *)full + key->offset;
    bool optional = !key->fallback;
    if (!spec_key_applies(full, key))
        return NULL;
    switch (key->type) {
    case KEY_BOOL: return json_boolean(*(const bool *)(const void *)field);
    case KEY_INT: {
        int64_t value =
            key->size == sizeof(int) ? *(const int *)(const void *)field : *(const int64_t *)(const void *)field;
        return optional && value == 0 ? NULL : json_integer(value);
    }
    case KEY_REAL: {
        double value = *(const double *)(const void *)field;
        if (optional && value < 0)
            return NULL;
        return key->flags & KEY_WHOLE && value == floor(value) ? json_integer((json_int_t)value) : json_real(value);
    }
    case KEY_REAL_PAIR: {
        const double *pair = (const double *)(const void *)field;
        return json_pack("[ff]", pair[0], pair[1]);
    }
    case KEY_SIZE: {
        const int64_t bytes = *(const int64_t *)(const void *)field;
        char text[SIZE_TEXT_MAX];
        return bytes ? json_string(size_format(bytes, text)) : NULL;
    }
    case KEY_STRING: {
        const char *text = *(char *const *)(const void *)field;
        return text ? json_string(text) : NULL;
    }
    case KEY_STRING_LIST: return spec_list_json((const struct string_list *)(const void *)field);
    case KEY_SOURCES:
        return full->spec.data.amount ? fetch_sources_field(full)
                                      : spec_list_json((const struct string_list *)(const void *)field);
    case KEY_PROMPTS: return fetch_prompts_field(full);
    case KEY_MODULES:
    case KEY_PATTERNS:
    case KEY_BLOCKS: return spec_adapter_fetch(full, key);
    case KEY_CHOICE: return fetch_choice_field(field, key);
    case KEY_MODEL_CONFIG:
        if (full->spec.model.config)
            return json_incref(full->spec.model.config);
        return full->spec.model.config_path ? json_string(full->spec.model.config_path) : NULL;
    default: BUG("'%s' has no field", key->path);
    }
}
