/* test_gemm_trial.c: an algorithm that was on trial when its process ended is known to the next process, and no other.
 */
#include "gpu/cuda/gemm_trial.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/ztrain-gemm-trial-XXXXXX", path[64], running[80], faulty[80];
static const struct gemm_key key = {.m = 96, .n = 40, .k = 64};
static const struct gemm_algorithm good = {{1, 2}}, bad = {{3, 4}};

static int make_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/gemm.txt", folder);
    snprintf(running, sizeof running, "%s.trial", path);
    snprintf(faulty, sizeof faulty, "%s.faulty", path);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(running);
    unlink(faulty);
    return rmdir(folder);
}

static struct gemm_trial *begin(void)
{
    struct gemm_trial *trial = gemm_trial_open(path);
    assert_non_null(trial);
    gemm_trial_begin(trial);
    return trial;
}

static void write_running(const char *text)
{
    FILE *file = fopen(running, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void what_was_on_trial_is_faulty(void **state)
{
    (void)state;
    struct gemm_trial *trial = begin();
    assert_false(gemm_trial_is_faulty(trial, &key, &bad));
    gemm_trial_note(trial, &key, &good);
    gemm_trial_done(trial);
    assert_int_not_equal(access(running, F_OK), 0);
    gemm_trial_note(trial, &key, &bad);
    gemm_trial_close(trial); /* as the process's end does */
    assert_int_equal(access(running, F_OK), 0);
    for (int i = 0; i < 2; i++) {
        trial = begin();
        assert_int_not_equal(access(running, F_OK), 0);
        assert_true(gemm_trial_is_faulty(trial, &key, &bad));
        assert_false(gemm_trial_is_faulty(trial, &key, &good));
        struct gemm_key other = key;
        other.n++;
        assert_false(gemm_trial_is_faulty(trial, &other, &bad));
        gemm_trial_close(trial);
    }
}

static void damage_does_no_harm(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "\n", "0123456789abcdef m 1 n", "nonsense m 1 n 2 k 3\n"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        unlink(faulty);
        write_running(texts[i]);
        gemm_trial_close(begin());
        assert_int_not_equal(access(faulty, F_OK), 0);
        assert_int_not_equal(access(running, F_OK), 0);
    }
    gemm_trial_begin(NULL);
    gemm_trial_note(NULL, &key, &good);
    gemm_trial_done(NULL);
    assert_false(gemm_trial_is_faulty(NULL, &key, &good));
    gemm_trial_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_on_trial_is_faulty),
        cmocka_unit_test(damage_does_no_harm),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
