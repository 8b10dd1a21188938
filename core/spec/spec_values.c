/* spec_values.c: converts one value of the run spec between a node of the tree, JSON, and its field.
 *
 * JSON is the common form: nodes and defaults are converted to it (the only place where type, range and choices are
 * checked), and the value of a field is fetched as JSON for printing, comparison and the manifest. */
#include "core/edit_distance.h"
#include "core/memory.h"
#include "core/size_text.h"
#include "core/spec/spec_keys.h"

#include <math.h>
#include <string.h>
#include <strings.h>

/* ---- the table ----------------------------------------------------------- */

const struct spec_key *spec_key_find(const char *path)
{
    for (int i = 0; i < spec_num_keys; i++)
        if (strcmp(spec_keys[i].path, path) == 0)
            return &spec_keys[i];
    return NULL;
}

size_t spec_key_section_length(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? (size_t)(dot - path) : 0;
}

const char *spec_key_leaf(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

bool spec_key_in(const struct spec_key *key, const char *section)
{
    size_t length = spec_key_section_length(key->path);
    return strlen(section) == length && strncmp(key->path, section, length) == 0;
}

bool spec_key_applies(const struct spec_full *full, const struct spec_key *key)
{
    return (!key->schedules || key->schedules & 1u << full->spec.scheduler.type) &&
           (!key->optimizers || key->optimizers & 1u << full->spec.optimizer.type);
}

bool spec_choice_is_available(const struct spec_key *key, const char *text)
{
    for (const struct spec_choice *choice = key->choices; choice && choice->name; choice++)
        if (spec_choice_is(key, choice, text))
            return choice->verdict == VERDICT_USED || choice->verdict == VERDICT_ALIAS;
    return !key->choices;
}

bool spec_is_unknown_territory(const struct spec_node *root, const char *section)
{
    const char *path = strcmp(section, "optimizer.params") == 0   ? "optimizer.type"
                       : strcmp(section, "scheduler.params") == 0 ? "scheduler.type"
                                                                  : NULL;
    const struct spec_node *type = path ? spec_find(root, path) : NULL;
    return type && type->kind == NODE_STRING && !spec_choice_is_available(spec_key_find(path), type->text);
}

/* ---- node to JSON -------------------------------------------------------- */

static const struct spec_choice *closest_choice(const struct spec_key *key, const char *text)
{
    const struct spec_choice *best = NULL;
    int best_distance = edit_distance_limit(text) + 1;
    for (const struct spec_choice *choice = key->choices; choice && choice->name; choice++) {
        if (choice->verdict == VERDICT_REFUSED || choice->verdict == VERDICT_LATER)
            continue;
        int distance = edit_distance(choice->name, text);
        if (distance < best_distance) {
            best = choice;
            best_distance = distance;
        }
    }
    return best;
}

bool spec_is_quoted_value(const struct spec_key *key, const struct spec_node *node)
{
    if (node->kind != NODE_STRING || node->plain)
        return false;
    struct spec_node bare = {.kind = NODE_STRING, .text = node->text};
    spec_resolve_plain(&bare);
    if (key->type == KEY_BOOL)
        return bare.kind == NODE_BOOL;
    return (key->type == KEY_INT || key->type == KEY_REAL || key->type == KEY_REAL_PAIR) && spec_is_number(&bare);
}

static json_t *wrong(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node,
                     const char *expected)
{
    const char *got = node->kind == NODE_NULL      ? "nothing"
                      : node->kind == NODE_LIST    ? "a list"
                      : node->kind == NODE_MAPPING ? "a mapping"
                                                   : spec_arena_printf(ctx->arena, "'%s'", spec_show(ctx, node->text));
    const char *hint = key->fallback ? spec_arena_printf(ctx->arena, "the default is %s", key->fallback)
                                     : "--help-spec describes the keys";
    if (key->type == KEY_SIZE)
        hint = SIZE_FORMS;
    const struct spec_choice *close = node->kind == NODE_STRING ? closest_choice(key, node->text) : NULL;
    if (close)
        hint = spec_arena_printf(ctx->arena, "did you mean '%s'?",
                                 close->verdict == VERDICT_SYNONYM || close->verdict == VERDICT_ALIAS ? close->why
                                                                                                      : close->name);
    if (spec_is_quoted_value(key, node))
        hint = spec_arena_printf(ctx->arena, "the quotes make it text; write %s", spec_show(ctx, node->text));
    if (key->type == KEY_BOOL && node->kind == NODE_STRING && node->plain)
        hint = "the truth values of older YAML (yes, on) are text; write true or false";
    spec_error(ctx, node->pos, "'%s' must be %s, not %s; hint: %s", key->path, expected, got, hint);
    return NULL;
}

/* Whether a value breaks an upper limit that is too high to be worth a word otherwise. */
static bool is_too_high(const struct spec_key *key, const struct spec_node *node)
{
    const double value = spec_is_number(node) ? node->real : 0;
    return value > key->max && key->max < 0x1p63; /* above, it is no int64 in any case */
}

/* "an integer from 0 to 3", "a number above 0" */
static const char *expected_number(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    const char *noun = key->type == KEY_INT ? "an integer" : "a number";
    if (!(key->min < key->max))
        return noun;
    const bool endless = key->max >= 1e15 && !is_too_high(key, node);
    const char *from = key->flags & KEY_ABOVE_MIN ? "above" : endless ? "of at least" : "from";
    const char *to = endless ? "" : spec_arena_printf(ctx->arena, " to %.15g", key->max);
    return spec_arena_printf(ctx->arena, "%s %s %.15g%s", noun, from, key->min, to);
}

static bool in_range(const struct spec_key *key, double value)
{
    if (!(key->min < key->max)) /* the row has no range */
        return true;
    return value <= key->max && (key->flags & KEY_ABOVE_MIN ? value > key->min : value >= key->min);
}

/* Integers may be written as 5e8. */
static json_t *convert_int(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    int64_t value = node->integer;
    if (node->kind == NODE_REAL && node->finite && fabs(node->real) < 0x1p63 && node->real == floor(node->real))
        value = (int64_t)node->real;
    else if (node->kind != NODE_INT)
        return wrong(ctx, key, node, expected_number(ctx, key, node));
    return in_range(key, (double)value) ? json_integer(value) : wrong(ctx, key, node, expected_number(ctx, key, node));
}

static json_t *convert_real(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    if (node->kind == NODE_REAL && !node->finite)
        return wrong(ctx, key, node, "a finite number");
    if (!spec_is_number(node) || !in_range(key, node->real))
        return wrong(ctx, key, node, expected_number(ctx, key, node));
    return json_real(node->real);
}

static json_t *convert_pair(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    if (node->kind != NODE_LIST || node->count != 2)
        return wrong(ctx, key, node, "a list of two numbers, like [0.9, 0.999]");
    json_t *first = convert_real(ctx, key, node->first), *second = convert_real(ctx, key, node->last);
    if (!first || !second) {
        json_decref(first);
        json_decref(second);
        return NULL;
    }
    return json_pack("[oo]", first, second);
}

/* "300MiB", or a number of bytes. */
static json_t *convert_size(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    char text[SIZE_TEXT_MAX];
    int64_t bytes;
    bool scalar = node->kind == NODE_STRING || spec_is_number(node);
    if (!scalar || !size_parse(node->text, &bytes))
        return wrong(ctx, key, node, "a size such as 300MiB or 80GiB");
    return json_string(size_format(bytes, text));
}

/* Text, or a plain number as it is written (a run's name may be 2026). */
static json_t *convert_string(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node,
                              const char *expected)
{
    bool number = node->plain && spec_is_number(node);
    if ((node->kind != NODE_STRING && !number) || !*node->text)
        return wrong(ctx, key, node, expected);
    const char *text = key->flags & KEY_PATH ? spec_home_path(ctx, key->path, node) : node->text;
    json_t *value = text ? json_string(text) : NULL;
    ASSERT(value || !text); /* the parsers have checked that it is UTF-8 */
    return value;
}

static json_t *convert_name(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    return convert_string(ctx, key, node,
                          key->flags & KEY_PATH ? "a path, or a list of paths" : "a name, or a list of names");
}

static json_t *convert_item(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    if (node->kind == NODE_MAPPING && spec_child(node, "path")) {
        spec_error(ctx, node->pos,
                   "'%s' cannot be a mixture of sources, as data.train can; hint: list the paths alone, and the shards "
                   "form one stream",
                   key->path);
        return NULL;
    }
    return convert_name(ctx, key, node);
}

/* Each child of a list; NULL after an error. */
static json_t *convert_each(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *list,
                            json_t *(*convert)(struct spec_context *, const struct spec_key *,
                                               const struct spec_node *))
{
    json_t *array = json_array();
    for (const struct spec_node *child = list->first; child; child = child->next) {
        json_t *item = convert(ctx, key, child);
        if (!item) {
            json_decref(array);
            return NULL;
        }
        json_array_append_new(array, item);
    }
    return array;
}

static json_t *convert_list(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    if (node->kind != NODE_LIST) {
        json_t *only = convert_name(ctx, key, node);
        return only ? json_pack("[o]", only) : NULL;
    }
    if (!node->count && key->flags & KEY_REQUIRED)
        return wrong(ctx, key, node, "a path, or a list of at least one path");
    return convert_each(ctx, key, node, convert_item);
}

/* train.samples: a list of prompts, each a text or a list of token ids, ["Stocks rose on", [15496, 995]]; one text may
 * stand alone. */
static json_t *wrong_prompt(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    spec_error(ctx, node->pos, "'%s' must be a list of prompts, each a text or a list of token ids", key->path);
    return NULL;
}

static json_t *convert_id(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    const bool is_id = node->kind == NODE_INT && node->integer >= 0 && node->integer <= INT32_MAX;
    return is_id ? json_integer(node->integer) : wrong_prompt(ctx, key, node);
}

/* A text or a list of ids. */
static json_t *convert_prompt(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    if (node->kind == NODE_STRING)
        return json_string(node->text);
    if (node->kind != NODE_LIST || !node->count)
        return wrong_prompt(ctx, key, node);
    return convert_each(ctx, key, node, convert_id);
}

static json_t *convert_prompts(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    if (node->kind == NODE_STRING)
        return json_pack("[s]", node->text);
    if (node->kind != NODE_LIST)
        return wrong_prompt(ctx, key, node);
    return convert_each(ctx, key, node, convert_prompt);
}

/* "fp32, bf16 or fp16", of the choices that are used */
static const char *choice_names(struct spec_context *ctx, const struct spec_key *key)
{
    int used = 0, i = 0;
    for (const struct spec_choice *choice = key->choices; choice->name; choice++)
        used += choice->verdict == VERDICT_USED;
    const char *names = "";
    for (const struct spec_choice *choice = key->choices; choice->name; choice++) {
        if (choice->verdict != VERDICT_USED)
            continue;
        const char *glue = i == 0 ? "" : i == used - 1 ? " or " : ", ";
        names = spec_arena_printf(ctx->arena, "%s%s%s", names, glue, choice->name);
        i++;
    }
    return names;
}

bool spec_choice_is(const struct spec_key *key, const struct spec_choice *choice, const char *text)
{
    return (key->flags & KEY_ANY_CASE ? strcasecmp(choice->name, text) : strcmp(choice->name, text)) == 0;
}

/* The choices true and false are booleans, as in keys that have no others. */
static json_t *choice_to_json(const char *name)
{
    if (strcmp(name, "true") == 0 || strcmp(name, "false") == 0)
        return json_boolean(*name == 't');
    return json_string(name);
}

static json_t *convert_choice(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    if (node->kind != NODE_STRING && node->kind != NODE_BOOL)
        return wrong(ctx, key, node, choice_names(ctx, key));
    const char *text = node->kind == NODE_STRING ? node->text : node->boolean ? "true" : "false";
    for (const struct spec_choice *choice = key->choices; choice->name; choice++) {
        if (choice->verdict == VERDICT_SYNONYM || !spec_choice_is(key, choice, text))
            continue;
        if (choice->verdict == VERDICT_USED)
            return choice_to_json(choice->name);
        if (choice->verdict == VERDICT_ALIAS) {
            spec_notice(ctx, node->pos, "'%s' %s is taken as %s", key->path, choice->name, choice->why);
            return json_string(choice->why);
        }
        if (choice->verdict == VERDICT_LATER)
            spec_error(ctx, node->pos, "'%s' %s is not supported yet; hint: use %s", key->path, choice->name,
                       choice_names(ctx, key));
        else
            spec_error(ctx, node->pos, "'%s' %s is not supported: %s", key->path, choice->name, choice->why);
        return NULL;
    }
    return wrong(ctx, key, node, choice_names(ctx, key));
}

json_t *spec_key_convert(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    switch (key->type) {
    case KEY_BOOL:
        if (node->kind != NODE_BOOL)
            return wrong(ctx, key, node, "true or false");
        return json_boolean(node->boolean);
    case KEY_INT: return convert_int(ctx, key, node);
    case KEY_REAL: return convert_real(ctx, key, node);
    case KEY_REAL_PAIR: return convert_pair(ctx, key, node);
    case KEY_SIZE: return convert_size(ctx, key, node);
    case KEY_STRING: return convert_string(ctx, key, node, "text");
    case KEY_STRING_LIST: return convert_list(ctx, key, node);
    case KEY_SOURCES:
        return spec_sources_is_mixture(node) ? spec_sources_convert(ctx, key, node) : convert_list(ctx, key, node);
    case KEY_PROMPTS: return convert_prompts(ctx, key, node);
    case KEY_CHOICE: return convert_choice(ctx, key, node);
    case KEY_MODEL_CONFIG:
        if (node->kind == NODE_MAPPING)
            return spec_node_json(ctx, node);
        return convert_string(ctx, key, node, "the path of a config.json, or its keys as a mapping");
    case KEY_ANY: return spec_node_json(ctx, node);
    case KEY_SECTION:
    case KEY_FOREIGN:
    case KEY_ALIAS:
    case KEY_TYPE_COUNT: break;
    }
    BUG("'%s' has no value", key->path);
}

json_t *spec_key_default(const struct spec_key *key)
{
    if (!key->fallback || key->type == KEY_ALIAS)
        return NULL;
    struct spec_arena arena = {0};
    const char *sources[] = {"default"};
    struct spec_context ctx = {.arena = &arena, .sources = sources, .num_sources = 1};
    struct spec_node *node = spec_parse_yaml(&ctx, 0, key->fallback, strlen(key->fallback));
    json_t *value = node ? spec_key_convert(&ctx, key, node) : NULL;
    if (!value)
        BUG("the default of '%s' is refused", key->path);
    spec_arena_release(&arena);
    return value;
}

char *spec_json_text(const json_t *value)
{
    return value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15)) : memory_text("unset");
}

