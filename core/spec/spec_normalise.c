/* spec_normalise.c: brings a tree into the form of the key table, before files are merged and again after the
 * overrides.
 *
 * Old names become new ones, keys that pages print in the wrong place go where they belong, and values of another type
 * that DeepSpeed or Python takes are converted. What a person could not expect is a notice. */
#include "core/spec/spec_keys.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* `cpu_offload: true` stands for a section with `device: cpu`. */
static void normalise_offload(struct spec_context *ctx, struct spec_node *node)
{
    struct spec_node *device = spec_arena_alloc(ctx->arena, sizeof *device);
    *device = (struct spec_node){
        .kind = NODE_STRING, .pos = node->pos, .key_pos = node->key_pos, .key = "device", .text = "cpu"};
    node->kind = NODE_MAPPING;
    node->first = node->last = node->boolean ? device : NULL;
    node->count = node->boolean;
}

/* `zero_optimization: true` stands for stage 1. */
static void normalise_stage(struct spec_context *ctx, struct spec_node *zero)
{
    if (!zero || zero->kind != NODE_BOOL)
        return;
    struct spec_node *stage = spec_arena_alloc(ctx->arena, sizeof *stage);
    *stage = (struct spec_node){.kind = NODE_INT,
                                .pos = zero->pos,
                                .key_pos = zero->key_pos,
                                .key = "stage",
                                .text = zero->text,
                                .integer = zero->boolean,
                                .real = zero->boolean};
    zero->kind = NODE_MAPPING;
    zero->first = zero->last = stage;
    zero->count = 1;
}

/* Pages print `gradient_clipping: True`, which Python takes as 1.0. */
static void normalise_clipping(struct spec_context *ctx, struct spec_node *node)
{
    if (!node || node->kind != NODE_BOOL)
        return;
    const char *number = node->boolean ? "1.0" : "0.0";
    spec_notice(ctx, node->pos, "'gradient_clipping' %s is taken as %s, as in Python", node->boolean ? "true" : "false",
                number);
    node->kind = NODE_REAL;
    node->finite = true;
    node->real = node->boolean;
    node->text = number;
}

/* Accelerate's way to print nothing: `steps_per_print: Infinity`. */
static void normalise_print(struct spec_context *ctx, struct spec_node *node)
{
    static const char never[] = "1000000000";
    if (!node || node->kind != NODE_REAL || node->finite ||
        strncasecmp(node->text + strspn(node->text, "+."), "inf", 3) != 0)
        return;
    spec_notice(ctx, node->pos, "'steps_per_print' %s is taken as %s", node->text, never);
    node->kind = NODE_INT;
    node->integer = strtoll(never, NULL, 10);
    node->real = (double)node->integer;
    node->finite = true;
    node->text = never;
}

static void unlink_child(struct spec_node *parent, const struct spec_node *child)
{
    struct spec_node **link = &parent->first, *before = NULL;
    while (*link != child) {
        before = *link;
        link = &before->next;
    }
    *link = child->next;
    if (parent->last == child)
        parent->last = before;
    parent->count--;
}

/* Moves a key of the top level into the section to which it belongs, SECTION.NAME. */
static void move_into_section(struct spec_context *ctx, struct spec_node *root, struct spec_node *node,
                              const char *target)
{
    spec_notice(ctx, node->key_pos, "'%s' is taken as %s, where it belongs (DeepSpeed ignores it at top level)",
                node->key, target);
    unlink_child(root, node);
    node->key = spec_key_leaf(target);
    node->next = NULL;
    struct spec_node *section = spec_arena_alloc(ctx->arena, sizeof *section);
    *section = (struct spec_node){.kind = NODE_MAPPING,
                                  .pos = node->pos,
                                  .key_pos = node->key_pos,
                                  .key = spec_arena_copy(ctx->arena, target, spec_key_section_length(target)),
                                  .first = node,
                                  .last = node,
                                  .count = 1};
    struct spec_node whole = {.kind = NODE_MAPPING, .first = section, .last = section, .count = 1};
    spec_merge(ctx, root, &whole);
}

/* Moves `aio`, which tutorials print within zero_optimization, to the top level. */
static void move_aio(struct spec_context *ctx, struct spec_node *root)
{
    struct spec_node *node = spec_find(root, "zero_optimization.aio");
    if (!node)
        return;
    spec_notice(ctx, node->key_pos,
                "'zero_optimization.aio' is taken as aio, at top level (DeepSpeed ignores it in this section)");
    unlink_child(spec_child(root, "zero_optimization"), node);
    node->next = NULL;
    struct spec_node whole = {.kind = NODE_MAPPING, .first = node, .last = node, .count = 1};
    spec_merge(ctx, root, &whole);
}

/* Values 0 of a DeepSpeed file that mean nothing here: the default counts instead. */
static void leave_out_zeros(struct spec_context *ctx, struct spec_node *root)
{
    static const char *const paths[] = {"zero_optimization.sub_group_size", "fp16.min_loss_scale"};
    for (size_t i = 0; i < COUNT_OF(paths); i++) {
        struct spec_node *node = spec_find(root, paths[i]);
        bool zero = node && ((node->kind == NODE_INT && node->integer == 0) ||
                             (node->kind == NODE_REAL && node->finite && node->real == 0));
        if (!zero || node->pos.source != 1)
            continue;
        spec_notice(ctx, node->pos, "'%s' 0 is taken as the default, %s", paths[i], spec_key_find(paths[i])->fallback);
        unlink_child(spec_find(root, spec_arena_copy(ctx->arena, paths[i], spec_key_section_length(paths[i]))), node);
    }
}

static void rename_key(struct spec_context *ctx, struct spec_node *parent, struct spec_node *node, const char *name)
{
    bool twin = spec_child(parent, name) != NULL;
    if (node->kind == NODE_BOOL && strncmp(name, "offload_", 8) == 0)
        normalise_offload(ctx, node);
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
    normalise_stage(ctx, spec_child(root, "zero_optimization"));
    normalise_clipping(ctx, spec_child(root, "gradient_clipping"));
    normalise_print(ctx, spec_child(root, "steps_per_print"));
    leave_out_zeros(ctx, root);
    move_aio(ctx, root);
    for (int i = 0; i < spec_num_keys; i++) {
        const struct spec_key *key = &spec_keys[i];
        struct spec_node *node = key->type == KEY_ALIAS ? spec_find(root, key->path) : NULL;
        if (!node)
            continue;
        size_t length = spec_key_section_length(key->path);
        if (!length && spec_key_section_length(key->fallback))
            move_into_section(ctx, root, node, key->fallback);
        else
            rename_key(ctx, length ? spec_find(root, spec_arena_copy(ctx->arena, key->path, length)) : root, node,
                       spec_key_leaf(key->fallback));
    }
}
