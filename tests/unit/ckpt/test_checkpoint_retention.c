/* SPDX-License-Identifier: Apache-2.0 */
/* test_checkpoint_retention.c: names, retention and leftovers. */
#include "tests/unit/fixtures/checkpoint_case.h"

#include <sys/prctl.h>

/* ---- names, retention, leftovers ----------------------------------------- */

/* A link whose disk is not mounted, or a file, is no absent folder; in the place of a checkpoint it may be the newest.
 */
static void test_what_leads_nowhere(void **unused)
{
    (void)unused;
    char run[FS_PATH_MAX], path[FS_PATH_MAX], disk[FS_PATH_MAX], away[FS_PATH_MAX];
    struct error err;
    bool any;
    for (int i = 1; i <= 2; i++) {
        struct case_save how = {.world = 1, .step = i};
        case_save_ok(&how, path);
    }
    case_path(run, "run");
    assert_int_equal(mkdir(run, 0777), 0);
    case_path(path, "run/checkpoints");
    assert_int_equal(symlink("../disk", path), 0);
    for (int file = 0; file < 2; file++) {
        assert_int_equal(checkpoint_any(path, false, &any, &err), STATUS_CHECKPOINT);
        assert_non_null(strstr(err.text, file ? "it is not a folder; hint: " : "it is a broken link; hint: "));
        assert_int_equal(case_opened_step(run, true, &err), -1);
        assert_non_null(strstr(err.text, file ? "it is not a folder; hint: " : "it is a broken link; hint: "));
        assert_int_equal(remove(path), 0);
        case_write(path, "x", 1);
    }
    assert_int_equal(remove(path), 0);
    assert_int_equal(checkpoint_any(path, false, &any, &err), STATUS_OK);
    assert_false(any);

    case_path(path, "step-00000002");
    case_path(disk, "disk");
    case_path(away, "away");
    assert_int_equal(rename(path, disk), 0);
    assert_int_equal(symlink("disk", path), 0);
    assert_int_equal(case_opened_step(case_dir, true, &err), 2);
    assert_int_equal(rename(disk, away), 0);
    assert_int_equal(case_opened_step(case_dir, true, &err), -1);
    assert_non_null(strstr(err.text, "step-00000002': it is a broken link; hint: make "));
    assert_non_null(strstr(err.text, "step-00000001' is of step 1"));
    struct case_save next = {.world = 1, .step = 3, .keep_last = 1};
    case_save_ok(&next, path); /* an older one that leads nowhere stays */
    assert_true(case_has("step-00000002") && !case_has("step-00000001"));
    assert_int_equal(case_opened_step(case_dir, true, &err), 3);
}

/* What a kill has left after the checkpoint was complete. */
static void test_mending(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX];
    struct checkpoint_save_cache *cache;
    struct error err;
    for (int i = 1; i <= 3; i++) {
        struct case_save how = {.world = 1, .step = i};
        case_save_ok(&how, path);
    }
    case_path(path, ".tmp-delete-step-00000000");
    assert_int_equal(mkdir(path, 0777), 0);
    case_path(path, ".tmp-delete-step-00000000/rank-00000.zst");
    case_write(path, "x", 1);
    case_path(path, "latest");
    assert_int_equal(remove(path), 0);
    assert_int_equal(symlink("step-00000002", path), 0);
    const struct case_save last = {.world = 1, .step = 3};
    const struct train_position position = case_position(&last);
    const struct checkpoint_keep keep = {.last = 2};
    assert_int_equal(checkpoint_save_cache_new(NULL, NULL, &cache, &err), STATUS_OK);
    for (int again = 0; again < 2; again++) {
        checkpoint_save_tidy(cache, case_dir, "step-00000003", &position, &keep);
        assert_true(case_has("step-00000003") && case_has("step-00000002") && !case_has("step-00000001"));
        assert_int_equal(case_count(".tmp-"), 0);
        case_path(path, "latest");
        assert_int_equal(case_opened_step(path, true, &err), 3);
    }
    checkpoint_save_cache_free(cache);
}

static void test_keep_last(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX];
    for (int i = 1; i <= 5; i++) {
        struct case_save how = {.world = 1, .step = i, .epoch = i == 4 ? 1 : 0, .keep_last = i < 5 ? 3 : 2};
        case_save_ok(&how, path);
        assert_int_equal(case_count("step-") + case_count("epoch-"), i < 4 ? i : i == 4 ? 3 : 2);
    }
    assert_true(case_has("step-00000005") && case_has("epoch-0001"));
    /* an epoch's end at the same step: the new one stays, whatever its name */
    struct case_save end = {.world = 1, .step = 5, .epoch = 2, .keep_last = 1};
    case_save_ok(&end, path);
    assert_true(case_has("epoch-0002"));
    assert_int_equal(case_count("step-") + case_count("epoch-"), 1);
}

