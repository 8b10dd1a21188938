/* SPDX-License-Identifier: Apache-2.0 */
/* test_document_fit.c: whole documents in samples: against the rule written down plainly, and as a stream reads them.
 */
#include "core/data/document_fit.h"
#include "tests/unit/fixtures/token_files.h"

enum { MOST = 300 };

/* The rule itself: each document goes to the first sample with room. Fills where[]; returns the number of samples. */
static int plainly(const int *lengths, int count, int seq_length, int *where)
{
    int used[MOST] = {0}, samples = 0;
    for (int i = 0; i < count; i++) {
        const int length = lengths[i] < seq_length ? lengths[i] : seq_length;
        where[i] = -1;
        if (length == 0) continue;
        for (int s = 0; where[i] < 0; s++)
            if (used[s] + length <= seq_length) {
                used[s] += length;
                where[i] = s;
                samples = s + 1 > samples ? s + 1 : samples;
            }
    }
    return samples;
}

static struct first_fit *pack_set(const struct token_set *set, int64_t seq_length)
{
    struct first_fit *fit;
    struct error err;
    if (first_fit_new(set, seq_length, &fit, &err) != STATUS_OK) fail_msg("%s", err.text);
    return fit;
}

static void check_packing(const int *lengths, int count, int seq_length)
{
    int where[MOST];
    int64_t tokens = 0, next = 0;
    megatron("fit", 2, lengths, count, 0, 60000);
    struct token_set *set = open_one("fit");
    struct first_fit *fit = pack_set(set, seq_length);
    assert_int_equal(fit->samples, plainly(lengths, count, seq_length, where));
    for (int64_t s = 0; s < fit->samples; s++) {
        assert_int_equal(fit->starts[s], next);
        for (int d = 0; d < count; d++) /* in file order within a sample */
            if (where[d] == s) assert_int_equal(fit->documents[next++], d);
    }
    assert_int_equal(fit->starts[fit->samples], next);
    for (int d = 0; d < count; d++) {
        tokens += lengths[d] < seq_length ? lengths[d] : seq_length;
    }
    assert_int_equal(fit->tokens, tokens);
    first_fit_free(fit);
    token_set_close(set);
}

static void each_goes_where_there_is_room(void **state)
{
    (void)state;
    static const int few[] = {5, 9, 3, 0, 4, 20, 1, 8, 2};
    check_packing(few, COUNT_OF(few), 12);
    check_packing(few, 1, 12);
    uint64_t random = 1;
    for (int round = 0; round < 20; round++) {
        int lengths[MOST];
        const int count = 2 + round * 14, seq_length = 1 + round * 3;
        for (int i = 0; i < count; i++) {
            random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
            lengths[i] = (int)((random >> 33) % (uint64_t)(seq_length + 3)) + (i == 0);
        }
        check_packing(lengths, count, seq_length);
    }
}

/* Samples as a stream delivers them: the documents one after the other, and the mask of their tokens. */
static void a_stream_reads_whole_documents(void **state)
{
    (void)state;
    enum { T = 12, COUNT = 9, TOKENS = 52 };
    static const int lengths[COUNT] = {5, 9, 3, 0, 4, 20, 1, 8, 2};
    uint8_t mask[TOKENS];
    for (int i = 0; i < TOKENS; i++) mask[i] = i % 3 != 0;
    megatron("whole", 2, lengths, COUNT, 0, 1000);
    for (int masked = 0; masked < 2; masked++) {
        if (masked) write_file("whole.mask", mask, sizeof mask);
        struct token_set *set = open_one("whole");
        struct first_fit *fit = pack_set(set, T);
        assert_int_equal(fit->samples, 4); /* 5 3 4 | 9 1 2 | 12 of 20 | 8 */
        for (int world = 1; world <= 2; world++)
            for (int rank = 0; rank < world; rank++) {
                struct token_stream_config config = {.source = {.set = set, .fit = fit},
                                                     .data = {.seq_length = T},
                                                     .vocab_size = 1000,
                                                     .rank = rank,
                                                     .world = world,
                                                     .batch_size = 2,
                                                     .micro_batch_size = 1,
                                                     .token_multiple = 1};
                static const int first[4][3] = {{0, 14, 17}, {5, 41, 50}, {21}, {42}};
                static const int count[4][3] = {{5, 3, 4}, {9, 1, 2}, {12}, {8}};
                struct token_stream *stream;
                assert_int_equal(token_stream_steps_per_epoch(&config), 2);
                assert_int_equal(token_stream_open(&config, 1, &stream, NULL), STATUS_OK);
                for (int call = 0; call < 4 / world; call++) {
                    struct batch batch;
                    bool end;
                    int32_t row[T + 1], step_targets = 0, step_tokens = 0;
                    assert_int_equal(token_stream_next(stream, &batch, &end, NULL), STATUS_OK);
                    const int sample = (int)(batch.step - 1) * 2 + (world == 2 ? rank : (int)batch.micro);
                    for (int s = (int)(batch.step - 1) * 2, one = s; s < one + 2; s++)
                        for (int d = 0, at_token = 0; d < 3; d++)
                            for (int i = 0; i < count[s][d]; i++, at_token++) {
                                step_tokens++;
                                step_targets += at_token > 0 && (!masked || mask[first[s][d] + i]);
                            }
                    int length = 0;
                    for (int d = 0; d < 3; d++)
                        for (int i = 0; i < count[sample][d]; i++) row[length++] = first[sample][d] + i;
                    assert_int_equal(batch.num_tokens, length - 1);
                    for (int i = 0; i < length - 1; i++) {
                        assert_int_equal(batch.tokens[i], row[i]);
                        assert_int_equal(batch.targets[i], !masked || mask[row[i + 1]] ? row[i + 1] : -1);
                    }
                    assert_int_equal(batch.step_targets, step_targets);
                    assert_int_equal(batch.step_tokens, step_tokens);
                }
                token_stream_close(stream);
            }
        first_fit_free(fit);
        token_set_close(set);
    }
}

