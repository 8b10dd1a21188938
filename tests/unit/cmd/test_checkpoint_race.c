/* SPDX-License-Identifier: Apache-2.0 */
/* test_checkpoint_race.c: the newest checkpoint of a run that deletes and replaces it in the meantime. Hooks in the
 * reading of manifests and in the export play that run. */
#include "ckpt/manifest.h"
#include "cmd/run/run_state.h"
#include "tests/unit/fixtures/checkpoint_case.h"

static void (*meanwhile)(int calls);
static int loads, checks, exports;

static enum status manifest_load_and_meanwhile(const char *dir, bool files, struct manifest **manifest,
                                               struct error *err)
{
    loads++;
    if (meanwhile) meanwhile(loads + checks);
    return manifest_load(dir, files, manifest, err);
}

static enum status manifest_check_files_and_meanwhile(const struct manifest *manifest, const char *dir, int first,
                                                      int end, struct error *err)
{
    checks++;
    if (meanwhile) meanwhile(loads + checks);
    return manifest_check_files(manifest, dir, first, end, err);
}

#define manifest_load manifest_load_and_meanwhile
#define manifest_check_files manifest_check_files_and_meanwhile
#include "ckpt/checkpoint_list.c"
#include "ckpt/checkpoint_open.c"
#undef manifest_load
#undef manifest_check_files

static void save(int step)
{
    char path[FS_PATH_MAX];
    struct case_save how = {.world = 1, .step = step, .keep_last = 1, .eval_loss = 10 - step};
    case_save_ok(&how, path);
}

/* An export reads everything again, from files that it opens anew. Its lock has a thread, so that no rank may be forked
 * to save meanwhile: the next checkpoint is there under another name. */
static int64_t exported_step;

static void next_replaces_newest(void)
{
    char hidden[FS_PATH_MAX], newest[FS_PATH_MAX], next[FS_PATH_MAX];
    struct error err;
    case_path(hidden, "hidden");
    case_path(newest, "step-00000001");
    case_path(next, "step-00000002");
    assert_int_equal(rename(hidden, next), 0);
    assert_int_equal(checkpoint_remove_tree(newest, &err), STATUS_OK);
}

static enum status read_again(const struct checkpoint *checkpoint, const char *moved, const char *out, enum dtype dtype,
                              int64_t bytes, bool force, struct error *err)
{
    (void)moved, (void)dtype, (void)bytes, (void)force;
    assert_int_equal(mkdir(out, 0777), 0);
    if (exports++ == 0) next_replaces_newest();
    checkpoint_reader_close_files(reader_of(checkpoint));
    exported_step = checkpoint->position.step;
    return checkpoint_verify(checkpoint, err);
}

enum status run_check_history(const struct train_position *position, struct error *err)
{
    (void)position, (void)err;
    return STATUS_OK; /* no export here is of a run that has diverged */
}

#define huggingface_export read_again
#include "cmd/command_line.c"
#include "cmd/export.c"
#include "cmd/run/run_lock.c"
#include "cmd/run/stop_signal.c"
#undef huggingface_export

static int doomed; /* the call during which the newest checkpoint is replaced by the next */

static void train_on(int calls)
{
    if (calls != doomed) return;
    meanwhile = NULL;
    save(2);
}

/* The checkpoint is deleted while it is listed, or before its files are looked at. */
static void test_a_newest_one_that_is_deleted_is_taken_again(void **unused)
{
    (void)unused;
    for (doomed = 1; doomed <= 2; doomed++) {
        struct checkpoint *checkpoint;
        struct error err = {.code = STATUS_OK};
        case_remove(case_dir);
        assert_int_equal(mkdir(case_dir, 0777), 0);
        save(1);
        loads = checks = 0;
        meanwhile = train_on;
        if (checkpoint_open(case_dir, true, &checkpoint, &err) != STATUS_OK)
            fail_msg("deleted at call %d: %s", doomed, err.text);
        assert_int_equal(checkpoint->position.step, 2);
        checkpoint_close(checkpoint);
        case_load_ok(case_dir, false, 1, 2);
    }
}

static void write_it_again(int calls)
{
    char path[FS_PATH_MAX];
    const struct case_save how = {.world = 1, .step = 1, .level = 3, .large = true};
    if (calls != doomed) return;
    meanwhile = NULL;
    case_save_ok(&how, path);
}

