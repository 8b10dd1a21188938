/* SPDX-License-Identifier: Apache-2.0 */
/* spec_parse_value.c: a node becomes JSON by its key's type, range or choices; JSON to and from the key's field. */
#include "core/spec/spec_keys.h"

typedef json_t *converter(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node);

static const struct spec_choice *closest_choice(const struct spec_key *key, const char *text)
{
    const struct spec_choice *best = NULL;
    int best_distance = edit_distance_limit(text) + 1;
    for (const struct spec_choice *choice = key->choices; choice && choice->name; choice++) {
        if (choice->verdict == VERDICT_REFUSED || choice->verdict == VERDICT_LATER) continue;
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
    if (node->kind != NODE_STRING || node->plain) return false;
    struct spec_node bare = {.kind = NODE_STRING, .text = node->text};
    spec_yaml_plain(&bare);
    if (key->type == KEY_BOOL) return bare.kind == NODE_BOOL;
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
    if (key->type == KEY_SIZE) hint = SIZE_FORMS;
    const struct spec_choice *close = node->kind == NODE_STRING ? closest_choice(key, node->text) : NULL;
    if (close)
        hint = spec_arena_printf(ctx->arena, "did you mean '%s'?",
                                 close->verdict == VERDICT_SYNONYM || close->verdict == VERDICT_ALIAS ? close->why
                                                                                                      : close->name);
    if (spec_is_quoted_value(key, node))
        hint = spec_arena_printf(ctx->arena, "the quotes make it text; write %s", spec_show(ctx, node->text));
    if (key->type == KEY_BOOL && node->kind == NODE_STRING && node->plain)
        hint = "the truth values of older YAML (yes, on) are text; write true or false";
    return spec_error(ctx, node->pos, "'%s' must be %s, not %s; hint: %s", key->path, expected, got, hint);
}

/* "an integer from 0 to 3", "a number above 0" */
static const char *expected_value(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    const char *noun = key->type == KEY_INT ? "an integer" : "a number";
    if (!(key->min < key->max)) return noun;
    /* a limit that is too high to be worth a word, unless it is broken; above 2^63 it is no int64 in any case */
    const bool endless = key->max >= 1e15 && !(spec_is_number(node) && node->real > key->max && key->max < 0x1p63);
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

static json_t *convert_int(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    const bool whole =
        node->kind == NODE_REAL && node->finite && fabs(node->real) < 0x1p63 && node->real == floor(node->real);
    const int64_t value = whole ? (int64_t)node->real : node->integer;
    if ((whole || node->kind == NODE_INT) && in_range(key, (double)value)) return json_integer(value);
    return wrong(ctx, key, node, expected_value(ctx, key, node));
}

static json_t *convert_real(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    if (node->kind == NODE_REAL && !node->finite) return wrong(ctx, key, node, "a finite number");
    if (!spec_is_number(node) || !in_range(key, node->real))
        return wrong(ctx, key, node, expected_value(ctx, key, node));
    return json_real(node->real);
}

static json_t *convert_pair(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    if (node->kind != NODE_LIST || node->count != 2)
        return wrong(ctx, key, node, "a list of two numbers, like [0.9, 0.999]");
    json_auto_t *first = convert_real(ctx, key, node->first), *second = convert_real(ctx, key, node->last);
    return first && second ? json_pack("[OO]", first, second) : NULL;
}

static json_t *convert_size(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    char text[SIZE_TEXT_MAX];
    int64_t bytes;
    bool scalar = node->kind == NODE_STRING || spec_is_number(node);
    if (!scalar || !size_parse(node->text, &bytes)) return wrong(ctx, key, node, "a size such as 300MiB or 80GiB");
    return json_string(size_format(bytes, text));
}

/* Text, or a plain number as it is written (a run's name may be 2026). */
static json_t *convert_string(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node,
                              const char *expected)
{
    bool number = node->plain && spec_is_number(node);
    if ((node->kind != NODE_STRING && !number) || !*node->text) return wrong(ctx, key, node, expected);
    const char *text = key->flags & KEY_PATH ? spec_home_path(ctx, key->path, node) : node->text;
    json_t *value = json_string(text);
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
    if (node->kind == NODE_MAPPING && spec_child(node, "path"))
        return spec_error(
            ctx, node->pos,
            "'%s' cannot be a mixture of sources, as data.train can; hint: list only the paths, and the shards "
            "form one stream",
            key->path);
    return convert_name(ctx, key, node);
}

/* The list or mapping of what the children become. */
static json_t *convert_each(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node,
                            converter *convert)
{
    json_auto_t *all = node->kind == NODE_LIST ? json_array() : json_object();
    for (const struct spec_node *child = node->first; child; child = child->next) {
        json_t *item = convert(ctx, key, child);
        if (!item) return NULL;
        if (node->kind == NODE_LIST)
            json_array_append_new(all, item);
        else
            json_object_set_new(all, child->key, item);
    }
    return TAKEN(all);
}

/* Any value, as it is. */
static json_t *convert_any(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    switch (node->kind) {
    case NODE_NULL: return json_null();
    case NODE_BOOL: return json_boolean(node->boolean);
    case NODE_INT: return json_integer(node->integer);
    case NODE_REAL:
        return node->finite ? json_real(node->real)
                            : spec_error(ctx, node->pos, "%s is not a finite number", spec_show(ctx, node->text));
    case NODE_STRING: return json_string(node->text); /* the parsers have checked that the text is UTF-8 */
    case NODE_LIST:
    case NODE_MAPPING: return convert_each(ctx, key, node, convert_any);
    }
    BUG("a node of kind %d", (int)node->kind);
}

/* A list. A single item may stand without brackets. */
static json_t *convert_one_or_each(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node,
                                   converter *convert)
{
    if (node->kind == NODE_LIST) return convert_each(ctx, key, node, convert);
    json_t *only = convert(ctx, key, node);
    return only ? json_pack("[o]", only) : NULL;
}

static json_t *convert_list(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    const bool list = node->kind == NODE_LIST;
    if (list && !node->count && key->flags & KEY_REQUIRED)
        return wrong(ctx, key, node, "a path, or a list of at least one path");
    return convert_one_or_each(ctx, key, node, list ? convert_item : convert_name);
}

/* train.samples: texts and lists of token ids, ["Stocks rose on", [15496, 995]]; one text may stand alone. */
static json_t *wrong_prompt(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    return spec_error(ctx, node->pos, "'%s' must be a list of prompts, each a text or a list of token ids", key->path);
}

static json_t *convert_id(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    const bool is_id = node->kind == NODE_INT && node->integer >= 0 && node->integer <= INT32_MAX;
    return is_id ? json_integer(node->integer) : wrong_prompt(ctx, key, node);
}

static json_t *convert_prompt(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    if (node->kind == NODE_STRING) return json_string(node->text);
    if (node->kind != NODE_LIST || !node->count) return wrong_prompt(ctx, key, node);
    return convert_each(ctx, key, node, convert_id);
}

/* "fp32, bf16 or fp16", of the choices that are used */
static const char *value_choices(struct spec_context *ctx, const struct spec_key *key)
{
    const char *names = NULL, *last = NULL;
    for (const struct spec_choice *choice = key->choices; choice->name; choice++) {
        if (choice->verdict != VERDICT_USED) continue;
        if (last) names = names ? spec_arena_printf(ctx->arena, "%s, %s", names, last) : last;
        last = choice->name;
    }
    return names ? spec_arena_printf(ctx->arena, "%s or %s", names, last) : last;
}

static json_t *convert_choice(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    if (node->kind != NODE_STRING && node->kind != NODE_BOOL) return wrong(ctx, key, node, value_choices(ctx, key));
    const char *text = node->kind == NODE_STRING ? node->text : node->boolean ? "true" : "false";
    for (const struct spec_choice *choice = key->choices; choice->name; choice++) {
        if (choice->verdict == VERDICT_SYNONYM || !spec_choice_is(key, choice, text)) continue;
        if (choice->verdict == VERDICT_USED) return spec_choice_json(choice->name);
        if (choice->verdict == VERDICT_ALIAS) {
            spec_notice(ctx, node->pos, "'%s' %s is taken as %s", key->path, choice->name, choice->why);
            return json_string(choice->why);
        }
        if (choice->verdict == VERDICT_LATER)
            return spec_error(ctx, node->pos, "'%s' %s is not supported yet; hint: use %s", key->path, choice->name,
                              value_choices(ctx, key));
        return spec_error(ctx, node->pos, "'%s' %s is not supported: %s", key->path, choice->name, choice->why);
    }
    return wrong(ctx, key, node, value_choices(ctx, key));
}

/* ---- names of modules, patterns and blocks of peft ----------------------- */

static const char all_linear[] = "all-linear";

static json_t *convert_module(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    if (node->kind == NODE_STRING && *node->text) return json_string(node->text);
    return spec_error(ctx, node->pos,
                      "'%s' must be a list of names of modules, such as [q_proj, v_proj], or a regular expression that "
                      "matches whole names",
                      key->path);
}

static json_t *convert_modules(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    if (node->kind == NODE_LIST && node->count) return convert_each(ctx, key, node, convert_module);
    if (node->kind == NODE_STRING && strcasecmp(node->text, all_linear) == 0) return json_string(all_linear);
    return convert_module(ctx, key, node);
}

static json_t *convert_pattern(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    const bool ranks = strcmp(spec_key_leaf(key->path), "rank_pattern") == 0;
    if (ranks ? node->kind == NODE_INT && node->integer >= 1 && node->integer <= 1 << 16
              : spec_is_number(node) && node->real > 0 && node->real < 1e15)
        return convert_any(ctx, key, node);
    return spec_error(ctx, node->pos, "'%s' must be a mapping to %s", key->path,
                      ranks ? "ranks, integers from 1 to 65536" : "values of lora_alpha, numbers above 0");
}

static json_t *convert_patterns(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    if (node->kind == NODE_MAPPING) return convert_each(ctx, key, node, convert_pattern);
    return spec_error(ctx, node->pos, "'%s' must be a mapping of names or regular expressions to numbers, {v_proj: 16}",
                      key->path);
}

static json_t *convert_block(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    if (node->kind == NODE_INT && node->integer >= 0) return json_integer(node->integer);
    return spec_error(ctx, node->pos, "'%s' must be the number of a block, the first is 0, or a list of these",
                      key->path);
}

/* ---- data.train as a mixture --------------------------------------------- */

/* A list of mappings, all with a weight or all with epochs; its JSON is the same list:
 *
 *     - {path: data/code, weight: 2.0}        - {path: data/code, epochs: 0.5} */

static const double largest_amount = 1e6;

static bool is_mixture(const struct spec_node *node)
{
    if (node->kind == NODE_MAPPING) return true;
    for (const struct spec_node *child = node->first; child; child = child->next)
        if (child->kind == NODE_MAPPING) return true;
    return false;
}

static bool parse_source_keys(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *source)
{
    static const char *const names[] = {"path", "weight", "epochs"};
    const int before = ctx->errors.count;
    for (const struct spec_node *child = source->first; child; child = child->next) {
        const char *near = nearest_name(child->key, names, COUNT_OF(names));
        const char *hint = near ? spec_arena_printf(ctx->arena, "did you mean '%s'?", near)
                                : "a source has a path, and a weight or epochs";
        if (!near || strcmp(child->key, near) != 0)
            spec_error(ctx, child->key_pos, "unknown key '%s' in a source of '%s'; hint: %s",
                       spec_show(ctx, child->key), key->path, hint);
    }
    return ctx->errors.count == before;
}

static const char *path_of(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *source)
{
    const struct spec_node *path = spec_child(source, "path");
    if (path && path->kind != NODE_NULL && path->kind != NODE_LIST && path->kind != NODE_MAPPING && *path->text)
        return spec_home_path(ctx, key->path, path);
    if (path)
        return spec_error(
            ctx, path->pos,
            "the path of a source of '%s' must be one text; hint: a Megatron-LM prefix, an llm.c .bin file, or "
            "a glob, whose shards form one source",
            key->path);
    return spec_error(ctx, source->pos, "a source of '%s' has no path; hint: write {path: …, weight: …}", key->path);
}

/* The node of the source's number, and its kind; NULL after an error. */
static const struct spec_node *amount_of(struct spec_context *ctx, const struct spec_key *key,
                                         const struct spec_node *source, enum spec_amount *amount)
{
    const struct spec_node *weight = spec_child(source, "weight"), *epochs = spec_child(source, "epochs");
    const struct spec_node *node = weight ? weight : epochs;
    if (!node || (weight && epochs))
        return spec_error(
            ctx, source->pos,
            "a source of '%s' has %s; hint: weight: its share of the samples, relative to the other sources, or "
            "epochs: how many passes over it are one epoch of the run",
            key->path, node ? "both a weight and epochs" : "neither a weight nor epochs");
    *amount = weight ? SPEC_AMOUNT_WEIGHT : SPEC_AMOUNT_EPOCHS;
    if (spec_is_number(node) && node->real > 0 && node->real <= largest_amount) return node;
    return spec_error(ctx, node->pos, "'%s' of a source of '%s' must be a number above 0, up to %.15g%s", node->key,
                      key->path, largest_amount,
                      node->kind == NODE_INT && node->integer == 0 ? "; hint: leave out a source that gives no sample"
                                                                   : "");
}

static json_t *convert_source(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *source,
                              enum spec_amount *amount)
{
    if (source->kind != NODE_MAPPING)
        return spec_error(
            ctx, source->pos,
            "'%s' is a mixture, so that each of its entries needs a path and a weight or epochs; hint: write "
            "{path: %s, weight: 1}, or list only paths",
            key->path, source->kind == NODE_STRING ? spec_show(ctx, source->text) : "…");
    if (!parse_source_keys(ctx, key, source)) return NULL;
    const char *path = path_of(ctx, key, source);
    const struct spec_node *number = amount_of(ctx, key, source, amount);
    if (!path || !number) return NULL;
    return json_pack("{sssf}", "path", path, spec_amount_names[*amount], number->real);
}

/* `source`, if it agrees with those before it (`list`, whose kind is `all`); else NULL. */
static json_t *fits(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node,
                    const json_t *list, json_t *source, enum spec_amount all, enum spec_amount amount)
{
    const char *path = json_string_value(json_object_get(source, "path"));
    if (amount != all)
        return spec_error(
            ctx, node->pos,
            "'%s' has a source with %s after one with %s: the two do not mix, as a weight is a share of the run "
            "and epochs are passes over a source; hint: use one of them for all sources",
            key->path, spec_amount_names[amount], spec_amount_names[all]);
    for (size_t i = 0; i < json_array_size(list); i++)
        if (strcmp(json_string_value(json_object_get(json_array_get(list, i), "path")), path) == 0)
            return spec_error(ctx, node->pos, "'%s' has the source '%s' twice; hint: name it once, with a larger %s",
                              key->path, spec_show(ctx, path), spec_amount_names[all]);
    return source;
}

static json_t *convert_sources(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    enum spec_amount all = SPEC_AMOUNT_NONE;
    bool good = true;
    if (node->kind == NODE_MAPPING)
        return spec_error(
            ctx, node->pos,
            "'%s' must be a path, or a list of paths or sources, not a mapping; hint: a mixture is a list, as "
            "in [{path: a, weight: 2}, {path: b, weight: 1}]",
            key->path);
    if (node->count > SPEC_MAX_SOURCES)
        return spec_error(ctx, node->pos,
                          "'%s' has %d sources, and a mixture has %d at most; hint: a glob is one source", key->path,
                          node->count, SPEC_MAX_SOURCES);
    json_auto_t *list = json_array();
    for (const struct spec_node *child = node->first; child; child = child->next) {
        enum spec_amount amount = SPEC_AMOUNT_NONE;
        json_t *source = convert_source(ctx, key, child, &amount);
        if (source && !all) all = amount;
        good = source && fits(ctx, key, child, list, source, all, amount) && good;
        if (source) json_array_append_new(list, source);
    }
    return good ? TAKEN(list) : NULL;
}

json_t *spec_key_convert(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    switch (key->type) {
    case KEY_BOOL:
        if (node->kind != NODE_BOOL) return wrong(ctx, key, node, "true or false");
        return json_boolean(node->boolean);
    case KEY_INT: return convert_int(ctx, key, node);
    case KEY_REAL: return convert_real(ctx, key, node);
    case KEY_REAL_PAIR: return convert_pair(ctx, key, node);
    case KEY_SIZE: return convert_size(ctx, key, node);
    case KEY_STRING: return convert_string(ctx, key, node, "text");
    case KEY_STRING_LIST: return convert_list(ctx, key, node);
    case KEY_SOURCES: return is_mixture(node) ? convert_sources(ctx, key, node) : convert_list(ctx, key, node);
    case KEY_PROMPTS: return convert_one_or_each(ctx, key, node, convert_prompt);
    case KEY_MODULES: return convert_modules(ctx, key, node);
    case KEY_PATTERNS: return convert_patterns(ctx, key, node);
    case KEY_BLOCKS: return convert_one_or_each(ctx, key, node, convert_block);
    case KEY_CHOICE: return convert_choice(ctx, key, node);
    case KEY_MODEL_CONFIG:
        if (node->kind == NODE_MAPPING) return convert_any(ctx, key, node);
        return convert_string(ctx, key, node, "the path of a config.json, or its keys as a mapping");
    case KEY_ANY: return convert_any(ctx, key, node);
    case KEY_SECTION:
    case KEY_FOREIGN:
    case KEY_ALIAS:
    case KEY_TYPE_COUNT: break;
    }
    BUG("'%s' has no value", key->path);
}

json_t *spec_key_default(const struct spec_key *key)
{
    if (!key->fallback || key->type == KEY_ALIAS) return NULL;
    RELEASED(spec_arena_release) struct spec_arena arena = {0};
    const char *sources[] = {"default"};
    struct spec_context ctx = {.arena = &arena, .sources = sources, .num_sources = 1};
    struct spec_node *node = spec_parse_yaml(&ctx, 0, key->fallback, strlen(key->fallback));
    json_t *value = node ? spec_key_convert(&ctx, key, node) : NULL;
    if (!value) BUG("the default of '%s' is refused", key->path);
    return value;
}

bool spec_key_is_default(const struct spec_key *key, const json_t *value)
{
    json_auto_t *usual = spec_key_default(key);
    return usual && json_equal(usual, value);
}

char *spec_json_text(const json_t *value)
{
    return value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15)) : memory_text("unset");
}