static void check_cuts(const struct token_set *set, int64_t seq_length, int64_t documents, int64_t targets, bool left)
{
    struct cut_count cut;
    struct error err;
    if (cut_count(set, seq_length, &cut, &err) != STATUS_OK) fail_msg("%s", err.text);
    assert_int_equal(cut.documents, documents);
    assert_int_equal(cut.targets, targets);
    assert_int_equal(cut.target_left, left);
}

/* What samples of a length leave of documents, and of the targets that a loss mask has in them. */
static void what_is_cut_off(void **state)
{
    (void)state;
    enum { COUNT = 4, TOKENS = 5 + 1 + 20 + 140000 };
    static const int lengths[COUNT] = {5, 1, 20, 140000}; /* the last one is longer than what is read at a time */
    static uint8_t mask[TOKENS];
    megatron("cuts", 2, lengths, COUNT, 0, 1000);
    struct token_set *set = open_one("cuts");
    check_cuts(set, 140000, 0, 0, true);
    check_cuts(set, 12, 2, 8 + 139988, true);
    check_cuts(set, 1, 3, 4 + 19 + 139999, false); /* a first token is no target */
    token_set_close(set);

    mask[0] = mask[5] = mask[6] = 1; /* first tokens */
    mask[6 + 15] = mask[6 + 19] = mask[26 + 70000] = mask[26 + 139999] = 1;
    write_file("cuts.mask", mask, sizeof mask);
    set = open_one("cuts");
    check_cuts(set, 140000, 0, 0, true);
    check_cuts(set, 70001, 1, 1, true);
    check_cuts(set, 16, 2, 3, true);
    check_cuts(set, 15, 2, 4, false);
    token_set_close(set);
    mask[26 + 139999] = 7;
    write_file("cuts.mask", mask, sizeof mask);
    set = open_one("cuts");
    struct cut_count cut;
    struct error err;
    assert_int_equal(cut_count(set, 15, &cut, &err), STATUS_DATA);
    assert_non_null(strstr(err.text, "7 is neither 0 nor 1"));
    token_set_close(set);
}

static void an_index_that_is_damaged(void **state)
{
    (void)state;
    static const int lengths[] = {4, 4, 4};
    megatron("damaged", 2, lengths, 3, 0, 100);
    struct token_set *set = open_one("damaged");
    const int64_t wrong = 999;
    patch("damaged.idx", 34 + 4 * 3 + 8, &wrong, 8); /* after it was opened and checked */
    struct first_fit *fit;
    struct error err;
    assert_int_equal(first_fit_new(set, 8, &fit, &err), STATUS_DATA);
    assert_null(fit);
    assert_non_null(strstr(err.text, "damaged.idx"));
    token_set_close(set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_goes_where_there_is_room),
        cmocka_unit_test(a_stream_reads_whole_documents),
        cmocka_unit_test(what_is_cut_off),
        cmocka_unit_test(an_index_that_is_damaged),
    };
    return cmocka_run_group_tests_name("document_fit", tests, setup, teardown);
}
