/* SPDX-License-Identifier: Apache-2.0 */
/* Losses of preferences: their gradients by finite differences, what they are worth where it is known, and their
 * limits. The figures of TRL are in tests/golden/preferences. */
#include "core/data/preference_loss.h"
#include "tests/unit/fixtures/token_files.h"

enum { PAIRS = 3, ROWS = 31 };

/* Sequences of 5, 4, 6, 2, 6, 6 rows; filler of 2. */
static const int32_t starts[2 * PAIRS + 2] = {0, 5, 9, 15, 17, 23, 29, 31};
static uint8_t completion[ROWS];
static int32_t targets[ROWS], labels[2 * PAIRS];
static float losses[ROWS];
static double references[2 * PAIRS];

static struct batch some_batch(bool all)
{
    for (int i = 0; i < ROWS; i++) losses[i] = (float)(0.2 + 0.1 * ((i * 7) % 11));
    for (int s = 0; s < 2 * PAIRS; s++) {
        labels[s] = s % 4 < 2;
        references[s] = -1.5 - 0.3 * s;
        for (int i = starts[s]; i < starts[s + 1]; i++) {
            completion[i] = i > starts[s] || starts[s + 1] - starts[s] == 2;
            targets[i] = completion[i] || all ? 1 : -1;
        }
    }
    completion[29] = completion[30] = 0;
    targets[29] = targets[30] = -1;
    return (struct batch){.num_seqs = 2 * PAIRS + 1,
                          .num_filler = 2,
                          .num_tokens = ROWS,
                          .step_targets = PAIRS,
                          .step_chosen_tokens = all ? 17 : 14,
                          .targets = targets,
                          .seq_start = starts,
                          .completion = completion,
                          .references = references,
                          .labels = labels};
}

static const struct preference_settings all_losses[] = {
    {.loss = PREFERENCE_SIGMOID, .beta = 0.3},
    {.loss = PREFERENCE_SIGMOID, .beta = 0.3, .label_smoothing = 0.2, .rpo_alpha = 0.7},
    {.loss = PREFERENCE_ROBUST, .beta = 0.5, .label_smoothing = 0.2},
    {.loss = PREFERENCE_HINGE, .beta = 0.4},
    {.loss = PREFERENCE_IPO, .beta = 0.2},
    {.loss = PREFERENCE_SIMPO, .beta = 2, .gamma = 0.5, .label_smoothing = 0.1},
    {.loss = PREFERENCE_ORPO, .beta = 0.4},
    {.loss = PREFERENCE_APO_ZERO, .beta = 0.3},
    {.loss = PREFERENCE_APO_DOWN, .beta = 0.3},
    {.loss = PREFERENCE_KTO, .beta = 0.4, .desirable_weight = 1.5, .undesirable_weight = 0.5},
    {.loss = PREFERENCE_REWARD, .beta = 1},
};

static double loss_of(const struct preference_settings *settings, const struct batch *batch, float *scale,
                      double sums[PREFERENCE_SUMS])
{
    double loss = 0;
    float unused[ROWS];
    memset(sums, 0, PREFERENCE_SUMS * sizeof *sums);
    preference_weigh(settings, batch, losses, 0.1, scale ? scale : unused, &loss, sums);
    return loss;
}

/* The factor of a row is the slope of the loss by the row's own loss. */
static void test_gradients(void **state)
{
    (void)state;
    for (size_t c = 0; c < COUNT_OF(all_losses); c++) {
        const struct preference_settings *settings = &all_losses[c];
        const struct batch batch = some_batch(settings->loss == PREFERENCE_ORPO);
        float scale[ROWS];
        double sums[PREFERENCE_SUMS];
        const float step = 1.0f / 64;
        loss_of(settings, &batch, scale, sums);
        for (int i = 0; i < ROWS; i++) {
            const float kept = losses[i];
            losses[i] = kept + step;
            const double above = loss_of(settings, &batch, NULL, sums);
            losses[i] = kept - step;
            const double below = loss_of(settings, &batch, NULL, sums);
            losses[i] = kept;
            const double slope = (above - below) / (2 * (double)step);
            if (fabs(slope - (double)scale[i]) > 2e-4 + 2e-3 * fabs(slope))
                fail_msg("loss %zu, row %d: %g, expected %g", c, i, (double)scale[i], slope);
        }
    }
}