/* ---- JSON to field and back ---------------------------------------------- */

static void store_choice(char *field, const struct spec_key *key, const char *name)
{
    const struct spec_choice *choice = key->choices;
    while (strcmp(choice->name, name) != 0)
        choice++;
    if (key->size == sizeof(bool))
        *(bool *)(void *)field = choice->value != 0;
    else
        *(int *)(void *)field = choice->value;
}

static void store_list(struct spec_full *full, struct string_list *list, const json_t *value)
{
    size_t count = json_array_size(value);
    list->count = (int)count;
    list->items = spec_arena_alloc(&full->arena, (count + 1) * sizeof *list->items);
    for (size_t i = 0; i < count; i++) {
        const char *item = json_string_value(json_array_get(value, i));
        list->items[i] = spec_arena_copy(&full->arena, item, strlen(item));
    }
}

static void store_prompts(struct spec_full *full, const json_t *value)
{
    const size_t count = json_array_size(value);
    struct spec_prompt *prompts = spec_arena_alloc(&full->arena, (count + 1) * sizeof *prompts);
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(value, i);
        const char *text = json_string_value(item);
        struct spec_prompt *prompt = &prompts[i];
        if (text)
            prompt->text = spec_arena_copy(&full->arena, text, strlen(text));
        prompt->count = text ? 0 : (int64_t)json_array_size(item);
        prompt->tokens = spec_arena_alloc(&full->arena, ((size_t)prompt->count + 1) * sizeof *prompt->tokens);
        for (int64_t k = 0; k < prompt->count; k++)
            prompt->tokens[k] = (int32_t)json_integer_value(json_array_get(item, (size_t)k));
    }
    full->spec.train.samples = prompts;
    full->spec.train.num_samples = (int)count;
}

