/* SPDX-License-Identifier: Apache-2.0 */
/* test_device.c: memory, streams and events of the CPU device, the arena, and the op profile. */
#include "gpu/arena.h"
#include "gpu/open/device_open.h"
#include "gpu/ops_profile.h"
#include "gpu/span_recorder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

static struct device *device;

static int open_device(void **state)
{
    (void)state;
    struct error err;
    return device_open(DEVICE_CPU, 0, 2, &device, &err) == STATUS_OK ? 0 : -1;
}

static int close_device(void **state)
{
    (void)state;
    device_close(device);
    return 0;
}

static struct stream *new_stream(enum stream_kind kind)
{
    struct stream *stream;
    struct error err;
    assert_int_equal(stream_new(device, kind, &stream, &err), STATUS_OK);
    return stream;
}

static struct event *new_event(void)
{
    struct event *event;
    struct error err;
    assert_int_equal(event_new(device, &event, &err), STATUS_OK);
    return event;
}

/* ---- the arena ----------------------------------------------------------- */

struct pieces {
    char *a, *b, *none;
};

static struct pieces take_pieces(struct arena *arena)
{
    struct pieces p;
    p.a = arena_take(arena, MEM_PARAMS, 1);
    p.b = arena_take(arena, MEM_GRADS, 3 * ARENA_ALIGN + 1);
    p.none = arena_take(arena, MEM_DATA, 0);
    return p;
}

static void arena_plans_what_it_takes(void **state)
{
    (void)state;
    struct arena dry, real;
    arena_init_dry(&dry);
    struct pieces p = take_pieces(&dry);
    assert_null(p.a);
    assert_null(p.b);
    assert_int_equal(dry.used, 5 * ARENA_ALIGN);
    assert_int_equal(dry.by_kind[MEM_PARAMS], ARENA_ALIGN);
    assert_int_equal(dry.by_kind[MEM_GRADS], 4 * ARENA_ALIGN);
    char *memory = aligned_alloc(ARENA_ALIGN, dry.used);
    assert_non_null(memory);
    arena_init(&real, memory, dry.used);
    p = take_pieces(&real);
    arena_finish(&real);
    assert_ptr_equal(p.a, memory);
    assert_ptr_equal(p.b, memory + ARENA_ALIGN);
    assert_null(p.none);
    free(memory);
    for (int kind = 0; kind < MEM_KIND_COUNT; kind++) assert_true(strlen(mem_kind_name((enum mem_kind)kind)) > 0);
}

/* ---- opening ------------------------------------------------------------- */

static void device_says_what_it_is(void **state)
{
    (void)state;
    struct error err;
    assert_true(strlen(device->name) > 0);
    assert_non_null(strstr(device->detail, "GEMM: fp32"));
    assert_true(device->threads == 2 || device->threads == 1); /* 1: built without OpenMP */
    assert_int_equal(device_check(device, &err), STATUS_OK);
}

static void device_without_cuda_is_refused(void **state)
{
    (void)state;
    char why[256] = "";
    struct device *cuda;
    struct error err;
    if (device_cuda_available(why)) skip();
    assert_true(strlen(why) > 0);
    assert_int_equal(device_open(DEVICE_CUDA, 0, 0, &cuda, &err), STATUS_DEVICE);
    assert_non_null(strstr(err.text, "set train.device to cpu"));
    assert_null(cuda);
}

static void device_environment_is_checked(void **state)
{
    (void)state;
    struct device *other;
    struct error err;
    setenv("ZTRAIN_CPU_GEMM", "fastest", 1);
    assert_int_equal(device_open(DEVICE_CPU, 0, 2, &other, &err), STATUS_USAGE);
    assert_string_equal(err.text, "ZTRAIN_CPU_GEMM must be builtin, not 'fastest'");
    setenv("ZTRAIN_CPU_GEMM", "builtin", 1);
    assert_int_equal(device_open(DEVICE_CPU, 0, 2, &other, &err), STATUS_OK);
    assert_non_null(strstr(other->detail, "GEMM: fp32 builtin, bf16 builtin"));
    device_close(other);
    unsetenv("ZTRAIN_CPU_GEMM");
    setenv("ZTRAIN_CPU_ISA", "baseline", 1);
    assert_int_equal(device_open(DEVICE_CPU, 0, 2, &other, &err), STATUS_OK);
    assert_non_null(strstr(other->detail, "baseline kernels"));
    device_close(other);
    setenv("ZTRAIN_CPU_ISA", "unheard-of", 1);
    assert_int_equal(device_open(DEVICE_CPU, 0, 2, &other, &err), STATUS_USAGE);
    assert_string_equal(err.text, "ZTRAIN_CPU_ISA must be baseline, avx2 or avx512, not 'unheard-of'");
    assert_null(other);
    unsetenv("ZTRAIN_CPU_ISA");
}

