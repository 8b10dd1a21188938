/* SPDX-License-Identifier: Apache-2.0 */
/* test_metrics.c: values in metrics.jsonl can be read back exactly; a resume leaves out later, damaged and torn lines
 * and keeps the former file; a new run moves it aside. */
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
#include <sys/stat.h>
#include <unistd.h>

#include "core/faults.h"
#include "core/metrics/metrics.h"

static char folder[] = "/tmp/ztrain-metrics-XXXXXX";
static char path[128];

static char *read_file(const char *name)
{
    static char text[65536];
    FILE *file = fopen(name, "r");
    if (!file) return NULL;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = 0;
    return text;
}

static char *read_number(int number)
{
    char name[160];
    snprintf(name, sizeof name, "%s.%d", path, number);
    return read_file(name);
}

static int free_number(void)
{
    int number = 1;
    while (metrics_history_number(path, number) == METRICS_NUMBER_TAKEN) number++;
    return number;
}

/* Resumes from the checkpoint of that step. */
static struct metrics *resume_metrics(int64_t step, bool evaluation_due)
{
    struct metrics *metrics = NULL;
    struct error err;
    char name[64];
    snprintf(name, sizeof name, "runs/x/checkpoints/step-%lld", (long long)step);
    struct metrics_history history = {.step = step,
                                      .evaluation_due = evaluation_due,
                                      .checkpoint = name,
                                      .bytes = 100 + step,
                                      .former = free_number()};
    if (metrics_open(path, &history, &metrics, &err) != STATUS_OK) fail_msg("%s", err.text);
    return metrics;
}

static struct metrics *new_metrics(void)
{
    struct metrics *metrics = NULL;
    struct error err;
    if (metrics_open(path, NULL, &metrics, &err) != STATUS_OK) fail_msg("%s", err.text);
    return metrics;
}

static void write_checkpoint(struct metrics *metrics, int64_t step)
{
    struct error err;
    char name[64];
    snprintf(name, sizeof name, "runs/x/checkpoints/step-%lld", (long long)step);
    assert_int_equal(metrics_checkpoint(metrics, name, step, 100 + step, 0.5, 0.75, &err), STATUS_OK);
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
    for (; *text; text++) n += *text == '\n';
    return n;
}

static void test_exact(void **state)
{
    (void)state;
    struct metrics *metrics = new_metrics();
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
    struct metrics *metrics = new_metrics(); /* moves test_exact's file aside */
    char aside[160];
    snprintf(aside, sizeof aside, "%s.1", path);
    assert_non_null(read_file(aside));
    write_steps(metrics, 1, 5);
    assert_int_equal(metrics_eval(metrics, 5, 1, 2.5, 100, NULL, NULL, &err), STATUS_OK);
    write_steps(metrics, 6, 9);
    metrics_close(metrics);
    FILE *torn = fopen(path, "a");
    fputs("{\"step\":10,\"ep", torn);
    fclose(torn);

    char *before = strdup(read_file(path));
    metrics = resume_metrics(5, false);
    assert_int_equal(metrics_resume(metrics, "a \"folder\"", 5, 2, &err), STATUS_OK);
    assert_int_equal(metrics_kernels_changed(metrics, "isa: avx512, now avx2", 5, &err), STATUS_OK);
    write_steps(metrics, 6, 6);
    metrics_close(metrics);
    char *text = read_file(path);
    assert_int_equal(count_lines(text), 5 + 1 + 1 + 1 + 1 + 1);
    assert_non_null(strstr(text, "\"eval_loss\":2.5,\"perplexity\":12.182493960703473,\"eval_tokens\":100}\n"));
    assert_non_null(strstr(text, "{\"resumed_from\":\"a \\\"folder\\\"\",\"step\":5,\"ranks\":2}\n"
                                 "{\"kernels_changed\":\"isa: avx512, now avx2\",\"step\":5}\n{\"step\":6,"));
    assert_string_equal(read_number(2), before);
    free(before);

    metrics = resume_metrics(0, false); /* at the beginning: nothing stays but the checkpoint's line, which was lost */
    metrics_close(metrics);
    assert_int_equal(count_lines(read_file(path)), 1);
}

