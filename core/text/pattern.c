#define PCRE2_CODE_UNIT_WIDTH 8
#include "core/text/pattern.h"

#include "core/memory.h"
#include "core/text/text_buffer.h"
#include "core/text/unicode.h"
#include "core/text/utf8.h"

#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A search gives up after so many steps, and so many more for each byte of the text: an expression of several
 * repetitions in a row may need the square, or more, of the text's length. Only single characters repeat, so that the
 * length of the expression bounds the memory of a match. */
enum { STEPS = 10000000, STEPS_PER_BYTE = 64, MAX_BYTES = 8192, MAX_DEPTH = 64, MAX_REPEAT = 1000 };

/* What the members of a class are in PCRE2: White_Space, and all else. */
#define SPACES \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define NO_SPACES                                                                                                      \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}" \
    "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"

struct pattern {
    pcre2_general_context *memory;
    pcre2_code *code;
};

struct group {
    bool fold; /* (?i:…), or in one */
    bool look; /* a lookahead */
};

struct translator {
    const char *expression, *at; /* at: UTF-8 with a NUL after it */
    struct text out;
    struct group groups[MAX_DEPTH + 1]; /* groups[depth]: where `at` is */
    int depth;
    enum { NOTHING, CHARACTER, GROUP, LOOK, QUANTIFIED } before; /* what a quantifier would follow */
    struct error *err;
};

/* Both name the status that they return, so that a compiler sees that it is not STATUS_OK. */
static enum status not_known(const struct translator *t, const char *what)
{
    error_set(t->err, STATUS_USAGE, "the regular expression has %s, which this reader does not know: '%.200s'", what,
              t->expression);
    return STATUS_USAGE;
}

static enum status broken(const struct translator *t, const char *what)
{
    error_set(t->err, STATUS_DATA, "this is no regular expression (%s): '%.200s'", what, t->expression);
    return STATUS_DATA;
}

/* ---- characters ---------------------------------------------------------- */

static void emit(struct translator *t, const char *text)
{
    text_add(&t->out, text, strlen(text));
}

static void put_point(struct translator *t, uint32_t point)
{
    char text[16];
    snprintf(text, sizeof text, "\\x{%x}", (unsigned)point);
    emit(t, text);
}

static bool is_letter(uint32_t point)
{
    return (point >= 'a' && point <= 'z') || (point >= 'A' && point <= 'Z');
}

/* A member of a class: a code point; in (?i:…) also the other case, and the two characters that fold to ASCII letters.
 */
static enum status put_member(struct translator *t, uint32_t point)
{
    put_point(t, point);
    if (!t->groups[t->depth].fold)
        return STATUS_OK;
    if (point >= 128)
        return not_known(t, "(?i:…) around a character outside ASCII");
    if (is_letter(point))
        put_point(t, point ^ 32);
    if ((point | 32) == 's')
        put_point(t, 0x17f); /* long s */
    if ((point | 32) == 'k')
        put_point(t, 0x212a); /* the sign of Kelvin */
    return STATUS_OK;
}

static uint32_t take_point(struct translator *t)
{
    int length;
    uint32_t point = utf8_at(t->at, &length);
    t->at += length;
    return point;
}

static enum status take_hexadecimal(struct translator *t, int digits, bool braced, uint32_t *point)
{
    char *end, text[9] = {0};
    if (braced)
        t->at++;
    const int found = (int)strspn(t->at, "0123456789abcdefABCDEF"), count = found < digits ? found : digits;
    memcpy(text, t->at, (size_t)count);
    *point = (uint32_t)strtoul(text, &end, 16);
    t->at += count;
    if (count == 0 || (braced && *t->at++ != '}') || (!braced && count < digits) || *point > 0x10ffff)
        return broken(t, "a character's number");
    return STATUS_OK;
}

/* A character written with a backslash; `at` is behind it. */
static enum status take_escaped(struct translator *t, uint32_t *point)
{
    static const char names[] = "rntfvae", points[] = "\r\n\t\f\v\a\033";
    char what[] = {'\\', *t->at, 0};
    *point = take_point(t);
    const char *name = *point < 128 ? strchr(names, (int)*point) : NULL;
    if (name)
        *point = (unsigned char)points[name - names];
    else if (*point == 'x')
        return *t->at == '{' ? take_hexadecimal(t, 8, true, point) : take_hexadecimal(t, 2, false, point);
    else if (*point == 'u')
        return take_hexadecimal(t, 4, false, point);
    else if (is_letter(*point) || (*point >= '0' && *point <= '9'))
        return not_known(t, what);
    return STATUS_OK;
}

