/* SPDX-License-Identifier: Apache-2.0 */
/* test_status.c: messages, hints, prefixes and causes of struct error; exit codes; the end after a bug. */
#include "core/status.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void a_message_has_code_text_and_no_cause(void **state)
{
    (void)state;
    struct error err = {.cause = EIO};
    assert_int_equal(error_set(&err, STATUS_DATA, "cannot open '%s'", "x"), STATUS_DATA);
    assert_int_equal(err.code, STATUS_DATA);
    assert_int_equal(err.cause, 0); /* left by the previous message */
    assert_string_equal(err.text, "cannot open 'x'");
    assert_int_equal(error_set(NULL, STATUS_PEER, "nobody reads this"), STATUS_PEER);
}

static void a_long_message_is_cut(void **state)
{
    (void)state;
    struct error err;
    char text[2 * sizeof err.text];
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    error_set(&err, STATUS_DATA, "%s", text);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    error_hint(&err, "no room for it");
    error_prefix(&err, "rank 3");
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    assert_memory_equal(err.text, "rank 3: aaa", 11);
    error_prefix(&err, "%s", text); /* the prefix alone is too long */
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    assert_int_equal(err.code, STATUS_DATA);
}

static void a_message_has_one_hint(void **state)
{
    (void)state;
    struct error err;
    error_set(&err, STATUS_USAGE, "no such key");
    assert_int_equal(error_hint(&err, "did you mean '%s'?", "lr"), STATUS_USAGE);
    assert_int_equal(error_hint(&err, "a second one"), STATUS_USAGE);
    assert_string_equal(err.text, "no such key; hint: did you mean 'lr'?");
    assert_int_equal(error_hint(NULL, "nobody reads this"), STATUS_BUG);
}

static void a_prefix_keeps_the_hint(void **state)
{
    (void)state;
    struct error err;
    error_set(&err, STATUS_CHECKPOINT, "is damaged; hint: an older one");
    assert_int_equal(error_prefix(&err, "rank %d on %s", 1, "node7"), STATUS_CHECKPOINT);
    assert_string_equal(err.text, "rank 1 on node7: is damaged; hint: an older one");
    assert_int_equal(error_prefix(NULL, "nobody reads this"), STATUS_BUG);
}

static void a_system_call_names_its_reason(void **state)
{
    (void)state;
    struct error err;
    assert_int_equal(error_system(&err, STATUS_CHECKPOINT, ENOSPC, "cannot write '%s'", "f"), STATUS_CHECKPOINT);
    assert_string_equal(err.text, "cannot write 'f': No space left on device");
    assert_int_equal(err.cause, ENOSPC);
    assert_int_equal(error_system(NULL, STATUS_DATA, EIO, "nobody reads this"), STATUS_DATA);
    error_set(&err, STATUS_DATA, "short");
    assert_int_equal(error_cause(&err, ESTALE), STATUS_DATA);
    assert_int_equal(err.cause, ESTALE);
    assert_int_equal(error_cause(NULL, EIO), STATUS_BUG);
}

static void causes_fall_into_kinds(void **state)
{
    (void)state;
    static const struct {
        int cause;
        bool transient, unreadable;
    } cases[] = {
        {0, false, false},     {ENOENT, false, false}, {EISDIR, false, false}, {EIO, true, true},
        {ESTALE, true, true},  {EACCES, true, true},   {ENOSPC, true, true},   {EROFS, true, true},
        {EINVAL, false, true}, {ELOOP, false, false},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const struct error err = {.cause = cases[i].cause};
        if (error_is_transient(&err) != cases[i].transient || error_is_unreadable(&err) != cases[i].unreadable)
            fail_msg("%s", strerror(cases[i].cause));
    }
}

