/* SPDX-License-Identifier: Apache-2.0 */
/* test_token_stream.c: the order of samples, micro-batches, limits, evaluation, the prefetching thread, its errors. */
#include "tests/unit/fixtures/token_files.h"

#include <sys/resource.h>
#include <sys/wait.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

/* ---- streams ------------------------------------------------------------- */

static struct token_stream *open_stream(const struct token_stream_config *config, int64_t step)
{
    struct token_stream *stream = NULL;
    struct error err;
    if (token_stream_open(config, step, &stream, &err) != STATUS_OK) fail_msg("%s", err.text);
    return stream;
}

/* Checks the invariants of a batch. */
static void check_shape(const struct token_stream_config *config, const struct batch *batch)
{
    const struct batch_limits limits = token_stream_limits(config);
    int64_t targets = 0;
    int32_t longest = 0;
    assert_true(batch->num_tokens <= limits.max_tokens && batch->num_seqs <= limits.max_seqs);
    assert_int_equal(batch->seq_start[0], 0);
    assert_int_equal(batch->seq_start[batch->num_seqs], batch->num_tokens);
    for (int32_t s = 0; s < batch->num_seqs; s++) {
        int32_t length = batch->seq_start[s + 1] - batch->seq_start[s];
        assert_true(length > 0);
        longest = length > longest ? length : longest;
        for (int32_t i = 0; i < length; i++) assert_int_equal(batch->positions[batch->seq_start[s] + i], i);
    }
    assert_int_equal(batch->max_seq, longest);
    assert_true(longest <= limits.max_seq);
    for (int64_t i = 0; i < batch->num_tokens; i++) targets += batch->targets[i] >= 0;
    assert_int_equal(batch->num_targets, targets);
    assert_true(token_stream_cuts(config) || batch->num_tokens % config->token_multiple == 0);
}

enum { T = 4, B = 12, TOKENS = 250, SAMPLES = (TOKENS - 1) / T, STEPS = SAMPLES / B };

/* Collects sample numbers, in the order of the global batch, that `world` ranks see in `steps` steps from `first`. */
static void collect(struct token_set *set, bool shuffle, int world, int micro, int64_t first, int steps, int64_t *out)
{
    for (int rank = 0; rank < world; rank++) {
        struct token_stream_config config = {.source = {.set = set},
                                             .data = {.seq_length = T, .shuffle = shuffle, .packing = SPEC_PACKING_CUT},
                                             .vocab_size = TOKENS,
                                             .seed = 42,
                                             .rank = rank,
                                             .world = world,
                                             .batch_size = B,
                                             .micro_batch_size = micro,
                                             .token_multiple = 1};
        assert_int_equal(token_stream_steps_per_epoch(&config), STEPS);
        struct token_stream *stream = open_stream(&config, first);
        int64_t micros = B / world / micro;
        for (int64_t call = 0; call < steps * micros; call++) {
            struct batch batch;
            bool end;
            assert_int_equal(token_stream_next(stream, &batch, &end, NULL), STATUS_OK);
            assert_false(end);
            check_shape(&config, &batch);
            assert_int_equal(batch.step, first + call / micros);
            assert_int_equal(batch.epoch, (batch.step - 1) / STEPS + 1);
            assert_int_equal(batch.micro, call % micros);
            assert_int_equal(batch.last_micro, batch.micro == micros - 1);
            assert_int_equal(batch.num_seqs, micro);
            assert_int_equal(batch.step_targets, B * T);
            assert_int_equal(batch.step_tokens, B * T);
            for (int s = 0; s < micro; s++) {
                for (int i = 0; i < T; i++) { /* token i of the stream is i */
                    assert_int_equal(batch.tokens[s * T + i], batch.tokens[s * T] + i);
                    assert_int_equal(batch.targets[s * T + i], batch.tokens[s * T] + i + 1);
                }
                assert_int_equal(batch.tokens[s * T] % T, 0);
                out[call / micros * B + rank * (B / world) + batch.micro * micro + s] = batch.tokens[s * T] / T;
            }
        }
        token_stream_close(stream);
    }
}

