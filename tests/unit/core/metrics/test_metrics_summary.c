/* SPDX-License-Identifier: Apache-2.0 */
/* test_metrics_summary.c: the summary of a finished run, from the lines of all of its starts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/metrics/metrics_summary.h"

static char folder[] = "/tmp/ztrain-summary-XXXXXX";

static struct metrics_summary summarise(const char *text)
{
    char path[128];
    struct metrics_summary summary;
    struct error err;
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    if (metrics_summarise(path, folder, EVAL_METRIC_LOSS, EVAL_MODE_AUTO, &summary, &err) != STATUS_OK)
        fail_msg("%s", err.text);
    return summary;
}

static void make(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(mkdir(path, 0777), 0);
}

#define STEP(step, tokens, rate, seconds)                                                         \
    "{\"step\":" #step ",\"epoch\":1,\"loss\":2.5,\"tokens\":" #tokens ",\"tokens_per_s\":" #rate \
    ",\"seconds\":{\"step\":" #seconds ",\"data\":9}}\n"
#define EVALUATION(step, loss) "{\"step\":" #step ",\"epoch\":1,\"eval_loss\":" #loss ",\"eval_tokens\":9}\n"
#define CHECKPOINT(step) "{\"checkpoint\":\"else/where/step-0" #step "\",\"step\":" #step ",\"bytes\":9}\n"
#define RESUME(step) "{\"resumed_from\":\"x\",\"step\":" #step "}\n"

static void test_over_all_starts(void **state)
{
    (void)state;
    struct metrics_summary s =
        summarise(STEP(1, 100, 50, 2.0) EVALUATION(1, 3.5) CHECKPOINT(1) RESUME(1) STEP(2, 200, 100, 1.0)
                      EVALUATION(2, 2.25) CHECKPOINT(2) "{\"step\":3,\"loss\":torn\n" STEP(3, 300, 50, 2.0)
                          EVALUATION(3, 2.5) EVALUATION(3, null) RESUME(3) STEP(4, 360, 60, 1.0) CHECKPOINT(4)
                              EVALUATION(4, 2.25) "{\"epoch_end\":1,\"step\":4,\"train_loss\":2.0}\n");
    assert_int_equal(s.steps, 4);
    assert_int_equal(s.starts, 3);
    assert_int_equal(s.tokens, 360);
    assert_true(s.seconds == 6.0);
    assert_true(s.best[EVAL_METRIC_LOSS] == 2.25);
    assert_int_equal(s.best_step, 2);
    assert_string_equal(s.best_checkpoint, "");
}

/* The later of two equally near checkpoints; keep_last has deleted the others. */
static void test_the_nearest_checkpoint_that_is_left(void **state)
{
    (void)state;
    const char *text = STEP(9, 9, 9, 1) CHECKPOINT(1) EVALUATION(3, 1.5) CHECKPOINT(3) CHECKPOINT(2) CHECKPOINT(4)
        CHECKPOINT(9) EVALUATION(9, 2.0);
    make("step-01");
    make("step-09");
    assert_string_equal(summarise(text).best_checkpoint, "step-01");
    make("step-02");
    assert_string_equal(summarise(text).best_checkpoint, "step-02");
    make("step-04");
    assert_string_equal(summarise(text).best_checkpoint, "step-04");
    make("step-03");
    struct metrics_summary s = summarise(text);
    assert_string_equal(s.best_checkpoint, "step-03");
    assert_int_equal(s.checkpoint_step, 3);
}

/* A run that branched off: the tokens and steps before it are in another run's file. */
static void test_a_run_that_branched_off(void **state)
{
    (void)state;
    struct metrics_summary s = summarise(RESUME(4) STEP(5, 1000, 40, 0.5) STEP(6, 1020, 40, 0.5));
    assert_int_equal(s.first_step, 5);
    assert_int_equal(s.last_step, 6);
    assert_int_equal(s.starts, 1);
    assert_int_equal(s.missing, 0);
    assert_int_equal(s.tokens, 40);
    assert_true(isnan(s.best[EVAL_METRIC_LOSS]) && s.best_step == 0);
}

/* A disk was full, or a file was lost: steps without a line count neither as steps nor as tokens. */
static void test_missing_steps(void **state)
{
    (void)state;
    struct metrics_summary s = summarise(STEP(1, 100, 100, 1.0) STEP(2, 200, 100, 1.0) CHECKPOINT(5) RESUME(5)
                                             STEP(6, 600, 50, 2.0) STEP(7, 700, 100, 1.0));
    assert_int_equal(s.steps, 4);
    assert_int_equal(s.missing, 3);
    assert_int_equal(s.tokens, 400);
    assert_true(s.seconds == 5.0);
    s = summarise(CHECKPOINT(5) RESUME(5) STEP(6, 600, 50, 2.0));
    assert_int_equal(s.steps, 1);
    assert_int_equal(s.missing, 5);
    assert_int_equal(s.tokens, 100);
    assert_int_equal(s.starts, 2);
}

static void test_nothing_to_say(void **state)
{
    (void)state;
    assert_int_equal(summarise("").steps, 0);
    assert_int_equal(summarise("[]\n\n{}\nnull\n{\"loss\":").steps, 0);
    struct metrics_summary s;
    struct error err;
    assert_int_equal(metrics_summarise("/nowhere/metrics.jsonl", folder, EVAL_METRIC_LOSS, EVAL_MODE_AUTO, &s, &err),
                     STATUS_CHECKPOINT);
    assert_non_null(strstr(err.text, "/nowhere/metrics.jsonl"));
}

static int remove_folder(void **state)
{
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_over_all_starts),         cmocka_unit_test(test_the_nearest_checkpoint_that_is_left),
        cmocka_unit_test(test_a_run_that_branched_off), cmocka_unit_test(test_missing_steps),
        cmocka_unit_test(test_nothing_to_say),
    };
    if (!mkdtemp(folder)) return 1;
    return cmocka_run_group_tests(tests, NULL, remove_folder);
}
