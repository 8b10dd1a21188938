/* SPDX-License-Identifier: Apache-2.0 */
/* test_token_set.c: token shards of every format, damaged in every way; and the permutation. */
#include "core/heartbeat.h"
#include "tests/unit/fixtures/token_files.h"

/* Opening must fail with STATUS_DATA and a message that contains all of these words (NULL ends them). */
static void refuse(const char *pattern, const char *const *words)
{
    struct error err = {0};
    struct token_set *set = (struct token_set *)1;
    const char *path = at(pattern);
    assert_int_equal(token_set_open(&path, 1, &set, &err), STATUS_DATA);
    assert_null(set);
    for (; *words; words++)
        if (!strstr(err.text, *words)) fail_msg("no \"%s\" in: %s", *words, err.text);
}
#define REFUSE(pattern, ...) refuse(pattern, (const char *const[]){__VA_ARGS__, NULL})

/* ---- token sets ---------------------------------------------------------- */

static void check_counting(const struct token_set *set, int vocab)
{
    int64_t total = token_set_tokens(set);
    int32_t *tokens = malloc((size_t)total * sizeof *tokens);
    struct error err;
    for (int64_t step = 1; step <= total; step += 1 + step / 2) /* every piece size gives the same stream */
        for (int64_t first = 0; first < total; first += step) {
            int64_t count = total - first < step ? total - first : step;
            assert_int_equal(token_set_read(set, first, count, vocab, tokens, NULL, &err), STATUS_OK);
            for (int64_t i = 0; i < count; i++) assert_int_equal(tokens[i], (first + i) % vocab);
        }
    free(tokens);
}

static void reads_every_format(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int token_bytes;
        int32_t magic, version;
    } cases[] = {{"m2", 2, 0, 0},
                 {"m4", 4, 0, 0},
                 {"l2.bin", 2, 20240520, 1},
                 {"l4.bin", 4, 20240801, 7},
                 {"l4old.bin", 4, 20240801, 1},
                 {"bare", 2, 20240520, 1}};
    static const int lengths[] = {7, 0, 1, 30, 12};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        if (cases[i].magic)
            llmc(cases[i].name, cases[i].magic, cases[i].version, 50, 0, 37);
        else
            megatron(cases[i].name, cases[i].token_bytes, lengths, 5, 0, 37);
        struct token_set *set = open_one(cases[i].name);
        assert_int_equal(token_set_tokens(set), 50);
        assert_int_equal(token_set_documents(set), cases[i].magic ? 1 : 5);
        assert_int_equal(token_set_samples(set, 7, true), 7);
        assert_int_equal(token_set_samples(set, 49, true), 1);
        assert_int_equal(token_set_samples(set, 50, true), 0);
        assert_int_equal(token_set_samples(set, 7, false), token_set_documents(set));
        check_counting(set, 37);
        int64_t position = 0, first, length;
        for (int d = 0; d < token_set_documents(set); d++) {
            assert_int_equal(token_set_document(set, d, &first, &length, NULL), STATUS_OK);
            assert_int_equal(first, position);
            assert_int_equal(length, cases[i].magic ? 50 : lengths[d]);
            position += length;
        }
        token_set_close(set);
    }
}

static void documents_of_several_sequences(void **state)
{
    (void)state;
    static const int lengths[] = {3, 4, 5, 6};
    megatron("multi", 2, lengths, 4, 0, 100);
    /* three documents: sequences 0-1, none, 2-3; so four entries */
    int64_t entries[] = {0, 2, 2, 4}, four = 4;
    patch("multi.idx", 26, &four, 8);
    patch("multi.idx", 34 + 12 * 4, entries, sizeof entries);
    assert_int_equal(truncate(at("multi.idx"), 34 + 12 * 4 + 8 * 4), 0);
    struct token_set *set = open_one("multi");
    static const int64_t expected[3][2] = {{0, 7}, {7, 0}, {7, 11}};
    assert_int_equal(token_set_documents(set), 3);
    for (int i = 0; i < 3; i++) {
        int64_t first, length;
        assert_int_equal(token_set_document(set, i, &first, &length, NULL), STATUS_OK);
        assert_int_equal(first, expected[i][0]);
        assert_int_equal(length, expected[i][1]);
    }
    token_set_close(set);
}

static void several_files_are_one_stream(void **state)
{
    (void)state;
    static const int a[] = {5, 6}, b[] = {1, 2, 3}, one[] = {9};
    megatron("span-a", 2, a, 2, 0, 60);
    megatron("span-b", 4, b, 3, 11, 60);
    llmc("span-c.bin", 20240520, 1, 13, 17, 60);
    llmc("span-d.bin", 20240801, 7, 20, 30, 60);
    megatron("other", 2, one, 1, 50, 60);
    write_file("span-notes.txt", "not a shard", 11);
    mkdir(at("span-folder.bin"), 0777);

    const char *patterns[] = {at("span-*"), at("other.idx")};
    struct token_set *set;
    struct error err;
    if (token_set_open(patterns, 2, &set, &err) != STATUS_OK) fail_msg("%s", err.text);
    assert_int_equal(token_set_tokens(set), 59);
    assert_int_equal(token_set_documents(set), 8);
    check_counting(set, 60);
    int64_t first, length;
    assert_int_equal(token_set_document(set, 4, &first, &length, NULL), STATUS_OK);
    assert_int_equal(first, 14);
    assert_int_equal(length, 3);
    token_set_close(set);

    static const char *const same[] = {"span-[ab].bin", "span-[ab].idx", "span-[ab]*", "span-?"};
    for (size_t i = 0; i < COUNT_OF(same); i++) {
        set = open_one(same[i]);
        assert_int_equal(token_set_tokens(set), i < 3 ? 17 : 50);
        token_set_close(set);
    }
    const char *twice[] = {at("span-a"), at("span-*.bin")};
    assert_int_equal(token_set_open(twice, 2, &set, &err), STATUS_DATA);
    assert_non_null(strstr(err.text, "named twice"));

    megatron("odd[1]", 2, one, 1, 0, 60); /* a name that looks like a glob */
    set = open_one("odd[1].bin");
    token_set_close(set);
}

