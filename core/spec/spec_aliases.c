/* SPDX-License-Identifier: Apache-2.0 */
/* spec_aliases.c: old names become new ones, keys in a wrong place go where they belong, and values of another type
 * that DeepSpeed or Python takes are converted: before files are merged, and again after the overrides. */
#include "core/spec/spec_keys.h"

/* Puts YAML in the place of a value, as if it were written there. */
static void alias_value(struct spec_context *ctx, struct spec_node *node, const char *yaml)
{
    const struct spec_node was = *node;
    *node = *spec_parse_yaml(ctx, was.pos.source, yaml, strlen(yaml));
    node->pos = was.pos;
    node->key_pos = was.key_pos;
    node->key = was.key;
    node->next = was.next;
    node->was_auto = was.was_auto;
    if (node->first) {
        node->first->pos = was.pos;
        node->first->key_pos = was.key_pos;
    }
}

/* `zero_optimization: true` stands for stage 1. */
static void alias_stage(struct spec_context *ctx, struct spec_node *zero)
{
    if (!zero || zero->kind != NODE_BOOL) return;
    const char *text = zero->text;
    alias_value(ctx, zero, zero->boolean ? "{stage: 1}" : "{stage: 0}");
    zero->first->text = text;
}

/* Pages print `gradient_clipping: True`, which Python takes as 1.0. */
static void alias_clipping(struct spec_context *ctx, struct spec_node *node)
{
    if (!node || node->kind != NODE_BOOL) return;
    const char *number = node->boolean ? "1.0" : "0.0";
    spec_notice(ctx, node->pos, "'gradient_clipping' %s is taken as %s, as in Python", node->boolean ? "true" : "false",
                number);
    alias_value(ctx, node, number);
}

/* Accelerate's way to print nothing, `steps_per_print: Infinity`, and that of others, a number beyond any run. */
static void alias_print(struct spec_context *ctx, struct spec_node *node)
{
    static const char never[] = "1000000000";
    if (!spec_is_number(node) || !(node->real > spec_key_find("steps_per_print")->max)) return;
    spec_notice(ctx, node->pos, "'steps_per_print' %s is taken as %s", node->text, never);
    alias_value(ctx, node, never);
}

static void alias_merge_at_top(struct spec_context *ctx, struct spec_node *root, struct spec_node *node)
{
    struct spec_node whole = {.kind = NODE_MAPPING, .first = node, .last = node, .count = 1};
    spec_merge(ctx, root, &whole);
}

static void alias_to_section(struct spec_context *ctx, struct spec_node *root, struct spec_node *node,
                             const char *target)
{
    spec_notice(ctx, node->key_pos, "'%s' is taken as %s, where it belongs (DeepSpeed ignores it at top level)",
                node->key, target);
    spec_unlink(root, node);
    node->key = spec_key_leaf(target);
    node->next = NULL;
    struct spec_node *section = spec_arena_alloc(ctx->arena, sizeof *section);
    *section = (struct spec_node){
        .kind = NODE_MAPPING, .pos = node->pos, .key_pos = node->key_pos, .first = node, .last = node, .count = 1};
    section->key = spec_arena_copy(ctx->arena, target, spec_key_section_length(target));
    alias_merge_at_top(ctx, root, section);
}

/* Python takes 0 and 1 as truth values, and so does DeepSpeed. */
static void alias_as_bool(struct spec_node *node)
{
    if (!node || node->kind != NODE_INT || node->integer < 0 || node->integer > 1) return;
    node->kind = NODE_BOOL;
    node->boolean = node->integer == 1;
}

/* Values 0 of a DeepSpeed file that mean nothing here: the default counts instead. */
static void alias_drop_zeros(struct spec_context *ctx, struct spec_node *root)
{
    static const char *const paths[] = {"zero_optimization.sub_group_size", "fp16.min_loss_scale"};
    for (size_t i = 0; i < COUNT_OF(paths); i++) {
        struct spec_node *node = spec_find(root, paths[i]);
        if (!spec_is_number(node) || node->real != 0 || node->pos.source != 1) continue;
        spec_notice(ctx, node->pos, "'%s' 0 is taken as the default, %s", paths[i], spec_key_find(paths[i])->fallback);
        spec_unlink(spec_find(root, spec_arena_copy(ctx->arena, paths[i], spec_key_section_length(paths[i]))), node);
    }
}

static void rename_key(struct spec_context *ctx, struct spec_node *parent, struct spec_node *node, const char *name)
{
    bool twin = spec_child(parent, name) != NULL;
    const bool offloads = strncmp(name, "offload_", 8) == 0;
    if (offloads) alias_as_bool(node);
    if (offloads && node->kind == NODE_BOOL) /* `cpu_offload: true` stands for a section */
        alias_value(ctx, node, node->boolean ? "{device: cpu}" : "{}");
    node->key = name;
    if (twin) { /* both names are present: merged as if from two files */
        struct spec_node all = *parent;
        *parent = (struct spec_node){
            .kind = NODE_MAPPING, .pos = all.pos, .key_pos = all.key_pos, .key = all.key, .next = all.next};
        spec_merge(ctx, parent, &all);
    }
}

void spec_normalise(struct spec_context *ctx, struct spec_node *root)
{
    alias_stage(ctx, spec_child(root, "zero_optimization"));
    alias_clipping(ctx, spec_child(root, "gradient_clipping"));
    alias_print(ctx, spec_child(root, "steps_per_print"));
    alias_drop_zeros(ctx, root);
    const struct spec_node *clipping = spec_child(root, "gradient_clipping");
    if (clipping && clipping->kind == NODE_NULL && clipping->pos.source == 1) /* no value there: the default counts */
        spec_unlink(root, clipping);
    for (const struct spec_key *key = spec_keys; key->path; key++) {
        struct spec_node *node = key->type == KEY_ALIAS ? spec_find(root, key->path) : NULL;
        if (!node) continue;
        size_t length = spec_key_section_length(key->path), target = spec_key_section_length(key->fallback);
        struct spec_node *parent = length ? spec_find(root, spec_arena_copy(ctx->arena, key->path, length)) : root;
        if (!length && target) {
            alias_to_section(ctx, root, node, key->fallback);
        } else if (length && !target) {
            spec_notice(ctx, node->key_pos, "'%s' is taken as %s, at top level (DeepSpeed ignores it in this section)",
                        key->path, node->key);
            spec_unlink(parent, node);
            node->next = NULL;
            alias_merge_at_top(ctx, root, node);
        } else {
            rename_key(ctx, parent, node, spec_key_leaf(key->fallback));
        }
    }
    for (const struct spec_key *key = spec_keys; key->path; key++)
        if (key->type == KEY_BOOL && spec_auto_is_allowed(key)) alias_as_bool(spec_find(root, key->path));
}
