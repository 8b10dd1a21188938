/* spec_sources.c: data.train as a mixture, a list of mappings:
 *
 *     data:
 *       train:
 *         - {path: data/code, weight: 2.0}        or all of them      - {path: data/code, epochs: 0.5}
 *         - {path: data/prose, weight: 1.0}                           - {path: data/prose, epochs: 3}
 *
 * The JSON form is the same list. Also data.document_mask, whose value may follow from the data. */
#include "core/edit_distance.h"
#include "core/spec/spec_keys.h"

#include <string.h>

static const double largest_amount = 1e6;

static const char *const amount_names[] = {
    [SPEC_AMOUNT_NONE] = NULL, [SPEC_AMOUNT_WEIGHT] = "weight", [SPEC_AMOUNT_EPOCHS] = "epochs"};

bool spec_sources_is_mixture(const struct spec_node *node)
{
    if (node->kind == NODE_MAPPING)
        return true;
    for (const struct spec_node *child = node->first; child; child = child->next)
        if (child->kind == NODE_MAPPING)
            return true;
    return false;
}

/* ---- one source ---------------------------------------------------------- */

/* Reports the keys that a source does not have. Returns whether there are none. */
static bool check_source_keys(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *source)
{
    static const char *const names[] = {"path", "weight", "epochs"};
    bool good = true;
    for (const struct spec_node *child = source->first; child; child = child->next) {
        const char *hint = "a source has a path, and a weight or epochs";
        bool known = false;
        for (size_t i = 0; i < COUNT_OF(names); i++) {
            known = known || strcmp(child->key, names[i]) == 0;
            if (edit_distance(names[i], child->key) <= edit_distance_limit(child->key))
                hint = spec_arena_printf(ctx->arena, "did you mean '%s'?", names[i]);
        }
        if (!known)
            spec_error(ctx, child->key_pos, "unknown key '%s' in a source of '%s'; hint: %s",
                       spec_show(ctx, child->key), key->path, hint);
        good = good && known;
    }
    return good;
}

/* The source's path; NULL after an error. */
static const char *path_of(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *source)
{
    const struct spec_node *path = spec_child(source, "path");
    if (path && path->kind != NODE_NULL && path->kind != NODE_LIST && path->kind != NODE_MAPPING && *path->text)
        return spec_home_path(ctx, key->path, path);
    if (path)
        spec_error(ctx, path->pos,
                   "the path of a source of '%s' must be one text; hint: a Megatron-LM prefix, an llm.c .bin file, or "
                   "a glob, whose shards form one source",
                   key->path);
    else
        spec_error(ctx, source->pos, "a source of '%s' has no path; hint: write {path: …, weight: …}", key->path);
    return NULL;
}

/* The node of the source's number, and its kind; NULL after an error. */
static const struct spec_node *amount_of(struct spec_context *ctx, const struct spec_key *key,
                                         const struct spec_node *source, enum spec_amount *amount)
{
    const struct spec_node *weight = spec_child(source, "weight"), *epochs = spec_child(source, "epochs");
    const struct spec_node *node = weight ? weight : epochs;
    if (!node || (weight && epochs)) {
        spec_error(ctx, source->pos,
                   "a source of '%s' has %s; hint: weight: its share of the samples, relative to the other sources, or "
                   "epochs: how many passes over it are one epoch of the run",
                   key->path, node ? "both a weight and epochs" : "neither a weight nor epochs");
        return NULL;
    }
    *amount = weight ? SPEC_AMOUNT_WEIGHT : SPEC_AMOUNT_EPOCHS;
    if (spec_is_number(node) && node->real > 0 && node->real <= largest_amount)
        return node;
    spec_error(ctx, node->pos, "'%s' of a source of '%s' must be a number above 0, up to %.15g%s", node->key, key->path,
               largest_amount,
               node->kind == NODE_INT && node->integer == 0 ? "; hint: leave out a source that gives no sample" : "");
    return NULL;
}