static void order_is_the_world_sizes_business_to_share(void **state)
{
    (void)state;
    static const int lengths[] = {100, 150};
    megatron("order", 2, lengths, 2, 0, TOKENS);
    struct token_set *set = open_one("order");
    int64_t plain[3 * STEPS * B], reference[3 * STEPS * B], other[3 * STEPS * B];
    collect(set, false, 1, B, 1, 3 * STEPS, plain);
    for (int i = 0; i < 3 * STEPS * B; i++) assert_int_equal(plain[i], i % (STEPS * B));
    collect(set, true, 1, B, 1, 3 * STEPS, reference);
    assert_memory_not_equal(reference, plain, sizeof plain);
    for (int epoch = 0; epoch < 3; epoch++) { /* no sample twice in an epoch; each epoch has its own permutation */
        char seen[SAMPLES] = {0};
        for (int i = 0; i < STEPS * B; i++) {
            int64_t sample = reference[epoch * STEPS * B + i];
            assert_int_equal(sample, permute_index((uint64_t)i, SAMPLES, 42, (uint64_t)epoch + 1));
            assert_int_equal(seen[sample]++, 0);
        }
    }
    static const int shapes[][2] = {{1, 1}, {1, 4}, {2, 3}, {2, 6}, {3, 2}, {3, 4}, {4, 1}, {6, 2}, {12, 1}};
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        collect(set, true, shapes[i][0], shapes[i][1], 1, 3 * STEPS, other);
        assert_memory_equal(other, reference, sizeof reference);
    }
    for (int first = 1; first <= 3 * STEPS; first++) { /* continuing from any step */
        collect(set, true, 2, 3, first, 1, other);
        assert_memory_equal(other, reference + (first - 1) * B, B * sizeof *other);
    }
    collect(set, true, 1, B, INT64_C(1) << 40, 1, other); /* skipping steps takes no time */
    token_set_close(set);
}

/* A rank that stands for several virtual ranks has the micro-batches that these would have as ranks, in turns. */
static void virtual_ranks_take_turns(void **state)
{
    (void)state;
    enum { VIRTUAL = 6, MICROS = 6 };
    static const int lengths[] = {TOKENS};
    megatron("turns", 4, lengths, 1, 0, 1000);
    struct token_set *set = open_one("turns");
    for (int world = 1; world <= VIRTUAL; world++)
        for (int rank = 0; rank < world && VIRTUAL % world == 0; rank++)
            for (int evaluation = 0; evaluation < 2; evaluation++) {
                struct token_stream_config config = {
                    .source = {.set = set},
                    .data = {.seq_length = T, .shuffle = !evaluation, .packing = SPEC_PACKING_CUT},
                    .vocab_size = 1000,
                    .seed = 42,
                    .world = world,
                    .rank = rank,
                    .turns = VIRTUAL / world,
                    .batch_size = B,
                    .micro_batch_size = 1,
                    .token_multiple = 1,
                    .evaluation = evaluation,
                    .first_sample = evaluation ? 5 : 0};
                struct token_stream_config alone = config;
                alone.world = VIRTUAL;
                alone.turns = 1;
                struct token_stream *stream = open_stream(&config, 1), *others[VIRTUAL];
                for (int turn = 0; turn < config.turns; turn++) {
                    alone.rank = turn * world + rank;
                    others[turn] = open_stream(&alone, 1);
                }
                for (int i = 0; i < MICROS * config.turns; i++) {
                    struct batch batch, same;
                    bool end;
                    assert_int_equal(token_stream_next(stream, &batch, &end, NULL), STATUS_OK);
                    assert_int_equal(token_stream_next(others[i % config.turns], &same, &end, NULL), STATUS_OK);
                    assert_int_equal(batch.step, same.step);
                    assert_int_equal(batch.num_tokens, same.num_tokens);
                    assert_memory_equal(batch.tokens, same.tokens, (size_t)batch.num_tokens * sizeof *batch.tokens);
                    assert_memory_equal(batch.numbers, same.numbers, (size_t)batch.num_tokens * sizeof *batch.numbers);
                    assert_int_equal(batch.last_micro, same.last_micro && i % config.turns == config.turns - 1);
                }
                token_stream_close(stream);
                for (int turn = 0; turn < config.turns; turn++) token_stream_close(others[turn]);
            }
    token_set_close(set);
}

