/* SPDX-License-Identifier: Apache-2.0 */
/* spec_hjson.c: parses a DeepSpeed configuration into a spec's tree.
 *
 * DeepSpeed reads its configurations as Hjson (hjson.github.io/syntax.html). The grammar, of which JSON is a part:
 *
 *   file      blank ( object | list | members ) blank        the braces around the whole may be absent
 *   object    '{' members '}'
 *   members   { key blank ':' value [','] }                  a comma may be absent, also after the last value
 *   list      '[' { value [','] } ']'
 *   key       quoted, or characters other than , : [ ] { } and blanks
 *   value     blank ( object | list | quoted | bare )
 *   quoted    "..." or '...' with JSON's escapes, on one line
 *   bare      a literal up to the next of , ] } # or //, else text up to the end of the line
 *   literal   null, true, false or a number
 *   blank     blanks, ends of lines and comments: # and // up to the end of the line, slash-star to star-slash
 *
 * Refused, unlike in Hjson: text in three quotes, and bare text that ends with punctuation or has a comment behind it,
 * as these characters would be parts of the text. Depth, nodes and looks at a byte are bounded. */
#include "core/spec/spec_tree.h"

#include <utf8proc.h>

struct reader {
    struct spec_context *ctx;
    const char *text, *end, *at; /* at: the next byte */
    const char *mark;            /* whose place is pos */
    struct spec_pos pos;
    int depth, num_nodes;
};

static struct spec_pos hjson_here(struct reader *r)
{
    if (r->mark < r->at) {
        spec_pos_advance(&r->pos, r->mark, r->at);
        r->mark = r->at;
    }
    return r->pos;
}

/* spec_error() returns NULL, which is false. */
#define FAIL_AT(r, pos, ...) return spec_error((r)->ctx, pos, "not valid JSON or Hjson: " __VA_ARGS__)
#define FAIL(r, ...) FAIL_AT(r, hjson_here(r), __VA_ARGS__)

/* ---- blanks and comments ------------------------------------------------- */

static bool hjson_is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool hjson_ahead(const struct reader *r, const char *at, const char *word)
{
    size_t length = strlen(word);
    return (size_t)(r->end - at) >= length && memcmp(at, word, length) == 0;
}

static const char *hjson_line_end(const struct reader *r, const char *at)
{
    while (at < r->end && *at != '\n' && *at != '\r') at++;
    return at;
}

static bool hjson_skip_blank(struct reader *r)
{
    for (;;) {
        while (r->at < r->end && hjson_is_blank(*r->at)) r->at++;
        if (hjson_ahead(r, r->at, "#") || hjson_ahead(r, r->at, "//")) {
            r->at = hjson_line_end(r, r->at);
        } else if (hjson_ahead(r, r->at, "/*")) {
            const char *close = r->at + 2;
            while (close < r->end && !hjson_ahead(r, close, "*/")) close++;
            if (close == r->end) FAIL(r, "this comment has no end; hint: close it with */");
            r->at = close + 2;
        } else {
            return true;
        }
    }
}

/* ---- text ---------------------------------------------------------------- */

static int hjson_hex4(const struct reader *r, const char *at)
{
    char digits[5] = "";
    memcpy(digits, at, r->end - at < 4 ? 0 : 4);
    return strspn(digits, "0123456789abcdefABCDEF") == 4 ? (int)strtol(digits, NULL, 16) : -1;
}

static bool hjson_read_escape(struct reader *r, char **out)
{
    static const char names[] = "\"'\\/bfnrt", values[] = "\"'\\/\b\f\n\r\t";
    const char *name = r->at < r->end && *r->at ? strchr(names, *r->at) : NULL;
    if (name) {
        r->at++;
        *(*out)++ = values[name - names];
        return true;
    }
    int unit = hjson_ahead(r, r->at, "u") ? hjson_hex4(r, r->at + 1) : -1;
    if (unit < 0) FAIL(r, "an unknown escape after a backslash; hint: write a backslash as \\\\");
    unsigned point = (unsigned)unit;
    r->at += 5;
    if (point >= 0xd800 && point < 0xdc00 && hjson_ahead(r, r->at, "\\u")) {
        int low = hjson_hex4(r, r->at + 2);
        if (low >= 0xdc00 && low < 0xe000) {
            point = 0x10000 + ((point - 0xd800) << 10) + ((unsigned)low - 0xdc00);
            r->at += 6;
        }
    }
    if (point == 0 || (point >= 0xd800 && point < 0xe000)) FAIL(r, "this escape is no character");
    *out += utf8proc_encode_char((utf8proc_int32_t)point, (utf8proc_uint8_t *)*out);
    return true;
}

