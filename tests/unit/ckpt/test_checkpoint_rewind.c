/* SPDX-License-Identifier: Apache-2.0 */
/* test_checkpoint_rewind.c: a run has one history: a resume moves checkpoints aside and back; a kill at any instant
 * loses none. */
#include "tests/unit/fixtures/checkpoint_case.h"

#include "ckpt/checkpoint_rewind.h"
#include "core/metrics/metrics.h"

#include <jansson.h>

/* Two histories that part after step 3. A checkpoint shows its history by its compression level, a line by its lr: both
 * have these values. */
enum { PARTED = 3, LEFT = 3, NEW = 0 };

static char run[FS_PATH_MAX], kept[FS_PATH_MAX]; /* the run folder, and a copy from which each attempt begins */
static char metrics_path[FS_PATH_MAX];

static int setup(void **unused)
{
    if (case_setup(unused)) return -1;
    strcpy(run, case_dir);
    snprintf(kept, sizeof kept, "%.4000s-kept", run);
    snprintf(metrics_path, sizeof metrics_path, "%.4000s/metrics.jsonl", run);
    strcat(case_dir, "/checkpoints");
    return 0;
}

static int teardown(void **unused)
{
    case_teardown(unused);
    case_remove(run);
    case_remove(kept);
    return 0;
}

/* Trains from step `from` on, with checkpoints after the steps that are given (0 ends them), to the last of them. */
static void train(int64_t from, int history, const int64_t *saved)
{
    char path[FS_PATH_MAX];
    for (int64_t step = from; *saved; step++) {
        FILE *file = fopen(metrics_path, "a");
        fprintf(file, "{\"step\":%" PRId64 ",\"lr\":%d}\n", step, history);
        if (step == *saved) {
            struct case_save how = {.world = 1, .step = step, .level = history};
            struct checkpoint *checkpoint;
            case_save_ok(&how, path);
            assert_int_equal(checkpoint_open(path, false, &checkpoint, NULL), STATUS_OK);
            fprintf(file, "{\"checkpoint\":\"%s\",\"step\":%" PRId64 ",\"bytes\":%" PRId64 ",\"seconds_stalled\":1}\n",
                    path, step, checkpoint->bytes);
            checkpoint_close(checkpoint);
            saved++;
        }
        fclose(file);
    }
}

/* Resumes from `name` (NULL: the run folder) as a run does before its first step. */
static enum status resume(const char *name, struct error *err)
{
    enum status status;
    char path[FS_PATH_MAX];
    struct checkpoint *checkpoint;
    struct checkpoint_rewind rewind;
    struct metrics *metrics = NULL;
    snprintf(path, sizeof path, "%s", run);
    if (name) case_path(path, "%s", name);
    TRY(checkpoint_open(path, !name, &checkpoint, err));
    TRY_GOTO(checkpoint_rewind_plan(run, checkpoint, !name, &rewind, err));
    TRY_GOTO(checkpoint_rewind_apply(&rewind, err));
    case_path(path, "%s", rewind.name);
    struct metrics_history lines = {.step = checkpoint->position.step,
                                    .checkpoint = path,
                                    .bytes = checkpoint->bytes,
                                    .from = rewind.metrics_from,
                                    .former = rewind.number};
    TRY_GOTO(metrics_open(metrics_path, &lines, &metrics, err));
    TRY_GOTO(metrics_resume(metrics, path, checkpoint->position.step, 1, err));
fail:
    metrics_close(metrics);
    checkpoint_rewind_release(&rewind);
    checkpoint_close(checkpoint);
    return status;
}

static void resume_ok(const char *name)
{
    struct error err;
    if (resume(name, &err) != STATUS_OK) fail_msg("%s", err.text);
}

static int level_of(const struct checkpoint *checkpoint)
{
    return (int)json_integer_value(json_object_get(checkpoint->manifest, "compression_level"));
}

/* Checks the newest checkpoint, and that metrics.jsonl has the lines that led to it and no others. */
static void check_history(int64_t step, int history)
{
    struct checkpoint *checkpoint;
    struct error err;
    char line[1024];
    int64_t next = 1;
    bool named = false;
    if (checkpoint_open(run, true, &checkpoint, &err) != STATUS_OK) fail_msg("%s", err.text);
    assert_int_equal(checkpoint->position.step, step);
    assert_int_equal(level_of(checkpoint), history);
    FILE *file = fopen(metrics_path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        json_t *object = json_loads(line, 0, NULL), *lr = json_object_get(object, "lr");
        assert_non_null(object);
        if (lr) {
            assert_int_equal(json_integer_value(json_object_get(object, "step")), next);
            assert_int_equal(json_integer_value(lr), next <= PARTED ? LEFT : history);
            next++;
        }
        const char *name = json_string_value(json_object_get(object, "checkpoint"));
        if (name && !strcmp(name, checkpoint->path) &&
            json_integer_value(json_object_get(object, "bytes")) == checkpoint->bytes)
            named = true;
        json_decref(object);
    }
    fclose(file);
    assert_int_equal(next, step + 1);
    assert_true(named);
    case_load_ok(checkpoint->path, false, 1, step);
    checkpoint_close(checkpoint);
}

