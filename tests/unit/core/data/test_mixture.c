/* SPDX-License-Identifier: Apache-2.0 */
/* test_mixture.c: samples from several sources: one order at every world size, from every step on, pass by pass. */
#include "core/data/mixture.h"
#include "tests/unit/fixtures/token_files.h"

enum { SOURCES = 3, T = 4, B = 6, STEPS = 40, PLACES = B * STEPS, FAR = 1000, EPOCH = 39 };

static const int64_t amounts[SOURCES] = {5, 2, 1}, sizes[SOURCES] = {25, 11, 3};

/* Source s has tokens s · FAR, s · FAR + 1, …; the second one has a mask if `masked`. */
static void open_sources(struct mixture *mixture, bool shuffle, bool masked)
{
    *mixture = (struct mixture){.seed = 42, .shuffle = shuffle, .epoch_samples = EPOCH};
    interleave_init(&mixture->order, amounts, SOURCES);
    for (int s = 0; s < SOURCES; s++) {
        char name[16], mask_name[24];
        uint8_t mask[FAR];
        const int lengths[2] = {7, (int)sizes[s] * T + 1 - 7};
        snprintf(name, sizeof name, "source-%d%s", s, masked ? "m" : "");
        snprintf(mask_name, sizeof mask_name, "%s.mask", name);
        megatron(name, 2, lengths, 2, s * FAR, 60000);
        for (int i = 0; i < lengths[0] + lengths[1]; i++) mask[i] = i % 3 == 1;
        if (masked && s == 1) write_file(mask_name, mask, (size_t)(lengths[0] + lengths[1]));
        mixture->sources[s].set = open_one(name);
        mixture->sizes[s] = sizes[s];
    }
}

static void close_sources(struct mixture *mixture)
{
    for (int s = 0; s < mixture->order.count; s++) token_set_close(mixture->sources[s].set);
}

static struct token_stream_config configured(const struct mixture *mixture)
{
    return (struct token_stream_config){
        .data = {.seq_length = T, .shuffle = mixture->shuffle, .packing = SPEC_PACKING_CUT},
        .mixture = mixture,
        .vocab_size = 60000,
        .seed = 42,
        .world = 1,
        .batch_size = B,
        .micro_batch_size = B,
        .token_multiple = 1};
}

static struct token_stream *open_stream(const struct token_stream_config *config, int64_t step)
{
    struct token_stream *stream = NULL;
    struct error err;
    if (token_stream_open(config, step, &stream, &err) != STATUS_OK) fail_msg("%s", err.text);
    return stream;
}

/* The first token of each sample, by its place in the run, as `world` ranks see them from step `first` on. Checks the
 * counts by source of each batch. */
static void collect(const struct mixture *mixture, int world, int micro, int64_t first, int32_t *out)
{
    struct token_stream_config config = configured(mixture);
    config.world = world;
    config.micro_batch_size = micro;
    for (config.rank = 0; config.rank < world; config.rank++) {
        struct token_stream *stream = open_stream(&config, first);
        for (int64_t call = 0; call < (STEPS + 1 - first) * B / world / micro; call++) {
            struct batch batch;
            bool end;
            assert_int_equal(token_stream_next(stream, &batch, &end, NULL), STATUS_OK);
            assert_int_equal(batch.step, first + call / (B / world / micro));
            assert_int_equal(batch.epoch, (batch.step - 1) / (EPOCH / B) + 1);
            assert_int_equal(batch.step_targets, B * T);
            int64_t samples = 0, targets = 0;
            for (int s = 0; s < SOURCES; s++) {
                const int64_t lag = amounts[s] * batch.step * B - 8 * batch.source_samples[s]; /* shares of 8 */
                assert_true(lag > -8 && lag < 8);
                samples += batch.source_samples[s];
                targets += batch.source_targets[s];
            }
            assert_int_equal(samples, batch.step * B);
            assert_int_equal(targets, B * T);
            for (int i = 0; i < micro; i++)
                out[(batch.step - 1) * B + B / world * config.rank + batch.micro * micro + i] =
                    batch.tokens[batch.seq_start[i]];
        }
        token_stream_close(stream);
    }
}

static void one_order_at_every_world_size(void **state)
{
    (void)state;
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        struct mixture mixture;
        open_sources(&mixture, shuffle, false);
        int32_t whole[PLACES], other[PLACES];
        collect(&mixture, 1, B, 1, whole);
        int given[SOURCES] = {0};
        int64_t seen[SOURCES] = {0}; /* a bit for each sample of the pass under way */
        for (int t = 0; t < PLACES; t++) {
            const int s = whole[t] / FAR;
            const int64_t sample = whole[t] % FAR / T;
            assert_true(sample < sizes[s]);
            assert_true(shuffle || sample == given[s] % sizes[s]);
            assert_false(seen[s] >> sample & 1);
            seen[s] |= INT64_C(1) << sample;
            if (++given[s] % sizes[s] == 0) { /* every sample once in a pass */
                assert_int_equal(seen[s], (INT64_C(1) << sizes[s]) - 1);
                seen[s] = 0;
            }
        }
        assert_int_equal(given[0], PLACES * 5 / 8);
        assert_int_equal(given[2], PLACES / 8);
        static const int ways[][2] = {{1, 1}, {1, 3}, {2, 3}, {2, 1}, {3, 1}, {3, 2}, {6, 1}};
        for (size_t i = 0; i < COUNT_OF(ways); i++)
            for (int64_t first = 1; first <= STEPS; first += 13) {
                memcpy(other, whole, sizeof other);
                memset(other + (first - 1) * B, -1, (size_t)(STEPS + 1 - first) * B * sizeof *other);
                collect(&mixture, ways[i][0], ways[i][1], first, other);
                assert_memory_equal(other, whole, sizeof whole);
            }
        close_sources(&mixture);
    }
}

