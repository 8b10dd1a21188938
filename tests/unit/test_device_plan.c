/* test_device_plan.c: the GPU of plans, which need not exist: the workspace of its ops against figures computed by
 * hand.
 */
#include "gpu/cuda_workspace.h"
#include "gpu/plan/device_plan.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_knows_the_workspace),
        cmocka_unit_test(column_sums_have_at_most_64_ranges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
