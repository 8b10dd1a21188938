/* SPDX-License-Identifier: Apache-2.0 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "core/text/pattern.h"

#include "core/memory.h"
#include "core/text/unicode.h"

#include <pcre2.h>

/* A search gives up after so many steps, and so many more for each byte: several repetitions in a row may need the
 * square of the text's length. Only single characters repeat: the expression's length bounds a match's memory. */
enum { STEPS = 10000000, STEPS_PER_BYTE = 64, MAX_BYTES = 8192, MAX_DEPTH = 64, MAX_REPEAT = 1000 };

/* White_Space and all else, as members of a class. */
static const char spaces[] =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
static const char no_spaces[] =
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}!-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}"
    "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}";

struct pattern {
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
    enum { NOTHING, CHARACTER, SET, GROUP, LOOK, QUANTIFIED } before; /* what was read last */
    struct error *err;
};

/* Both name the status that they return, so that a compiler sees that it is not STATUS_OK. */
static enum status pattern_not_known(const struct translator *t, const char *what)
{
    error_set(t->err, STATUS_USAGE, "the regular expression has %s, which this reader does not know: '%.200s'", what,
              t->expression);
    return STATUS_USAGE;
}

static enum status pattern_broken(const struct translator *t, const char *what)
{
    error_set(t->err, STATUS_DATA, "this is not a regular expression (%s): '%.200s'", what, t->expression);
    return STATUS_DATA;
}

static void pattern_emit(struct translator *t, const char *text)
{
    text_add(&t->out, text, strlen(text));
}

static void pattern_copy(struct translator *t, size_t bytes)
{
    text_add(&t->out, t->at, bytes);
    t->at += bytes;
}

/* ---- characters and sets ------------------------------------------------- */

static void emit_categories(struct translator *t, const char *name)
{
    char text[64];
    snprintf(text, sizeof text, "\\p{%s}", name);
    pattern_emit(t, text);
    for (int i = 0; i < unicode_newer_count; i++) {
        const struct unicode_run *run = &unicode_newer[i];
        snprintf(text, sizeof text, "\\x{%x}-\\x{%x}", (unsigned)run->first, (unsigned)run->last);
        if (strncmp(run->category, name, strlen(name)) == 0) pattern_emit(t, text);
    }
}

/* \p{Name}, \p{^Name}, \P{Name}. */
static enum status pattern_take_property(struct translator *t, char name[32], bool *negated)
{
    char what[64];
    if (*t->at != '{') return pattern_broken(t, "\\p without {…}");
    t->at++;
    if (*t->at == '^') {
        *negated = !*negated;
        t->at++;
    }
    const size_t length = strcspn(t->at, "}");
    snprintf(name, 32, "%.*s", length < 31 ? (int)length : 31, t->at);
    snprintf(what, sizeof what, "\\p{%s}", name);
    if (!t->at[length]) return pattern_broken(t, "\\p{ without }");
    t->at += length + 1;
    if (!unicode_is_category(name) || (t->groups[t->depth].fold && name[1] && strchr("ult", name[1])))
        return pattern_not_known(t, what);
    return STATUS_OK;
}

/* A backslash and the letter of a set; `alone`: not in a class. */
static enum status put_set(struct translator *t, bool alone)
{
    const char kind = t->at[1];
    char name[32] = "Nd";
    bool negated = kind == 'P' || kind == 'S' || kind == 'D';
    t->at += 2;
    if (kind == 'p' || kind == 'P') TRY(pattern_take_property(t, name, &negated));
    if (alone) pattern_emit(t, negated ? "[^" : "[");
    if (kind == 's' || kind == 'S') {
        pattern_emit(t, negated && !alone ? no_spaces : spaces);
    } else if (negated && !alone) {
        pattern_emit(t, "\\P{");
        pattern_emit(t, name);
        pattern_emit(t, "}");
    } else {
        emit_categories(t, name);
    }
    if (alone) pattern_emit(t, "]");
    return STATUS_OK;
}

static bool pattern_is_set(const char *at)
{
    return at[0] == '\\' && at[1] && strchr("pPsSdD", at[1]);
}

/* \x41, \x{41}, \u0041. */
static enum status pattern_put_number(struct translator *t)
{
    const bool braced = t->at[1] == 'x' && t->at[2] == '{';
    const size_t wanted = t->at[1] == 'u' ? 4 : 2;
    t->at += braced ? 3 : 2;
    const size_t digits = strspn(t->at, "0123456789abcdefABCDEF");
    if (braced ? digits == 0 || t->at[digits] != '}' : digits < wanted)
        return pattern_broken(t, "a character's number");
    pattern_emit(t, "\\x{");
    pattern_copy(t, braced ? digits : wanted);
    pattern_emit(t, "}");
    t->at += braced;
    return STATUS_OK;
}

