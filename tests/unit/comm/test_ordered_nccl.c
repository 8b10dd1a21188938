/* SPDX-License-Identifier: Apache-2.0 */
/* test_ordered_nccl.c: ordered reduce-scatters between GPUs have the bits of the host's sums, over NCCL and through
 * host memory; a wrong order, a rank with another count and one that dies are found. Skipped where a rank has no
 * GPU. */
#include "comm/sums.h"
#include "gpu/open/device_open.h"
#include "tests/unit/fixtures/one_op.h"
#include "tests/unit/fixtures/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { MOST = 5, COUNT = 20003, STRIDE = COUNT + 7, REPORTED = 98, NO_GPU = 77 };

struct ordered_rank {
    struct comm *comm;
    struct device *device;
    struct stream *stream;
    char *send;      /* device: (world × STRIDE) fp32 */
    float *recv;     /* device: (COUNT) */
    void *inbox;     /* device: (world × COUNT) fp32 */
    void *sent;      /* host: this rank's contributions … */
    void *own[MOST]; /* … and all ranks' to this one's slice */
    float *sum;      /* host: (COUNT) */
    int rank, world;
};

static struct error error;
static bool shared; /* all ranks have GPU 0 */

/* ---- a rank -------------------------------------------------------------- */

/* Many magnitudes, so that the order of a sum shows. */
static float ordered_value(int rank, size_t i)
{
    const uint32_t seed = (uint32_t)i * 2654435761u + (uint32_t)(rank + 1) * 2246822519u;
    const uint32_t x = (seed ^ seed >> 15) * 2246822519u;
    return (float)(int32_t)x * (float)(1u << (x >> 4) % 20);
}

static void *ordered_memory(const struct ordered_rank *o, size_t bytes)
{
    void *memory;
    CHECK_OK(device_alloc(o->device, bytes, &memory, &error));
    return memory;
}

static size_t ordered_bytes(const struct ordered_rank *o)
{
    return (size_t)o->world * STRIDE * sizeof(float);
}

/* Exits with NO_GPU if this rank has none. *status: of attaching. */
static void ordered_open(struct ordered_rank *o, struct bootstrap *bootstrap, enum status *status)
{
    const struct comm_config config = {.timeout_seconds = 5, .ordered = true};
    const char *way;
    *o = (struct ordered_rank){.rank = bootstrap->rank, .world = bootstrap->world};
    if (device_open(DEVICE_CUDA, shared ? 0 : o->rank, 1, &o->device, &error) != STATUS_OK) {
        fprintf(stderr, "rank %d: %s\n", o->rank, error.text);
        _exit(NO_GPU);
    }
    CHECK_OK(comm_open(bootstrap, &config, &o->comm, &error));
    *status = comm_attach_device(o->comm, o->device, shared, 0, &way, &error);
    CHECK_OK(stream_new(o->device, STREAM_COMM, &o->stream, &error));
    o->send = ordered_memory(o, ordered_bytes(o));
    o->recv = ordered_memory(o, COUNT * sizeof *o->recv);
    o->inbox = ordered_memory(o, ordered_bytes(o));
    o->sent = malloc(ordered_bytes(o));
    o->sum = malloc(COUNT * sizeof *o->sum);
    CHECK(o->sent && o->sum);
    for (int r = 0; r < o->world; r++) CHECK(o->own[r] = malloc(COUNT * sizeof(float)));
}

static void ordered_close(struct ordered_rank *o)
{
    comm_detach_device(o->comm); /* first: its peers may look into the memory of a graph's collectives */
    for (int r = 0; r < o->world; r++) free(o->own[r]);
    free(o->sum);
    free(o->sent);
    device_free(o->device, o->inbox, ordered_bytes(o));
    device_free(o->device, o->recv, COUNT * sizeof *o->recv);
    device_free(o->device, o->send, ordered_bytes(o));
    stream_free(o->stream);
    device_close(o->device);
    comm_close(o->comm);
}

/* Fills the contributions, and what is there before. */
static void ordered_fill(struct ordered_rank *o, enum dtype dtype)
{
    for (int s = 0; s < o->world; s++)
        for (size_t i = 0; i < STRIDE; i++) {
            const float x = ordered_value(o->rank, (size_t)s * STRIDE + i);
            floats_to((char *)o->sent + ((size_t)s * STRIDE + i) * dtype_size(dtype), &x, 1, dtype);
        }
    for (size_t i = 0; i < COUNT; i++) {
        o->sum[i] = ordered_value(-1, i);
        for (int r = 0; r < o->world; r++) {
            const float x = ordered_value(r, (size_t)o->rank * STRIDE + i);
            floats_to((char *)o->own[r] + i * dtype_size(dtype), &x, 1, dtype);
        }
    }
    stream_copy(o->stream, o->send, o->sent, (size_t)o->world * STRIDE * dtype_size(dtype));
    stream_copy(o->stream, o->recv, o->sum, COUNT * sizeof *o->sum);
    stream_sync(o->stream);
}

