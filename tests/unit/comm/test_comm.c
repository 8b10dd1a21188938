/* SPDX-License-Identifier: Apache-2.0 */
/* test_comm.c: the host communicator: collectives against naive sums and copies, and every way in which a job fails. */
#include "tests/unit/fixtures/one_op.h"
#include "tests/unit/fixtures/ranks.h"
#include "tests/unit/fixtures/sample.h"

#include "comm/sums.h"
#include "core/heartbeat.h"
#include "gpu/open/device_open.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static struct error error;

struct rank_things {
    struct comm *comm;
    struct device *device;
    struct stream *stream;
};

/* The nodes on which a case's ranks are. */
struct layout {
    int world;
    const int *nodes;      /* (world); NULL: of one supervisor */
    const char *interface; /* "": loopback, IPv4 */
    bool within_node;      /* reduce_within_node */
};

static const struct layout *layout; /* of this process */

static void things_open(struct rank_things *t, struct bootstrap *bootstrap, double timeout)
{
    struct comm_config config = {.timeout_seconds = timeout};
    if (layout) {
        config.interface = layout->interface;
        config.reduce_within_node = layout->within_node;
    }
    CHECK_OK(comm_open(bootstrap, &config, &t->comm, &error));
    CHECK_OK(device_open(DEVICE_CPU, 0, 1, &t->device, &error));
    CHECK_OK(stream_new(t->device, STREAM_COMM, &t->stream, &error));
}

static void things_close(struct rank_things *t)
{
    stream_free(t->stream);
    device_close(t->device);
    comm_close(t->comm);
}

/* ---- sums ---------------------------------------------------------------- */

/* Element i of rank r's contribution: any sign, many magnitudes, so that the order of a sum shows in its bits. */
static float value(int rank, size_t i)
{
    uint32_t x = (uint32_t)i * 2654435761u + (uint32_t)rank * 40503u + 12345u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    uint32_t bits = (127 - 43 + x % 24) << 23; /* 2^-43 to 2^-20: ldexpf() would take most of this program's time */
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return (float)(int32_t)x * scale;
}