static void documents_are_samples(void **state)
{
    (void)state;
    /* with T = 5: inputs 4, 1, -, -, 4, 4, 2, 3 */
    static const int lengths[] = {9, 2, 0, 1, 5, 6, 3, 4};
    static const int inputs[] = {4, 1, 0, 0, 4, 4, 2, 3}, starts[] = {0, 9, 11, 11, 12, 17, 23, 26};
    megatron("docs", 4, lengths, 8, 0, 1000);
    struct token_set *set = open_one("docs");
    for (int multiple = 1; multiple <= 5; multiple++) {
        struct token_stream_config config = {.source = {.set = set},
                                             .data = {.seq_length = 5},
                                             .vocab_size = 1000,
                                             .rank = 1,
                                             .world = 2,
                                             .batch_size = 4,
                                             .micro_batch_size = 2,
                                             .token_multiple = multiple};
        struct token_stream *stream = open_stream(&config, 1);
        for (int step = 0; step < 2; step++) {
            struct batch batch;
            bool end;
            assert_int_equal(token_stream_next(stream, &batch, &end, NULL), STATUS_OK);
            check_shape(&config, &batch);
            int seq = 0, real = 0;
            for (int d = step * 4 + 2; d < step * 4 + 4; d++) { /* rank 1 has the second half of the step */
                real += inputs[d];
                if (inputs[d] == 0) continue;
                assert_int_equal(batch.seq_start[seq + 1] - batch.seq_start[seq], inputs[d]);
                for (int i = 0; i < inputs[d]; i++) {
                    assert_int_equal(batch.tokens[batch.seq_start[seq] + i], starts[d] + i);
                    assert_int_equal(batch.targets[batch.seq_start[seq] + i], starts[d] + i + 1);
                }
                seq++;
            }
            int whole = (real + multiple - 1) / multiple * multiple;
            assert_int_equal(batch.num_tokens, whole);
            assert_int_equal(batch.num_targets, real);
            assert_int_equal(batch.num_seqs, seq + (whole > real));
            for (int i = real; i < whole; i++) assert_true(batch.tokens[i] == 0 && batch.targets[i] == -1);
            assert_int_equal(batch.step_targets, step == 0 ? 5 : 13);
            assert_int_equal(batch.step_tokens, step == 0 ? 5 + 2 + 0 + 1 : 5 + 5 + 3 + 4);
        }
        token_stream_close(stream);
    }
    token_set_close(set);
}

/* Adds up the targets of all micro-batches of a stream, each of which must be unmasked: token i of the stream is i. */
static int64_t count_unmasked(const struct token_stream_config *config, const uint8_t *mask, int64_t calls,
                              int64_t *step_targets)
{
    struct token_stream *stream = open_stream(config, 1);
    int64_t targets = 0;
    for (int64_t call = 0; call < calls; call++) {
        struct batch batch;
        bool end;
        assert_int_equal(token_stream_next(stream, &batch, &end, NULL), STATUS_OK);
        assert_false(end);
        check_shape(config, &batch);
        for (int32_t s = 0; s < batch.num_seqs; s++)
            for (int32_t i = batch.seq_start[s]; i < batch.seq_start[s + 1]; i++)
                assert_int_equal(batch.targets[i], mask[batch.tokens[i] + 1] ? batch.tokens[i] + 1 : -1);
        targets += batch.num_targets;
        if (!config->evaluation) step_targets[batch.step - 1] = batch.step_targets;
    }
    token_stream_close(stream);
    return targets;
}

/* 12 documents of 6 tokens. The last token of each counts, the second to last of every other one; the first global
 * batch of 4 samples of 3 tokens, in file order, has no target. */
