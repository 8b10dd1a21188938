/* SPDX-License-Identifier: Apache-2.0 */
/* test_output.c: readers that pause, never come back or have closed the pipe. Each test is a child process whose stdout
 * and stderr are small pipes. */
#include "core/output.h"
#include "core/status.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { SMALL_PIPE = 4096, LINES = 20000 /* twice as many as fit */ };

struct child {
    pid_t pid;
    int out, err; /* its output; -1: both go to `out` */
    int go, done; /* from the test: continue; from the child: a step is done */
};

static void say(enum outlet outlet, const char *format, int number)
{
    char line[128];
    int n = snprintf(line, sizeof line, format, number);
    output_put(outlet, line, (size_t)n, OUTPUT_LINE);
}

/* In the child: reports that it got here, and waits until it may continue. */
static void tell(const struct child *self)
{
    if (write(self->done, "x", 1) != 1) _exit(90);
}

static void await(const struct child *self)
{
    char word;
    if (read(self->go, &word, 1) != 1) _exit(91);
}

static void make_pipe(int ends[2])
{
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    fcntl(ends[1], F_SETPIPE_SZ, SMALL_PIPE);
}

static struct child start(void (*body)(const struct child *self), bool one_file)
{
    int out[2], err[2], go[2], done[2];
    make_pipe(out);
    make_pipe(err);
    make_pipe(go);
    make_pipe(done);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const struct child self = {.go = go[0], .done = done[1]};
        alarm(120);
        signal(SIGPIPE, SIG_IGN);
        dup2(out[1], STDOUT_FILENO);
        dup2(one_file ? out[1] : err[1], STDERR_FILENO);
        for (int end = 0; end < 2; end++) {
            close(out[end]);
            close(err[end]);
        }
        close(go[1]);
        close(done[0]);
        if (output_start() != 0) _exit(92);
        body(&self);
        exit(0);
    }
    close(out[1]);
    close(err[1]);
    close(go[0]);
    close(done[1]);
    return (struct child){.pid = pid, .out = out[0], .err = err[0], .go = go[1], .done = done[0]};
}

static void expect_told(const struct child *child)
{
    char word;
    assert_int_equal(read(child->done, &word, 1), 1);
}

static void let_go(const struct child *child)
{
    assert_int_equal(write(child->go, "x", 1), 1);
}