static void test_sums(void **state)
{
    (void)state;
    enum { RANKS = 5, COUNT = 5003 };
    static float in[RANKS][COUNT], out[COUNT];
    static uint16_t half[RANKS][COUNT];
    const void *floats[RANKS], *halves[RANKS];
    for (int r = 0; r < RANKS; r++) {
        floats[r] = in[r];
        halves[r] = half[r];
        for (size_t i = 0; i < COUNT; i++) {
            in[r][i] = value(r, i);
            half[r][i] = bf16_from_f32(value(r, i));
        }
    }
    for (size_t i = 0; i < COUNT; i++) out[i] = 3;
    assert_int_equal(sum_ranks(out, DTYPE_F32, floats, RANKS, COUNT, DTYPE_F32, SUM_THEN_OUT), RANK_NONE);
    for (size_t i = 0; i < COUNT; i++) {
        float sum = in[0][i];
        for (int r = 1; r < RANKS; r++) sum += in[r][i];
        assert_true(out[i] == 3 + sum);
    }
    assert_int_equal(sum_ranks(out, DTYPE_F32, halves, RANKS, COUNT, DTYPE_BF16, SUM_ALONE), RANK_NONE);
    for (size_t i = 0; i < COUNT; i++) {
        float sum = bf16_to_f32(half[0][i]);
        for (int r = 1; r < RANKS; r++) sum += bf16_to_f32(half[r][i]);
        assert_true(out[i] == sum);
    }
    static float whole[COUNT]; /* a sum in parts has the bits of a sum in one go */
    for (int ranks = 1; ranks < RANKS; ranks++) {
        sum_ranks(whole, DTYPE_F32, floats, RANKS, COUNT, DTYPE_F32, SUM_ALONE);
        sum_ranks(out, DTYPE_F32, floats, ranks, COUNT, DTYPE_F32, SUM_ALONE);
        sum_ranks(out, DTYPE_F32, floats + ranks, RANKS - ranks, COUNT, DTYPE_F32, SUM_FROM_OUT);
        assert_memory_equal(out, whole, sizeof out);
        sum_ranks(out, DTYPE_F32, floats, ranks, COUNT, DTYPE_F32, SUM_ALONE);
        sum_ranks(out, DTYPE_F32, floats + ranks, RANKS - ranks, COUNT, DTYPE_F32, SUM_THEN_OUT);
        assert_true(ranks + 1 == RANKS || memcmp(out, whole, sizeof out) != 0);
    }
    static uint16_t rounded[COUNT];
    for (int f16 = 0; f16 < 2; f16++) { /* the sum is rounded once, after the old value was added */
        for (size_t i = 0; i < COUNT; i++) rounded[i] = f16 ? f16_from_f32(0.5f) : bf16_from_f32(0.5f);
        assert_int_equal(
            sum_ranks(rounded, f16 ? DTYPE_F16 : DTYPE_BF16, floats, RANKS, COUNT, DTYPE_F32, SUM_THEN_OUT), RANK_NONE);
        for (size_t i = 0; i < COUNT; i++) {
            float sum = in[0][i];
            for (int r = 1; r < RANKS; r++) sum += in[r][i];
            assert_int_equal(rounded[i], f16 ? f16_from_f32(0.5f + sum) : bf16_from_f32(0.5f + sum));
        }
    }
    /* non-finite values are detected at every position; the largest finite value is not */
    for (size_t at = 0; at < COUNT; at += 7) {
        float old = in[3][at];
        in[3][at] = at % 3 == 0 ? NAN : at % 3 == 1 ? INFINITY : -INFINITY;
        assert_int_equal(sum_ranks(out, DTYPE_F32, floats, RANKS, COUNT, DTYPE_F32, SUM_ALONE), 3);
        in[4][at] = INFINITY; /* the lowest rank counts */
        assert_int_equal(sum_ranks(out, DTYPE_F32, floats, RANKS, COUNT, DTYPE_F32, SUM_ALONE), 3);
        in[4][at] = 0;
        in[3][at] = 3.4e38f;
        assert_int_equal(sum_ranks(out, DTYPE_F32, floats, RANKS, COUNT, DTYPE_F32, SUM_ALONE), RANK_NONE);
        in[3][at] = old;
    }
}

/* ---- collectives --------------------------------------------------------- */

enum { MOST_RANKS = 16 };

/* Those of the collectives that are tested; the default is all ranks. */
static struct comm_group group;

/* The sum of the ranks' contributions, in the order of the layout. */
static float add_up(const float *values, int world)
{
    float sum = 0;
    bool empty = true;
    if (!layout || !layout->within_node || (group.size && group.size < layout->world)) {
        for (int r = 0; r < world; r++) sum = r == 0 ? values[0] : sum + values[r];
        return sum;
    }
    for (int node = 0; node < world; node++) {
        float part = 0;
        bool none = true;
        for (int r = 0; r < world; r++) {
            if (layout->nodes[r] != node) continue;
            part = none ? values[r] : part + values[r];
            none = false;
        }
        if (none) break;
        sum = empty ? part : sum + part;
        empty = false;
    }
    return sum;
}

static int members(int world)
{
    return group.size ? group.size : world;
}

static int member(int rank, int i)
{
    if (!group.size) return i;
    const int block = group.size * group.stride;
    return rank - rank % block + rank % group.stride + i * group.stride;
}

static int place(int rank, int world)
{
    int i = 0;
    while (i < members(world) && member(rank, i) != rank) i++;
    return i;
}

enum placement { IN_SEGMENT, STAGED, MIXED /* rank 0's buffers lie elsewhere */ };

