/* test_read_ahead.c: pieces come in order, are read before they are taken, within bounds, and are released however the
 * reading ends. No test depends on time: those that wait do so for an event. */
#include "ckpt/read_ahead.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { BUFFER = 64, USERS = 3 };

/* A file of numbers, which are read in order. */
struct numbers {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int64_t fetched, released, failing; /* failing: this piece cannot be read; -1: none */
    pthread_t reader;                   /* who fetched last */
};

static struct numbers numbers;

static enum status fetch_number(void *context, struct read_ahead_piece *piece, struct error *err)
{
    struct numbers *n = context;
    pthread_mutex_lock(&n->mutex);
    bool fails = n->fetched == n->failing;
    assert_int_equal(piece->number, n->fetched);
    memcpy(piece->bytes, &n->fetched, sizeof n->fetched);
    *(int64_t *)piece->place = -n->fetched;
    n->fetched++;
    n->reader = pthread_self();
    pthread_cond_broadcast(&n->changed);
    pthread_mutex_unlock(&n->mutex);
    return fails ? error_set(err, STATUS_CHECKPOINT, "cannot read number %d", (int)piece->number) : STATUS_OK;
}

static void release_number(void *context, struct read_ahead_piece *piece)
{
    struct numbers *n = context;
    assert_int_equal(*(int64_t *)piece->place, -piece->number);
    n->released++;
}

static struct read_ahead *start(int64_t pieces, int users, int64_t failing)
{
    struct read_ahead *ahead;
    struct error err;
    const struct read_ahead_source source = {&numbers, BUFFER, sizeof(int64_t), fetch_number, release_number};
    numbers =
        (struct numbers){.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .failing = failing};
    assert_int_equal(read_ahead_new(&source, pieces, users, &ahead, &err), STATUS_OK);
    return ahead;
}

/* Waits until so many pieces were fetched, and returns how many there are then. */
static int64_t wait_fetched(int64_t count)
{
    pthread_mutex_lock(&numbers.mutex);
    while (numbers.fetched < count)
        pthread_cond_wait(&numbers.changed, &numbers.mutex);
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
    for (int i = 0; i < USERS; i++)
        held[i] = take(ahead, i);
    /* none was given back: the others are there nevertheless, and no more than that */
    assert_int_equal(wait_fetched(USERS + READ_AHEAD), USERS + READ_AHEAD);
    read_ahead_give(ahead, held[0]);
    assert_int_equal(wait_fetched(USERS + READ_AHEAD + 1), USERS + READ_AHEAD + 1);
    for (int i = 1; i < USERS; i++)
        read_ahead_give(ahead, held[i]);
    for (int i = USERS; i < 100; i++)
        read_ahead_give(ahead, take(ahead, i));
    assert_false(pthread_equal(numbers.reader, pthread_self()));
    read_ahead_free(ahead);
    assert_int_equal(numbers.released, 100);
}

static void test_a_failed_read_ends_it(void **unused)
{
    (void)unused;
    struct read_ahead *ahead = start(100, 1, 5);
    for (int i = 0; i < 5; i++)
        read_ahead_give(ahead, take(ahead, i));
    struct read_ahead_piece *failed = read_ahead_take(ahead);
    assert_int_equal(failed->status, STATUS_CHECKPOINT);
    assert_string_equal(failed->err.text, "cannot read number 5");
    read_ahead_give(ahead, failed);
    assert_null(read_ahead_take(ahead));
    assert_null(read_ahead_take(ahead));
    read_ahead_free(ahead);
    assert_int_equal(numbers.fetched, 6);
    assert_int_equal(numbers.released, 5);
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
    assert_int_equal(numbers.released, 0);
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
        cmocka_unit_test(test_what_is_not_taken_is_released),
        cmocka_unit_test(test_one_piece_needs_no_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
