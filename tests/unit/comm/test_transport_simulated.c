/* SPDX-License-Identifier: Apache-2.0 */
/* test_transport_simulated.c: the price of ordered reduce-scatters next to NCCL's own, within a node and across
 * nodes. */
#include "comm/transport_simulated.h"
#include "gpu/op_cost.h"
#include "gpu/ops.h"
#include "gpu/simulate/simulated_device.h"
#include "tests/unit/fixtures/one_op.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { COUNT = 1 << 24 }; /* elements of a slice, in bf16 */
static const double slice = 2.0 * COUNT, share = 0.8, inside = 450e9, network = 50e9;

static double start_of(int world)
{
    return 15e-6 + 1e-6 * (world - 1);
}

/* A reduction on `world` ranks; *sum: the least that the kernel of an ordered one takes. */
static struct simulated_times times_of(int world, int per_node, double link_inside, bool ordered, double *sum)
{
    struct error err;
    struct gpu_model gpu;
    struct simulated_times times;
    struct stream *stream;
    assert_int_equal(gpu_catalog_find("h100", &gpu, &err), STATUS_OK);
    struct device *device = simulated_device_open_timed(&(struct assumed_gpu){.gpu = &gpu});
    struct comm *comm = transport_simulated_open(world, &(struct comm_link){link_inside, network, per_node});
    const struct data_op op = {
        .count = COUNT, .dtype = DTYPE_BF16, .recv_dtype = DTYPE_F32, .accumulate = true, .ordered = ordered};
    const struct sum_ranks_args args = {.dtype = DTYPE_BF16, .n = COUNT, .ranks = world, .accumulate = true};
    *sum = op_cost_sum_ranks(&args).bytes / gpu.bytes;
    assert_int_equal(stream_new(device, STREAM_COMM, &stream, &err), STATUS_OK);
    comm_reduce_scatter(comm, &op, stream);
    simulated_device_times(device, &times);
    stream_free(stream);
    comm_close(comm);
    device_close(device);
    return times;
}

static void assert_near(double value, double right)
{
    if (!(fabs(value - right) <= 1e-9 * right)) fail_msg("%g s, where %g is right", value, right);
}

/* One of NCCL's, and an ordered one whose transfer takes `transfer` seconds: the kernel comes on top. */
static void check_price(int world, int per_node, double unordered, double transfer)
{
    double sum;
    struct simulated_times times = times_of(world, per_node, inside, false, &sum);
    assert_near(times.communication, unordered);
    assert_true(times.ordered == 0 && times.unordered == 0);
    times = times_of(world, per_node, inside, true, &sum);
    assert_near(times.communication, transfer);
    assert_near(times.unordered, unordered);
    assert_true(times.ordered > transfer + sum && times.ordered < transfer + 2 * sum + 2e-6);
}

/* Every rank receives the contributions of the others: as much as a ring moves. */
static void within_a_node_the_kernel_is_the_price(void **state)
{
    (void)state;
    for (int world = 2; world <= 8; world *= 2) {
        const double seconds = start_of(world) + (world - 1) * slice / (share * inside);
        check_price(world, 8, seconds, seconds);
    }
}

/* A ring's cards share what comes into a node; contributions to a slice all come through one card. */
static void across_nodes_each_card_carries_more(void **state)
{
    (void)state;
    for (int world = 16; world <= 64; world *= 2) {
        const double ring = (world - 8) * slice / 8 / (share * network), along = (world - 1) * slice / (share * inside),
                     all = (world - 8) * slice / (share * network);
        check_price(world, 8, start_of(world) + fmax(ring, along), start_of(world) + all);
    }
    check_price(4, 1, start_of(4) + 3 * slice / (share * network), start_of(4) + 3 * slice / (share * network));
}

static void without_communication_there_is_none(void **state)
{
    (void)state;
    double sum;
    const struct simulated_times times = times_of(8, 8, INFINITY, true, &sum);
    assert_true(times.communication == 0 && times.ordered == 0 && times.unordered == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(within_a_node_the_kernel_is_the_price),
                                       cmocka_unit_test(across_nodes_each_card_carries_more),
                                       cmocka_unit_test(without_communication_there_is_none)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
