/* SPDX-License-Identifier: Apache-2.0 */
/* test_read_ahead.c: pieces come in order, are read before they are taken, within bounds, and are released however the
 * reading ends. No test depends on time: those that wait do so for an event. */
#include "ckpt/read_ahead.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { BUFFER = 64, USERS = 3 };

/* A file of numbers. */
struct numbers {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int64_t named, fetched, released;
    int64_t failing; /* this piece cannot be read; -1: none */
    int64_t unknown; /* this piece cannot be named; -1: none */
    int64_t held;    /* the read of this piece waits for `hold` to end; -1: none */
    bool hold, in_turn, again_helps;
    int naming, reading, reading_most, agains; /* calls of next() or again() and of read() that are under way */
    pthread_t reader;                          /* who read last */
};

static struct numbers numbers;

static void enter(struct numbers *n, int *calls)
{
    pthread_mutex_lock(&n->mutex);
    ++*calls;
}

static void leave(struct numbers *n, int *calls)
{
    --*calls;
    pthread_cond_broadcast(&n->changed);
    pthread_mutex_unlock(&n->mutex);
}

static enum status name_number(void *context, struct read_ahead_piece *piece, struct error *err)
{
    struct numbers *n = context;
    enter(n, &n->naming);
    assert_int_equal(n->naming, 1);
    assert_int_equal(piece->number, n->named);
    assert_true(!n->in_turn || n->reading == 0);
    piece->index = -n->named;
    piece->in_turn = n->in_turn;
    enum status status =
        n->named == n->unknown ? error_set(err, STATUS_CHECKPOINT, "no number %d", (int)n->unknown) : STATUS_OK;
    n->named++;
    leave(n, &n->naming);
    return status;
}

static enum status fetch_number(void *context, struct read_ahead_piece *piece, struct error *err)
{
    struct numbers *n = context;
    enter(n, &n->reading);
    n->reading_most = n->reading > n->reading_most ? n->reading : n->reading_most;
    pthread_cond_broadcast(&n->changed);
    while (n->hold && piece->number == n->held) pthread_cond_wait(&n->changed, &n->mutex);
    memcpy(piece->bytes, &piece->number, sizeof piece->number);
    n->fetched++;
    n->reader = pthread_self();
    leave(n, &n->reading);
    return piece->number == n->failing ? error_set(err, STATUS_CHECKPOINT, "cannot read number %d", (int)piece->number)
                                       : STATUS_OK;
}

static enum status fetch_again(void *context, struct read_ahead_piece *piece, enum status status, struct error *err)
{
    struct numbers *n = context;
    char expected[64];
    snprintf(expected, sizeof expected, "cannot read number %d", (int)n->failing);
    enter(n, &n->naming);
    assert_int_equal(n->naming, 1);
    assert_int_equal(piece->number, n->failing);
    assert_int_equal(status, STATUS_CHECKPOINT);
    assert_string_equal(err->text, expected);
    n->agains++;
    leave(n, &n->naming);
    return n->again_helps ? STATUS_OK : status;
}

static void release_number(void *context, struct read_ahead_piece *piece)
{
    struct numbers *n = context;
    assert_int_equal(piece->index, -piece->number);
    n->released++;
}

/* What is unlike an ordinary file is set in `numbers` before. */
static struct read_ahead *begin(int64_t pieces, int users)
{
    struct read_ahead *ahead;
    struct error err;
    const struct read_ahead_source source = {.context = &numbers,
                                             .buffer_bytes = BUFFER,
                                             .next = name_number,
                                             .read = fetch_number,
                                             .again = fetch_again,
                                             .release = release_number};
    assert_int_equal(read_ahead_new(&source, pieces, users, &ahead, &err), STATUS_OK);
    return ahead;
}

static void reset(void)
{
    numbers = (struct numbers){.mutex = PTHREAD_MUTEX_INITIALIZER,
                               .changed = PTHREAD_COND_INITIALIZER,
                               .failing = -1,
                               .unknown = -1,
                               .held = -1};
}

static struct read_ahead *start(int64_t pieces, int users, int64_t failing)
{
    reset();
    numbers.failing = failing;
    return begin(pieces, users);
}

/* Waits until so many pieces were fetched, and returns how many there are then. */
static int64_t wait_fetched(int64_t count)
{
    pthread_mutex_lock(&numbers.mutex);
    while (numbers.fetched < count) pthread_cond_wait(&numbers.changed, &numbers.mutex);
    int64_t fetched = numbers.fetched;
    pthread_mutex_unlock(&numbers.mutex);
    return fetched;
}

static struct read_ahead_piece *take(struct read_ahead *ahead, int64_t number)
{
    struct read_ahead_piece *piece = read_ahead_take(ahead);
    assert_non_null(piece);
    assert_int_equal(piece->status, STATUS_OK);
    assert_memory_equal(piece->bytes, &number, sizeof number);
    return piece;
}

static void test_pieces_are_read_while_others_are_used(void **unused)
{
    (void)unused;
    struct read_ahead_piece *held[USERS];
    struct read_ahead *ahead = start(100, USERS, -1);
    for (int i = 0; i < USERS; i++) held[i] = take(ahead, i);
    /* none was given back: the others are there nevertheless, and no more than that */
    assert_int_equal(wait_fetched(USERS + READ_AHEAD), USERS + READ_AHEAD);
    read_ahead_give(ahead, held[0]);
    assert_int_equal(wait_fetched(USERS + READ_AHEAD + 1), USERS + READ_AHEAD + 1);
    for (int i = 1; i < USERS; i++) read_ahead_give(ahead, held[i]);
    for (int i = USERS; i < 100; i++) read_ahead_give(ahead, take(ahead, i));
    assert_false(pthread_equal(numbers.reader, pthread_self()));
    read_ahead_free(ahead);
    assert_int_equal(numbers.released, 100);
}

