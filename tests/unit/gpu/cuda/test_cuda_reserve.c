/* SPDX-License-Identifier: Apache-2.0 */
/* test_cuda_reserve.c: what a GPU's memory holds outside of a plan, against figures computed by hand. */
#include "gpu/cuda/cuda_reserve.h"
#include "gpu/simulate/simulated_device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const size_t mib = 1 << 20;

static struct device *open_gpu(void) /* an H100, assumed */
{
    struct error err;
    struct device *device;
    assert_int_equal(simulated_device_open(NULL, &device, &err), STATUS_OK);
    return device;
}

static struct op_limits attention_of(int32_t sequences, int32_t length, enum dtype dtype)
{
    struct op_limits limits = {
        .dtype = dtype, .max_tokens = (int64_t)sequences * length, .num_attention = 1, .backward = true};
    limits.attention[0] = (struct attention_bwd_args){.fwd = {.dtype = dtype,
                                                              .M = limits.max_tokens,
                                                              .H = 32,
                                                              .KV = 8,
                                                              .D = 128,
                                                              .num_seqs = sequences,
                                                              .max_seq = length}};
    return limits;
}

static size_t cudnn_part(struct device *device, int32_t sequences, int32_t length, enum dtype dtype, size_t workspace)
{
    struct cuda_reserve reserve;
    struct op_limits limits = attention_of(sequences, length, dtype);
    cuda_reserve_fill(&reserve, device, 1, 1, &limits, workspace);
    assert_int_equal(reserve.parts[CUDA_RESERVE_NCCL], 0);
    return reserve.parts[CUDA_RESERVE_CUDNN];
}

static void cudnn_keeps_a_square_for_each_head_of_a_piece(void **state)
{
    (void)state;
    struct device *device = open_gpu();
    /* 32 heads x 1024 x 1024 x 2 bytes = 64 MiB a sequence; 4 of them are below 79.1 GiB / 256 = 316 MiB, 8 take 2
     * pieces; and two floats for each row of each head */
    assert_int_equal(cudnn_part(device, 1, 1024, DTYPE_BF16, 0), 64 * mib + 2 * 4 * 32 * 1024);
    assert_int_equal(cudnn_part(device, 4, 1024, DTYPE_F16, 0), 256 * mib + 4 * 2 * 4 * 32 * 1024);
    assert_int_equal(cudnn_part(device, 8, 1024, DTYPE_BF16, 0), 256 * mib + 8 * 2 * 4 * 32 * 1024);
    assert_int_equal(cudnn_part(device, 4, 1024, DTYPE_BF16, 56 * mib), 200 * mib + 4 * 2 * 4 * 32 * 1024);
    assert_int_equal(cudnn_part(device, 4, 1024, DTYPE_BF16, 500 * mib), 0);
    assert_int_equal(cudnn_part(device, 4, 1024, DTYPE_F32, 0), 0);
    /* 32 x 8192 x 8192 x 2 = 4 GiB are one piece; 16 GiB are more than 1/16 of the memory: ztrain's kernels */
    assert_int_equal(cudnn_part(device, 1, 8192, DTYPE_BF16, 0), 4096 * mib + 2 * 4 * 32 * 8192);
    assert_int_equal(cudnn_part(device, 1, 16384, DTYPE_BF16, 0), 0);
    device_close(device);
}

