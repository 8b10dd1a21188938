/* SPDX-License-Identifier: Apache-2.0 */
/* spec_tree.c: memory, messages, and the operations on a spec's tree: look up, merge, override. */
#include "core/spec/spec_tree.h"

#include "core/core.h"

/* ---- memory -------------------------------------------------------------- */

struct spec_block {
    struct spec_block *next;
    _Alignas(max_align_t) char bytes[];
};

void *spec_arena_alloc(struct spec_arena *arena, size_t size)
{
    struct spec_block *block = memory_zeroed(1, sizeof *block + size);
    block->next = arena->blocks;
    arena->blocks = block;
    return block->bytes;
}

char *spec_arena_copy(struct spec_arena *arena, const char *text, size_t length)
{
    char *copy = spec_arena_alloc(arena, length + 1);
    memcpy(copy, text, length);
    return copy;
}

char *spec_arena_text(struct spec_arena *arena, const char *text)
{
    return spec_arena_copy(arena, text, strlen(text));
}

char *spec_arena_vprintf(struct spec_arena *arena, const char *format, va_list args)
{
    va_list again;
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, again);
    va_end(again);
    ASSERT(length >= 0);
    char *text = spec_arena_alloc(arena, (size_t)length + 1);
    vsnprintf(text, (size_t)length + 1, format, args);
    return text;
}

char *spec_arena_printf(struct spec_arena *arena, const char *format, ...)
{
    char *text;
    WITH_ARGS(format, text = spec_arena_vprintf(arena, format, args));
    return text;
}

void spec_arena_release(struct spec_arena *arena)
{
    while (arena->blocks) {
        struct spec_block *next = arena->blocks->next;
        free(arena->blocks);
        arena->blocks = next;
    }
}

void spec_arena_list(struct spec_arena *arena, struct string_list *list, const json_t *array)
{
    list->count = (int)json_array_size(array);
    list->items = spec_arena_alloc(arena, ((size_t)list->count + 1) * sizeof *list->items);
    for (int i = 0; i < list->count; i++)
        list->items[i] = spec_arena_text(arena, json_string_value(json_array_get(array, (size_t)i)));
}

json_t *spec_list_json(const struct string_list *list)
{
    json_t *array = list->count ? json_array() : NULL;
    for (int i = 0; i < list->count; i++) json_array_append_new(array, json_string(list->items[i]));
    return array;
}

/* ---- messages ------------------------------------------------------------ */

static void tree_problem_add(struct spec_context *ctx, struct spec_problems *problems, struct spec_pos pos,
                             const char *format, va_list args)
{
    if (problems->count == SPEC_MAX_PROBLEMS) {
        problems->dropped++;
        return;
    }
    const struct spec_problem problem = {pos, problems->count, spec_arena_vprintf(ctx->arena, format, args)};
    problems->items[problems->count++] = problem;
}

void *spec_error(struct spec_context *ctx, struct spec_pos pos, const char *format, ...)
{
    WITH_ARGS(format, tree_problem_add(ctx, &ctx->errors, pos, format, args));
    return NULL;
}

void spec_notice(struct spec_context *ctx, struct spec_pos pos, const char *format, ...)
{
    WITH_ARGS(format, tree_problem_add(ctx, &ctx->notices, pos, format, args));
}

const char *spec_pos_text(struct spec_context *ctx, struct spec_pos pos)
{
    ASSERT(pos.source >= 0 && pos.source < ctx->num_sources);
    const char *name = ctx->sources[pos.source];
    if (pos.source >= 2 || pos.line == 0) return name;
    return spec_arena_printf(ctx->arena, "%s:%d:%d", name, pos.line, pos.column);
}

const char *spec_show(struct spec_context *ctx, const char *text)
{
    enum { MAX_SHOWN = 60 };
    size_t length = strnlen(text, MAX_SHOWN);
    const bool cut = text[length];
    while (cut && length > 0 && ((unsigned char)text[length] & 0xc0) == 0x80) /* not inside a character */
        length--;
    const char *shown = spec_arena_printf(ctx->arena, "%.*s%s", (int)length, text, cut ? "..." : "");
    return spec_arena_text(ctx->arena, printable(shown, (char[4 * MAX_SHOWN + 4]){0}, 4 * MAX_SHOWN + 4));
}

int spec_pos_compare(struct spec_pos a, struct spec_pos b)
{
    return a.source != b.source ? a.source - b.source : a.line != b.line ? a.line - b.line : a.column - b.column;
}

void spec_pos_advance(struct spec_pos *pos, const char *from, const char *to)
{
    for (const char *c = from; c < to; c++) {
        if (*c == '\n') {
            pos->line++;
            pos->column = 1;
        } else if (((unsigned char)*c & 0xc0) != 0x80) {
            pos->column++;
        }
    }
}

static int tree_problem_compare(const void *left, const void *right)
{
    const struct spec_problem *a = left, *b = right;
    const int order = spec_pos_compare(a->pos, b->pos);
    return order ? order : a->order - b->order;
}