/* Stores `f` as element i of an array, rounded to its dtype. (A typed store: memcpy() of a size that is known at run
 * time is a call, which took most of this program's time with a sanitizer.) */
static void put(void *array, size_t i, enum dtype dtype, float f)
{
    if (dtype == DTYPE_F32)
        ((float *)array)[i] = f;
    else
        ((uint16_t *)array)[i] = bf16_from_f32(f);
}

/* Whether element i of an array is `f`, rounded to the array's dtype. */
static bool is(const void *array, size_t i, enum dtype dtype, float f)
{
    return dtype == DTYPE_F32 ? ((const float *)array)[i] == f : ((const uint16_t *)array)[i] == bf16_from_f32(f);
}

static void gather_case(struct rank_things *t, char *segment, enum placement placement, size_t count, size_t stride,
                        enum dtype dtype, bool in_place)
{
    int rank = comm_rank(t->comm), world = comm_world(t->comm), own = place(rank, world), ranks = members(world);
    size_t size = dtype_size(dtype), pitch = stride ? stride : count, whole = pitch * (size_t)ranks * size;
    bool outside = placement == STAGED || (placement == MIXED && rank == 0);
    char *recv = outside ? malloc(whole) : segment;
    char *send = in_place ? recv + (size_t)own * pitch * size : outside ? malloc(count * size) : segment + whole;
    memset(recv, 0x55, whole);
    for (size_t i = 0; i < count; i++) put(send, i, dtype, value(rank, i));
    comm_all_gather(
        t->comm,
        &(struct data_op){.send = send, .recv = recv, .count = count, .stride = stride, .dtype = dtype, .group = group},
        t->stream);
    stream_sync(t->stream);
    CHECK_OK(comm_status(t->comm, &error));
    for (int r = 0; r < ranks; r++)
        for (size_t i = 0; i < pitch; i++) {
            size_t at = (size_t)r * pitch + i;
            if (i < count)
                CHECK(is(recv, at, dtype, value(member(rank, r), i)));
            else
                CHECK(recv[at * size] == 0x55); /* nothing is written between the slices */
        }
    if (outside) {
        if (!in_place) free(send);
        free(recv);
    }
}

static void reduce_case(struct rank_things *t, char *segment, enum placement placement, size_t count, size_t stride,
                        enum dtype dtype, enum dtype recv_dtype, bool in_place, bool accumulate)
{
    int rank = comm_rank(t->comm), world = comm_world(t->comm), own = place(rank, world), ranks = members(world);
    size_t size = dtype_size(dtype), pitch = stride ? stride : count, whole = pitch * (size_t)ranks * size;
    bool outside = placement == STAGED || (placement == MIXED && rank == 0);
    char *send = outside ? malloc(whole) : segment;
    void *recv = in_place ? send + (size_t)own * pitch * size : malloc(count * dtype_size(recv_dtype));
    const float before = 0.75f;
    for (size_t i = 0; i < pitch * (size_t)ranks; i++) put(send, i, dtype, value(rank, i));
    for (size_t i = 0; !in_place && i < count; i++) put(recv, i, recv_dtype, before);
    int32_t bad = RANK_NONE;
    const struct data_op op = {.send = send,
                               .recv = recv,
                               .count = count,
                               .stride = stride,
                               .dtype = dtype,
                               .recv_dtype = recv_dtype,
                               .accumulate = accumulate,
                               .group = group,
                               .bad_rank = &bad};
    comm_reduce_scatter(t->comm, &op, t->stream);
    stream_sync(t->stream);
    CHECK_OK(comm_status(t->comm, &error));
    CHECK(bad == RANK_NONE);
    for (size_t i = 0; i < count; i++) {
        float values[MOST_RANKS];
        for (int r = 0; r < ranks; r++) {
            float f = value(member(rank, r), (size_t)own * pitch + i);
            values[r] = dtype == DTYPE_F32 ? f : bf16_to_f32(bf16_from_f32(f));
        }
        float sum = add_up(values, ranks);
        if (accumulate) sum = before + sum;
        CHECK(is(recv, i, recv_dtype, sum));
    }
    CHECK_OK(comm_barrier(t->comm, &error));
    if (!in_place) free(recv);
    if (outside) free(send);
}