static void ragged_and_unordered_attention_keep_less(void **state)
{
    (void)state;
    struct device *device = open_gpu();
    struct cuda_reserve reserve;
    struct op_limits limits = attention_of(8, 1024, DTYPE_BF16);
    /* the sums of dq, 32 heads x 1024 x 128 floats = 16 MiB a sequence, and two floats for each row of each head */
    limits.attention[0].unordered = true;
    cuda_reserve_fill(&reserve, device, 1, 1, &limits, 0);
    assert_int_equal(reserve.parts[CUDA_RESERVE_CUDNN], 8 * 16 * mib + 8 * 2 * 4 * 32 * 1024);
    /* 8192 tokens of up to 4096 sequences: 16 places would do, but only 4 squares of 64 MiB are below 316 MiB */
    limits.attention[0].unordered = false;
    limits.attention[0].fwd.ragged = true;
    limits.attention[0].fwd.num_seqs = 4096;
    cuda_reserve_fill(&reserve, device, 1, 1, &limits, 0);
    assert_int_equal(reserve.parts[CUDA_RESERVE_CUDNN], 4 * 64 * mib + 4 * 2 * 4 * 32 * 1024);
    limits.attention[0].unordered = true; /* 16 x 16 MiB */
    cuda_reserve_fill(&reserve, device, 1, 1, &limits, 0);
    assert_int_equal(reserve.parts[CUDA_RESERVE_CUDNN], 16 * 16 * mib + 16 * 2 * 4 * 32 * 1024);
    device_close(device);
}

static void a_gpu_that_is_here_has_its_plans_in_the_workspace(void **state)
{
    (void)state;
    struct device *device = open_gpu();
    strcpy(device->capability, "9.0"); /* a GPU that is here: its plans are in the workspace */
    assert_int_equal(cudnn_part(device, 4, 1024, DTYPE_BF16, 0), 0);
    device_close(device);
}

static void ranks_have_buffers_and_the_total_is_the_sum(void **state)
{
    (void)state;
    struct device *device = open_gpu();
    struct op_limits limits = attention_of(1, 1024, DTYPE_BF16);
    size_t before = 0;
    for (int world = 1; world <= 3; world++) {
        struct cuda_reserve reserve;
        size_t sum = 0;
        cuda_reserve_fill(&reserve, device, world, world, &limits, 0);
        for (int i = 0; i < CUDA_RESERVE_PARTS; i++) sum += reserve.parts[i];
        assert_int_equal(reserve.total, sum);
        assert_true(reserve.parts[CUDA_RESERVE_CONTEXT] > 0 && reserve.total > before);
        before = reserve.total;
    }
    device_close(device);
}

static size_t nvls_part(const char *gpu, int world, int per_node)
{
    struct error err;
    struct device *device;
    struct cuda_reserve reserve;
    struct op_limits limits = attention_of(1, 1024, DTYPE_BF16);
    assert_int_equal(simulated_device_open(gpu, &device, &err), STATUS_OK);
    cuda_reserve_fill(&reserve, device, world, per_node, &limits, 0);
    device_close(device);
    return reserve.parts[CUDA_RESERVE_NVLS] / mib;
}

static void nvswitch_needs_buffers(void **state)
{
    (void)state;
    assert_int_equal(nvls_part("h100", 8, 8), 256);
    assert_int_equal(nvls_part("b200", 8, 8), 384);
    assert_int_equal(nvls_part("h200", 16, 8), 1024);
    assert_int_equal(nvls_part("h100", 2, 2), 0);
    assert_int_equal(nvls_part("h100", 16, 1), 0);
    assert_int_equal(nvls_part("h100-nvl", 8, 8), 0);
    assert_int_equal(nvls_part("a100", 8, 8), 0);
}

static void the_cpu_has_no_reserve(void **state)
{
    (void)state;
    struct device cpu = {.kind = DEVICE_CPU};
    struct cuda_reserve reserve = {.total = 1};
    struct op_limits limits = attention_of(1, 1024, DTYPE_BF16);
    cuda_reserve_fill(&reserve, &cpu, 8, 8, &limits, 0);
    assert_int_equal(reserve.total, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cudnn_keeps_a_square_for_each_head_of_a_piece),
        cmocka_unit_test(ragged_and_unordered_attention_keep_less),
        cmocka_unit_test(a_gpu_that_is_here_has_its_plans_in_the_workspace),
        cmocka_unit_test(ranks_have_buffers_and_the_total_is_the_sum),
        cmocka_unit_test(nvswitch_needs_buffers),
        cmocka_unit_test(the_cpu_has_no_reserve),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
