/* SPDX-License-Identifier: Apache-2.0 */
/* test_slow_io.c: a rank whose disk is slow. Each case is a job of two ranks: rank 1 does something to files, one of
 * its system calls takes much longer than comm.timeout_seconds, and rank 0 waits for it in a barrier. */
#include "tests/unit/fixtures/ranks.h"

#include "core/data/token_set.h"
#include "core/faults.h"
#include "core/fsutil.h"
#include "core/heartbeat.h"
#include "core/metrics/metrics.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static struct error error;
static char folder[] = "/tmp/ztrain-slow-XXXXXX";

/* ---- a slow file system: definitions that precede libc's ----------------- */

static const char *slow_name; /* the call that is slow; NULL: none */
static double slow_seconds;   /* INFINITY: the process stops in the call forever */
static _Thread_local bool nested;

static void wait_in(const char *name)
{
    if (!slow_name || strcmp(name, slow_name) != 0 || nested) return;
    slow_name = NULL; /* only one call is slow */
    nested = true;
    if (slow_seconds > 1e6) raise(SIGSTOP);
    for (double end = seconds_now() + slow_seconds; seconds_now() < end;) usleep(10000);
    nested = false;
}

#define REAL(result, name, parameters) \
    wait_in(#name);                    \
    result(*real) parameters;          \
    *(void **)&real = dlsym(RTLD_NEXT, #name)

ssize_t pread(int fd, void *data, size_t bytes, off_t offset)
{
    REAL(ssize_t, pread, (int, void *, size_t, off_t));
    return real(fd, data, bytes, offset);
}

ssize_t write(int fd, const void *data, size_t bytes)
{
    REAL(ssize_t, write, (int, const void *, size_t));
    return real(fd, data, bytes);
}

int fsync(int fd)
{
    REAL(int, fsync, (int));
    return real(fd);
}

int close(int fd)
{
    REAL(int, close, (int));
    return real(fd);
}

int rename(const char *from, const char *to)
{
    REAL(int, rename, (const char *, const char *));
    return real(from, to);
}

int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    REAL(int, open, (const char *, int, ...));
    return real(path, flags, mode);
}

int mkdir(const char *path, mode_t mode)
{
    REAL(int, mkdir, (const char *, mode_t));
    return real(path, mode);
}

int remove(const char *path)
{
    REAL(int, remove, (const char *));
    return real(path);
}

/* ---- what rank 1 does ---------------------------------------------------- */

static const char *at(const char *name)
{
    static char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* A file name for this process only, because jobs run at the same time. */
static const char *own(const char *name)
{
    char mine[64];
    snprintf(mine, sizeof mine, "%s-%d", name, (int)getpid());
    return at(mine);
}

static void read_data(void)
{
    const char *patterns[] = {at("data.bin")};
    struct token_set *set;
    int32_t ids[8];
    CHECK_OK(token_set_open(patterns, 1, &set, &error));
    CHECK_OK(token_set_read(set, 0, 8, 100, ids, NULL, &error));
    token_set_close(set);
}

static void write_metrics(void)
{
    struct metrics *metrics;
    const struct step_metrics step = {.step = 1};
    CHECK_OK(metrics_open(own("metrics.jsonl"), NULL, &metrics, &error));
    CHECK_OK(metrics_step(metrics, &step, &error));
    CHECK_OK(metrics_flush(metrics, &error));
    metrics_close(metrics);
}

static void write_file(void)
{
    CHECK_OK(fs_write_file(own("file"), "text", 4, STATUS_DATA, &error));
}

static void make_folders(void)
{
    CHECK_OK(fs_mkdirs(own("some"), STATUS_DATA, &error));
}

static void remove_file(void)
{
    CHECK(FAULT(REMOVE, io_remove(at("superfluous"))) == 0);
}

/* A GPU's library takes as long. */
static void call_device(void)
{
    const struct timespec seconds = {.tv_sec = (time_t)slow_seconds, .tv_nsec = (long)(1e9 * fmod(slow_seconds, 1))};
    CHECK(!heartbeat_is_patient());
    heartbeat_device_begin();
    CHECK(heartbeat_is_patient());
    nanosleep(&seconds, NULL);
    heartbeat_device_end();
    slow_name = NULL;
}

static const struct slow_case {
    const char *call;
    void (*act)(void);
} cases[] = {
    {"pread", read_data},     {"open", read_data},      {"close", read_data},        {"write", write_metrics},
    {"fsync", write_metrics}, {"close", write_metrics}, {"rename", write_file},      {"write", write_file},
    {"mkdir", make_folders},  {"remove", remove_file},  {"a device's", call_device},
};

/* ---- jobs ---------------------------------------------------------------- */

static const double timeout = 0.5;

static void survive(struct bootstrap *boot, void *context)
{
    const struct slow_case *slow = context;
    const struct comm_config config = {.timeout_seconds = timeout};
    struct comm *comm;
    CHECK_OK(comm_open(boot, &config, &comm, &error));
    if (boot->rank == 1) {
        slow_seconds = 3 * timeout;
        slow_name = slow->call;
        slow->act();
        CHECK(!slow_name); /* the call was made */
    }
    CHECK_OK(comm_barrier(comm, &error));
    comm_close(comm);
}

/* Runs all jobs at once, because they wait most of the time. */
static void test_slow_calls_are_no_silence(void **state)
{
    (void)state;
    struct ranks jobs[COUNT_OF(cases)];
    for (size_t i = 0; i < COUNT_OF(cases); i++) ranks_start(&jobs[i], 2, NULL, survive, (void *)&cases[i]);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        for (int r = 0; r < 2; r++)
            if (ranks_wait(&jobs[i], r) != 0) fail_msg("a slow %s ends rank %d", cases[i].call, r);
        ranks_end(&jobs[i]);
    }
}

static void leave(void *context, const char *text)
{
    CHECK(context == folder && strstr(text, "in reading '") && strstr(text, "/data.bin'"));
    _exit(STATUS_PEER);
}

static void hang(struct bootstrap *boot, void *context)
{
    const bool stops = *(bool *)context;
    const struct comm_config config = {.timeout_seconds = stops ? timeout : 60,
                                       .io_timeout_seconds = stops ? 600 : timeout,
                                       .stuck = leave,
                                       .stuck_context = folder};
    struct comm *comm;
    CHECK_OK(comm_open(boot, &config, &comm, &error));
    CHECK_OK(comm_barrier(comm, &error));
    if (boot->rank == 1) {
        slow_seconds = stops ? 1e9 : RANKS_LIMIT;
        slow_name = "pread";
        read_data();
    }
    CHECK(comm_barrier(comm, &error) == STATUS_PEER);
    fprintf(stderr, "%s\n", error.text);
    CHECK(strncmp(error.text, "rank 1 on here ", 15) == 0);
    if (stops) /* it does not wait for the disk: it is stopped */
        CHECK(strstr(error.text, "has been silent for 0.45 s"));
    else
        CHECK(strstr(error.text, "no progress for 0.5 s in reading '") && strstr(error.text, "/data.bin'") &&
              strstr(error.text, "(comm.io_timeout_seconds)"));
    comm_close(comm);
}

static void test_a_limit_of_its_own(void **state)
{
    (void)state;
    struct ranks ranks;
    bool stops = false;
    ranks_start(&ranks, 2, NULL, hang, &stops);
    assert_int_equal(ranks_wait(&ranks, 0), 0);
    int status = ranks_wait(&ranks, 1);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == STATUS_PEER);
    ranks_end(&ranks);
}

static void test_a_stopped_process_does_not_wait_for_its_disk(void **state)
{
    (void)state;
    struct ranks ranks;
    bool stops = true;
    ranks_start(&ranks, 2, NULL, hang, &stops);
    assert_int_equal(ranks_wait(&ranks, 0), 0);
    kill(ranks.pids[1], SIGKILL);
    ranks_wait(&ranks, 1);
    ranks_end(&ranks);
}

static int make_files(void **state)
{
    (void)state;
    int32_t header[256] = {20240520, 1, 8};
    const uint16_t ids[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    FILE *file = mkdtemp(folder) ? fopen(at("data.bin"), "w") : NULL;
    if (!file) return -1;
    fwrite(header, sizeof header, 1, file);
    fwrite(ids, sizeof ids, 1, file);
    fclose(file);
    file = fopen(at("superfluous"), "w");
    return file ? fclose(file) : -1;
}

static int remove_files(void **state)
{
    (void)state;
    char command[100];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slow_calls_are_no_silence),
        cmocka_unit_test(test_a_limit_of_its_own),
        cmocka_unit_test(test_a_stopped_process_does_not_wait_for_its_disk),
    };
    return cmocka_run_group_tests_name("slow I/O", tests, make_files, remove_files);
}