static void test_nothing_to_leave_out(void **state)
{
    (void)state;
    int number = free_number();
    struct metrics *metrics = new_metrics();
    write_steps(metrics, 1, 3);
    write_checkpoint(metrics, 3);
    metrics_close(metrics);
    number = free_number();
    char *before = strdup(read_file(path));
    metrics_close(resume_metrics(3, false));
    assert_string_equal(read_file(path), before);
    assert_int_equal(free_number(), number);

    /* a last line that lacks only its newline */
    assert_int_equal(truncate(path, (off_t)strlen(before) - 1), 0);
    metrics = resume_metrics(3, false);
    write_steps(metrics, 4, 4);
    metrics_close(metrics);
    char *text = read_file(path);
    assert_memory_equal(text, before, strlen(before));
    assert_int_equal(count_lines(text), 5);
    assert_int_equal(free_number(), number);
    free(before);
}

/* One damaged line costs one line, which the former file keeps. */
static void test_damaged_lines(void **state)
{
    (void)state;
    struct metrics *metrics = new_metrics();
    write_steps(metrics, 1, 3);
    metrics_close(metrics);
    FILE *file = fopen(path, "a");
    static const char bytes[] = "\0\0\0{\"step\":4}\n[3]\n{\"loss\":4}\n";
    assert_int_equal(fwrite(bytes, 1, sizeof bytes - 1, file), sizeof bytes - 1);
    for (int i = 0; i < 20000; i++) /* longer than any line that ztrain writes */
        fputc('x', file);
    fputs("\n{\"step\":6,\"later\":\"versions may add lines\"}\n", file);
    fclose(file);
    struct stat before, former;
    assert_int_equal(stat(path, &before), 0);
    int number = free_number();
    metrics = resume_metrics(7, false);
    write_steps(metrics, 8, 8);
    metrics_close(metrics);
    char *text = read_file(path);
    assert_int_equal(count_lines(text), 3 + 1 + 1 + 1);
    assert_non_null(strstr(
        text, "\n{\"step\":6,\"later\":\"versions may add lines\"}\n{\"checkpoint\":\"runs/x/checkpoints/"
              "step-7\",\"step\":7,\"bytes\":107,\"seconds_stalled\":null,\"seconds_total\":null}\n{\"step\":8,"));
    char name[160];
    snprintf(name, sizeof name, "%s.%d", path, number);
    assert_int_equal(stat(name, &former), 0);
    assert_true(former.st_ino == before.st_ino && former.st_size == before.st_size);
}

/* Which file has the lines that led to a checkpoint. */
static void test_the_lines_of_another_course(void **state)
{
    (void)state;
    struct metrics *metrics = new_metrics();
    int64_t parted;
    write_steps(metrics, 1, 4);
    write_checkpoint(metrics, 4);
    write_steps(metrics, 5, 9);
    write_checkpoint(metrics, 9);
    metrics_close(metrics);
    int left = free_number();
    metrics = resume_metrics(4, false);
    write_steps(metrics, 5, 6);
    write_checkpoint(metrics, 6);
    metrics_close(metrics);

    struct metrics_checkpoint_line nine = {"step-9", 9, 109}, four = {"step-4", 4, 104}, other = {"step-9", 9, 110};
    assert_int_equal(metrics_find(path, &nine, left, &parted), left);
    assert_int_equal(metrics_find(path, &nine, 0, &parted), left);
    assert_int_equal(parted, 6); /* up to this step the lines are equal */
    assert_int_equal(metrics_find(path, &four, 0, &parted), 0);
    assert_int_equal(metrics_find(path, &other, left, &parted), -1);

    int number = free_number();
    struct error err;
    struct metrics_history history = {
        .step = 9, .checkpoint = "x/step-9", .bytes = 109, .from = left, .former = number};
    assert_int_equal(metrics_open(path, &history, &metrics, &err), STATUS_OK);
    metrics_close(metrics);
    assert_string_equal(strrchr(read_file(path), '{'),
                        "{\"checkpoint\":\"runs/x/checkpoints/step-9\",\"step\":9,\"bytes\":109,"
                        "\"seconds_stalled\":0.5,\"seconds_total\":0.75}\n");
    assert_int_equal(count_lines(read_number(number)), 4 + 1 + 2 + 1);
}

