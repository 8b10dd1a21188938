/* SPDX-License-Identifier: Apache-2.0 */
/* test_verify.c: `ztrain verify` of checkpoints that a run deletes and replaces in the meantime. A hook after its
 * checkpoint_open() plays that run. */
#include "tests/unit/fixtures/checkpoint_case.h"

static void (*meanwhile)(void);
static int opened;

static enum status checkpoint_open_and_meanwhile(const char *dir, bool full, struct checkpoint **checkpoint,
                                                 struct error *err)
{
    opened++;
    if (meanwhile) /* after the folder was found, before its files are read */
        meanwhile();
    return checkpoint_open(dir, full, checkpoint, err);
}

#define checkpoint_open checkpoint_open_and_meanwhile
#include "cmd/command_line.c"
#include "cmd/verify.c"
#undef checkpoint_open

static enum status verify(const char *dir, struct error *err)
{
    char name[] = "verify", copy[FS_PATH_MAX], *argv[] = {name, copy};
    snprintf(copy, sizeof copy, "%s", dir);
    opened = 0;
    err->text[0] = 0;
    return cmd_verify(2, argv, err);
}

static void save_steps(int first, int last)
{
    char path[FS_PATH_MAX];
    struct case_save how = {.world = 1};
    for (how.step = first; how.step <= last; how.step++) case_save_ok(&how, path);
}

static void damage(const char *name)
{
    char path[FS_PATH_MAX];
    size_t bytes;
    case_path(path, "%s", name);
    char *data = case_read(path, &bytes);
    data[bytes / 2] ^= 1;
    case_write(path, data, bytes);
    free(data);
}

static void delete_the_oldest(void)
{
    char path[FS_PATH_MAX];
    case_path(path, "step-00000001");
    if (fs_is_dir(path)) case_remove(path);
}

static void test_what_keep_last_deletes_is_no_damage(void **unused)
{
    (void)unused;
    struct error err;
    save_steps(1, 3);
    meanwhile = delete_the_oldest;
    assert_int_equal(verify(case_dir, &err), STATUS_OK);
    assert_int_equal(opened, 2);
    meanwhile = NULL;
    damage("step-00000002/rank-00000.zst"); /* a checkpoint that stays and is damaged is reported */
    assert_int_equal(verify(case_dir, &err), STATUS_CHECKPOINT);
    assert_non_null(strstr(err.text, "1 of 2 checkpoints damaged"));
}

/* Another checkpoint takes its place, as when a run saves the same step again: the new one counts. */
static void replace_the_damaged(void)
{
    char path[FS_PATH_MAX], fresh[FS_PATH_MAX];
    if (opened != 1) return;
    case_path(path, "step-00000001");
    case_path(fresh, "fresh");
    assert_int_equal(renameat2(AT_FDCWD, path, AT_FDCWD, fresh, RENAME_EXCHANGE), 0);
}

static void test_what_is_replaced_is_read_again(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX], fresh[FS_PATH_MAX];
    struct error err;
    save_steps(1, 1);
    case_path(path, "step-00000001");
    case_path(fresh, "fresh");
    assert_int_equal(rename(path, fresh), 0);
    save_steps(1, 1);
    damage("fresh/rank-00000.zst");
    meanwhile = replace_the_damaged; /* a checkpoint that was opened as valid is damaged when it is read, and is another
                                        folder then */
    assert_int_equal(verify(path, &err), STATUS_CHECKPOINT);
    assert_int_equal(opened, 2); /* the second time, it is the same folder */
    assert_int_equal(verify(path, &err), STATUS_OK);
}

static int next_step;

/* With keep_last 1 each checkpoint is deleted before it is read: the newest one takes its place. */
static void train_on(void)
{
    char path[FS_PATH_MAX];
    if (next_step > 3) return;
    case_path(path, "step-%08d", next_step - 1);
    case_remove(path);
    meanwhile = NULL;
    save_steps(next_step, next_step);
    next_step++;
    meanwhile = train_on;
}

static void test_a_run_that_is_faster_than_the_reader(void **unused)
{
    (void)unused;
    struct error err;
    char path[FS_PATH_MAX];
    save_steps(1, 1);
    next_step = 2;
    meanwhile = train_on;
    assert_int_equal(verify(case_dir, &err), STATUS_OK);
    assert_int_equal(opened, 3);
    meanwhile = NULL;
    case_path(path, "step-00000001");
    assert_int_equal(verify(path, &err), STATUS_CHECKPOINT); /* a checkpoint that was named and does not exist */
    case_path(path, "step-00000003");
    meanwhile = delete_the_oldest;
    assert_int_equal(verify(path, &err), STATUS_OK);
    case_load_ok(path, false, 1, 3);
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
        TEST(test_what_keep_last_deletes_is_no_damage),
        TEST(test_what_is_replaced_is_read_again),
        TEST(test_a_run_that_is_faster_than_the_reader),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
