/* SPDX-License-Identifier: Apache-2.0 */
/* test_device_cuda.c: memory, streams, staged copies and events of the CUDA device, and the choice of matrix products.
 * They need a GPU or the emulated one, and are skipped where there is none. */
#include "gpu/open/device_open.h"
#include "gpu/ops.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/ztrain-device-cuda-XXXXXX";
static struct device *device; /* NULL: no GPU here */

static int open_device(void **state)
{
    (void)state;
    struct error err;
    if (!mkdtemp(folder) || setenv("ZTRAIN_GEMM_CACHE", folder, 1) != 0) return -1;
    if (device_open(DEVICE_CUDA, 0, 1, &device, &err) == STATUS_OK) return 0;
    printf("no GPU: %s\n", err.text);
#if defined(ZTRAIN_EMULATION) /* the emulated GPU is always there, unless the test plays a machine without one */
    const char *gpus = getenv("ZTRAIN_EMULATION_GPUS");
    return gpus && strcmp(gpus, "0") == 0 ? 0 : -1;
#else
    return 0;
#endif
}

static int close_device(void **state)
{
    char command[256];
    (void)state;
    device_close(device);
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static struct stream *new_stream(enum stream_kind kind)
{
    struct stream *stream;
    struct error err;
    assert_int_equal(stream_new(device, kind, &stream, &err), STATUS_OK);
    return stream;
}

static void *new_memory(size_t bytes)
{
    void *memory;
    struct error err;
    assert_int_equal(device_alloc(device, bytes, &memory, &err), STATUS_OK);
    return memory;
}

static void check_no_error(void)
{
    struct error err;
    if (device_check(device, &err) != STATUS_OK) fail_msg("%s", err.text);
}

static void absence_is_told(void **state)
{
    (void)state;
    char why[256] = "";
    struct device *none;
    struct error err;
    if (device) skip();
    assert_false(device_cuda_available(why));
    assert_true(strlen(why) > 0);
    assert_int_equal(device_open(DEVICE_CUDA, 0, 1, &none, &err), STATUS_DEVICE);
    assert_null(none);
    assert_non_null(strstr(err.text, "cannot open a CUDA device: "));
    assert_non_null(strstr(err.text, "; hint: "));
}

static void says_what_it_is(void **state)
{
    (void)state;
    if (!device) skip();
    assert_int_equal(device->kind, DEVICE_CUDA);
    assert_true(strlen(device->name) > 0 && device->memory_bytes > 0);
    assert_non_null(strstr(device->detail, "compute capability"));
    assert_non_null(strstr(device->detail, "cublasLt"));
    struct device *none;
    struct error err;
    unsigned char uuids[2][DEVICE_UUID_BYTES];
    assert_true(device_cuda_list(uuids, 2) >= 1);
    assert_int_equal(device_open(DEVICE_CUDA, 1000, 1, &none, &err), STATUS_DEVICE);
    assert_non_null(strstr(err.text, "cannot open GPU 1000: this process sees "));
}

static void memory_is_zeroed_and_ends(void **state)
{
    (void)state;
    if (!device) skip();
    enum { N = 100000 };
    struct stream *stream = new_stream(STREAM_COMPUTE);
    unsigned char *host = malloc(N), *memory = new_memory(N);
    memset(host, 1, N);
    stream_copy(stream, host, memory, N);
    stream_sync(stream);
    for (int i = 0; i < N; i++) assert_int_equal(host[i], 0);
    device_free(device, memory, N);
    free(host);
    stream_free(stream);

    void *too_much;
    struct error err;
    assert_int_equal(device_alloc(device, (size_t)1 << 50, &too_much, &err), STATUS_DEVICE);
    assert_null(too_much);
    assert_non_null(strstr(err.text, "cannot allocate 1048576.000 GiB on GPU 0"));
    assert_non_null(strstr(err.text, "were available; hint: "));
    check_no_error(); /* not a failure of the device */
}

/* The bits of the CPU device, in each type, from an odd place on; what follows is not touched. */
static void noise_is_that_of_the_cpu(void **state)
{
    (void)state;
    if (!device) skip();
    enum { N = 70001, BYTES = (N + 2) * 4 };
    struct error err;
    struct device *cpu;
    struct stream *stream = new_stream(STREAM_COMPUTE), *host_stream;
    char *memory = new_memory(BYTES), *expected = malloc(BYTES), *actual = malloc(BYTES);
    assert_int_equal(device_open(DEVICE_CPU, 0, 1, &cpu, &err), STATUS_OK);
    assert_int_equal(stream_new(cpu, STREAM_COMPUTE, &host_stream, &err), STATUS_OK);
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        const size_t size = dtype_size((enum dtype)dtype);
        memset(expected, 0, BYTES);
        stream_fill_zero(stream, memory, BYTES);
        stream_fill_noise(stream, memory + size, (enum dtype)dtype, N, 7);
        stream_fill_noise(host_stream, expected + size, (enum dtype)dtype, N, 7);
        stream_copy(stream, actual, memory, BYTES);
        stream_sync(stream);
        assert_memory_equal(actual, expected, BYTES);
    }
    check_no_error();
    stream_free(host_stream);
    device_close(cpu);
    device_free(device, memory, BYTES);
    free(expected);
    free(actual);
    stream_free(stream);
}

