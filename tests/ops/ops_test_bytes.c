/* SPDX-License-Identifier: Apache-2.0 */
/* ops_test_bytes.c: the bytes that an op's kernels move, next to those that it must (op_cost.h).
 *
 * The emulated GPU counts them (tests/emulation/emulation_traffic.h); other devices cannot, which is an error. */
#include "tests/ops/ops_test.h"

#include "core/round_up.h"
#include "gpu/cuda/cuda_workspace.h"
#include "tests/emulation/emulation_traffic.h"

#include <stdio.h>
#include <string.h>

__attribute__((weak)) void emulation_traffic_begin(void);
__attribute__((weak)) void emulation_traffic_end(struct emulation_traffic *traffic);

/* What the bytes may exceed their floor by: operands that all rows share, a row's statistics, scratch memory. */
static const double slack = 0.05;

bool bytes_are_counted(const struct device *device)
{
    return device->kind == DEVICE_CUDA && emulation_traffic_begin && emulation_traffic_end;
}

/* ---- floors -------------------------------------------------------------- */

/* `touched`: each byte is read at most once and written at most once. `again`: what an op of several kernels reads or
 * writes once more by its nature, in bytes. */
struct floor {
    double touched, again;
};

/* The partial sums of a norm's backward, which its kernels write and read: one for each weight, with biases three. Rows
 * that are read again write all three. */
static void add_partial_sums(struct floor *floor, const struct op_case *c, enum dtype dtype)
{
    const int64_t C = strcmp(c->op, "head_norm_bwd") ? c->N : c->D;
    const bool held = C * (int64_t)dtype_size(dtype) <= 16 * 1024; /* a vector of 16 bytes in each of 2 x 512 threads */
    const int read = c->flags & BIAS ? 3 : 1, written = held ? read : 3;
    floor->touched += (double)(cuda_norm_parts(C) * C * (read + written)) * sizeof(float);
}

/* A pass over a product's result without an epilogue: it reads the result, and with `writes` writes it again. */
static void add_pass(struct floor *floor, double bytes, bool writes)
{
    floor->touched += bytes;
    floor->again += writes ? bytes : 0;
}

static double distinct(const int32_t *values, int64_t n)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t j = 0;
        while (j < i && values[j] != values[i]) j++;
        count += j == i;
    }
    return (double)count;
}

/* Gradients of a table's rows are added to what is there. The cost counts each row of the batch as one of the table's,
 * but equal ones are added up before. A table that is zeroed first is written again where rows are added. */
static void add_table(struct floor *floor, const struct op_case *c, const int32_t *keys)
{
    const double row = (double)c->N * sizeof(float), rows = distinct(keys, c->M);
    floor->touched -= 2 * ((double)c->M - rows) * row;
    if (c->flags & ACCUMULATE) return;
    floor->touched -= rows * row;
    floor->again += rows * row;
}

/* Every table's rows have an order of their own, in which the kernels read the batch. */
static void add_tables(struct floor *floor, const struct harness *h)
{
    const struct op_case *c = h->c;
    add_table(floor, c, h->index_a);
    if (c->flags & WPE) {
        add_table(floor, c, h->index_b);
        floor->again += (double)(c->M * c->N) * (double)dtype_size(h->dtype);
    }
}

/* The threads that decode a block of 4-bit codes, eight each, are of one warp, which reads their scale by one access:
 * the count takes it for as many. */
static void add_scales(struct floor *floor, const struct dequantize_args *a)
{
    enum { TOGETHER = 8 };
    const int64_t block = a->format == QUANTIZED_NF4 ? a->block : MXFP4_BLOCK, size = a->scales ? sizeof(float) : 1;
    if (a->format != QUANTIZED_FP8) floor->again += (double)((block / TOGETHER - 1) * a->num_scales * size);
}

/* The same of the lanes of a warp, which has a block of moments, and its scales. */
static void add_moment_scales(struct floor *floor, int64_t n)
{
    enum { LANES = 32, MOMENTS = 2 };
    floor->again += (double)(n / MOMENT_BLOCK * MOMENTS * (LANES - 1)) * sizeof(float);
}

/* The heads of a token that a warp has turn by one read of their angles; it is two accesses to the same sectors where a
 * vector has eight elements. */
