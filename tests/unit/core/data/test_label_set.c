/* SPDX-License-Identifier: Apache-2.0 */
/* test_label_set.c: the labels and types beside token shards, their errors, and micro-batches with labels. */
#include "tests/unit/fixtures/token_files.h"

enum { DOCUMENTS = 7, VOCAB = 100, LENGTH = 6 };

static const int lengths[DOCUMENTS] = {3, 1, 6, 2, 5, 4, 6};
static const int32_t given[DOCUMENTS] = {0, 2, 1, 1, 0, 2, 0};
static const int first_texts[DOCUMENTS] = {2, 1, 3, 2, 4, 1, 5}; /* document 1 and 3 have no second text */

static void write_types(const char *name)
{
    uint8_t types[64];
    size_t count = 0;
    for (int i = 0; i < DOCUMENTS; i++)
        for (int k = 0; k < lengths[i]; k++) types[count++] = k >= first_texts[i];
    write_file(name, types, count);
}

static void write_shard(const char *prefix, bool types)
{
    char name[64];
    megatron(prefix, 2, lengths, DOCUMENTS, 1, VOCAB);
    snprintf(name, sizeof name, "%s.labels", prefix);
    write_file(name, given, sizeof given);
    snprintf(name, sizeof name, "%s.types", prefix);
    if (types) write_types(name);
}

static void expect_error(struct token_set *set, const char *part)
{
    struct label_set *labels = NULL;
    struct error err;
    assert_int_equal(label_set_open(set, &labels, &err), STATUS_DATA);
    assert_null(labels);
    if (!strstr(err.text, part)) fail_msg("'%s' lacks '%s'", err.text, part);
}

static struct label_set *open_labels(const struct token_set *set)
{
    struct label_set *labels = NULL;
    struct error err;
    if (label_set_open(set, &labels, &err) != STATUS_OK) fail_msg("%s", err.text);
    return labels;
}

static void labels_and_types_of_documents(void **state)
{
    (void)state;
    write_shard("a1", true);
    write_shard("a2", false); /* single texts */
    struct token_set *set = open_one("a*.bin");
    struct label_set *labels = open_labels(set);
    assert_int_equal(labels->classes, 3);
    assert_null(labels->names);
    for (int i = 0; i < 2 * DOCUMENTS; i++) {
        int k = i % DOCUMENTS;
        assert_int_equal(labels->labels[i], given[k]);
        assert_int_equal(labels->first_text[i], i < DOCUMENTS ? first_texts[k] : lengths[k]);
    }
    assert_int_equal(labels->longest, 6);
    assert_int_equal(labels->longest_document, 2);
    label_set_close(labels);
    token_set_close(set);
}

static void names_of_labels(void **state)
{
    (void)state;
    static const char four[] = "{\"id2label\": {\"0\": \"a\", \"1\": \"b\", \"2\": \"c\", \"3\": \"d\"}}";
    static const char other[] = "{\"id2label\": {\"0\": \"b\", \"1\": \"a\", \"2\": \"c\", \"3\": \"d\"}}";
    static const char two[] = "{\"id2label\": {\"0\": \"a\", \"1\": \"b\"}}";
    static const char gap[] = "{\"id2label\": {\"0\": \"a\", \"2\": \"b\", \"3\": \"c\"}}";
    write_shard("n1", false);
    write_shard("n2", false);
    write_file("n1.labels.json", four, sizeof four - 1);
    write_file("n2.labels.json", four, sizeof four - 1);
    struct token_set *set = open_one("n*.bin");
    struct label_set *labels = open_labels(set);
    assert_int_equal(labels->classes, 4);
    assert_string_equal(json_string_value(json_object_get(labels->names, "3")), "d");
    label_set_close(labels);
    write_file("n2.labels.json", other, sizeof other - 1);
    expect_error(set, "the shards name their labels differently");
    assert_int_equal(unlink(at("n2.labels.json")), 0);
    expect_error(set, "the shards name their labels differently");
    token_set_close(set);
    set = open_one("n1");
    write_file("n1.labels.json", two, sizeof two - 1);
    expect_error(set, "the data hold label 2, but names for only 2 labels");
    write_file("n1.labels.json", gap, sizeof gap - 1);
    expect_error(set, "id2label must be an object that maps");
    write_file("n1.labels.json", "{", 1);
    expect_error(set, "not valid JSON");
    token_set_close(set);
}

