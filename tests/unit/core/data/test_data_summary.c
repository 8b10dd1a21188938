/* SPDX-License-Identifier: Apache-2.0 */
/* test_data_summary.c: lengths against the definition of a quantile, and tokens against shards whose contents are
 * known.
 */
#include "core/data/data_summary.h"
#include "tests/unit/fixtures/token_files.h"

/* The least length that at least `percent` of all are not longer than. */
static int64_t plainly(const int64_t *lengths, int64_t count, int percent)
{
    int64_t least = INT64_MAX;
    for (int64_t i = 0; i < count; i++) {
        int64_t within = 0;
        for (int64_t j = 0; j < count; j++) within += lengths[j] <= lengths[i];
        if (100 * within >= percent * count && lengths[i] < least) least = lengths[i];
    }
    return least;
}

static void quantiles_are_lengths(void **state)
{
    (void)state;
    enum { MOST = 420 };
    uint64_t random = 1;
    for (int64_t count = 1; count <= MOST; count += count < 12 ? 1 : 17) {
        int64_t lengths[MOST] = {0}, sorted[MOST] = {0}, longer = 0;
        struct length_summary summary;
        for (int64_t i = 0; i < count; i++) {
            random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
            lengths[i] = sorted[i] = (int64_t)(random >> 58);
            longer += lengths[i] > 40;
        }
        length_summary_of(sorted, count, 40, &summary);
        assert_int_equal(summary.median, plainly(lengths, count, 50));
        assert_int_equal(summary.p90, plainly(lengths, count, 90));
        assert_int_equal(summary.p99, plainly(lengths, count, 99));
        assert_int_equal(summary.least, sorted[0]);
        assert_int_equal(summary.most, plainly(lengths, count, 100));
        assert_int_equal(summary.longer, longer);
        length_summary_of(sorted, count, 0, &summary);
        assert_int_equal(summary.longer, 0);
    }
}

/* Documents that are longer than a piece, empty, at the end, and without anything to learn. */
static void tokens_are_counted(void **state)
{
    (void)state;
    enum { LONG = 40000 };
    static const int lengths[] = {3, 0, LONG, 5, 4, 0};
    static unsigned char mask[LONG + 12];
    struct data_summary summary;
    struct error err;
    megatron("sum", 2, lengths, COUNT_OF(lengths), 0, 5000);
    struct token_set *set = open_one("sum");
    assert_int_equal(data_summary_read(set, 4, &summary, &err), STATUS_OK);
    assert_int_equal(summary.documents, 6);
    assert_int_equal(summary.tokens, LONG + 12);
    assert_int_equal(summary.largest_id, 4999);
    assert_int_equal(summary.learned, LONG + 12);
    assert_int_equal(summary.unlearned, 2);
    assert_int_equal(summary.lengths.longer, 2);
    token_set_close(set);

    mask[1] = mask[3 + LONG - 1] = mask[3 + LONG] = 1; /* of the first, the long one, and the next */
    write_file("sum.mask", mask, sizeof mask);
    set = open_one("sum");
    assert_int_equal(data_summary_read(set, 0, &summary, &err), STATUS_OK);
    assert_int_equal(summary.learned, 3);
    assert_int_equal(summary.unlearned, 3);
    mask[LONG] = 2;
    token_set_close(set);
    write_file("sum.mask", mask, sizeof mask);
    set = open_one("sum");
    assert_int_equal(data_summary_read(set, 0, &summary, &err), STATUS_DATA);
    assert_non_null(strstr(err.text, "sum.mask"));
    token_set_close(set);
}

static void labels_are_counted(void **state)
{
    (void)state;
    int32_t of[] = {2, 0, 2, 5};
    const struct label_set labels = {.documents = COUNT_OF(of), .labels = of, .classes = 7};
    int64_t *counts = data_summary_labels(&labels);
    static const int64_t expected[] = {1, 0, 2, 0, 0, 1, 0};
    assert_memory_equal(counts, expected, sizeof expected);
    free(counts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantiles_are_lengths),
        cmocka_unit_test(tokens_are_counted),
        cmocka_unit_test(labels_are_counted),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
