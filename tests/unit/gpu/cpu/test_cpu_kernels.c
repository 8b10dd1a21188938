/* SPDX-License-Identifier: Apache-2.0 */
/* test_cpu_kernels.c: the common kernels of several ranks, and the environment variables that choose kernels. */
#include "gpu/cpu/cpu_kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct cpu_kernels amx = {.isa = CPU_ISA_AVX512, .avx512_bf16 = true, .amx_bf16 = true},
                                pairs = {.isa = CPU_ISA_AVX512, .avx512_bf16 = true}, plain = {.isa = CPU_ISA_AVX512},
                                avx2 = {.isa = CPU_ISA_AVX2}, baseline = {.isa = CPU_ISA_BASELINE};

static struct cpu_kernels common_of(const struct cpu_kernels *a, const struct cpu_kernels *b)
{
    struct cpu_kernels all[3] = {*a, *b, *a}, common, reversed[2] = {*b, *a}, other;
    cpu_kernels_common(all, 3, &common);
    cpu_kernels_common(reversed, 2, &other);
    assert_true(cpu_kernels_equal(&common, &other));
    return common;
}

static void the_lowest_level_is_common(void **state)
{
    (void)state;
    const struct cpu_kernels *const rising[] = {&baseline, &avx2, &plain, &pairs, &amx};
    for (size_t i = 0; i < COUNT_OF(rising); i++) {
        for (size_t j = i; j < COUNT_OF(rising); j++) {
            struct cpu_kernels common = common_of(rising[i], rising[j]);
            assert_true(cpu_kernels_equal(&common, rising[i]));
            assert_true(cpu_kernels_equal(rising[i], rising[j]) == (i == j));
        }
    }
}

static void kernels_have_names(void **state)
{
    (void)state;
    char text[CPU_KERNELS_TEXT];
    assert_string_equal(cpu_kernels_instructions(&amx, text), "avx512 with avx512_bf16 and amx_bf16");
    assert_string_equal(cpu_kernels_instructions(&pairs, text), "avx512 with avx512_bf16");
    assert_string_equal(cpu_kernels_instructions(&baseline, text), "baseline");
    assert_string_equal(cpu_kernels_products(&amx, text), "fp32 builtin, bf16 builtin (amx, widen)");
    assert_string_equal(cpu_kernels_products(&pairs, text), "fp32 builtin, bf16 builtin (widen)");
    assert_string_equal(cpu_kernels_products(&plain, text), "fp32 builtin, bf16 builtin");
}

static void the_environment_chooses(void **state)
{
    (void)state;
    struct cpu_kernels kernels, best;
    struct cpu_features features;
    struct error err;
    cpu_features_detect(&features);
    unsetenv("ZTRAIN_CPU_ISA");
    unsetenv("ZTRAIN_CPU_GEMM");
    assert_int_equal(cpu_kernels_detect(&best, &err), STATUS_OK);
    assert_int_equal(best.isa, features.isa);
    for (int isa = CPU_ISA_BASELINE; isa < CPU_ISA_COUNT; isa++) {
        setenv("ZTRAIN_CPU_ISA", cpu_isa_name((enum cpu_isa)isa), 1);
        enum status status = cpu_kernels_detect(&kernels, &err);
        if (isa > (int)features.isa) {
            assert_int_equal(status, STATUS_USAGE);
            assert_non_null(strstr(err.text, "does not have; hint: its best level is"));
            continue;
        }
        assert_int_equal(status, STATUS_OK);
        assert_int_equal(kernels.isa, isa);
        assert_true(isa == CPU_ISA_AVX512 || (!kernels.avx512_bf16 && !kernels.amx_bf16));
    }
    setenv("ZTRAIN_CPU_ISA", "zzz", 1);
    assert_int_equal(cpu_kernels_detect(&kernels, &err), STATUS_USAGE);
    assert_string_equal(err.text, "ZTRAIN_CPU_ISA must be baseline, avx2 or avx512, not 'zzz'");
    setenv("ZTRAIN_CPU_ISA", "", 1);
    assert_int_equal(cpu_kernels_detect(&kernels, &err), STATUS_OK);
    assert_true(cpu_kernels_equal(&kernels, &best));
    unsetenv("ZTRAIN_CPU_ISA");

    setenv("ZTRAIN_CPU_GEMM", "onednn", 1);
    assert_int_equal(cpu_kernels_choose_products(&kernels, NULL, false, &err), STATUS_USAGE);
    assert_string_equal(err.text, "ZTRAIN_CPU_GEMM must be builtin, not 'onednn'");
    setenv("ZTRAIN_CPU_GEMM", "builtin", 1);
    kernels = baseline;
    assert_int_equal(cpu_kernels_choose_products(&kernels, NULL, false, &err), STATUS_OK);
    assert_true(cpu_kernels_equal(&kernels, &baseline));
    unsetenv("ZTRAIN_CPU_GEMM");
}

static void a_run_keeps_its_kernels(void **state)
{
    (void)state;
    struct cpu_kernels kernels = amx;
    unsetenv("ZTRAIN_CPU_ISA");
    assert_true(cpu_kernels_keep(&kernels, &pairs));
    assert_true(cpu_kernels_equal(&kernels, &pairs));
    assert_false(cpu_kernels_keep(&kernels, &amx)); /* an instruction set that this CPU lacks cannot be kept */
    assert_true(cpu_kernels_equal(&kernels, &pairs));
    assert_true(cpu_kernels_keep(&kernels, &avx2));
    assert_true(cpu_kernels_equal(&kernels, &avx2));
    setenv("ZTRAIN_CPU_ISA", "avx512", 1);
    kernels = plain;
    assert_false(cpu_kernels_keep(&kernels, &avx2));
    assert_true(cpu_kernels_equal(&kernels, &plain));
    unsetenv("ZTRAIN_CPU_ISA");

    struct error err;
    const enum cpu_bf16_products ways[] = {CPU_BF16_DOT, CPU_BF16_WIDEN};
    for (size_t i = 0; i < COUNT_OF(ways); i++) { /* an earlier measurement is not repeated */
        struct cpu_kernels before = pairs;
        before.bf16 = ways[i];
        kernels = pairs;
        assert_int_equal(cpu_kernels_choose_products(&kernels, &before, false, &err), STATUS_OK);
        assert_int_equal(kernels.bf16, ways[i]);
    }
    unsetenv("ZTRAIN_CPU_GEMM");
    kernels = baseline;
    assert_int_equal(cpu_kernels_choose_products(&kernels, &baseline, false, &err), STATUS_OK);
    assert_true(cpu_kernels_equal(&kernels, &baseline));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_lowest_level_is_common),
        cmocka_unit_test(kernels_have_names),
        cmocka_unit_test(the_environment_chooses),
        cmocka_unit_test(a_run_keeps_its_kernels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
