/* SPDX-License-Identifier: Apache-2.0 */
/* spec_yaml.c: parses YAML into a spec's tree, with its own stack of open lists and mappings, so that depth and size
 * are bounded. Refused: anchors, aliases, tags, %TAG directives, several documents, keys that are not plain text. Plain
 * scalars follow YAML's core schema, but 5e8 is a number, and octal, hexadecimal numbers and leading zeros are text:
 * readers disagree on them. */
#include "core/spec/spec_tree.h"

#include "core/kept_files.h"
#include "core/memory.h"

#include <yaml.h>

/* ---- files --------------------------------------------------------------- */

char *spec_read_file(struct spec_context *ctx, int source, size_t *size)
{
    const struct spec_pos whole = {.source = source};
    const char *path = ctx->sources[source];
    bool opened = true;
    OWNED char *file = kept_files_read(path, size);
    if (!file) file = any_file_read(path, SPEC_MAX_BYTES, size, &opened);
    if (!file && opened)
        spec_error(ctx, whole, "cannot read '%s': %s; hint: a run spec is a file", path, strerror(errno));
    else if (!file)
        spec_error(ctx, whole, "cannot open '%s': %s; hint: %s", path, strerror(errno),
                   source == 0 ? "--config takes the path of a run spec (YAML)"
                               : "--deepspeed takes the path of a DeepSpeed configuration (JSON)");
    else if (*size > SPEC_MAX_BYTES)
        spec_error(ctx, (struct spec_pos){source, 1, 1},
                   "the file is larger than %d MiB; hint: is this a run spec? token shards and models are named in it",
                   SPEC_MAX_BYTES >> 20);
    return file && *size <= SPEC_MAX_BYTES ? spec_arena_copy(ctx->arena, file, *size) : NULL;
}

static struct spec_pos yaml_offset_pos(int source, const char *text, size_t size, size_t offset)
{
    struct spec_pos pos = {source, 1, 1};
    spec_pos_advance(&pos, text, text + (offset < size ? offset : size));
    return pos;
}

/* ---- scalars ------------------------------------------------------------- */

/* [-+]? digits [. digits] [e[-+]digits], no leading zero before a digit. *integral: only sign and digits. */
static bool yaml_looks_like_number(const char *text, bool *integral)
{
    const char *digits = text + (*text == '-' || *text == '+');
    char *end;
    *integral = !digits[strspn(digits, "0123456789")];
    strtod(text, &end); /* which knows other forms, too */
    return end != text && !*end && !text[strspn(text, "0123456789+-.eE")] &&
           !(*digits == '0' && isdigit((unsigned char)digits[1]));
}

void spec_yaml_plain(struct spec_node *node)
{
    const char *text = node->text;
    bool integral;
    if (!*text || spec_has_word("~ null Null NULL", text)) {
        node->kind = NODE_NULL;
    } else if (spec_has_word("true True TRUE false False FALSE", text)) {
        node->kind = NODE_BOOL;
        node->boolean = *text == 't' || *text == 'T';
    } else if (yaml_looks_like_number(text, &integral)) {
        node->kind = NODE_REAL;
        node->real = strtod(text, NULL);
        node->finite = isfinite(node->real);
        errno = 0;
        long long integer = strtoll(text, NULL, 10);
        if (integral && errno == 0) {
            node->kind = NODE_INT;
            node->integer = integer;
        }
    } else if (spec_has_word(".inf .Inf .INF inf Infinity .nan .NaN .NAN nan NaN",
                             text + (*text == '-' || *text == '+'))) {
        node->kind = NODE_REAL;
        node->real = !strpbrk(text, "fF") ? NAN : *text == '-' ? -INFINITY : INFINITY;
    }
}

/* ---- events to tree ------------------------------------------------------ */

struct reader {
    struct spec_context *ctx;
    int source;
    struct spec_node *root;
    struct spec_node *stack[SPEC_MAX_DEPTH];
    int depth, num_nodes;
    const char *key; /* key of the next value in a mapping; NULL: a key comes next */
    struct spec_pos key_pos;
    bool failed;
};