/* A pass of one source has another order than the pass before, and than that of a source of the same size. */
static void orders_differ(void **state)
{
    (void)state;
    static const int64_t halves[] = {1, 1};
    struct mixture mixture = {.seed = 7, .shuffle = true, .sizes = {50, 50}};
    interleave_init(&mixture.order, halves, 2);
    struct interleave_cursor cursor;
    interleave_begin(&cursor, &mixture.order);
    int64_t order[2][2][50];
    for (int t = 0; t < 200; t++) {
        int64_t sample;
        const int s = mixture_next(&mixture, &cursor, &sample);
        order[s][(cursor.taken[s] - 1) / 50][(cursor.taken[s] - 1) % 50] = sample;
    }
    assert_memory_not_equal(order[0][0], order[0][1], sizeof order[0][0]);
    assert_memory_not_equal(order[0][0], order[1][0], sizeof order[0][0]);
    assert_memory_not_equal(order[1][0], order[1][1], sizeof order[0][0]);
    interleave_seek(&cursor, 3); /* back */
    int64_t sample;
    assert_int_equal(mixture_next(&mixture, &cursor, &sample), 1);
    assert_int_equal(sample, order[1][0][1]);
}

/* A source without a mask counts every target, and one with a mask those of its mask, in every way of packing. */
static void masks_are_the_sources_own(void **state)
{
    (void)state;
    struct mixture mixture;
    open_sources(&mixture, true, true);
    struct first_fit *fits[SOURCES] = {NULL};
    for (int way = 0; way < 4; way++) { /* cut, cut and apart, first_fit, first_fit and apart */
        struct token_stream_config config = configured(&mixture);
        config.data.packing = way < 2 ? SPEC_PACKING_CUT : SPEC_PACKING_NONE;
        config.data.document_mask = way % 2 ? SPEC_ON : SPEC_OFF;
        config.data.seq_length = token_stream_cuts(&config) ? T : 120;
        config.micro_batch_size = 1;
        config.world = 2;
        for (int s = 0; s < SOURCES; s++) {
            if (way == 2)
                assert_int_equal(first_fit_new(mixture.sources[s].set, config.data.seq_length, &fits[s], NULL),
                                 STATUS_OK);
            mixture.sources[s].fit = fits[s];
            mixture.sizes[s] = token_source_samples(&config, &mixture.sources[s]);
            assert_int_equal(mixture.sizes[s], token_stream_cuts(&config) ? sizes[s] : 1);
        }
        int64_t targets[SOURCES] = {0}, told[SOURCES] = {0}, ones[SOURCES] = {0}, in_steps = 0;
        enum { FEW = 8 };
        for (config.rank = 0; config.rank < 2; config.rank++) {
            struct token_stream *stream = open_stream(&config, 1);
            for (int call = 0; call < FEW * B / 2; call++) {
                struct batch batch;
                bool end;
                assert_int_equal(token_stream_next(stream, &batch, &end, NULL), STATUS_OK);
                for (int64_t i = 0; i < batch.num_tokens; i++) {
                    const int s = batch.tokens[i] / FAR;
                    targets[s] += batch.targets[i] >= 0;
                    ones[s] += batch.targets[i] >= 0 && batch.targets[i] % FAR % 3 == 1;
                }
                for (int s = 0; s < SOURCES && config.rank == 0 && batch.last_micro; s++)
                    told[s] += batch.source_targets[s];
                if (config.rank == 0 && batch.last_micro) in_steps += batch.step_targets;
            }
            token_stream_close(stream);
        }
        assert_memory_equal(told, targets, sizeof told);
        assert_int_equal(in_steps, targets[0] + targets[1] + targets[2]);
        assert_int_equal(targets[1], ones[1]);
        assert_true(targets[1] > 0 && targets[0] > 2 * ones[0]);
    }
    for (int s = 0; s < SOURCES; s++) first_fit_free(fits[s]);
    close_sources(&mixture);
}

static void too_few_samples(void **state)
{
    (void)state;
    struct mixture mixture;
    open_sources(&mixture, true, false);
    struct token_stream_config config = configured(&mixture);
    struct token_stream *stream;
    struct error err;
    mixture.epoch_samples = B - 1;
    assert_int_equal(token_stream_open(&config, 1, &stream, &err), STATUS_DATA);
    assert_non_null(strstr(err.text, "data.train holds 5 samples an epoch, fewer than one train_batch_size"));
    close_sources(&mixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_order_at_every_world_size),
        cmocka_unit_test(orders_differ),
        cmocka_unit_test(masks_are_the_sources_own),
        cmocka_unit_test(too_few_samples),
    };
    return cmocka_run_group_tests_name("mixture", tests, setup, teardown);
}