/* In place, world × count elements. */
static void all_reduce(struct rank_things *t, float *data, size_t count)
{
    float *slice = data + (size_t)comm_rank(t->comm) * count;
    comm_reduce_scatter(t->comm, &(struct data_op){.send = data, .recv = slice, .count = count}, t->stream);
    comm_all_gather(t->comm, &(struct data_op){.send = slice, .recv = data, .count = count}, t->stream);
}

static void all_reduce_case(struct rank_things *t, char *segment, size_t count)
{
    int rank = comm_rank(t->comm), world = comm_world(t->comm);
    float *data = (float *)(void *)segment;
    for (size_t i = 0; i < count * (size_t)world; i++) data[i] = value(rank, i);
    all_reduce(t, data, count);
    stream_sync(t->stream);
    for (size_t i = 0; i < count * (size_t)world; i++) {
        float values[MOST_RANKS];
        for (int r = 0; r < world; r++) values[r] = value(r, i);
        CHECK(data[i] == add_up(values, world));
    }
}

/* The bytes that must have crossed the network: an all-gather and a reduce-scatter of `bytes` for each rank. */
static void check_network(const struct comm_stats *stats, const struct bootstrap *boot, int64_t bytes, bool fp32)
{
    int64_t sent = 0, received = 0;
    CHECK(stats->network_sent == stats->theory_sent && stats->network_received == stats->theory_received);
    if (!layout || !layout->nodes) {
        CHECK(stats->network_sent == 0 && stats->network_received == 0);
        return;
    }
    /* a slice is sent to each other node once; the ranks of a node share the transfer of the slices that it needs */
    int others = boot->num_nodes - 1, brought = 0;
    for (int r = 0; r < boot->world; r++)
        if (boot->places[r].node != boot->node && boot->places[r].local_rank % boot->local_world == boot->local_rank)
            brought++;
    sent += others * bytes;
    received += brought * bytes;
    if (layout->within_node) { /* and the lowest bad rank */
        int64_t sums = (fp32 ? bytes : 2 * bytes) + 4;
        sent += brought * sums;
        received += others * sums;
    } else {
        sent += (boot->world - boot->local_world) * bytes;
        received += (boot->world - boot->local_world) * bytes;
    }
    CHECK(stats->network_sent == sent && stats->network_received == received);
}

/* Groups of every size and stride that the world has; a long slice in two ways. */
static void groups_cases(struct rank_things *t, char *segment)
{
    const int world = comm_world(t->comm);
    for (int size = 1; size <= world; size++)
        for (int stride = 1; stride * size <= world; stride++) {
            if (world % (size * stride) != 0) continue;
            group = (struct comm_group){size, stride};
            for (enum placement placement = IN_SEGMENT; placement <= MIXED; placement++) {
                gather_case(t, segment, placement, 1000, 0, DTYPE_F32, placement == STAGED);
                gather_case(t, segment, placement, 33, 35, DTYPE_BF16, true);
                reduce_case(t, segment, placement, 1000, 0, DTYPE_F32, DTYPE_F32, false, true);
                reduce_case(t, segment, placement, 33, 35, DTYPE_BF16, DTYPE_BF16, true, false);
                if (placement > STAGED) continue;
                gather_case(t, segment, placement, 70001, 0, DTYPE_BF16, false);
                reduce_case(t, segment, placement, 70001, 0, DTYPE_BF16, DTYPE_F32, false, false);
            }
            struct comm_stats stats;
            comm_stats_take(t->comm, &stats);
            gather_case(t, segment, IN_SEGMENT, 100, 0, DTYPE_F32, false);
            reduce_case(t, segment, IN_SEGMENT, 100, 0, DTYPE_F32, DTYPE_F32, false, false);
            comm_stats_take(t->comm, &stats);
            CHECK(stats.all_gather_bytes == (world > 1 ? 400 * (size - 1) : 0));
            CHECK(stats.reduce_scatter_bytes == stats.all_gather_bytes);
            CHECK(stats.network_sent == stats.theory_sent && stats.network_received == stats.theory_received);
        }
    group = (struct comm_group){0, 0};
}