/* Another checkpoint, with files of other sizes, takes its name. */
static void test_a_newest_one_that_is_replaced_is_taken_again(void **unused)
{
    (void)unused;
    for (doomed = 1; doomed <= 2; doomed++) {
        struct checkpoint *checkpoint;
        struct error err = {.code = STATUS_OK};
        case_remove(case_dir);
        assert_int_equal(mkdir(case_dir, 0777), 0);
        save(1);
        loads = checks = 0;
        meanwhile = write_it_again;
        if (checkpoint_open(case_dir, true, &checkpoint, &err) != STATUS_OK)
            fail_msg("replaced at call %d: %s", doomed, err.text);
        assert_null(meanwhile);
        assert_false(checkpoint_is_gone(checkpoint));
        checkpoint_close(checkpoint);
        case_load_ok(case_dir, true, 1, 1);
    }
}

/* The best one, as the newest is asked for its metric, the best is listed, its files are looked at, and it is opened.
 */
static void test_a_best_one_that_is_deleted_is_chosen_again(void **unused)
{
    (void)unused;
    for (doomed = 1; doomed <= 6; doomed++) {
        struct checkpoint *checkpoint;
        struct error err = {.code = STATUS_OK};
        case_remove(case_dir);
        assert_int_equal(mkdir(case_dir, 0777), 0);
        save(1);
        loads = checks = 0;
        meanwhile = train_on;
        if (checkpoint_open_best(case_dir, false, &checkpoint, &err) != STATUS_OK)
            fail_msg("deleted at call %d: %s", doomed, err.text);
        assert_null(meanwhile);
        assert_int_equal(checkpoint->position.step, 2);
        checkpoint_close(checkpoint);
    }
}

static void test_one_that_stays_and_is_damaged_is_read_once(void **unused)
{
    (void)unused;
    struct checkpoint *checkpoint;
    struct error err;
    char path[FS_PATH_MAX];
    size_t bytes;
    save(1);
    case_path(path, "step-00000001/rank-00000.zst");
    char *data = case_read(path, &bytes);
    data[bytes / 2] ^= 1;
    case_write(path, data, bytes);
    free(data);
    loads = checks = 0;
    assert_int_equal(checkpoint_open(case_dir, true, &checkpoint, &err), STATUS_CHECKPOINT);
    assert_non_null(strstr(err.text, "none of the 1 checkpoints in"));
    assert_int_equal(loads, 1); /* when it is listed; it is opened with what was read then */
    assert_int_equal(checks, 1);
}

static int newest;

static void train_faster(int calls)
{
    (void)calls;
    void (*again)(int) = meanwhile;
    meanwhile = NULL;
    save(++newest);
    meanwhile = again;
}

static void test_it_is_not_taken_again_for_ever(void **unused)
{
    (void)unused;
    struct checkpoint *checkpoint;
    struct error err;
    save(newest = 1);
    meanwhile = train_faster;
    assert_int_equal(checkpoint_open(case_dir, true, &checkpoint, &err), STATUS_CHECKPOINT);
    meanwhile = NULL;
    assert_true(newest <= 1 + 3 * CHECKPOINT_TRIES);
}

static void test_an_export_takes_the_newest_again(void **unused)
{
    (void)unused;
    struct error err = {.code = STATUS_OK};
    char name[] = "export", dir[FS_PATH_MAX], option[] = "--out", out[FS_PATH_MAX];
    char *argv[] = {name, dir, option, out};
    save(2);
    case_path(dir, "step-00000002");
    case_path(out, "hidden");
    assert_int_equal(rename(dir, out), 0);
    save(1);
    snprintf(dir, sizeof dir, "%s", case_dir);
    case_path(out, "exported");
    exports = 0;
    if (cmd_export(4, argv, &err) != STATUS_OK) fail_msg("%s", err.text);
    assert_int_equal(exports, 2);
    assert_int_equal(exported_step, 2);
}

static int setup(void **state)
{
    meanwhile = NULL;
    return case_setup(state);
}

int main(void)
{
#ifdef _OPENMP
    omp_set_num_threads(1); /* this process forks */
#endif
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, case_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_a_newest_one_that_is_deleted_is_taken_again),
        TEST(test_a_newest_one_that_is_replaced_is_taken_again),
        TEST(test_a_best_one_that_is_deleted_is_chosen_again),
        TEST(test_one_that_stays_and_is_damaged_is_read_once),
        TEST(test_it_is_not_taken_again_for_ever),
        TEST(test_an_export_takes_the_newest_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