/* A source as JSON; NULL after an error. */
static json_t *convert_source(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *source,
                              enum spec_amount *amount)
{
    if (source->kind != NODE_MAPPING) {
        spec_error(ctx, source->pos,
                   "'%s' is a mixture, so that each of its entries needs a path and a weight or epochs; hint: write "
                   "{path: %s, weight: 1}, or list paths only",
                   key->path, source->kind == NODE_STRING ? spec_show(ctx, source->text) : "…");
        return NULL;
    }
    if (!check_source_keys(ctx, key, source))
        return NULL;
    const char *path = path_of(ctx, key, source);
    const struct spec_node *number = amount_of(ctx, key, source, amount);
    if (!path || !number)
        return NULL;
    return json_pack("{sssf}", "path", path, amount_names[*amount], number->real);
}

/* ---- the list ------------------------------------------------------------ */

/* Whether a source agrees with those before it (`list`, whose kind is `all`). */
static bool fits(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node, const json_t *list,
                 const json_t *source, enum spec_amount all, enum spec_amount amount)
{
    const char *path = json_string_value(json_object_get(source, "path"));
    size_t i;
    const json_t *other;
    if (amount != all) {
        spec_error(ctx, node->pos,
                   "'%s' has a source with %s after one with %s: the two do not mix, as a weight is a share of the run "
                   "and epochs are passes over a source; hint: use one of them for all sources",
                   key->path, amount_names[amount], amount_names[all]);
        return false;
    }
    json_array_foreach(list, i, other) if (strcmp(json_string_value(json_object_get(other, "path")), path) == 0)
    {
        spec_error(ctx, node->pos, "'%s' has the source '%s' twice; hint: name it once, with a larger %s", key->path,
                   spec_show(ctx, path), amount_names[all]);
        return false;
    }
    return true;
}

json_t *spec_sources_convert(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    enum spec_amount all = SPEC_AMOUNT_NONE;
    bool good = true;
    if (node->kind == NODE_MAPPING) {
        spec_error(ctx, node->pos,
                   "'%s' must be a path, or a list of paths or sources, not a mapping; hint: a mixture is a list, as "
                   "in [{path: a, weight: 2}, {path: b, weight: 1}]",
                   key->path);
        return NULL;
    }
    if (node->count > SPEC_MAX_SOURCES) {
        spec_error(ctx, node->pos, "'%s' has %d sources, and a mixture has %d at most; hint: a glob is one source",
                   key->path, node->count, SPEC_MAX_SOURCES);
        return NULL;
    }
    json_t *list = json_array();
    for (const struct spec_node *child = node->first; child; child = child->next) {
        enum spec_amount amount;
        json_t *source = convert_source(ctx, key, child, &amount);
        if (source && !all)
            all = amount;
        good = source && fits(ctx, key, child, list, source, all, amount) && good;
        if (source)
            json_array_append_new(list, source);
    }
    if (good)
        return list;
    json_decref(list);
    return NULL;
}

void spec_sources_store(struct spec_full *full, const json_t *value)
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
        paths->items[i] = spec_arena_copy(&full->arena, path, strlen(path));
        full->spec.data.amounts[i] = json_number_value(json_object_get(source, amount_names[full->spec.data.amount]));
    }
}

json_t *spec_sources_fetch(const struct spec_full *full)
{
    json_t *list = json_array();
    for (int i = 0; i < full->spec.data.train.count; i++)
        json_array_append_new(list, json_pack("{sssf}", "path", full->spec.data.train.items[i],
                                              amount_names[full->spec.data.amount], full->spec.data.amounts[i]));
    return list;
}

/* ---- data.document_mask -------------------------------------------------- */

void spec_resolve_document_mask(struct run_spec *spec, bool has_masks)
{
    const bool matters = spec->data.packing != SPEC_PACKING_NONE && spec->model.task == TASK_CAUSAL_LM;
    if (spec->data.document_mask != SPEC_AUTO)
        return;
    spec_full(spec)->auto_document_mask = true;
    spec->data.document_mask = has_masks && matters ? SPEC_ON : SPEC_OFF;
}

bool spec_document_mask_was_auto(const struct run_spec *spec)
{
    return spec_full(spec)->auto_document_mask;
}