/* The number of checkpoint folders, including those moved aside. */
static int count_checkpoints(void)
{
    return case_count("step-") + case_count("epoch-");
}

static void test_a_resume_from_further_back(void **unused)
{
    (void)unused;
    const int64_t left[] = {3, 6, 9, 12, 0}, fresh[] = {5, 8, 0};
    char link[FS_PATH_MAX], target[64] = "";
    train(1, LEFT, left);
    resume_ok("step-00000003");
    check_history(3, LEFT);
    assert_true(case_has("step-00000006.aside-1") && case_has("step-00000009.aside-1") &&
                case_has("step-00000012.aside-1"));
    case_path(link, "latest");
    assert_int_equal(readlink(link, target, sizeof target - 1), strlen("step-00000003"));
    assert_string_equal(target, "step-00000003");
    train(4, NEW, fresh);
    resume_ok(NULL);
    check_history(8, NEW);

    resume_ok("step-00000009.aside-1"); /* back to the history that was left */
    check_history(9, LEFT);
    assert_true(case_has("step-00000005.aside-2") && case_has("step-00000008.aside-2"));
    assert_true(case_has("step-00000006.aside-1") && case_has("step-00000012.aside-1"));
    resume_ok("step-00000008.aside-2"); /* and forth again */
    check_history(8, NEW);
    assert_true(case_has("step-00000009.aside-3"));
    assert_int_equal(count_checkpoints(), 6);
}

static void copy_tree(const char *from, const char *to)
{
    char command[3 * FS_PATH_MAX + 64];
    snprintf(command, sizeof command, "rm -rf '%s' && cp -a '%s' '%s'", to, from, to);
    assert_int_equal(system(command), 0);
}

static int interrupted(void)
{
    struct checkpoint *checkpoint;
    struct checkpoint_rewind rewind;
    struct error err;
    assert_int_equal(checkpoint_open(run, true, &checkpoint, &err), STATUS_OK);
    assert_int_equal(checkpoint_rewind_plan(run, checkpoint, true, &rewind, &err), STATUS_OK);
    checkpoint_rewind_release(&rewind);
    checkpoint_close(checkpoint);
    return rewind.interrupted;
}

static void put_aside(const char *name)
{
    char from[FS_PATH_MAX], to[FS_PATH_MAX];
    case_path(from, "%s", name);
    case_path(to, "%s.aside-1", name);
    assert_int_equal(rename(from, to), 0);
}

/* A kill while checkpoints go aside is noticed by the resume that follows it, once. */
static void test_an_interrupted_resume(void **unused)
{
    (void)unused;
    const int64_t left[] = {3, 6, 9, 12, 0};
    char former[FS_PATH_MAX];
    train(1, LEFT, left);
    assert_int_equal(interrupted(), 0);
    snprintf(former, sizeof former, "%.4000s.1", metrics_path);
    assert_int_equal(link(metrics_path, former), 0);
    assert_int_equal(interrupted(), 0);
    put_aside("step-00000006");
    assert_int_equal(interrupted(), 1);
    copy_tree(run, kept);
    resume_ok(NULL);
    check_history(12, LEFT);
    assert_int_equal(interrupted(), 0);

    copy_tree(kept, run);
    put_aside("step-00000009");
    put_aside("step-00000012");
    assert_int_equal(interrupted(), 0); /* the resume has completed */
    resume_ok(NULL);
    check_history(3, LEFT);
    assert_int_equal(interrupted(), 0);
}

/* Two checkpoints of one step: one before its evaluation, one after it. */
static void test_two_of_one_step(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX];
    struct case_save due = {.world = 1, .step = 6, .level = LEFT, .evaluation_due = true};
    struct case_save end = {.world = 1, .step = 6, .level = LEFT, .epoch = 1};
    case_save_ok(&due, path);
    case_save_ok(&end, path);
    resume_ok(NULL);
    assert_true(case_has("step-00000006") && case_has("epoch-0001"));
    resume_ok("step-00000006");
    assert_true(case_has("step-00000006") && case_has("epoch-0001.aside-1"));
    resume_ok("epoch-0001.aside-1");
    assert_true(case_has("step-00000006") && case_has("epoch-0001"));
}