/* The evaluation of the resumed step is repeated: the lines that a killed run wrote of it are removed. */
static void test_resume_cuts_an_evaluation_that_is_due(void **state)
{
    (void)state;
    struct error err;
    struct metrics *metrics = new_metrics();
    assert_int_equal(metrics_eval(metrics, 2, 1, 4.5, 100, NULL, NULL, &err), STATUS_OK);
    write_steps(metrics, 3, 3);
    assert_int_equal(metrics_checkpoint(metrics, "step-3", 3, 1, 0.5, 0.75, &err), STATUS_OK);
    assert_int_equal(metrics_resume(metrics, "step-3", 3, 1, &err), STATUS_OK);
    assert_int_equal(metrics_eval(metrics, 3, 1, 2.5, 100, NULL, NULL, &err), STATUS_OK);
    assert_int_equal(metrics_epoch(metrics, true, 1, 3, 2.25, &err), STATUS_OK);
    metrics_close(metrics);

    metrics_close(resume_metrics(3, false)); /* no evaluation is due: all lines stay */
    assert_int_equal(count_lines(read_file(path)), 6);
    metrics_close(resume_metrics(3, true));
    char *text = read_file(path);
    assert_int_equal(count_lines(text), 4);
    assert_non_null(strstr(text, "\"eval_loss\":4.5"));
    assert_null(strstr(text, "\"eval_loss\":2.5"));

    metrics =
        resume_metrics(3, false); /* an epoch's end without an evaluation: the run continues without validation data */
    assert_int_equal(metrics_epoch(metrics, true, 1, 3, 2.25, &err), STATUS_OK);
    metrics_close(metrics);
    metrics_close(resume_metrics(3, true));
    assert_int_equal(count_lines(read_file(path)), 4);
}

/* The warnings of a resume. */
static char *warnings_of_resume(int64_t step)
{
    char name[160];
    snprintf(name, sizeof name, "%s/stderr", folder);
    fflush(stderr);
    int kept = dup(STDERR_FILENO);
    assert_non_null(freopen(name, "w", stderr));
    metrics_close(resume_metrics(step, false));
    fflush(stderr);
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    close(kept);
    return read_file(name);
}

/* The warning names the steps whose lines are missing and no others. */
static void test_holes(void **state)
{
    (void)state;
    struct error err;
    struct metrics *metrics = new_metrics();
    write_steps(metrics, 1, 3);
    metrics_close(metrics);
    assert_string_equal(warnings_of_resume(3), "");
    assert_non_null(strstr(warnings_of_resume(9), "' lacks the lines of steps 4 to 9 (6 in all): they were lost"));
    metrics = resume_metrics(9, false);
    write_steps(metrics, 10, 11);
    write_steps(metrics, 13, 13);
    metrics_close(metrics);
    assert_non_null(strstr(warnings_of_resume(13), "' lacks the lines of steps 4 to 9, 12 (7 in all): "));
    metrics = resume_metrics(13, false);
    for (int64_t step = 15; step < 31; step += 2) write_steps(metrics, step, step);
    metrics_close(metrics);
    assert_non_null(strstr(warnings_of_resume(29), "' lacks the lines of steps 4 to 9, 12, 14, 16, … (15 in all): "));

    assert_int_equal(unlink(path), 0);
    assert_non_null(strstr(warnings_of_resume(1), "' lacks the line of step 1: it was lost"));
    assert_int_equal(strncmp(read_file(path), "{\"checkpoint\":", 14), 0); /* not as a run that branched off begins */
    assert_non_null(strstr(warnings_of_resume(4), "' lacks the lines of steps 1 to 4 (4 in all): "));

    metrics = new_metrics(); /* a run that branched off */
    assert_int_equal(metrics_resume(metrics, "runs/y/checkpoints/step-7", 7, 1, &err), STATUS_OK);
    write_steps(metrics, 8, 8);
    metrics_close(metrics);
    assert_string_equal(warnings_of_resume(8), "");
}