static const char *hjson_read_quoted(struct reader *r)
{
    struct spec_pos start = hjson_here(r);
    const char quote = *r->at++;
    size_t length = 0; /* escapes become shorter, so the text fits up to its closing quote */
    for (const char *p = r->at; p < r->end && *p != quote && *p != '\n'; p++, length++)
        if (*p == '\\' && p + 1 < r->end && p[1] != '\n') {
            p++;
            length++;
        }
    char *text = spec_arena_alloc(r->ctx->arena, length + 1), *out = text;
    while (r->at < r->end && *r->at != quote && (unsigned char)*r->at >= 0x20) {
        char c = *r->at++;
        if (c != '\\')
            *out++ = c;
        else if (!hjson_read_escape(r, &out))
            return NULL;
    }
    if (r->at == r->end || *r->at != quote) {
        bool control = r->at < r->end && *r->at != '\n' && *r->at != '\r';
        return spec_error(r->ctx, control ? hjson_here(r) : start, "not valid JSON or Hjson: %s",
                          control ? "a control character in quotes; hint: remove it"
                                  : "this quote has no end in its line");
    }
    r->at++;
    return text;
}

/* ---- values -------------------------------------------------------------- */

static bool hjson_value(struct reader *r, struct spec_node **value);

static bool hjson_is_punctuation(char c)
{
    return c && strchr("{}[],:", c);
}

static bool hjson_has_comment(const char *text)
{
    for (const char *p = text; *p; p++)
        if (hjson_is_blank(*p) && (p[1] == '#' || (p[1] == '/' && (p[2] == '/' || p[2] == '*')))) return true;
    return false;
}

static bool hjson_bare(struct reader *r, struct spec_node *node)
{
    const char *start = r->at, *stop = start;
    while (stop < r->end && !strchr(",]}#\n\r", *stop) && !hjson_ahead(r, stop, "//") && !hjson_ahead(r, stop, "/*"))
        stop++;
    for (int whole = 0; whole < 2; whole++) {
        if (whole) /* only here: a line of many literals is looked at once */
            stop = hjson_line_end(r, stop);
        const char *end = stop;
        while (end > start && hjson_is_blank(end[-1])) end--;
        node->text = spec_arena_copy(r->ctx->arena, start, (size_t)(end - start));
        node->kind = NODE_STRING;
        spec_yaml_plain(node);
        r->at = stop;
        if (node->kind != NODE_STRING) return true;
    }
    size_t length = strlen(node->text);
    if (strchr(",]}", node->text[length - 1]) || hjson_has_comment(node->text))
        FAIL_AT(r, node->pos,
                "text without quotes reaches to the end of its line, so that '%s' is all text; hint: put the text in "
                "quotes",
                spec_show(r->ctx, node->text));
    return true;
}

static bool hjson_key(struct reader *r, struct spec_node **key)
{
    struct spec_node *node = spec_arena_alloc(r->ctx->arena, sizeof *node);
    node->key_pos = hjson_here(r);
    if (r->at < r->end && (*r->at == '"' || *r->at == '\'')) {
        node->key = hjson_read_quoted(r);
    } else {
        const char *start = r->at;
        while (r->at < r->end && !hjson_is_blank(*r->at) && !hjson_is_punctuation(*r->at)) r->at++;
        if (r->at > start)
            node->key = spec_arena_copy(r->ctx->arena, start, (size_t)(r->at - start));
        else if (r->at == r->end)
            FAIL(r, "the file ends within a section; hint: is a closing brace missing?");
        else
            FAIL(r, "'%c' where a key is expected", *r->at);
    }
    if (!node->key) return false;
    if (!*node->key) FAIL_AT(r, node->key_pos, "a key has no name");
    *key = node;
    return hjson_skip_blank(r);
}

/* A member of a mapping, or an item of a list. */
static bool hjson_member(struct reader *r, struct spec_node *parent)
{
    struct spec_node none = {.key = NULL}, *key = &none, *value;
    if (parent->kind == NODE_MAPPING) {
        if (!hjson_key(r, &key)) return false;
        if (r->at == r->end || *r->at != ':') FAIL(r, "no ':' after the key '%s'", spec_show(r->ctx, key->key));
        r->at++;
    }
    if (!hjson_value(r, &value)) return false;
    value->key = key->key;
    value->key_pos = key->key_pos;
    if (key->key && parent->count == SPEC_MAX_MAPPING)
        FAIL_AT(r, value->key_pos, "a section has more than %d keys", SPEC_MAX_MAPPING);
    spec_attach(r->ctx, parent, value);
    return true;
}