static void fill(unsigned char *bytes, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++) bytes[i] = (unsigned char)((i * 2654435761u + seed) >> 7);
}

/* Up, across and down, from and to plain memory, in more pieces than there are staging slots; the source may change as
 * soon as the call has returned. */
static void plain_memory_is_staged(void **state)
{
    (void)state;
    if (!device) skip();
    const size_t n = (20 << 20) + 12345;
    struct stream *stream = new_stream(STREAM_COMPUTE);
    unsigned char *source = malloc(n), *expected = malloc(n), *back = calloc(1, n);
    char *a = new_memory(n), *b = new_memory(n);
    fill(source, n, 1);
    memcpy(expected, source, n);
    stream_copy(stream, a, source, n);
    fill(source, n, 2);
    stream_copy(stream, b, a, n);
    stream_copy(stream, back, b, n);
    stream_sync(stream);
    assert_memory_equal(back, expected, n);
    for (int i = 0; i < 100; i++) { /* many small ones */
        stream_copy(stream, a + 4 * i, &i, sizeof i);
        stream_copy(stream, back + 4 * i, a + 4 * i, sizeof i);
    }
    stream_sync(stream);
    for (int i = 0; i < 100; i++) assert_memory_equal(back + 4 * i, &i, sizeof i);
    stream_copy(stream, back, expected, 1000); /* plain to plain */
    stream_fill_zero(stream, back + 1000, 1000);
    stream_sync(stream);
    assert_memory_equal(back, expected, 1000);
    for (int i = 1000; i < 2000; i++) assert_int_equal(back[i], 0);
    check_no_error();
    device_free(device, a, n);
    device_free(device, b, n);
    stream_free(stream);
    free(source);
    free(expected);
    free(back);
}

static void pinned_memory_is_copied_directly(void **state)
{
    (void)state;
    if (!device) skip();
    enum { N = 1 << 20 };
    struct stream *stream = new_stream(STREAM_COMPUTE);
    struct error err;
    unsigned char *host, *memory = new_memory(N), *expected = malloc(N);
    assert_int_equal(device_alloc_host(device, N, (void **)&host, &err), STATUS_OK);
    for (int i = 0; i < N; i++) assert_int_equal(host[i], 0);
    fill(host, N, 3);
    memcpy(expected, host, N);
    stream_copy(stream, memory, host, N);
    stream_sync(stream);
    memset(host, 0, N);
    stream_copy(stream, host, memory, N);
    stream_sync(stream);
    assert_memory_equal(host, expected, N);
    device_free_host(device, host, N);
    device_free(device, memory, N);
    stream_free(stream);
    free(expected);
    check_no_error();
}

struct note {
    int *next, *order, value;
};

static void run_note(void *argument)
{
    const struct note *note = argument;
    note->order[(*note->next)++] = note->value;
}

/* More host functions than the ring has room for, in order; across streams by events. */
static void host_functions_run_in_order(void **state)
{
    (void)state;
    if (!device) skip();
    enum { N = 1000 };
    static int order[2 * N], next;
    struct stream *first = new_stream(STREAM_COMPUTE), *second = new_stream(STREAM_COMM);
    struct event *event;
    struct error err;
    assert_int_equal(event_new(device, &event, &err), STATUS_OK);
    stream_wait(second, event); /* never recorded, so no wait */
    for (int i = 0; i < N; i++) {
        struct note note = {&next, order, i};
        stream_submit(first, run_note, &note, sizeof note);
        event_record(event, first);
    }
    stream_wait(second, event);
    for (int i = N; i < 2 * N; i++) {
        struct note note = {&next, order, i};
        stream_submit(second, run_note, &note, sizeof note);
    }
    event_record(event, second);
    event_sync(event);
    assert_int_equal(next, 2 * N);
    for (int i = 0; i < 2 * N; i++) assert_int_equal(order[i], i);
    event_free(event);
    stream_free(first);
    stream_free(second);
    check_no_error();
}

