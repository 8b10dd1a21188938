/* SPDX-License-Identifier: Apache-2.0 */
/* test_gpu_fault.c: what the self-test in a new process says of a GPU, by its output and its end, and what becomes of
 * an error. The programs are shell scripts, and this program where ztrain executes itself. NVML is missing here:
 * tests/emulation/test_gpu_fault.py has its words, and runs. */
#include "cmd/engine/gpu_fault.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static enum gpu_fault_test run_script(const char *script, int seconds, char said[128])
{
    char path[] = "/tmp/ztrain-gpu-fault-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    dprintf(fd, "#!/bin/sh\n[ \"$*\" = 'doctor --gpu-test --gpu 3' ] || exit 9\n%s\n", script);
    assert_int_equal(fchmod(fd, 0700), 0);
    close(fd);
    const enum gpu_fault_test result = gpu_fault_test(path, 3, seconds, said, 128);
    unlink(path);
    return result;
}

static void an_end_has_a_meaning(void **state)
{
    static const struct {
        const char *script, *said;
        enum gpu_fault_test result;
    } cases[] = {
        {"echo '  op adam   right'", "", GPU_TEST_RIGHT},
        {"echo '  op adam   WRONG: 1'; echo 'ztrain: error: the self-test of X failed: op adam: 1; hint: no' >&2; exit "
         "5",
         ": the self-test of X failed: op adam: 1", GPU_TEST_WRONG},
        {"echo 'error: the self-test of X found wrong results with graphs, which runs do without'; exit 5",
         ": the self-test of X found wrong results with graphs, which runs do without", GPU_TEST_RIGHT},
        {"head -c 100000 /dev/zero | tr '\\0' x; echo 'ztrain: error: launch failure' >&2; exit 6", ": launch failure",
         GPU_TEST_WRONG},
        {"echo 'ztrain: error: ECC' >&2; exit 8", ": ECC", GPU_TEST_WRONG},
        {"echo 'ztrain: error: cannot allocate' >&2; exit 5", ": cannot allocate", GPU_TEST_UNKNOWN},
        {"exit 9", ": exit code 9", GPU_TEST_UNKNOWN},
        {"kill -9 $$", ": exit code 137", GPU_TEST_UNKNOWN},              /* for memory */
        {"exec >/dev/null 2>&1; sleep 0.05; exit 0", "", GPU_TEST_RIGHT}, /* its output ends before it does */
    };
    char said[128];
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const enum gpu_fault_test result = run_script(cases[i].script, 20, said);
        assert_string_equal(said, cases[i].said);
        assert_int_equal(result, cases[i].result);
    }
    assert_int_equal(gpu_fault_test("/nowhere/ztrain", 0, 20, said, sizeof said), GPU_TEST_UNKNOWN);
}

static void a_test_that_hangs_is_ended(void **state)
{
    char said[128];
    (void)state;
    assert_int_equal(run_script("echo '  op adam right'; exec sleep 1000", 1, said), GPU_TEST_WRONG);
    assert_string_equal(said, ": it does not end within 1 s");
}

/* As ztrain doctor, with what DOCTOR says. */
static int play_doctor(void)
{
    const char *script = getenv("DOCTOR");
    fprintf(stderr, "%s\n", script + 2);
    return *script - '0';
}

static void expect_verdict(const char *doctor, enum status code, enum failure failure, const char *text)
{
    struct device device = {.id = ""};
    struct error err;
    setenv("DOCTOR", doctor, 1);
    fault.code = STATUS_OK;
    gpu_fault_watch(&device, 0);
    for (int asked = 0; asked < 2; asked++) { /* a second one, as of NCCL, gets the same verdict */
        error_set(&err, STATUS_PEER, "GPU 0: a copy (cudaErrorX)%s", asked ? "" : "; hint: first");
        device.examine(&device, &err);
        assert_int_equal(err.code, code);
        assert_int_equal(err.failure, failure);
        assert_true(strncmp(err.text, "GPU 0: a copy (cudaErrorX): ", 28) == 0);
        assert_non_null(strstr(err.text, text));
        const char *hint = strstr(err.text, "; hint: ");
        assert_non_null(hint);
        assert_null(strstr(hint + 1, "; hint: "));
        assert_null(strstr(hint, "first"));
        setenv("DOCTOR", "4 not asked again", 1);
    }
    gpu_fault_unwatch(&device);
}

static void an_error_gets_a_verdict(void **state)
{
    (void)state;
    expect_verdict("0 right", STATUS_PEER, FAILURE_SOFTWARE,
                   ": a fault of software, not of this node: NVML reports nothing of this GPU, and a self-test in a "
                   "new process passes; hint: resume, and report this message with the run spec");
    expect_verdict("5 error: cannot allocate; hint: x", STATUS_PEER, FAILURE_SOFTWARE,
                   "and a self-test in a new process could not run: cannot allocate; hint: resume");
    expect_verdict("5 error: the self-test of X found wrong results with graphs, which runs do without", STATUS_PEER,
                   FAILURE_SOFTWARE,
                   "passes: the self-test of X found wrong results with graphs, which runs do without;");
    expect_verdict("5 error: the self-test of X failed: op adam: 1; hint: x", STATUS_BROKEN, FAILURE_NONE,
                   ": the GPU is broken: its self-test in a new process fails: the self-test of X failed: op adam: 1; "
                   "hint: dmesg has");
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "doctor")) return play_doctor();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_end_has_a_meaning),
        cmocka_unit_test(a_test_that_hangs_is_ended),
        cmocka_unit_test(an_error_gets_a_verdict),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