static void a_mask_leaves_targets_out(void **state)
{
    (void)state;
    enum { DOCUMENTS = 12, LENGTH = 6, ALL = DOCUMENTS * LENGTH, STEP = 4 };
    int lengths[DOCUMENTS];
    uint8_t mask[ALL];
    for (int d = 0; d < DOCUMENTS; d++) lengths[d] = LENGTH;
    for (int i = 0; i < ALL; i++) mask[i] = i > 12 && (i % LENGTH == 5 || i % (2 * LENGTH) == 4);
    megatron("answers", 2, lengths, DOCUMENTS, 0, 1000);
    write_file("answers.mask", mask, sizeof mask);
    struct token_set *set = open_one("answers");
    for (int packing = 0; packing < 2; packing++)
        for (int world = 1; world <= 4; world *= 2)
            for (int evaluation = 0; evaluation < 2; evaluation++) {
                const int length = packing ? 3 : 6, samples = packing ? (ALL - 1) / 3 : DOCUMENTS;
                const int steps = samples / STEP;
                int64_t got = 0, in_steps[8] = {0}, want[8] = {0}, all = 0;
                for (int sample = 0; sample < (evaluation ? samples : steps * STEP); sample++)
                    for (int i = 1; i <= (packing ? 3 : 5); i++) {
                        int counts = mask[sample * (packing ? 3 : LENGTH) + i];
                        all += counts;
                        want[sample / STEP] += counts;
                    }
                struct token_stream_config config = {
                    .source = {.set = set},
                    .data = {.seq_length = length, .packing = packing ? SPEC_PACKING_CUT : SPEC_PACKING_NONE},
                    .vocab_size = 1000,
                    .world = world,
                    .batch_size = STEP,
                    .micro_batch_size = 1,
                    .token_multiple = 1,
                    .evaluation = evaluation};
                for (config.rank = 0; config.rank < world; config.rank++)
                    got += count_unmasked(&config, mask, evaluation ? (samples - 1) / world + 1 : steps * STEP / world,
                                          in_steps);
                assert_int_equal(got, all);
                for (int step = 0; step < steps && !evaluation; step++) assert_int_equal(in_steps[step], want[step]);
                if (packing && !evaluation) assert_int_equal(want[0], 0);
            }
    token_set_close(set);
}

enum { APART_TOKENS = 40, APART_T = 7 };

/* Checks that each sequence of a batch begins with a document, or with a window's first token, and ends with either's
 * last target; counts its targets in seen[]. Token i of the stream is i. */
static void check_apart(const struct batch *batch, const int *number, int *seen)
{
    for (int32_t s = 0; s < batch->num_seqs; s++) {
        const int32_t begin = batch->seq_start[s], end = batch->seq_start[s + 1];
        if (batch->targets[begin] < 0) continue; /* filler */
        const int32_t first = batch->tokens[begin], last = batch->tokens[end - 1] + 1;
        assert_true(first % APART_T == 0 || number[first] != number[first - 1]);
        assert_true(last % APART_T == 0 || last + 1 == APART_TOKENS || number[last] != number[last + 1]);
        assert_int_equal(number[first], number[last]);
        for (int32_t i = begin; i < end; i++) {
            assert_int_equal(batch->tokens[i], first + i - begin);
            assert_int_equal(batch->targets[i], batch->tokens[i] + 1);
            seen[batch->targets[i]]++;
        }
    }
}

