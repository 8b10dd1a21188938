/* SPDX-License-Identifier: Apache-2.0 */
/* test_clock.c: timed waits by the monotonic clock, and threads without signals. */
#include "core/clock.h"

#include "core/thread.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void a_timed_wait_ends_by_the_monotonic_clock(void **state)
{
    (void)state;
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t condition;
    condition_init(&condition);
    pthread_mutex_lock(&mutex);
    double start = seconds_now();
    const struct timespec end = time_after(0.05);
    assert_true(end.tv_nsec >= 0 && end.tv_nsec < 1000000000);
    int code = 0;
    while (code == 0) /* it may wake up early */
        code = pthread_cond_timedwait(&condition, &mutex, &end);
    assert_int_equal(code, ETIMEDOUT);
    assert_true(seconds_now() - start >= 0.049);
    pthread_mutex_unlock(&mutex);
    pthread_cond_destroy(&condition);
}

static void *blocked_signals(void *argument)
{
    pthread_sigmask(SIG_SETMASK, NULL, argument);
    return NULL;
}

static void other_threads_get_no_signals(void **state)
{
    (void)state;
    sigset_t theirs, ours;
    pthread_t thread;
    sigemptyset(&theirs);
    assert_int_equal(thread_start(&thread, 0, blocked_signals, &theirs), 0);
    pthread_join(thread, NULL);
    assert_true(sigismember(&theirs, SIGTERM) && sigismember(&theirs, SIGUSR1) && sigismember(&theirs, SIGINT));
    pthread_sigmask(SIG_SETMASK, NULL, &ours);
    assert_false(sigismember(&ours, SIGTERM));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_timed_wait_ends_by_the_monotonic_clock),
        cmocka_unit_test(other_threads_get_no_signals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