static void damaged_labels(void **state)
{
    (void)state;
    megatron("d", 2, lengths, DOCUMENTS, 1, VOCAB);
    struct token_set *set = open_one("d");
    expect_error(set, "ztrain-tokenize --label COLUMN, or --preference, writes them");
    write_file("d.labels", given, sizeof given - 1);
    expect_error(set, "has 27 bytes, expected 4 for each of the 7 documents");
    write_file("d.labels", given, sizeof given);
    patch("d.labels", 8, &(int32_t){-1}, 4);
    expect_error(set, "at byte 8: label -1 is negative");
    write_file("d.labels", given, sizeof given);
    write_file("d.types", given, 26);
    expect_error(set, "has 26 bytes, expected one for each of the 27 tokens");
    write_types("d.types");
    patch("d.types", 9, &(uint8_t){2}, 1);
    expect_error(set, "at byte 9: type 2 does not continue");
    write_types("d.types");
    patch("d.types", 9, &(uint8_t){0}, 1); /* after a 1 */
    expect_error(set, "at byte 9: type 0 does not continue");
    token_set_close(set);
    static const int empty[2] = {3, 0};
    megatron("e", 2, empty, 2, 1, VOCAB);
    write_file("e.labels", given, 8);
    set = open_one("e");
    expect_error(set, "document 1 has a label, but no tokens");
    token_set_close(set);
}

static void fingerprint_shows_other_labels(void **state)
{
    (void)state;
    write_shard("f", true);
    struct token_set *set = open_one("f");
    struct label_set *labels = open_labels(set);
    uint64_t before = label_set_fingerprint(labels, 7);
    assert_true(before != label_set_fingerprint(labels, 8));
    label_set_close(labels);
    patch("f.labels", 4, &(int32_t){0}, 4);
    labels = open_labels(set);
    assert_true(before != label_set_fingerprint(labels, 7));
    label_set_close(labels);
    token_set_close(set);
    write_shard("f", true);
    set = open_one("f");
    patch("f.types", 2, &(uint8_t){0}, 1);
    labels = open_labels(set);
    assert_true(before != label_set_fingerprint(labels, 7));
    label_set_close(labels);
    token_set_close(set);
}

/* Checks that the sequences of a batch are whole documents with their labels and types, and counts them in seen. The
 * first token of a document tells its number. */
static void check_batch(const struct token_stream_config *config, const struct batch *batch, int *seen)
{
    int64_t targets = 0;
    for (int s = 0; s < batch->num_seqs; s++) {
        int64_t start = batch->seq_start[s], length = batch->seq_start[s + 1] - start;
        int document = 0, token = 1;
        while (document < DOCUMENTS && token != batch->tokens[start]) token += lengths[document++];
        if (document == DOCUMENTS) { /* filler */
            assert_int_equal(s, batch->num_seqs - 1);
            for (int64_t i = 0; i < length; i++)
                assert_true(batch->targets[start + i] == -1 && batch->types[start + i] == 0);
            continue;
        }
        seen[document]++;
        assert_int_equal(length, lengths[document]);
        for (int64_t i = 0; i < length; i++) {
            bool has_target = i == (config->label_first ? 0 : length - 1);
            assert_int_equal(batch->tokens[start + i], token + i);
            assert_int_equal(batch->positions[start + i], i);
            assert_int_equal(batch->types[start + i], i >= first_texts[document]);
            assert_int_equal(batch->targets[start + i], has_target ? given[document] : -1);
        }
        targets++;
    }
    assert_int_equal(batch->num_targets, targets);
}

static struct token_stream_config stream_config(const struct token_set *set, struct label_set *labels)
{
    return (struct token_stream_config){.source = {.set = (struct token_set *)set, .labels = labels},
                                        .data = {.seq_length = LENGTH},
                                        .classification = true,
                                        .vocab_size = VOCAB,
                                        .world = 1,
                                        .batch_size = 6,
                                        .micro_batch_size = 3,
                                        .token_multiple = 4,
                                        .padding_token = -1};
}