/* With a document mask every token that follows another of its document is a target exactly once in an evaluation. */
static void documents_are_apart(void **state)
{
    (void)state;
    static const int lengths[] = {3, 1, 0, 16, 2, 1, 1, 5, 7, 4};
    int number[APART_TOKENS], filled = 0;
    for (int d = 0; d < (int)COUNT_OF(lengths); d++)
        for (int i = 0; i < lengths[d]; i++) number[filled++] = d;
    assert_int_equal(filled, APART_TOKENS);
    megatron("apart", 2, lengths, COUNT_OF(lengths), 0, 1000);
    struct token_set *set = open_one("apart");
    for (int world = 1; world <= 3; world++)
        for (int evaluation = 0; evaluation < 2; evaluation++) {
            int seen[APART_TOKENS] = {0}, in_step = 0, step_targets = -1;
            for (int rank = 0; rank < world; rank++) {
                struct token_stream_config config = {
                    .source = {.set = set},
                    .data = {.seq_length = APART_T, .packing = SPEC_PACKING_CUT, .document_mask = SPEC_ON},
                    .vocab_size = 1000,
                    .rank = rank,
                    .world = world,
                    .batch_size = 3,
                    .micro_batch_size = 3 / world,
                    .token_multiple = 2,
                    .evaluation = evaluation};
                if (world == 2 && !evaluation) config.batch_size = 2;
                assert_int_equal(token_stream_samples(&config), evaluation ? 6 : 5);
                struct token_stream *stream = open_stream(&config, 1);
                for (int calls = 0;; calls++) {
                    struct batch batch;
                    bool end;
                    assert_int_equal(token_stream_next(stream, &batch, &end, NULL), STATUS_OK);
                    if (end) break;
                    const struct batch_limits limits = token_stream_limits(&config);
                    assert_true(batch.num_tokens <= limits.max_tokens && batch.num_seqs <= limits.max_seqs);
                    assert_int_equal(batch.num_tokens % 2, 0);
                    check_apart(&batch, number, seen);
                    in_step += (int)batch.num_targets;
                    step_targets = (int)batch.step_targets;
                    if (!evaluation) break;
                }
                token_stream_close(stream);
            }
            for (int i = 1; i < APART_TOKENS && evaluation; i++) assert_int_equal(seen[i], number[i] == number[i - 1]);
            if (!evaluation) assert_int_equal(step_targets, in_step);
        }
    token_set_close(set);
}

static void limits_are_reached_and_not_passed(void **state)
{
    (void)state;
    for (int count = 1; count <= 4; count++)
        for (int length = 2; length <= 5; length++)
            for (int multiple = 1; multiple <= length; multiple++) {
                struct token_stream_config config = {
                    .data = {.seq_length = length}, .micro_batch_size = count, .token_multiple = multiple};
                struct batch_limits limits = token_stream_limits(&config);
                int64_t most = 0;
                int32_t most_seqs = 0;
                for (int seqs = 0; seqs <= count; seqs++) /* every sum that `seqs` sequences can have */
                    for (int sum = seqs; sum <= seqs * (length - 1); sum++) {
                        int whole = (sum + multiple - 1) / multiple * multiple;
                        most = whole > most ? whole : most;
                        most_seqs = seqs + (whole > sum) > most_seqs ? seqs + (whole > sum) : most_seqs;
                    }
                assert_int_equal(limits.max_tokens, most);
                assert_int_equal(limits.max_seqs, most_seqs);
                config.data.packing = SPEC_PACKING_CUT;
                limits = token_stream_limits(&config);
                assert_int_equal(limits.max_tokens, count * length);
                assert_int_equal(limits.max_seqs, count);
            }
}

