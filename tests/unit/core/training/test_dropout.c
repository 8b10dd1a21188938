/* SPDX-License-Identifier: Apache-2.0 */
/* test_dropout.c: the statistics of dropout's masks. The ops' tests compare the masks with a reference. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

#include "core/training/dropout.h"

enum { TOKENS = 2000, BLOCKS = 64, COLUMNS = BLOCKS * DROPOUT_BLOCK };

/* Fills one token's row of factors. */
static void row_of(const struct dropout *dropout, uint64_t token, double *row)
{
    for (int block = 0; block < BLOCKS; block++) {
        uint32_t words[4];
        dropout_words(dropout, token, (uint32_t)block, 0, words);
        for (int e = 0; e < DROPOUT_BLOCK; e++)
            row[block * DROPOUT_BLOCK + e] = dropout_keeps(dropout, words, e) ? (double)dropout->scale : 0;
    }
}

/* A factor has mean 1 and variance rate / (1 - rate), and neighbours are not correlated. */
static void test_mean_and_variance(void **state)
{
    (void)state;
    static const double rates[] = {0.1, 0.5, 0.9};
    static double row[COLUMNS], before[COLUMNS];
    for (int r = 0; r < 3; r++) {
        const struct dropout dropout = dropout_of(rates[r], 1234, DROPOUT_MLP_OUTPUT, 7);
        const double rate = dropout.threshold / 65536.0, variance = rate / (1 - rate), n = TOKENS * COLUMNS;
        double sum = 0, squares = 0, beside = 0, above = 0;
        for (uint64_t token = 0; token < TOKENS; token++) {
            row_of(&dropout, token + ((uint64_t)5 << 32), row);
            for (int i = 0; i < COLUMNS; i++) {
                sum += row[i];
                squares += (row[i] - 1) * (row[i] - 1);
                beside += i ? (row[i] - 1) * (row[i - 1] - 1) : 0;
                above += token ? (row[i] - 1) * (before[i] - 1) : 0;
                before[i] = row[i];
            }
        }
        assert_true(fabs(sum / n - 1) < 5 * sqrt(variance / n));
        assert_true(fabs(squares / n / variance - 1) < 0.02);
        assert_true(fabs(beside / n) < 5 * variance / sqrt(n) && fabs(above / n) < 5 * variance / sqrt(n));
    }
}

/* Seed, kind, layer and token give other masks. */
static void test_key(void **state)
{
    (void)state;
    const struct dropout dropouts[] = {
        dropout_of(0.5, 1, DROPOUT_EMBEDDING, 0),        dropout_of(0.5, 2, DROPOUT_EMBEDDING, 0),
        dropout_of(0.5, 1, DROPOUT_ATTENTION_OUTPUT, 1), dropout_of(0.5, 1, DROPOUT_MLP_OUTPUT, 1),
        dropout_of(0.5, 1, DROPOUT_MLP_OUTPUT, 2),
    };
    static double a[COLUMNS], b[COLUMNS];
    for (int i = 0; i < 5; i++) {
        for (int j = 0; j <= i; j++) {
            int same = 0;
            row_of(&dropouts[i], 3, a);
            row_of(&dropouts[j], i == j ? 4 : 3, b);
            for (int c = 0; c < COLUMNS; c++) same += a[c] == b[c];
            assert_true(abs(same - COLUMNS / 2) < 5 * sqrt(COLUMNS) / 2);
        }
    }
}

static void test_limits(void **state)
{
    (void)state;
    const struct dropout none = dropout_of(0, 1, DROPOUT_EMBEDDING, 0), all = dropout_of(1, 1, DROPOUT_EMBEDDING, 0);
    double row[COLUMNS];
    assert_int_equal(none.threshold, 0);
    assert_true(none.scale == 1);
    row_of(&all, 9, row);
    for (int i = 0; i < COLUMNS; i++) assert_true(row[i] == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_mean_and_variance), cmocka_unit_test(test_key),
                                       cmocka_unit_test(test_limits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
