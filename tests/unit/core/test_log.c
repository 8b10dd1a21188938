/* SPDX-License-Identifier: Apache-2.0 */
/* test_log.c: the lines on stderr and in the log file, and which rank writes them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/log.h"
#include "core/printable.h"

static char said[8192], logged[8192];

static void read_all(const char *path, char *text, size_t size)
{
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    text[fread(text, 1, size - 1, f)] = 0;
    fclose(f);
}

/* Logs `text` as an error and as a warning; fills said (stderr) and logged (the file). */
static void say(int rank, int world, const char *text)
{
    char terminal[] = "/tmp/ztrain-log-XXXXXX", file[] = "/tmp/ztrain-log-XXXXXX";
    int to = mkstemp(terminal), kept = dup(2);
    struct error err;
    close(mkstemp(file));
    error_set(&err, STATUS_DATA, "%s", text);
    log_identity(rank, world, "here");
    assert_int_equal(log_open(file, &err), STATUS_OK);
    fflush(stderr);
    dup2(to, 2);
    log_error(&err);
    log_warn("%s", text);
    fflush(stderr);
    dup2(kept, 2);
    close(kept);
    close(to);
    log_close();
    read_all(terminal, said, sizeof said);
    read_all(file, logged, sizeof logged);
    unlink(terminal);
    unlink(file);
}

static void test_who_speaks(void **state)
{
    (void)state;
    say(0, 1, "no such file");
    assert_string_equal(said, "ztrain: error: no such file\nztrain: warning: no such file\n");
    say(3, 4, "no such file");
    assert_string_equal(said,
                        "ztrain: error: rank 3 on here: no such file\nztrain: warning: rank 3 on here: no such file\n");
    assert_non_null(strstr(logged, "Z ztrain: error: no such file\n"));
}

/* An error on which the ranks have agreed begins with the rank where it happened. */
static void test_a_rank_is_named_once(void **state)
{
    (void)state;
    say(1, 2, "rank 1 on here: disk full");
    assert_string_equal(said, "ztrain: error: rank 1 on here: disk full\nztrain: warning: rank 1 on here: disk full\n");
    assert_non_null(strstr(logged, "Z ztrain: error: rank 1 on here: disk full\n"));
    say(1, 2, "rank 0 on here: disk full");
    assert_non_null(strstr(said, "ztrain: error: rank 1 on here: rank 0 on here: disk full\n"));
    say(1, 2, "rank 1 on hereabouts: disk full");
    assert_non_null(strstr(said, "ztrain: error: rank 1 on here: rank 1 on hereabouts: disk full\n"));
}

/* A file name that would clear the screen and forge a line. */
static void test_a_terminal_obeys_nothing_from_outside(void **state)
{
    (void)state;
    say(0, 1, "cannot open 'a\033[2J\nztrain: error: forged'");
    assert_string_equal(said, "ztrain: error: cannot open 'a\\x1b[2J\\x0aztrain: error: forged'\n"
                              "ztrain: warning: cannot open 'a\\x1b[2J\\x0aztrain: error: forged'\n");
    assert_non_null(strstr(logged, "Z ztrain: error: cannot open 'a\\x1b[2J\\x0aztrain: error: forged'\n"));
}

static void expect_printable(const char *text, const char *expected)
{
    assert_string_equal(PRINTABLE(text), expected);
}

static void test_what_is_printable(void **state)
{
    (void)state;
    const char *plain = "a b~ \\x1b é … 漢 😀";
    assert_ptr_equal(PRINTABLE(plain), plain); /* no copy */
    expect_printable("", "");
    expect_printable("\001\t\r\037 \177", "\\x01\\x09\\x0d\\x1f \\x7f");
    expect_printable("\xc2\x9b"
                     "2J \xc2\xa0",
                     "\\xc2\\x9b"
                     "2J \xc2\xa0"); /* C1, and the first after it */
    expect_printable("\x9b"
                     "1m \xff",
                     "\\x9b"
                     "1m \\xff");
    expect_printable("\xc0\x9b \xe0\x82\x9b \xf0\x80\x82\x9b", /* longer forms of C1's */
                     "\\xc0\\x9b \\xe0\\x82\\x9b \\xf0\\x80\\x82\\x9b");
    expect_printable("\xed\xa0\x80 \xf4\x90\x80\x80", "\\xed\\xa0\\x80 \\xf4\\x90\\x80\\x80");
    expect_printable("cut \xe2\x80", "cut \\xe2\\x80");
    char small[8];
    assert_string_equal(printable("\033", small, sizeof small), "\\x1b");
    assert_string_equal(printable("abc\033", small, sizeof small), "abc\\x1b");
    assert_string_equal(printable("abcd\033", small, sizeof small), "abcd...");
    assert_string_equal(printable("\033\033", small, sizeof small), "\\x1b...");
}

/* A log file begins with the lines that were logged before it was opened. */
static void test_the_log_has_the_first_words(void **state)
{
    (void)state;
    log_debug("the first words");
    say(0, 1, "the second");
    const char *first = strstr(logged, "Z the first words\n"),
               *second = strstr(logged, "Z ztrain: error: the second\n");
    assert_true(first && second && first < second);
    say(0, 1, "the third");
    assert_null(strstr(logged, "first"));
}

/* Details are lines on stdout unless they are hidden, and always in the file. */
static void test_details_can_be_hidden(void **state)
{
    (void)state;
    char terminal[] = "/tmp/ztrain-log-XXXXXX", file[] = "/tmp/ztrain-log-XXXXXX";
    int to = mkstemp(terminal), kept = dup(1);
    struct error err;
    close(mkstemp(file));
    log_identity(0, 1, "here");
    assert_int_equal(log_open(file, &err), STATUS_OK);
    fflush(stdout);
    dup2(to, 1);
    log_detail("shown");
    log_show_details(false);
    log_detail("hidden");
    log_info("said");
    log_show_details(true);
    log_detail("again");
    log_close();
    dup2(kept, 1);
    close(kept);
    close(to);
    read_all(terminal, said, sizeof said);
    read_all(file, logged, sizeof logged);
    assert_string_equal(said, "shown\nsaid\nagain\n");
    assert_non_null(strstr(logged, "Z hidden\n"));
    unlink(terminal);
    unlink(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_log_has_the_first_words), /* before any log file was open */
        cmocka_unit_test(test_who_speaks),
        cmocka_unit_test(test_a_rank_is_named_once),
        cmocka_unit_test(test_a_terminal_obeys_nothing_from_outside),
        cmocka_unit_test(test_what_is_printable),
        cmocka_unit_test(test_details_can_be_hidden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
