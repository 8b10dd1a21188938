/* SPDX-License-Identifier: Apache-2.0 */
/* test_activation_store_cuda.c: the activation store on a GPU, or on the emulated one, where each of its waits is left
 * out once: the emulation has to find every one of these missing events. A machine without a GPU runs it on the CPU.
 *
 * The store's source is compiled into this file under other names, with a stream_wait() that can forget one call. */
#include "gpu/device.h"

static int waits, forgotten; /* calls so far; the number of the call that is forgotten, from 1; 0: none */

static void forgetful_wait(struct stream *stream, struct event *event)
{
    if (++waits != forgotten) stream_wait(stream, event);
}

#define activation_store_new tested_store_new
#define activation_store_free tested_store_free
#define activation_store_layout tested_store_layout
#define activation_store_verbs tested_store_verbs
#define stream_wait forgetful_wait
#include "gpu/activation_store.c"
#undef stream_wait

#include "gpu/open/device_open.h"

#include "tests/unit/fixtures/activation_store_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { BLOCKS = 6, FAILED = 1 };

/* Trains two micro-batches in a child process, which opens the device. Returns its exit code, and its errors in
 * `text`; the number of waits is in *count. */
static int two_micro_batches(int forget, char *text, size_t size, int *count)
{
    int out[2];
    assert_int_equal(pipe(out), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct device *device;
        struct error err;
        struct store_case c;
        dup2(out[1], STDERR_FILENO);
        close(out[0]);
        forgotten = forget;
        if (device_open(DEVICE_CUDA, 0, 1, &device, &err) != STATUS_OK &&
            device_open(DEVICE_CPU, 0, 1, &device, &err) != STATUS_OK)
            _exit(FAILED);
        bool right = store_case_open(&c, device, 0, BLOCKS);
        right = right && store_case_micro(&c, 1, STORE_BYTES) + store_case_micro(&c, 2, STORE_BYTES / 2) == 2;
        store_case_close(&c); /* runs the copies that nothing has waited for */
        right = right && device_check(device, &err) == STATUS_OK;
        fprintf(stderr, "waits %d\n", waits);
        fflush(NULL);
        _exit(right ? 0 : FAILED);
    }
    close(out[1]);
    size_t used = 0;
    for (ssize_t n; (n = read(out[0], text + used, size - 1 - used)) > 0;) used += (size_t)n;
    text[used] = '\0';
    close(out[0]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    const char *at = strstr(text, "waits ");
    *count = at ? atoi(at + strlen("waits ")) : 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : FAILED;
}

static void test_inputs_come_back(void **state)
{
    (void)state;
    char text[8192];
    int count, code = two_micro_batches(0, text, sizeof text, &count);
    if (code != 0) fail_msg("%s", text);
    /* in each micro-batch: 3 copies down, 3 copies up, as many waits for a buffer and for an input */
    assert_int_equal(count, 2 * 4 * (BLOCKS - STORE_BUFFERS));
}

#if defined(ZTRAIN_EMULATION)
static void test_every_wait_is_needed(void **state)
{
    (void)state;
    char text[8192];
    int all, count;
    assert_int_equal(two_micro_batches(0, text, sizeof text, &all), 0);
    for (int n = 1; n <= all; n++) {
        int code = two_micro_batches(n, text, sizeof text, &count);
        if (code == 0 || !strstr(text, "missing event"))
            fail_msg("without wait %d of %d: exit code %d, %s", n, all, code, text);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_inputs_come_back),
#if defined(ZTRAIN_EMULATION)
        cmocka_unit_test(test_every_wait_is_needed),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