static struct spec_pos mark_pos(const struct reader *reader, yaml_mark_t mark)
{
    return (struct spec_pos){reader->source, (int)mark.line + 1, (int)mark.column + 1};
}

#define REFUSE(reader, pos, ...)                     \
    do {                                             \
        spec_error((reader)->ctx, pos, __VA_ARGS__); \
        (reader)->failed = true;                     \
        return;                                      \
    } while (0)

static void yaml_attach(struct reader *reader, struct spec_node *node)
{
    if (reader->depth == 0) {
        reader->root = node;
        return;
    }
    struct spec_node *parent = reader->stack[reader->depth - 1];
    if (parent->kind == NODE_MAPPING) {
        if (parent->count == SPEC_MAX_MAPPING)
            REFUSE(reader, node->pos, "a section has more than %d keys", SPEC_MAX_MAPPING);
        node->key = reader->key;
        node->key_pos = reader->key_pos;
        reader->key = NULL;
    }
    spec_attach(reader->ctx, parent, node);
}

static void yaml_container(struct reader *reader, enum spec_kind kind, struct spec_pos pos)
{
    if (reader->depth == SPEC_MAX_DEPTH)
        REFUSE(reader, pos, "nested deeper than %d levels; hint: a run spec has only a few", SPEC_MAX_DEPTH);
    struct spec_node *node = spec_arena_alloc(reader->ctx->arena, sizeof *node);
    node->kind = kind;
    node->pos = pos;
    yaml_attach(reader, node);
    reader->key = NULL;
    reader->stack[reader->depth++] = node;
}

static void read_scalar(struct reader *reader, const yaml_event_t *event, struct spec_pos pos)
{
    const char *text = (const char *)event->data.scalar.value;
    size_t length = event->data.scalar.length;
    if (memchr(text, 0, length)) REFUSE(reader, pos, "a text contains a NUL character");
    text = spec_arena_copy(reader->ctx->arena, text, length);
    bool plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    bool in_mapping = reader->depth && reader->stack[reader->depth - 1]->kind == NODE_MAPPING;
    if (in_mapping && !reader->key) {
        if (!length) REFUSE(reader, pos, "a key has no name");
        if (plain && strcmp(text, "<<") == 0)
            REFUSE(reader, pos, "merge keys ('<<') are not supported; hint: write the keys out");
        reader->key = text;
        reader->key_pos = pos;
        return;
    }
    struct spec_node *node = spec_arena_alloc(reader->ctx->arena, sizeof *node);
    node->kind = NODE_STRING;
    node->pos = pos;
    node->text = text;
    node->plain = plain;
    if (plain) spec_yaml_plain(node);
    yaml_attach(reader, node);
}

static bool has_anchor_or_tag(const yaml_event_t *event)
{
    switch (event->type) {
    case YAML_SCALAR_EVENT: return event->data.scalar.anchor || event->data.scalar.tag;
    case YAML_SEQUENCE_START_EVENT: return event->data.sequence_start.anchor || event->data.sequence_start.tag;
    case YAML_MAPPING_START_EVENT: return event->data.mapping_start.anchor || event->data.mapping_start.tag;
    default: return false;
    }
}

static void read_event(struct reader *reader, const yaml_event_t *event)
{
    struct spec_pos pos = mark_pos(reader, event->start_mark);
    if (++reader->num_nodes > SPEC_MAX_NODES)
        REFUSE(reader, pos, "more than %d keys and values; hint: is this a run spec?", SPEC_MAX_NODES);
    if (event->type == YAML_ALIAS_EVENT || has_anchor_or_tag(event))
        REFUSE(reader, pos,
               "anchors, aliases and tags (&name, *name, !tag) are not supported; hint: write the value out, and quote "
               "a text that starts with one of these characters");
    bool container = event->type == YAML_SEQUENCE_START_EVENT || event->type == YAML_MAPPING_START_EVENT;
    bool in_mapping = reader->depth && reader->stack[reader->depth - 1]->kind == NODE_MAPPING;
    if (container && in_mapping && !reader->key)
        REFUSE(reader, pos, "a key must be a plain name, not a list or mapping");
    switch (event->type) {
    case YAML_SCALAR_EVENT: read_scalar(reader, event, pos); return;
    case YAML_SEQUENCE_START_EVENT: yaml_container(reader, NODE_LIST, pos); return;
    case YAML_MAPPING_START_EVENT: yaml_container(reader, NODE_MAPPING, pos); return;
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT: reader->depth--; return;
    case YAML_DOCUMENT_START_EVENT:
        if (reader->root)
            REFUSE(reader, pos, "the file has a second document ('---'); hint: a run spec is one document");
        return;
    default: return;
    }
}