static void collectives_body(struct bootstrap *bootstrap, void *context)
{
    layout = context;
    /* the long one consists of several pieces: of PIECE_BYTES with two ranks, else of the staging memory */
    const size_t longest = layout->world > 6 ? 200003 : layout->nodes || layout->world > 2 ? 70001 : 300001;
    const size_t counts[] = {1, 7, 1000, longest};
    struct rank_things t;
    things_open(&t, bootstrap, 60);
    void *segment;
    size_t room = (longest + 5) * sizeof(float) * (size_t)(bootstrap->world + 1);
    CHECK_OK(comm_share(t.comm, room, &segment, &error));
    for (size_t i = 0; i < room; i += 511) CHECK(((char *)segment)[i] == 0);
    for (enum placement placement = IN_SEGMENT; placement <= MIXED; placement++)
        for (size_t c = 0; c < COUNT_OF(counts); c++)
            for (int way = 0; way < 4; way++) {
                if (counts[c] > 1000 && way % 3) /* two ways are enough */
                    continue;
                size_t stride = way & 1 ? counts[c] + 3 : 0;
                gather_case(&t, segment, placement, counts[c], stride, DTYPE_F32, way & 2);
                gather_case(&t, segment, placement, counts[c], stride, DTYPE_BF16, way & 2);
                reduce_case(&t, segment, placement, counts[c], stride, DTYPE_F32, DTYPE_F32, way & 2, false);
                reduce_case(&t, segment, placement, counts[c], stride, DTYPE_F32, DTYPE_F32, false, way & 2);
                reduce_case(&t, segment, placement, counts[c], stride, DTYPE_BF16, DTYPE_F32, false, way & 2);
                reduce_case(&t, segment, placement, counts[c], stride, DTYPE_BF16, DTYPE_BF16, !(way & 2), way & 2);
                reduce_case(&t, segment, placement, counts[c], stride, DTYPE_F32, DTYPE_BF16, false, way & 2);
            }
    all_reduce_case(&t, segment, 4099);
    groups_cases(&t, segment);

    struct comm_stats stats;
    comm_stats_take(t.comm, &stats);
    all_reduce(&t, segment, 1000);
    stream_sync(t.stream);
    comm_stats_take(t.comm, &stats);
    int64_t others = bootstrap->world - 1;
    CHECK(stats.all_gather_calls == (others > 0) && stats.reduce_scatter_calls == (others > 0));
    CHECK(stats.all_gather_bytes == 4000 * others && stats.reduce_scatter_bytes == 4000 * others);
    check_network(&stats, bootstrap, 4000, true);
    comm_stats_take(t.comm, &stats);
    CHECK(stats.all_gather_calls == 0 && stats.seconds == 0);
    things_close(&t);
}

static void test_collectives(void **state)
{
    (void)state;
    static const int worlds[] = {1, 2, 3, 4, 6};
    for (size_t i = 0; i < COUNT_OF(worlds); i++) {
        struct layout one = {.world = worlds[i]};
        assert_true(ranks_run(worlds[i], NULL, collectives_body, &one));
    }
}

static const int two[] = {0, 1}, two_by_two[] = {0, 0, 1, 1}, three_and_one[] = {0, 0, 0, 1},
                 one_and_three[] = {0, 1, 1, 1}, four_by_two[] = {0, 0, 1, 1, 2, 2, 3, 3}, in_turn[] = {0, 1, 0, 1, 0},
                 uneven[] = {0, 1, 1, 2, 2, 2}, one_node[] = {0, 0, 0};

