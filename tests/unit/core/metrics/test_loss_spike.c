/* SPDX-License-Identifier: Apache-2.0 */
/* test_loss_spike.c: which losses stand out, and the samples of their steps. */
#include "core/data/token_stream.h"
#include "core/metrics/loss_spike.h"
#include "tests/unit/fixtures/token_files.h"

#include <math.h>

static void test_the_first_losses_are_the_measure(void **state)
{
    (void)state;
    struct loss_mean mean = {.steps = 0};
    for (int i = 0; i < LOSS_MEAN_LEAST; i++) /* not judged, however high */
        assert_false(loss_mean_take(&mean, 2, i == 4 ? 13 : 3));
    assert_true(fabs(mean.mean - 4) < 1e-12);
    assert_false(loss_mean_take(&mean, 2, 4));
    assert_false(loss_mean_take(&mean, 2, 2 * mean.mean));
    assert_true(loss_mean_take(&mean, 2, 2.01 * mean.mean));
}

static void test_a_spike_does_not_hide_the_next(void **state)
{
    (void)state;
    struct loss_mean mean = {.steps = 0};
    for (int i = 0; i < 200; i++) assert_false(loss_mean_take(&mean, 3, 2));
    assert_true(loss_mean_take(&mean, 3, 1e30));
    assert_true(fabs(mean.mean - (2 + (6 - 2) / 50.0)) < 1e-12); /* taken as 3 times the mean */
    assert_true(loss_mean_take(&mean, 3, 6.5));
    int spikes = 0;
    for (int i = 0; i < 200; i++) /* a level that stays is one after a while */
        spikes += loss_mean_take(&mean, 3, 7);
    assert_in_range(spikes, 1, 50);
    assert_false(loss_mean_take(&mean, 3, 7));
}

static void test_losses_that_are_not_finite(void **state)
{
    (void)state;
    struct loss_mean mean = {.steps = 0};
    assert_true(loss_mean_take(&mean, 2, NAN));
    assert_true(loss_mean_take(&mean, 2, INFINITY));
    assert_int_equal(mean.steps, 0);
    loss_mean_take(&mean, 2, 1);
    assert_int_equal(mean.steps, 1);
    assert_false(loss_mean_take(&mean, 0, NAN)); /* off: forgotten */
    assert_int_equal(mean.steps, 0);
}

enum { T = 4, B = 6, SAMPLES = 20, STEPS = SAMPLES / B };

/* Compares token_stream_step_samples() with the tokens that a stream gives: token i of the set is i. */
static void check_stream(const struct token_stream_config *config, const int64_t *first_token)
{
    struct token_stream *stream;
    struct error err;
    assert_int_equal(token_stream_open(config, 1, &stream, &err), STATUS_OK);
    for (int64_t step = 1; step <= 3 * STEPS; step++) { /* into the third epoch */
        struct batch batch;
        bool end = false;
        int64_t samples[B];
        int sources[B];
        assert_int_equal(token_stream_next(stream, &batch, &end, &err), STATUS_OK);
        assert_int_equal(batch.step, step);
        token_stream_step_samples(config, step, samples, sources);
        for (int i = 0; i < B; i++) assert_int_equal(batch.tokens[i * T], first_token[sources[i]] + samples[i] * T);
    }
    token_stream_close(stream);
}

static struct token_stream_config configured(bool shuffle)
{
    return (struct token_stream_config){.data = {.seq_length = T, .shuffle = shuffle, .packing = SPEC_PACKING_CUT},
                                        .vocab_size = 60000,
                                        .seed = 42,
                                        .world = 1,
                                        .batch_size = B,
                                        .micro_batch_size = B,
                                        .token_multiple = 1};
}

static void test_the_samples_of_a_step(void **state)
{
    (void)state;
    const int lengths[2] = {7, SAMPLES * T + 1 - 7};
    const int64_t first[1] = {0};
    megatron("spike", 2, lengths, 2, 0, 60000);
    for (int shuffle = 0; shuffle <= 1; shuffle++) {
        struct token_stream_config config = configured(shuffle);
        config.source.set = open_one("spike");
        check_stream(&config, first);
        token_set_close(config.source.set);
    }
}

static void test_the_samples_of_a_mixture(void **state)
{
    (void)state;
    static const int64_t amounts[2] = {5, 2}, first[2] = {0, 1000};
    static const char *const names[2] = {"spike-a", "spike-b"};
    const int length = SAMPLES * T + 1;
    for (int shuffle = 0; shuffle <= 1; shuffle++) {
        struct mixture mixture = {.seed = 42, .shuffle = shuffle, .epoch_samples = SAMPLES};
        interleave_init(&mixture.order, amounts, 2);
        for (int s = 0; s < 2; s++) {
            megatron(names[s], 2, &length, 1, s * 1000, 60000);
            mixture.sources[s].set = open_one(names[s]);
            mixture.sizes[s] = SAMPLES;
        }
        struct token_stream_config config = configured(shuffle);
        config.mixture = &mixture;
        check_stream(&config, first);
        for (int s = 0; s < 2; s++) token_set_close(mixture.sources[s].set);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_first_losses_are_the_measure), cmocka_unit_test(test_a_spike_does_not_hide_the_next),
        cmocka_unit_test(test_losses_that_are_not_finite), cmocka_unit_test(test_the_samples_of_a_step),
        cmocka_unit_test(test_the_samples_of_a_mixture)};
    return cmocka_run_group_tests_name("loss_spike", tests, setup, teardown);
}
