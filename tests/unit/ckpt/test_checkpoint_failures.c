/* SPDX-License-Identifier: Apache-2.0 */
/* test_checkpoint_failures.c: failures and kills in the middle of a save. */
#include "tests/unit/fixtures/checkpoint_case.h"

#include "core/faults.h"

/* ---- failures ------------------------------------------------------------ */

static void test_failure_of_one_rank_is_failure_of_all(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX];
    struct case_save good = {.world = 2, .step = 1, .large = true};
    struct case_end ends[CASE_RANKS];
    case_save_ok(&good, path);
    for (int limited = 0; limited < 3; limited++) {
        struct case_save bad = {
            .world = 3, .step = 2, .large = true, .file_limit = limited ? 5000 : 50000, .rank_limited = limited};
        case_save_ranks(&bad, ends);
        for (int r = 0; r < 3; r++) {
            char expected[64];
            snprintf(expected, sizeof expected, "rank %d on here: cannot write '", limited);
            assert_int_equal(ends[r].status, STATUS_CHECKPOINT);
            assert_non_null(strstr(ends[r].err.text, expected));
            assert_non_null(strstr(ends[r].err.text, "File too large"));
        }
        assert_int_equal(case_count(".tmp-"), 0);
        assert_false(case_has("step-00000002"));
        case_load_ok(case_dir, true, 1, 1);
    }
}

static void test_folder_that_cannot_be(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX], old[FS_PATH_MAX];
    struct case_end ends[CASE_RANKS];
    struct case_save how = {.world = 2, .step = 1};
    case_path(path, "file");
    case_write(path, "x", 1);
    memcpy(old, case_dir, sizeof old);
    case_path(path, "file/checkpoints");
    memcpy(case_dir, path, sizeof case_dir);
    case_save_ranks(&how, ends);
    memcpy(case_dir, old, sizeof old);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(ends[r].status, STATUS_CHECKPOINT);
        assert_non_null(strstr(ends[r].err.text, "/file"));
    }
    case_path(path, "run/checkpoints"); /* it is made, but not the run folder above it, which was moved away */
    memcpy(case_dir, path, sizeof case_dir);
    case_save_ranks(&how, ends);
    assert_int_equal(ends[0].status, STATUS_CHECKPOINT);
    memcpy(case_dir, old, sizeof old);
    assert_false(case_has("run"));
    case_path(path, "run");
    assert_int_equal(mkdir(path, 0777), 0);
    case_path(path, "run/checkpoints");
    memcpy(case_dir, path, sizeof case_dir);
    case_save_ok(&how, path);
    case_load_ok(path, false, 1, 1);
    memcpy(case_dir, old, sizeof old);
}

static int flip_at; /* the file that loses a bit on its way to the disk, counted from 1; 0: none */

/* ckpt calls it before it reads from the disk, so the file has changed by then. */
int posix_fadvise(int fd, off_t offset, off_t bytes, int advice)
{
    char path[64];
    uint8_t byte;
    (void)offset, (void)bytes;
    assert_int_equal(advice, POSIX_FADV_DONTNEED);
    if (--flip_at != 0) return 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int out = open(path, O_RDWR | O_CLOEXEC);
    assert_int_equal(pread(out, &byte, 1, 1), 1);
    byte ^= 1;
    assert_int_equal(pwrite(out, &byte, 1, 1), 1);
    close(out);
    return 0;
}

/* keep_last: a checkpoint that did not reach the disk as it was written takes no older one's place. */
static void test_what_cannot_be_read_back_replaces_nothing(void **unused)
{
    (void)unused;
    char source[FS_PATH_MAX], file[FS_PATH_MAX], path[FS_PATH_MAX];
    struct case_end ends[CASE_RANKS];
    case_path(source, "model");
    assert_int_equal(mkdir(source, 0777), 0);
    case_path(file, "model/vocab.json");
    case_write(file, "{}", 2);
    struct case_save how = {.world = 1, .step = 1, .keep_last = 1, .tokenizer_dir = source};
    case_save_ok(&how, path);
    how.step = 2;
    for (int i = 1; i <= 3; i++) { /* the rank's file, the manifest, the tokenizer's */
        flip_at = i;
        case_save_ranks(&how, ends);
        assert_int_equal(ends[0].status, STATUS_CHECKPOINT);
        assert_non_null(strstr(ends[0].err.text, "reading the new checkpoint back: '"));
        assert_int_equal(case_count("step-"), 1);
        assert_int_equal(case_count(".tmp-"), 0);
        case_load_ok(case_dir, false, 1, 1);
    }
    how.world = 2;
    flip_at = 1; /* each rank its own file */
    case_save_ranks(&how, ends);
    assert_int_equal(ends[1].status, STATUS_CHECKPOINT);
    flip_at = 0;
    case_save_ok(&how, path);
    case_load_ok(case_dir, false, 1, 2);
    assert_int_equal(case_count("step-"), 1);
}

