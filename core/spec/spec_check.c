/* SPDX-License-Identifier: Apache-2.0 */
/* spec_check.c: checks a tree against the key table: unknown keys, type, range and verdict of each value, which is
 * stored, or its default; then the rules that tie keys together. A wrong key is left out of later passes. */
#include "core/spec/spec_keys.h"

/* A section of DeepSpeed's that ztrain lacks is on if anything in it is enabled, or if it has content but no switch. */
static void check_switches(const struct spec_node *node, bool *has_switch, bool *on)
{
    for (const struct spec_node *child = node->first; child; child = child->next) {
        if (child->key && strcmp(child->key, "enabled") == 0) {
            *has_switch = true;
            *on = *on || (child->kind == NODE_BOOL  ? child->boolean
                          : child->kind == NODE_INT ? child->integer != 0
                                                    : child->kind != NODE_NULL && !spec_is_auto(child));
        }
        check_switches(child, has_switch, on);
    }
}

bool spec_foreign_is_on(const struct spec_node *node)
{
    bool has_switch = false, on = false;
    if (node->kind == NODE_NULL) return false;
    if (node->kind == NODE_BOOL) return node->boolean;
    if (node->kind == NODE_INT) return node->integer != 0;
    if (node->kind != NODE_MAPPING) return true;
    check_switches(node, &has_switch, &on);
    return on || (!has_switch && node->count > 0);
}

static void check_verdict(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    if (key->verdict == VERDICT_LATER)
        spec_error(ctx, node->key_pos, "'%s' is not supported yet: %s; hint: remove it%s%s", key->path, key->help,
                   key->fallback ? " or leave it at " : "", key->fallback ? key->fallback : "");
    else if (key->verdict == VERDICT_REFUSED)
        spec_error(ctx, node->key_pos, "'%s' is not supported: %s", key->path, key->help);
    else if (key->verdict == VERDICT_NOTICE)
        spec_notice(ctx, node->key_pos, "'%s' has no effect here: %s", key->path, key->help);
}

/* Whether "auto" is not a value of the key: a text, or a choice of this name. */
static bool stands_for_another(const struct spec_key *key)
{
    return key->type != KEY_STRING && key->type != KEY_STRING_LIST && key->type != KEY_SOURCES &&
           key->type != KEY_PROMPTS && key->type != KEY_MODULES && key->type != KEY_MODEL_CONFIG &&
           key->type != KEY_ANY && !(key->choices && spec_choice_is_available(key, "auto"));
}

static void check_auto(struct spec_context *ctx, struct spec_full *full, const struct spec_key *key,
                       const struct spec_node *node)
{
    if (!spec_auto_is_allowed(key)) {
        spec_error(ctx, node->pos, "'%s' cannot be derived from \"auto\"; hint: write a value%s%s%s", key->path,
                   key->fallback ? " (default: " : "", key->fallback ? key->fallback : "", key->fallback ? ")" : "");
    } else if (!(key->flags & KEY_NEEDED)) { /* else by the rule that needs it */
        if (key->size) spec_key_store(full, key, spec_auto_value(key));
        spec_auto_record(full, key, NULL);
    }
}

static void check_value(struct spec_context *ctx, struct spec_full *full, const struct spec_key *key,
                        const struct spec_node *node)
{
    if (node->kind == NODE_NULL && (!key->fallback || key->verdict != VERDICT_USED || key->flags & KEY_NULL))
        return;                                             /* these have no value anyway */
    if (node->kind == NODE_NULL && node->pos.source == 1) { /* Python's None; an empty value in a run spec is a slip */
        spec_notice(ctx, node->pos, "'%s' is null and is taken as the default, %s", key->path, key->fallback);
        return;
    }
    if (spec_is_auto(node) && stands_for_another(key)) {
        check_auto(ctx, full, key, node);
        return;
    }
    struct spec_node bare = *node;
    if (node->pos.source == 1 && spec_is_quoted_value(key, node)) { /* DeepSpeed converts such text */
        bare.plain = true;
        spec_yaml_plain(&bare);
        spec_notice(ctx, node->pos, "'%s' is text in quotes and is taken as %s", key->path, node->text);
    }
    json_auto_t *value = spec_key_convert(ctx, key, &bare);
    if (!value) return;
    if (!spec_key_is_default(key, value)) check_verdict(ctx, key, node);
    if (key->size) spec_key_store(full, key, json_incref(value));
    if (node->was_auto && stands_for_another(key)) spec_auto_record(full, key, spec_pos_text(ctx, node->key_pos));
}

