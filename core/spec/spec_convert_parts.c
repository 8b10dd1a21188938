/* SPDX-License-Identifier: Apache-2.0 */
/* spec_convert_parts.c: what the rules of a conversion take, set and note. */
#include "core/spec/spec_convert_parts.h"

struct spec_node *convert_take(struct convert *c, const char *name)
{
    struct spec_node *node = spec_child(c->from, name);
    if (!node) return NULL;
    spec_unlink(c->from, node);
    node->next = NULL;
    return node->kind == NODE_NULL ? NULL : node;
}

char *convert_text(struct convert *c, const char *format, ...)
{
    char *text;
    WITH_ARGS(format, text = spec_arena_vprintf(c->ctx->arena, format, args));
    return text;
}

const char *convert_word(struct convert *c, const char **words)
{
    const char *start = *words + strspn(*words, " ");
    const size_t length = strcspn(start, " ");
    *words = start + length;
    return length ? spec_arena_copy(c->ctx->arena, start, length) : NULL;
}

struct spec_node *convert_take_one(struct convert *c, const char *names)
{
    struct spec_node *taken = NULL;
    for (const char *name; (name = convert_word(c, &names));) {
        struct spec_node *node = convert_take(c, name);
        if (node && (!taken || convert_is_given(node))) taken = node;
    }
    return taken;
}

const char *convert_take_text(struct convert *c, const char *name)
{
    const struct spec_node *node = convert_take(c, name);
    if (node && !node->text && node->count) convert_odd(c, node);
    return node && node->text && *node->text ? node->text : NULL;
}

struct spec_node *convert_json(struct convert *c, struct spec_node *node)
{
    const char *source = "";
    struct spec_context ctx = {.arena = c->ctx->arena, .sources = &source, .num_sources = 1};
    if (!node || node->kind != NODE_STRING || *node->text != '{') return node;
    struct spec_node *root = spec_parse_json(&ctx, 0, node->text, strlen(node->text));
    if (!root || root->kind != NODE_MAPPING || ctx.errors.count) return node;
    root->key = node->key;
    root->key_pos = node->key_pos;
    return root;
}

struct spec_node *convert_take_mapping(struct convert *c, const char *name)
{
    struct spec_node *node = convert_json(c, convert_take(c, name));
    if (!node || node->kind == NODE_MAPPING) return node;
    if (convert_is_on(node)) convert_odd(c, node);
    return NULL;
}

bool convert_is_on(const struct spec_node *node)
{
    if (!node) return false;
    switch (node->kind) {
    case NODE_NULL: return false;
    case NODE_BOOL: return node->boolean;
    case NODE_INT:
    case NODE_REAL: return node->real != 0;
    case NODE_STRING:
        return *node->text && strcasecmp(node->text, "none") != 0 && strcasecmp(node->text, "no") != 0 &&
               strcasecmp(node->text, "false") != 0;
    case NODE_LIST:
    case NODE_MAPPING: return node->count > 0;
    }
    BUG("a node of kind %d", (int)node->kind);
}

bool convert_truth(struct convert *c, const struct spec_node *node)
{
    static const char *const words[] = {"true", "yes", "on", "1", "auto"};
    bool known = !convert_is_on(node) || (node->kind != NODE_STRING && !node->count);
    for (size_t i = 0; !known && node->kind == NODE_STRING && i < COUNT_OF(words); i++)
        known = strcasecmp(node->text, words[i]) == 0;
    if (!known) convert_odd(c, node);
    return known && convert_is_on(node);
}

bool convert_take_switch(struct convert *c, const char *name)
{
    return convert_truth(c, convert_take(c, name));
}

struct spec_node *convert_child(const struct spec_node *mapping, const char *key)
{
    struct spec_node *node = spec_child(mapping, key);
    if (node) node->taken = true;
    return node;
}

const char *convert_child_text(const struct spec_node *mapping, const char *key)
{
    const struct spec_node *node = spec_child(mapping, key);
    return node && node->kind == NODE_STRING ? convert_child(mapping, key)->text : NULL;
}

void convert_children(struct convert *c, const char *name, const struct spec_node *mapping)
{
    const char *rest = NULL;
    for (struct spec_node *child = mapping ? mapping->first : NULL; child; child = child->next) {
        if (child->key && !child->taken && convert_is_on(child))
            rest = convert_text(c, "%s%s%s %s", rest ? rest : "", rest ? ", " : "", spec_show(c->ctx, child->key),
                                convert_show(c, child));
        child->taken = true;
    }
    if (rest) convert_note(c, "'%s': left out, as ztrain convert does not know it: %s", spec_show(c->ctx, name), rest);
}

