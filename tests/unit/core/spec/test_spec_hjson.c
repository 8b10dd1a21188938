/* SPDX-License-Identifier: Apache-2.0 */
/* test_spec_hjson.c: the reader of DeepSpeed's files: JSON and what Hjson has beyond it, and every error with its
 * place. */
#include "core/spec/spec_keys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct spec_arena arena;
static const char *sources[] = {"run.yaml", "ds.json"};

static struct spec_node *parse(struct spec_context *ctx, const char *text, size_t size)
{
    *ctx = (struct spec_context){.arena = &arena, .sources = sources, .num_sources = 2};
    return spec_parse_json(ctx, 1, text, size);
}

static const struct {
    const char *text, *json; /* the same as strict JSON */
} good_cases[] = {
    {"{}", "{}"},
    {"{\"a\": [1, -2.5e3, \"x\", true, false, null, {}, []]}",
     "{\"a\": [1, -2.5e3, \"x\", true, false, null, {}, []]}"},
    {"{\t\"a\"\t:\t5e8\r\n}\r\n", "{\"a\": 5e8}"},
    {"// one\n{ # two\n  /* three\n */ \"a\" /* four */ : /* five */ 1 // six\n}\n# seven", "{\"a\": 1}"},
    {"{a: 1, b_c: [true, 2 ,], 'd': 'x', }", "{\"a\": 1, \"b_c\": [true, 2], \"d\": \"x\"}"},
    {"{\n  a: 1\n  b: {c: 2}\n  d: [1\n 2]\n}", "{\"a\": 1, \"b\": {\"c\": 2}, \"d\": [1, 2]}"},
    {"a: 1\nb: text with blanks \nc: /local_nvme\nd: a#b", /* no braces */
     "{\"a\": 1, \"b\": \"text with blanks\", \"c\": \"/local_nvme\", \"d\": \"a#b\"}"},
    {"{a: 1#c\n, b: 2//c\n c: null/* c */ d: 1e-5}", "{\"a\": 1, \"b\": 2, \"c\": null, \"d\": 1e-5}"},
    {"{enabled: True, other: False}", "{\"enabled\": true, \"other\": false}"}, /* Python's spelling */
    {"{\"a\": \"\\u00e4\\ud83d\\ude00\\n\\t\\\"\\\\\\/\", 'b': 'it\\'s \"so\"'}",
     "{\"a\": \"\\u00e4\\ud83d\\ude00\\n\\t\\\"\\\\/\", \"b\": \"it's \\\"so\\\"\"}"},
    {"{a: // none\n  5}", "{\"a\": 5}"},
    {"{\"a b\": 1, \"# c\": \"// d\"}", "{\"a b\": 1, \"# c\": \"// d\"}"},
};

static void test_good(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(good_cases); i++) {
        static struct spec_context ctx;
        const struct spec_node *root = parse(&ctx, good_cases[i].text, strlen(good_cases[i].text));
        if (!root) fail_msg("%s is refused: %s", good_cases[i].text, ctx.errors.items[0].text);
        json_t *got = spec_key_convert(&ctx, &(struct spec_key){.type = KEY_ANY}, root),
               *expected = json_loads(good_cases[i].json, 0, NULL);
        assert_non_null(expected);
        if (!json_equal(got, expected)) fail_msg("%s reads as %s", good_cases[i].text, json_dumps(got, 0));
        json_decref(got);
        json_decref(expected);
        spec_arena_release(&arena);
    }
}

/* Values and keys know their places; a column counts characters. */
static void test_places(void **state)
{
    (void)state;
    static struct spec_context ctx;
    static const char text[] = "{\n  // \xc3\xa4\n  \"\xc3\xa4\": 1, b: {\n\tc : [2,\n 'x']}}";
    const struct spec_node *root = parse(&ctx, text, sizeof text - 1);
    assert_non_null(root);
    static const struct {
        const char *path;
        int key_line, key_column, line, column;
    } places[] = {{"\xc3\xa4", 3, 3, 3, 8}, {"b", 3, 11, 3, 14}, {"b.c", 4, 2, 4, 6}};
    for (size_t i = 0; i < COUNT_OF(places); i++) {
        const struct spec_node *node = spec_find(root, places[i].path);
        assert_non_null(node);
        assert_int_equal(node->key_pos.source, 1);
        assert_int_equal(node->key_pos.line, places[i].key_line);
        assert_int_equal(node->key_pos.column, places[i].key_column);
        assert_int_equal(node->pos.line, places[i].line);
        assert_int_equal(node->pos.column, places[i].column);
    }
    const struct spec_node *item = spec_find(root, "b.c")->last;
    assert_int_equal(item->pos.line, 5);
    assert_int_equal(item->pos.column, 2);
    assert_false(item->plain);
    assert_true(spec_find(root, "b.c")->first->plain);
    spec_arena_release(&arena);
}

