/* What is said on stderr and in the log file, and by whom. */
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

static char said[8192], logged[8192];

static void read_all(const char *path, char *text, size_t size)
{
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    text[fread(text, 1, size - 1, f)] = 0;
    fclose(f);
}

/* Says `text` as an error and as a warning; fills said (stderr) and logged (the file). */
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

/* What ranks have agreed on begins with the one it happened to. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_who_speaks), cmocka_unit_test(test_a_rank_is_named_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