static enum status put_escape(struct translator *t)
{
    const char what[] = {'\\', t->at[1], 0};
    if (!t->at[1]) return pattern_broken(t, "a backslash at its end");
    if (strchr("xu", t->at[1])) return pattern_put_number(t);
    if (isalnum((unsigned char)t->at[1]) && !strchr("rntfvae", t->at[1])) return pattern_not_known(t, what);
    if (t->at[1] == 'v')
        pattern_emit(t, "\v"); /* which is a set for PCRE2 */
    else
        text_add(&t->out, t->at, 2);
    t->at += 2;
    return STATUS_OK;
}

/* A character of the expression, which stands for itself or has a backslash, or a part of it. */
static enum status put_character(struct translator *t)
{
    t->before = CHARACTER;
    if (t->groups[t->depth].fold && ((*t->at & 0x80) || (*t->at == '\\' && t->at[1] && strchr("xu", t->at[1]))))
        return pattern_not_known(t, "(?i:…) around a character outside ASCII, or by its number");
    if (*t->at == '\\') return put_escape(t);
    pattern_copy(t, 1);
    return STATUS_OK;
}

static enum status put_class(struct translator *t)
{
    pattern_copy(t, t->at[1] == '^' ? 2 : 1);
    if (*t->at == ']') return pattern_not_known(t, "] as the first character of a class");
    t->before = NOTHING;
    while (*t->at && *t->at != ']') {
        if (*t->at == '[') return pattern_not_known(t, t->at[1] == ':' ? "[:…:]" : "a class in a class");
        if (t->at[0] == '&' && t->at[1] == '&') return pattern_not_known(t, "&&");
        if (*t->at == '-' && t->before == CHARACTER && t->at[1] != ']') {
            if (t->groups[t->depth].fold) return pattern_not_known(t, "a range of characters in (?i:…)");
            if (pattern_is_set(t->at + 1)) return pattern_broken(t, "a range of characters");
            t->before = NOTHING;
            pattern_copy(t, 1);
            continue;
        }
        if (*t->at == '-') pattern_emit(t, "\\"); /* it stands for itself */
        if (pattern_is_set(t->at)) {
            TRY(put_set(t, false));
            t->before = SET;
        } else {
            TRY(put_character(t));
        }
    }
    t->before = CHARACTER;
    if (!*t->at) return pattern_broken(t, "[ without ]");
    pattern_copy(t, 1);
    return STATUS_OK;
}

static enum status pattern_put_single(struct translator *t)
{
    static const char *const pairs[] = {"ss", "st", "ff", "fi", "fl"};
    /* under (?i:…) Oniguruma also takes one character for two letters: ß for ss, and the ligatures */
    for (size_t i = 0; t->groups[t->depth].fold && i < COUNT_OF(pairs); i++)
        if (strncasecmp(t->at, pairs[i], 2) == 0)
            return pattern_not_known(t, "(?i:…) around letters that have a ligature");
    if (*t->at == '[') return put_class(t);
    if (!pattern_is_set(t->at) && *t->at != '.') return put_character(t);
    t->before = CHARACTER;
    if (pattern_is_set(t->at)) return put_set(t, true);
    pattern_emit(t, "[^\\n]");
    t->at++;
    return STATUS_OK;
}

/* ---- quantifiers and groups ---------------------------------------------- */

/* {n}, {n,}, {n,m}. */
static enum status put_braces(struct translator *t)
{
    static const char digits[] = "0123456789";
    const char *c = t->at + 1;
    const size_t first = strspn(c, digits), more = c[first] == ',' ? 1 + strspn(c + first + 1, digits) : 0;
    if (first == 0 || c[first + more] != '}') return pattern_not_known(t, "{ that is no quantifier");
    const long min = strtol(c, NULL, 10), most = more > 1 ? strtol(c + first + 1, NULL, 10) : min;
    if (most > MAX_REPEAT || most < min) return pattern_not_known(t, "a quantifier of these numbers");
    pattern_copy(t, first + more + 2);
    return STATUS_OK;
}

static enum status put_quantifier(struct translator *t)
{
    const char kind = *t->at;
    if (t->before == NOTHING) return pattern_broken(t, "a quantifier without a character");
    if (t->before == QUANTIFIED) return pattern_not_known(t, "a quantifier of a quantifier");
    if (t->before == LOOK || (t->before == GROUP && (kind != '?' || t->at[1] == '+')))
        return pattern_not_known(t, "a quantifier other than ? after a group");
    t->before = QUANTIFIED;
    if (kind == '{')
        TRY(put_braces(t));
    else
        pattern_copy(t, 1);
    if (*t->at == '?') return pattern_not_known(t, "a lazy quantifier");
    if (*t->at == '+' && kind != '{') pattern_copy(t, 1);
    return STATUS_OK;
}