enum { EQUAL_SHARDS = 40 };

static struct data_fingerprint fingerprint_of(char (*names)[16])
{
    char paths[EQUAL_SHARDS][128];
    const char *patterns[EQUAL_SHARDS];
    struct token_set *set;
    struct data_fingerprint fingerprint;
    for (int i = 0; i < EQUAL_SHARDS; i++) {
        snprintf(paths[i], sizeof paths[i], "%s", at(names[i]));
        patterns[i] = paths[i];
    }
    assert_int_equal(token_set_open(patterns, EQUAL_SHARDS, &set, NULL), STATUS_OK);
    assert_int_equal(token_set_check(set, 60, &fingerprint, NULL), STATUS_OK);
    token_set_close(set);
    return fingerprint;
}

static void fingerprint_knows_every_shard(void **state)
{
    (void)state;
    char names[EQUAL_SHARDS][16], moved[16];
    for (int i = 0; i < EQUAL_SHARDS; i++) {
        snprintf(names[i], sizeof names[i], "equal-%02d.bin", i);
        llmc(names[i], 20240520, 1, 30, i, 60);
    }
    _Atomic uint64_t *counter = atomic_load(&heartbeat_counter);
    const uint64_t ticks = atomic_load(counter);
    const struct data_fingerprint whole = fingerprint_of(names);
    assert_true(atomic_load(counter) - ticks >= 2 * EQUAL_SHARDS); /* opening ticks: shards may be on a slow disk */
    for (int i = 1; i < EQUAL_SHARDS; i++) {
        memcpy(moved, names[i], sizeof moved);
        memcpy(names[i], names[i - 1], sizeof moved);
        memcpy(names[i - 1], moved, sizeof moved);
        const struct data_fingerprint other = fingerprint_of(names);
        if (other.first == whole.first || other.sampled == whole.sampled)
            fail_msg("shards %d and %d may change places", i - 1, i);
        memcpy(names[i - 1], names[i], sizeof moved);
        memcpy(names[i], moved, sizeof moved);
    }
    const struct data_fingerprint again = fingerprint_of(names);
    assert_true(again.first == whole.first && again.sampled == whole.sampled);
}

static struct data_fingerprint fingerprint_of_one(const char *name)
{
    struct data_fingerprint fingerprint;
    struct token_set *set = open_one(name);
    assert_int_equal(token_set_check(set, 1000, &fingerprint, NULL), STATUS_OK);
    token_set_close(set);
    return fingerprint;
}

/* Whether token `at` of an llm.c shard of 16-bit tokens counts in the two hashes. */
static void check_token_counts(const char *name, long token, bool in_first, bool in_sampled)
{
    enum { HEADER = 1024 };
    const struct data_fingerprint before = fingerprint_of_one(name);
    patch(name, HEADER + 2 * token, "\1\3", 2); /* 769, which no token of the shard is */
    const struct data_fingerprint after = fingerprint_of_one(name);
    if ((before.first != after.first) != in_first || (before.sampled != after.sampled) != in_sampled)
        fail_msg("token %ld of '%s'", token, name);
    assert_int_equal(data_fingerprint_equal(&before, &after), !in_first && !in_sampled);
}

static void fingerprint_knows_tokens_anywhere(void **state)
{
    (void)state;
    enum { SMALL = 4096 * 5 + 100, LARGE = 4096 * 300, PART = LARGE / 16 };
    llmc("few.bin", 20240520, 1, SMALL, 0, 700); /* every token counts */
    static const long places[] = {0, 4095, 4096, 9000, 4096 * 4 - 1, 4096 * 5, SMALL - 1};
    for (size_t i = 0; i < COUNT_OF(places); i++) check_token_counts("few.bin", places[i], places[i] < 4096, true);

    llmc("many.bin", 20240520, 1, LARGE, 0, 700); /* 128 of 300 blocks count; every sixteenth of the shard has some */
    static const char other[2 * PART];            /* zeros */
    const struct data_fingerprint whole = fingerprint_of_one("many.bin");
    for (int part = 0; part < 16; part++) {
        llmc("many.bin", 20240520, 1, LARGE, 0, 700);
        patch("many.bin", 1024 + 2 * part * PART, other, sizeof other);
        const struct data_fingerprint changed = fingerprint_of_one("many.bin");
        assert_int_equal(changed.first == whole.first, part > 0);
        assert_true(changed.sampled != whole.sampled);
    }

    const struct data_fingerprint earlier = {.first = whole.first}; /* of a checkpoint without the sample */
    assert_true(data_fingerprint_equal(&earlier, &whole) && data_fingerprint_equal(&whole, &earlier));
}

