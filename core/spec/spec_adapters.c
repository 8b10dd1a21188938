/* SPDX-License-Identifier: Apache-2.0 */
/* spec_adapters.c: `peft` as a list: several adapters on one base. Each item makes a spec of its own, the one that
 * would train this adapter alone: the keys of the item take the place of the spec's.
 *
 *     run: {name: R, dir: D}                    run: {name: french, dir: D/R}
 *     peft:                                     peft: {r: 8}
 *       - {name: french, r: 8,             ->   data: {train: fr, …}
 *          data: {train: fr}}
 *       - … */
#include "core/spec/spec_keys.h"

/* What an item may set beside the keys of `peft`. */
static const char own_sections[] =
    "data data.* optimizer optimizer.* scheduler scheduler.* gradient_clipping model model.*";

/* Puts an item's value in the place of the spec's, key by key in sections. path: of the value. */
static void put_in_place(struct spec_context *ctx, struct spec_node *root, const char *path,
                         const struct spec_node *value)
{
    const struct spec_key *key = spec_key_find(path);
    const struct spec_node *there = spec_find(root, path);
    if (value->kind == NODE_MAPPING && key && key->type == KEY_SECTION)
        for (const struct spec_node *child = value->first; child; child = child->next)
            put_in_place(ctx, root, spec_arena_printf(ctx->arena, "%s.%s", path, child->key), child);
    else if (strncmp(path, "model.", 6) == 0 && strcmp(path, "model.adapter") != 0)
        spec_error(ctx, value->key_pos, "an adapter of several has no '%s' of its own: they have one base", path);
    else if (!there || there->key_pos.source < 2) /* --set is for all */
        spec_override(ctx, root, spec_arena_printf(ctx->arena, "%s=", path), spec_copy(ctx, value));
}

/* The name of an item; NULL after an error. */
static const struct spec_node *name_of_item(struct spec_context *ctx, const struct spec_node *item)
{
    const struct spec_node *name = spec_child(item, "name");
    if (item->kind != NODE_MAPPING)
        return spec_error(ctx, item->pos, "an adapter must be a mapping: {name: french, r: 8}");
    if (!name)
        return spec_error(ctx, item->pos,
                          "this adapter has no name; hint: {name: french, …}, as its run folder is called");
    if (name->kind != NODE_STRING || !*name->text)
        return spec_error(ctx, name->pos, "the name of an adapter must be a text; hint: in quotes, if it is a number");
    return name;
}

bool spec_adapters_check(struct spec_context *ctx, const struct spec_node *list)
{
    bool good = list->count > 0 && list->count <= SPEC_MAX_ADAPTERS;
    if (!good)
        spec_error(ctx, list->pos, "'peft' is a list of %d adapters, and may be one of 1 to %d", list->count,
                   SPEC_MAX_ADAPTERS);
    for (const struct spec_node *item = list->first; item && good; item = item->next) {
        const struct spec_node *name = name_of_item(ctx, item);
        good = name != NULL;
        for (const struct spec_node *other = list->first; good && other != item; other = other->next)
            if (strcmp(spec_child(other, "name")->text, name->text) == 0)
                good = spec_error(ctx, name->pos, "two adapters have the name '%s'", spec_show(ctx, name->text));
    }
    return good;
}

struct spec_node *spec_adapters_pick(struct spec_context *ctx, const struct spec_node *root,
                                     const struct spec_node *item)
{
    struct spec_node *picked = spec_copy(ctx, root), *peft = spec_child(picked, "peft");
    *peft = (struct spec_node){
        .kind = item->kind, .pos = item->pos, .key = peft->key, .key_pos = peft->key_pos, .next = peft->next};
    for (const struct spec_node *child = item->first; child; child = child->next)
        if (strcmp(child->key, "name") == 0)
            spec_override(ctx, picked, "run.name=", spec_copy(ctx, child));
        else if (spec_has_word(own_sections, child->key))
            put_in_place(ctx, picked, child->key, child);
        else
            spec_attach(ctx, peft, spec_copy(ctx, child));
    return picked;
}
