/* SPDX-License-Identifier: Apache-2.0 */
/* test_nvml.c: NVML's absence is reported, and its throttle reasons have names. The values of a GPU cannot be tested
 * without one. */
#include "gpu/cuda/nvml.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void absence_is_told(void **state)
{
    (void)state;
    char driver[32] = "x", why[256] = "";
    struct nvml_gpu gpu;
    assert_int_equal(nvml_read("libno-such-library.so.1", &gpu, 1, driver, sizeof driver, why), -1);
    assert_non_null(strstr(why, "libno-such-library.so.1"));
    assert_string_equal(driver, "");
    assert_int_equal(nvml_read("libm.so.6", &gpu, 1, driver, sizeof driver, why), -1);
    assert_string_equal(why, "the NVML of this driver lacks nvmlInit_v2");
    struct nvml_process process;
    assert_int_equal(nvml_processes("libno-such-library.so.1", "0123", &process, 1), -1);
    assert_int_equal(nvml_throttle_faults("libm.so.6", "0123"), 0);
    for (int i = 0; i < 2; i++) {
        nvml_watch_start(i ? "libm.so.6" : "libno-such-library.so.1", "0123");
        assert_int_equal(nvml_watch_look(why, sizeof why), NVML_UNKNOWN);
        nvml_watch_stop();
    }
}

static void reasons_have_names(void **state)
{
    (void)state;
    char text[128], small[8];
    assert_string_equal(nvml_throttle_text(0, text, sizeof text), "no");
    assert_string_equal(nvml_throttle_text(0x113, text, sizeof text), "no");
    assert_string_equal(nvml_throttle_text(0x4, text, sizeof text), "power cap");
    assert_string_equal(nvml_throttle_text(0xec, text, sizeof text),
                        "power cap, hardware slowdown, driver's heat limit, hardware's heat limit, power brake");
    assert_string_equal(nvml_throttle_text(0xec, small, sizeof small), "power c");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(absence_is_told),
        cmocka_unit_test(reasons_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