static const char *check_params_of(struct spec_context *ctx, const struct spec_full *full, const char *section)
{
    const char *names = "";
    for (const struct spec_key *key = spec_keys; key->path; key++)
        if (spec_key_in(key, section) && key->verdict == VERDICT_USED && spec_key_applies(full, key))
            names = spec_arena_printf(ctx->arena, "%s%s%s", names, *names ? ", " : "", spec_key_leaf(key->path));
    return names;
}

/* A parameter that the optimizer or scheduler in use does not have. "auto" asks for nothing, so it is left out. */
static void refuse_param(struct spec_context *ctx, const struct spec_full *full, const struct spec_key *key,
                         const struct spec_node *node)
{
    const char *section = key->schedules ? "scheduler.params" : "optimizer.params";
    const char *type =
        key->schedules ? schedule_name(full->spec.scheduler.type) : optimizer_name(full->spec.optimizer.type);
    if (spec_is_auto(node))
        spec_notice(ctx, node->key_pos, "'%s' is \"auto\" and is left out: it is not a parameter of %s", key->path,
                    type);
    else
        spec_error(ctx, node->key_pos, "'%s' is not a parameter of %s; hint: its parameters are %s", key->path, type,
                   check_params_of(ctx, full, section));
}

static const char *check_hint_section(struct spec_context *ctx, const struct spec_key *key,
                                      const struct spec_node *node)
{
    const char *member = node->kind == NODE_STRING && !spec_is_auto(node) ? "type" : "enabled";
    const struct spec_key *inner = spec_key_find(spec_arena_printf(ctx->arena, "%s.%s", key->path, member));
    if (!inner || (node->kind != NODE_STRING && node->kind != NODE_BOOL)) return "--help-spec lists them";
    bool available = spec_choice_is_available(inner, node->text);
    return spec_arena_printf(ctx->arena, "write %s: {%s: %s}%s", key->path, member,
                             available ? spec_show(ctx, node->text) : inner->fallback,
                             available ? "" : ", or another one that --help-spec lists");
}

static void check_row(struct spec_context *ctx, struct spec_full *full, const struct spec_node *root,
                      const struct spec_key *key)
{
    const struct spec_node *node = spec_find(root, key->path);
    const int hint = key->help ? (int)strcspn(key->help, ";") : 0; /* where the help's first part ends */
    const bool applies = spec_key_applies(full, key);
    if (key->size && (applies || !key->schedules)) /* fields of schedules are shared */
        spec_key_store(full, key, spec_key_default(key));
    if (!node && key->flags & KEY_REQUIRED)
        spec_error(ctx, (struct spec_pos){0, 1, 1}, "'%s' is missing; hint: %.*s", key->path, hint, key->help);
    if (!node) return;
    const char *section = spec_arena_copy(ctx->arena, key->path, spec_key_section_length(key->path));
    if (spec_is_unknown_territory(root, section)) return;
    if (key->type == KEY_SECTION) {
        if (node->kind != NODE_MAPPING && node->kind != NODE_NULL)
            spec_error(ctx, node->pos, "'%s' must be a section: keys with values, indented below it; hint: %s",
                       key->path, check_hint_section(ctx, key, node));
    } else if (key->type == KEY_FOREIGN) {
        if (spec_foreign_is_on(node)) check_verdict(ctx, key, node);
    } else if (!applies) {
        if (key->optimizers || spec_find(root, "scheduler.type")) refuse_param(ctx, full, key, node);
    } else if (key->type != KEY_ALIAS) {
        check_value(ctx, full, key, node);
        if (key->flags & KEY_REQUIRED && node->kind == NODE_NULL)
            spec_error(ctx, node->key_pos, "'%s' has no value; hint: %.*s", key->path, hint, key->help);
    }
}

void spec_check(struct spec_context *ctx, struct spec_full *full, struct spec_node *root, bool complete)
{
    spec_normalise(ctx, root); /* overrides may have old names as well */
    spec_find_unknown(ctx, root, root, "");
    full->spec.scheduler.warmup_max_lr = -1;
    const struct spec_node *peft = spec_child(root, "peft");
    full->spec.adapter.on = peft && peft->kind == NODE_MAPPING;
    if (peft && peft->kind == NODE_NULL)
        spec_notice(ctx, peft->key_pos,
                    "'peft' is empty, and all weights are trained; hint: peft: {} is PEFT's default");
    for (const struct spec_key *key = spec_keys; key->path; key++) check_row(ctx, full, root, key);
    if (complete) /* else keys of the missing file could matter to the rules */
        spec_apply_rules(ctx, full, root);
}