static void evaluation_is_one_pass(void **state)
{
    (void)state;
    static const int lengths[] = {3, 1, 6, 2, 4, 9, 5, 7, 3, 3, 2};
    megatron("eval", 2, lengths, COUNT_OF(lengths), 0, 1000);
    struct token_set *set = open_one("eval");
    for (int packing = 0; packing < 2; packing++) {
        int64_t all = token_set_samples(set, T, packing);
        for (int world = 1; world <= 4; world++)
            for (int micro = 1; micro <= 3; micro++)
                for (int64_t max = 0; max <= all + 1; max++) {
                    int64_t samples = max > 0 && max < all ? max : all, targets = 0, expected = 0, calls[4];
                    int64_t next[64] = {0}; /* first token of each sequence seen, by micro-batch */
                    for (int rank = 0; rank < world; rank++) {
                        struct token_stream_config config = {
                            .source = {.set = set},
                            .data = {.seq_length = T,
                                     .shuffle = true,
                                     .packing = packing ? SPEC_PACKING_CUT : SPEC_PACKING_NONE},
                            .vocab_size = 1000,
                            .rank = rank,
                            .world = world,
                            .batch_size = 100,
                            .micro_batch_size = micro,
                            .token_multiple = 1,
                            .max_samples = max,
                            .evaluation = true};
                        struct token_stream *stream = open_stream(&config, 1);
                        bool end = false, last = false;
                        for (calls[rank] = 0;; calls[rank]++) {
                            struct batch batch;
                            assert_int_equal(token_stream_next(stream, &batch, &end, NULL), STATUS_OK);
                            if (end) break;
                            assert_false(last);
                            last = batch.last_micro;
                            check_shape(&config, &batch);
                            assert_int_equal(batch.micro, calls[rank]);
                            targets += batch.num_targets;
                            int64_t index = calls[rank] * world + rank;
                            next[index] = batch.num_tokens ? batch.tokens[0] + 1 : 0;
                            if (packing)
                                assert_int_equal(next[index], index * micro < samples ? index * micro * T + 1 : 0);
                        }
                        assert_true(last);
                        struct batch batch;
                        assert_int_equal(token_stream_next(stream, &batch, &end, NULL), STATUS_OK);
                        assert_true(end); /* it stays at its end */
                        token_stream_close(stream);
                        assert_int_equal(calls[rank], calls[0]);
                    }
                    assert_int_equal(calls[0], (samples + micro * world - 1) / (micro * world));
                    for (int64_t i = 0; i < samples; i++)
                        expected += packing ? T : (lengths[i] < T ? lengths[i] : T) - 1;
                    assert_int_equal(targets, expected);
                }
    }
    token_set_close(set);
}

/* The targets of a pass over the validation data from sample `first` on; the first target of each micro-batch that has
 * one goes to seen[] (calls * world). */
static int64_t pass_from(struct token_stream_config *config, int64_t first, int64_t calls, int64_t *seen)
{
    int64_t targets = 0;
    config->first_sample = first;
    for (config->rank = 0; config->rank < config->world; config->rank++) {
        struct token_stream *stream = open_stream(config, 1);
        int64_t call = 0;
        for (;; call++) {
            struct batch batch;
            bool end;
            assert_int_equal(token_stream_next(stream, &batch, &end, NULL), STATUS_OK);
            if (end) break;
            assert_true(call < calls);
            seen[call * config->world + config->rank] = batch.num_tokens ? batch.targets[0] : -1;
            targets += batch.num_targets;
        }
        assert_int_equal(call, calls);
        token_stream_close(stream);
    }
    return targets;
}

/* An evaluation that begins where another was broken off goes through the rest of its micro-batches. */
static void evaluation_in_parts(void **state)
{
    (void)state;
    static const int lengths[] = {3, 2, 6, 2, 4, 9, 5, 7, 3, 3, 2};
    megatron("parts", 2, lengths, COUNT_OF(lengths), 0, 1000);
    struct token_set *set = open_one("parts");
    for (int packing = 0; packing < 2; packing++)
        for (int world = 1; world <= 3; world++)
            for (int micro = 1; micro <= 2; micro++) {
                struct token_stream_config config = {
                    .source = {.set = set},
                    .data = {.seq_length = T, .packing = packing ? SPEC_PACKING_CUT : SPEC_PACKING_NONE},
                    .vocab_size = 1000,
                    .world = world,
                    .batch_size = 100,
                    .micro_batch_size = micro,
                    .token_multiple = 1,
                    .max_samples = 10,
                    .evaluation = true};
                int64_t whole[64], rest[64], samples = token_stream_samples(&config);
                samples = samples < 10 ? samples : 10;
                const int64_t together = world * micro, calls = (samples + together - 1) / together;
                const int64_t targets = pass_from(&config, 0, calls, whole);
                for (int64_t done = 1; done <= calls; done++) {
                    const int64_t first = done * together < samples ? done * together : samples;
                    const int64_t left = pass_from(&config, first, calls - done, rest);
                    assert_true(done == calls ? left == 0 : left > 0 && left < targets);
                    for (int64_t i = 0; i < (calls - done) * world; i++)
                        assert_int_equal(rest[i], whole[done * world + i]);
                }
            }
    token_set_close(set);
}