static void test_a_failed_read_ends_it(void **unused)
{
    (void)unused;
    struct read_ahead *ahead = start(100, 1, 5);
    for (int i = 0; i < 5; i++) read_ahead_give(ahead, take(ahead, i));
    struct read_ahead_piece *failed = read_ahead_take(ahead);
    assert_int_equal(failed->status, STATUS_CHECKPOINT);
    assert_string_equal(failed->err.text, "cannot read number 5");
    read_ahead_give(ahead, failed);
    int begun = 0; /* by the other thread, before this piece failed */
    for (struct read_ahead_piece *piece; (piece = read_ahead_take(ahead)); begun++) read_ahead_give(ahead, piece);
    assert_in_range(begun, 0, READ_AHEAD);
    assert_null(read_ahead_take(ahead));
    read_ahead_free(ahead);
    assert_int_equal(numbers.agains, 1);
    assert_true(numbers.fetched >= 6 && numbers.fetched <= 6 + READ_AHEAD);
    assert_int_equal(numbers.released, numbers.fetched);
}

static void test_a_piece_that_cannot_be_named_ends_it(void **unused)
{
    (void)unused;
    reset();
    numbers.unknown = 5;
    struct read_ahead *ahead = begin(100, 1);
    for (int i = 0; i < 5; i++) read_ahead_give(ahead, take(ahead, i));
    struct read_ahead_piece *failed = read_ahead_take(ahead);
    assert_int_equal(failed->status, STATUS_CHECKPOINT);
    assert_string_equal(failed->err.text, "no number 5");
    read_ahead_give(ahead, failed);
    assert_null(read_ahead_take(ahead));
    read_ahead_free(ahead);
    assert_int_equal(numbers.named, 6); /* the other thread named none after it */
    assert_int_equal(numbers.fetched, 5);
    assert_int_equal(numbers.released, 5);
}

static void test_a_read_that_works_the_second_time(void **unused)
{
    (void)unused;
    for (int in_turn = 0; in_turn < 2; in_turn++) {
        reset();
        numbers.failing = 5;
        numbers.again_helps = true;
        numbers.in_turn = in_turn;
        struct read_ahead *ahead = begin(100, USERS);
        for (int i = 0; i < 100; i++) read_ahead_give(ahead, take(ahead, i));
        read_ahead_free(ahead);
        assert_int_equal(numbers.agains, 1);
        assert_int_equal(numbers.released, 100);
    }
}

/* Piece 1 cannot be read for as long as the test likes, and the pieces after it are read meanwhile. */
static void test_reads_in_flight(void **unused)
{
    (void)unused;
    reset();
    numbers.held = 1;
    numbers.hold = true;
    struct read_ahead *ahead = begin(100, USERS);
    assert_int_equal(wait_fetched(USERS + READ_AHEAD - 1), USERS + READ_AHEAD - 1);
    assert_int_equal(numbers.reading_most, READ_AHEAD_THREADS);
    read_ahead_give(ahead, take(ahead, 0));
    wait_fetched(USERS + READ_AHEAD);
    pthread_mutex_lock(&numbers.mutex);
    numbers.hold = false;
    pthread_cond_broadcast(&numbers.changed);
    pthread_mutex_unlock(&numbers.mutex);
    for (int i = 1; i < 100; i++) read_ahead_give(ahead, take(ahead, i));
    read_ahead_free(ahead);
    assert_int_equal(numbers.released, 100);
}

static void test_pieces_that_are_read_in_turn(void **unused)
{
    (void)unused;
    reset();
    numbers.in_turn = true; /* name_number() checks that no read is under way */
    struct read_ahead *ahead = begin(100, USERS);
    for (int i = 0; i < 100; i++) read_ahead_give(ahead, take(ahead, i));
    read_ahead_free(ahead);
    assert_int_equal(numbers.reading_most, 1);
    assert_int_equal(numbers.released, 100);
}

static void test_what_is_not_taken_is_released(void **unused)
{
    (void)unused;
    struct read_ahead *ahead = start(100, 1, -1);
    struct read_ahead_piece *piece = take(ahead, 0);
    wait_fetched(2);
    (void)piece; /* not given back either */
    read_ahead_free(ahead);
    assert_true(numbers.fetched >= 2 && numbers.fetched <= 1 + READ_AHEAD);
    assert_int_equal(numbers.released, numbers.fetched);
    ahead = start(100, 1, 0);
    wait_fetched(1);
    read_ahead_free(ahead);
    assert_int_equal(numbers.released, numbers.fetched);
}

static void test_one_piece_needs_no_thread(void **unused)
{
    (void)unused;
    struct read_ahead *ahead = start(1, USERS, -1);
    read_ahead_give(ahead, take(ahead, 0));
    assert_true(pthread_equal(numbers.reader, pthread_self()));
    read_ahead_free(ahead);
    assert_int_equal(numbers.released, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces_are_read_while_others_are_used),
        cmocka_unit_test(test_a_failed_read_ends_it),
        cmocka_unit_test(test_a_piece_that_cannot_be_named_ends_it),
        cmocka_unit_test(test_a_read_that_works_the_second_time),
        cmocka_unit_test(test_reads_in_flight),
        cmocka_unit_test(test_pieces_that_are_read_in_turn),
        cmocka_unit_test(test_what_is_not_taken_is_released),
        cmocka_unit_test(test_one_piece_needs_no_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
