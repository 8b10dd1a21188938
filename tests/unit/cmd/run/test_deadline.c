/* SPDX-License-Identifier: Apache-2.0 */
/* test_deadline.c: the end of a Slurm job, and when it is near. The test provides squeue; the job has one rank. */
#include "cmd/run/deadline.c"
#include "cmd/run/stop_signal.c"
#include "core/heartbeat.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void test_parsing(void **state)
{
    (void)state;
    double end;
    setenv("TZ", "UTC", 1);
    tzset();
    assert_true(squeue_parse_end("1795282200", &end) && end == 1795282200);
    assert_true(squeue_parse_end("2026-11-21T17:30:00\n", &end) && end == 1795282200);
    setenv("TZ", "UTC+1", 1); /* an hour earlier */
    tzset();
    assert_true(squeue_parse_end("2026-11-21T17:30:00", &end) && end == 1795285800);
    unsetenv("TZ");
    tzset();
    static const char *const others[] = {
        "", "NONE", "N/A", "0", "-5", "99999999999999999999", "17:3", "2026-11-21", "2026-11-21T17:30:00 or so"};
    for (size_t i = 0; i < COUNT_OF(others); i++)
        if (squeue_parse_end(others[i], &end)) fail_msg("'%s' is %.0f", others[i], end);
}

/* Plays job 17 of a Slurm whose squeue is a script, found first in PATH. */
struct scene {
    char folder[64], *path;
};

static void scene_begin(struct scene *scene)
{
    char path[4096];
    strcpy(scene->folder, "/tmp/test-deadline-XXXXXX");
    assert_non_null(mkdtemp(scene->folder));
    scene->path = strdup(getenv("PATH"));
    snprintf(path, sizeof path, "%s:%s", scene->folder, scene->path);
    setenv("PATH", path, 1);
    setenv("SLURM_JOB_ID", "17", 1);
    unsetenv("SLURM_JOB_END_TIME");
}

static void scene_end(struct scene *scene)
{
    char command[128];
    setenv("PATH", scene->path, 1);
    free(scene->path);
    unsetenv("SLURM_JOB_ID");
    unsetenv("SLURM_JOB_END_TIME");
    snprintf(command, sizeof command, "rm -r %s", scene->folder);
    assert_int_equal(system(command), 0);
}

/* From now on squeue is a script with this body; a query in progress gets the old or the new one. */
static void fake_squeue(const struct scene *scene, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void fake_squeue(const struct scene *scene, const char *format, ...)
{
    char path[128], made[128];
    snprintf(path, sizeof path, "%s/squeue", scene->folder);
    snprintf(made, sizeof made, "%s/squeue.new", scene->folder);
    FILE *file = fopen(made, "w");
    assert_non_null(file);
    fprintf(file, "#!/bin/sh\ncd %s\n", scene->folder);
    va_list args;
    va_start(args, format);
    vfprintf(file, format, args);
    va_end(args);
    fprintf(file, "\n");
    fclose(file);
    assert_int_equal(chmod(made, 0755), 0);
    assert_int_equal(rename(made, path), 0);
}

/* The whole file, or "" where it is absent. */
static void slurp(const struct scene *scene, const char *name, char text[4096])
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", scene->folder, name);
    FILE *file = fopen(path, "r");
    size_t n = file ? fread(text, 1, 4095, file) : 0;
    text[n] = 0;
    if (file) fclose(file);
}

static bool near_to(const struct deadline *deadline, double left)
{
    return fabs(deadline->end - seconds_now() - left) < 60;
}

static void pause_shortly(void)
{
    const struct timespec moment = {.tv_nsec = 5000000};
    nanosleep(&moment, NULL);
}

/* Polls until the end is about `left` seconds away. */
static void await_end(struct deadline *deadline, double left)
{
    for (double begin = seconds_now(); !near_to(deadline, left); pause_shortly()) {
        deadline_look_again(deadline);
        if (seconds_now() - begin > 120)
            fail_msg("the end is in %.0f s, expected %.0f", deadline->end - seconds_now(), left);
    }
}

/* Waits until more answers, whatever they are, have been read. */
static void await_questions(const struct scene *scene, struct deadline *deadline, size_t count)
{
    char asked[4096];
    for (double begin = seconds_now();; pause_shortly()) {
        deadline_look_again(deadline);
        slurp(scene, "asked", asked);
        if (strlen(asked) > count) /* one more query: the previous answer has been read */
            return;
        if (seconds_now() - begin > 120) fail_msg("squeue was asked %zu times", strlen(asked));
    }
}

static const double never = 1e6; /* seconds between two queries */

