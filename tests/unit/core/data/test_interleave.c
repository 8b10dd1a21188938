/* SPDX-License-Identifier: Apache-2.0 */
/* test_interleave.c: the order in which the sources of a mixture give samples: exact shares at every place. */
#include "core/data/mixture.h"

#include "core/training/philox.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

/* Walks `places` places and checks at each that no source is a whole sample ahead of its share or behind it. */
static void check_shares(const struct interleave *order, int64_t places)
{
    struct interleave_cursor cursor;
    int64_t given[INTERLEAVE_SOURCES] = {0};
    interleave_begin(&cursor, order);
    for (int64_t t = 1; t <= places; t++) {
        const int source = interleave_next(&cursor);
        assert_in_range(source, 0, order->count - 1);
        given[source]++;
        assert_int_equal(cursor.place, t);
        for (int s = 0; s < order->count; s++) {
            const __int128 lag = (__int128)order->shares[s] * t - (__int128)given[s] * order->period;
            if (lag <= -order->period || lag >= order->period)
                fail_msg("place %lld: source %d of %d has given %lld", (long long)t, s, order->count,
                         (long long)given[s]);
        }
    }
    assert_memory_equal(given, cursor.taken, (size_t)order->count * sizeof *given);
}

static uint32_t draw(uint64_t counter)
{
    return (uint32_t)philox_u64(7, 0, counter);
}

static void shares_are_exact_at_every_place(void **state)
{
    (void)state;
    uint64_t counter = 0;
    for (int round = 0; round < 300; round++) {
        int64_t amounts[INTERLEAVE_SOURCES];
        const int count = 1 + (int)(draw(counter++) % (round % 10 ? 6 : INTERLEAVE_SOURCES));
        const uint32_t largest = round % 3 == 0 ? 5 : round % 3 == 1 ? 1000 : UINT32_MAX;
        for (int s = 0; s < count; s++) amounts[s] = 1 + draw(counter++) % largest;
        if (round % 4 == 3) /* one source has nearly everything */
            amounts[0] = INT64_C(1) << 40;
        struct interleave order;
        interleave_init(&order, amounts, count);
        check_shares(&order, 1500);
    }
}

static void a_period_ends_exactly_and_repeats(void **state)
{
    (void)state;
    const int64_t amounts[] = {6, 15, 9}; /* 2, 5, 3 */
    struct interleave order;
    interleave_init(&order, amounts, 3);
    assert_int_equal(order.period, 10);
    struct interleave_cursor cursor;
    interleave_begin(&cursor, &order);
    int first[10];
    for (int t = 0; t < 10; t++) first[t] = interleave_next(&cursor);
    const int64_t once[] = {2, 5, 3};
    assert_memory_equal(cursor.taken, once, sizeof once);
    for (int t = 0; t < 30; t++) assert_int_equal(interleave_next(&cursor), first[t % 10]);
    /* the rule by hand: open windows, the earliest end first, and of several the first source */
    static const int by_hand[] = {1, 2, 1, 0, 1, 2, 1, 0, 1, 2};
    assert_memory_equal(first, by_hand, sizeof by_hand);
}

static void any_place_is_reached_directly(void **state)
{
    (void)state;
    const int64_t amounts[] = {70, 20, 7, 3, 41};
    struct interleave order;
    interleave_init(&order, amounts, 5);
    struct interleave_cursor walk, jump;
    interleave_begin(&walk, &order);
    interleave_begin(&jump, &order);
    for (int64_t t = 0; t < 600; t++) {
        struct interleave_cursor from_start;
        interleave_begin(&from_start, &order);
        interleave_seek(&from_start, t);
        interleave_seek(&jump, 600 - t); /* backward and forward in turns */
        interleave_seek(&jump, t);
        assert_memory_equal(&from_start, &walk, sizeof walk);
        assert_memory_equal(&jump, &walk, sizeof walk);
        interleave_next(&walk);
    }
    const int64_t far = INT64_C(1000000007) * order.period + 77; /* in no more time than within a period */
    interleave_seek(&jump, far);
    interleave_begin(&walk, &order);
    interleave_seek(&walk, 77);
    for (int s = 0; s < 5; s++) assert_int_equal(jump.taken[s], INT64_C(1000000007) * order.shares[s] + walk.taken[s]);
    for (int t = 0; t < 200; t++) assert_int_equal(interleave_next(&jump), interleave_next(&walk));
}

static void weights_are_exact_where_they_are_decimal(void **state)
{
    (void)state;
    struct {
        double weights[3];
        int64_t shares[3];
    } cases[] = {
        {{0.7, 0.2, 0.1}, {7, 2, 1}},
        {{2, 1, 1}, {2, 1, 1}},
        {{0.333333333, 0.333333333, 0.333333334}, {333333333, 333333333, 333333334}},
        {{1e-9, 1, 1}, {1, 1000000000, 1000000000}},
        {{30000, 10000, 20000}, {3, 1, 2}},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        int64_t amounts[3];
        struct interleave order;
        interleave_weights(cases[i].weights, 3, amounts);
        interleave_init(&order, amounts, 3);
        assert_memory_equal(order.shares, cases[i].shares, sizeof cases[i].shares);
    }
    const double thirds[] = {1.0 / 3, 2.0 / 3, 1e-30};
    int64_t amounts[3];
    interleave_weights(thirds, 3, amounts);
    assert_true(llabs(2 * amounts[0] - amounts[1]) <= 2);
    assert_int_equal(amounts[2], 1); /* no source is lost */
    assert_true(amounts[0] + amounts[1] > INT64_C(1) << 39);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_are_exact_at_every_place),
        cmocka_unit_test(a_period_ends_exactly_and_repeats),
        cmocka_unit_test(any_place_is_reached_directly),
        cmocka_unit_test(weights_are_exact_where_they_are_decimal),
    };
    return cmocka_run_group_tests_name("interleave", tests, NULL, NULL);
}