/* ---- sets ---------------------------------------------------------------- */

/* The characters of these categories, as the members of a class. `name` is PCRE2's. */
static void put_categories(struct translator *t, const char *name, bool negated)
{
    char text[16];
    snprintf(text, sizeof text, "\\%c{%s}", negated ? 'P' : 'p', name);
    emit(t, text);
    for (int i = 0; i < unicode_newer_count && !negated; i++) {
        if (strncmp(unicode_newer[i].category, name, strlen(name)) != 0)
            continue;
        put_point(t, unicode_newer[i].first);
        emit(t, "-");
        put_point(t, unicode_newer[i].last);
    }
}

/* \p{Name}, \p{^Name}, \P{Name}; `at` is behind the p. */
static enum status take_property(struct translator *t, char name[32], bool *negated)
{
    char what[64];
    if (*t->at++ != '{')
        return broken(t, "\\p without {…}");
    if (*t->at == '^') {
        *negated = !*negated;
        t->at++;
    }
    const size_t length = strcspn(t->at, "}"), shown = length < 31 ? length : 31;
    snprintf(name, 32, "%.*s", (int)shown, t->at);
    snprintf(what, sizeof what, "\\p{%s}", name);
    if (!t->at[length])
        return broken(t, "\\p{ without }");
    t->at += length + 1;
    return unicode_is_category(name) ? STATUS_OK : not_known(t, what);
}

/* A set that is written with a backslash, and with `alone` not inside a class; *set: whether there is one. `at` is
 * behind the backslash. */
static enum status put_set(struct translator *t, bool alone, bool *set)
{
    const char kind = *t->at;
    char name[32] = "Nd";
    bool negated = kind == 'P' || kind == 'S' || kind == 'D';
    if (!kind)
        return broken(t, "a backslash at its end");
    *set = strchr("pPsSdD", kind) != NULL;
    if (!*set)
        return STATUS_OK;
    t->at++;
    if (kind == 'p' || kind == 'P')
        TRY(take_property(t, name, &negated));
    if (alone)
        emit(t, negated ? "[^" : "[");
    if (kind == 's' || kind == 'S')
        emit(t, negated && !alone ? NO_SPACES : SPACES);
    else
        put_categories(t, name, negated && !alone);
    if (alone)
        emit(t, "]");
    return STATUS_OK;
}

/* The end of a range that began with `first`; `at` is behind the hyphen. */
static enum status put_range(struct translator *t, uint32_t first)
{
    uint32_t last;
    if (!*t->at)
        return broken(t, "[ without ]");
    if (*t->at == '\\' && t->at[1] && strchr("pPsSdD", t->at[1]))
        return broken(t, "a range of characters");
    if (*t->at == '\\' && *++t->at)
        TRY(take_escaped(t, &last));
    else
        last = take_point(t);
    if (last < first)
        return broken(t, "a range of characters");
    if (t->groups[t->depth].fold)
        return not_known(t, "a range of characters in (?i:…)");
    put_point(t, first);
    emit(t, "-");
    put_point(t, last);
    return STATUS_OK;
}

static enum status put_class_member(struct translator *t)
{
    uint32_t point;
    bool set = false;
    if (*t->at == '[')
        return not_known(t, t->at[1] == ':' ? "[:…:]" : "a class in a class");
    if (t->at[0] == '&' && t->at[1] == '&')
        return not_known(t, "&&");
    if (*t->at == '\\') {
        t->at++;
        TRY(put_set(t, false, &set));
        if (set)
            return STATUS_OK;
        TRY(take_escaped(t, &point));
    } else {
        point = take_point(t);
    }
    if (t->at[0] != '-' || t->at[1] == ']')
        return put_member(t, point);
    t->at++;
    return put_range(t, point);
}

static enum status put_class(struct translator *t)
{
    t->at++;
    emit(t, *t->at == '^' ? "[^" : "[");
    if (*t->at == '^')
        t->at++;
    if (*t->at == ']')
        return not_known(t, "] as the first character of a class");
    while (*t->at && *t->at != ']')
        TRY(put_class_member(t));
    emit(t, "]");
    return *t->at++ ? STATUS_OK : broken(t, "[ without ]");
}

