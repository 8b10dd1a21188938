/* SPDX-License-Identifier: Apache-2.0 */
/* test_cpu_gemm.c: a matrix product has the same bits whether a few columns are asked for (A is read in place, or C's
 * transpose is computed) or many (A is packed). */
#include "gpu/open/device_open.h"
#include "gpu/ops.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_M = 1100, MOST_K = 4200, WIDE = 200, WORKSPACE = 64 << 20 };

static struct device *device;
static struct stream *stream;

static void *numbers(enum dtype dtype, int64_t count)
{
    char *of = malloc((size_t)count * dtype_size(dtype));
    assert_non_null(of);
    for (int64_t i = 0; i < count; i++) dtype_store(of, i, (float)(rand() % 2001 - 1000) / 512, dtype);
    return of;
}

static void forward(enum dtype dtype, enum dtype y_dtype, void *y, int64_t M, int64_t N, int64_t K, const void *x,
                    int64_t ld_x, const void *w)
{
    const struct linear_fwd_args product = {
        .dtype = dtype, .y_dtype = y_dtype, .M = M, .N = N, .K = K, .y = y, .ld_y = WIDE, .x = x, .ld_x = ld_x, .w = w};
    device->ops->linear_fwd(stream, &product);
}

static void weight(enum dtype dtype, float *dw, int64_t M, int64_t N, int64_t K, const void *dy, const void *x,
                   int64_t ld_x)
{
    const struct linear_bwd_weight_args product = {.dtype = dtype,
                                                   .dw_dtype = DTYPE_F32,
                                                   .M = M,
                                                   .N = N,
                                                   .K = K,
                                                   .dw = dw,
                                                   .dy = dy,
                                                   .ld_dy = WIDE,
                                                   .x = x,
                                                   .ld_x = ld_x};
    device->ops->linear_bwd_weight(stream, &product);
}

/* x (M, K), rows ld apart; the first row is `shift` elements after an aligned address, the last one ends its memory.
 * What lies between rows is not a number. */
static void check(enum dtype dtype, int64_t M, int64_t K, int64_t ld, int64_t shift)
{
    static const int64_t few[] = {1, 8, 16, 17, 33, 64};
    static float wide[MOST_M * WIDE], y[MOST_M * WIDE], wide_dw[WIDE * MOST_K], dw[WIDE * MOST_K];
    static uint16_t wide_half[MOST_M * WIDE], half[MOST_M * WIDE];
    const int64_t count = shift + (M - 1) * ld + K;
    char *x = numbers(dtype, count), *w = numbers(dtype, WIDE * K), *dy = numbers(dtype, M * WIDE);
    void *from = x + (size_t)shift * dtype_size(dtype);
    for (int64_t row = 0; row + 1 < M; row++)
        for (int64_t i = K; i < ld; i++) dtype_store(from, row * ld + i, NAN, dtype);
    forward(dtype, DTYPE_F32, wide, M, WIDE, K, from, ld, w);
    forward(dtype, dtype, dtype == DTYPE_BF16 ? (void *)wide_half : wide, M, WIDE, K, from, ld, w);
    weight(dtype, wide_dw, M, WIDE, K, dy, from, ld);
    for (size_t i = 0; i < COUNT_OF(few); i++) {
        const int64_t N = few[i];
        forward(dtype, DTYPE_F32, y, M, N, K, from, ld, w);
        forward(dtype, dtype, dtype == DTYPE_BF16 ? (void *)half : y, M, N, K, from, ld, w);
        for (int64_t row = 0; row < M; row++) {
            assert_memory_equal(y + row * WIDE, wide + row * WIDE, (size_t)N * sizeof *y);
            assert_memory_equal(half + row * WIDE, wide_half + row * WIDE, (size_t)N * sizeof *half);
        }
        weight(dtype, dw, M, N, K, dy, from, ld);
        assert_memory_equal(dw, wide_dw, (size_t)(N * K) * sizeof *dw);
    }
    free(x);
    free(w);
    free(dy);
}

/* 251 = 20 · 12 + 11 rows; 1100 rows are more than one block of A. */
static void columns_do_not_depend_on_their_number(void **state)
{
    static const char *const isas[] = {NULL, "avx2", "baseline"};
    static const struct {
        int64_t M, K, gap, shift;
    } cases[] = {{2, 96, 0, 0},   {29, 130, 2, 0}, {251, 96, 2, 0},     {251, 97, 1, 0}, {251, 96, 1, 0},
                 {251, 96, 2, 1}, {192, 8, 0, 0},  {200, MOST_K, 0, 0}, {7, 2200, 0, 0}, {MOST_M, 2000, 0, 0}};
    struct error err;
    (void)state;
    for (size_t i = 0; i < COUNT_OF(isas); i++) {
        if (isas[i]) setenv("ZTRAIN_CPU_ISA", isas[i], 1);
        if (device_open(DEVICE_CPU, 0, 2, &device, &err) != STATUS_OK) continue; /* this CPU lacks it */
        void *workspace = aligned_alloc(64, WORKSPACE);
        assert_int_equal(stream_new(device, STREAM_COMPUTE, &stream, &err), STATUS_OK);
        stream_set_workspace(stream, workspace, WORKSPACE);
        for (size_t c = 0; c < COUNT_OF(cases); c++) {
            check(DTYPE_F32, cases[c].M, cases[c].K, cases[c].K + cases[c].gap, 0);
            check(DTYPE_BF16, cases[c].M, cases[c].K, cases[c].K + cases[c].gap, cases[c].shift);
        }
        stream_free(stream);
        device_close(device);
        free(workspace);
    }
    unsetenv("ZTRAIN_CPU_ISA");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(columns_do_not_depend_on_their_number)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