/* Reduces elements [at, at + count) of every slice. */
static struct data_op ordered_op(const struct ordered_rank *o, enum dtype dtype, bool accumulate, size_t at,
                                 size_t count)
{
    return (struct data_op){.send = o->send + at * dtype_size(dtype),
                            .recv = o->recv + at,
                            .count = count,
                            .stride = STRIDE,
                            .dtype = dtype,
                            .recv_dtype = DTYPE_F32,
                            .accumulate = accumulate,
                            .ordered = true,
                            .inbox = o->inbox};
}

/* What `times` reductions must have left. */
static void ordered_compare(struct ordered_rank *o, enum dtype dtype, bool accumulate, int times)
{
    float *got = malloc(COUNT * sizeof *got);
    CHECK(got);
    stream_copy(o->stream, got, o->recv, COUNT * sizeof *got);
    stream_sync(o->stream);
    CHECK_OK(comm_status(o->comm, &error));
    CHECK_OK(device_check(o->device, &error));
    for (int i = 0; i < times; i++)
        sum_ranks(o->sum, DTYPE_F32, (const void *const *)o->own, o->world, COUNT, dtype,
                  accumulate ? SUM_FROM_OUT : SUM_ALONE);
    CHECK(memcmp(got, o->sum, COUNT * sizeof *got) == 0);
    free(got);
}

/* Whole slices; pieces of which each has another alignment; a group of pieces, which share the inbox. */
static void ordered_case(struct ordered_rank *o, enum dtype dtype, bool accumulate)
{
    enum { PIECES = 3, PIECE = COUNT / PIECES };
    struct data_op ops[PIECES], whole = ordered_op(o, dtype, accumulate, 0, COUNT);
    for (size_t p = 0; p < PIECES; p++)
        ops[p] = ordered_op(o, dtype, accumulate, p * PIECE, p + 1 < PIECES ? PIECE : COUNT - p * PIECE);
    ordered_fill(o, dtype);
    comm_reduce_scatter(o->comm, &whole, o->stream);
    ordered_compare(o, dtype, accumulate, 1);
    ordered_fill(o, dtype);
    for (int p = 0; p < PIECES; p++) comm_reduce_scatter(o->comm, &ops[p], o->stream);
    ordered_compare(o, dtype, accumulate, 1);
    ordered_fill(o, dtype);
    comm_reduce_scatter_group(o->comm, ops, PIECES, o->stream);
    ordered_compare(o, dtype, accumulate, 1);
}

static void ordered_graph_case(struct ordered_rank *o)
{
    enum { LAUNCHES = 3 };
    const struct data_op op = ordered_op(o, DTYPE_BF16, true, 0, COUNT);
    struct graph *graph;
    ordered_fill(o, DTYPE_BF16);
    CHECK_OK(graph_begin(&o->stream, 1, &graph, &error));
    comm_reduce_scatter(o->comm, &op, o->stream);
    CHECK_OK(graph_end(graph, &error));
    for (int i = 0; i < LAUNCHES; i++) comm_launch(o->comm, graph);
    ordered_compare(o, DTYPE_BF16, true, LAUNCHES);
    graph_free(graph);
}

/* ---- bodies of ranks ----------------------------------------------------- */

static void sums_body(struct bootstrap *bootstrap, void *context)
{
    struct ordered_rank o;
    enum status status;
    (void)context;
    ordered_open(&o, bootstrap, &status);
    CHECK_OK(status);
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++)
        for (int accumulate = 0; accumulate < 2; accumulate++) ordered_case(&o, (enum dtype)dtype, accumulate);
    if (comm_can_capture(o.comm)) ordered_graph_case(&o);
    ordered_close(&o);
}

/* The order of contributions is wrong. */
static void wrong_order_body(struct bootstrap *bootstrap, void *context)
{
    struct ordered_rank o;
    enum status status;
    (void)context;
    setenv("ZTRAIN_SUM_ORDER", "reverse", 1);
    ordered_open(&o, bootstrap, &status);
    CHECK(status == STATUS_DEVICE);
    CHECK(strstr(error.text, "an ordered reduce-scatter of 2 ranks in fp32 gave "));
    ordered_close(&o);
}

/* Rank 1 sends other counts. */
static void wrong_count_body(struct bootstrap *bootstrap, void *context)
{
    struct ordered_rank o;
    enum status status;
    (void)context;
    ordered_open(&o, bootstrap, &status);
    CHECK_OK(status);
    const struct data_op op = ordered_op(&o, DTYPE_F32, false, 0, o.rank == 1 ? COUNT - 1 : COUNT);
    comm_reduce_scatter(o.comm, &op, o.stream);
    stream_sync(o.stream);
    _exit(0); /* not reached by a rank that sees it */
}

/* The inbox is memory of the host. */
static void wrong_memory_body(struct bootstrap *bootstrap, void *context)
{
    struct ordered_rank o;
    enum status status;
    (void)context;
    ordered_open(&o, bootstrap, &status);
    CHECK_OK(status);
    struct data_op op = ordered_op(&o, DTYPE_F32, false, 0, COUNT);
    op.inbox = o.sent;
    comm_reduce_scatter(o.comm, &op, o.stream);
    _exit(0); /* not reached */
}

