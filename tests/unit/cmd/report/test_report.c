/* SPDX-License-Identifier: Apache-2.0 */
/* The reading and thinning of `ztrain report`. */
#include "cmd/report/run_metrics.c"
#include "cmd/report/terminal.c"
#include "cmd/report/thin.c"
#include "core/spec/spec.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- thinning ------------------------------------------------------------ */

/* A million rows with one spike up, one down and one NaN in 64 buckets. */
static void test_a_million_rows_keep_their_spikes(void **state)
{
    (void)state;
    enum { ROWS = 1000000, UP = 123456, DOWN = 123457, BAD = 777777 };
    struct thin thin;
    thin_init(&thin, 2, 64);
    for (int64_t i = 1; i <= ROWS; i++) {
        const double values[] = {i == UP ? 50 : i == DOWN ? -50 : i == BAD ? NAN : 1, (double)i};
        thin_add(&thin, i, values, i == 10 ? 1 : 3);
    }
    assert_true(thin.count > 32 - 1 && thin.count <= 64);
    const struct thin_cell all = thin_total(&thin, 0), second = thin_total(&thin, 1);
    assert_true(all.max == 50 && all.min == -50 && all.bad == 1 && all.count == ROWS - 1);
    assert_true(second.count == ROWS - 1 && second.bad == 0);
    assert_true(second.sum == (double)ROWS * (ROWS + 1) / 2 - 10);
    int64_t next = 1, rows = 0;
    for (int b = 0; b < thin.count; b++) {
        const struct thin_cell *cell = thin_at(&thin, b, 0);
        const struct thin_bucket *bucket = &thin.buckets[b];
        assert_int_equal(bucket->first, next);
        assert_true(b + 1 == thin.count || bucket->rows == thin.per);
        assert_int_equal(cell->max == 50, bucket->first <= UP && UP <= bucket->last);
        assert_int_equal(cell->min == -50, bucket->first <= DOWN && DOWN <= bucket->last);
        assert_int_equal(cell->bad, bucket->first <= BAD && BAD <= bucket->last);
        assert_int_equal(cell->max_step, cell->max == 50 ? UP : bucket->first);
        assert_int_equal(cell->min_step, cell->min == -50 ? DOWN : bucket->first == BAD ? BAD + 1 : bucket->first);
        next = bucket->last + 1;
        rows += bucket->rows;
    }
    assert_true(next == ROWS + 1 && rows == ROWS);
    thin_reduce(&thin, 5);
    const struct thin_cell fewer = thin_total(&thin, 0);
    assert_true(fewer.max_step == UP && fewer.min_step == DOWN);
    assert_true(thin.count <= 5 && fewer.max == 50 && fewer.min == -50 && fewer.bad == 1 && fewer.sum == all.sum);
    thin_release(&thin);
}

static void test_few_rows_stay_as_they_are(void **state)
{
    (void)state;
    struct thin thin;
    thin_init(&thin, 1, 4);
    const double values[] = {3, INFINITY, 5, 7};
    for (int i = 0; i < 4; i++) thin_add(&thin, 10 * i, &values[i], 1);
    assert_int_equal(thin.count, 4);
    assert_true(thin_at(&thin, 0, 0)->min == 3 && thin_at(&thin, 0, 0)->max == 3);
    assert_true(thin_at(&thin, 1, 0)->bad == 1 && isnan(thin_mean(thin_at(&thin, 1, 0))));
    thin_add(&thin, 40, values, 1); /* merges: (3, inf), (5, 7), (3) */
    assert_int_equal(thin.count, 3);
    assert_true(thin_at(&thin, 0, 0)->count == 1 && thin_at(&thin, 0, 0)->bad == 1);
    assert_true(thin_mean(thin_at(&thin, 1, 0)) == 6 && thin.buckets[1].first == 20 && thin.buckets[1].last == 30);
    assert_true(thin.buckets[2].rows == 1 && thin_at(&thin, 2, 0)->max == 3);
    thin_release(&thin);
}

/* ---- lines --------------------------------------------------------------- */

static const char STEP_LINE[] =
    "{\"step\":12,\"epoch\":2,\"loss\":3.25,\"grad_norm\":null,\"lr\":1.5e-05,\"loss_scale\":65536,\"skipped\":true,"
    "\"tokens\":4096,\"targets\":2048,\"tokens_per_s\":1234.5,\"mfu\":null,\"memory_bytes\":{\"device\":7,\"host\":9},"
    "\"seconds\":{\"step\":0.25,\"data\":0.01,\"forward\":null,\"backward\":0.1,\"reduce\":0,\"optimizer\":-0.5,"
    "\"checkpoint\":2}}";

