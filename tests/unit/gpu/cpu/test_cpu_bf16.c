/* SPDX-License-Identifier: Apache-2.0 */
/* test_cpu_bf16.c: the CPU device chooses the faster bf16 instruction, and uses it. */
#include "gpu/cpu/cpu_bf16.h"
#include "gpu/open/device_open.h"
#include "gpu/ops.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct cpu_kernels here; /* the kernels of this CPU */

static void the_fastest_is_chosen(void **state)
{
    (void)state;
    static const struct {
        double widen, dot;
        enum cpu_bf16_products chosen;
    } cases[] = {
        {116e9, 232e9, CPU_BF16_DOT},  /* Zen 4 */
        {168e9, 82e9, CPU_BF16_WIDEN}, /* Emerald Rapids */
        {168e9, 0, CPU_BF16_WIDEN},    /* without the instruction */
        {100e9, 100e9, CPU_BF16_DOT},  /* equally fast within noise */
        {109e9, 100e9, CPU_BF16_DOT},  {111e9, 100e9, CPU_BF16_WIDEN},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const struct cpu_bf16_rates rates = {
            .products = {[CPU_BF16_WIDEN] = cases[i].widen, [CPU_BF16_DOT] = cases[i].dot}};
        assert_int_equal(cpu_bf16_fastest(&rates), cases[i].chosen);
    }
}

static void a_cpu_is_measured(void **state)
{
    (void)state;
    struct cpu_bf16_rates rates;
    cpu_bf16_measure(&here, &rates);
    assert_true(rates.products[CPU_BF16_WIDEN] > 0);
    assert_int_equal(rates.products[CPU_BF16_DOT] > 0, here.avx512_bf16);
    assert_int_equal(rates.tiles > 0, here.amx_bf16);
}

static void a_word_forces_the_choice(void **state)
{
    (void)state;
    const struct cpu_kernels has = {.isa = CPU_ISA_AVX512, .avx512_bf16 = true, .amx_bf16 = true};
    const struct cpu_kernels lacks = {.isa = CPU_ISA_AVX2};
    struct cpu_kernels kernels = has;
    struct error err;
    setenv("ZTRAIN_CPU_BF16", "dot", 1);
    assert_int_equal(cpu_bf16_choose(&kernels, false, &err), STATUS_OK);
    assert_true(kernels.bf16 == CPU_BF16_DOT && !kernels.amx_bf16);
    kernels = lacks;
    assert_int_equal(cpu_bf16_choose(&kernels, false, &err), STATUS_USAGE);
    assert_non_null(strstr(err.text, "ZTRAIN_CPU_BF16 is 'dot', which needs avx512_bf16"));
    setenv("ZTRAIN_CPU_BF16", "widen", 1);
    assert_int_equal(cpu_bf16_choose(&kernels, false, &err), STATUS_OK);
    kernels = has;
    assert_int_equal(cpu_bf16_choose(&kernels, false, &err), STATUS_OK);
    assert_true(kernels.bf16 == CPU_BF16_WIDEN && !kernels.amx_bf16);
}

static void fixed_kernels_follow_from_the_cpu(void **state)
{
    (void)state;
    static const struct {
        struct cpu_kernels has;
        enum cpu_bf16_products chosen;
    } cases[] = {
        {{.isa = CPU_ISA_AVX512, .avx512_bf16 = true}, CPU_BF16_DOT},
        {{.isa = CPU_ISA_AVX512, .avx512_bf16 = true, .amx_bf16 = true}, CPU_BF16_WIDEN}, /* where it is slow */
        {{.isa = CPU_ISA_AVX512}, CPU_BF16_WIDEN},
        {{.isa = CPU_ISA_AVX2}, CPU_BF16_WIDEN},
    };
    struct error err;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct cpu_kernels kernels = cases[i].has; /* whatever this CPU has: nothing runs */
        assert_int_equal(cpu_kernels_choose_products(&kernels, NULL, true, &err), STATUS_OK);
        assert_int_equal(kernels.bf16, cases[i].chosen);
        assert_true(kernels.amx_bf16 == cases[i].has.amx_bf16);
        setenv("ZTRAIN_CPU_BF16", "widen", 1);
        assert_int_equal(cpu_kernels_choose_products(&kernels, NULL, true, &err), STATUS_OK);
        assert_true(kernels.bf16 == CPU_BF16_WIDEN && !kernels.amx_bf16);
        unsetenv("ZTRAIN_CPU_BF16");
    }
}

static void another_word_is_an_error(void **state)
{
    (void)state;
    struct device *device;
    struct error err;
    setenv("ZTRAIN_CPU_BF16", "fast", 1);
    assert_int_equal(device_open(DEVICE_CPU, 0, 1, &device, &err), STATUS_USAGE);
    assert_non_null(strstr(err.text, "ZTRAIN_CPU_BF16 must be widen or dot, not 'fast'"));
    assert_null(device);
}

static void ranks_take_what_all_can_and_want(void **state)
{
    (void)state;
    struct cpu_kernels ranks[3] = {{.isa = CPU_ISA_AVX512, .avx512_bf16 = true, .bf16 = CPU_BF16_DOT}}, common;
    ranks[1] = ranks[2] = ranks[0];
    cpu_kernels_common(ranks, 3, &common);
    assert_int_equal(common.bf16, CPU_BF16_DOT);
    ranks[1].bf16 = CPU_BF16_WIDEN; /* the others would wait for a rank with a slow instruction */
    cpu_kernels_common(ranks, 3, &common);
    assert_int_equal(common.bf16, CPU_BF16_WIDEN);
    assert_false(cpu_kernels_equal(&ranks[0], &ranks[1]));
    ranks[1] = (struct cpu_kernels){.isa = CPU_ISA_AVX2};
    cpu_kernels_common(ranks, 3, &common);
    assert_int_equal(common.bf16, CPU_BF16_WIDEN);
}