/* Rank 1 dies before its second reduction. */
static void dying_body(struct bootstrap *bootstrap, void *context)
{
    struct ordered_rank o;
    enum status status;
    (void)context;
    ordered_open(&o, bootstrap, &status);
    CHECK_OK(status);
    const struct data_op op = ordered_op(&o, DTYPE_F32, false, 0, COUNT);
    comm_reduce_scatter(o.comm, &op, o.stream);
    stream_sync(o.stream);
    if (o.rank == 1) _exit(1);
    comm_reduce_scatter(o.comm, &op, o.stream);
    stream_sync(o.stream);
    CHECK(comm_status(o.comm, &error) == STATUS_PEER);
    CHECK(strstr(error.text, "rank 1"));
    ordered_close(&o);
}

/* ---- tests --------------------------------------------------------------- */

/* Runs the ranks; ends (world): how each has ended. */
static void run_ordered(int world, void (*body)(struct bootstrap *, void *), int *ends)
{
    struct ranks ranks;
    bool none = false;
    ranks_start(&ranks, world, NULL, body, NULL);
    for (int r = 0; r < world; r++) {
        const int status = ranks_wait(&ranks, r);
        ends[r] = WIFEXITED(status) ? WEXITSTATUS(status) : 256 + status;
        none |= ends[r] == NO_GPU;
    }
    ranks_end(&ranks);
#if !defined(ZTRAIN_EMULATION)
    if (none) skip();
#endif
    assert_false(none);
}

/* Without that the other tests would show nothing. */
static void another_order_has_other_bits(void **state)
{
    (void)state;
    static float values[MOST][COUNT], sum[COUNT], reversed[COUNT];
    const void *in[MOST], *backwards[MOST];
    size_t others = 0;
    for (int r = 0; r < MOST; r++) {
        for (size_t i = 0; i < COUNT; i++) values[r][i] = ordered_value(r, i);
        in[r] = backwards[MOST - 1 - r] = values[r];
    }
    sum_ranks(sum, DTYPE_F32, in, MOST, COUNT, DTYPE_F32, SUM_ALONE);
    sum_ranks(reversed, DTYPE_F32, backwards, MOST, COUNT, DTYPE_F32, SUM_ALONE);
    for (size_t i = 0; i < COUNT; i++) others += sum[i] != reversed[i];
    assert_true(others > COUNT / 10);
}

static void the_bits_are_those_of_the_host(void **state)
{
    (void)state;
    int ends[MOST];
    static const int worlds[] = {2, 3, MOST};
    for (size_t w = 0; w < COUNT_OF(worlds); w++) {
        const int world = worlds[w];
        run_ordered(world, sums_body, ends);
        for (int r = 0; r < world; r++) assert_int_equal(ends[r], 0);
    }
}

static void ranks_that_share_a_gpu_have_the_same(void **state)
{
    (void)state;
    int ends[MOST];
    shared = true;
    run_ordered(3, sums_body, ends);
    shared = false;
    for (int r = 0; r < 3; r++) assert_int_equal(ends[r], 0);
}

static void a_wrong_order_is_found(void **state)
{
    (void)state;
    int ends[MOST];
#if !defined(ZTRAIN_EMULATION)
    skip();
#endif
    run_ordered(2, wrong_order_body, ends);
    assert_int_equal(ends[0], 0);
    assert_int_equal(ends[1], 0);
}

static void a_wrong_count_is_found(void **state)
{
    (void)state;
    int ends[MOST];
#if !defined(ZTRAIN_EMULATION)
    skip();
#endif
    run_ordered(2, wrong_count_body, ends);
    assert_true(ends[0] == REPORTED || ends[1] == REPORTED);
}

static void an_inbox_in_host_memory_is_found(void **state)
{
    (void)state;
    int ends[MOST];
#if !defined(ZTRAIN_EMULATION)
    skip();
#endif
    run_ordered(2, wrong_memory_body, ends);
    assert_int_equal(ends[0], REPORTED);
    assert_int_equal(ends[1], REPORTED);
}

static void a_dead_peer_is_noticed(void **state)
{
    (void)state;
    int ends[MOST];
    run_ordered(2, dying_body, ends);
    assert_int_equal(ends[0], 0);
    assert_int_equal(ends[1], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_order_has_other_bits),
        cmocka_unit_test(the_bits_are_those_of_the_host),
        cmocka_unit_test(ranks_that_share_a_gpu_have_the_same),
        cmocka_unit_test(a_wrong_order_is_found),
        cmocka_unit_test(a_wrong_count_is_found),
        cmocka_unit_test(an_inbox_in_host_memory_is_found),
        cmocka_unit_test(a_dead_peer_is_noticed),
    };
#if defined(ZTRAIN_EMULATION)
    setenv("ZTRAIN_EMULATION_GPUS", "5", 1);
#endif
    return cmocka_run_group_tests(tests, NULL, NULL);
}