static void test_the_line_of_a_step(void **state)
{
    (void)state;
    double values[STEP_SERIES];
    json_t *object = json_loads(STEP_LINE, 0, NULL);
    const uint64_t present = metrics_step_values(object, values);
    json_decref(object);
    assert_true(values[STEP_LOSS] == 3.25 && values[STEP_LR] == 1.5e-05 && values[STEP_HOST] == 9);
    assert_true(values[STEP_SECONDS] == 0.25 && values[STEP_CHECKPOINT] == 2 && values[STEP_OPTIMIZER] == -0.5);
    assert_true(present >> STEP_GRAD_NORM & 1 && isnan(values[STEP_GRAD_NORM])); /* not finite */
    assert_false(present >> STEP_MFU & 1 || present >> STEP_FORWARD & 1);        /* unknown */
}

static void add_bytes(struct run_metrics *metrics, const char *text, size_t bytes)
{
    struct metrics_reader reader = {.file = tmpfile(), .path = "x"};
    assert_true(reader.file && fwrite(text, 1, bytes, reader.file) == bytes && fputc('\n', reader.file) == '\n');
    rewind(reader.file);
    while (metrics_reader_next(&reader)) take_line(metrics, reader.object);
    metrics_reader_close(&reader);
}

static void add(struct run_metrics *metrics, const char *text)
{
    add_bytes(metrics, text, strlen(text));
}

/* Torn lines, and steps that are none, are damaged; a loss without targets is absent. */
static void test_lines_that_are_no_steps(void **state)
{
    (void)state;
    static const char *const wrong[] = {"{\"step\":1,\"loss\":0x10}",
                                        "{\"step\":1,\"loss\":1e999}",
                                        "{\"step\":1.5,\"loss\":1}",
                                        "{\"step\":-4,\"loss\":1}",
                                        "{\"loss\":1}",
                                        "{}",
                                        ""};
    struct run_metrics m;
    run_metrics_init(&m, "x", EVAL_METRIC_LOSS, EVAL_MODE_AUTO);
    for (size_t i = 0; i < COUNT_OF(wrong); i++) add(&m, wrong[i]);
    for (size_t n = 0; n + 1 < sizeof STEP_LINE; n++) add_bytes(&m, STEP_LINE, n);
    assert_true(m.damaged == m.lines && m.lines == COUNT_OF(wrong) + sizeof STEP_LINE - 1 && !m.step_lines);
    static const char empty[] = "{\"step\":1,\"loss\":null,\"targets\":0,\"seconds\":{\"step\":true}}";
    add(&m, empty);
    assert_true(m.step_lines == 1 && !thin_at(&m.steps, 0, STEP_LOSS)->bad && m.seconds == 0);
    run_metrics_release(&m);
}

/* ---- metrics ----------------------------------------------------------- */

static void test_lines_of_all_kinds(void **state)
{
    (void)state;
    struct run_metrics h;
    run_metrics_init(&h, "x", EVAL_METRIC_LOSS, EVAL_MODE_AUTO);
    add(&h, "{\"step\":11,\"epoch\":1,\"loss\":4,\"tokens\":10,\"seconds\":{\"step\":0.5}}");
    add(&h, STEP_LINE);
    add(&h, STEP_LINE); /* the same step again */
    add(&h, "{\"step\":12,\"epoch\":2,\"eval_loss\":3.5,\"perplexity\":33.1}");
    add(&h, "{\"step\":13,\"epoch\":2,\"eval_loss\":3.5,\"perplexity\":33.1}");
    add(&h, "{\"step\":14,\"epoch\":2,\"eval_loss\":null,\"perplexity\":null}");
    add(&h, "{\"checkpoint\":\"runs/a/checkpoints/step-00000012\",\"step\":12,\"bytes\":1,\"seconds_stalled\":null}");
    add(&h, "{\"resumed_from\":\"x/step-00000012\",\"step\":12}");
    add(&h, "{\"restart\":1,\"step\":12,\"exit_code\":6,\"cause\":\"gone\"}");
    add(&h, "{\"epoch_end\":2,\"step\":12,\"train_loss\":3}");
    add(&h, "{\"early_stop\":\"eval_loss\",\"step\":12,\"best\":1,\"evaluations\":3}");
    add(&h, "{\"step\":12,\"epoch\":2,\"sample\":0,\"prompt\":\"p\",\"text\":\"t\"}");
    add(&h, "{\"step\":12,\"epoch\":2,\"sample\":2,\"prompt_tokens\":[7,8],\"tokens\":[4,5]}");
    add(&h, "{\"step\":12,\"something\":\"new\"}");
    add(&h, "garbage");
    add(&h, "{\"loss\":1}");
    add(&h, "[1]");
    assert_true(h.lines == 17 && h.damaged == 3 && h.first_damaged == 15 && h.unordered == 1);
    assert_true(h.step_lines == 2 && h.last_step == 12 && h.tokens == 4096 && h.seconds == 0.75 && h.epoch == 2);
    assert_true(h.best == 3.5 && h.best_step == 12 && h.evals.count == 3 && thin_at(&h.evals, 2, EVAL_LOSS)->bad == 1);
    assert_string_equal(h.events[EVENT_CHECKPOINT].items[0].text, "step-00000012");
    assert_string_equal(h.events[EVENT_RESTART].items[0].text, "exit code 6: gone");
    assert_true(h.events[EVENT_SKIPPED].total == 1 && h.events[EVENT_EPOCH].total == 1 && h.steps_per_epoch == 6);
    assert_true(h.events[EVENT_EARLY].total == 1 && h.events[EVENT_RESUME].items[0].tokens == 4096);
    assert_string_equal(report_sample_at(&h, 0)->text, "t");
    assert_string_equal(report_sample_at(&h, 1)->text, "4, 5");
    assert_string_equal(report_sample_at(&h, 1)->prompt, "7, 8");
    assert_true(report_sample_at(&h, 1)->ids && report_sample_at(&h, 1)->number == 2 && !report_sample_at(&h, 2));
    run_metrics_release(&h);
}