/* Where the link `best` points; "": nowhere. */
static const char *best_link(void)
{
    static char name[64];
    char path[FS_PATH_MAX];
    case_path(path, "best");
    ssize_t n = readlink(path, name, sizeof name - 1);
    name[n > 0 ? n : 0] = '\0';
    return name;
}

static void test_keep_best(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX];
    const double losses[] = {0, 5, 4, NAN, 0, 4, 4.5, 3, 6, 7}; /* of steps 1 to 9; of step 4 there is none */
    for (int i = 1; i <= 9; i++) {
        struct case_save how = {
            .world = 1, .step = i, .keep_last = 1, .keep_best = 2, .keep_every_steps = 4, .eval_loss = losses[i]};
        case_save_ok(&how, path);
    }
    assert_true(case_has("step-00000009") && case_has("step-00000008") && case_has("step-00000004"));
    assert_true(case_has("step-00000007") && case_has("step-00000002")); /* 5 is as good as 2, but later */
    assert_int_equal(case_count("step-"), 5);
    assert_string_equal(best_link(), "step-00000007");
    /* back at step 6: 7 is of another history */
    struct case_save again = {.world = 1, .step = 6, .keep_last = 1, .keep_best = 2, .eval_loss = 4.2};
    case_save_ok(&again, path);
    assert_true(case_has("step-00000007.aside-1") && case_has("step-00000002") && case_has("step-00000006"));
    assert_false(case_has("step-00000004"));
    assert_string_equal(best_link(), "step-00000002");
    struct case_save none = {.world = 1, .step = 10, .keep_last = 1, .eval_loss = 9};
    case_save_ok(&none, path);
    assert_false(case_has("step-00000002"));
    assert_string_equal(best_link(), ""); /* it would point at nothing */
}

static void test_scores_are_read_back(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX];
    struct error err;
    struct checkpoint *checkpoint;
    for (int i = 1; i <= 3; i++) {
        struct case_save how = {.world = 1, .step = i, .eval_loss = i == 3 ? NAN : 4 + 0.1 * i};
        case_save_ok(&how, path);
        assert_int_equal(checkpoint_open(path, true, &checkpoint, &err), STATUS_OK);
        const struct train_position *position = &checkpoint->position;
        assert_true(position->scores.known && isnan(position->scores.values[EVAL_METRIC_ACCURACY]));
        assert_true(i == 3 ? isnan(position->scores.values[0]) : position->scores.values[0] == how.eval_loss);
        assert_true(position->scores.values[EVAL_METRIC_F1] == 0.25 && position->stopped_early == (i % 2 == 1));
        assert_true(position->stopping.begun && position->stopping.evaluations == i);
        assert_true(position->mean_loss.steps == (i == 2 ? 2 : 0));
        assert_true(position->mean_loss.mean == (i == 2 ? 1.0 / 3 + 2 : 0));
        checkpoint_close(checkpoint);
    }
    assert_int_equal(checkpoint_open_best(case_dir, true, &checkpoint, &err), STATUS_OK);
    assert_int_equal(checkpoint->position.step, 1);
    checkpoint_close(checkpoint);
    assert_int_equal(checkpoint_open_best(path, true, &checkpoint, &err), STATUS_USAGE);
    assert_non_null(strstr(err.text, "name the run folder"));
    case_damage("step-00000001/rank-00000.zst");
    assert_int_equal(checkpoint_open_best(case_dir, true, &checkpoint, &err), STATUS_CHECKPOINT);
    assert_non_null(strstr(err.text, "step-00000001"));
}