/* The results equal those of ranks that share memory, bit for bit; the network traffic equals the theory. */
static void test_nodes(void **state)
{
    (void)state;
    static const struct layout layouts[] = {
        {2, two, "", false},           {2, two, "::1", false},
        {4, two_by_two, "", false},    {4, three_and_one, "", false},
        {4, one_and_three, "", false}, {8, four_by_two, "", false},
        {5, in_turn, "", false},       {6, uneven, "::1", false},
        {3, one_node, "", false},      {2, two, "", true},
        {4, two_by_two, "", true},     {4, three_and_one, "", true},
        {5, in_turn, "", true},        {6, uneven, "127.0.0.1", true},
    };
    for (size_t i = 0; i < COUNT_OF(layouts); i += sample_distance(3)) {
        struct layout one = layouts[i];
        if (!ranks_run(one.world, one.nodes, collectives_body, &one)) fail_msg("layout %zu", i);
    }
}

static void bad_value_body(struct bootstrap *bootstrap, void *context)
{
    layout = context;
    struct rank_things t;
    things_open(&t, bootstrap, 60);
    float send[3 * 100] = {0}, recv[100];
    if (bootstrap->rank == 2) send[150] = NAN; /* in the slice of rank 1 */
    int32_t bad = RANK_NONE;
    comm_reduce_scatter(t.comm, &(struct data_op){.send = send, .recv = recv, .count = 100, .bad_rank = &bad},
                        t.stream);
    stream_sync(t.stream);
    CHECK(bad == (bootstrap->rank == 1 ? 2 : RANK_NONE));
    things_close(&t);
}

static void too_much_body(struct bootstrap *bootstrap, void *context)
{
    struct rank_things t;
    void *segment;
    (void)context;
    things_open(&t, bootstrap, 60);
    CHECK(comm_share(t.comm, (size_t)1 << 45, &segment, &error) == STATUS_DEVICE);
    CHECK(strstr(error.text, "2 ranks on one node need 67108864.0 MiB of shared memory") &&
          strstr(error.text, "of a container raise --memory (--shm-size is NCCL's)"));
    things_close(&t);
}

static void test_shared_memory_that_is_not_there(void **state)
{
    (void)state;
    layout = NULL;
    assert_true(ranks_run(2, NULL, too_much_body, NULL));
}

static void test_bad_value_names_its_rank(void **state)
{
    (void)state;
    assert_true(ranks_run(3, NULL, bad_value_body, NULL));
    static const int pair_and_one[] = {0, 1, 1}, each[] = {0, 1, 2};
    struct layout layouts[] = {{3, pair_and_one, "", false}, {3, pair_and_one, "", true}, {3, each, "", true}};
    for (size_t i = 0; i < COUNT_OF(layouts); i++)
        assert_true(ranks_run(3, layouts[i].nodes, bad_value_body, &layouts[i]));
}

/* ---- control channel ----------------------------------------------------- */

static void control_body(struct bootstrap *bootstrap, void *context)
{
    layout = context;
    struct rank_things t;
    things_open(&t, bootstrap, 60);
    int rank = bootstrap->rank, world = bootstrap->world;
    for (int round = 0; round < 200; round++) {
        int own[2] = {rank, round}, all[2 * 8];
        CHECK_OK(comm_exchange(t.comm, own, sizeof own, all, &error));
        for (int r = 0; r < world; r++) CHECK(all[2 * r] == r && all[2 * r + 1] == round);
        double sums[2] = {rank + 1, 1e-3 * rank};
        CHECK_OK(comm_sum(t.comm, sums, 2, &error));
        double small = 0;
        for (int r = 0; r < world; r++) small += 1e-3 * r;
        CHECK(sums[0] == world * (world + 1) / 2 && sums[1] == small);
    }
    static char big[3 * COMM_EXCHANGE_MAX + 17];
    int root = world - 1;
    for (size_t i = 0; rank == root && i < sizeof big; i++) big[i] = (char)(i % 251);
    CHECK_OK(comm_broadcast(t.comm, big, sizeof big, root, &error));
    for (size_t i = 0; i < sizeof big; i++) CHECK(big[i] == (char)(i % 251));
    CHECK_OK(comm_barrier(t.comm, &error));
    things_close(&t);
}

