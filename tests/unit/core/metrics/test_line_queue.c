/* SPDX-License-Identifier: Apache-2.0 */
/* test_line_queue.c: a disk that is full for a while costs neither lines nor time; the file keeps the lines' order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Replaces the queue's write(): it accepts this many more bytes, then each call fails with `failure`. */
static size_t room;
static int failure;

static ssize_t disk_write(int fd, const void *data, size_t bytes)
{
    if (room == 0 && failure) {
        errno = failure;
        return -1;
    }
    size_t n = failure && bytes > room ? room : bytes;
    room -= failure ? n : 0;
    return write(fd, data, n);
}

#include "core/faults.h"

#define fault_write disk_write
#include "core/metrics/line_queue.c"

static char path[] = "/tmp/ztrain-lines-XXXXXX";
static int file;

static int set_up(void **unused)
{
    (void)unused;
    file = mkstemp(path);
    return file < 0;
}

static int tear_down(void **unused)
{
    (void)unused;
    close(file);
    return unlink(path);
}

static void assert_file(const char *expected)
{
    static char text[2 * LINE_QUEUE_BYTES];
    ssize_t n = pread(file, text, sizeof text - 1, 0);
    assert_true(n >= 0);
    text[n] = 0;
    assert_string_equal(text, expected);
}

static void begin(struct line_queue *queue)
{
    assert_int_equal(ftruncate(file, 0), 0);
    assert_int_equal(lseek(file, 0, SEEK_SET), 0);
    room = 0;
    failure = 0;
    line_queue_init(queue, file, path);
}

static enum status add(struct line_queue *queue, const char *line)
{
    struct error err;
    return line_queue_add(queue, line, strlen(line), &err);
}

static void test_lines_wait_and_follow_in_order(void **unused)
{
    static const int reasons[] = {ENOSPC, EDQUOT, EIO, ESTALE, EAGAIN, ETIMEDOUT};
    (void)unused;
    for (size_t i = 0; i < COUNT_OF(reasons); i++) {
        struct line_queue queue;
        begin(&queue);
        assert_int_equal(add(&queue, "one\n"), STATUS_OK);
        room = 2; /* the disk is full in the middle of a line */
        failure = reasons[i];
        assert_int_equal(add(&queue, "second\n"), STATUS_OK);
        assert_file("one\nse");
        assert_int_equal(add(&queue, "three\n"), STATUS_OK);
        assert_false(line_queue_drain(&queue, 0));
        failure = 0;
        queue.retry_at = 0;
        assert_int_equal(add(&queue, "four\n"), STATUS_OK);
        assert_file("one\nsecond\nthree\nfour\n");
        assert_true(line_queue_drain(&queue, 0));
        assert_int_equal(queue.dropped, 0);
        line_queue_release(&queue);
    }
}

static void test_it_is_not_tried_at_every_line(void **unused)
{
    struct line_queue queue;
    (void)unused;
    begin(&queue);
    failure = ENOSPC;
    assert_int_equal(add(&queue, "one\n"), STATUS_OK);
    queue.retry_at = seconds_now() + 3600;
    failure = 0;
    assert_int_equal(add(&queue, "two\n"), STATUS_OK);
    assert_file("");
    assert_true(line_queue_drain(&queue, 0)); /* but a drain writes them */
    assert_file("one\ntwo\n");
    line_queue_release(&queue);
}

static void test_what_does_not_fit_is_counted(void **unused)
{
    static char line[1 << 16];
    struct line_queue queue;
    struct error err;
    (void)unused;
    begin(&queue);
    memset(line, 'x', sizeof line);
    line[sizeof line - 1] = '\n';
    failure = ENOSPC;
    for (int i = 0; i < LINE_QUEUE_BYTES / (1 << 16) + 3; i++)
        assert_int_equal(line_queue_add(&queue, line, sizeof line, &err), STATUS_OK);
    assert_int_equal(queue.dropped, 3);
    assert_int_equal(queue.used, LINE_QUEUE_BYTES);
    failure = 0;
    assert_true(line_queue_drain(&queue, 0));
    assert_int_equal(lseek(file, 0, SEEK_END), LINE_QUEUE_BYTES);
    line_queue_release(&queue);
}

static void test_other_failures_are_errors(void **unused)
{
    struct line_queue queue;
    struct error err;
    (void)unused;
    begin(&queue);
    failure = EFBIG;
    assert_int_equal(line_queue_add(&queue, "one\n", 4, &err), STATUS_CHECKPOINT);
    assert_non_null(strstr(err.text, "File too large"));
    line_queue_release(&queue);
}

static enum status owner_says; /* what test_owner() answers */
static int owner_cause, owner_asked;

static enum status test_owner(void *owner, struct error *err)
{
    assert_ptr_equal(owner, &owner_asked);
    owner_asked++;
    if (owner_says == STATUS_OK) return STATUS_OK;
    error_set(err, owner_says, "the owner");
    error_cause(err, owner_cause);
    return owner_says;
}

/* A node that was cut off may come back to a file of another job. */
static void test_lines_that_waited_are_the_owners_alone(void **unused)
{
    struct line_queue queue;
    (void)unused;
    begin(&queue);
    queue.still_owner = test_owner;
    queue.owner = &owner_asked;
    assert_int_equal(add(&queue, "one\n"), STATUS_OK);
    assert_int_equal(owner_asked, 0);
    failure = EIO;
    assert_int_equal(add(&queue, "two\n"), STATUS_OK);
    failure = 0;
    owner_says = STATUS_CHECKPOINT; /* the owner file cannot be read either */
    owner_cause = ESTALE;
    queue.retry_at = 0;
    assert_int_equal(add(&queue, "three\n"), STATUS_OK);
    assert_file("one\n");
    owner_says = STATUS_USAGE;
    owner_cause = 0;
    queue.retry_at = 0;
    assert_int_equal(add(&queue, "four\n"), STATUS_USAGE);
    assert_false(line_queue_drain(&queue, 0));
    assert_file("one\n");
    owner_says = STATUS_OK;
    queue.retry_at = 0;
    assert_int_equal(add(&queue, "five\n"), STATUS_OK);
    assert_file("one\ntwo\nthree\nfive\n");
    line_queue_release(&queue);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines_wait_and_follow_in_order),
        cmocka_unit_test(test_it_is_not_tried_at_every_line),
        cmocka_unit_test(test_what_does_not_fit_is_counted),
        cmocka_unit_test(test_other_failures_are_errors),
        cmocka_unit_test(test_lines_that_waited_are_the_owners_alone),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