static void test_names_in_the_way(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX], stale[FS_PATH_MAX];
    struct case_save how = {.world = 2, .step = 3};
    struct error err;
    case_path(stale, ".tmp-step-00000003");
    assert_int_equal(mkdir(stale, 0777), 0);
    case_path(stale, ".tmp-step-00000003/rank-00000.zst");
    case_write(stale, "x", 1);
    case_save_ok(&how, path);
    assert_int_equal(case_count(".tmp-"), 0);

    case_save_ok(&how, path); /* valid, same step: replaced */
    assert_int_equal(case_count(""), 2);
    case_load_ok(path, false, 1, 3);

    case_damage("step-00000003/rank-00001.zst");
    case_save_ok(&how, path);
    case_load_ok(path, false, 1, 3);
    assert_true(case_has("step-00000003.damaged-1"));
    case_damage("step-00000003/manifest.json");
    case_save_ok(&how, path);
    assert_true(case_has("step-00000003.damaged-2"));
    assert_int_equal(case_opened_step(case_dir, true, &err), 3);

    struct case_save epoch = {.world = 1, .step = 8, .epoch = 1}, again = {.world = 1, .step = 4, .epoch = 1};
    case_save_ok(&epoch, path);
    case_save_ok(&again, path); /* the same epoch at an earlier step: the run went back */
    assert_true(case_has("epoch-0001.aside-1"));
    case_load_ok(case_dir, false, 1, 4);
    how.step = 2; /* further back: later checkpoints would be taken for the newest */
    how.keep_last = 1;
    case_save_ok(&how, path);
    case_load_ok(case_dir, false, 1, 2);
    assert_true(case_has("step-00000003.aside-1") && case_has("epoch-0001.aside-2"));
    assert_true(case_holds_any(case_dir));
    case_path(path, "epoch-0001.aside-2");
    case_load_ok(path, false, 2, 4); /* it can still be opened by name */
}

/* Copied or renamed checkpoints belong to the user: they are not deleted, moved aside or taken for the newest. */
static void test_names_of_users(void **unused)
{
    (void)unused;
    static const char *const names[] = {"step-00000006.best", "step-00000001.aside-x", "step-7",
                                        "step-000000001",     "epoch-0001-copy",       "epoch-1"};
    char path[FS_PATH_MAX], copy[FS_PATH_MAX];
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        struct case_save how = {.world = 1, .step = 1 + (int64_t)i};
        case_save_ok(&how, path);
        case_path(copy, "%s", names[i]);
        assert_int_equal(rename(path, copy), 0);
    }
    for (int i = 1; i <= 3; i++) {
        struct case_save how = {.world = 1, .step = i, .keep_last = 1};
        case_save_ok(&how, path);
    }
    for (size_t i = 0; i < COUNT_OF(names); i++) assert_true(case_has(names[i]));
    assert_int_equal(case_count("step-") + case_count("epoch-"), (int)COUNT_OF(names) + 1);
    case_load_ok(case_dir, false, 1, 3);
    case_path(copy, "%s", names[5]);
    case_load_ok(copy, false, 1, 6); /* it can be opened by name */
    /* ztrain's own names grow with their numbers */
    struct case_save late = {.world = 1, .step = 8, .epoch = 12345, .keep_last = 1};
    case_save_ok(&late, path);
    assert_non_null(strstr(path, "/epoch-12345"));
    late.step++;
    late.epoch++;
    case_save_ok(&late, path);
    assert_true(case_has("epoch-12346") && !case_has("epoch-12345"));
}

static void test_a_save_opens_no_older_checkpoint(void **unused)
{
    (void)unused;
    char events[4096], path[FS_PATH_MAX];
    struct checkpoint_save_cache *cache;
    assert_int_equal(checkpoint_save_cache_new(NULL, NULL, &cache, NULL), STATUS_OK);
    struct case_save how = {.world = 1, .keep_last = 5, .cache = cache};
    for (how.step = 1; how.step <= 4; how.step++) case_save_here(&how);
    int opens = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    assert_true(opens >= 0);
    for (int i = 2; i <= 4; i++) {
        case_path(path, "step-%08d", i);
        assert_true(inotify_add_watch(opens, path, IN_OPEN) >= 0);
    }
    for (how.step = 5; how.step <= 6; how.step++) /* the second deletes the first checkpoint */
        case_save_here(&how);
    assert_int_equal(read(opens, events, sizeof events), -1);
    close(opens);
    assert_int_equal(case_count("step-"), 5);
    /* one that changes under its name is verified again: this one is damaged and does not count as kept */
    case_path(path, "step-00000003");
    char aside[FS_PATH_MAX];
    case_path(aside, "other");
    assert_int_equal(rename(path, aside), 0);
    assert_int_equal(mkdir(path, 0777), 0);
    case_save_here(&how);
    assert_true(case_has("step-00000002") && case_has("step-00000003"));
    assert_int_equal(case_count("step-"), 6);
    checkpoint_save_cache_free(cache);
}

