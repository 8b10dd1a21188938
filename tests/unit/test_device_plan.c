/* test_device_plan.c: the GPU of plans, which need not exist: the workspace of its ops against figures computed by
 * hand.
 */
#include "gpu/cuda_workspace.h"
#include "gpu/plan/device_plan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void a_plan_knows_the_workspace(void **state)
{
    (void)state;
    struct error err;
    struct device *device;
    assert_int_equal(device_plan_open(&device, &err), STATUS_OK);
    assert_int_equal(device->kind, DEVICE_CUDA);
    struct op_limits limits = {.max_tokens = 1000, .C = 64, .D = 16, .H = 4, .max_linear_n = 100};
    /* cublasLt's 32 MiB, and the column sums of two ranges of 512 rows */
    assert_int_equal(ops_workspace_bytes(device, &limits), (32 << 20) + 2 * 100 * 4 + 256);
    limits.max_tokens = 1 << 20; /* the embedding's: sort 4 x 4 MiB, counts of 1024 blocks, 65536 tiles of C floats */
    assert_int_equal(ops_workspace_bytes(device, &limits), (16 << 20) + 1024 * 512 * 4 + 512 * 4 + 65536 * 64 * 4);
    device_close(device);
}

static void column_sums_have_at_most_64_ranges(void **state)
{
    (void)state;
    assert_int_equal(cuda_column_ranges(0), 0);
    assert_int_equal(cuda_column_ranges(1), 1);
    assert_int_equal(cuda_column_ranges(513), 2);
    assert_int_equal(cuda_column_ranges(1 << 20), 64);
}

static struct device *open_h100(struct gpu_model *gpu)
{
    struct error err;
    struct device *device;
    struct plan_settings settings = {.gpu = gpu};
    assert_int_equal(gpu_model_find("h100", gpu, &err), STATUS_OK);
    assert_int_equal(device_plan_open_timed(&settings, &device, &err), STATUS_OK);
    return device;
}

/* compute ─ op ─ record ─┐              ┌─ wait: late by the communication
 * comm ─────────── wait ─┴─ collective ─┴─ record */
static void a_stream_that_waits_is_set_forward(void **state)
{
    (void)state;
    const double collective = 1e-3;
    struct error err;
    struct gpu_model gpu;
    struct plan_times times;
    struct device *device = open_h100(&gpu);
    struct stream *compute, *comm;
    struct event *computed, *reduced;
    assert_int_equal(stream_new(device, STREAM_COMPUTE, &compute, &err), STATUS_OK);
    assert_int_equal(stream_new(device, STREAM_COMM, &comm, &err), STATUS_OK);
    assert_int_equal(event_new(device, &computed, &err), STATUS_OK);
    assert_int_equal(event_new(device, &reduced, &err), STATUS_OK);

    struct sumsq_args args = {.n = 1 << 28};
    device->ops->sumsq(compute, &args);
    event_record(computed, compute);
    stream_wait(comm, computed);
    device_plan_communicate(comm, collective);
    event_record(reduced, comm);
    device->ops->sumsq(compute, &args); /* hides the collective for as long as it takes */
    stream_wait(compute, reduced);
    stream_wait(compute, reduced); /* waiting once is enough */
    device_plan_times(device, &times);
    double op = times.kinds[PLAN_OPTIMIZER].expected / 2 + times.kinds[PLAN_GAPS].expected / 2;
    assert_true(op > 0.3e-3 && op < collective);
    assert_true(fabs(times.kinds[PLAN_EXPOSED].expected - (collective - op)) < 1e-12);
    assert_true(fabs(times.seconds - (op + collective)) < 1e-12);
    assert_true(times.communication == collective);

    device_plan_reset(device);
    device_plan_times(device, &times);
    assert_true(times.seconds == 0);
    event_free(computed);
    event_free(reduced);
    stream_free(compute);
    stream_free(comm);
    device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_knows_the_workspace),
        cmocka_unit_test(a_stream_that_waits_is_set_forward),
        cmocka_unit_test(column_sums_have_at_most_64_ranges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
