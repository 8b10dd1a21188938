/* SPDX-License-Identifier: Apache-2.0 */
/* test_retry.c: which failed reads are retried, for how long, and what ends the waiting. */
#include "core/retry.h"

#include "core/clock.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static int is_asked_to_stop;

static int stopped(void)
{
    return is_asked_to_stop;
}

static enum status fail_with(int cause, struct error *err)
{
    return error_system(err, STATUS_CHECKPOINT, cause, "cannot read 'x'");
}

static void what_is_no_matter_of_the_disk_is_not_tried_again(void **state)
{
    (void)state;
    struct error err = {.code = STATUS_OK};
    struct retry retry = {.limit = 60};
    enum status status = STATUS_OK;
    assert_false(retry_again(&retry, &status, &err));
    status = fail_with(ENOENT, &err); /* an absent file is damage, which is not retried */
    assert_false(retry_again(&retry, &status, &err));
    assert_int_equal(status, STATUS_CHECKPOINT);
    status = error_set(&err, STATUS_DEVICE, "out of memory");
    error_cause(&err, ENOMEM);
    assert_false(retry_again(&retry, &status, &err));
}

static void without_a_limit_nothing_is_tried_again(void **state)
{
    (void)state;
    struct error err;
    struct retry retry = {0};
    enum status status = fail_with(EIO, &err);
    double start = seconds_now();
    assert_false(retry_again(&retry, &status, &err));
    assert_true(seconds_now() - start < 5); /* and a busy machine has its time */
    assert_int_equal(err.cause, EIO);
}

static void a_disk_is_tried_until_the_limit(void **state)
{
    (void)state;
    struct error err;
    struct retry retry = {.limit = 0.5};
    enum status status = STATUS_OK;
    int tries = 0;
    double start = seconds_now();
    do {
        tries++;
        status = fail_with(ESTALE, &err);
    } while (retry_again(&retry, &status, &err));
    double seconds = seconds_now() - start;
    assert_true(tries >= 2 && seconds >= 0.45 && seconds < 20);
    assert_int_equal(status, STATUS_CHECKPOINT);
}

static void a_stop_ends_the_waiting(void **state)
{
    (void)state;
    struct error err;
    struct retry retry = {.limit = 600, .stopped = stopped};
    enum status status = fail_with(EIO, &err);
    is_asked_to_stop = 1;
    assert_false(retry_again(&retry, &status, &err));
    is_asked_to_stop = 0;
    assert_int_equal(status, STATUS_REQUEUE);
    assert_int_equal(err.code, STATUS_REQUEUE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_no_matter_of_the_disk_is_not_tried_again),
        cmocka_unit_test(without_a_limit_nothing_is_tried_again),
        cmocka_unit_test(a_disk_is_tried_until_the_limit),
        cmocka_unit_test(a_stop_ends_the_waiting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
