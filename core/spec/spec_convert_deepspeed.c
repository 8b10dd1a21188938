/* SPDX-License-Identifier: Apache-2.0 */
/* spec_convert_deepspeed.c: a DeepSpeed configuration on top of a trainer's arguments. "auto" takes the argument; any
 * other value counts before it, and a note says it, where Trainer refuses to start. */
#include "core/spec/spec_convert_parts.h"

/* Reads it from the path, beside the last file or from the current folder. *root stays NULL if it is not there. */
static enum status deepspeed_read(struct convert *c, const char *path, bool must, struct spec_node **root,
                                  struct error *err)
{
    const char *beside = *path == '/' || strcmp(c->folder, ".") == 0 ? path : convert_text(c, "%s/%s", c->folder, path);
    const char *place = must || !fs_exists(beside) ? path : beside;
    OWNED char *text = NULL;
    size_t size;
    if (fs_is_absent(place)) {
        convert_note(c, "%s %s is not here: %sset zero_optimization.stage", must ? "--deepspeed" : "'deepspeed'", path,
                     must ? "" : "give it with --deepspeed, or ");
        return STATUS_OK;
    }
    TRY(convert_check_input(c, place, err));
    TRY(fs_read_file(place, SPEC_MAX_BYTES, STATUS_USAGE, &text, &size, err));
    c->ctx->sources[1] = place;
    *root = spec_parse_json(c->ctx, 1, text, size);
    if (*root && (*root)->kind != NODE_MAPPING) spec_error(c->ctx, (*root)->pos, "the file must be a mapping");
    if (c->ctx->errors.count == 0) return STATUS_OK;
    spec_problems_print(c->ctx, &c->ctx->errors, c->errors);
    return error_set(err, STATUS_USAGE, "'%s' is not a DeepSpeed configuration", place);
}

static const char *deepspeed_text(struct convert *c, const struct spec_key *key, const struct spec_node *node)
{
    json_auto_t *value = spec_key_convert(c->ctx, key, node);
    OWNED char *text = value ? spec_json_text(value) : NULL;
    return text ? spec_arena_text(c->ctx->arena, text) : "";
}

static void deepspeed_value(struct convert *c, const struct spec_key *key, struct spec_node *node)
{
    const struct spec_node *mine = spec_find(c->to, key->path);
    json_auto_t *value = spec_key_convert(c->ctx, key, node);
    const bool same = value && spec_key_is_default(key, value);
    if (!value || (same && (key->verdict != VERDICT_USED || !mine))) {
        /* wrong: the error becomes a note; or it asks for what ztrain does */
    } else if (key->verdict == VERDICT_NOTICE) {
        convert_nothing(c, key->path);
    } else if (key->verdict != VERDICT_USED) {
        convert_note(c, "'%s' is left out: %s", key->path, key->help);
    } else {
        if (mine && convert_is_given(mine) && strcmp(deepspeed_text(c, key, mine), deepspeed_text(c, key, node)) != 0)
            convert_note(c, "'%s' is %s in the DeepSpeed configuration, which counts, and %s in the arguments",
                         key->path, deepspeed_text(c, key, node), deepspeed_text(c, key, mine));
        convert_set(c, key->path, node);
    }
}

static void deepspeed_key(struct convert *c, const struct spec_key *key, struct spec_node *node)
{
    if (key->type == KEY_SECTION || key->type == KEY_ALIAS || node->kind == NODE_NULL) return;
    if (key->type == KEY_FOREIGN) {
        if (spec_foreign_is_on(node) && key->verdict == VERDICT_NOTICE)
            convert_nothing(c, key->path);
        else if (spec_foreign_is_on(node))
            convert_note(c, "'%s' is left out: %s", key->path, key->help);
        return;
    }
    if (spec_is_quoted_value(key, node)) {
        node->plain = true;
        spec_yaml_plain(node);
    }
    if (!spec_is_auto(node) || key->type == KEY_STRING || key->type == KEY_ANY)
        deepspeed_value(c, key, node);
    else if (!spec_find(c->to, key->path) && key->verdict == VERDICT_USED && key->flags & KEY_AUTO &&
             key->type != KEY_BOOL && !(key->flags & KEY_NEEDED) && strchr(key->path, '.')) /* it follows from others */
        convert_set(c, key->path, node);
}