/* ---- fields -------------------------------------------------------------- */

struct spec_full *spec_full_new(void)
{
    struct spec_arena own = {0};
    struct spec_full *full = spec_arena_alloc(&own, sizeof *full); /* lives in the arena that it contains */
    full->arena = own;
    full->spec.private_ = full;
    full->lists = json_object();
    return full;
}

void spec_free(struct run_spec *spec)
{
    if (!spec) return;
    spec_free(spec->next);
    struct spec_arena arena = spec_full(spec)->arena;
    json_decref(spec->model.config);
    json_decref(spec_full(spec)->lists);
    spec_arena_release(&arena);
}

const char *const spec_amount_names[] = {
    [SPEC_AMOUNT_NONE] = NULL, [SPEC_AMOUNT_WEIGHT] = "weight", [SPEC_AMOUNT_EPOCHS] = "epochs"};

static void store_choice_field(void *field, const struct spec_key *key, const char *name)
{
    const struct spec_choice *choice = key->choices;
    while (strcmp(choice->name, name) != 0) choice++;
    if (key->size == sizeof(bool))
        *(bool *)field = choice->value != 0;
    else
        *(int *)field = choice->value;
}

static void store_prompts_field(struct spec_full *full, const json_t *value)
{
    const size_t count = json_array_size(value);
    struct spec_prompt *prompts = spec_arena_alloc(&full->arena, (count + 1) * sizeof *prompts);
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(value, i);
        const char *text = json_string_value(item);
        struct spec_prompt *prompt = &prompts[i];
        if (text) prompt->text = spec_arena_text(&full->arena, text);
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
    struct data_settings *data = &full->spec.data;
    const json_t *first = json_array_get(value, 0);
    json_auto_t *paths = json_array();
    json_t *source;
    size_t i;
    data->amount = !json_is_object(first)             ? SPEC_AMOUNT_NONE
                   : json_object_get(first, "weight") ? SPEC_AMOUNT_WEIGHT
                                                      : SPEC_AMOUNT_EPOCHS;
    const char *amount = spec_amount_names[data->amount];
    data->amounts = amount ? spec_arena_alloc(&full->arena, json_array_size(value) * sizeof *data->amounts) : NULL;
    json_array_foreach (value, i, source) {
        json_array_append(paths, amount ? json_object_get(source, "path") : source);
        if (amount) data->amounts[i] = json_number_value(json_object_get(source, amount));
    }
    spec_arena_list(&full->arena, &data->train, paths);
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

static void store_blocks(struct spec_full *full, const json_t *value)
{
    struct adapter_settings *adapter = &full->spec.adapter;
    adapter->num_layers_to_transform = (int)json_array_size(value);
    adapter->layers_to_transform =
        spec_arena_alloc(&full->arena, (json_array_size(value) + 1) * sizeof *adapter->layers_to_transform);
    for (int i = 0; i < adapter->num_layers_to_transform; i++)
        adapter->layers_to_transform[i] = json_integer_value(json_array_get(value, (size_t)i));
}

json_t *spec_number_json(double value)
{
    return value == floor(value) ? json_integer((json_int_t)value) : json_real(value);
}

json_t *spec_adapter_patterns(const struct pattern_value *patterns, int count)
{
    json_t *mapping = json_object();
    for (int i = 0; i < count; i++)
        json_object_set_new(mapping, patterns[i].pattern, spec_number_json(patterns[i].value));
    return mapping;
}

static json_t *store_patterns(struct spec_full *full, const struct spec_key *key, json_t *value)
{
    struct adapter_settings *adapter = &full->spec.adapter;
    const bool ranks = key->offset == offsetof(struct spec_full, spec.adapter.rank_pattern);
    struct pattern_value *patterns = spec_arena_alloc(&full->arena, (json_object_size(value) + 1) * sizeof *patterns);
    const char *pattern = "";
    json_t *item = NULL;
    int count = 0;
    json_object_foreach (value, pattern, item)
        patterns[count++] = (struct pattern_value){spec_arena_text(&full->arena, pattern), json_number_value(item)};
    *(ranks ? &adapter->rank_pattern : &adapter->alpha_pattern) = patterns;
    *(ranks ? &adapter->num_rank_patterns : &adapter->num_alpha_patterns) = count;
    json_decref(value);
    return spec_adapter_patterns(patterns, count);
}

/* The field of a list or mapping has not its JSON's form, which is kept for spec_key_fetch(). */
static void keep_list(struct spec_full *full, const struct spec_key *key, json_t *value)
{
    if (key->type < KEY_STRING_LIST || key->type > KEY_BLOCKS) return;
    json_object_del(full->lists, key->path);
    if (json_is_string(value) || json_array_size(value) || json_object_size(value))
        json_object_set(full->lists, key->path, value);
}

void spec_key_store(struct spec_full *full, const struct spec_key *key, json_t *value)
{
    ASSERT(key->size > 0);
    void *field = (char *)full + key->offset;
    const char *text = json_string_value(value);
    char *copy = text ? spec_arena_text(&full->arena, text) : NULL;
    switch (key->type) {
    case KEY_BOOL: *(bool *)field = json_is_true(value); break;
    case KEY_INT:
        if (key->size == sizeof(int))
            *(int *)field = (int)json_integer_value(value);
        else
            *(int64_t *)field = json_integer_value(value);
        break;
    case KEY_REAL: *(double *)field = value ? json_number_value(value) : -1; break;
    case KEY_REAL_PAIR:
        for (size_t i = 0; i < 2; i++) ((double *)field)[i] = json_number_value(json_array_get(value, i));
        break;
    case KEY_SIZE:
        *(int64_t *)field = 0;
        if (text && !size_parse(text, field)) BUG("'%s' holds '%s'", key->path, text);
        break;
    case KEY_STRING: *(char **)field = copy; break;
    case KEY_STRING_LIST: spec_arena_list(&full->arena, field, value); break;
    case KEY_SOURCES: store_sources_field(full, value); break;
    case KEY_PROMPTS: store_prompts_field(full, value); break;
    case KEY_MODULES: store_modules(full, field, value); break;
    case KEY_PATTERNS: value = store_patterns(full, key, value); break;
    case KEY_BLOCKS: store_blocks(full, value); break;
    case KEY_CHOICE: store_choice_field(field, key, text ? text : json_is_true(value) ? "true" : "false"); break;
    case KEY_MODEL_CONFIG:
        full->spec.model.config_path = copy;
        json_decref(full->spec.model.config);
        full->spec.model.config = json_is_object(value) ? json_incref(value) : NULL;
        break;
    default: BUG("'%s' has no field", key->path);
    }
    keep_list(full, key, value);
    json_decref(value);
}

static json_t *fetch_choice_field(const void *field, const struct spec_key *key)
{
    int value = key->size == sizeof(bool) ? *(const bool *)field : *(const int *)field;
    for (const struct spec_choice *choice = key->choices; choice->name; choice++)
        if (choice->verdict == VERDICT_USED && choice->value == value) return spec_choice_json(choice->name);
    BUG("'%s' holds %d", key->path, value);
}

json_t *spec_key_fetch(const struct spec_full *full, const struct spec_key *key)
{
    ASSERT(key->size > 0);
    const void *field = (const char *)full + key->offset;
    bool optional = !key->fallback;
    if (!spec_key_applies(full, key)) return NULL;
    switch (key->type) {
    case KEY_BOOL: return json_boolean(*(const bool *)field);
    case KEY_INT: {
        const int64_t value = key->size == sizeof(int) ? *(const int *)field : *(const int64_t *)field;
        return optional && value == 0 ? NULL : json_integer(value);
    }
    case KEY_REAL: {
        const double value = *(const double *)field;
        if (optional && value < 0) return NULL;
        return key->flags & KEY_WHOLE ? spec_number_json(value) : json_real(value);
    }
    case KEY_REAL_PAIR: return json_pack("[ff]", ((const double *)field)[0], ((const double *)field)[1]);
    case KEY_SIZE: {
        const int64_t bytes = *(const int64_t *)field;
        char text[SIZE_TEXT_MAX];
        return bytes ? json_string(size_format(bytes, text)) : NULL;
    }
    case KEY_STRING: return json_string(*(char *const *)field);
    case KEY_STRING_LIST:
    case KEY_SOURCES:
    case KEY_PROMPTS:
    case KEY_MODULES:
    case KEY_PATTERNS:
    case KEY_BLOCKS: return json_incref(json_object_get(full->lists, key->path));
    case KEY_CHOICE: return fetch_choice_field(field, key);
    case KEY_MODEL_CONFIG:
        if (full->spec.model.config) return json_incref(full->spec.model.config);
        return json_string(full->spec.model.config_path);
    default: BUG("'%s' has no field", key->path);
    }
}