static void every_exit_code_has_a_name(void **state)
{
    (void)state;
    static const enum status codes[] = {STATUS_OK,     STATUS_USAGE,   STATUS_DATA,       STATUS_CHECKPOINT,
                                        STATUS_DEVICE, STATUS_PEER,    STATUS_DIVERGED,   STATUS_BROKEN,
                                        STATUS_BUG,    STATUS_REQUEUE, STATUS_INTERRUPTED};
    for (size_t i = 0; i < COUNT_OF(codes); i++) {
        assert_string_not_equal(status_name(codes[i]), "unknown");
        for (size_t k = 0; k < i; k++) assert_string_not_equal(status_name(codes[i]), status_name(codes[k]));
    }
    assert_string_equal(status_name((enum status)1), "unknown");
}

static enum status with_cleanup(enum status first, enum status second, int *cleaned)
{
    enum status status;
    TRY(first);
    TRY_END(second);
end:
    ++*cleaned;
    return status;
}

static enum status with_failure(enum status first, int *failed)
{
    enum status status;
    TRY_GOTO(first);
    return STATUS_OK;
fail:
    ++*failed;
    return status;
}

static void try_leaves_at_the_first_failure(void **state)
{
    (void)state;
    int count = 0;
    assert_int_equal(with_cleanup(STATUS_DATA, STATUS_PEER, &count), STATUS_DATA);
    assert_int_equal(count, 0);
    assert_int_equal(with_cleanup(STATUS_OK, STATUS_PEER, &count), STATUS_PEER);
    assert_int_equal(with_cleanup(STATUS_OK, STATUS_OK, &count), STATUS_OK);
    assert_int_equal(count, 2);
    assert_int_equal(with_failure(STATUS_OK, &count), STATUS_OK);
    assert_int_equal(count, 2);
    assert_int_equal(with_failure(STATUS_BROKEN, &count), STATUS_BROKEN);
    assert_int_equal(count, 3);
}

static void a_bug_names_its_place_and_exits(void **state)
{
    (void)state;
    int file = memfd_create("stderr", 0), how;
    char said[1024] = "";
    assert_true(file >= 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(file, STDERR_FILENO);
        ASSERT(1 + 1 == 2);
        ASSERT(said[0] == 'x');
        _exit(0);
    }
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(pread(file, said, sizeof said - 1, 0) > 0);
    close(file);
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == STATUS_BUG);
    assert_true(strncmp(said, "ztrain: bug: ", 13) == 0 && strstr(said, "test_status.c:"));
    assert_non_null(strstr(said, "assertion failed: said[0] == 'x'\n"));
}

static void an_error_has_the_rank_that_it_is_about(void **state)
{
    (void)state;
    struct error err, other;
    assert_int_equal(error_set(&err, STATUS_PEER, "rank %d died", 3), STATUS_PEER);
    assert_true(err.rank == -1 && err.failure == FAILURE_NONE);
    assert_int_equal(error_blame(&err, 3, FAILURE_DIED), STATUS_PEER);
    error_hint(&err, "dmesg");
    error_prefix(&err, "step %d", 7);
    assert_true(err.rank == 3 && err.failure == FAILURE_DIED);
    error_set(&other, STATUS_PEER, "rank %d died", 4); /* the same is said, but for the prefix */
    assert_true(other.format != err.format && other.rank == -1);
    error_prefix(&other, "step %d", 8);
    assert_true(other.format == err.format);
    assert_int_equal(error_blame(NULL, 3, FAILURE_DIED), STATUS_BUG);
    for (int i = 0; i < FAILURE_COUNT; i++)
        for (int before = 0; before < i; before++) assert_string_not_equal(failure_name(i), failure_name(before));
    assert_null(failure_name(FAILURE_COUNT));
    assert_null(failure_name(-1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_has_code_text_and_no_cause),
        cmocka_unit_test(a_long_message_is_cut),
        cmocka_unit_test(a_message_has_one_hint),
        cmocka_unit_test(a_prefix_keeps_the_hint),
        cmocka_unit_test(a_system_call_names_its_reason),
        cmocka_unit_test(causes_fall_into_kinds),
        cmocka_unit_test(every_exit_code_has_a_name),
        cmocka_unit_test(try_leaves_at_the_first_failure),
        cmocka_unit_test(an_error_has_the_rank_that_it_is_about),
        cmocka_unit_test(a_bug_names_its_place_and_exits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