/* ---- memory -------------------------------------------------------------- */

static void memory_is_zero_and_aligned(void **state)
{
    (void)state;
    const size_t sizes[] = {1, 4096, ((size_t)5 << 20) + 3};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        void *memory;
        struct error err;
        assert_int_equal(device_alloc(device, sizes[i], &memory, &err), STATUS_OK);
        assert_int_equal((uintptr_t)memory % (sizes[i] >= (size_t)2 << 20 ? (size_t)2 << 20 : 4096), 0);
        for (size_t at = 0; at < sizes[i]; at++) assert_int_equal(((char *)memory)[at], 0);
        memset(memory, 1, sizes[i]);
        device_free(device, memory, sizes[i]);
    }
}

static void memory_that_is_not_there_is_refused(void **state)
{
    (void)state;
    void *memory;
    struct error err;
    assert_int_equal(device_alloc(device, (size_t)1 << 50, &memory, &err), STATUS_DEVICE);
    assert_null(memory);
    assert_non_null(strstr(err.text, "cannot allocate 1048576.000 GiB of memory: only "));
    assert_non_null(strstr(err.text, "hint: "));
}

static void memory_limit_of_the_process_is_named(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* the mappings of the sanitizers exceed any limit */
#else
    struct rlimit before, low;
    void *memory;
    struct error err;
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    low = before;
    low.rlim_cur = (rlim_t)1 << 20;
    assert_int_equal(setrlimit(RLIMIT_AS, &low), 0);
    enum status status = device_alloc(device, (size_t)64 << 20, &memory, &err);
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
    assert_int_equal(status, STATUS_DEVICE);
    assert_non_null(strstr(err.text, "ulimit -v"));
#endif
}

/* ---- streams and events -------------------------------------------------- */

struct append {
    int *list;
    _Atomic int *count;
    int value, pause_us;
};

static void run_append(void *argument)
{
    const struct append *a = argument;
    if (a->pause_us) usleep((useconds_t)a->pause_us);
    int at = atomic_fetch_add(a->count, 1);
    a->list[at] = a->value;
}

static void submit_append(struct stream *stream, int *list, _Atomic int *count, int value, int pause_us)
{
    struct append a = {list, count, value, pause_us};
    stream_submit(stream, run_append, &a, sizeof a);
}

static void compute_stream_runs_at_once(void **state)
{
    (void)state;
    int list[2];
    _Atomic int count = 0;
    struct stream *stream = new_stream(STREAM_COMPUTE);
    submit_append(stream, list, &count, 7, 0);
    assert_int_equal(count, 1);
    assert_int_equal(list[0], 7);
    assert_ptr_equal(stream_device(stream), device);
    stream_free(stream);
}

static void comm_stream_keeps_order_beyond_its_queue(void **state)
{
    (void)state;
    enum { WORK = 2000 };
    static int list[WORK];
    _Atomic int count = 0;
    struct stream *stream = new_stream(STREAM_COMM);
    for (int i = 0; i < WORK; i++) submit_append(stream, list, &count, i, i ? 0 : 20000);
    stream_sync(stream);
    assert_int_equal(count, WORK);
    for (int i = 0; i < WORK; i++) assert_int_equal(list[i], i);
    stream_free(stream);
}

static void stream_free_finishes_its_work(void **state)
{
    (void)state;
    int list[8];
    _Atomic int count = 0;
    struct stream *stream = new_stream(STREAM_COMM);
    for (int i = 0; i < 8; i++) submit_append(stream, list, &count, i, 1000);
    stream_free(stream);
    assert_int_equal(count, 8);
}

