/* The compiler of pattern.h. Grammar:
 *
 *   alternatives  sequence ('|' sequence)*
 *   sequence      (atom quantifier?)*
 *   atom          group | class | escape | '.' | literal
 *   group         '(' ('?' (':' | 'i:' | '=' | '!'))? alternatives ')'
 *   class         '[' '^'? (range | escape | literal)+ ']'
 *   quantifier    ('?' | '*' | '+' | '{' n (',' m?)? '}') '+'? */
#include "core/memory.h"
#include "core/text/pattern_program.h"
#include "core/text/unicode.h"
#include "core/text/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 64, MAX_REPEAT = 1000 };

struct parser {
    const char *expression, *at; /* at: UTF-8 with a NUL after it */
    struct pattern *pattern;
    bool fold; /* inside (?i:…) */
    int depth;
    struct error *err;
};

/* A piece of program: its first node, and its last one, whose `next` is still to be set. */
struct piece {
    int first, last;
};

/* Both name the status that they return, so that a compiler sees that it is not STATUS_OK. */
static enum status not_known(const struct parser *p, const char *what)
{
    error_set(p->err, STATUS_USAGE, "the regular expression has %s, which this reader does not know: '%.200s'", what,
              p->expression);
    return STATUS_USAGE;
}

static enum status broken(const struct parser *p, const char *what)
{
    error_set(p->err, STATUS_DATA, "this is no regular expression (%s): '%.200s'", what, p->expression);
    return STATUS_DATA;
}

static enum status add_node(struct parser *p, enum pattern_kind kind, int *out)
{
    struct pattern *pattern = p->pattern;
    if (pattern->node_count == PATTERN_NODES)
        return not_known(p, "too many parts");
    *out = pattern->node_count++;
    pattern->nodes[*out] = (struct pattern_node){
        .kind = kind, .min = 1, .max = 1, .first_item = pattern->item_count, .next = -1, .other = -1};
    return STATUS_OK;
}

static enum status add_item(struct parser *p, struct pattern_item item, int node)
{
    if (p->pattern->item_count == PATTERN_ITEMS)
        return not_known(p, "too many characters in classes");
    p->pattern->items[p->pattern->item_count++] = item;
    p->pattern->nodes[node].items++;
    return STATUS_OK;
}

/* ---- characters ---------------------------------------------------------- */

static bool is_letter(uint32_t point)
{
    return (point >= 'a' && point <= 'z') || (point >= 'A' && point <= 'Z');
}

/* One code point; in (?i:…) also the other case, and the two characters that fold to ASCII letters. */
static enum status add_point(struct parser *p, uint32_t point, int node)
{
    TRY(add_item(p, (struct pattern_item){.first = point, .last = point}, node));
    if (!p->fold)
        return STATUS_OK;
    if (point >= 128)
        return not_known(p, "(?i:…) around a character outside ASCII");
    if (!is_letter(point))
        return STATUS_OK;
    TRY(add_item(p, (struct pattern_item){.first = point ^ 32, .last = point ^ 32}, node));
    uint32_t other = (point | 32) == 's' ? 0x17f : (point | 32) == 'k' ? 0x212a : 0; /* long s, the sign of Kelvin */
    return other ? add_item(p, (struct pattern_item){.first = other, .last = other}, node) : STATUS_OK;
}

static enum status hexadecimal(struct parser *p, int digits, bool braced, uint32_t *point)
{
    uint32_t value = 0;
    int n = 0;
    if (braced)
        p->at++;
    for (; n < digits && *p->at && strchr("0123456789abcdefABCDEF", *p->at); n++, p->at++)
        value = value << 4 | (uint32_t)(*p->at <= '9' ? *p->at - '0' : (*p->at | 32) - 'a' + 10);
    if (n == 0 || (braced && *p->at++ != '}') || (!braced && n < digits) || value > 0x10ffff)
        return broken(p, "a character's number");
    *point = value;
    return STATUS_OK;
}