void spec_problems_print(struct spec_context *ctx, struct spec_problems *problems, struct string_list *lines)
{
    if (problems->count) qsort(problems->items, (size_t)problems->count, sizeof *problems->items, tree_problem_compare);
    for (int i = 0; i < problems->count; i++) {
        const struct spec_problem *problem = &problems->items[i];
        const char *line = spec_arena_printf(ctx->arena, "%s: %s", spec_pos_text(ctx, problem->pos), problem->text);
        bool again = false; /* each of several adapters finds what is wrong with the rest */
        for (int l = 0; l < lines->count && !again; l++) again = strcmp(lines->items[l], line) == 0;
        if (!again) string_list_add(lines, line);
    }
    if (problems->dropped)
        string_list_add(lines, spec_arena_printf(ctx->arena, "%s: and %d more; hint: correct these first",
                                                 ctx->sources[0], problems->dropped));
}

/* ---- look up, merge, override -------------------------------------------- */

const char *spec_home_path(struct spec_context *ctx, const char *key, const struct spec_node *node)
{
    if (node->text[0] != '~') return node->text;
    const char *rest = node->text + 1;
    const bool own = !*rest || *rest == '/';
    const char *home = own ? getenv("HOME") : NULL;
    json_t *text = home && *home ? json_string(home) : NULL; /* NULL: JSON cannot hold it */
    json_decref(text);
    if (text) return spec_arena_printf(ctx->arena, "%s%s", home, rest);
    return spec_error(ctx, node->pos,
                      "'%s' is '%s', %s; hint: write the whole path, or ./~ for a name that begins with ~", key,
                      spec_show(ctx, node->text),
                      own ? "and HOME, which names the home folder, is not set"
                          : "and only one's own home folder has a short name, ~/");
}

static struct spec_node *tree_child_of_part(const struct spec_node *node, const char *key, size_t length)
{
    for (struct spec_node *child = node->first; child; child = child->next)
        if (strncmp(child->key, key, length) == 0 && !child->key[length]) return child;
    return NULL;
}

struct spec_node *spec_child(const struct spec_node *node, const char *key)
{
    return node && node->kind == NODE_MAPPING ? tree_child_of_part(node, key, strlen(key)) : NULL;
}

struct spec_node *spec_find(const struct spec_node *root, const char *path)
{
    const struct spec_node *node = root;
    while (node && node->kind == NODE_MAPPING) {
        size_t length = strcspn(path, ".");
        struct spec_node *child = tree_child_of_part(node, path, length);
        if (!path[length]) return child;
        path += length + 1;
        node = child;
    }
    return NULL;
}

static void tree_append(struct spec_node *parent, struct spec_node *child)
{
    child->next = NULL;
    if (parent->last)
        parent->last->next = child;
    else
        parent->first = child;
    parent->last = child;
    parent->count++;
}

struct spec_node *spec_copy(struct spec_context *ctx, const struct spec_node *node)
{
    struct spec_node *copy = spec_arena_alloc(ctx->arena, sizeof *copy);
    *copy = *node;
    copy->first = copy->last = copy->next = NULL;
    copy->count = 0;
    for (const struct spec_node *child = node->first; child; child = child->next)
        tree_append(copy, spec_copy(ctx, child));
    return copy;
}

void spec_unlink(struct spec_node *parent, const struct spec_node *child)
{
    struct spec_node **link = &parent->first, *before = NULL;
    while (*link != child) {
        before = *link;
        link = &before->next;
    }
    *link = child->next;
    if (parent->last == child) parent->last = before;
    parent->count--;
}

void spec_attach(struct spec_context *ctx, struct spec_node *parent, struct spec_node *child)
{
    const struct spec_node *twin = child->key ? spec_child(parent, child->key) : NULL;
    if (twin)
        spec_error(ctx, child->key_pos, "'%s' is set twice: here and at %s; hint: keep one of the two",
                   spec_show(ctx, child->key), spec_pos_text(ctx, twin->key_pos));
    else
        tree_append(parent, child);
}

static void tree_replace(struct spec_node *node, const struct spec_node *value)
{
    struct spec_node *next = node->next;
    const char *key = node->key;
    *node = *value;
    node->next = next;
    node->key = key;
}

bool spec_has_word(const char *words, const char *word)
{
    for (const char *at = words; *at; at += strcspn(at, " "), at += *at == ' ') {
        const size_t length = strcspn(at, " ");
        const bool star = at[length - 1] == '*';
        if (strncmp(at, word, length - star) == 0 && (star || !word[length])) return true;
    }
    return false;
}

bool spec_is_text(const struct spec_node *node, const char *text)
{
    return node && node->text && strcmp(node->text, text) == 0;
}

bool spec_is_auto(const struct spec_node *node)
{
    return spec_is_text(node, "auto");
}

bool spec_is_number(const struct spec_node *node)
{
    return node && (node->kind == NODE_INT || node->kind == NODE_REAL);
}