static void test_asking(void **state)
{
    (void)state;
    struct scene scene;
    struct deadline deadline;
    scene_begin(&scene);
    double now = seconds_now();

    unsetenv("SLURM_JOB_ID");
    fake_squeue(&scene, "echo 17 $(($(date +%%s) + 600))");
    deadline_init(&deadline, 1, never);
    assert_true(isinf(deadline.end) && !deadline.squeue); /* no job */
    deadline_release(&deadline);
    setenv("SLURM_JOB_ID", "17", 1);
    fake_squeue(&scene, "[ \"$*\" = '-h -j 17 -o %%A %%e' ] && [ \"$SLURM_TIME_FORMAT\" = %%s ] && "
                        "[ -z \"$PMI_FD$ZTRAIN_JOB_SECRET\" ] && "
                        "printf '16 99\\n171 100\\n17 %%s\\n18 101\\n' $(($(date +%%s) + 600))");
    setenv("PMI_FD", "9", 1);
    setenv("ZTRAIN_JOB_SECRET", "not for squeue", 1);
    setenv("SLURM_TIME_FORMAT", "relative", 1);
    deadline_init(&deadline, 1, never);
    assert_true(near_to(&deadline, 600));
    deadline_release(&deadline);
    unsetenv("PMI_FD");
    unsetenv("ZTRAIN_JOB_SECRET");
    unsetenv("SLURM_TIME_FORMAT");
    static const char *const no_answers[] = {"echo 17 NONE", "echo 18 1795282200", "exit 1", "exec sleep 100"};
    for (size_t i = 0; i < COUNT_OF(no_answers); i++) {
        _Atomic uint64_t *counter = atomic_load(&heartbeat_counter);
        uint64_t ticks = atomic_load(counter);
        fake_squeue(&scene, "%s", no_answers[i]);
        deadline_init(&deadline, 1, never);
        assert_true(isinf(deadline.end));
        deadline_release(&deadline);
        if (strstr(no_answers[i], "sleep"))                  /* it does not answer, and no rank waits for it */
            assert_true(atomic_load(counter) - ticks >= 10); /* this rank has kept ticking */
    }
    assert_true(seconds_now() - now < 60);

    char text[32];
    snprintf(text, sizeof text, "%.0f", clock_seconds(CLOCK_REALTIME) + 300);
    setenv("SLURM_JOB_END_TIME", text, 1); /* then squeue is not run */
    deadline_init(&deadline, 1, never);
    assert_true(near_to(&deadline, 300));
    deadline_release(&deadline);
    setenv("SLURM_JOB_END_TIME", "4000000000", 1); /* this is not a time limit */
    deadline_init(&deadline, 1, never);
    assert_true(isinf(deadline.end));
    deadline_release(&deadline);
    unsetenv("SLURM_JOB_END_TIME");
    setenv("PATH", "/nowhere", 1);
    deadline_init(&deadline, 1, 0.001);
    assert_true(isinf(deadline.end));
    deadline_release(&deadline);
    scene_end(&scene);
}

/* The number of occurrences of `part` in the text. */
static int times(const char *text, const char *part)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, part)); at++) count++;
    return count;
}

/* The limit of a running job is changed; SLURM_JOB_END_TIME stays. */
static void test_asking_again(void **state)
{
    (void)state;
    struct scene scene;
    struct deadline deadline;
    char text[4096], path[128];
    scene_begin(&scene);
    snprintf(path, sizeof path, "%s/log", scene.folder);
    assert_int_equal(log_open(path, NULL), STATUS_OK);
    double given = floor(clock_seconds(CLOCK_REALTIME)) + 3600;
    snprintf(text, sizeof text, "%.0f", given);
    setenv("SLURM_JOB_END_TIME", text, 1);
    fake_squeue(&scene, "printf x >>asked; echo 17 %.0f", given + 3); /* Slurm's times are not that exact */
    deadline_init(&deadline, 1, 0.02);
    const double first = deadline.end;
    await_questions(&scene, &deadline, 2);
    assert_true(deadline.end == first);
    fake_squeue(&scene, "echo 17 %.0f", given - 3000); /* a shorter limit: the end is near */
    await_end(&deadline, 600);
    assert_true(deadline_is_near(&deadline, seconds_now() + 590) && deadline_latest(&deadline) < first);
    fake_squeue(&scene, "echo 17 %.0f", given + 7200);
    for (double begin = seconds_now(); deadline_is_near(&deadline, begin + 590); pause_shortly())
        assert_true(seconds_now() - begin < 120); /* without another message */
    await_end(&deadline, 10800);
    fake_squeue(&scene, "echo 17 %.0f", given + 1e9); /* scontrol has removed the limit */
    for (double begin = seconds_now(); !isinf(deadline.end); pause_shortly(), deadline_look_again(&deadline))
        assert_true(seconds_now() - begin < 120);
    fake_squeue(&scene, "echo 17 %.0f", given);
    await_end(&deadline, 3600);
    deadline_release(&deadline);
    log_close();
    slurp(&scene, "log", text);
    assert_int_equal(times(text, " now (squeue), in "), 3); /* not for a difference of three seconds */
    assert_int_equal(times(text, "earlier than before"), 2);
    assert_int_equal(times(text, "later than before"), 1);
    assert_int_equal(times(text, "job 17 no longer has a time limit"), 1);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD); /* no process is left */
    scene_end(&scene);
}

