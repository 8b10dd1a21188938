/* SPDX-License-Identifier: Apache-2.0 */
/* test_activation_store.c: the inputs of blocks come back from host memory as they left, on the CPU device. */
#include "gpu/open/device_open.h"

#include "tests/unit/fixtures/activation_store_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static struct device *open_cpu(void)
{
    struct device *device;
    struct error err;
    assert_int_equal(device_open(DEVICE_CPU, 0, 1, &device, &err), STATUS_OK);
    return device;
}

/* Fewer blocks than buffers, as many, and more; micro-batches of different sizes after each other. */
static void check_inputs(struct device *device, int64_t first, int64_t blocks)
{
    struct store_case c;
    assert_true(store_case_open(&c, device, first, blocks));
    for (unsigned micro = 0; micro < 20; micro++)
        assert_true(store_case_micro(&c, micro, micro % 3 ? STORE_BYTES : STORE_BYTES / 4 * 3));
    store_case_close(&c);
}

static void test_inputs_come_back(void **state)
{
    (void)state;
    struct device *device = open_cpu();
    for (int64_t blocks = 1; blocks <= STORE_MOST_BLOCKS; blocks++)
        for (int64_t first = 0; first <= blocks; first++) check_inputs(device, first, blocks);
    device_close(device);
}

/* The last blocks' inputs never leave the device, nor do those that backward does not come to; the others have a place
 * each. */
static void test_host_memory(void **state)
{
    (void)state;
    struct device *device = open_cpu();
    for (int64_t blocks = 1; blocks <= STORE_MOST_BLOCKS; blocks++) {
        const int64_t first = blocks % 3;
        struct store_case c;
        assert_true(store_case_open(&c, device, first, blocks));
        int64_t copied = blocks - STORE_BUFFERS > first ? blocks - STORE_BUFFERS - first : 0;
        assert_int_equal(c.host_bytes, copied * STORE_BYTES);
        assert_int_equal(activation_store_verbs(c.store)->buffers, STORE_BUFFERS);
        assert_true(store_case_micro(&c, 1, STORE_BYTES));
        for (int64_t l = 0; l < copied; l++) /* read with the store's stream idle */
            assert_memory_equal((char *)c.host + l * STORE_BYTES, c.expected + (first + l) * STORE_BYTES, STORE_BYTES);
        store_case_close(&c);
    }
    device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_inputs_come_back),
        cmocka_unit_test(test_host_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