/* \p{Name}, \p{^Name}, \P{Name}; `at` is behind the p. */
static enum status property(struct parser *p, bool negated, struct pattern_item *item)
{
    char name[32], what[64];
    size_t length = 0;
    if (*p->at++ != '{')
        return broken(p, "\\p without {…}");
    if (*p->at == '^') {
        negated = !negated;
        p->at++;
    }
    while (length + 1 < sizeof name && *p->at && *p->at != '}')
        name[length++] = *p->at++;
    name[length] = 0;
    if (*p->at++ != '}')
        return broken(p, "\\p{ without }");
    snprintf(what, sizeof what, "\\p{%s}", name);
    *item = (struct pattern_item){.negated = negated, .categories = unicode_categories_named(name)};
    return item->categories ? STATUS_OK : not_known(p, what);
}

/* A character written with a backslash; `at` is behind it. */
static enum status escaped_point(struct parser *p, uint32_t *point)
{
    static const char names[] = "rntfvae", points[] = "\r\n\t\f\v\a\033";
    int length;
    *point = utf8_at(p->at, &length);
    const char *name = *point < 128 && *point ? strchr(names, (int)*point) : NULL;
    char what[] = {'\\', *p->at, 0};
    p->at += length;
    if (name)
        *point = (unsigned char)points[name - names];
    else if (*point == 'x')
        return *p->at == '{' ? hexadecimal(p, 8, true, point) : hexadecimal(p, 2, false, point);
    else if (*point == 'u')
        return hexadecimal(p, 4, false, point);
    else if (is_letter(*point) || (*point >= '0' && *point <= '9'))
        return not_known(p, what);
    return STATUS_OK;
}

/* An escape; *set: it is a set of characters, `item`, and not the character *point. `at` is behind the backslash. */
static enum status escape(struct parser *p, bool *set, struct pattern_item *item, uint32_t *point)
{
    char kind = *p->at;
    *set = true;
    if (!kind)
        return broken(p, "a backslash at its end");
    if (!strchr("pPsSdD", kind)) {
        *set = false;
        return escaped_point(p, point);
    }
    p->at++;
    if (kind == 'p' || kind == 'P')
        return property(p, kind == 'P', item);
    *item = (struct pattern_item){.negated = kind == 'S' || kind == 'D', .space = kind == 's' || kind == 'S'};
    if (!item->space)
        item->categories = 1u << UNICODE_ND;
    return STATUS_OK;
}

/* ---- classes ------------------------------------------------------------- */

/* The end of a range that began with `first`; `at` is behind the hyphen. */
static enum status range(struct parser *p, uint32_t first, int node)
{
    uint32_t last;
    int length;
    bool set = false;
    struct pattern_item item;
    if (*p->at == '\\') {
        p->at++;
        TRY(escape(p, &set, &item, &last));
    } else {
        last = utf8_at(p->at, &length);
        p->at += length;
    }
    if (set || last < first)
        return broken(p, "a range of characters");
    if (p->fold)
        return not_known(p, "a range of characters in (?i:…)");
    return add_item(p, (struct pattern_item){.first = first, .last = last}, node);
}

/* One member of a class. */
static enum status class_member(struct parser *p, int node)
{
    uint32_t point;
    int length;
    bool set = false;
    struct pattern_item item;
    if (*p->at == '[')
        return not_known(p, p->at[1] == ':' ? "[:…:]" : "a class in a class");
    if (p->at[0] == '&' && p->at[1] == '&')
        return not_known(p, "&&");
    if (*p->at == '\\') {
        p->at++;
        TRY(escape(p, &set, &item, &point));
    } else {
        point = utf8_at(p->at, &length);
        p->at += length;
    }
    if (set)
        return add_item(p, item, node);
    if (p->at[0] != '-' || p->at[1] == ']')
        return add_point(p, point, node);
    p->at++;
    return *p->at ? range(p, point, node) : broken(p, "[ without ]");
}

static enum status parse_class(struct parser *p, int node)
{
    p->at++;
    if (*p->at == '^') {
        p->pattern->nodes[node].negated = true;
        p->at++;
    }
    if (*p->at == ']')
        return not_known(p, "] as the first character of a class");
    while (*p->at && *p->at != ']')
        TRY(class_member(p, node));
    return *p->at++ ? STATUS_OK : broken(p, "[ without ]");
}