static void too_little_data(void **state)
{
    (void)state;
    static const int lengths[] = {8};
    megatron("little", 2, lengths, 1, 0, 100);
    struct token_set *set = open_one("little");
    struct token_stream *stream;
    struct error err;
    struct token_stream_config config = {.source = {.set = set},
                                         .data = {.seq_length = 4, .packing = SPEC_PACKING_CUT},
                                         .vocab_size = 100,
                                         .world = 1,
                                         .batch_size = 2,
                                         .micro_batch_size = 2,
                                         .token_multiple = 1};
    assert_int_equal(token_stream_open(&config, 1, &stream, &err), STATUS_DATA); /* the ninth token is missing */
    assert_null(stream);
    assert_non_null(strstr(err.text, "1 samples"));
    assert_non_null(strstr(err.text, "train_batch_size of 2"));
    config.evaluation = true;
    config.data.seq_length = 8;
    assert_int_equal(token_stream_open(&config, 1, &stream, &err), STATUS_DATA);
    assert_non_null(strstr(err.text, "data.validation"));
    config.data.packing = SPEC_PACKING_NONE;
    config.data.seq_length = 1;
    assert_int_equal(token_stream_open(&config, 1, &stream, &err), STATUS_USAGE);
    assert_non_null(strstr(err.text, "seq_length"));
    config.data.seq_length = 1 << 20;
    config.micro_batch_size = 1 << 12;
    assert_int_equal(token_stream_open(&config, 1, &stream, &err), STATUS_USAGE);
    assert_non_null(strstr(err.text, "2^31"));
    config.micro_batch_size = INT64_MAX;
    assert_int_equal(token_stream_open(&config, 1, &stream, &err), STATUS_USAGE);
    token_set_close(set);
}

static void errors_come_in_their_turn(void **state)
{
    (void)state;
    static const int lengths[] = {101};
    uint16_t bad = 500;
    megatron("turn", 2, lengths, 1, 0, 200);
    patch("turn.bin", 2 * 63, &bad, 2); /* sample 15, so with B = 2 step 8 */
    struct token_set *set = open_one("turn");
    struct token_stream_config config = {.source = {.set = set},
                                         .data = {.seq_length = 4, .packing = SPEC_PACKING_CUT},
                                         .vocab_size = 200,
                                         .world = 1,
                                         .batch_size = 2,
                                         .micro_batch_size = 2,
                                         .token_multiple = 1};
    struct token_stream *stream = open_stream(&config, 1);
    struct batch batch;
    struct error err;
    bool end;
    for (int step = 1; step <= 7; step++) {
        assert_int_equal(token_stream_next(stream, &batch, &end, &err), STATUS_OK);
        assert_int_equal(batch.step, step);
        assert_int_equal(batch.tokens[7], step * 8 - 1);
    }
    for (int again = 0; again < 3; again++) {
        assert_int_equal(token_stream_next(stream, &batch, &end, &err), STATUS_DATA);
        assert_false(end);
        assert_non_null(strstr(err.text, "turn.bin' at byte 126: token id 500"));
    }
    token_stream_close(stream);
    /* documents: the index that gives the sums may be damaged as well */
    config.data.packing = SPEC_PACKING_NONE;
    config.batch_size = config.micro_batch_size = 1;
    assert_int_equal(truncate(at("turn.idx"), 40), 0);
    stream = open_stream(&config, 1);
    assert_int_equal(token_stream_next(stream, &batch, &end, &err), STATUS_DATA);
    assert_non_null(strstr(err.text, "turn.idx' was truncated while in use"));
    token_stream_close(stream);
    token_set_close(set);
}

