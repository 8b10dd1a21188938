/* metrics.jsonl: what is written can be read back exactly; resume cuts later and torn lines; a new run moves it aside.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/metrics.h"

static char folder[] = "/tmp/ztrain-metrics-XXXXXX";
static char path[128];

static char *read_file(const char *name)
{
    static char text[65536];
    FILE *file = fopen(name, "r");
    if (!file)
        return NULL;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = 0;
    return text;
}

static struct metrics *open_metrics_due(int64_t resume, bool evaluation_due)
{
    struct metrics *metrics = NULL;
    struct error err;
    if (metrics_open(path, resume, evaluation_due, &metrics, &err) != STATUS_OK)
        fail_msg("%s", err.text);
    return metrics;
}

static struct metrics *open_metrics(int64_t resume)
{
    return open_metrics_due(resume, false);
}

static void write_steps(struct metrics *metrics, int64_t from, int64_t to)
{
    struct error err;
    for (int64_t k = from; k <= to; k++) {
        struct step_metrics m = {.step = k, .epoch = 1, .loss = 1.0 / 3.0 / (double)k, .grad_norm = 2.0, .mfu = -1};
        assert_int_equal(metrics_step(metrics, &m, &err), STATUS_OK);
    }
}

static int count_lines(const char *text)
{
    int n = 0;
    for (; *text; text++)
        n += *text == '\n';
    return n;
}

static void test_exact(void **state)
{
    (void)state;
    struct metrics *metrics = open_metrics(-1);
    struct error err;
    struct step_metrics m = {.step = 7,
                             .epoch = 2,
                             .tokens = 1234567890123,
                             .loss = 0.1 + 0.2,
                             .grad_norm = INFINITY,
                             .lr = 1e-3 / 7,
                             .loss_scale = 1,
                             .mfu = -1,
                             .skipped = true};
    assert_int_equal(metrics_step(metrics, &m, &err), STATUS_OK);
    metrics_close(metrics);
    json_t *line = json_loads(read_file(path), 0, NULL);
    assert_non_null(line);
    assert_true(json_real_value(json_object_get(line, "loss")) == 0.1 + 0.2);
    assert_true(json_real_value(json_object_get(line, "lr")) == 1e-3 / 7);
    assert_true(json_is_null(json_object_get(line, "grad_norm")));
    assert_true(json_is_null(json_object_get(line, "mfu")));
    assert_true(json_is_true(json_object_get(line, "skipped")));
    assert_true(json_integer_value(json_object_get(line, "tokens")) == 1234567890123);
    assert_true(json_is_number(json_object_get(json_object_get(line, "seconds"), "forward")));
    json_decref(line);
}

static void test_resume_cuts(void **state)
{
    (void)state;
    struct error err;
    struct metrics *metrics = open_metrics(-1); /* moves test_exact's file aside */
    char aside[160];
    snprintf(aside, sizeof aside, "%s.1", path);
    assert_non_null(read_file(aside));
    write_steps(metrics, 1, 5);
    assert_int_equal(metrics_eval(metrics, 5, 1, 2.5, 100, &err), STATUS_OK);
    write_steps(metrics, 6, 9);
    metrics_close(metrics);
    FILE *torn = fopen(path, "a");
    fputs("{\"step\":10,\"ep", torn);
    fclose(torn);

    metrics = open_metrics(5);
    assert_int_equal(metrics_resume(metrics, "a \"folder\"", 5, &err), STATUS_OK);
    write_steps(metrics, 6, 6);
    metrics_close(metrics);
    char *text = read_file(path);
    assert_int_equal(count_lines(text), 5 + 1 + 1 + 1);
    assert_non_null(strstr(text, "\"eval_loss\":2.5,\"perplexity\":12.182493960703473,\"eval_tokens\":100}\n"));
    assert_non_null(strstr(text, "{\"resumed_from\":\"a \\\"folder\\\"\",\"step\":5}\n{\"step\":6,"));

    metrics = open_metrics(0); /* resume at the beginning: nothing stays */
    metrics_close(metrics);
    assert_int_equal(count_lines(read_file(path)), 0);
}

/* The evaluation of the step that is gone on from is done again: what a killed run wrote of it goes. */
static void test_resume_cuts_an_evaluation_that_is_due(void **state)
{
    (void)state;
    struct error err;
    struct metrics *metrics = open_metrics(-1);
    assert_int_equal(metrics_eval(metrics, 2, 1, 4.5, 100, &err), STATUS_OK);
    write_steps(metrics, 3, 3);
    assert_int_equal(metrics_checkpoint(metrics, "step-00000003", 3, 1, 0.5, &err), STATUS_OK);
    assert_int_equal(metrics_resume(metrics, "step-00000003", 3, &err), STATUS_OK);
    assert_int_equal(metrics_eval(metrics, 3, 1, 2.5, 100, &err), STATUS_OK);
    assert_int_equal(metrics_epoch_end(metrics, 1, 3, 2.25, &err), STATUS_OK);
    metrics_close(metrics);

    metrics_close(open_metrics(3)); /* it is not due: all stays */
    assert_int_equal(count_lines(read_file(path)), 6);
    metrics_close(open_metrics_due(3, true));
    char *text = read_file(path);
    assert_int_equal(count_lines(text), 4);
    assert_non_null(strstr(text, "\"eval_loss\":4.5"));
    assert_null(strstr(text, "\"eval_loss\":2.5"));

    metrics = open_metrics(3); /* an epoch's end without an evaluation: the run goes on without validation data */
    assert_int_equal(metrics_epoch_end(metrics, 1, 3, 2.25, &err), STATUS_OK);
    metrics_close(metrics);
    metrics_close(open_metrics_due(3, true));
    assert_int_equal(count_lines(read_file(path)), 4);
}

static void test_errors(void **state)
{
    (void)state;
    struct metrics *metrics = NULL;
    struct error err;
    assert_int_equal(metrics_open("/nonexistent/metrics.jsonl", -1, false, &metrics, &err), STATUS_CHECKPOINT);
    assert_non_null(strstr(err.text, "cannot open '/nonexistent/metrics.jsonl'"));
    if (access("/dev/full", W_OK) == 0) {
        assert_int_equal(metrics_open("/dev/full", 0, false, &metrics, &err), STATUS_CHECKPOINT); /* cannot be cut */
    }
}

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    char command[256];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_exact), cmocka_unit_test(test_resume_cuts),
                                       cmocka_unit_test(test_resume_cuts_an_evaluation_that_is_due),
                                       cmocka_unit_test(test_errors)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