/* The supervisor's line, after ranks that were killed: it begins a line of its own, whatever they have left. */
static void test_a_last_failure(void **state)
{
    (void)state;
    static const char *const left[] = {"", "{\"step\":1}\n", "{\"step\":1}\n{\"st"};
    const char *line = "{\"gave_up\":2,\"step\":5,\"exit_code\":6,\"cause\":\"a \\\"rank\\\"\"}\n";
    struct error err;
    char expected[256];
    for (size_t i = 0; i < COUNT_OF(left); i++) {
        FILE *file = fopen(path, "w");
        fputs(left[i], file);
        fclose(file);
        assert_int_equal(metrics_gave_up(path, 2, 5, 6, "a \"rank\"", &err), STATUS_OK);
        snprintf(expected, sizeof expected, "%s%s%s", left[i], i == 2 ? "\n" : "", line);
        assert_string_equal(read_file(path), expected);
    }
    assert_int_equal(metrics_gave_up("/nonexistent/metrics.jsonl", 2, 5, 6, "", &err), STATUS_CHECKPOINT);
    assert_non_null(strstr(err.text, "cannot open '/nonexistent/metrics.jsonl'"));
    unlink(path);
}

static void test_errors(void **state)
{
    (void)state;
    struct metrics *metrics = NULL;
    struct error err;
    assert_int_equal(metrics_open("/nonexistent/metrics.jsonl", NULL, &metrics, &err), STATUS_CHECKPOINT);
    assert_non_null(strstr(err.text, "cannot open '/nonexistent/metrics.jsonl'"));
#ifdef ZTRAIN_FAULTS
    /* whatever fails, the file is the former or the new one, and nothing is lost */
    metrics_close(new_metrics());
    int former = free_number();
    bool reached = true;
    for (int n = 1; reached; n++) {
        FILE *file = fopen(path, "w");
        fputs("{\"step\":1}\n{\"step\":2}\n", file);
        fclose(file);
        char fault[32];
        snprintf(fault, sizeof fault, "any:%d:ENOSPC", n);
        faults_arm(fault);
        struct metrics_history history = {.step = 1, .checkpoint = "step-1", .bytes = 3, .former = former};
        enum status status = metrics_open(path, &history, &metrics, &err);
        reached = faults_count() >= n;
        faults_arm(NULL);
        if (status == STATUS_OK)
            metrics_close(metrics); /* a line that waits for space is written now */
        else
            assert_true(reached && status == STATUS_CHECKPOINT);
        char *text = read_file(path);
        if (status == STATUS_OK)
            assert_int_equal(strncmp(text, "{\"step\":1}\n{\"checkpoint\"", 24), 0);
        else /* it may be the new one before its first line: only the folder's fsync failed */
            assert_true(!strcmp(text, "{\"step\":1}\n{\"step\":2}\n") || !strcmp(text, "{\"step\":1}\n"));
        assert_true(count_lines(text) == 2 || !strcmp(read_number(former), "{\"step\":1}\n{\"step\":2}\n"));
        char name[160];
        snprintf(name, sizeof name, "%s.%d", path, former);
        unlink(name);
    }
#endif
}

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(folder)) return -1;
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_exact),
                                       cmocka_unit_test(test_resume_cuts),
                                       cmocka_unit_test(test_nothing_to_leave_out),
                                       cmocka_unit_test(test_damaged_lines),
                                       cmocka_unit_test(test_the_lines_of_another_course),
                                       cmocka_unit_test(test_resume_cuts_an_evaluation_that_is_due),
                                       cmocka_unit_test(test_holes),
                                       cmocka_unit_test(test_a_last_failure),
                                       cmocka_unit_test(test_errors)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