static void test_control(void **state)
{
    (void)state;
    assert_true(ranks_run(1, NULL, control_body, NULL));
    assert_true(ranks_run(4, NULL, control_body, NULL));
    struct layout layouts[] = {{4, two_by_two, "", false}, {5, in_turn, "::1", false}};
    for (size_t i = 0; i < COUNT_OF(layouts); i++)
        assert_true(ranks_run(layouts[i].world, layouts[i].nodes, control_body, &layouts[i]));
}

/* ---- failures ------------------------------------------------------------ */

enum fault { DIES, STOPS, ABORTS, DIFFERS, LATE };
struct fault_case {
    const int *nodes; /* (3); NULL: of one supervisor */
    enum fault fault;
    bool data; /* the others wait in a data operation, else on the control channel */
    enum status code;
    const char *words[2]; /* required in the message of the others */
};

/* Rank 1 misbehaves after some rounds; the others must end with the code and the words. */
static void fault_body(struct bootstrap *bootstrap, void *context)
{
    const struct fault_case *fault = context;
    struct rank_things t;
    const bool by_silence = fault->fault == STOPS || fault->fault == LATE; /* a busy machine is silent as well */
    things_open(&t, bootstrap, !by_silence ? 60 : fault->nodes ? 2 : 1);
    float send[100] = {0}, recv[300];
    for (int round = 0; round < 5; round++) {
        comm_all_gather(t.comm, &(struct data_op){.send = send, .recv = recv, .count = 100}, t.stream);
        stream_sync(t.stream);
        CHECK_OK(comm_barrier(t.comm, &error));
    }
    if (bootstrap->rank == 1) {
        struct error own;
        usleep(200000); /* the node's agent, perhaps in this process, has reported that it was in the barrier */
        switch (fault->fault) {
        case DIES: raise(SIGKILL); break;
        case STOPS: raise(SIGSTOP); break;
        case ABORTS:
            error_set(&own, STATUS_DATA, "cannot read 'shard.bin' at 4096");
            comm_abort(t.comm, &own);
            things_close(&t);
            return;
        case DIFFERS:
            comm_all_gather(t.comm, &(struct data_op){.send = send, .recv = recv, .count = 99}, t.stream);
            stream_sync(t.stream);
            CHECK(comm_status(t.comm, &error) == STATUS_BUG);
            things_close(&t); /* the agent in this process sends the reason to the other node before the process ends */
            return;
        case LATE: /* slow, but making progress */
            for (int i = 0; i < 50; i++) {
                usleep(50000);
                heartbeat_beat();
            }
            break;
        }
    }
    double start = seconds_now();
    if (fault->data) {
        comm_all_gather(t.comm, &(struct data_op){.send = send, .recv = recv, .count = 100}, t.stream);
        stream_sync(t.stream);
        CHECK(comm_status(t.comm, &error) == fault->code);
    } else {
        CHECK(comm_barrier(t.comm, &error) == fault->code);
    }
    CHECK(seconds_now() - start < 30); /* half of the timeout that a death or a message must not wait for */
    if (fault->code != STATUS_OK) {
        for (int i = 0; i < 2; i++)
            if (!strstr(error.text, fault->words[i])) {
                fprintf(stderr, "rank %d: '%s' is not in '%s'\n", bootstrap->rank, fault->words[i], error.text);
                _exit(1);
            }
        /* after a failure everything returns at once */
        comm_all_gather(t.comm, &(struct data_op){.send = send, .recv = recv, .count = 100}, t.stream);
        CHECK(comm_barrier(t.comm, NULL) == fault->code);
    }
    things_close(&t);
}