/* Damaged checkpoints that are skipped do not come back if they become readable. */
static void test_damaged_ones_go_aside(void **unused)
{
    (void)unused;
    const int64_t left[] = {3, 6, 9, 12, 0};
    char path[FS_PATH_MAX];
    size_t bytes;
    train(1, LEFT, left);
    case_path(path, "step-00000012/manifest.json");
    assert_int_equal(truncate(path, 100), 0);
    case_path(path, "step-00000009/rank-00000.zst");
    char *data = case_read(path, &bytes);
    data[bytes / 2] ^= 8;
    case_write(path, data, bytes);
    free(data);
    resume_ok(NULL);
    check_history(6, LEFT);
    assert_true(case_has("step-00000012.damaged-1") && case_has("step-00000009.damaged-1"));
}

#ifdef ZTRAIN_FAULTS
/* Resumes from `name` with every call failing in turn, and then from the run folder: that finds `before` (the newest of
 * the old history, as if `name` had not been given) or `after` (the checkpoint `name`), and nothing is lost. */
static void sweep(const char *name, const char *action, int64_t before, int history_before, int64_t after,
                  int history_after)
{
    int checkpoints = count_checkpoints(), taken[2] = {0, 0};
    copy_tree(run, kept);
    for (int n = 1, reached = 1; reached; n++) {
        int wait_status;
        copy_tree(kept, run);
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0) {
            struct error err;
            char fault[64];
            snprintf(fault, sizeof fault, "any:%d:%s", n, action);
            faults_arm(fault);
            enum status status = resume(name, &err);
            _exit(faults_count() < n ? 100 : status == STATUS_OK ? 0 : 1);
        }
        assert_int_equal(waitpid(pid, &wait_status, 0), pid);
        reached = WIFSIGNALED(wait_status) || WEXITSTATUS(wait_status) != 100;
        assert_true(!WIFSIGNALED(wait_status) || WTERMSIG(wait_status) == SIGKILL);
        assert_true(n < 80);
        resume_ok(NULL);
        struct checkpoint *checkpoint;
        assert_int_equal(checkpoint_open(run, false, &checkpoint, NULL), STATUS_OK);
        bool new_history = level_of(checkpoint) == history_after && checkpoint->position.step == after;
        checkpoint_close(checkpoint);
        check_history(new_history ? after : before, new_history ? history_after : history_before);
        assert_int_equal(count_checkpoints(), checkpoints);
        taken[new_history]++;
        assert_true(reached || new_history);
        assert_true(!new_history || n > 1);
    }
    assert_true(taken[0] > 0 && taken[1] > 1);
}
#endif

static void test_a_kill_at_every_call(void **unused)
{
    (void)unused;
#ifdef ZTRAIN_FAULTS
    const int64_t left[] = {3, 6, 9, 12, 0}, fresh[] = {5, 8, 0}, further[] = {9, 10, 0};
    train(1, LEFT, left);
    sweep("step-00000003", "kill", 12, LEFT, 3, LEFT);
    copy_tree(kept, run);
    sweep("step-00000003", "EIO", 12, LEFT, 3, LEFT);
    copy_tree(kept, run);
    resume_ok("step-00000003");
    train(4, NEW, fresh);
    sweep("step-00000009.aside-1", "kill", 8, NEW, 9, LEFT);
    copy_tree(kept, run);
    train(9, NEW, further); /* its name is taken, and one checkpoint is ahead of it */
    sweep("step-00000009.aside-1", "kill", 10, NEW, 9, LEFT);
#else
    skip();
#endif
}

/* A file system that cannot exchange two names. */
static void test_a_name_that_is_taken_without_exchange(void **unused)
{
    (void)unused;
#ifdef ZTRAIN_FAULTS
    const int64_t left[] = {3, 6, 9, 0}, fresh[] = {9, 0};
    train(1, LEFT, left);
    resume_ok("step-00000003");
    train(4, NEW, fresh);
    assert_true(faults_arm("rename:1:EINVAL"));
    resume_ok("step-00000009.aside-1");
    faults_arm(NULL);
    check_history(9, LEFT);
    assert_true(case_has("step-00000009.aside-2"));
#else
    skip();
#endif
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_a_resume_from_further_back),
        TEST(test_an_interrupted_resume),
        TEST(test_two_of_one_step),
        TEST(test_damaged_ones_go_aside),
        TEST(test_a_kill_at_every_call),
        TEST(test_a_name_that_is_taken_without_exchange),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