static void a_run_keeps_its_choice(void **state)
{
    (void)state;
    struct cpu_kernels before = {.isa = CPU_ISA_AVX512, .avx512_bf16 = true}, now = here, measured = here;
    struct error err;
    if (!here.avx512_bf16) skip();
    assert_int_equal(cpu_kernels_choose_products(&measured, NULL, false, &err), STATUS_OK);
    for (int i = 0; i < CPU_BF16_COUNT; i++) {
        before.bf16 = (enum cpu_bf16_products)i;
        assert_int_equal(cpu_kernels_choose_products(&now, &before, false, &err), STATUS_OK);
        assert_int_equal(now.bf16, i);
    }
    setenv("ZTRAIN_CPU_BF16", "widen", 1); /* the variable overrides the measurement */
    assert_int_equal(cpu_kernels_choose_products(&now, &before, false, &err), STATUS_OK);
    assert_int_equal(now.bf16, CPU_BF16_WIDEN);
    unsetenv("ZTRAIN_CPU_BF16");
    before = (struct cpu_kernels){.isa = CPU_ISA_AVX512}; /* had no instruction to choose */
    assert_int_equal(cpu_kernels_choose_products(&now, &before, false, &err), STATUS_OK);
    assert_int_equal(now.bf16, measured.bf16);
}

/* ---- which instructions compute: VDPBF16PS flushes denormals ------------- */

enum { SMALLEST = 1 /* 2^-133 */, TWO_TO_100 = 0x7180, WORKSPACE = 64 << 20 };

/* Of two rows: a single one is no matrix product (cpu_gemm_row.h). */
static float small_times_large(struct device *device, struct stream *stream)
{
    const uint16_t x[4] = {SMALLEST, SMALLEST, SMALLEST, SMALLEST}, w[2] = {TWO_TO_100, TWO_TO_100};
    float y[2] = {-1, -1};
    const struct linear_fwd_args product = {
        .dtype = DTYPE_BF16, .y_dtype = DTYPE_F32, .M = 2, .N = 1, .K = 2, .y = y, .x = x, .w = w};
    device->ops->linear_fwd(stream, &product);
    stream_sync(stream);
    return y[0];
}

/* Returns the value of a single token. */
static uint16_t attention_of_small(struct device *device, struct stream *stream)
{
    enum { D = 8 };
    uint16_t q[D] = {0}, k[D] = {0}, v[D], out[D];
    float lse;
    const int32_t seq_start[2] = {0, 1};
    for (int i = 0; i < D; i++) v[i] = SMALLEST;
    const struct attention_fwd_args attention = {.dtype = DTYPE_BF16,
                                                 .M = 1,
                                                 .H = 1,
                                                 .KV = 1,
                                                 .D = D,
                                                 .ld_q = D,
                                                 .ld_k = D,
                                                 .ld_v = D,
                                                 .ld_o = D,
                                                 .scale = 1,
                                                 .num_seqs = 1,
                                                 .max_seq = 1,
                                                 .seq_start = seq_start,
                                                 .q = q,
                                                 .k = k,
                                                 .v = v,
                                                 .out = out,
                                                 .lse = &lse};
    device->ops->attention_fwd(stream, &attention);
    stream_sync(stream);
    return out[0];
}

static void expect(const char *word, const char *detail, float product, uint16_t attention)
{
    struct device *device;
    struct stream *stream;
    struct error err;
    void *workspace = aligned_alloc(64, WORKSPACE);
    assert_non_null(workspace);
    setenv("ZTRAIN_CPU_BF16", word, 1);
    assert_int_equal(device_open(DEVICE_CPU, 0, 1, &device, &err), STATUS_OK);
    assert_int_equal(stream_new(device, STREAM_COMPUTE, &stream, &err), STATUS_OK);
    stream_set_workspace(stream, workspace, WORKSPACE);
    assert_non_null(strstr(device->detail, detail));
    assert_true(small_times_large(device, stream) == product);
    assert_int_equal(attention_of_small(device, stream), attention);
    stream_free(stream);
    device_close(device);
    free(workspace);
}

static void the_chosen_instructions_compute(void **state)
{
    (void)state;
    expect("widen", here.avx512_bf16 ? "bf16 builtin (widen)" : "bf16 builtin", 2 * 0x1p-33f, SMALLEST);
    if (here.avx512_bf16) expect("dot", "bf16 builtin (dot)", 0, 0);
}

static int forget(void **state)
{
    (void)state;
    unsetenv("ZTRAIN_CPU_BF16");
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(the_fastest_is_chosen, forget),
        cmocka_unit_test_teardown(a_cpu_is_measured, forget),
        cmocka_unit_test_teardown(a_word_forces_the_choice, forget),
        cmocka_unit_test_teardown(fixed_kernels_follow_from_the_cpu, forget),
        cmocka_unit_test_teardown(another_word_is_an_error, forget),
        cmocka_unit_test(ranks_take_what_all_can_and_want),
        cmocka_unit_test_teardown(a_run_keeps_its_choice, forget),
        cmocka_unit_test_teardown(the_chosen_instructions_compute, forget),
    };
    unsetenv("ZTRAIN_CPU_ISA");
    unsetenv("ZTRAIN_CPU_GEMM");
    struct error err;
    if (cpu_kernels_detect(&here, &err) != STATUS_OK) return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