static void refuses_mask(const char *name, const char *const *words, int num_words)
{
    struct error err;
    struct token_set *set;
    const char *path = at(name);
    assert_int_equal(token_set_open(&path, 1, &set, &err), STATUS_DATA);
    for (int i = 0; i < num_words; i++)
        if (!strstr(err.text, words[i])) fail_msg("'%s' not in: %s", words[i], err.text);
}

static void a_mask_belongs_to_its_shard(void **state)
{
    (void)state;
    static const int lengths[] = {4, 3};
    static const uint8_t mask[] = {0, 1, 1, 0, 1, 0, 1}, expected[] = {0, 1, 1, 0, 1, 0, 1, 1, 1, 1, 1, 1, 1};
    uint8_t out[13];
    megatron("masked-a", 2, lengths, 2, 0, 1000);
    llmc("masked-b.bin", 20240520, 1, 6, 7, 1000);
    const struct data_fingerprint without = fingerprint_of_one("masked-a");
    write_file("masked-a.mask", mask, sizeof mask);
    const struct data_fingerprint with = fingerprint_of_one("masked-a");
    assert_true(with.first != without.first && with.sampled != without.sampled);
    patch("masked-a.mask", 6, "\0", 1);
    const struct data_fingerprint other = fingerprint_of_one("masked-a");
    assert_true(other.first != with.first && other.sampled != with.sampled);
    patch("masked-a.mask", 6, "\1", 1);
    const struct data_fingerprint again = fingerprint_of_one("masked-a");
    assert_true(again.first == with.first && again.sampled == with.sampled);

    struct token_set *set = open_one("masked-*.bin"); /* the second shard has none: all of it counts */
    assert_true(token_set_has_mask(set));
    check_counting(set, 1000);
    for (int first = 0; first < 13; first++)
        for (int count = 0; count <= 13 - first; count++) {
            assert_int_equal(token_set_read(set, first, count, INT32_MAX, NULL, out, NULL), STATUS_OK);
            assert_memory_equal(out, expected + first, count);
        }
    struct error err;
    token_set_close(set);
    patch("masked-a.mask", 5, "\2", 1);
    set = open_one("masked-*.bin");
    assert_int_equal(token_set_read(set, 3, 4, INT32_MAX, NULL, out, &err), STATUS_DATA);
    assert_non_null(strstr(err.text, "masked-a.mask' at byte 5: 2 is neither 0 nor 1"));
    assert_int_equal(token_set_check(set, 1000, NULL, &err), STATUS_DATA);
    assert_int_equal(truncate(at("masked-a.mask"), 2), 0);
    assert_int_equal(token_set_read(set, 0, 4, INT32_MAX, NULL, out, &err), STATUS_DATA);
    assert_non_null(strstr(err.text, "truncated while in use"));
    token_set_close(set);
    refuses_mask("masked-a", (const char *const[]){"masked-a.mask' has 2 bytes", "masked-a.bin' has 7 tokens"}, 2);
    assert_int_equal(unlink(at("masked-a.mask")), 0);
    assert_int_equal(symlink("nowhere", at("masked-a.mask")), 0); /* there is a name: it is not an absent mask */
    refuses_mask("masked-a.idx", (const char *const[]){"cannot open", "masked-a.mask"}, 2);
    assert_int_equal(unlink(at("masked-a.mask")), 0);
    assert_int_equal(mkdir(at("masked-a.mask"), 0777), 0);
    refuses_mask("masked-a.idx", (const char *const[]){"masked-a.mask': it is a folder, expected a file"}, 1);

    llmc("bare-mask", 20240801, 7, 3, 0, 100);
    write_file("bare-mask.mask", mask, 3);
    set = open_one("bare-mask");
    assert_int_equal(token_set_read(set, 0, 3, INT32_MAX, NULL, out, NULL), STATUS_OK);
    assert_memory_equal(out, mask, 3);
    token_set_close(set);
    set = open_one("masked-b.bin");
    assert_false(token_set_has_mask(set));
    token_set_close(set);
}

static void more_shards_than_are_kept_open(void **state)
{
    (void)state;
    for (int i = 0; i < 150; i++) {
        char name[32];
        int length = 3;
        snprintf(name, sizeof name, "many-%03d", i);
        megatron(name, 2, &length, 1, 3 * i, 450);
    }
    struct token_set *set = open_one("many-*.bin");
    assert_int_equal(token_set_tokens(set), 450);
    check_counting(set, 450);
    int64_t first, length;
    assert_int_equal(token_set_document(set, 149, &first, &length, NULL), STATUS_OK);
    assert_int_equal(first, 447);
    token_set_close(set);
}

/* Gives a file the time of another one. */
static void copy_time(const char *from, const char *to)
{
    struct stat facts;
    assert_int_equal(stat(at(from), &facts), 0);
    const struct timespec times[2] = {facts.st_atim, facts.st_mtim};
    assert_int_equal(utimensat(AT_FDCWD, at(to), times, 0), 0);
}