static int end(struct child *child)
{
    int status;
    assert_int_equal(waitpid(child->pid, &status, 0), child->pid);
    close(child->out);
    close(child->err);
    close(child->go);
    close(child->done);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void expect_lines(FILE *from, const char *const *lines, size_t count)
{
    char line[256];
    for (size_t i = 0; i < count; i++) {
        assert_non_null(fgets(line, sizeof line, from));
        assert_string_equal(line, lines[i]);
    }
}

static void say_much(const struct child *self)
{
    for (int i = 0; i < LINES; i++) say(OUTLET_STDOUT, "line %d\n", i);
    output_put(OUTLET_STDERR, "aside\n", 6, OUTPUT_LINE);
    tell(self); /* nothing has been read yet */
    await(self);
    for (int i = 0; i < 3; i++) say(OUTLET_STDOUT, "later %d\n", i);
    output_put(OUTLET_STDOUT, "error\n", 6, OUTPUT_LAST);
    output_drain();
}

static void test_a_reader_who_pauses(void **state)
{
    (void)state;
    struct child child = start(say_much, false);
    static const char *const aside[] = {"aside\n"}, *const later[] = {"later 0\n", "later 1\n", "later 2\n", "error\n"};
    FILE *out = fdopen(dup(child.out), "r"), *err = fdopen(dup(child.err), "r");
    char line[256];
    int shown = 0, number, missing = 0;
    expect_told(&child);
    expect_lines(err, aside, 1); /* while stdout is still blocked */
    while (fgets(line, sizeof line, out) && sscanf(line, "line %d\n", &number) == 1)
        assert_int_equal(number, shown++); /* in order, none twice */
    assert_int_equal(sscanf(line, "ztrain: warning: %d lines of output were dropped: the reader paused\n", &missing),
                     1);
    assert_true(shown > 0 && missing > 0);
    assert_int_equal(shown + missing, LINES);
    let_go(&child);
    expect_lines(out, later, 4);
    assert_null(fgets(line, sizeof line, out));
    fclose(out);
    fclose(err);
    assert_int_equal(end(&child), 0);
}

/* The final error are queued even if the queue is full, and the process ends even if nothing reads its output. */
static void fill_and_end(const struct child *self)
{
    for (int i = 0; i < LINES; i++) say(OUTLET_STDOUT, "line %d\n", i);
    output_put(OUTLET_STDOUT, "renewed", 7, OUTPUT_RENEWED); /* not a line that could be missing */
    output_put(OUTLET_STDOUT, "error\n", 6, OUTPUT_LAST);
    if (output_drain() || output_drain()) _exit(93);
    tell(self);
}

static void test_a_reader_who_does_not_come_back(void **state)
{
    (void)state;
    struct child child = start(fill_and_end, false);
    expect_told(&child);
    assert_int_equal(end(&child), 0);
}

static void drain_and_end(const struct child *self)
{
    for (int i = 0; i < LINES; i++) say(OUTLET_STDOUT, "line %d\n", i);
    output_put(OUTLET_STDOUT, "error\n", 6, OUTPUT_LAST);
    tell(self);
    if (!output_drain()) _exit(94);
}

static void test_last_words_reach_a_slow_reader(void **state)
{
    (void)state;
    struct child child = start(drain_and_end, false);
    FILE *out = fdopen(dup(child.out), "r");
    char line[256], last[256] = "";
    expect_told(&child);
    while (fgets(line, sizeof line, out)) memcpy(last, line, sizeof last);
    assert_string_equal(last, "error\n");
    fclose(out);
    assert_int_equal(end(&child), 0);
}

static void take_turns(const struct child *self)
{
    (void)self;
    for (int i = 0; i < 1000; i++) say(i % 2 ? OUTLET_STDERR : OUTLET_STDOUT, "line %d\n", i);
    output_drain();
}

static void test_one_file_has_one_order(void **state)
{
    (void)state;
    struct child child = start(take_turns, true);
    FILE *out = fdopen(dup(child.out), "r");
    char line[256];
    int number, expected = 0;
    while (fgets(line, sizeof line, out) && sscanf(line, "line %d\n", &number) == 1)
        assert_int_equal(number, expected++);
    assert_int_equal(expected, 1000);
    fclose(out);
    assert_int_equal(end(&child), 0);
}

static void say_to_nobody(const struct child *self)
{
    await(self);
    for (int i = 0; i < LINES; i++) say(OUTLET_STDOUT, "line %d\n", i);
    output_put(OUTLET_STDERR, "still here\n", 11, OUTPUT_LINE);
    if (!output_drain()) _exit(95);
}

static void test_a_reader_who_is_gone(void **state)
{
    (void)state;
    struct child child = start(say_to_nobody, false);
    static const char *const still[] = {"still here\n"};
    FILE *err = fdopen(dup(child.err), "r");
    close(child.out);
    child.out = dup(child.err);
    let_go(&child);
    expect_lines(err, still, 1);
    fclose(err);
    assert_int_equal(end(&child), 0);
}

/* A log file whose file system hangs: a pipe without a reader. */
static void log_slowly(const struct child *self)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0 || output_open(ends[1]) != 0) _exit(96);
    for (int i = 0; i < LINES; i++) say(OUTLET_FILE, "line %d of a log file\n", i);
    output_put(OUTLET_STDOUT, "trains\n", 7, OUTPUT_LINE);
    tell(self);
    output_close();
}

static void test_a_log_file_that_hangs(void **state)
{
    (void)state;
    struct child child = start(log_slowly, false);
    static const char *const trains[] = {"trains\n"};
    FILE *out = fdopen(dup(child.out), "r");
    expect_told(&child);
    expect_lines(out, trains, 1);
    fclose(out);
    assert_int_equal(end(&child), 0);
}

/* A failed assertion may be in the queues: its message bypasses them, and waits no longer than they do. */
static void end_with_a_bug(const struct child *self)
{
    (void)self;
    fcntl(STDERR_FILENO, F_SETFL, O_NONBLOCK);
    while (write(STDERR_FILENO, "x", 1) == 1) continue;
    fcntl(STDERR_FILENO, F_SETFL, 0);
    BUG("number %d", 7);
}

static void test_a_bug_while_the_reader_pauses(void **state)
{
    (void)state;
    struct child child = start(end_with_a_bug, false);
    assert_int_equal(end(&child), STATUS_BUG);
}

static void end_with_words(const struct child *self)
{
    (void)self;
    BUG("number %d", 7);
}

static void test_a_bug_is_said(void **state)
{
    (void)state;
    struct child child = start(end_with_words, false);
    FILE *err = fdopen(dup(child.err), "r");
    char line[256];
    assert_non_null(fgets(line, sizeof line, err));
    assert_non_null(strstr(line, "ztrain: bug: tests/unit/core/test_output.c:"));
    assert_non_null(strstr(line, ": number 7\n"));
    fclose(err);
    assert_int_equal(end(&child), STATUS_BUG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_reader_who_pauses),
        cmocka_unit_test(test_a_reader_who_does_not_come_back),
        cmocka_unit_test(test_last_words_reach_a_slow_reader),
        cmocka_unit_test(test_one_file_has_one_order),
        cmocka_unit_test(test_a_reader_who_is_gone),
        cmocka_unit_test(test_a_log_file_that_hangs),
        cmocka_unit_test(test_a_bug_while_the_reader_pauses),
        cmocka_unit_test(test_a_bug_is_said),
    };
    return cmocka_run_group_tests_name("output", tests, NULL, NULL);
}