static enum status open_group(struct translator *t)
{
    static const char *const kinds[] = {"(?:", "(?i:", "(?=", "(?!"};
    const char what[] = {'(', '?', t->at[1] == '?' && t->at[2] > ' ' && t->at[2] < 127 ? t->at[2] : ' ', 0};
    size_t kind = 0;
    if (t->depth == MAX_DEPTH) return pattern_not_known(t, "too many groups in groups");
    while (t->at[1] == '?' && strncmp(t->at, kinds[kind], strlen(kinds[kind])) != 0)
        if (++kind == COUNT_OF(kinds)) return pattern_not_known(t, what);
    const struct group group = {.fold = kind == 1 || t->groups[t->depth].fold, .look = kind > 1};
    pattern_emit(t, kinds[kind]); /* a group (…) need not be remembered */
    t->at += t->at[1] == '?' ? strlen(kinds[kind]) : 1;
    t->groups[++t->depth] = group;
    t->before = NOTHING;
    return STATUS_OK;
}

static enum status pattern_translate(struct translator *t)
{
    while (*t->at) {
        if (*t->at == '(') {
            TRY(open_group(t));
        } else if (*t->at == ')') {
            if (t->depth == 0) return pattern_broken(t, ") without (");
            t->before = t->groups[t->depth--].look ? LOOK : GROUP;
            pattern_copy(t, 1);
        } else if (*t->at == '|') {
            t->before = NOTHING;
            pattern_copy(t, 1);
        } else if (*t->at == '^' || *t->at == '$') {
            return pattern_not_known(t, "an anchor");
        } else if (strchr("?*+", *t->at) || (*t->at == '{' && t->before != NOTHING)) {
            TRY(put_quantifier(t));
        } else {
            TRY(pattern_put_single(t));
        }
    }
    return t->depth ? pattern_broken(t, "( without )") : STATUS_OK;
}

/* ---- PCRE2 --------------------------------------------------------------- */

static enum status compile(const struct translator *t, struct pattern *pattern)
{
    char text[128];
    int fault;
    size_t at;
    pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, text);
    if (strtol(text, NULL, 10) < UNICODE_OLDEST)
        return error_set(t->err, STATUS_USAGE, "this PCRE2 has Unicode %s; hint: version 10.39 or later has Unicode 14",
                         text);
    pattern->code = pcre2_compile((PCRE2_SPTR)t->out.bytes, t->out.count, PCRE2_UTF | PCRE2_ANCHORED | PCRE2_DOTALL,
                                  &fault, &at, NULL);
    if (pattern->code) return STATUS_OK;
    if (fault == PCRE2_ERROR_HEAP_FAILED) memory_exhausted(0);
    pcre2_get_error_message(fault, (PCRE2_UCHAR *)text, sizeof text);
    return fault == PCRE2_ERROR_PATTERN_TOO_LARGE ? pattern_not_known(t, "too many parts") : pattern_broken(t, text);
}

enum status pattern_compile(const char *expression, struct pattern **out, struct error *err)
{
    struct translator t = {.expression = expression, .at = expression, .err = err};
    const size_t bytes = strlen(expression);
    if (utf8_check(expression, bytes) < bytes) return pattern_broken(&t, "it is not UTF-8");
    if (bytes > MAX_BYTES) return pattern_not_known(&t, "more than 8192 bytes");
    RELEASED(pattern_drop) struct pattern *pattern = memory_zeroed(1, sizeof *pattern);
    pattern_emit(&t, ".*?("); /* one search of PCRE2 tries all places, so that they share the number of steps */
    enum status status = pattern_translate(&t);
    pattern_emit(&t, ")");
    if (status == STATUS_OK) status = compile(&t, pattern);
    text_release(&t.out);
    if (status == STATUS_OK) *out = TAKEN(pattern);
    return status;
}

void pattern_free(struct pattern *pattern)
{
    if (!pattern) return;
    pcre2_code_free(pattern->code);
    free(pattern);
}

/* ---- a search ------------------------------------------------------------ */

static int find_match(const struct pattern *p, const char *text, size_t count, size_t at, size_t *start, size_t *end)
{
    pcre2_match_data *data = pcre2_match_data_create(2, NULL);
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    const size_t steps = STEPS + STEPS_PER_BYTE * count;
    if (!data || !context) memory_exhausted(0);
    pcre2_set_match_limit(context, steps < UINT32_MAX ? (uint32_t)steps : UINT32_MAX);
    const int found = pcre2_match(p->code, (PCRE2_SPTR)text, count, at, PCRE2_NO_UTF_CHECK, data, context);
    if (found > 0) {
        *start = pcre2_get_ovector_pointer(data)[2];
        *end = pcre2_get_ovector_pointer(data)[3];
    }
    if (found == PCRE2_ERROR_NOMEMORY) memory_exhausted(0);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
    return found;
}

enum status pattern_next(const struct pattern *pattern, const char *text, size_t count, struct pattern_search *search,
                         size_t *start, size_t *end, struct error *err)
{
    for (size_t at = search->at; at <= count;) {
        const int found = find_match(pattern, text, count, at, start, end);
        if (found == PCRE2_ERROR_NOMATCH) break;
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
        if (at < count) utf8_at(text + at, &length);
        at += (size_t)length;
    }
    *start = count + 1;
    return STATUS_OK;
}