static const struct {
    const char *text;
    int line, column;
    const char *message;
} bad_cases[] = {
    {"", 1, 1, "the file is empty"},
    {" // nothing\n", 1, 1, "the file is empty"},
    {"{", 1, 1, "this section has no end"},
    {"{\"a\": 1", 1, 1, "this section has no end"},
    {"{\n \"a\": [1", 2, 7, "this list has no end"},
    {"{\"a\": 1}}", 1, 9, "the file goes on after its end"},
    {"{\"a\" 1}", 1, 6, "no ':' after the key 'a'"},
    {"{\"a\":", 1, 6, "the file ends where a value is expected"},
    {"{\"a\": }", 1, 7, "'}' where a value is expected"},
    {"{\"a\": ,}", 1, 7, "',' where a value is expected"},
    {"{,}", 1, 2, "',' where a key is expected"},
    {"{\"a\": 1,,}", 1, 9, "',' where a key is expected"},
    {"{[]}", 1, 2, "'[' where a key is expected"},
    {"{'': 1}", 1, 2, "a key has no name"},
    {"a: [1]\n]", 2, 1, "']' where a key is expected"},
    {"{\"a\": \"b\n\"}", 1, 7, "this quote has no end in its line"},
    {"{\"a\": \"b", 1, 7, "this quote has no end in its line"},
    {"{\"a\": \"b\x01\"}", 1, 9, "a control character in quotes"},
    {"{\"a\": \"\\x41\"}", 1, 9, "an unknown escape"},
    {"{\"a\": \"\\", 1, 9, "an unknown escape"},
    {"{\"a\": \"\\u12g4\"}", 1, 9, "an unknown escape"},
    {"{\"a\": \"\\u0000\"}", 1, 14, "this escape is no character"},
    {"{\"a\": \"\\ud800\"}", 1, 14, "this escape is no character"},
    {"{\"a\": \"\\ud800\\u0041\"}", 1, 14, "this escape is no character"},
    {"{/* \n", 1, 2, "this comment has no end"},
    {"{a: '''\nb'''}", 1, 5, "text in three quotes is not supported"},
    {"{a: AdamW, b: 1}", 1, 5,
     "text without quotes reaches to the end of its line, so that 'AdamW, b: 1}' is all text"},
    {"{a: AdamW,\nb: 1}", 1, 5, "'AdamW,' is all text; hint: put the text in quotes"},
    {"{a: cpu # here\n}", 1, 5, "'cpu # here' is all text"},
    {"{\"a\": 01}", 1, 7, "'01}' is all text"},
    {"{a: 1, b: 2, a: 3}", 1, 14, "'a' is set twice: here and at ds.json:1:2; hint: keep one of the two"},
    {"{\"\xff\": 1}", 1, 3, "not a text file in UTF-8"},
    {"{\n\"\xc3\xa4\xc3\": 1}", 2, 3, "not a text file in UTF-8"},
};

static void test_bad(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(bad_cases); i++) {
        static struct spec_context ctx;
        parse(&ctx, bad_cases[i].text, strlen(bad_cases[i].text));
        const struct spec_problem *problem = &ctx.errors.items[0];
        if (ctx.errors.count != 1 || !strstr(problem->text, bad_cases[i].message) ||
            problem->pos.line != bad_cases[i].line || problem->pos.column != bad_cases[i].column)
            fail_msg("%s: %d errors, %d:%d: %s", bad_cases[i].text, ctx.errors.count, problem->pos.line,
                     problem->pos.column, ctx.errors.count ? problem->text : "");
        spec_arena_release(&arena);
    }
}

/* Sizes, depths and repetitions that no person writes. */
static void test_hostile(void **state)
{
    (void)state;
    static const struct {
        const char *head, *unit;
        size_t count;
        const char *message;
    } cases[] = {
        {"", "[", 1000000, "nested deeper than 64 levels"},
        {"", "{a:", 1000000, "nested deeper than 64 levels"},
        {"[", "1,", 1000000, "more than 100000 keys and values"},
        {"{", "a:1,", 500000, "'a' is set twice"},
        {"{a: x", ",", 3000000, "is all text"},
        {"{a: 1", "1", 3000000, "this section has no end"},
        {"{", "/**/", 900000, "this section has no end"},
        {"{a: \"", "\\", 3000000, "this quote has no end"},
        {"", "#", 3000000, "the file is empty"},
        {"{a: \0", "x", 100, "not a text file"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        static struct spec_context ctx;
        size_t head = i + 1 == COUNT_OF(cases) ? 5 : strlen(cases[i].head), unit = strlen(cases[i].unit);
        char *text = malloc(head + unit * cases[i].count);
        assert_non_null(text);
        memcpy(text, cases[i].head, head);
        for (size_t j = 0; j < cases[i].count; j++) memcpy(text + head + unit * j, cases[i].unit, unit);
        parse(&ctx, text, head + unit * cases[i].count);
        assert_true(ctx.errors.count > 0);
        if (!strstr(ctx.errors.items[0].text, cases[i].message)) fail_msg("case %zu: %s", i, ctx.errors.items[0].text);
        free(text);
        spec_arena_release(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_bad),
        cmocka_unit_test(test_hostile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