static int opens_during_save(const struct case_save *how, int64_t last)
{
    int watch = case_watch_opens(last);
    case_save_here(how);
    return case_count_opens(watch);
}

static int opens_during_start(int64_t last)
{
    struct error err;
    int watch = case_watch_opens(last);
    assert_int_equal(case_opened_step(case_dir, true, &err), last);
    return case_count_opens(watch);
}

/* A run that starts where 2 or 50 checkpoints are: its start reads the newest one, and its first save those that
 * keep_last counts; the others open nothing, however many there are. */
static void test_saves_do_not_depend_on_the_number_of_checkpoints(void **unused)
{
    (void)unused;
    struct case_save how = {.world = 1, .step = 0};
    for (int64_t others = 2; others <= 50; others += 48) {
        struct checkpoint_save_cache *cache;
        for (how.keep_last = how.keep_every_steps = 0, how.cache = NULL; how.step < others;) {
            how.step++;
            case_save_here(&how);
        }
        assert_int_equal(opens_during_start(how.step), 2); /* the manifest and the rank's file */
        assert_int_equal(checkpoint_save_cache_new(NULL, NULL, &cache, NULL), STATUS_OK);
        how.cache = cache;
        how.keep_last = 3;
        how.keep_every_steps = 1; /* nothing is deleted */
        int64_t before = how.step++;
        assert_int_equal(opens_during_save(&how, before), 4); /* two manifests, to order and to settle them */
        before = how.step++;
        assert_int_equal(opens_during_save(&how, before), 0);
        checkpoint_save_cache_free(cache);
    }
    assert_int_equal(case_count("step-"), 52);
}

/* Those that an earlier start has left: one without a rank file is damaged, though its manifest is right. */
static void test_checkpoints_with_a_missing_file_do_not_count(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX];
    struct case_save how = {.world = 1};
    for (how.step = 1; how.step <= 4; how.step++) case_save_here(&how);
    case_path(path, "step-00000003/rank-00000.zst");
    assert_int_equal(unlink(path), 0);
    how.keep_last = 3; /* 5, 4 and 2, not 3, which stays nevertheless */
    case_save_here(&how);
    assert_int_equal(case_count("step-"), 4);
    assert_true(case_has("step-00000002") && case_has("step-00000003") && !case_has("step-00000001"));
    how.keep_last = 1;
    how.step++;
    case_save_here(&how);
    assert_true(case_has("step-00000006") && case_has("step-00000003"));
    assert_int_equal(case_count("step-"), 2);
}

/* The best one has lost a file: the second best is kept in its place. */
static void test_a_best_checkpoint_with_a_missing_file_does_not_count(void **unused)
{
    (void)unused;
    static const double losses[] = {2, 1, 3};
    char path[FS_PATH_MAX];
    struct case_save how = {.world = 1};
    for (how.step = 1; how.step <= 3; how.step++) {
        how.eval_loss = losses[how.step - 1];
        case_save_here(&how);
    }
    case_path(path, "step-00000002/rank-00000.zst");
    assert_int_equal(unlink(path), 0);
    how.eval_loss = 4;
    how.keep_last = how.keep_best = 1;
    case_save_here(&how);
    assert_true(case_has("step-00000001") && case_has("step-00000002") && case_has("step-00000004"));
    assert_int_equal(case_count("step-"), 3);
}

/* The folder may be deleted during a run. */
static void test_tokenizer_files_are_kept_from_the_start(void **unused)
{
    (void)unused;
    char source[FS_PATH_MAX], file[FS_PATH_MAX];
    struct checkpoint_save_cache *cache;
    struct error err;
    case_path(source, "model");
    assert_int_equal(mkdir(source, 0777), 0);
    case_path(file, "model/tokenizer.json");
    case_write(file, "{}", 2);
    assert_int_equal(checkpoint_save_cache_new(source, source, &cache, &err), STATUS_OK);
    case_remove(source);
    struct case_save how = {.world = 1, .step = 1, .cache = cache};
    case_save_here(&how);
    checkpoint_save_cache_free(cache);
    assert_true(case_has("step-00000001/tokenizer.json"));
    case_load_ok(case_dir, false, 1, 1);
    assert_int_equal(mkdir(source, 0777), 0);
    assert_int_equal(mkdir(file, 0777), 0);
    assert_int_equal(checkpoint_save_cache_new(source, source, &cache, &err), STATUS_DATA);
    assert_non_null(strstr(err.text, "tokenizer.json"));
}

