/* SPDX-License-Identifier: Apache-2.0 */
/* test_adam8.c: 20 steps of AdamW8bit leave torchao's bits, at every level of instructions that this CPU has. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "core/memory.h"
#include "gpu/cpu/cpu_kernels.h"
#include "gpu/cpu/ops_cpu.h"
#include "tests/unit/fixtures/golden_adam8.h"

enum { BLOCKS = GOLDEN_ADAM8_NUMEL / MOMENT_BLOCK };

/* The formula of tests/golden/make_adam8.py. */
static float adam8_number(int64_t element, int salt)
{
    uint32_t mixed = (uint32_t)element * 2654435761u + (uint32_t)salt * 40503u;
    mixed = (mixed ^ mixed >> 15) * 2246822519u;
    return (float)((double)(mixed >> 8) * 0x1p-24 - 0.5);
}

static float adam8_gradient(int64_t element, int step)
{
    if (element == MOMENT_BLOCK) return -0x1p-18f;
    return ldexpf(adam8_number(element, step), element / MOMENT_BLOCK == 1 ? -20 - step % 5 : -(step % 5));
}

static void check_moments(const struct moment_block *moments, const uint8_t *codes, const uint32_t *scales)
{
    for (int block = 0; block < GOLDEN_ADAM8_KEPT / MOMENT_BLOCK; block++) {
        assert_memory_equal(&moments[block].scale, &scales[block], sizeof *scales);
        assert_memory_equal(moments[block].codes, codes + block * MOMENT_BLOCK, MOMENT_BLOCK);
    }
}

static void check_level(enum cpu_isa isa)
{
    static float weights[GOLDEN_ADAM8_NUMEL], gradients[GOLDEN_ADAM8_NUMEL];
    static struct moment_block m[BLOCKS], v[BLOCKS];
    struct step_state state = {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .grad_scale = 1};
    const struct adam8_args args = {.n = GOLDEN_ADAM8_NUMEL,
                                    .master = weights,
                                    .m = m,
                                    .v = v,
                                    .grad = gradients,
                                    .step = &state,
                                    .eps = 1e-6f,
                                    .weight_decay = 0.1f};
    memset(m, 0, sizeof m);
    memset(v, 0, sizeof v);
    for (int i = 0; i < GOLDEN_ADAM8_NUMEL; i++) weights[i] = adam8_number(i, 1000);
    for (int step = 1; step <= GOLDEN_ADAM8_STEPS; step++) {
        for (int i = 0; i < GOLDEN_ADAM8_NUMEL; i++) gradients[i] = adam8_gradient(i, step);
        state.optimizer_step = step;
        ops_cpu_of(isa)->table.adam8(NULL, &args);
    }
    check_moments(m, golden_adam8_m, golden_adam8_m_scales);
    check_moments(v, golden_adam8_v, golden_adam8_v_scales);
    assert_memory_equal(weights, golden_adam8_weights, sizeof golden_adam8_weights);
}

static void test_torchao(void **state)
{
    (void)state;
    struct cpu_kernels here;
    struct error err;
    assert_int_equal(cpu_kernels_detect(&here, &err), STATUS_OK);
    for (enum cpu_isa isa = CPU_ISA_BASELINE; isa <= here.isa; isa++) check_level(isa);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_torchao)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