/* ---- graphs -------------------------------------------------------------- */

/* A graph of two streams: y = x + x on one, z = y + y on the other, y = z + x on the first again. */
static enum status capture_sums(struct stream *const *streams, struct event *const *events, float *const *at, int n,
                                struct graph **graph, struct error *err)
{
    const struct add_args sums[] = {{.dtype = DTYPE_F32, .n = n, .y = at[1], .a = at[0], .b = at[0]},
                                    {.dtype = DTYPE_F32, .n = n, .y = at[2], .a = at[1], .b = at[1]},
                                    {.dtype = DTYPE_F32, .n = n, .y = at[1], .a = at[2], .b = at[0]}};
    event_record(events[0], streams[1]);
    TRY(graph_begin(streams, 2, graph, err));
    assert_true(device_is_capturing(device));
    stream_wait(streams[0], events[0]); /* an earlier record, already reached */
    device->ops->add(streams[0], &sums[0]);
    event_record(events[0], streams[0]);
    stream_wait(streams[1], events[0]);
    device->ops->add(streams[1], &sums[1]);
    event_record(events[1], streams[1]);
    stream_wait(streams[0], events[1]);
    device->ops->add(streams[0], &sums[2]);
    return graph_end(*graph, err);
}

static void graphs_are_launched_again_and_again(void **state)
{
    (void)state;
    if (!device) skip();
    enum { N = 5000, SIZE = N * sizeof(float) };
    struct stream *streams[] = {new_stream(STREAM_COMPUTE), new_stream(STREAM_COMM)};
    struct event *events[2];
    struct graph *graph;
    struct error err;
    static float host[N];
    float *at[3];
    assert_true(device_has_graphs(device) && !device_is_capturing(device));
    for (int i = 0; i < 2; i++) assert_int_equal(event_new(device, &events[i], &err), STATUS_OK);
    for (int i = 0; i < 3; i++) at[i] = new_memory(SIZE);
    if (capture_sums(streams, events, at, N, &graph, &err) != STATUS_OK) fail_msg("%s", err.text);
    assert_false(device_is_capturing(device));
    for (int launch = 1; launch <= 3; launch++) {
        for (int i = 0; i < N; i++) host[i] = (float)(launch * i);
        stream_copy(streams[1], at[0], host, SIZE); /* on either stream, before the graph and after it */
        graph_launch(graph);
        stream_wait(streams[1], events[1]); /* recorded in the capture, already reached */
        stream_copy(streams[1], host, at[1], SIZE);
        stream_sync(streams[1]);
        for (int i = 0; i < N; i++) assert_true(host[i] == (float)(5 * launch * i));
    }
    event_record(events[0], streams[0]); /* outside the capture again */
    stream_wait(streams[1], events[0]);
    event_sync(events[0]);
    check_no_error();
    graph_free(graph);
    for (int i = 0; i < 3; i++) device_free(device, at[i], SIZE);
    for (int i = 0; i < 2; i++) {
        event_free(events[i]);
        stream_free(streams[i]);
    }
}

static void do_nothing(void *argument)
{
    (void)argument;
}

static void last_a_while(void *argument)
{
    const struct timespec pause = {.tv_nsec = 60000000};
    (void)argument;
    nanosleep(&pause, NULL);
}

#if defined(ZTRAIN_EMULATION)
extern unsigned emulation_spins; /* tests/emulation/emulation_cudart.cc */
#endif

/* Offload's AdamW has the cores: waits do not spin on one of them. */
static void waits_leave_the_cores_to_host_functions(void **state)
{
    (void)state;
    if (!device) skip();
    struct stream *stream = new_stream(STREAM_COMPUTE);
    struct event *event;
    struct error err;
    struct timespec before, after;
    assert_int_equal(event_new(device, &event, &err), STATUS_OK);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
    stream_submit(stream, last_a_while, "", 1);
    event_record(event, stream);
    event_sync(event);
    stream_submit(stream, last_a_while, "", 1);
    stream_sync(stream);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
    const double cpu = (double)(after.tv_sec - before.tv_sec) + 1e-9 * (double)(after.tv_nsec - before.tv_nsec);
    if (cpu > 0.1) fail_msg("%g s of the CPU for waits of 0.12 s", cpu);
#if defined(ZTRAIN_EMULATION)
    assert_int_equal(emulation_spins, 0);
#endif
    event_free(event);
    stream_free(stream);
}

