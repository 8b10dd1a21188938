/* SPDX-License-Identifier: Apache-2.0 */
/* test_pattern.c: core/text/pattern.h: matches, and expressions that are refused. How whole tokenizers cut texts is
 * compared with `tokenizers` in test_tokenizer.c. */
#include "core/text/pattern.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LONG_TEXT = 3000 };

static struct pattern *compile(const char *expression)
{
    struct pattern *pattern = NULL;
    struct error err;
    if (pattern_compile(expression, &pattern, &err) != STATUS_OK) fail_msg("%s", err.text);
    return pattern;
}

/* All matches in brackets, the rest as it is. */
static void mark(const char *expression, const char *text, char out[256])
{
    struct pattern *pattern = compile(expression);
    struct pattern_search search = {0};
    struct error err;
    size_t start, end, done = 0, count = strlen(text);
    int written = 0;
    for (;;) {
        assert_int_equal(pattern_next(pattern, text, count, &search, &start, &end, &err), STATUS_OK);
        bool last = start > count;
        written +=
            snprintf(out + written, 256 - (size_t)written, "%.*s", (int)((last ? count : start) - done), text + done);
        if (last) break;
        written += snprintf(out + written, 256 - (size_t)written, "[%.*s]", (int)(end - start), text + start);
        done = end;
    }
    pattern_free(pattern);
}

static void matches(void **state)
{
    (void)state;
    static const struct {
        const char *expression, *text, *marked;
    } rows[] = {
        {"a", "abca", "[a]bc[a]"},
        {"ab|a", "aab", "[a][ab]"},
        {"a|ab", "ab", "[a]b"}, /* the first alternative, not the longest */
        {"a*b", "aaab b", "[aaab] [b]"},
        {"a*", "baac", "[]b[aa]c[]"}, /* no empty match at the end of the one before */
        {"(?=b)", "abb", "a[]b[]b"},
        {"a{2}", "aaaaa", "[aa][aa]a"},
        {"a{2,}", "aaaaa", "[aaaaa]"},
        {"a{1,3}", "aaaaa", "[aaa][aa]"},
        {"a++b|a", "aab aa", "[aab] [a][a]"},
        {"a*+a|b", "aab", "aa[b]"}, /* possessive: nothing is given back */
        {"(?:ab|c)?d", "abdcdd", "[abd][cd][d]"},
        {"(ab|(c|d)e)f", "abfcefdef", "[abf][cef][def]"},
        {"\\s+(?!\\S)|\\s", "a  b ", "a[ ][ ]b[ ]"},
        {"(?i:'LL|'s|k)", "'ll'S'\u017f\u212aK", "['ll]['S]['\u017f][\u212a][K]"},
        {"(?i:[ab])c", "AcbcaC", "[Ac][bc]aC"},
        {"(?i:(a|[^b]\\s))\\v", "A\vB a b\v", "[A\v]B a b\v"},
        {"(?i:\\p{L}{2})a", "aAaA", "[aAa]A"},
        {"{a}|#[-&a]", "{a}#&#-#", "[{a}][#&][#-]#"},
        {"[a-c-][\\s-][\\^]", "-\u3000^c-^", "[-\u3000^][c-^]"},
        {"[a-cx]+", "abcdx", "[abc]d[x]"},
        {"[^a-c\\n]+", "abd\u00e9\nc", "ab[d\u00e9]\nc"},
        {"[\\-\\]a-]+", "-]ab", "[-]a]b"},
        {"\\p{Lu}\\P{Lu}", "AbCD", "[Ab]CD"},
        {"[\\p{^L}]+", "a1 b", "a[1 ]b"},
        {"\\d\\D\\S", "1ab", "[1ab]"},
        {"\\x41\\x{e9}\\u00e9\\.\\t", "A\u00e9\u00e9.\tx", "[A\u00e9\u00e9.\t]x"},
        {".", "a\n\u20ac", "[a]\n[\u20ac]"},
        {"|a", "a", "[]a[]"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char marked[256];
        mark(rows[i].expression, rows[i].text, marked);
        if (strcmp(marked, rows[i].marked) != 0)
            fail_msg("%s in '%s': '%s', not '%s'", rows[i].expression, rows[i].text, marked, rows[i].marked);
    }
}

static void what_is_not_known_is_refused_by_its_name(void **state)
{
    (void)state;
    static const struct {
        const char *expression;
        enum status code;
        const char *part;
    } rows[] = {
        {"^a", STATUS_USAGE, "an anchor"},
        {"a$", STATUS_USAGE, "an anchor"},
        {"\\bword", STATUS_USAGE, "\\b"},
        {"\\w+", STATUS_USAGE, "\\w"},
        {"(a)\\1", STATUS_USAGE, "\\1"},
        {"(?<=a)b", STATUS_USAGE, "(?<"},
        {"(?>a)", STATUS_USAGE, "(?>"},
        {"(?m:a)", STATUS_USAGE, "(?m"},
        {"a*?", STATUS_USAGE, "a lazy quantifier"},
        {"a**", STATUS_USAGE, "a quantifier of a quantifier"},
        {"a{2}+", STATUS_USAGE, "a quantifier of a quantifier"},
        {"a{,2}", STATUS_USAGE, "{ that is no quantifier"},
        {"a{3,2}", STATUS_USAGE, "these numbers"},
        {"a{5000}", STATUS_USAGE, "these numbers"},
        {"(?:ab)+", STATUS_USAGE, "after a group"},
        {"(?!a)?", STATUS_USAGE, "after a group"},
        {"[[:alpha:]]", STATUS_USAGE, "[:…:]"},
        {"[a[b]]", STATUS_USAGE, "a class in a class"},
        {"[a&&b]", STATUS_USAGE, "&&"},
        {"[]a]", STATUS_USAGE, "as the first character"},
        {"\\p{Han}", STATUS_USAGE, "\\p{Han}"},
        {"(?i:\u00e9)", STATUS_USAGE, "outside ASCII"},
        {"(?i:[a-z])", STATUS_USAGE, "a range of characters in (?i:"},
        {"(?i:first)", STATUS_USAGE, "a ligature"},
        {"(?i:\\x{e9})", STATUS_USAGE, "by its number"},
        {"(?i:[\\p{Lu}])", STATUS_USAGE, "\\p{Lu}"},
        {"(*ACCEPT)", STATUS_DATA, "without a character"},
        {"\\Qa\\E", STATUS_USAGE, "\\Q"},
        {"(a", STATUS_DATA, "( without )"},
        {"a)", STATUS_DATA, ") without ("},
        {"[a", STATUS_DATA, "[ without ]"},
        {"[a-", STATUS_DATA, "[ without ]"},
        {"[b-a]", STATUS_DATA, "range out of order"},
        {"[a-\\s]", STATUS_DATA, "a range"},
        {"*a", STATUS_DATA, "without a character"},
        {"\\", STATUS_DATA, "backslash"},
        {"\\p", STATUS_DATA, "\\p without"},
        {"\\p{L", STATUS_DATA, "without }"},
        {"\\x{110000}", STATUS_DATA, "too large"},
        {"\\u12", STATUS_DATA, "number"},
        {"\xff", STATUS_DATA, "not UTF-8"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct pattern *pattern = NULL;
        struct error err = {0};
        enum status status = pattern_compile(rows[i].expression, &pattern, &err);
        if (status != rows[i].code || !strstr(err.text, rows[i].part))
            fail_msg("%s: %d '%s', expected '%s'", rows[i].expression, (int)status, err.text, rows[i].part);
        assert_null(pattern);
    }
}

static void repeated(char *out, size_t room, const char *piece, int times)
{
    out[0] = 0;
    for (int i = 0; i < times && strlen(out) + strlen(piece) < room; i++) strcat(out, piece);
}

static void large_expressions_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *piece;
        int times;
        const char *part;
    } rows[] = {{"(", 70, "too many groups"}, {"a", 9000, "more than 8192 bytes"}, {"\\p{L}", 1600, "too many parts"}};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char expression[10000];
        struct pattern *pattern = NULL;
        struct error err = {0};
        repeated(expression, sizeof expression, rows[i].piece, rows[i].times);
        assert_int_equal(pattern_compile(expression, &pattern, &err), STATUS_USAGE);
        if (!strstr(err.text, rows[i].part)) fail_msg("'%s', expected '%s'", err.text, rows[i].part);
        assert_null(pattern);
    }
}