static void test_failures(void **state)
{
    (void)state;
    /* rank 1 is alone on its node, or shares it with rank 0 or rank 2 */
    static const int each[] = {0, 1, 2}, with_first[] = {0, 0, 1}, with_last[] = {0, 1, 1};
    static const struct fault_case cases[] = {
        {NULL, DIES, true, STATUS_PEER, {"rank 1 on here", "died while rank"}},
        {NULL, DIES, false, STATUS_PEER, {"rank 1 on here", "in a barrier"}},
        {NULL, STOPS, true, STATUS_PEER, {"rank 1 on here", "silent for 0.9 s"}},
        {NULL, STOPS, false, STATUS_PEER, {"rank 1 on here", "in a barrier"}},
        {NULL, ABORTS, true, STATUS_DATA, {"rank 1 on here", "cannot read 'shard.bin' at 4096"}},
        {NULL, ABORTS, false, STATUS_DATA, {"rank 1 on here", "cannot read 'shard.bin' at 4096"}},
        {NULL, DIFFERS, true, STATUS_BUG, {"an all-gather of 99", "an all-gather of 100"}},
        {NULL, LATE, true, STATUS_OK, {"", ""}},
        {NULL, LATE, false, STATUS_OK, {"", ""}},
        {each, DIES, true, STATUS_PEER, {"rank 1 on node1", "an all-gather"}},
        {with_first, DIES, true, STATUS_PEER, {"rank 1 on node0", "an all-gather"}},
        {with_last, DIES, false, STATUS_PEER, {"rank 1 on node1", "in a barrier"}},
        {each, STOPS, true, STATUS_PEER, {"rank 1 on node1", " s"}},
        {with_first, STOPS, true, STATUS_PEER, {"rank 1 on node0", "silent for 1.8 s"}},
        {with_last, STOPS, true, STATUS_PEER, {"rank 1 on node1", " s"}},
        {with_first, STOPS, false, STATUS_PEER, {"rank 1 on node0", "silent for 1.8 s"}},
        {each, ABORTS, true, STATUS_DATA, {"rank 1 on node1", "cannot read 'shard.bin' at 4096"}},
        {with_first, ABORTS, false, STATUS_DATA, {"rank 1 on node0", "cannot read 'shard.bin' at 4096"}},
        {each, DIFFERS, true, STATUS_BUG, {"an all-gather of 99", "an all-gather of 100"}},
        {with_last, DIFFERS, true, STATUS_BUG, {"an all-gather of 99", "an all-gather of 100"}},
        {each, LATE, true, STATUS_OK, {"", ""}},
        {with_last, LATE, false, STATUS_OK, {"", ""}},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct ranks ranks;
        struct fault_case one = cases[i];
        ranks_start(&ranks, 3, one.nodes, fault_body, &one);
        int first = ranks_wait(&ranks, 0), last = ranks_wait(&ranks, 2);
        if (one.fault == STOPS) kill(ranks.pids[1], SIGKILL);
        int status = ranks_wait(&ranks, 1);
        ranks_end(&ranks);
        if (first || last) print_message("case %zu\n", i);
        assert_int_equal(first, 0);
        assert_int_equal(last, 0);
        assert_int_equal(WIFSIGNALED(status), one.fault == DIES || one.fault == STOPS);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_collectives),
        cmocka_unit_test(test_nodes),
        cmocka_unit_test(test_shared_memory_that_is_not_there),
        cmocka_unit_test(test_bad_value_names_its_rank),
        cmocka_unit_test(test_control),
        cmocka_unit_test(test_failures),
    };
    return cmocka_run_group_tests_name("comm", tests, NULL, NULL);
}