/* More events and samples than are kept: the newest samples, and events from all parts of the run. */
static void test_events_and_samples_are_thinned(void **state)
{
    (void)state;
    struct run_metrics h;
    char text[128];
    run_metrics_init(&h, "x", EVAL_METRIC_ACCURACY, EVAL_MODE_AUTO);
    for (int i = 1; i <= 3000; i++) {
        snprintf(text, sizeof text, "{\"checkpoint\":\"step-%d\",\"step\":%d}", i, i);
        add(&h, text);
        snprintf(text, sizeof text, "{\"sample\":0,\"step\":%d,\"prompt\":\"\",\"text\":\"\"}", i);
        add(&h, text);
    }
    const struct report_events *events = &h.events[EVENT_CHECKPOINT];
    assert_true(events->total == 3000 && events->count <= REPORT_EVENTS && events->count > REPORT_EVENTS / 2);
    for (int i = 0; i < events->count; i++) assert_int_equal(events->items[i].step, 1 + i * events->stride);
    assert_true(report_sample_at(&h, 0)->step == 3000 - REPORT_SAMPLES + 1 && h.num_samples == 3000);
    assert_true(report_sample_at(&h, REPORT_SAMPLES - 1)->step == 3000 && !report_sample_at(&h, REPORT_SAMPLES));
    run_metrics_release(&h);
}

/* A checkpoint that was written while training went on stands where its step was, also between merged steps. */
static void test_a_late_checkpoint_stands_at_its_step(void **state)
{
    (void)state;
    for (int steps = 100; steps <= 10 * REPORT_BUCKETS; steps += 10 * REPORT_BUCKETS - 100) {
        struct run_metrics h;
        char text[128];
        run_metrics_init(&h, "x", EVAL_METRIC_LOSS, EVAL_MODE_AUTO);
        for (int i = 1; i <= steps; i++) {
            snprintf(text, sizeof text, "{\"step\":%d,\"epoch\":1,\"loss\":4,\"tokens\":%d,\"seconds\":{\"step\":0.5}}",
                     i, i * 32);
            add(&h, text);
        }
        const int saved[] = {1, steps / 3, steps - 1, steps};
        for (int i = 0; i < 4; i++) {
            snprintf(text, sizeof text, "{\"checkpoint\":\"step-%d\",\"step\":%d}", saved[i], saved[i]);
            add(&h, text);
            const struct report_event *event = &h.events[EVENT_CHECKPOINT].items[i];
            assert_true(event->step == saved[i] && event->tokens == saved[i] * 32 && event->seconds == 0.5 * saved[i]);
        }
        run_metrics_release(&h);
    }
}