static void events_order_streams(void **state)
{
    (void)state;
    int list[8];
    _Atomic int count = 0;
    struct stream *compute = new_stream(STREAM_COMPUTE), *a = new_stream(STREAM_COMM), *b = new_stream(STREAM_COMM);
    struct event *event = new_event(), *never = new_event();
    stream_wait(a, never); /* never recorded, so no wait */
    event_sync(never);
    submit_append(a, list, &count, 1, 30000);
    event_record(event, a);
    stream_wait(b, event);
    submit_append(b, list, &count, 2, 0);
    event_record(event, b); /* the latest record counts */
    stream_wait(compute, event);
    submit_append(compute, list, &count, 3, 0);
    assert_int_equal(count, 3);
    for (int i = 0; i < 3; i++) assert_int_equal(list[i], i + 1);
    submit_append(a, list, &count, 4, 10000);
    event_record(event, a);
    event_sync(event);
    assert_int_equal(count, 4);
    submit_append(a, list, &count, 5, 10000);
    event_record(event, a);
    event_free(event); /* waits for the record */
    assert_int_equal(count, 5);
    event_free(never);
    stream_free(compute);
    stream_free(a);
    stream_free(b);
}

/* The mean of the squares of values between -1 and 1 is a third; another seed has other values. */
static void noise_is_uniform(void **state)
{
    (void)state;
    enum { N = 100000 };
    static float values[2][N];
    struct stream *stream = new_stream(STREAM_COMPUTE);
    double sum = 0, squares = 0, products = 0;
    for (uint32_t seed = 0; seed < 2; seed++) stream_fill_noise(stream, values[seed], DTYPE_F32, N, seed);
    for (int i = 0; i < N; i++) {
        assert_true(values[0][i] >= -1 && values[0][i] <= 1);
        sum += values[0][i];
        squares += values[0][i] * values[0][i];
        products += values[0][i] * values[1][i];
    }
    assert_true(sum / N < 0.01 && sum / N > -0.01);
    assert_true(squares / N > 0.32 && squares / N < 0.35);
    assert_true(products / N < 0.01 && products / N > -0.01);
    stream_free(stream);
}

static void copies_run_in_stream_order(void **state)
{
    (void)state;
    const size_t bytes = ((size_t)3 << 20) + 5; /* large enough for a parallel copy */
    unsigned char *a = malloc(bytes), *b = malloc(bytes);
    assert_true(a && b);
    for (size_t i = 0; i < bytes; i++) a[i] = (unsigned char)(i * 31 >> 3);
    const enum stream_kind kinds[] = {STREAM_COMPUTE, STREAM_COMM};
    for (size_t k = 0; k < COUNT_OF(kinds); k++) {
        struct stream *stream = new_stream(kinds[k]);
        memset(b, 9, bytes);
        stream_copy(stream, b, a, bytes);
        stream_sync(stream);
        assert_memory_equal(a, b, bytes);
        stream_fill_zero(stream, b, bytes - 1);
        stream_copy(stream, b, a, 1);
        stream_fill_zero(stream, NULL, 0);
        stream_copy(stream, NULL, NULL, 0);
        stream_sync(stream);
        assert_int_equal(b[0], a[0]);
        for (size_t i = 1; i < bytes - 1; i++) assert_int_equal(b[i], 0);
        assert_int_equal(b[bytes - 1], a[bytes - 1]);
        stream_free(stream);
    }
    free(a);
    free(b);
}

static void workspace_is_lent(void **state)
{
    (void)state;
    _Alignas(64) char memory[128];
    size_t bytes = 1;
    struct stream *stream = new_stream(STREAM_COMPUTE);
    assert_null(stream_workspace(stream, &bytes));
    assert_int_equal(bytes, 0);
    stream_set_workspace(stream, memory, sizeof memory);
    assert_ptr_equal(stream_workspace(stream, &bytes), memory);
    assert_int_equal(bytes, sizeof memory);
    stream_free(stream);
}

/* ---- the profile --------------------------------------------------------- */