/* A rank of the previous start, which was cut off, continues to write where it was. */
static void test_a_rank_of_another_start_is_not_in_the_way(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX], stale[FS_PATH_MAX], file[FS_PATH_MAX];
    int ready[2];
    char byte;
    case_path(stale, ".tmp-step-00000003");
    case_path(file, ".tmp-step-00000003/rank-00001.zst");
    assert_int_equal(pipe(ready), 0);
    fflush(NULL);
    pid_t rank = fork();
    if (rank == 0)
        for (bool first = true;; first = false) {
            if (first) prctl(PR_SET_PDEATHSIG, SIGKILL); /* in case this test fails */
            mkdir(stale, 0777);
            int fd = open(file, O_WRONLY | O_CREAT, 0666);
            if (fd >= 0) close(fd);
            if (first && write(ready[1], "x", 1) != 1) _exit(1);
        }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
    struct case_save how = {.world = 2, .step = 3};
    case_save_ok(&how, path);
    how.step = 4;
    case_save_ok(&how, path);
    kill(rank, SIGKILL);
    waitpid(rank, NULL, 0);
    case_load_ok(case_dir, false, 1, 4);
}

/* A crash between the two renames of a file system without an exchange. */
static void test_replaced_one_counts_until_its_successor_is_there(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX], aside[FS_PATH_MAX];
    struct case_save how = {.world = 1, .step = 3};
    case_save_ok(&how, path);
    case_path(aside, "step-00000003.replaced-1");
    assert_int_equal(rename(path, aside), 0);
    case_load_ok(case_dir, false, 1, 3);
    struct case_save next = {.world = 1, .step = 4};
    case_save_ok(&next, path);
    assert_true(case_has("step-00000003.replaced-1"));
    case_save_ok(&how, path); /* back at step 3: now it has a successor */
    assert_false(case_has("step-00000003.replaced-1"));
    case_load_ok(case_dir, false, 1, 3);
}

/* The same crash after the new one was damaged: the replaced one is the only good one. */
static void test_replaced_one_stays_beside_a_damaged_successor(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX], aside[FS_PATH_MAX];
    struct case_save how = {.world = 1, .step = 3}, next = {.world = 1, .step = 4};
    case_save_ok(&how, path);
    case_path(aside, "step-00000003.replaced-1");
    assert_int_equal(rename(path, aside), 0);
    assert_int_equal(mkdir(path, 0777), 0);
    case_save_ok(&next, path);
    assert_true(case_has("step-00000003.replaced-1"));
    assert_true(case_has("step-00000003"));
}

/* A folder that somebody has renamed: its name is older than its manifest. */
static void test_renamed_one_is_not_deleted(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX], renamed[FS_PATH_MAX];
    struct case_save how = {.world = 1, .step = 50}, next = {.world = 1, .step = 55, .keep_last = 1};
    case_save_ok(&how, path);
    case_path(renamed, "step-00000005");
    assert_int_equal(rename(path, renamed), 0);
    case_save_ok(&next, path);
    assert_true(case_has("step-00000005"));
}

/* `latest` is a convenience: an obstacle to it is a warning. */
static void test_latest_that_cannot_be_moved(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX];
    struct case_save how = {.world = 1, .step = 3};
    case_path(path, "latest");
    assert_int_equal(mkdir(path, 0777), 0);
    case_path(path, "latest/x");
    case_write(path, "x", 1);
    case_save_ok(&how, path);
    case_load_ok(case_dir, false, 1, 3);
    assert_int_equal(case_count(".tmp-"), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, case_setup, case_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_what_leads_nowhere),
        TEST(test_mending),
        TEST(test_keep_last),
        TEST(test_keep_best),
        TEST(test_scores_are_read_back),
        TEST(test_names_of_users),
        TEST(test_a_save_opens_no_older_checkpoint),
        TEST(test_saves_do_not_depend_on_the_number_of_checkpoints),
        TEST(test_checkpoints_with_a_missing_file_do_not_count),
        TEST(test_a_best_checkpoint_with_a_missing_file_does_not_count),
        TEST(test_tokenizer_files_are_kept_from_the_start),
        TEST(test_a_rank_of_another_start_is_not_in_the_way),
        TEST(test_names_in_the_way),
        TEST(test_replaced_one_counts_until_its_successor_is_there),
        TEST(test_replaced_one_stays_beside_a_damaged_successor),
        TEST(test_renamed_one_is_not_deleted),
        TEST(test_latest_that_cannot_be_moved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