static void write_file(const char *path, const char *mode, const char *text)
{
    FILE *file = fopen(path, mode);
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

/* A file that grows, whose last line is torn for a while, and that a resume replaces. */
static void test_a_file_that_grows_and_is_replaced(void **state)
{
    (void)state;
    char folder[] = "/tmp/test_report_XXXXXX", path[64], other[64];
    struct run_metrics h;
    struct error err;
    bool changed;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    snprintf(other, sizeof other, "%s/other", folder);
    run_metrics_init(&h, path, EVAL_METRIC_LOSS, EVAL_MODE_AUTO);
    assert_int_equal(run_metrics_read(&h, &changed, &err), STATUS_CHECKPOINT);
    write_file(path, "w", "{\"step\":1,\"loss\":5}\n{\"step\":2,\"lo");
    assert_int_equal(run_metrics_read(&h, &changed, &err), STATUS_OK);
    assert_true(changed && h.torn && h.last_step == 1 && h.damaged == 0);
    assert_int_equal(run_metrics_read(&h, &changed, &err), STATUS_OK);
    assert_false(changed);
    write_file(path, "a", "ss\":4}\n\n");
    assert_int_equal(run_metrics_read(&h, &changed, &err), STATUS_OK);
    assert_true(changed && !h.torn && h.last_step == 2 && h.damaged == 1 && h.last[STEP_LOSS] == 4);
    write_file(other, "w", "{\"step\":1,\"loss\":5}\n{\"step\":2,\"loss\":9}\n{\"step\":3,\"loss\":8}\n");
    assert_int_equal(rename(other, path), 0);
    assert_int_equal(run_metrics_read(&h, &changed, &err), STATUS_OK);
    assert_true(changed && h.last_step == 3 && h.damaged == 0 && h.step_lines == 3 &&
                thin_at(&h.steps, 1, STEP_LOSS)->max == 9);
    run_metrics_release(&h);
    unlink(path);
    rmdir(folder);
}

/* ---- text ---------------------------------------------------------------- */

static void test_a_spec_as_pairs(void **state)
{
    (void)state;
    char path[] = "/tmp/test_report_XXXXXX";
    json_t *pairs;
    struct error err;
    close(mkstemp(path));
    write_file(path, "w", "a:\n  b: 1\n  c: [1, {d: x}]\n  # e: 5\nf: 'two words'\ng: {h: 0.5}\n");
    assert_int_equal(spec_pairs_read(&pairs, path, &err), STATUS_OK);
    assert_int_equal(json_object_size(pairs), 4);
    assert_string_equal(spec_pairs_find(pairs, "a.b"), "1");
    assert_string_equal(spec_pairs_find(pairs, "a.c"), "[1, {d: x}]");
    assert_string_equal(spec_pairs_find(pairs, "f"), "two words");
    assert_string_equal(spec_pairs_find(pairs, "g.h"), "0.5");
    assert_null(spec_pairs_find(pairs, "e"));
    json_decref(pairs);
    static const char *const wrong[] = {"",     "- a\n",       "a: [1\n", "a: b: c\n", "a: &x 1\nb: *x\n",
                                        "\x01", "? [a]\n: 1\n"};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        write_file(path, "w", wrong[i]);
        assert_int_equal(spec_pairs_read(&pairs, path, &err), STATUS_CHECKPOINT);
        assert_null(pairs);
    }
    unlink(path);
    assert_int_equal(spec_pairs_read(&pairs, path, &err), STATUS_CHECKPOINT);
}

static void test_figures(void **state)
{
    (void)state;
    assert_string_equal(FIGURE(plain, 3.21578), "3.2158");
    assert_string_equal(FIGURE(plain, 0.0003), "0.0003");
    assert_string_equal(FIGURE(plain, NAN), "-");
    assert_string_equal(FIGURE(si, 124439808), "124.4 M");
    assert_string_equal(FIGURE(si, 999.7), "1.00 k");
    assert_string_equal(FIGURE(si, 5), "5");
    assert_string_equal(FIGURE(bytes, 1.5e9), "1.50 GB");
    assert_string_equal(FIGURE(percent, 0.4125), "41.2 %");
    assert_string_equal(FIGURE(count, 1234567), "1,234,567");
    assert_string_equal(FIGURE(count, 100), "100");
    assert_string_equal(FIGURE(count, -1000), "-1,000");
    assert_string_equal(FIGURE(time, 3753), "1:02:33");
    assert_string_equal(FIGURE(time, 59.6), "1:00");
    assert_string_equal(FIGURE(time, INFINITY), "-");
    assert_string_equal(FIGURE(time, NAN), "-");
    assert_string_equal(FIGURE(time, 86399), "23:59:59");
    assert_string_equal(FIGURE(time, 100000), "1 d 3:46:40");
    assert_string_equal(FIGURE(time, 1.7e308), "11574074074 d 1:46:40");
}