/* Of 130 shards the first 128 stay open, and the others are opened for each read. */
static void shards_that_change_in_use(void **state)
{
    (void)state;
    static const int length = 3;
    static const struct timespec past[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
    struct error err;
    int32_t out[3];
    char name[32];
    for (int i = 0; i < 130; i++) {
        snprintf(name, sizeof name, "use-%03d", i);
        megatron(name, 2, &length, 1, 3 * i, 450);
    }
    struct token_set *set = open_one("use-*.bin");
    const struct {
        const char *name, *change;
        int shard;
        const char *said;
    } cases[] = {{"use-005.bin", "time", 5, "use-005.bin' was written again while in use"},
                 {"use-006.bin", "size", 6, "use-006.bin' was truncated while in use (2 bytes, 6 when it was opened)"},
                 {"use-007.bin", "move", 7, NULL}, /* what is open stays what it was */
                 {"use-008.bin", "gone", 8, NULL},
                 {"use-126.bin", "none", 126, NULL},
                 {"use-128.bin", "move", 128, "use-128.bin' was replaced by another file while in use"},
                 {"use-129.bin", "time", 129, "use-129.bin' was written again while in use"},
                 {"use-129.bin", "size", 129, "use-129.bin' was truncated while in use"},
                 {"use-129.bin", "gone", 129, "cannot open"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const char *path = at(cases[i].name);
        if (strcmp(cases[i].change, "time") == 0)
            assert_int_equal(utimensat(AT_FDCWD, path, past, 0), 0);
        else if (strcmp(cases[i].change, "size") == 0)
            assert_int_equal(truncate(path, 2), 0);
        else if (strcmp(cases[i].change, "gone") == 0)
            assert_int_equal(unlink(path), 0);
        else if (strcmp(cases[i].change, "move") == 0) {
            write_file("other", "\1\0\2\0\3\0", 6);
            copy_time(cases[i].name, "other");
            assert_int_equal(rename(at("other"), path), 0);
        }
        err.text[0] = '\0';
        const enum status status = token_set_read(set, 3 * cases[i].shard, 3, 450, out, NULL, &err);
        assert_int_equal(status, cases[i].said ? STATUS_DATA : STATUS_OK);
        if (cases[i].said ? !strstr(err.text, cases[i].said) : out[2] != 3 * cases[i].shard + 2)
            fail_msg("%s: %s", cases[i].name, err.text);
    }
    token_set_close(set);
}

static void beyond_four_gigabytes(void **state)
{
    (void)state;
    /* sparse files: 3 G tokens of 0 in three sequences, except that the last eight count up; and an llm.c file, 6 GB */
    int64_t tokens = INT64_C(3) << 30, bytes = 2 * tokens;
    static const int small[] = {1, 1, 1};
    uint16_t tail[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    megatron("huge", 2, small, 3, 0, 10);
    if (truncate(at("huge.bin"), bytes) != 0) skip();
    patch("huge.bin", bytes - 16, tail, sizeof tail);
    int32_t sizes[] = {1 << 30, 1 << 30, 1 << 30};
    int64_t pointers[] = {0, INT64_C(2) << 30, INT64_C(4) << 30};
    patch("huge.idx", 34, sizes, sizeof sizes);
    patch("huge.idx", 34 + 12, pointers, sizeof pointers);
    struct token_set *set = open_one("huge");
    assert_int_equal(token_set_tokens(set), tokens);
    int32_t out[9];
    assert_int_equal(token_set_read(set, tokens - 9, 9, 10, out, NULL, NULL), STATUS_OK);
    for (int i = 0; i < 9; i++) assert_int_equal(out[i], i);
    struct error err;
    assert_int_equal(token_set_read(set, tokens - 9, 9, 8, out, NULL, &err), STATUS_DATA);
    assert_non_null(strstr(err.text, "at byte 6442450942: token id 8"));
    int64_t first, length;
    assert_int_equal(token_set_document(set, 2, &first, &length, NULL), STATUS_OK);
    assert_int_equal(first, INT64_C(2) << 30);
    assert_int_equal(length, 1 << 30);

    struct token_stream_config config = {.source = {.set = set},
                                         .data = {.seq_length = 4, .packing = SPEC_PACKING_CUT},
                                         .vocab_size = 10,
                                         .world = 1,
                                         .batch_size = 1,
                                         .micro_batch_size = 1,
                                         .token_multiple = 1};
    struct token_stream *stream;
    struct batch batch;
    bool end;
    assert_int_equal(token_stream_open(&config, token_stream_steps_per_epoch(&config), &stream, NULL), STATUS_OK);
    assert_int_equal(token_stream_next(stream, &batch, &end, NULL), STATUS_OK);
    assert_int_equal(batch.tokens[3], 4); /* sample (tokens - 1) / 4 - 1 starts 8 tokens before the end */
    assert_int_equal(batch.targets[3], 5);
    token_stream_close(stream);
    token_set_close(set);

    llmc("huge-l.bin", 20240801, 7, 1, 0, 10);
    int32_t count = 1500000000, last = 77;
    patch("huge-l.bin", 8, &count, 4);
    assert_int_equal(truncate(at("huge-l.bin"), 1024 + INT64_C(4) * count), 0);
    patch("huge-l.bin", 1020 + INT64_C(4) * count, &last, 4);
    set = open_one("huge-l.bin");
    assert_int_equal(token_set_read(set, count - 1, 1, 100, out, NULL, NULL), STATUS_OK);
    assert_int_equal(out[0], 77);
    token_set_close(set);
    unlink(at("huge.bin"));
    unlink(at("huge-l.bin"));
}

/* An index of more than TOKEN_INDEX_CHECKED bytes is not read at open; its documents are checked one by one. */
static void an_index_too_large_to_check(void **state)
{
    (void)state;
    static const int one[] = {4};
    int64_t documents = TOKEN_INDEX_CHECKED / 20 + 1, entries = documents + 1;
    megatron("large", 2, one, 1, 0, 10);
    patch("large.idx", 18, &documents, 8);
    patch("large.idx", 26, &entries, 8);
    /* sparse: empty sequences, all in document 0; then ends that agree with the .bin's four tokens */
    assert_int_equal(truncate(at("large.idx"), 0), 0);
    unsigned char header[34] = "MMIDIDX\0";
    uint64_t version = 1;
    memcpy(header + 9, &version, 8);
    header[17] = 8;
    memcpy(header + 18, &documents, 8);
    memcpy(header + 26, &entries, 8);
    patch("large.idx", 0, header, sizeof header);
    assert_int_equal(truncate(at("large.idx"), 34 + 12 * documents + 8 * entries), 0);
    int32_t size = 4;
    int64_t pointers = 34 + 4 * documents, index = pointers + 8 * documents, value = documents;
    patch("large.idx", 34 + 4 * (documents - 1), &size, 4);
    patch("large.idx", index + 8 * documents, &value, 8);
    struct token_set *set = open_one("large");
    int64_t first, length;
    assert_int_equal(token_set_document(set, documents - 1, &first, &length, NULL), STATUS_OK);
    assert_int_equal(length, 4);
    assert_int_equal(token_set_document(set, 5, &first, &length, NULL), STATUS_OK);
    assert_int_equal(length, 0);

    static const struct {
        int64_t entry[2], pointer;
    } wrong[] = {{{-1, 3}, 0}, {{4, 3}, 0},  {{0, INT64_MAX}, 0}, {{0, 2}, 3},
                 {{0, 2}, -2}, {{0, 2}, 10}, {{0, 2}, INT64_MIN}, {{2, 3}, 4}};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        struct error err;
        patch("large.idx", index + 8 * 5, wrong[i].entry, 16);
        patch("large.idx", pointers + 8 * 2, &wrong[i].pointer, 8);
        token_set_close(set);
        set = open_one("large");
        assert_int_equal(token_set_document(set, 5, &first, &length, &err), STATUS_DATA);
        assert_non_null(strstr(err.text, "large.idx' at byte"));
    }
    token_set_close(set);
    value--;
    patch("large.idx", index + 8 * documents, &value, 8);
    REFUSE("large", "large.idx' at byte", "document index");
    unlink(at("large.idx"));
}

static void damaged_megatron_shards(void **state)
{
    (void)state;
    static const int lengths[] = {3, 4, 5};
    enum { SIZES = 34, POINTERS = SIZES + 12, ENTRIES = POINTERS + 24, END = ENTRIES + 32 };
    static const struct {
        const char *file;
        int64_t cut;    /* new size, or -1 */
        int64_t offset; /* of the value that is written, or -1 */
        int64_t value;
        int bytes;
        const char *words[2];
    } cases[] = {
        {"dmg.idx", 0, -1, 0, 0, {"dmg.idx' has 0 bytes", "at least 34"}},
        {"dmg.idx", 33, -1, 0, 0, {"dmg.idx' has 33 bytes", "truncated"}},
        {"dmg.idx", 34, -1, 0, 0, {"too few for the 3 sequences", "truncated"}},
        {"dmg.idx", END - 1, -1, 0, 0, {"too few for the 3 sequences", "truncated"}},
        {"dmg.idx", END + 1, -1, 0, 0, {"trailing bytes", "expected 102"}},
        {"dmg.idx", -1, 0, 'X', 1, {"dmg.idx' is not a Megatron-LM index", "MMIDIDX"}},
        {"dmg.idx", -1, 8, 1, 1, {"dmg.idx' is not a Megatron-LM index", "MMIDIDX"}},
        {"dmg.idx", -1, 9, 2, 8, {"version 2 at byte 9", "expected 1"}},
        {"dmg.idx", -1, 17, 5, 1, {"token type 5 at byte 17", "8 (uint16)"}},
        {"dmg.idx", -1, 17, 4, 1, {"dmg", "tokens of 4 bytes"}},
        {"dmg.idx", -1, 18, 2, 8, {"trailing bytes", "dmg.idx"}},
        {"dmg.idx", -1, 18, -1, 8, {"too few for the 18446744073709551615 sequences", "dmg.idx"}},
        {"dmg.idx", -1, 18, INT64_C(1) << 62, 8, {"too few for the", "dmg.idx"}},
        {"dmg.idx", -1, 26, INT64_C(1) << 61, 8, {"too few for the", "document entries"}},
        {"dmg.idx", -1, 26, -1, 8, {"too few for the", "document entries"}},
        {"dmg.idx", -1, SIZES, 4, 4, {"sequence 1 starts at byte 6", "expected 8"}},
        {"dmg.idx", -1, SIZES + 4, -4, 4, {"sequence 1 has -4 tokens", "at byte 38"}},
        {"dmg.idx", -1, SIZES + 4, INT32_MAX, 4, {"sequence 1 has 2147483647 tokens", "at byte 38"}},
        {"dmg.idx", -1, SIZES + 8, 6, 4, {"last sequence is 6 tokens", "dmg.bin"}},
        {"dmg.idx", -1, SIZES + 8, -1, 4, {"last sequence is -1 tokens", "dmg.bin"}},
        {"dmg.idx", -1, POINTERS, 2, 8, {"sequence 0 starts at byte 2", "at byte 46"}},
        {"dmg.idx", -1, POINTERS + 8, 14, 8, {"sequence 1 starts at byte 14", "expected 6"}},
        {"dmg.idx", -1, POINTERS + 8, -6, 8, {"sequence 1 starts at byte -6", "expected 6"}},
        {"dmg.idx", -1, POINTERS + 16, INT64_MIN, 8, {"from byte -9223372036854775808", "dmg.bin"}},
        {"dmg.idx", -1, POINTERS + 16, INT64_MAX, 8, {"from byte 9223372036854775807", "dmg.bin"}},
        {"dmg.idx", -1, ENTRIES, 1, 8, {"entry 0 of the document index is 1", "at byte 70"}},
        {"dmg.idx", -1, ENTRIES + 8, 3, 8, {"entry 2 of the document index is 2", "at byte 86"}},
        {"dmg.idx", -1, ENTRIES + 8, -1, 8, {"entry 1 of the document index is -1", "at byte 78"}},
        {"dmg.idx", -1, ENTRIES + 16, 4, 8, {"entry 2 of the document index is 4", "at byte 86"}},
        {"dmg.idx", -1, ENTRIES + 24, 2, 8, {"entry 3 of the document index is 2", "3 sequences"}},
        {"dmg.bin", 0, -1, 0, 0, {"dmg.bin' is empty", "0 bytes"}},
        {"dmg.bin", 23, -1, 0, 0, {"dmg.bin' has 23 bytes", "multiple"}},
        {"dmg.bin", 22, -1, 0, 0, {"dmg.bin' has 22 bytes", "truncated"}},
        {"dmg.bin", 26, -1, 0, 0, {"dmg.bin' has 26 bytes", "belong together"}},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        megatron("dmg", 2, lengths, 3, 0, 100);
        token_set_close(open_one("dmg"));
        if (cases[i].cut >= 0) assert_int_equal(truncate(at(cases[i].file), cases[i].cut), 0);
        if (cases[i].offset >= 0) patch(cases[i].file, cases[i].offset, &cases[i].value, (size_t)cases[i].bytes);
        REFUSE("dmg", cases[i].words[0], cases[i].words[1]);
        REFUSE("dm*", cases[i].words[0], cases[i].words[1]);
    }
    int none = 0;
    megatron("dmg", 2, &none, 0, 0, 1);
    REFUSE("dmg", "is empty", "0 sequences");
    megatron("dmg", 2, &none, 1, 0, 1);
    REFUSE("dmg", "is empty", "0 bytes");
    /* a document index of one entry has no document */
    megatron("dmg", 2, lengths, 3, 0, 100);
    uint64_t one = 1;
    patch("dmg.idx", 26, &one, 8);
    assert_int_equal(truncate(at("dmg.idx"), ENTRIES + 8), 0);
    REFUSE("dmg", "is empty", "1 document entries");
}

static void damaged_llmc_shards(void **state)
{
    (void)state;
    static const struct {
        int64_t cut, offset;
        int32_t value;
        const char *words[2];
    } cases[] = {
        {0, -1, 0, {"dl.bin' is empty", ""}},
        {7, -1, 0, {"not an llm.c token file", "found 0"}},
        {12, -1, 0, {"expected 1044", "truncated at byte 12"}},
        {1043, -1, 0, {"expected 1044", "truncated at byte 1043"}},
        {1045, -1, 0, {"expected 1044", "trailing bytes at byte 1044"}},
        {-1, 0, 20240522, {"not an llm.c token file", "found 20240522"}},
        {-1, 0, 20240801, {"version 1", ""}},
        {-1, 4, 2, {"version 2 at byte 4", "expected 1"}},
        {-1, 8, 0, {"holds no tokens", "at byte 8 is 0"}},
        {-1, 8, -5, {"holds no tokens", "at byte 8 is -5"}},
        {-1, 8, 11, {"expected 1046", "truncated at byte 1044"}},
        {-1, 8, INT32_MAX, {"truncated at byte 1044", "dl.bin"}},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        llmc("dl.bin", 20240520, 1, 10, 0, 100);
        if (cases[i].cut >= 0) assert_int_equal(truncate(at("dl.bin"), cases[i].cut), 0);
        if (cases[i].offset >= 0) patch("dl.bin", cases[i].offset, &cases[i].value, 4);
        if (cases[i].value == 20240801) /* a version that exists for this magic: only the size is wrong */
            REFUSE("dl.bin", "expected 1064", "truncated at byte 1044");
        else
            REFUSE("dl.bin", cases[i].words[0], cases[i].words[1]);
    }
    int32_t version = 3;
    llmc("dl.bin", 20240801, 7, 10, 0, 100);
    patch("dl.bin", 4, &version, 4);
    REFUSE("dl.bin", "version 3 at byte 4", "expected 7");
}

static void absent_and_foreign_files(void **state)
{
    (void)state;
    static const int lengths[] = {3};
    REFUSE("nothing", "no token shard", "nothing.bin", "; ztrain-tokenize makes token shards");
    REFUSE("nothing.bin", "cannot open", "No such file");
    REFUSE("nothing.idx", "cannot open", "No such file", "two files");
    REFUSE("nothing-*", "no token shard", "matches", "nothing-*", "hint: ztrain-tokenize makes token shards");
    REFUSE("", "is a folder", "hint: name a prefix");
    write_file("foreign-1.txt", "x", 1);
    REFUSE("foreign-*", "no token shard", "matches");
    mkdir(at("empty"), 0777);
    REFUSE("empty", "is a folder", "*.bin");
    mkdir(at("dir.bin"), 0777);
    REFUSE("dir.bin", "it is a folder, expected a file");
    assert_int_equal(mkfifo(at("pipe.bin"), 0666), 0);
    REFUSE("pipe.bin", "not a regular file");
    write_file("text.bin", "{\"text\": \"not tokens\"}\n", 23);
    REFUSE("text.bin", "not an llm.c token file", ".idx file is missing");
    megatron("half", 2, lengths, 1, 0, 10);
    assert_int_equal(unlink(at("half.bin")), 0);
    REFUSE("half", "cannot open", "half.bin", "two files");
    REFUSE("hal*", "cannot open", "half.bin", "two files");
    megatron("half", 2, lengths, 1, 0, 10);
    assert_int_equal(unlink(at("half.idx")), 0);
    REFUSE("half", "half.bin", ".idx file is missing");
    REFUSE("half.idx", "cannot open", "half.idx", "two files");
    assert_int_equal(symlink("nowhere", at("half.idx")), 0); /* not an llm.c file whose index is absent */
    REFUSE("half", "cannot open", "half.idx", "two files");
    struct token_set *set;
    const char *name = at("nothing");
    assert_int_equal(token_set_open(&name, 1, &set, NULL), STATUS_DATA);
    token_set_close(NULL);
}

static void ids_outside_the_vocabulary(void **state)
{
    (void)state;
    static const int lengths[] = {10};
    struct error err;
    int32_t out[10];
    megatron("id2", 2, lengths, 1, 65530, 70000);
    megatron("id4", 4, lengths, 1, 0, 10);
    llmc("idl.bin", 20240801, 7, 10, 0, 10);
    int32_t negative = -3;
    patch("id4.bin", 4 * 6, &negative, 4);
    patch("idl.bin", 1024 + 4 * 6, &negative, 4);
    static const struct {
        const char *name;
        int64_t vocab;
        const char *text;
    } cases[] = {
        {"id2", 65535, "id2.bin' at byte 10: token id 65535 is outside the vocabulary of 65535 ids (0 to 65534)"},
        {"id4", 50257, "id4.bin' at byte 24: token id -3 is outside the vocabulary of 50257 ids"},
        {"idl.bin", INT32_MAX, "idl.bin' at byte 1048: token id 4294967293 is outside"},
        {"idl.bin", 3, "idl.bin' at byte 1036: token id 3 is outside the vocabulary of 3 ids (0 to 2)"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct token_set *set = open_one(cases[i].name);
        assert_int_equal(token_set_read(set, 0, 10, cases[i].vocab, out, NULL, &err), STATUS_DATA);
        if (!strstr(err.text, cases[i].text)) fail_msg("no \"%s\" in: %s", cases[i].text, err.text);
        assert_non_null(strstr(err.text, "; hint: "));
        token_set_close(set);
    }
}

static void a_shard_that_shrinks_in_use(void **state)
{
    (void)state;
    static const int lengths[] = {10, 10};
    struct error err;
    int32_t out[10];
    int64_t first, length;
    megatron("shrink", 2, lengths, 2, 0, 100);
    struct token_set *set = open_one("shrink");
    assert_int_equal(truncate(at("shrink.bin"), 30), 0);
    assert_int_equal(token_set_read(set, 10, 10, 100, out, NULL, &err), STATUS_DATA);
    assert_non_null(strstr(err.text, "shrink.bin' was truncated while in use (30 bytes, 40 when"));
    assert_int_equal(truncate(at("shrink.idx"), 60), 0);
    assert_int_equal(token_set_document(set, 1, &first, &length, &err), STATUS_DATA);
    assert_non_null(strstr(err.text, "shrink.idx' was truncated while in use"));
    token_set_close(set);
}

/* Reads the files of scripts/tokenize.py: documents, then the whole stream. Runs from the repository's root. */
static void reads_what_tokenize_writes(void **state)
{
    (void)state;
    if (access("scripts/tokenize.py", R_OK) != 0 || system("python3 -c 'import array' 2>/dev/null") != 0) skip();
    static const char *const lines[] = {"a line", "b", "\xff\xfe bytes \x01", "the last one"};
    char command[512], text[256] = "";
    for (size_t i = 0; i < COUNT_OF(lines); i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s\n\n", lines[i]);
    write_file("script.txt", text, strlen(text));
    snprintf(command, sizeof command,
             "python3 scripts/tokenize.py '%s' --output '%s' --tokenizer byte --document line > /dev/null",
             at("script.txt"), at("script"));
    assert_int_equal(system(command), 0);
    struct token_set *set = open_one("script");
    assert_int_equal(token_set_documents(set), COUNT_OF(lines));
    int64_t position = 0;
    for (size_t d = 0; d < COUNT_OF(lines); d++) {
        int64_t first, length;
        int32_t tokens[64];
        assert_int_equal(token_set_document(set, (int64_t)d, &first, &length, NULL), STATUS_OK);
        assert_int_equal(first, position);
        assert_int_equal(length, strlen(lines[d]) + 1);
        assert_int_equal(token_set_read(set, first, length, 257, tokens, NULL, NULL), STATUS_OK);
        for (int64_t i = 0; i < length - 1; i++) assert_int_equal(tokens[i], (unsigned char)lines[d][i]);
        assert_int_equal(tokens[length - 1], 256);
        position += length;
    }
    assert_int_equal(token_set_tokens(set), position);
    token_set_close(set);
}

/* ---- order --------------------------------------------------------------- */

static void permutation_is_a_bijection(void **state)
{
    (void)state;
    char seen[300];
    for (uint64_t n = 1; n <= 300; n++)
        for (uint64_t epoch = 1; epoch <= 5; epoch++) {
            memset(seen, 0, sizeof seen);
            for (uint64_t i = 0; i < n; i++) {
                uint64_t image = permute_index(i, n, 1234 + n, epoch);
                assert_true(image < n && !seen[image]);
                seen[image] = 1;
            }
        }
    /* large n: a window of neighbours must stay apart (marked in a hash table of 2^18 places) */
    static const uint64_t large[] = {(1 << 20) - 1,        (1 << 20) + 1, UINT64_C(1) << 32, (UINT64_C(1) << 32) + 1,
                                     UINT64_C(6000000000), INT64_MAX,     UINT64_MAX};
    enum { PLACES = 1 << 18, WINDOW = 1 << 16 };
    uint64_t *table = malloc(PLACES * sizeof *table);
    for (size_t c = 0; c < COUNT_OF(large); c++) {
        memset(table, 0xff, PLACES * sizeof *table);
        for (uint64_t i = 0; i < WINDOW; i++) {
            uint64_t image = permute_index(large[c] / 3 + i, large[c], 7, 3);
            assert_true(image < large[c]);
            size_t place = image * UINT64_C(0x9e3779b97f4a7c15) >> 46;
            while (table[place] != UINT64_MAX) {
                assert_true(table[place] != image);
                place = (place + 1) % PLACES;
            }
            table[place] = image;
        }
    }
    free(table);
}

/* Every permutation of few things, and every (index, image) pair of some more, must come about equally often. */
static void permutation_is_even(void **state)
{
    (void)state;
    enum { TRIALS = 24000 };
    int orders[256] = {0}, kinds = 0;
    for (uint64_t epoch = 0; epoch < TRIALS; epoch++) {
        int code = 0;
        for (uint64_t i = 0; i < 4; i++) code = code * 4 + (int)permute_index(i, 4, 99, epoch);
        orders[code]++;
    }
    double chi = 0;
    for (int i = 0; i < 256; i++)
        if (orders[i]) {
            kinds++;
            chi += (orders[i] - TRIALS / 24.0) * (orders[i] - TRIALS / 24.0) / (TRIALS / 24.0);
        }
    assert_int_equal(kinds, 24);
    assert_true(chi < 60); /* 23 degrees of freedom: 60 is beyond 1 in 30000, and the keys are fixed */

    static const uint64_t sizes[] = {2, 3, 5, 7, 10, 17};
    for (size_t s = 0; s < COUNT_OF(sizes); s++) {
        uint64_t n = sizes[s];
        int counts[17][17] = {{0}};
        for (uint64_t seed = 0; seed < TRIALS; seed++)
            for (uint64_t i = 0; i < n; i++) counts[i][permute_index(i, n, seed, 1)]++;
        chi = 0;
        for (uint64_t i = 0; i < n; i++)
            for (uint64_t j = 0; j < n; j++) {
                double expected = (double)TRIALS / (double)n;
                chi += (counts[i][j] - expected) * (counts[i][j] - expected) / expected;
            }
        double freedom = (double)((n - 1) * (n - 1));
        assert_true(chi < freedom + 6 * (freedom < 4 ? 3 : freedom)); /* a crude limit on the deviation */
        assert_true(freedom < 50 || chi < 1.6 * freedom);
    }
    /* other epochs and seeds give other orders */
    int same_epoch = 0, same_seed = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        same_epoch += permute_index(i, 1000, 1, 1) == permute_index(i, 1000, 1, 2);
        same_seed += permute_index(i, 1000, 1, 1) == permute_index(i, 1000, 2, 1);
    }
    assert_true(same_epoch < 10 && same_seed < 10);
    /* these values must never change: checkpoints depend on them */
    static const uint64_t fixed[5] = {836, 749, 612, 44, 526};
    for (uint64_t i = 0; i < 5; i++) assert_int_equal(permute_index(i, 1000, 1234, 1), fixed[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_every_format),
        cmocka_unit_test(documents_of_several_sequences),
        cmocka_unit_test(several_files_are_one_stream),
        cmocka_unit_test(fingerprint_knows_every_shard),
        cmocka_unit_test(fingerprint_knows_tokens_anywhere),
        cmocka_unit_test(a_mask_belongs_to_its_shard),
        cmocka_unit_test(more_shards_than_are_kept_open),
        cmocka_unit_test(shards_that_change_in_use),
        cmocka_unit_test(beyond_four_gigabytes),
        cmocka_unit_test(an_index_too_large_to_check),
        cmocka_unit_test(damaged_megatron_shards),
        cmocka_unit_test(damaged_llmc_shards),
        cmocka_unit_test(absent_and_foreign_files),
        cmocka_unit_test(ids_outside_the_vocabulary),
        cmocka_unit_test(a_shard_that_shrinks_in_use),
        cmocka_unit_test(permutation_is_a_bijection),
        cmocka_unit_test(permutation_is_even),
        cmocka_unit_test(reads_what_tokenize_writes),
    };
    return cmocka_run_group_tests_name("token_set", tests, setup, teardown);
}