static void reads_ahead_and_keeps_what_is_held(void **state)
{
    (void)state;
    static const int lengths[] = {81};
    megatron("ahead", 2, lengths, 1, 0, 200);
    struct token_set *set = open_one("ahead");
    struct token_stream_config config = {.source = {.set = set},
                                         .data = {.seq_length = 4, .packing = SPEC_PACKING_CUT},
                                         .vocab_size = 200,
                                         .world = 1,
                                         .batch_size = 2,
                                         .micro_batch_size = 1,
                                         .token_multiple = 1};
    struct token_stream *stream = open_stream(&config, 1);
    struct batch batch;
    struct error err;
    bool end;
    assert_int_equal(token_stream_next(stream, &batch, &end, &err), STATUS_OK);
    usleep(1000000); /* time enough to read ahead, on a busy machine as well; the file then loses its tokens, but not
                        what was read */
    assert_int_equal(truncate(at("ahead.bin"), 0), 0);
    assert_int_equal(batch.tokens[3], 3);
    for (int i = 1; i < 3; i++) {
        assert_int_equal(token_stream_next(stream, &batch, &end, &err), STATUS_OK);
        assert_int_equal(batch.tokens[0], 4 * i);
    }
    enum status status = STATUS_OK;
    for (int i = 0; i < 8 && status == STATUS_OK; i++) status = token_stream_next(stream, &batch, &end, &err);
    assert_int_equal(status, STATUS_DATA);
    token_stream_close(stream);
    token_set_close(set);
}

static void closes_at_any_moment(void **state)
{
    (void)state;
    static const int lengths[] = {1000, 1001};
    megatron("close", 2, lengths, 2, 0, 2001);
    struct token_set *set = open_one("close");
    for (int round = 0; round < 200; round++) {
        struct token_stream_config config = {.source = {.set = set},
                                             .data = {.seq_length = 10,
                                                      .shuffle = true,
                                                      .packing = round % 2 == 0 ? SPEC_PACKING_CUT : SPEC_PACKING_NONE},
                                             .vocab_size = 2001,
                                             .world = 1,
                                             .batch_size = 2,
                                             .micro_batch_size = 1,
                                             .token_multiple = 8};
        struct token_stream *stream = open_stream(&config, 1 + round);
        struct batch batch;
        bool end;
        for (int i = 0; i < round % 7; i++) assert_int_equal(token_stream_next(stream, &batch, &end, NULL), STATUS_OK);
        token_stream_close(stream);
    }
    token_stream_close(NULL);
    token_set_close(set);
}

/* Runs in a child without memory or threads. Returns the status of token_stream_open(). */
static int open_starved(int resource, rlim_t limit, int64_t seq_length)
{
    static const int lengths[] = {100};
    megatron("starved", 2, lengths, 1, 0, 200);
    struct token_set *set = open_one("starved");
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct token_stream_config config = {.source = {.set = set},
                                             .data = {.seq_length = seq_length},
                                             .vocab_size = 200,
                                             .world = 1,
                                             .batch_size = 1,
                                             .micro_batch_size = 1,
                                             .token_multiple = 1};
        struct token_stream *stream;
        struct error err;
        setrlimit(resource, &(struct rlimit){limit, limit});
        _exit(token_stream_open(&config, 1, &stream, &err));
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    token_set_close(set);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void out_of_memory_is_an_error(void **state)
{
    (void)state;
    if (SANITIZED) /* the sanitizer's memory exceeds any limit */
        skip();
    assert_int_equal(open_starved(RLIMIT_AS, 400 << 20, 1 << 27), STATUS_DEVICE);
    /* malloc has enough memory for the arrays, but none is left for a thread's stack */
    assert_int_equal(open_starved(RLIMIT_AS, 1, 50), STATUS_DEVICE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(out_of_memory_is_an_error), /* first: glibc keeps the stacks of ended threads */
        cmocka_unit_test(order_is_the_world_sizes_business_to_share),
        cmocka_unit_test(virtual_ranks_take_turns),
        cmocka_unit_test(documents_are_samples),
        cmocka_unit_test(a_mask_leaves_targets_out),
        cmocka_unit_test(documents_are_apart),
        cmocka_unit_test(limits_are_reached_and_not_passed),
        cmocka_unit_test(evaluation_is_one_pass),
        cmocka_unit_test(evaluation_in_parts),
        cmocka_unit_test(too_little_data),
        cmocka_unit_test(errors_come_in_their_turn),
        cmocka_unit_test(reads_ahead_and_keeps_what_is_held),
        cmocka_unit_test(closes_at_any_moment),
    };
    return cmocka_run_group_tests_name("token_stream", tests, setup, teardown);
}
