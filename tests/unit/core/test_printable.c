/* SPDX-License-Identifier: Apache-2.0 */
/* test_printable.c: bytes that a terminal would obey are escaped, and everything else stays. */
#include "core/printable.h"

#include "core/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void what_is_printable_stays(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "a b\\n", "Größe 模型 🚂", "\xc2\xa0"};
    char buffer[64];
    for (size_t i = 0; i < COUNT_OF(texts); i++) assert_ptr_equal(printable(texts[i], buffer, sizeof buffer), texts[i]);
}

static void other_bytes_are_escaped(void **state)
{
    (void)state;
    static const struct {
        const char *raw, *shown;
    } cases[] = {
        {"a\nb\tc\x7f", "a\\x0ab\\x09c\\x7f"},
        {"\x1b[2J", "\\x1b[2J"},
        {"\xc2\x9b", "\\xc2\\x9b"}, /* C1: a control sequence's introducer */
        {"\xff"
         "a",
         "\\xffa"},                 /* not a byte of UTF-8 */
        {"\xc3", "\\xc3"},          /* cut short */
        {"\xc0\xaf", "\\xc0\\xaf"}, /* overlong */
        {"\xe0\x80\xaf", "\\xe0\\x80\\xaf"},
        {"\xed\xa0\x80", "\\xed\\xa0\\x80"},          /* a surrogate */
        {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"}, /* beyond U+10FFFF */
        {"\xc3\xa4\x01", "\xc3\xa4\\x01"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) assert_string_equal(PRINTABLE(cases[i].raw), cases[i].shown);
}

static void what_does_not_fit_is_cut(void **state)
{
    (void)state;
    char buffer[12];
    assert_string_equal(printable("\x01"
                                  "234567",
                                  buffer, sizeof buffer),
                        "\\x01234567"); /* 10 bytes and the NUL */
    assert_string_equal(printable("\x01"
                                  "2345678",
                                  buffer, sizeof buffer),
                        "\\x012345678");
    assert_string_equal(printable("\x01"
                                  "23456789",
                                  buffer, sizeof buffer),
                        "\\x012345...");
    assert_string_equal(printable("\x01"
                                  "234\xc3\xa4"
                                  "6789",
                                  buffer, sizeof buffer),
                        "\\x01234..."); /* whole characters */
}

static void lines_are_kept_where_they_are_printed(void **state)
{
    (void)state;
    static const char raw[] = "a\n\tä\x1b[2J\0b\xff";
    char *text;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    printable_put(out, raw, sizeof raw - 1);
    printable_put(out, NULL, 0);
    assert_int_equal(fclose(out), 0);
    assert_string_equal(text, "a\n\tä\\x1b[2J\\x00b\\xff");
    free(text);
}

static void words_are_quoted_for_a_shell(void **state)
{
    static const char *const cases[][2] = {{"data/chats.jsonl", "data/chats.jsonl"},
                                           {"", "''"},
                                           {"my file", "'my file'"},
                                           {"it's", "'it'\\''s'"},
                                           {"$HOME", "'$HOME'"},
                                           {"caf\xc3\xa9", "'caf\xc3\xa9'"},
                                           {"it's\n\\\xc3\xa9", "$'it\\'s\\012\\\\\\303\\251'"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *word = shell_word(cases[i][0]);
        assert_string_equal(word, cases[i][1]);
        free(word);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_printable_stays),      cmocka_unit_test(other_bytes_are_escaped),
        cmocka_unit_test(what_does_not_fit_is_cut),     cmocka_unit_test(lines_are_kept_where_they_are_printed),
        cmocka_unit_test(words_are_quoted_for_a_shell),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
