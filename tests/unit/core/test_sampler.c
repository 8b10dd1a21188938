/* SPDX-License-Identifier: Apache-2.0 */
/* test_sampler.c: the choice of a token: which ones can be drawn, and how often.
 *
 * The seeds are fixed, so that no run of the test differs from another. */
#include "gpu/model/sampler.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TOKENS = 6, DRAWS = 20000 };
/* probabilities 0.1, 0.4, 0.05, 0.25, 0.15, 0.05 */
static const double probabilities[TOKENS] = {0.1, 0.4, 0.05, 0.25, 0.15, 0.05};

static struct sampler *sampler(double temperature, int64_t top_k, double top_p, uint64_t seed)
{
    const struct sampler_settings settings = {temperature, top_k, top_p, seed};
    return sampler_new(&settings, TOKENS);
}

static void fill_logits(float *logits, double temperature)
{
    for (int i = 0; i < TOKENS; i++) logits[i] = (float)(log(probabilities[i]) * temperature + 3);
}

/* Draws from the probabilities, and compares with those of the tokens in `kept`, by Pearson's statistic. */
static void check_draws(double temperature, int64_t top_k, double top_p, const char *kept)
{
    float logits[TOKENS];
    double counts[TOKENS] = {0}, sum = 0, statistic = 0;
    struct sampler *s = sampler(temperature, top_k, top_p, 7);
    fill_logits(logits, temperature);
    for (uint64_t i = 0; i < DRAWS; i++) counts[sampler_choose(s, logits, i)]++;
    sampler_free(s);
    for (int i = 0; i < TOKENS; i++) sum += kept[i] == '1' ? probabilities[i] : 0;
    for (int i = 0; i < TOKENS; i++) {
        const double expected = kept[i] == '1' ? DRAWS * probabilities[i] / sum : 0;
        if (kept[i] == '1')
            statistic += (counts[i] - expected) * (counts[i] - expected) / expected;
        else
            assert_true(counts[i] == 0);
    }
    assert_true(statistic < 20.5); /* exceeded with a probability of 0.001 by five degrees of freedom */
}

static void all_tokens_by_their_probability(void **state)
{
    (void)state;
    check_draws(1, 0, 1, "111111");
    check_draws(0.25, 0, 1, "111111"); /* the logits are those of the temperature */
    check_draws(3, 100, 1, "111111");
}

static void top_k_leaves_the_highest_and_their_equals(void **state)
{
    (void)state;
    check_draws(1, 1, 1, "010000");
    check_draws(1, 3, 1, "010110");
    check_draws(1, 5, 1, "111111"); /* the fifth and the sixth are equal */
}

static void top_p_leaves_what_reaches_it(void **state)
{
    (void)state;
    check_draws(1, 0, 0.3, "010000");
    check_draws(1, 0, 0.6, "010100");
    check_draws(1, 0, 0.7, "010110");
    check_draws(1, 0, 0.85, "110110");
    check_draws(1, 0, 0.001, "010000");
    check_draws(0.5, 3, 0.7, "010100"); /* of 0.8, what top_k left: 0.5, 0.3125, 0.1875 */
}

static void greedy_takes_the_first_of_the_highest(void **state)
{
    (void)state;
    const float logits[TOKENS] = {-1, 2, 0.5F, 2, -INFINITY, 1};
    struct sampler *s = sampler(0, 0, 1, 1);
    for (uint64_t i = 0; i < 5; i++) assert_int_equal(sampler_choose(s, logits, i), 1);
    sampler_free(s);
}

static void a_tiny_temperature_takes_the_highest(void **state)
{
    (void)state;
    const double temperatures[] = {1e-30, 1e-300, 1e-310, 5e-324};
    const float high[TOKENS] = {-1, 2, 0.5F, 1.75F, -INFINITY, 1},
                low[TOKENS] = {-9, -2, -5, -2.25F, -INFINITY, -1e30F};
    const float equal[TOKENS] = {2, -3, 1, 2, 0, -INFINITY},
                none[TOKENS] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY};
    for (size_t t = 0; t < sizeof temperatures / sizeof *temperatures; t++)
        for (int64_t top_k = 0; top_k <= 2; top_k++)
            for (int part = 0; part < 2; part++) {
                struct sampler *s = sampler(temperatures[t], top_k, part ? 0.9 : 1, 3);
                int64_t last = 0;
                for (uint64_t i = 0; i < 50; i++) {
                    assert_int_equal(sampler_choose(s, high, i), 1);
                    assert_int_equal(sampler_choose(s, low, i), 1);
                    assert_int_equal(sampler_choose(s, none, i), 0);
                    const int64_t token = sampler_choose(s, equal, i); /* either of the two highest */
                    assert_true(token == 0 || token == 3);
                    last += token == 3;
                }
                assert_true(last > 10 && last < 40);
                sampler_free(s);
            }
}

static void logits_that_are_no_numbers_are_refused(void **state)
{
    (void)state;
    float logits[TOKENS];
    for (int greedy = 0; greedy < 2; greedy++) {
        struct sampler *s = sampler(greedy ? 0 : 1, 0, 1, 1);
        fill_logits(logits, 1);
        logits[4] = NAN;
        assert_int_equal(sampler_choose(s, logits, 0), -1);
        logits[4] = INFINITY;
        assert_int_equal(sampler_choose(s, logits, 0), -1);
        sampler_free(s);
    }
    struct sampler *s = sampler(1, 2, 0.9, 1);
    fill_logits(logits, 1);
    logits[1] = -INFINITY; /* this one cannot be drawn */
    for (uint64_t i = 0; i < 200; i++) {
        const int64_t token = sampler_choose(s, logits, i);
        assert_true(token == 3 || token == 4);
    }
    sampler_free(s);
}

static void a_draw_depends_on_seed_and_number_alone(void **state)
{
    (void)state;
    float logits[TOKENS];
    fill_logits(logits, 1);
    struct sampler *a = sampler(1, 0, 0.95, 5), *b = sampler(1, 0, 0.95, 5), *c = sampler(1, 0, 0.95, 6);
    int differ = 0;
    for (uint64_t i = 100; i-- > 0;) {
        const int64_t token = sampler_choose(a, logits, i);
        assert_int_equal(sampler_choose(b, logits, i), token);
        differ += sampler_choose(c, logits, i) != token;
    }
    for (uint64_t i = 0; i < 100; i++) assert_int_equal(sampler_choose(a, logits, i), sampler_choose(b, logits, i));
    assert_true(differ > 30);
    sampler_free(a);
    sampler_free(b);
    sampler_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_tokens_by_their_probability),
        cmocka_unit_test(top_k_leaves_the_highest_and_their_equals),
        cmocka_unit_test(top_p_leaves_what_reaches_it),
        cmocka_unit_test(greedy_takes_the_first_of_the_highest),
        cmocka_unit_test(a_tiny_temperature_takes_the_highest),
        cmocka_unit_test(logits_that_are_no_numbers_are_refused),
        cmocka_unit_test(a_draw_depends_on_seed_and_number_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