/* A single character, or a set of them. */
static enum status put_single(struct translator *t)
{
    static const char *const pairs[] = {"ss", "st", "ff", "fi", "fl"};
    uint32_t point;
    bool set = false;
    /* under (?i:…) Oniguruma also takes one character for two letters: ß for ss, and the ligatures */
    for (size_t i = 0; t->groups[t->depth].fold && i < COUNT_OF(pairs); i++)
        if ((t->at[0] | 32) == pairs[i][0] && (t->at[1] | 32) == pairs[i][1])
            return not_known(t, "(?i:…) around letters that have a ligature");
    t->before = CHARACTER;
    if (*t->at == '[')
        return put_class(t);
    if (*t->at == '.') {
        t->at++;
        emit(t, "[^\\x{a}]");
        return STATUS_OK;
    }
    if (*t->at == '\\') {
        t->at++;
        TRY(put_set(t, true, &set));
        if (set)
            return STATUS_OK;
        TRY(take_escaped(t, &point));
    } else {
        point = take_point(t);
    }
    emit(t, "[");
    TRY(put_member(t, point));
    emit(t, "]");
    return STATUS_OK;
}

/* ---- quantifiers and groups ---------------------------------------------- */

/* {n}, {n,}, {n,m}. */
static enum status put_braces(struct translator *t)
{
    int min, max, length = 0;
    if (sscanf(t->at, "{%4d%n", &min, &length) != 1 || t->at[1] < '0' || t->at[1] > '9')
        return not_known(t, "{ that is no quantifier");
    max = min;
    const char *c = t->at + length;
    if (*c == ',') {
        length = 0;
        const bool bounded = c[1] >= '0' && c[1] <= '9' && sscanf(++c, "%4d%n", &max, &length) == 1;
        max = bounded ? max : MAX_REPEAT;
        c += bounded ? length : 1;
    }
    if (min > MAX_REPEAT || max > MAX_REPEAT || max < min)
        return not_known(t, "a quantifier of these numbers");
    if (*c++ != '}')
        return not_known(t, "{ that is no quantifier");
    text_add(&t->out, t->at, (size_t)(c - t->at));
    t->at = c;
    return STATUS_OK;
}

static enum status put_quantifier(struct translator *t)
{
    const char kind = *t->at;
    if (t->before == NOTHING)
        return broken(t, "a quantifier without a character");
    if (t->before == QUANTIFIED)
        return not_known(t, "a quantifier of a quantifier");
    if (t->before == LOOK || (t->before == GROUP && (kind != '?' || t->at[1] == '+')))
        return not_known(t, "a quantifier other than ? after a group");
    t->before = QUANTIFIED;
    if (kind == '{')
        TRY(put_braces(t));
    else
        text_add(&t->out, t->at++, 1);
    if (*t->at == '?')
        return not_known(t, "a lazy quantifier");
    if (*t->at == '+' && kind != '{')
        text_add(&t->out, t->at++, 1);
    return STATUS_OK;
}

static enum status open_group(struct translator *t)
{
    struct group group = {.fold = t->groups[t->depth].fold};
    const char *begins = "(?:";
    if (t->depth == MAX_DEPTH)
        return not_known(t, "too many groups in groups");
    if (*++t->at == '?') {
        char what[] = {'(', *t->at, t->at[1] > ' ' && t->at[1] < 127 ? t->at[1] : ' ', 0};
        group.fold |= strncmp(t->at, "?i:", 3) == 0;
        group.look = t->at[1] == '=' || t->at[1] == '!';
        if (!group.look && t->at[1] != ':' && strncmp(t->at, "?i:", 3) != 0)
            return not_known(t, what);
        begins = t->at[1] == '=' ? "(?=" : t->at[1] == '!' ? "(?!" : begins;
        t->at += t->at[1] == 'i' ? 3 : 2;
    }
    emit(t, begins);
    t->groups[++t->depth] = group;
    t->before = NOTHING;
    return STATUS_OK;
}

static enum status translate(struct translator *t)
{
    while (*t->at) {
        if (*t->at == '(') {
            TRY(open_group(t));
        } else if (*t->at == ')') {
            if (t->depth == 0)
                return broken(t, ") without (");
            t->before = t->groups[t->depth--].look ? LOOK : GROUP;
            text_add(&t->out, t->at++, 1);
        } else if (*t->at == '|') {
            t->before = NOTHING;
            text_add(&t->out, t->at++, 1);
        } else if (*t->at == '^' || *t->at == '$') {
            return not_known(t, "an anchor");
        } else if (strchr("?*+", *t->at) || (*t->at == '{' && t->before != NOTHING)) {
            TRY(put_quantifier(t));
        } else {
            TRY(put_single(t));
        }
    }
    return t->depth ? broken(t, "( without )") : STATUS_OK;
}