static void report_yaml_error(struct reader *reader, const yaml_parser_t *parser, const char *text, size_t size)
{
    const char *problem = parser->problem ? parser->problem : "unreadable";
    if (parser->error == YAML_MEMORY_ERROR || parser->error == YAML_NO_ERROR) /* libyaml cannot use memory_alloc() */
        memory_exhausted(0);
    if (parser->error == YAML_READER_ERROR) {
        spec_error(reader->ctx, yaml_offset_pos(reader->source, text, size, parser->problem_offset),
                   "not a text file in UTF-8: %s; hint: is this a run spec?", problem);
    } else {
        bool character = strcmp(problem, "found character that cannot start any token") == 0;
        /* only files have lines that the user knows */
        bool start =
            parser->error == YAML_PARSER_ERROR && parser->context && parser->context_mark.line && reader->source < 2;
        const char *where = start ? spec_arena_printf(reader->ctx->arena, " (%s that starts in line %d)",
                                                      parser->context, (int)parser->context_mark.line + 1)
                                  : "";
        spec_error(reader->ctx, mark_pos(reader, parser->problem_mark), "not valid YAML: %s%s; hint: %s", problem,
                   where,
                   character ? "indent with blanks, not with tabs, and quote a text that starts with @, ` or %"
                             : "check indentation, quotes and brackets here and above");
    }
}

/* Whether `at` begins a line: LF, CR, U+0085, U+2028 and U+2029 end one. */
static bool yaml_begins_line(const char *text, const char *at)
{
    static const char *const ends[] = {"\n", "\r", "\xc2\x85", "\xe2\x80\xa8", "\xe2\x80\xa9"};
    for (size_t i = 0; i < COUNT_OF(ends); i++) {
        const size_t length = strlen(ends[i]);
        if ((size_t)(at - text) >= length && memcmp(at - length, ends[i], length) == 0) return true;
    }
    return at == text;
}

/* libyaml compares each %TAG line with all before. */
static bool yaml_has_tag_directive(struct reader *reader, const char *text, size_t size)
{
    const char *directive = memmem(text, size, "%TAG", 4);
    while (directive && !yaml_begins_line(text, directive))
        directive = memmem(directive + 4, size - (size_t)(directive + 4 - text), "%TAG", 4);
    if (!directive) return false;
    spec_error(reader->ctx, yaml_offset_pos(reader->source, text, size, (size_t)(directive - text)),
               "%%TAG directives are not supported; hint: remove the line");
    return true;
}

struct spec_node *spec_parse_yaml(struct spec_context *ctx, int source, const char *text, size_t size)
{
    struct reader reader = {.ctx = ctx, .source = source};
    if (yaml_has_tag_directive(&reader, text, size)) return NULL;
    yaml_parser_t parser;
    if (!yaml_parser_initialize(&parser)) memory_exhausted(0);
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, size);
    for (bool done = false; !done && !reader.failed;) {
        yaml_event_t event;
        if (!yaml_parser_parse(&parser, &event)) {
            report_yaml_error(&reader, &parser, text, size);
            reader.failed = true;
            break;
        }
        done = event.type == YAML_STREAM_END_EVENT;
        read_event(&reader, &event);
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    if (reader.failed) return NULL;
    if (!reader.root)
        spec_error(ctx, (struct spec_pos){source, 1, 1}, "the file is empty; hint: --help-spec lists the keys");
    return reader.root;
}