static void profile_counts_calls_and_bytes(void **state)
{
    (void)state;
    _Alignas(64) float x[100], y[100];
    for (int i = 0; i < 100; i++) x[i] = (float)i;
    struct op_profile entries[OPS_COUNT];
    struct stream *stream = new_stream(STREAM_COMPUTE);
    const struct op_table *plain = device->ops;
    struct add_args add = {.dtype = DTYPE_F32, .n = 100, .y = y, .a = x, .b = x};
    struct ops_profiler *profiler;
    struct error err;
    assert_int_equal(ops_profiler_read(NULL, entries, OPS_COUNT), 0);
    assert_int_equal(ops_profiler_new(device, &profiler, &err), STATUS_OK);
    assert_int_equal(ops_profiler_read(profiler, entries, OPS_COUNT), 0);
    device->ops->add(stream, &add);
    device->ops->add(stream, &add);
    assert_int_equal(ops_profiler_read(profiler, entries, OPS_COUNT), 1);
    assert_string_equal(entries[0].name, "add");
    assert_int_equal(entries[0].calls, 2);
    assert_true(entries[0].bytes == 2 * 100 * 12.0 && entries[0].seconds > 0);
    assert_int_equal(ops_profiler_read(profiler, entries, OPS_COUNT), 0); /* reading resets */
    ops_profiler_free(profiler);
    assert_ptr_equal(device->ops, plain);
    assert_true(y[99] == 198.0f);
    stream_free(stream);
}

/* ---- spans --------------------------------------------------------------- */

struct seen_spans {
    int asked, delivered;
    struct span last;
};

static bool takes_forward_and_ops(void *context, const struct span *span)
{
    struct seen_spans *seen = context;
    seen->asked++;
    return span->kind == SPAN_OP || span->what == PHASE_FORWARD;
}

static void take_delivered(void *context, const struct span *span)
{
    struct seen_spans *seen = context;
    seen->delivered++;
    seen->last = *span;
}

/* Phases nest, an op belongs to the innermost one, and where there is no room a span is left out. */
static void spans_reach_a_recorder(void **state)
{
    (void)state;
    _Alignas(64) float x[4] = {1, 2, 3, 4}, y[4];
    struct seen_spans seen = {0};
    struct span_recorder *recorder;
    struct error err;
    struct stream *stream = new_stream(STREAM_COMPUTE);
    const struct add_args add = {.dtype = DTYPE_F32, .n = 4, .y = y, .a = x, .b = x};
    const struct op_table *plain = device->ops;
    const struct span_recorder_config config = {
        .capacity = 2, .takes_ops = true, .wants = takes_forward_and_ops, .deliver = take_delivered, .context = &seen};
    assert_int_equal(span_recorder_new(device, &config, &recorder, &err), STATUS_OK);
    struct span whole = phase_begin(stream, PHASE_BACKWARD, UNIT_NONE), unit = phase_begin(stream, PHASE_FORWARD, 3);
    device->ops->add(stream, &add);
    span_recorder_collect(recorder, false); /* the phase began first and is not over */
    assert_int_equal(seen.delivered, 0);
    device->ops->add(stream, &add); /* no room */
    span_end(&unit);
    span_end(&whole);
    span_recorder_collect(recorder, true);
    assert_int_equal(seen.asked, 3);
    assert_int_equal(seen.delivered, 2);
    assert_string_equal(seen.last.name, "add");
    assert_int_equal(seen.last.unit, 3);
    assert_true(seen.last.outer.phase == PHASE_FORWARD && seen.last.bytes == 48);
    device->ops->add(stream, &add);
    span_recorder_collect(recorder, true);
    assert_true(seen.last.outer.phase == PHASE_OTHER && seen.last.unit == UNIT_NONE);
    span_recorder_free(recorder);
    assert_ptr_equal(device->ops, plain);
    stream_free(stream);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arena_plans_what_it_takes),
        cmocka_unit_test(device_says_what_it_is),
        cmocka_unit_test(device_without_cuda_is_refused),
        cmocka_unit_test(device_environment_is_checked),
        cmocka_unit_test(memory_is_zero_and_aligned),
        cmocka_unit_test(memory_that_is_not_there_is_refused),
        cmocka_unit_test(memory_limit_of_the_process_is_named),
        cmocka_unit_test(compute_stream_runs_at_once),
        cmocka_unit_test(comm_stream_keeps_order_beyond_its_queue),
        cmocka_unit_test(stream_free_finishes_its_work),
        cmocka_unit_test(events_order_streams),
        cmocka_unit_test(copies_run_in_stream_order),
        cmocka_unit_test(noise_is_uniform),
        cmocka_unit_test(workspace_is_lent),
        cmocka_unit_test(profile_counts_calls_and_bytes),
        cmocka_unit_test(spans_reach_a_recorder),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