static void add_turns(struct floor *floor, const struct harness *h)
{
    const struct op_case *c = h->c;
    const int64_t heads = 32 * 4 * 16 / ((int64_t)dtype_size(h->dtype) * c->D); /* 32 lanes, 4 vectors of 16 bytes */
    const double row = (double)c->D * sizeof(float), rows = distinct(h->index_b, c->M);
    floor->touched += rows * row;
    floor->again += ((double)(c->M * c->H / heads * (h->dtype == DTYPE_F32 ? 1 : 2)) - rows) * row;
}

/* Experts are counted, then placed. The counts of blocks become those of the blocks before them. */
static void add_counts(struct floor *floor, const struct permute_experts_args *a)
{
    const double counts = (double)(ceil_div(a->M * a->k, CUDA_SORT_ITEMS) * a->E) * sizeof(int32_t);
    floor->touched += 2 * counts;
    floor->again += 2 * counts + (double)(a->M * a->k) * sizeof(int32_t);
}

static struct floor floor_of(const struct harness *h, double cost)
{
    const struct op_case *c = h->c;
    const double size = (double)dtype_size(h->dtype);
    struct floor floor = {cost, 0};
    if (strstr(c->op, "norm_bwd"))
        add_partial_sums(&floor, c, h->dtype);
    else if (!strcmp(c->op, "linear_fwd"))
        add_pass(&floor, (double)(c->M * c->N) * (c->flags & WIDE_OUT ? sizeof(float) : size), true);
    else if (!strcmp(c->op, "linear_bwd_input"))
        add_pass(&floor, (double)(c->M * c->K) * size, c->flags & GELU);
    else if (!strcmp(c->op, "embedding_bwd"))
        add_tables(&floor, h);
    else if (!strcmp(c->op, "dequantize"))
        add_scales(&floor, &h->args.dequantize);
    else if (!strcmp(c->op, "head_norm_fwd") && c->P)
        add_turns(&floor, h);
    else if (!strcmp(c->op, "permute_experts"))
        add_counts(&floor, &h->args.permute_experts);
    else if (!strcmp(c->op, "adam8"))
        add_moment_scales(&floor, c->N);
    return floor;
}

/* ---- counts -------------------------------------------------------------- */

static struct emulation_traffic count_launches(struct harness *h, int launches)
{
    struct emulation_traffic traffic;
    stream_sync(h->stream);
    emulation_traffic_begin();
    for (int i = 0; i < launches; i++) case_launch(h, op_of_case(h->c));
    stream_sync(h->stream);
    emulation_traffic_end(&traffic);
    return traffic;
}

/* What is wrong; NULL: nothing. */
static const char *fault_of(const struct emulation_traffic *traffic, const struct floor *floor, bool wasteful)
{
    const double most = (1 + slack) * (floor->touched + floor->again);
    if (!(traffic->touched >= (1 - 1e-9) * floor->touched && traffic->touched <= (1 + slack) * floor->touched))
        return "it touches other bytes than its cost says";
    if (!(traffic->shared <= slack * floor->touched)) return "too many bytes are read over and over";
    if (wasteful) return traffic->moved > most ? NULL : "what it reads again was not seen";
    return traffic->moved <= most ? NULL : "it moves more than it must";
}

bool bytes_check(struct harness *h, const char *text, double cost)
{
    const struct floor floor = floor_of(h, cost);
    const bool wasteful = h->c->flags & READS_AGAIN || (h->c->flags & FP32_READS_AGAIN && h->dtype == DTYPE_F32);
    const struct emulation_traffic once = count_launches(h, 1);
    const char *fault = fault_of(&once, &floor, wasteful);
    if (!fault && !wasteful && h->dtype == DTYPE_BF16) { /* in one type: counting takes long */
        const struct emulation_traffic twice = count_launches(h, 2);
        if (!fault_of(&twice, &floor, false)) fault = "a second launch was not found to be waste";
    }
    const double all = floor.touched + floor.again;
    printf("%-72s %10.0f bytes, moved %.3f", text, all, once.moved / all);
    if (floor.again > 0) printf(" (%.3f of what is touched)", once.moved / floor.touched);
    printf(", touched %.3f, shared %.3f\n", once.touched / floor.touched, once.shared / floor.touched);
    if (fault) printf("FAILED %s: %s\n", text, fault);
    return !fault;
}