/* A scheduler of DeepSpeed's takes the place of the arguments', but for their warm-up. */
static void deepspeed_scheduler(struct convert *c, struct spec_node *root)
{
    struct spec_node *type = spec_find(root, "scheduler.type");
    const struct spec_key *key = spec_key_find("scheduler.type");
    if (!type || type->kind != NODE_STRING) return;
    if (!spec_choice_is_available(key, type->text)) {
        convert_note(c, "'scheduler.type' %s is not here: the schedule of the arguments counts", convert_show(c, type));
        spec_unlink(root, spec_child(root, "scheduler"));
        return;
    }
    const struct spec_node *steps = spec_find(c->to, "scheduler.params.warmup_steps");
    const struct spec_node *ratio = spec_find(c->to, "scheduler.params.warmup_ratio");
    struct spec_node *warmup = spec_find(root, "scheduler.params.warmup_num_steps");
    const bool takes = spec_is_auto(warmup);
    if (c->schedule)
        convert_note(c, "'%s' %s: the schedule %s of the DeepSpeed configuration counts, as in Trainer",
                     c->schedule->key, convert_show(c, c->schedule), convert_show(c, type));
    convert_unset(c, "scheduler");
    if (takes) warmup->kind = NODE_NULL;
    if (takes && steps)
        convert_set(c, "scheduler.params.warmup_num_steps", steps);
    else if (takes && ratio)
        convert_set(c, "scheduler.params.warmup_ratio", ratio);
    else if (takes)
        convert_set_yaml(c, "scheduler.params.warmup_num_steps", "0");
}

/* DeepSpeed's optimizer counts; one that ztrain lacks is left out with its parameters. */
static void deepspeed_optimizer(struct convert *c, struct spec_node *root)
{
    const struct spec_node *type = spec_find(root, "optimizer.type");
    const struct spec_key *key = spec_key_find("optimizer.type");
    const struct spec_node *mine = spec_find(c->to, key->path);
    if (!type || type->kind != NODE_STRING) return;
    if (!spec_choice_is_available(key, type->text)) {
        convert_note(c, "'optimizer.type' %s is not here: the optimizer of the arguments counts",
                     convert_show(c, type));
        spec_unlink(root, spec_child(root, "optimizer"));
    } else if (c->optimizer && mine && strcmp(deepspeed_text(c, key, type), deepspeed_text(c, key, mine)) != 0 &&
               strcasecmp(type->text, "adam") != 0) {
        convert_note(c, "'%s' %s: the optimizer %s of the DeepSpeed configuration counts, as in Trainer",
                     c->optimizer->key, convert_show(c, c->optimizer), convert_show(c, type));
    }
}

/* Of bf16 and fp16 the one that the DeepSpeed configuration switches on counts. */
static void deepspeed_precision(struct convert *c, const struct spec_node *root)
{
    const bool bf16 = spec_is_true(spec_find(root, "bf16.enabled"));
    const char *other = bf16 ? "fp16" : "bf16";
    if (bf16 == spec_is_true(spec_find(root, "fp16.enabled")) ||
        !spec_is_true(spec_find(c->to, bf16 ? "fp16.enabled" : "bf16.enabled")))
        return;
    convert_note(c, "%s of the DeepSpeed configuration counts, and %s is left out", bf16 ? "bf16" : "fp16", other);
    convert_unset(c, other);
}

enum status convert_deepspeed(struct convert *c, struct spec_node *named, struct error *err)
{
    static const char *const parts[] = {"train_micro_batch_size_per_gpu", "gradient_accumulation_steps"};
    struct spec_node *root = NULL;
    int known = 0;
    if (c->deepspeed)
        TRY(deepspeed_read(c, c->deepspeed, true, &root, err));
    else if (named && named->kind == NODE_MAPPING)
        root = named;
    else if (named && named->kind == NODE_STRING && *named->text)
        TRY(deepspeed_read(c, named->text, false, &root, err));
    if (!root) return STATUS_OK;
    convert_mark(root, 1);
    root->key = NULL;
    spec_normalise(c->ctx, root);
    deepspeed_optimizer(c, root);
    deepspeed_scheduler(c, root);
    for (const struct spec_key *key = spec_keys; key->path; key++) {
        struct spec_node *node = spec_find(root, key->path);
        if (node) deepspeed_key(c, key, node);
        known += node != NULL;
    }
    if (!known && root->count)
        return error_set(err, STATUS_USAGE, "'%s' is not a DeepSpeed configuration: it has none of its keys",
                         root == named ? "deepspeed" : c->ctx->sources[1]);
    for (size_t i = 0; spec_is_number(spec_child(root, "train_batch_size")) && i < COUNT_OF(parts); i++)
        if (!convert_is_given(spec_child(c->to, parts[i]))) /* it leaves these to the number of ranks */
            convert_unset(c, parts[i]);
    deepspeed_precision(c, root);
    spec_find_unknown(c->ctx, root, root, "");
    for (int i = 0; i < c->ctx->errors.count; i++) { /* they become notes: what is wrong was left out */
        const char *text = c->ctx->errors.items[i].text;
        const char *more = strstr(text, "; --set "); /* the advice to leave it out */
        convert_note(c, "%s: left out: %.*s", spec_pos_text(c->ctx, c->ctx->errors.items[i].pos),
                     (int)(more ? (size_t)(more - text) : strlen(text)), text);
    }
    c->ctx->errors.count = 0;
    return STATUS_OK;
}