/* The members up to `close`, which is read as well; 0: up to the file's end. */
static bool hjson_members(struct reader *r, struct spec_node *node, char close)
{
    for (;;) {
        if (!hjson_skip_blank(r)) return false;
        if (r->at == r->end && close)
            FAIL_AT(r, node->pos, "this %s has no end", node->kind == NODE_LIST ? "list" : "section");
        if (r->at == r->end || *r->at == close) {
            r->at += close != 0;
            return true;
        }
        if (!hjson_member(r, node) || !hjson_skip_blank(r)) return false;
        if (r->at < r->end && *r->at == ',') r->at++;
    }
}

static bool hjson_container(struct reader *r, struct spec_node *node)
{
    bool list = *r->at++ == '[';
    if (r->depth == SPEC_MAX_DEPTH)
        FAIL_AT(r, node->pos, "nested deeper than %d levels; hint: a configuration has only a few", SPEC_MAX_DEPTH);
    node->kind = list ? NODE_LIST : NODE_MAPPING;
    r->depth++;
    bool good = hjson_members(r, node, list ? ']' : '}');
    r->depth--;
    return good;
}

static bool hjson_value(struct reader *r, struct spec_node **value)
{
    if (!hjson_skip_blank(r)) return false;
    struct spec_node *node = spec_arena_alloc(r->ctx->arena, sizeof *node);
    node->pos = hjson_here(r);
    *value = node;
    if (++r->num_nodes > SPEC_MAX_NODES)
        FAIL(r, "more than %d keys and values; hint: is this a configuration?", SPEC_MAX_NODES);
    if (r->at == r->end) FAIL(r, "the file ends where a value is expected");
    if (*r->at == '{' || *r->at == '[') return hjson_container(r, node);
    if (hjson_is_punctuation(*r->at)) FAIL(r, "'%c' where a value is expected", *r->at);
    if (hjson_ahead(r, r->at, "'''"))
        FAIL(r, "text in three quotes is not supported; hint: write it in one line and in double quotes");
    node->kind = NODE_STRING;
    if (*r->at == '"' || *r->at == '\'') return (node->text = hjson_read_quoted(r)) != NULL;
    node->plain = true;
    return hjson_bare(r, node);
}

/* ---- the whole file ------------------------------------------------------ */

static bool hjson_check_text(struct reader *r)
{
    utf8proc_int32_t point;
    for (utf8proc_ssize_t length; r->at < r->end; r->at += length) {
        length = utf8proc_iterate((const utf8proc_uint8_t *)r->at, r->end - r->at, &point);
        if (length < 1 || !point)
            return spec_error(r->ctx, hjson_here(r),
                              "not a text file in UTF-8; hint: --deepspeed takes a DeepSpeed configuration in JSON");
    }
    r->at = r->text;
    return true;
}

static bool hjson_file(struct reader *r, struct spec_node **root)
{
    if (!hjson_skip_blank(r)) return false;
    if (r->at == r->end)
        return spec_error(r->ctx, (struct spec_pos){r->pos.source, 1, 1},
                          "the file is empty; hint: --deepspeed takes a DeepSpeed configuration in JSON");
    if (*r->at == '{' || *r->at == '[') {
        if (!hjson_value(r, root) || !hjson_skip_blank(r)) return false;
        if (r->at < r->end)
            FAIL(r, "the file goes on after its end; hint: are there as many braces as there should be?");
        return true;
    }
    struct spec_node *members = spec_arena_alloc(r->ctx->arena, sizeof *members);
    *members = (struct spec_node){.kind = NODE_MAPPING, .pos = hjson_here(r)};
    *root = members;
    return hjson_members(r, members, 0);
}

struct spec_node *spec_parse_json(struct spec_context *ctx, int source, const char *text, size_t size)
{
    struct reader r = {.ctx = ctx, .pos = {source, 1, 1}};
    r.text = r.at = r.mark = text;
    r.end = text + size;
    struct spec_node *root = NULL;
    return hjson_check_text(&r) && hjson_file(&r, &root) ? root : NULL;
}
