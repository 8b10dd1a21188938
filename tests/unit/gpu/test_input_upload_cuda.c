/* SPDX-License-Identifier: Apache-2.0 */
/* test_input_upload_cuda.c: the inputs of steps on a GPU, on the emulated one, where each of the upload's waits is left
 * out once and has to be missed, or on the CPU where there is none.
 *
 * The upload's source is compiled into this file under other names, with waits that can forget one call. */
#include "gpu/device.h"

static int waits, forgotten; /* calls so far; the number of the call that is forgotten, from 1; 0: none */

static void forgetful_wait(struct stream *stream, struct event *event)
{
    if (++waits != forgotten) stream_wait(stream, event);
}

static void forgetful_sync(struct event *event)
{
    if (++waits != forgotten) event_sync(event);
}

#define input_upload_new tested_upload_new
#define input_upload_free tested_upload_free
#define input_upload_layout tested_upload_layout
#define input_upload_room tested_upload_room
#define input_upload_send tested_upload_send
#define stream_wait forgetful_wait
#define event_sync forgetful_sync
#include "gpu/input_upload.c"
#undef stream_wait
#undef event_sync

#include "gpu/open/device_open.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { BYTES = 1 << 16, STEPS = 5, FAILED = 1 };

struct upload_case {
    struct device *device;
    struct stream *compute;
    struct input_upload *upload;
    char *memory, *results; /* device; results: (STEPS, BYTES) */
    void *host;
    size_t device_bytes, host_bytes;
    char got[STEPS * BYTES];
};

static bool case_open(struct upload_case *c)
{
    struct error err;
    struct arena device, host;
    void *memory;
    if (device_open(DEVICE_CUDA, 0, 1, &c->device, &err) != STATUS_OK &&
        device_open(DEVICE_CPU, 0, 1, &c->device, &err) != STATUS_OK)
        return false;
    if (stream_new(c->device, STREAM_COMPUTE, &c->compute, &err) != STATUS_OK ||
        input_upload_new(c->device, &c->upload, &err) != STATUS_OK)
        return false;
    arena_init_dry(&device);
    arena_init_dry(&host);
    input_upload_layout(c->upload, c->memory, BYTES, &device, &host);
    c->device_bytes = device.used + (STEPS + 1) * BYTES;
    c->host_bytes = host.used;
    if (device_alloc(c->device, c->device_bytes, &memory, &err) != STATUS_OK ||
        device_alloc_host(c->device, c->host_bytes, &c->host, &err) != STATUS_OK)
        return false;
    c->memory = memory;
    c->results = c->memory + BYTES;
    arena_init(&device, c->memory + (STEPS + 1) * BYTES, device.used);
    arena_init(&host, c->host, host.used);
    input_upload_layout(c->upload, c->memory, BYTES, &device, &host);
    return true;
}

static void case_close(struct upload_case *c)
{
    input_upload_free(c->upload);
    stream_free(c->compute);
    device_free_host(c->device, c->host, c->host_bytes);
    device_free(c->device, c->memory, c->device_bytes);
    device_close(c->device);
}

/* A step copies its inputs to its results. */
static void run_step(struct upload_case *c, int step)
{
    memset(input_upload_room(c->upload), step + 1, BYTES);
    input_upload_send(c->upload, c->compute);
    stream_copy(c->compute, c->results + step * BYTES, c->memory, BYTES);
}

static bool results_are_right(struct upload_case *c)
{
    bool right = true;
    stream_copy(c->compute, c->got, c->results, sizeof c->got);
    stream_sync(c->compute);
    for (int i = 0; i < STEPS * BYTES; i++) right = right && c->got[i] == i / BYTES + 1;
    return right;
}

static atomic_int released; /* 1: by the host; 2: too late */

/* A step that lasts until the host has gone on. */
static void last_long(void *argument)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    (void)argument;
    for (int i = 0; i < 5000 && !released; i++) nanosleep(&pause, NULL);
    int none = 0;
    atomic_compare_exchange_strong(&released, &none, 2);
}

/* The steps in a child process, which opens the device; before the second one the first lasts. */
static int run_steps(int forget, char *text, size_t size, int *count)
{
    int out[2], status;
    assert_int_equal(pipe(out), 0);
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        static struct upload_case c;
        struct error err;
        dup2(out[1], STDERR_FILENO);
        close(out[0]);
        forgotten = forget;
        if (!case_open(&c)) _exit(FAILED);
        const bool gpu = c.device->kind == DEVICE_CUDA;
        run_step(&c, 0);
        if (gpu && !forget) stream_submit(c.compute, last_long, "", 1);
        run_step(&c, 1);
        run_step(&c, 2);
        int none = 0;
        const bool went_on = atomic_compare_exchange_strong(&released, &none, 1);
        run_step(&c, 3);
        run_step(&c, 4);
        bool right = results_are_right(&c) && went_on;
        right = device_check(c.device, &err) == STATUS_OK && right;
        case_close(&c);
        fprintf(stderr, "waits %d\n", waits);
        fflush(NULL);
        _exit(right ? 0 : FAILED);
    }
    close(out[1]);
    size_t used = 0;
    for (ssize_t n; (n = read(out[0], text + used, size - 1 - used)) > 0;) used += (size_t)n;
    text[used] = '\0';
    close(out[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    const char *at = strstr(text, "waits ");
    *count = at ? atoi(at + strlen("waits ")) : 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : FAILED;
}

/* The host packs and sends the next steps while a step runs. */
static void inputs_arrive_and_the_host_goes_on(void **state)
{
    (void)state;
    char text[8192];
    int count, code = run_steps(0, text, sizeof text, &count);
    if (code != 0) fail_msg("%s", text);
    assert_int_equal(count, 3 * STEPS);
}

#if defined(ZTRAIN_EMULATION)
static void every_wait_is_needed(void **state)
{
    (void)state;
    char text[8192];
    int count;
    for (int n = 1; n <= 3 * STEPS; n++) {
        const int step = (n - 1) / 3,
                  wait = (n - 1) % 3; /* of a step: the host's, the upload's, the compute stream's */
        const bool needed = wait == 0 ? step >= HOST_BUFFERS : wait == 1 ? step > 0 : true;
        const int code = run_steps(n, text, sizeof text, &count);
        if (needed && code == 0) fail_msg("step %d, wait %d: %s", step, wait, text);
        if (!needed && code != 0) fail_msg("step %d without wait %d: exit code %d, %s", step, wait, code, text);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(inputs_arrive_and_the_host_goes_on),
#if defined(ZTRAIN_EMULATION)
        cmocka_unit_test(every_wait_is_needed),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
