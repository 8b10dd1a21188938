/* SPDX-License-Identifier: Apache-2.0 */
/* test_stochastic_rounding.c: rounding to bf16 by keyed random bits: unbiased, and a function of its key alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "core/dtype.h"
#include "core/model/state_slices.h"
#include "core/training/stochastic_rounding.h"

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* x rounded as element `place` of a state. */
static float round_at(float x, struct rounding_place at, int64_t step, int state)
{
    const struct rounding_counter counter = rounding_counter(at, step, state);
    uint32_t words[4];
    rounding_words(&counter, (uint64_t)at.place / ROUNDING_BLOCK, words);
    return bf16_to_f32(bf16_round_stochastically(bits_of(x), rounding_bits(words, (int)(at.place % ROUNDING_BLOCK))));
}

/* The mean of N roundings is x within five standard errors, and every rounding is a neighbour of x. */
static void test_the_mean_is_exact(void **state)
{
    (void)state;
    enum { N = 1 << 16 };
    static const double values[] = {1.001, -1.0015, 3.14159, -1e-20, 6e30, 0.1, 1e-39};
    for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
        const float x = (float)values[v];
        const double below = (double)bf16_to_f32((uint16_t)(bits_of(x) >> 16)); /* towards zero */
        const double above = (double)bf16_to_f32((uint16_t)((bits_of(x) >> 16) + 1)), gap = above - below;
        double sum = 0;
        for (int i = 0; i < N; i++) {
            double y = (double)round_at(x, (struct rounding_place){7, 3, i}, 11, STATE_EXP_AVG);
            assert_true(y == below || y == above);
            sum += (y - below) / gap;
        }
        const double share = ((double)x - below) / gap, error = sqrt(share * (1 - share) / N);
        assert_true(fabs(sum / N - share) <= 5 * error);
    }
}

/* Each part of the key changes about half of the roundings of a value half-way between its neighbours. */
static void test_every_part_of_the_key_counts(void **state)
{
    (void)state;
    enum { N = 4096 };
    const float x = 1 + 0x1p-8f; /* half-way between 1 and 1 + 2^-7 */
    const struct rounding_place base = {.seed = 7, .unit = 3};
    int same[7] = {0};
    for (int i = 0; i < N; i++) {
        struct rounding_place at = base, seed = base, unit = base, next = base, far = base;
        at.place = seed.place = unit.place = i;
        next.place = i + 1;
        far.place = i + ((int64_t)1 << 35); /* 2^32 blocks further */
        seed.seed += (uint64_t)1 << 40;
        unit.unit++;
        const float y = round_at(x, at, 5, STATE_MASTER);
        assert_true(y == round_at(x, at, 5, STATE_MASTER));
        same[0] += y == round_at(x, seed, 5, STATE_MASTER);
        same[1] += y == round_at(x, unit, 5, STATE_MASTER);
        same[2] += y == round_at(x, next, 5, STATE_MASTER);
        same[3] += y == round_at(x, far, 5, STATE_MASTER);
        same[4] += y == round_at(x, at, 6, STATE_MASTER);
        same[5] += y == round_at(x, at, 5 + ((int64_t)1 << 32), STATE_MASTER);
        same[6] += y == round_at(x, at, 5, STATE_EXP_AVG_SQ);
    }
    for (size_t k = 0; k < sizeof same / sizeof *same; k++)
        assert_in_range(same[k], N / 2 - 160, N / 2 + 160); /* five standard errors */
}

static void test_special_values(void **state)
{
    (void)state;
    for (uint32_t random = 0; random <= 0xffff; random += 0xff) {
        assert_int_equal(bf16_round_stochastically(bits_of(0.0f), random), 0);
        assert_int_equal(bf16_round_stochastically(bits_of(-0.0f), random), 0x8000);
        assert_int_equal(bf16_round_stochastically(bits_of(INFINITY), random), 0x7f80);
        assert_int_equal(bf16_round_stochastically(bits_of(-INFINITY), random), 0xff80);
        assert_true(isnan(bf16_to_f32(bf16_round_stochastically(0x7fffffffu, random))));
        assert_true(isnan(bf16_to_f32(bf16_round_stochastically(0x7f800001u, random))));
        assert_int_equal(bf16_round_stochastically(bits_of(1.5f), random), 0x3fc0); /* a bf16 value stays */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_mean_is_exact),
        cmocka_unit_test(test_every_part_of_the_key_counts),
        cmocka_unit_test(test_special_values),
    };
    return cmocka_run_group_tests_name("stochastic_rounding", tests, NULL, NULL);
}