static void test_sparklines(void **state)
{
    (void)state;
    struct thin thin;
    thin_init(&thin, 1, 8);
    for (int i = 0; i < 8; i++) {
        const double value = i == 6 ? NAN : i;
        thin_add(&thin, i, &value, i != 5);
    }
    char *blocks = sparkline(&thin, 0, 100, false, true), *signs = sparkline(&thin, 0, 4, false, false);
    assert_string_equal(blocks, "▁▂▃▄▅ ×█");
    assert_string_equal(signs, "_:=!");
    free(blocks);
    free(signs);
    thin_release(&thin);
}

/* What rounding alone tells apart is one height, as on the page; a little more is not. */
static void test_sparklines_of_constant_values(void **state)
{
    (void)state;
    static const struct {
        double base, step;
        bool log_scale;
        const char *line;
    } cases[] = {{0.1, 1e-17, false, "----"}, {3e9, 1e-6, false, "----"}, {5, 1e-10, true, "----"},
                 {-2, 1e-10, false, "----"},  {0.1, 1e-9, false, "_:+#"}, {5, 1e-7, true, "_:+#"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct thin thin;
        thin_init(&thin, 1, 4);
        for (int k = 0; k < 4; k++) {
            const double value = cases[i].base + k * cases[i].step;
            thin_add(&thin, k, &value, 1);
        }
        char *line = sparkline(&thin, 0, 4, cases[i].log_scale, false);
        assert_string_equal(line, cases[i].line);
        free(line);
        thin_release(&thin);
    }
}

/* A damaged line may have any number: neither a difference nor a sum of the values may lead out of the signs. */
static void test_sparklines_of_extreme_values(void **state)
{
    (void)state;
    static const struct {
        double values[4];
        const char *line;
        bool log_scale;
    } cases[] = {
        {{-1.7e308, 1.7e308, -1.7e308, 1.7e308}, "_#_#", false},
        {{-1.7e308, 0, 1.7e308, 1e308}, "_-#*", false},
        {{5e-324, 1.7e308, 5e-324, 1.7e308}, "_#_#", true},
        {{1, 1, 1, 1}, "----", false},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct thin thin;
        thin_init(&thin, 1, 4);
        for (int v = 0; v < 4; v++) thin_add(&thin, v, &cases[i].values[v], 1);
        char *line = sparkline(&thin, 0, 4, cases[i].log_scale, false);
        assert_string_equal(line, cases[i].line);
        free(line);
        line = sparkline(&thin, 0, 1, cases[i].log_scale, false); /* sums of all values, which may overflow */
        assert_int_equal(strlen(line), 1);
        free(line);
        thin_release(&thin);
    }
    struct thin sums; /* a mean of inf - inf */
    thin_init(&sums, 1, 2);
    const double values[] = {1.7e308, 1.7e308, -1.7e308, -1.7e308};
    for (int v = 0; v < 4; v++) thin_add(&sums, v, &values[v], 1);
    char *both = sparkline(&sums, 0, 2, false, false), *one = sparkline(&sums, 0, 1, false, false);
    assert_string_equal(both, "#_");
    assert_string_equal(one, "!");
    free(both);
    free(one);
    thin_release(&sums);
}

/* Tokens and seconds beyond what the sums hold. */
static void test_a_line_with_extreme_values(void **state)
{
    (void)state;
    struct run_metrics h;
    run_metrics_init(&h, "x", EVAL_METRIC_LOSS, EVAL_MODE_AUTO);
    add(&h, "{\"step\":1,\"loss\":1,\"tokens\":1e300,\"seconds\":{\"step\":1e308}}");
    assert_true(h.tokens == 9000000000000000000 && h.seconds == 1e15 && h.last[STEP_TOKENS] == 9e18);
    add(&h, "{\"step\":2,\"loss\":1,\"tokens\":-1e300,\"seconds\":{\"step\":1e308}}");
    assert_true(h.tokens == 0 && h.seconds == 1e15 && h.step_lines == 2 && h.damaged == 0);
    run_metrics_release(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_million_rows_keep_their_spikes),
        cmocka_unit_test(test_few_rows_stay_as_they_are),
        cmocka_unit_test(test_the_line_of_a_step),
        cmocka_unit_test(test_lines_that_are_no_steps),
        cmocka_unit_test(test_lines_of_all_kinds),
        cmocka_unit_test(test_events_and_samples_are_thinned),
        cmocka_unit_test(test_a_late_checkpoint_stands_at_its_step),
        cmocka_unit_test(test_a_file_that_grows_and_is_replaced),
        cmocka_unit_test(test_a_spec_as_pairs),
        cmocka_unit_test(test_figures),
        cmocka_unit_test(test_sparklines),
        cmocka_unit_test(test_sparklines_of_constant_values),
        cmocka_unit_test(test_sparklines_of_extreme_values),
        cmocka_unit_test(test_a_line_with_extreme_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