/* ---- PCRE2 --------------------------------------------------------------- */

static void *take_memory(size_t bytes, void *context)
{
    (void)context;
    return memory_alloc(bytes);
}

static void give_memory(void *memory, void *context)
{
    (void)context;
    free(memory);
}

static enum status compile(const struct translator *t, struct pattern *pattern)
{
    char text[128];
    int fault;
    size_t at;
    pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, text);
    if (strtol(text, NULL, 10) < UNICODE_OLDEST)
        return error_set(t->err, STATUS_USAGE, "this PCRE2 has Unicode %s; hint: version 10.39 or later has Unicode 14",
                         text);
    pcre2_compile_context *context = pcre2_compile_context_create(pattern->memory);
    pattern->code =
        pcre2_compile((PCRE2_SPTR)t->out.bytes, t->out.count, PCRE2_UTF | PCRE2_ANCHORED, &fault, &at, context);
    pcre2_compile_context_free(context);
    if (pattern->code)
        return STATUS_OK;
    pcre2_get_error_message(fault, (PCRE2_UCHAR *)text, sizeof text);
    return error_set(t->err, STATUS_USAGE, "PCRE2 does not take the regular expression (%s): '%.200s'", text,
                     t->expression);
}

enum status pattern_compile(const char *expression, struct pattern **out, struct error *err)
{
    struct translator t = {.expression = expression, .at = expression, .err = err};
    const size_t bytes = strlen(expression);
    if (utf8_check(expression, bytes) < bytes)
        return broken(&t, "it is not UTF-8");
    if (bytes > MAX_BYTES)
        return not_known(&t, "more than 8192 bytes");
    struct pattern *pattern = memory_zeroed(1, sizeof *pattern);
    pattern->memory = pcre2_general_context_create(take_memory, give_memory, NULL);
    emit(&t, "(?s).*?("); /* one search of PCRE2 tries all places, so that they share the number of steps */
    enum status status = translate(&t);
    emit(&t, ")");
    if (status == STATUS_OK)
        status = compile(&t, pattern);
    text_release(&t.out);
    if (status == STATUS_OK)
        *out = pattern;
    else
        pattern_free(pattern);
    return status;
}

void pattern_free(struct pattern *pattern)
{
    if (!pattern)
        return;
    pcre2_code_free(pattern->code);
    pcre2_general_context_free(pattern->memory);
    free(pattern);
}

/* ---- a search ------------------------------------------------------------ */

/* The first match that begins at `at` or later. */
static int find_match(const struct pattern *pattern, const char *text, size_t count, size_t at, size_t *start,
                      size_t *end)
{
    pcre2_match_data *data = pcre2_match_data_create(2, pattern->memory);
    pcre2_match_context *context = pcre2_match_context_create(pattern->memory);
    const size_t steps = STEPS + STEPS_PER_BYTE * count;
    pcre2_set_match_limit(context, steps < UINT32_MAX ? (uint32_t)steps : UINT32_MAX);
    const int found = pcre2_match(pattern->code, (PCRE2_SPTR)text, count, at, PCRE2_NO_UTF_CHECK, data, context);
    if (found > 0) {
        *start = pcre2_get_ovector_pointer(data)[2];
        *end = pcre2_get_ovector_pointer(data)[3];
    }
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
    return found;
}

enum status pattern_next(const struct pattern *pattern, const char *text, size_t count, struct pattern_search *search,
                         size_t *start, size_t *end, struct error *err)
{
    for (size_t at = search->at; at <= count;) {
        const int found = find_match(pattern, text, count, at, start, end);
        if (found == PCRE2_ERROR_NOMATCH)
            break;
        if (found < 0)
            return error_set(
                err, STATUS_DATA,
                "the pre-tokenizer's expression takes too long from byte %zu of the text on (error %d of PCRE2)", at,
                found);
        if (*start < *end || !search->found || search->last_end != *start) {
            *search = (struct pattern_search){.at = *end, .last_end = *end, .found = true};
            return STATUS_OK;
        }
        int length = 1;
        if (at < count)
            utf8_at(text + at, &length);
        at += (size_t)length;
    }
    *start = count + 1;
    return STATUS_OK;
}