#ifdef ZTRAIN_FAULTS
static char fault_spec[64];

static void arm(void)
{
    assert_true(faults_arm(fault_spec));
}

/* A save whose Nth call fails, for every N. replaces: the checkpoint has the name of the previous one. */
static void walk(const char *action, bool replaces, int world)
{
    char path[FS_PATH_MAX];
    struct case_end ends[CASE_RANKS];
    struct error err;
    struct case_save before = {.world = 2, .step = 1, .keep_last = 2}, after = {.world = 1, .step = 3, .keep_last = 2};
    struct case_save how = {.world = world, .step = replaces ? 1 : 2, .keep_last = 1, .before = arm};
    bool reached = true; /* the fault was reached */
    int n, published = 0;
    for (n = 1; reached; n++) {
        assert_true(n < 100);
        case_remove(case_dir);
        assert_int_equal(mkdir(case_dir, 0777), 0);
        case_save_ok(&before, path);
        snprintf(fault_spec, sizeof fault_spec, "any:%d:%s", n, action);
        case_save_ranks(&how, ends);
        bool killed = false, failed = false;
        for (int r = 0; r < world; r++) {
            killed = killed || ends[r].killed;
            failed = failed || (!ends[r].killed && ends[r].status != STATUS_OK);
        }
        /* whatever happened, the folder has a valid checkpoint, of this step or the one before */
        int64_t step = case_opened_step(case_dir, true, &err);
        if (step != 1 && step != how.step) fail_msg("%s: %s", fault_spec, err.text);
        case_load_ok(case_dir, false, 1, step);
        if (failed) {
            assert_int_equal(ends[0].status, STATUS_CHECKPOINT);
            if (!error_is_transient(&ends[0].err)) /* a run retries transient errors */
                fail_msg("%s: '%s', cause %d", fault_spec, ends[0].err.text, ends[0].err.cause);
            assert_int_equal(case_count(".tmp-"), 0);
        } else if (!killed) {
            assert_int_equal(step, how.step);
        }
        published += (killed || failed) && step == 2;
        /* and the next save works, and cleans up */
        case_save_ok(&after, path);
        case_load_ok(case_dir, false, 1, 3);
        assert_int_equal(case_count(".tmp-"), 0);
        reached = false;
        for (int r = 0; r < world; r++) reached = reached || ends[r].killed || ends[r].calls >= n;
    }
    assert_true(n > 15 && (replaces || published > 0 || strcmp(action, "kill") != 0));
}
#endif

/* A file system that cannot exchange two folders in one call. */
static void test_replacing_without_exchange(void **unused)
{
    (void)unused;
#ifdef ZTRAIN_FAULTS
    char path[FS_PATH_MAX];
    struct case_save how = {.world = 1, .step = 1};
    case_save_ok(&how, path);
    strcpy(fault_spec, "rename:1:EINVAL");
    how.before = arm;
    case_save_ok(&how, path);
    case_load_ok(path, false, 1, 1);
    assert_int_equal(case_count(""), 2); /* the checkpoint and `latest` */
#else
    skip();
#endif
}

static void test_errors_at_every_call(void **unused)
{
    (void)unused;
#ifdef ZTRAIN_FAULTS
    walk("ENOSPC", false, 1);
    walk("EIO", true, 1);
    walk("EACCES", false, 2);
#else
    skip();
#endif
}

static void test_kill_at_every_call(void **unused)
{
    (void)unused;
#ifdef ZTRAIN_FAULTS
    walk("kill", false, 1);
    walk("kill", true, 1);
    walk("kill", false, 2);
#else
    skip();
#endif
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, case_setup, case_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_what_cannot_be_read_back_replaces_nothing),
        TEST(test_failure_of_one_rank_is_failure_of_all),
        TEST(test_folder_that_cannot_be),
        TEST(test_replacing_without_exchange),
        TEST(test_errors_at_every_call),
        TEST(test_kill_at_every_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
