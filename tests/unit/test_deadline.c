/* test_deadline.c: when a job of Slurm ends, and when that is near. squeue is a script of ours. */
#include "cmd/deadline.c"
#include "core/progress.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/stat.h>

#include <cmocka.h>

static void test_parsing(void **state)
{
    (void)state;
    double end;
    setenv("TZ", "UTC", 1);
    tzset();
    assert_true(parse_end("1795282200", &end) && end == 1795282200);
    assert_true(parse_end("2026-11-21T17:30:00\n", &end) && end == 1795282200);
    setenv("TZ", "UTC+1", 1); /* an hour behind */
    tzset();
    assert_true(parse_end("2026-11-21T17:30:00", &end) && end == 1795285800);
    unsetenv("TZ");
    tzset();
    static const char *const others[] = {
        "", "NONE", "N/A", "0", "-5", "99999999999999999999", "17:3", "2026-11-21", "2026-11-21T17:30:00 or so"};
    for (size_t i = 0; i < COUNT_OF(others); i++)
        if (parse_end(others[i], &end))
            fail_msg("'%s' is %.0f", others[i], end);
}

/* Puts a squeue with this body in front of the path. */
static void fake_squeue(const char *folder, const char *body)
{
    char path[128];
    snprintf(path, sizeof path, "%s/squeue", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "#!/bin/sh\n%s\n", body);
    fclose(file);
    assert_int_equal(chmod(path, 0755), 0);
}

static void test_asking(void **state)
{
    (void)state;
    char folder[] = "/tmp/test-deadline-XXXXXX", path[256], *old = strdup(getenv("PATH"));
    struct deadline deadline;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s:%s", folder, old);
    setenv("PATH", path, 1);
    double now = seconds_now();

    unsetenv("SLURM_JOB_ID");
    unsetenv("SLURM_JOB_END_TIME");
    fake_squeue(folder, "date +%s");
    deadline_init(&deadline, 1);
    assert_true(isinf(deadline.end)); /* no job */
    setenv("SLURM_JOB_ID", "17", 1);
    fake_squeue(folder, "[ \"$*\" = '-h -j 17 -o %e' ] && [ \"$SLURM_TIME_FORMAT\" = standard ] && "
                        "[ -z \"$PMI_FD$ZTRAIN_JOB_SECRET\" ] && date -d '+600 seconds' +%Y-%m-%dT%H:%M:%S");
    setenv("PMI_FD", "9", 1);
    setenv("ZTRAIN_JOB_SECRET", "not for squeue", 1);
    setenv("SLURM_TIME_FORMAT", "relative", 1);
    deadline_init(&deadline, 1);
    assert_true(deadline.end > now + 590 && deadline.end < now + 660);
    fake_squeue(folder, "echo NONE");
    deadline_init(&deadline, 1);
    assert_true(isinf(deadline.end));
    fake_squeue(folder, "exit 1");
    deadline_init(&deadline, 1);
    assert_true(isinf(deadline.end));
    fake_squeue(folder, "sleep 100"); /* it does not answer: nobody waits for it */
    _Atomic uint64_t *counter = atomic_load(&progress_counter);
    uint64_t ticks = atomic_load(counter);
    deadline_init(&deadline, 1);
    assert_true(atomic_load(counter) - ticks >= 10); /* this rank has not been silent */
    assert_true(isinf(deadline.end));
    assert_true(seconds_now() - now < 60);

    char text[32];
    snprintf(text, sizeof text, "%.0f", seconds_since_1970() + 300);
    setenv("SLURM_JOB_END_TIME", text, 1); /* then nobody is asked */
    now = seconds_now();
    deadline_init(&deadline, 1);
    assert_true(deadline.end > now + 290 && deadline.end < now + 310);
    setenv("SLURM_JOB_END_TIME", "4000000000", 1); /* that is no limit */
    deadline_init(&deadline, 1);
    assert_true(isinf(deadline.end));

    unsetenv("SLURM_JOB_END_TIME");
    unsetenv("SLURM_JOB_ID");
    unsetenv("PMI_FD");
    unsetenv("ZTRAIN_JOB_SECRET");
    unsetenv("SLURM_TIME_FORMAT");
    setenv("PATH", "/nowhere", 1);
    setenv("SLURM_JOB_ID", "17", 1);
    deadline_init(&deadline, 1);
    assert_true(isinf(deadline.end));
    unsetenv("SLURM_JOB_ID");
    setenv("PATH", old, 1);
    free(old);
    snprintf(path, sizeof path, "%s/squeue", folder);
    unlink(path);
    rmdir(folder);
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
    deadline_checkpoint(&deadline, 100); /* counts once, as a checkpoint: 1000 - 10 - 200 - 50 = 740 */
    assert_false(deadline_is_near(&deadline, 300));
    assert_int_equal(deadline.longest, 40);
    deadline.looked = 0;
    assert_false(deadline_is_near(&deadline, 739));
    deadline.looked = 0;
    assert_true(deadline_is_near(&deadline, 741));
    deadline_checkpoint(&deadline, 20);
    assert_int_equal(deadline.checkpoint, 60);
    deadline = (struct deadline){.end = INFINITY};
    assert_false(deadline_is_near(&deadline, 1e9));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parsing),
        cmocka_unit_test(test_asking),
        cmocka_unit_test(test_near),
    };
    return cmocka_run_group_tests_name("deadline", tests, NULL, NULL);
}