void spec_key_store(struct spec_full *full, const struct spec_key *key, const json_t *value)
{
    ASSERT(key->size > 0);
    char *field = (char *)full + key->offset;
    const char *text = json_is_string(value) ? json_string_value(value) : NULL;
    char *copy = text ? spec_arena_copy(&full->arena, text, strlen(text)) : NULL;
    switch (key->type) {
    case KEY_BOOL: *(bool *)(void *)field = json_is_true(value); return;
    case KEY_INT:
        if (key->size == sizeof(int))
            *(int *)(void *)field = (int)json_integer_value(value);
        else
            *(int64_t *)(void *)field = json_integer_value(value);
        return;
    case KEY_REAL: *(double *)(void *)field = value ? json_number_value(value) : -1; return;
    case KEY_REAL_PAIR:
        for (size_t i = 0; i < 2; i++)
            ((double *)(void *)field)[i] = json_number_value(json_array_get(value, i));
        return;
    case KEY_SIZE:
        *(int64_t *)(void *)field = 0;
        if (text && !size_parse(text, (int64_t *)(void *)field))
            BUG("'%s' holds '%s'", key->path, text);
        return;
    case KEY_STRING: *(char **)(void *)field = copy; return;
    case KEY_STRING_LIST: store_list(full, (struct string_list *)(void *)field, value); return;
    case KEY_SOURCES:
        spec_sources_store(full, value);
        if (!full->spec.data.amount)
            store_list(full, (struct string_list *)(void *)field, value);
        return;
    case KEY_PROMPTS: store_prompts(full, value); return;
    case KEY_CHOICE: store_choice(field, key, text ? text : json_is_true(value) ? "true" : "false"); return;
    case KEY_MODEL_CONFIG:
        full->spec.model.config_path = copy;
        json_decref(full->spec.model.config);
        full->spec.model.config = json_is_object(value) ? json_incref((json_t *)value) : NULL;
        return;
    default: BUG("'%s' has no field", key->path);
    }
}