/* A call that cannot be captured makes the capture fail and nothing else. */
static void captures_fail_without_harm(void **state)
{
    (void)state;
    if (!device) skip();
    struct stream *streams[] = {new_stream(STREAM_COMPUTE), new_stream(STREAM_COMM)};
    struct graph *graph;
    struct error err;
    int value = 7, back = 0;
    int *memory = new_memory(sizeof *memory);
    assert_int_equal(graph_begin(streams, 2, &graph, &err), STATUS_OK);
    stream_submit(streams[0], do_nothing, &value, sizeof value);
    assert_int_equal(graph_end(graph, &err), STATUS_DEVICE);
    assert_non_null(strstr(err.text, "a graph cannot be captured: GPU 0"));
    assert_non_null(strstr(err.text, "a host function"));
    assert_int_equal(graph_begin(streams, 2, &graph, &err), STATUS_OK);
    stream_copy(streams[1], memory, &value, sizeof value);
    assert_int_equal(graph_end(graph, &err), STATUS_DEVICE);
    assert_non_null(strstr(err.text, "memory that the GPU does not reach"));
    check_no_error();
    stream_copy(streams[1], memory, &value, sizeof value);
    stream_copy(streams[1], &back, memory, sizeof value);
    stream_sync(streams[1]);
    assert_int_equal(back, value);
    check_no_error();
    device_free(device, memory, sizeof *memory);
    stream_free(streams[0]);
    stream_free(streams[1]);
}

/* ---- matrix products ----------------------------------------------------- */

static struct linear_fwd_args small_product(void)
{
    return (struct linear_fwd_args){.dtype = DTYPE_BF16, .y_dtype = DTYPE_BF16, .M = 32, .N = 48, .K = 64};
}

static void prepare(void)
{
    struct error err;
    struct linear_fwd_args args = small_product();
    struct linear_products products = {.fwd = &args, .num_fwd = 1};
    if (ops_prepare(device, &products, &err) != STATUS_OK) fail_msg("%s", err.text);
}

/* Reads the only file of choices; returns its size, 0 if there is none. */
static size_t read_choices(char *text, size_t size)
{
    char command[256];
    snprintf(command, sizeof command, "cat '%s'/gemm-*.txt 2>/dev/null", folder);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size_t n = fread(text, 1, size - 1, pipe);
    text[n] = '\0';
    pclose(pipe);
    return n;
}

static void reopen(void)
{
    struct error err;
    device_close(device);
    assert_int_equal(device_open(DEVICE_CUDA, 0, 1, &device, &err), STATUS_OK);
}

static void choices_are_kept_on_disk(void **state)
{
    (void)state;
    static char first[1 << 16], second[1 << 16];
    char command[512];
    if (!device) skip();
    prepare();
    assert_true(read_choices(first, sizeof first) > 0);
    assert_non_null(strstr(first, "ztrain gemm cache 6\ngpu "));
    assert_non_null(strstr(first, "\ngemm 48 32 64 64 64 48 0 1 0 "));
    reopen();
    prepare(); /* all choices come from the file: nothing is added */
    assert_true(read_choices(second, sizeof second) > 0);
    assert_string_equal(first, second);
    snprintf(command, sizeof command, "sed -i 's/ 64 64 48 / 64 64 49 /' '%s'/gemm-*.txt", folder);
    assert_int_equal(system(command), 0);
    reopen();
    prepare(); /* the damaged line is measured again */
    assert_true(read_choices(second, sizeof second) > 0);
    assert_non_null(strstr(second, "\ngemm 48 32 64 64 64 48 0 1 0 "));
    assert_null(strstr(second, " 49 "));
    check_no_error();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(absence_is_told),
        cmocka_unit_test(says_what_it_is),
        cmocka_unit_test(memory_is_zeroed_and_ends),
        cmocka_unit_test(noise_is_that_of_the_cpu),
        cmocka_unit_test(plain_memory_is_staged),
        cmocka_unit_test(pinned_memory_is_copied_directly),
        cmocka_unit_test(host_functions_run_in_order),
        cmocka_unit_test(graphs_are_launched_again_and_again),
        cmocka_unit_test(waits_leave_the_cores_to_host_functions),
        cmocka_unit_test(captures_fail_without_harm),
        cmocka_unit_test(choices_are_kept_on_disk),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