/* A single character, or a class of them. */
static enum status parse_single(struct parser *p, int node)
{
    uint32_t point;
    int length;
    bool set = false;
    struct pattern_item item;
    if (*p->at == '[')
        return parse_class(p, node);
    if (*p->at == '^' || *p->at == '$')
        return not_known(p, "an anchor");
    if (strchr("?*+", *p->at))
        return broken(p, "a quantifier without a character");
    if (*p->at == '\\') {
        p->at++;
        TRY(escape(p, &set, &item, &point));
        return set ? add_item(p, item, node) : add_point(p, point, node);
    }
    if (*p->at == '.') {
        p->at++;
        p->pattern->nodes[node].negated = true;
        return add_item(p, (struct pattern_item){.first = '\n', .last = '\n'}, node);
    }
    point = utf8_at(p->at, &length);
    p->at += length;
    return add_point(p, point, node);
}

/* ---- quantifiers, groups, alternatives ----------------------------------- */

static bool number(const char **at, int32_t *value)
{
    const char *start = *at;
    for (*value = 0; **at >= '0' && **at <= '9' && *value <= MAX_REPEAT; (*at)++)
        *value = 10 * *value + (**at - '0');
    return *at > start;
}

/* {n}, {n,}, {n,m}; false: it is none of them. */
static bool braces(const char **at, int32_t *min, int32_t *max)
{
    const char *c = *at + 1;
    if (!number(&c, min))
        return false;
    *max = *min;
    if (*c == ',') {
        c++;
        if (!number(&c, max))
            *max = PATTERN_MANY;
    }
    if (*c != '}')
        return false;
    *at = c + 1;
    return true;
}

/* Reads a quantifier, if there is one. */
static enum status parse_quantifier(struct parser *p, int32_t *min, int32_t *max, bool *possessive)
{
    char kind = *p->at;
    *min = *max = 1;
    *possessive = false;
    if (!kind || !strchr("?*+{", kind))
        return STATUS_OK;
    if (kind != '{') {
        *min = kind == '+';
        *max = kind == '?' ? 1 : PATTERN_MANY;
        p->at++;
    } else if (!braces(&p->at, min, max)) {
        return not_known(p, "{ that is no quantifier");
    }
    if (*min > MAX_REPEAT || (*max > MAX_REPEAT && *max != PATTERN_MANY) || *max < *min)
        return not_known(p, "a quantifier of these numbers");
    if (*p->at == '?')
        return not_known(p, "a lazy quantifier");
    if (*p->at == '+' && kind == '{')
        return not_known(p, "a quantifier of a quantifier");
    if (*p->at == '+') {
        *possessive = true;
        p->at++;
    }
    return *p->at && strchr("?*+{", *p->at) ? not_known(p, "a quantifier of a quantifier") : STATUS_OK;
}

static enum status parse_alternatives(struct parser *p, struct piece *out);

/* What (? begins: *look for a lookahead. `at` is behind the '('. */
static enum status group_kind(struct parser *p, bool *look, bool *negated)
{
    *look = *negated = false;
    if (*p->at != '?')
        return STATUS_OK;
    p->at++;
    if (strncmp(p->at, "i:", 2) == 0) {
        p->fold = true;
        p->at += 2;
    } else if (*p->at == ':') {
        p->at++;
    } else if (*p->at == '=' || *p->at == '!') {
        *look = true;
        *negated = *p->at++ == '!';
    } else {
        char what[] = {'(', '?', *p->at > ' ' && *p->at < 127 ? *p->at : ' ', 0};
        return not_known(p, what);
    }
    return STATUS_OK;
}

/* Makes a lookahead of a piece: it ends in its own match. */
static enum status make_look(struct parser *p, bool negated, struct piece *piece)
{
    int match, look;
    TRY(add_node(p, PATTERN_MATCH, &match));
    TRY(add_node(p, PATTERN_LOOK, &look));
    p->pattern->nodes[piece->last].next = match;
    p->pattern->nodes[look].other = piece->first;
    p->pattern->nodes[look].negated = negated;
    *piece = (struct piece){look, look};
    return STATUS_OK;
}

/* A piece that may be left out: a fork before it, and a node behind it in which both ways join. */
static enum status make_optional(struct parser *p, struct piece *piece)
{
    int fork, join;
    TRY(add_node(p, PATTERN_FORK, &fork));
    TRY(add_node(p, PATTERN_FORK, &join));
    p->pattern->nodes[fork].next = piece->first;
    p->pattern->nodes[fork].other = join;
    p->pattern->nodes[piece->last].next = join;
    *piece = (struct piece){fork, join};
    return STATUS_OK;
}