/* Parts of a batch add up to the whole: the loss does not depend on the accumulation. */
static void test_parts(void **state)
{
    (void)state;
    for (size_t c = 0; c < COUNT_OF(all_losses); c++) {
        const struct batch whole = some_batch(all_losses[c].loss == PREFERENCE_ORPO);
        double sums[PREFERENCE_SUMS], parts[PREFERENCE_SUMS] = {0}, loss = 0;
        float scale[ROWS];
        const double all = loss_of(&all_losses[c], &whole, NULL, sums);
        for (int pair = 0; pair < PAIRS; pair++) {
            struct batch part = whole;
            part.num_seqs = 2;
            part.seq_start += 2 * pair;
            part.references += 2 * pair;
            part.labels += 2 * pair;
            preference_weigh(&all_losses[c], &part, losses, 0.1, scale, &loss, parts);
        }
        assert_true(fabs(loss - all) < 1e-12 * fabs(all) + 1e-12);
        for (int i = 0; i < PREFERENCE_SUMS; i++) assert_true(fabs(parts[i] - sums[i]) < 1e-12);
    }
}

static void test_known_values(void **state)
{
    (void)state;
    struct batch batch = some_batch(false);
    struct preference_settings settings = {.loss = PREFERENCE_SIGMOID, .beta = 1e-12};
    double sums[PREFERENCE_SUMS], values[PREFERENCE_VALUES], kl[2] = {0, 0};
    float scale[ROWS];
    /* without a difference between the answers a pair costs log 2 */
    assert_true(fabs(loss_of(&settings, &batch, scale, sums) - PAIRS * M_LN2) < 1e-9);
    settings.beta = 0.25;
    loss_of(&settings, &batch, scale, sums);
    double chosen = 0, rejected = 0, right = 0;
    for (int s = 0; s < 2 * PAIRS; s++) {
        double logp = 0;
        for (int i = starts[s]; i < starts[s + 1]; i++) logp -= completion[i] ? (double)losses[i] : 0;
        *(s % 2 ? &rejected : &chosen) += 0.25 * (logp - references[s]);
    }
    preference_means(&settings, sums, values);
    assert_true(fabs(values[PREFERENCE_REWARDS_CHOSEN] - chosen / PAIRS) < 1e-12);
    assert_true(fabs(values[PREFERENCE_REWARDS_MARGINS] - (chosen - rejected) / PAIRS) < 1e-12);
    assert_true(isnan(values[PREFERENCE_KL]));
    right = values[PREFERENCE_REWARDS_ACCURACIES] * PAIRS;
    assert_true(right == 0 || right == 1 || right == 2 || right == 3);
    batch.references = NULL; /* equal answers tie, and a tie is not right */
    for (int i = 0; i < ROWS; i++) losses[i] = 0;
    loss_of(&settings, &batch, scale, sums);
    assert_true(sums[PREFERENCE_SUM_ACCURACY] == 0);
    batch = some_batch(false);
    preference_kl(&batch, losses, kl);
    assert_true(kl[1] == PAIRS && isfinite(kl[0]));
    /* an evaluation keeps NLL apart */
    settings = all_losses[1];
    const double loss = loss_of(&settings, &batch, scale, sums);
    double without = 0, apart[PREFERENCE_SUMS] = {0};
    preference_weigh(&settings, &batch, losses, 0, NULL, &without, apart);
    assert_true(fabs(without + PAIRS * preference_nll(&settings, apart) - loss) < 1e-9);
}

/* Far from the reference nothing overflows. */
static void test_extremes(void **state)
{
    (void)state;
    for (size_t c = 0; c < COUNT_OF(all_losses); c++)
        for (int sign = -1; sign <= 1; sign += 2) {
            const struct batch batch = some_batch(all_losses[c].loss == PREFERENCE_ORPO);
            float scale[ROWS];
            double sums[PREFERENCE_SUMS];
            for (int s = 0; s < 2 * PAIRS; s++) references[s] = (s % 2 ? -1 : 1) * sign * 1e6;
            const double loss = loss_of(&all_losses[c], &batch, scale, sums);
            assert_true(isfinite(loss));
            for (int i = 0; i < ROWS; i++) assert_true(isfinite(scale[i]));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_known_values),
        cmocka_unit_test(test_extremes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