void convert_odd(struct convert *c, const struct spec_node *node)
{
    convert_note(c, "'%s' %s is left out: ztrain convert does not understand the value", spec_show(c->ctx, node->key),
                 convert_show(c, node));
}

bool convert_is_given(const struct spec_node *node)
{
    return node && node->key_pos.line > 0;
}

struct spec_node *convert_scalar(struct convert *c, const char *key, const char *yaml)
{
    struct spec_node *node = spec_arena_alloc(c->ctx->arena, sizeof *node);
    node->kind = NODE_STRING;
    node->key = key;
    node->text = yaml;
    node->plain = true;
    spec_yaml_plain(node);
    return node;
}

struct spec_node *convert_list(struct convert *c)
{
    struct spec_node *list = convert_scalar(c, NULL, "");
    list->kind = NODE_LIST;
    return list;
}

struct spec_node *convert_commas(struct convert *c, const struct spec_node *text)
{
    struct spec_node *list = convert_list(c);
    list->pos = text->pos;
    list->key_pos = text->key_pos;
    for (const char *at = text->text; *at; at += strcspn(at, ","), at += *at == ',') {
        at += strspn(at, " ");
        size_t length = strcspn(at, ",");
        while (length > 0 && at[length - 1] == ' ') length--;
        if (length) convert_append(c, list, spec_arena_copy(c->ctx->arena, at, length));
    }
    return list;
}

void convert_append(struct convert *c, struct spec_node *list, const char *text)
{
    struct spec_node *item = convert_scalar(c, NULL, text);
    item->kind = NODE_STRING;
    spec_attach(c->ctx, list, item);
}

void convert_unquote(struct spec_node *node)
{
    if (!node || node->kind != NODE_STRING) return;
    struct spec_node bare = *node;
    spec_yaml_plain(&bare);
    if (spec_is_number(&bare) || bare.kind == NODE_BOOL) *node = bare;
}

void convert_set(struct convert *c, const char *path, const struct spec_node *value)
{
    spec_override(c->ctx, c->to, convert_text(c, "%s=", path), value);
    struct spec_node *node = spec_find(c->to, path);
    const struct spec_key *key = spec_key_find(path);
    ASSERT(node);
    node->key_pos = value->key_pos;
    if (key && spec_is_quoted_value(key, node)) convert_unquote(node);
}

void convert_set_yaml(struct convert *c, const char *path, const char *yaml)
{
    convert_set(c, path, convert_scalar(c, NULL, yaml));
}

void convert_set_text(struct convert *c, const char *path, const char *text)
{
    struct spec_node *node = convert_scalar(c, NULL, text);
    node->kind = NODE_STRING;
    node->plain = false;
    convert_set(c, path, node);
}

void convert_unset(struct convert *c, const char *path)
{
    const struct spec_node *node = spec_find(c->to, path);
    const size_t length = spec_key_section_length(path);
    struct spec_node *section = length ? spec_find(c->to, spec_arena_copy(c->ctx->arena, path, length)) : c->to;
    if (node) spec_unlink(section, node);
}

enum status convert_check_input(const struct convert *c, const char *path, struct error *err)
{
    struct stat out, file;
    if (!c->request->out || io_stat(c->request->out, &out) != 0 || io_stat(path, &file) != 0 ||
        out.st_dev != file.st_dev || out.st_ino != file.st_ino)
        return STATUS_OK;
    return error_set(err, STATUS_USAGE, "--out %s: the file is read; hint: --out names another file",
                     PRINTABLE(c->request->out));
}

void convert_mark(struct spec_node *node, int source)
{
    node->pos.source = node->key_pos.source = source;
    for (struct spec_node *child = node->first; child; child = child->next) convert_mark(child, source);
}

void convert_note(struct convert *c, const char *format, ...)
{
    WITH_ARGS(format, string_list_add(c->notes, spec_arena_vprintf(c->ctx->arena, format, args)));
}

void convert_nothing(struct convert *c, const char *name)
{
    name = spec_show(c->ctx, name);
    c->nothing = c->nothing ? convert_text(c, "%s, %s", c->nothing, name) : name;
}

const char *convert_show(struct convert *c, const struct spec_node *node)
{
    return node->text ? spec_show(c->ctx, node->text) : node->kind == NODE_LIST ? "[…]" : "{…}";
}