static enum status parse_group(struct parser *p, struct piece *out)
{
    bool look, negated, outer = p->fold, possessive;
    int32_t min, max;
    if (++p->depth > MAX_DEPTH)
        return not_known(p, "too many groups in groups");
    p->at++;
    TRY(group_kind(p, &look, &negated));
    TRY(parse_alternatives(p, out));
    p->fold = outer;
    p->depth--;
    if (*p->at++ != ')')
        return broken(p, "( without )");
    if (look)
        TRY(make_look(p, negated, out));
    TRY(parse_quantifier(p, &min, &max, &possessive));
    if (min == 1 && max == 1)
        return STATUS_OK;
    if (look || possessive || min != 0 || max != 1)
        return not_known(p, "a quantifier other than ? after a group");
    return make_optional(p, out);
}

/* Under (?i:…) Oniguruma also takes one character for two letters: ß for ss, and the ligatures. */
static enum status check_fold(const struct parser *p, const char *start)
{
    static const char *const pairs[] = {"ss", "st", "ff", "fi", "fl"};
    for (size_t i = 0; p->fold && i < COUNT_OF(pairs); i++)
        if ((start[0] | 32) == pairs[i][0] && (start[1] | 32) == pairs[i][1])
            return not_known(p, "(?i:…) around letters that have a ligature");
    return STATUS_OK;
}

static enum status parse_atom(struct parser *p, struct piece *out)
{
    if (*p->at == '(')
        return parse_group(p, out);
    int node;
    TRY(check_fold(p, p->at));
    TRY(add_node(p, PATTERN_CLASS, &node));
    TRY(parse_single(p, node));
    struct pattern_node *made = &p->pattern->nodes[node];
    TRY(parse_quantifier(p, &made->min, &made->max, &made->possessive));
    for (uint32_t point = 0; point < 128; point++)
        if (pattern_in_class(p->pattern, made, point))
            made->ascii[point >> 6] |= (uint64_t)1 << (point & 63);
    *out = (struct piece){node, node};
    return STATUS_OK;
}

static enum status parse_sequence(struct parser *p, struct piece *out)
{
    TRY(add_node(p, PATTERN_FORK, &out->first)); /* so that an empty sequence is a piece as well */
    out->last = out->first;
    while (*p->at && *p->at != '|' && *p->at != ')') {
        struct piece atom;
        TRY(parse_atom(p, &atom));
        p->pattern->nodes[out->last].next = atom.first;
        out->last = atom.last;
    }
    return STATUS_OK;
}

static enum status parse_alternatives(struct parser *p, struct piece *out)
{
    int join, fork;
    struct piece sequence;
    TRY(add_node(p, PATTERN_FORK, &join));
    TRY(add_node(p, PATTERN_FORK, &fork));
    *out = (struct piece){fork, join};
    for (;;) {
        TRY(parse_sequence(p, &sequence));
        p->pattern->nodes[fork].next = sequence.first;
        p->pattern->nodes[sequence.last].next = join;
        if (*p->at != '|')
            return STATUS_OK;
        p->at++;
        int more;
        TRY(add_node(p, PATTERN_FORK, &more));
        p->pattern->nodes[fork].other = more;
        fork = more;
    }
}

static enum status compile(struct parser *p)
{
    struct piece whole;
    int match;
    size_t length = strlen(p->expression);
    if (utf8_check(p->expression, length) < length)
        return broken(p, "not UTF-8");
    TRY(parse_alternatives(p, &whole));
    if (*p->at)
        return broken(p, ") without (");
    TRY(add_node(p, PATTERN_MATCH, &match));
    p->pattern->nodes[whole.last].next = match;
    p->pattern->start = whole.first;
    return STATUS_OK;
}

enum status pattern_compile(const char *expression, struct pattern **out, struct error *err)
{
    struct parser parser = {.expression = expression, .at = expression, .err = err};
    parser.pattern = memory_zeroed(1, sizeof *parser.pattern);
    enum status status = compile(&parser);
    if (status == STATUS_OK)
        *out = parser.pattern;
    else
        pattern_free(parser.pattern);
    return status;
}
