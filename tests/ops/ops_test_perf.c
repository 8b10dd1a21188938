/* SPDX-License-Identifier: Apache-2.0 */
/* ops_test_perf.c: the time of ops, next to the fastest copy and product of the device. */
#include "tests/ops/ops_test.h"

#include "core/clock.h"
#include "gpu/cpu/cpu_bf16.h"

#include <stdio.h>
#include <string.h>

/* Returns the seconds of one `work(h, op)`: the best of several batches, which are long enough that the time to start
 * and to wait does not count. */
static double best_seconds(struct harness *h, void (*work)(struct harness *h, int op), int op)
{
    const double limit =
        h->device->kind == DEVICE_CUDA ? 0.1 : 1; /* timings on a GPU vary little, and it has many cases */
    double best = 1e30, start = seconds_now();
    for (int i = 0, batch = 1; i < 3 || (i < 200 && seconds_now() - start < limit); i++) {
        double before = seconds_now();
        for (int j = 0; j < batch; j++) work(h, op);
        stream_sync(h->stream);
        double seconds = (seconds_now() - before) / batch;
        best = i > 0 && seconds < best ? seconds : best; /* the first warms up */
        if (seconds * batch < 5e-3 && batch < 64) batch *= 4;
    }
    return best;
}

/* Lets the device choose its kernel for a product first. */
static enum status announce(struct harness *h, int op, struct error *err)
{
    struct linear_products products = {.fwd = &h->args.linear_fwd,
                                       .bwd_input = &h->args.linear_bwd_input,
                                       .bwd_weight = &h->args.linear_bwd_weight,
                                       .num_fwd = strcmp(op_drivers[op]->op, "linear_fwd") == 0,
                                       .num_bwd_input = strcmp(op_drivers[op]->op, "linear_bwd_input") == 0,
                                       .num_bwd_weight = strcmp(op_drivers[op]->op, "linear_bwd_weight") == 0};
    return ops_prepare(h->device, &products, err);
}

struct op_profile case_prepare(struct harness *h, const struct op_case *c, enum dtype dtype)
{
    struct op_profile work = {0};
    struct error err;
    int op = op_of_case(c);
    h->timing = true;
    case_setup(h, c, dtype, op);
    h->timing = false;
    if (announce(h, op, &err) != STATUS_OK) printf("FAILED: %s\n", err.text);
    struct ops_profiler *profiler;
    if (ops_profiler_new(h->device, &profiler, &err) != STATUS_OK) BUG("no profile: %s", err.text);
    case_launch(h, op);
    if (ops_profiler_read(profiler, &work, 1) != 1) BUG("a profile without '%s'", c->op);
    ops_profiler_free(profiler);
    return work;
}

static void copy_half(struct harness *h, int op)
{
    size_t half = h->arena.capacity / 2;
    (void)op;
    stream_copy(h->stream, h->arena.base + half, h->arena.base, half);
}

double copy_ceiling(struct harness *h)
{
    const struct op_case cast = {.op = "cast", .N = (int64_t)(h->arena.capacity / 10), .flags = IN_PLACE};
    double copied = 2 * (double)(h->arena.capacity / 2) / best_seconds(h, copy_half, 0);
    double bytes = case_prepare(h, &cast, DTYPE_F32).bytes,
           rate = bytes / best_seconds(h, case_launch, op_of_case(&cast));
    return copied > rate ? copied : rate;
}

/* FLOP/s of a large matrix product. */
static double product_ceiling(struct harness *h, enum dtype dtype)
{
    const int64_t size = h->device->kind == DEVICE_CUDA ? 8192 : 2048;
    const struct op_case product = {.op = "linear_fwd", .M = size, .N = size, .K = size};
    double flops = case_prepare(h, &product, dtype).flops;
    return flops / best_seconds(h, case_launch, op_of_case(&product));
}

static void print_rate(double flops)
{
    bool large = flops >= 1e12;
    printf("%8.1f %cFLOP/s", (large ? 1e-12 : 1e-9) * flops, large ? 'T' : 'G');
}

void print_bf16_rates(const struct device *device)
{
    struct cpu_kernels has;
    struct cpu_bf16_rates rates;
    struct error err;
    char text[CPU_BF16_TEXT];
    if (device->kind != DEVICE_CPU || cpu_kernels_detect(&has, &err) != STATUS_OK) return;
    cpu_bf16_measure(&has, &rates);
    printf("ceiling: bf16 from the caches: %s\n", cpu_bf16_rates_text(&rates, text));
}

bool run_perf(struct harness *h, const struct op_case *c, enum dtype dtype, const char *text, struct ceilings *ceilings)
{
    struct error err;
    struct op_profile work = case_prepare(h, c, dtype);
    if (work.flops > 0 && ceilings->flops[dtype] == 0) {
        ceilings->flops[dtype] = product_ceiling(h, dtype);
        printf("ceiling: a large product of %s ", dtype_name(dtype));
        print_rate(ceilings->flops[dtype]);
        printf("\n");
        case_prepare(h, c, dtype);
    }
    double seconds = best_seconds(h, case_launch, op_of_case(c));
    if (device_check(h->device, &err) != STATUS_OK) {
        printf("FAILED %s: %s\n", text, err.text);
        return false;
    }
    if (work.flops > 0) {
        printf("%-100s %9.3f ms ", text, 1e3 * seconds);
        print_rate(work.flops / seconds);
        printf(" %4.0f%% of a large product, %3.0f%% of a copy\n", 100 * work.flops / seconds / ceilings->flops[dtype],
               100 * work.bytes / seconds / ceilings->copy);
    } else {
        printf("%-100s %9.3f ms %8.1f GB/s    %4.0f%% of a copy\n", text, 1e3 * seconds, 1e-9 * work.bytes / seconds,
               100 * work.bytes / seconds / ceilings->copy);
    }
    fflush(stdout);
    return true;
}