bool spec_is_true(const struct spec_node *node)
{
    return node && node->kind == NODE_BOOL && node->boolean;
}

/* Whether another file's value counts instead. */
static bool tree_yields(const struct spec_node *node)
{
    return node->kind == NODE_NULL || (spec_is_auto(node) && node->key_pos.source < 2);
}

static void tree_fill(struct spec_node *node, const struct spec_node *value)
{
    bool was_auto = node->was_auto || spec_is_auto(node);
    tree_replace(node, value);
    node->was_auto = was_auto;
}

static bool tree_same_value(const struct spec_node *a, const struct spec_node *b)
{
    if (spec_is_number(a) && spec_is_number(b)) return a->real == b->real;
    if (a->kind != b->kind || a->kind == NODE_MAPPING) return false;
    if (a->kind == NODE_STRING) return strcmp(a->text, b->text) == 0;
    if (a->kind == NODE_BOOL) return a->boolean == b->boolean;
    const struct spec_node *x = a->first, *y = b->first;
    while (x && y && tree_same_value(x, y)) {
        x = x->next;
        y = y->next;
    }
    return !x && !y;
}

static void tree_refuse_both(struct spec_context *ctx, const char *path, const struct spec_node *a,
                             const struct spec_node *b)
{
    if (a->text && b->text)
        spec_error(ctx, a->key_pos, "'%s' is %s here and %s at %s; hint: keep one of the two", path,
                   spec_show(ctx, a->text), spec_show(ctx, b->text), spec_pos_text(ctx, b->key_pos));
    else
        spec_error(ctx, a->key_pos, "'%s' is set here and at %s; hint: keep one of the two", path,
                   spec_pos_text(ctx, b->key_pos));
}

/* prefix: the path of the sections around, for messages, with a dot at its end, or "". */
static void tree_merge(struct spec_context *ctx, struct spec_node *into, struct spec_node *from, const char *prefix)
{
    for (struct spec_node *child = from->first, *next; child; child = next) {
        next = child->next;
        struct spec_node *twin = spec_child(into, child->key);
        const char *path = twin ? spec_arena_printf(ctx->arena, "%s%s", prefix, spec_show(ctx, child->key)) : NULL;
        if (!twin) {
            tree_append(into, child);
        } else if (tree_yields(child) && twin->kind != NODE_NULL) {
            twin->was_auto = twin->was_auto || spec_is_auto(child);
        } else if (tree_yields(twin)) {
            tree_fill(twin, child);
        } else if (twin->kind == NODE_MAPPING && child->kind == NODE_MAPPING) {
            tree_merge(ctx, twin, child, spec_arena_printf(ctx->arena, "%s.", path));
        } else if (child->key_pos.source >= 2 || twin->key_pos.source >= 2) {
            if (child->key_pos.source > twin->key_pos.source) /* the last --set wins */
                tree_replace(twin, child);
        } else if (!tree_same_value(child, twin)) {
            tree_refuse_both(ctx, path, child, twin);
        }
    }
}

void spec_merge(struct spec_context *ctx, struct spec_node *into, struct spec_node *from)
{
    tree_merge(ctx, into, from, into->key ? spec_arena_printf(ctx->arena, "%s.", spec_show(ctx, into->key)) : "");
}

void spec_override(struct spec_context *ctx, struct spec_node *root, const char *assignment,
                   const struct spec_node *value)
{
    const struct spec_pos pos = value->pos;
    struct spec_node *node = root;
    int depth = 1;
    bool existed = false;
    for (const char *part = assignment;;) {
        size_t length = strcspn(part, ".=");
        if (length == 0) {
            spec_error(ctx, pos, "a part of the key's name is empty; hint: write --set a.b.c=VALUE");
            return;
        }
        if (node->kind == NODE_NULL || node->kind == NODE_BOOL) /* `zero_optimization: true`, an empty section */
            tree_replace(node, &(struct spec_node){.kind = NODE_MAPPING, .pos = pos, .key_pos = pos});
        if (node->kind != NODE_MAPPING) {
            spec_error(ctx, pos, "'%.*s' is set at %s and is not a section", (int)(part - assignment - 1), assignment,
                       spec_pos_text(ctx, node->key_pos));
            return;
        }
        if (++depth > SPEC_MAX_DEPTH || node->count >= SPEC_MAX_MAPPING) {
            spec_error(ctx, pos, "nested deeper than %d levels, or a section of more than %d keys", SPEC_MAX_DEPTH,
                       SPEC_MAX_MAPPING);
            return;
        }
        struct spec_node *child = tree_child_of_part(node, part, length);
        existed = child != NULL;
        if (!child) {
            child = spec_arena_alloc(ctx->arena, sizeof *child);
            child->key = spec_arena_copy(ctx->arena, part, length);
            child->pos = child->key_pos = pos;
            tree_append(node, child);
        }
        node = child;
        part += length;
        if (*part == '=') break;
        part++;
    }
    tree_fill(node, value);
    node->removed = existed && value->kind == NODE_NULL;
}