/* A squeue that prints nothing or hangs changes nothing; it is killed, and the next one is run. */
static void test_asking_in_vain(void **state)
{
    (void)state;
    struct scene scene;
    struct deadline deadline;
    char text[4096];
    scene_begin(&scene);
    double given = floor(clock_seconds(CLOCK_REALTIME)) + 3600, longest = 0;
    snprintf(text, sizeof text, "%.0f", given);
    setenv("SLURM_JOB_END_TIME", text, 1);
    fake_squeue(&scene, "printf x >>asked; echo 17 NONE; echo 99 5; exit 1");
    deadline_init(&deadline, 1, 0.02);
    const double first = deadline.end;
    await_questions(&scene, &deadline, 2);
    assert_true(deadline.end == first);
    /* it hangs and ignores SIGTERM; the next one checks whether it still exists */
    fake_squeue(&scene,
                "trap '' TERM; if [ -e pid ]; then kill -0 $(cat pid) 2>/dev/null && touch two; echo 17 %.0f; else "
                "echo $$ >pid.new; mv pid.new pid; exec sleep 1000; fi",
                given + 7200);
    while (!near_to(&deadline, 10800)) {
        double begin = seconds_now();
        assert_false(deadline_is_near(&deadline, begin));
        longest = fmax(longest, seconds_now() - begin);
        assert_true(deadline.end == first || near_to(&deadline, 10800));
        assert_true(begin < first - 3600 + 120);
        pause_shortly();
    }
    assert_true(longest < 2); /* no rank has waited for the one that hung */
    char two[128];
    snprintf(two, sizeof two, "%s/two", scene.folder);
    assert_int_equal(access(two, F_OK), -1);
    /* the end of the run does not wait for it either */
    fake_squeue(&scene, "printf x >>hanging; exec sleep 1000");
    for (slurp(&scene, "hanging", text); !*text; slurp(&scene, "hanging", text)) pause_shortly();
    deadline_release(&deadline);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
    scene_end(&scene);
}

/* A checkpoint is tried again until the end of the job that is known by then. */
static void test_trying_again_until_the_end(void **state)
{
    (void)state;
    struct scene scene;
    struct deadline deadline;
    scene_begin(&scene);
    fake_squeue(&scene, "printf x >>asked; echo 17 %.0f", clock_seconds(CLOCK_REALTIME) + 3600);
    deadline_init(&deadline, 1, 0.02);
    assert_true(deadline_latest(&deadline) - seconds_now() > 3000);
    fake_squeue(&scene, "echo 17 %.0f", clock_seconds(CLOCK_REALTIME) - 10);
    for (double begin = seconds_now(); deadline_latest(&deadline) > seconds_now();) {
        assert_true(seconds_now() - begin < 120);
        pause_shortly();
        deadline_look_again(&deadline);
    }
    deadline_release(&deadline);
    scene_end(&scene);
}

static void test_near(void **state)
{
    (void)state;
    struct deadline deadline = {.end = 1000, .checkpoint = 5};
    /* 1000 - 10 - 2 * 5 = 980 */
    assert_false(deadline_is_near(&deadline, 979));
    deadline = (struct deadline){.end = 1000, .checkpoint = 5};
    assert_true(deadline_is_near(&deadline, 981));
    deadline = (struct deadline){.end = 1000, .checkpoint = 5};
    assert_false(deadline_is_near(&deadline, 100));
    assert_false(deadline_is_near(&deadline, 140)); /* a step of 40: 930 */
    assert_false(deadline_is_near(&deadline, 150)); /* a shorter one changes nothing */
    assert_false(deadline_is_near(&deadline, 190));
    deadline.saved += 100;
    deadline_measured(&deadline, 100); /* counts once, as a checkpoint: 1000 - 10 - 200 - 50 = 740 */
    assert_false(deadline_is_near(&deadline, 300));
    assert_int_equal(deadline.longest, 40);
    deadline.looked = 0;
    assert_false(deadline_is_near(&deadline, 739));
    deadline.looked = 0;
    assert_true(deadline_is_near(&deadline, 741));
    deadline_measured(&deadline, 20);
    assert_int_equal(deadline.checkpoint, 60);
    deadline = (struct deadline){.end = INFINITY};
    assert_false(deadline_is_near(&deadline, 1e9));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parsing),
        cmocka_unit_test(test_asking),
        cmocka_unit_test(test_asking_again),
        cmocka_unit_test(test_asking_in_vain),
        cmocka_unit_test(test_trying_again_until_the_end),
        cmocka_unit_test(test_near),
    };
    return cmocka_run_group_tests_name("deadline", tests, NULL, NULL);
}