static json_t *fetch_choice(const char *field, const struct spec_key *key)
{
    int value = key->size == sizeof(bool) ? *(const bool *)(const void *)field : *(const int *)(const void *)field;
    for (const struct spec_choice *choice = key->choices; choice->name; choice++)
        if (choice->verdict == VERDICT_USED && choice->value == value)
            return choice_to_json(choice->name);
    BUG("'%s' holds %d", key->path, value);
}

static json_t *fetch_list(const struct string_list *list)
{
    if (!list->count)
        return NULL;
    json_t *array = json_array();
    for (int i = 0; i < list->count; i++)
        json_array_append_new(array, json_string(list->items[i]));
    return array;
}

static json_t *fetch_prompts(const struct spec_full *full)
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
    case KEY_STRING_LIST: return fetch_list((const struct string_list *)(const void *)field);
    case KEY_SOURCES:
        return full->spec.data.amount ? spec_sources_fetch(full)
                                      : fetch_list((const struct string_list *)(const void *)field);
    case KEY_PROMPTS: return fetch_prompts(full);
    case KEY_CHOICE: return fetch_choice(field, key);
    case KEY_MODEL_CONFIG:
        if (full->spec.model.config)
            return json_incref(full->spec.model.config);
        return full->spec.model.config_path ? json_string(full->spec.model.config_path) : NULL;
    default: BUG("'%s' has no field", key->path);
    }
}