/* Characters of Unicode 16, which the libraries of a system may not know, and spaces that only some call so. */
static void characters_are_those_of_the_package(void **state)
{
    (void)state;
    static const struct {
        const char *expression, *text, *marked;
    } rows[] = {
        {"\\p{L}+", "a\U00010d4ab\u1c891", "[a\U00010d4ab\u1c89]1"},
        {"\\p{Lu}", "\u1c89\u1c8a", "[\u1c89]\u1c8a"},
        {"[^\\p{L}]+", "\U00010d40\u1c8a\u0897", "[\U00010d40]\u1c8a[\u0897]"},
        {"\\P{L}+", "\U00010d40\u1c8a\u0897", "[\U00010d40]\u1c8a[\u0897]"},
        {"\\d+", "1\U00010d40x", "[1\U00010d40]x"},
        {"[\\s]+", "a\u180e\u2028\u200b\v\xc2\x85z", "a\u180e[\u2028]\u200b[\v\xc2\x85]z"},
        {"[\\S]+", "a\u180e\u3000\u200b\u00a0z", "[a\u180e]\u3000[\u200b]\u00a0[z]"},
        {"[\\P{L}x]+", "ax1\u00e9 ", "a[x1]\u00e9[ ]"},
        {"[\\Dx]+", "1x\u0663y", "1[x]\u0663[y]"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char marked[256];
        mark(rows[i].expression, rows[i].text, marked);
        if (strcmp(marked, rows[i].marked) != 0)
            fail_msg("%s in '%s': '%s', not '%s'", rows[i].expression, rows[i].text, marked, rows[i].marked);
    }
}

static void a_search_that_would_take_years_ends(void **state)
{
    (void)state;
    static const char *const expressions[] = {"a*a*a*a*a*a*[bc]", "a?a?a*a*a*a*(?=b|c)"};
    for (size_t i = 0; i < COUNT_OF(expressions); i++) {
        struct pattern *pattern = compile(expressions[i]);
        struct pattern_search search = {0};
        struct error err = {0};
        char text[LONG_TEXT];
        size_t start, end;
        memset(text, 'a', sizeof text);
        assert_int_equal(pattern_next(pattern, text, sizeof text, &search, &start, &end, &err), STATUS_DATA);
        assert_non_null(strstr(err.text, "takes too long"));
        pattern_free(pattern);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches),
        cmocka_unit_test(what_is_not_known_is_refused_by_its_name),
        cmocka_unit_test(large_expressions_are_refused),
        cmocka_unit_test(characters_are_those_of_the_package),
        cmocka_unit_test(a_search_that_would_take_years_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