static void training_batches_have_labels(void **state)
{
    (void)state;
    write_shard("t", true);
    struct token_set *set = open_one("t");
    struct label_set *labels = open_labels(set);
    for (int variant = 0; variant < 2; variant++) {
        struct token_stream_config config = stream_config(set, labels);
        config.label_first = variant;
        config.data.shuffle = variant;
        struct token_stream *stream;
        struct error err;
        const struct batch_limits limits = token_stream_limits(&config);
        int64_t tokens = 0;
        assert_int_equal(limits.max_tokens, 20);
        assert_int_equal(token_stream_open(&config, 1, &stream, &err), STATUS_OK);
        int seen[DOCUMENTS] = {0};
        struct batch batch;
        for (int micro = 0; micro < 2; micro++) {
            bool end;
            assert_int_equal(token_stream_next(stream, &batch, &end, &err), STATUS_OK);
            assert_true(batch.num_tokens <= limits.max_tokens && batch.num_seqs <= limits.max_seqs &&
                        batch.num_tokens % 4 == 0);
            assert_int_equal(batch.step_targets, 6);
            check_batch(&config, &batch, seen);
        }
        for (int i = 0; i < DOCUMENTS; i++) tokens += seen[i] * lengths[i];
        assert_int_equal(batch.step_tokens, tokens);
        token_stream_close(stream);
    }
    label_set_close(labels);
    token_set_close(set);
}

/* Document 2 is 5 6 7 8 9 10. */
static void padding_has_no_label(void **state)
{
    (void)state;
    write_shard("p", false);
    struct token_set *set = open_one("p");
    struct label_set *labels = open_labels(set);
    static const int64_t padding[] = {10, 9, 4}, expected[] = {4, 5, 0}; /* 4: the only token of document 1 */
    for (size_t i = 0; i < 3; i++) {
        struct token_stream_config config = stream_config(set, labels);
        config.padding_token = padding[i];
        struct token_stream *stream;
        struct error err;
        struct batch batch;
        bool end;
        assert_int_equal(token_stream_open(&config, 1, &stream, &err), STATUS_OK);
        assert_int_equal(token_stream_next(stream, &batch, &end, &err), STATUS_OK);
        int64_t start = batch.seq_start[padding[i] == 4 ? 1 : 2];
        assert_int_equal(batch.targets[start + expected[i]], padding[i] == 4 ? 2 : 1);
        assert_int_equal(batch.num_targets, 3);
        token_stream_close(stream);
    }
    label_set_close(labels);
    token_set_close(set);
}

static void evaluation_takes_each_document_once(void **state)
{
    (void)state;
    write_shard("v", true);
    struct token_set *set = open_one("v");
    struct label_set *labels = open_labels(set);
    for (int world = 1; world <= 5; world++) {
        int seen[DOCUMENTS] = {0};
        for (int rank = 0; rank < world; rank++) {
            struct token_stream_config config = stream_config(set, labels);
            config.world = world;
            config.rank = rank;
            config.evaluation = true;
            config.micro_batch_size = 2;
            struct token_stream *stream;
            struct error err;
            struct batch batch;
            bool end;
            assert_int_equal(token_stream_open(&config, 1, &stream, &err), STATUS_OK);
            while (token_stream_next(stream, &batch, &end, &err) == STATUS_OK && !end)
                check_batch(&config, &batch, seen);
            assert_true(end);
            token_stream_close(stream);
        }
        for (int i = 0; i < DOCUMENTS; i++) assert_int_equal(seen[i], 1);
    }
    label_set_close(labels);
    token_set_close(set);
}

static void a_document_longer_than_a_sample_is_refused(void **state)
{
    (void)state;
    write_shard("l", false);
    struct token_set *set = open_one("l");
    struct label_set *labels = open_labels(set);
    struct token_stream_config config = stream_config(set, labels);
    config.data.seq_length = 5;
    struct token_stream *stream;
    struct error err;
    struct batch batch;
    bool end;
    assert_int_equal(token_stream_open(&config, 1, &stream, &err), STATUS_OK);
    assert_int_equal(token_stream_next(stream, &batch, &end, &err), STATUS_DATA);
    assert_non_null(strstr(err.text, "document 2 has 6 tokens, expected 1 to data.seq_length 5"));
    token_stream_close(stream);
    label_set_close(labels);
    token_set_close(set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(labels_and_types_of_documents),
        cmocka_unit_test(names_of_labels),
        cmocka_unit_test(damaged_labels),
        cmocka_unit_test(fingerprint_shows_other_labels),
        cmocka_unit_test(training_batches_have_labels),
        cmocka_unit_test(padding_has_no_label),
        cmocka_unit_test(evaluation_takes_each_document_once),
        cmocka_unit_test(a_document_longer_than_a_sample_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
