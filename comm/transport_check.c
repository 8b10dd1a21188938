/* SPDX-License-Identifier: Apache-2.0 */
/* transport_check.c: a first operation of each kind and type between GPUs, compared with its result. It runs before
 * memory is planned, as NCCL then takes memory of the GPU. */
#include "comm/transport_gpu.h"

#include "gpu/arena.h"

/* Elements of a slice; of all slices of a long operation, which NCCL moves by other algorithms. */
enum { COUNT = 64, LONG_COUNT = 2 << 20 };

struct check {
    struct comm *comm;
    struct stream *stream;
    size_t bytes;      /* of each buffer */
    void *send, *recv; /* device memory */
    void *host;        /* host memory */
    bool in_place;     /* in the library's own memory */
};

/* Small integers: sums over the ranks are exact in any order. In a reduction one rank contributes to each element, so
 * that a contribution that is lost, repeated or misplaced is seen. */
static float transport_contribution(int world, int rank, int slice, size_t i)
{
    return (i + (size_t)slice) % (size_t)world == (size_t)rank ? (float)(1 + i % 3) : 0.0f;
}

static float transport_gathered(int rank, size_t i)
{
    return (float)(1 + ((size_t)rank + i) % 7);
}

static void transport_check_put(const struct check *c, size_t i, float x, enum dtype dtype)
{
    floats_to((char *)c->host + i * dtype_size(dtype), &x, 1, dtype);
}

static void transport_check_copy(const struct check *c, void *to, const void *from, size_t bytes)
{
    stream_copy(c->stream, to, from, bytes);
    stream_sync(c->stream);
}

/* Runs the operation with slices of `count` elements; `host` has what is sent, and then the result. The buffer of
 * results has room for the inbox of an ordered one, which is short. */
static enum status run(struct check *c, enum op_kind kind, enum dtype dtype, size_t count, bool ordered,
                       struct error *err)
{
    const size_t slice = count * dtype_size(dtype), all = slice * (size_t)c->comm->world;
    const bool gathers = kind == OP_ALL_GATHER;
    const struct data_op op = {.comm = c->comm,
                               .kind = kind,
                               .dtype = dtype,
                               .recv_dtype = dtype,
                               .send = c->send,
                               .recv = c->recv,
                               .inbox = (char *)c->recv + slice,
                               .count = count,
                               .stride = count,
                               .group = {c->comm->world, 1},
                               .accumulate = ordered,
                               .ordered = ordered};
    transport_check_copy(c, c->send, c->host, gathers ? slice : all);
    transport_gpu_submit(&op, 1, c->stream);
    stream_sync(c->stream);
    TRY(comm_status(c->comm, err));
    transport_check_copy(c, c->host, op.recv, gathers ? all : slice);
    return comm_status(c->comm, err);
}

static enum status compare(const struct check *c, const char *operation, enum dtype dtype, size_t i, float want,
                           struct error *err)
{
    float have;
    floats_from(&have, (const char *)c->host + i * dtype_size(dtype), 1, dtype);
    if (have == want) return STATUS_OK;
    error_set(err, STATUS_DEVICE, "%s of %d ranks in %s gave %.9g in element %zu of rank %d, where %.9g is right",
              operation, c->comm->world, dtype_name(dtype), (double)have, i, c->comm->rank, (double)want);
    return error_hint(err,
                      "the communication library, a GPU or a link between GPUs is faulty: nccl-tests shows which, "
                      "and %s in the environment avoids %s",
                      c->in_place ? "ZTRAIN_NCCL_MEMORY=plain" : "NCCL_P2P_DISABLE=1",
                      c->in_place ? "what the same check has passed without" : "the links between GPUs");
}

static enum status check_gather(struct check *c, size_t count, struct error *err)
{
    const enum dtype dtype = DTYPE_F32;
    for (size_t i = 0; i < count; i++) transport_check_put(c, i, transport_gathered(c->comm->rank, i), dtype);
    TRY(run(c, OP_ALL_GATHER, dtype, count, false, err));
    for (int r = 0; r < c->comm->world; r++)
        for (size_t i = 0; i < count; i++)
            TRY(compare(c, operation_name(OP_ALL_GATHER), dtype, (size_t)r * count + i, transport_gathered(r, i), err));
    return STATUS_OK;
}

static enum status check_reduce(struct check *c, enum dtype dtype, size_t count, struct error *err)
{
    const int world = c->comm->world;
    for (int s = 0; s < world; s++)
        for (size_t i = 0; i < count; i++)
            transport_check_put(c, (size_t)s * count + i, transport_contribution(world, c->comm->rank, s, i), dtype);
    TRY(run(c, OP_REDUCE_SCATTER, dtype, count, false, err));
    for (size_t i = 0; i < count; i++)
        TRY(compare(c, operation_name(OP_REDUCE_SCATTER), dtype, i, (float)(1 + i % 3), err));
    return STATUS_OK;
}

/* As many bits as fp32 has, so that another order of sums has other bits. rank -1: what is there before. */
static float transport_ordered(int rank, int slice, size_t i)
{
    const uint32_t seed = (uint32_t)i * 2654435761u + (uint32_t)(rank + 1) * 2246822519u + (uint32_t)slice * 40503u;
    return (float)(int32_t)((seed ^ seed >> 15) * 2246822519u);
}

static enum status check_ordered(struct check *c, size_t count, struct error *err)
{
    const int rank = c->comm->rank, world = c->comm->world;
    for (size_t i = 0; i < count; i++) transport_check_put(c, i, transport_ordered(-1, rank, i), DTYPE_F32);
    transport_check_copy(c, c->recv, c->host, count * sizeof(float));
    for (int s = 0; s < world; s++)
        for (size_t i = 0; i < count; i++)
            transport_check_put(c, (size_t)s * count + i, transport_ordered(rank, s, i), DTYPE_F32);
    TRY(run(c, OP_REDUCE_SCATTER, DTYPE_F32, count, true, err));
    for (size_t i = 0; i < count; i++) {
        float sum = transport_ordered(-1, rank, i);
        for (int r = 0; r < world; r++) sum += transport_ordered(r, rank, i);
        TRY(compare(c, "an ordered reduce-scatter", DTYPE_F32, i, sum, err));
    }
    return STATUS_OK;
}

/* Every rank runs all operations, also after a wrong result, which *err keeps: the others wait for it. */
static enum status check_all(struct check *c, struct error *err)
{
    enum { SHORT, LONG, LENGTHS };
    const size_t world = (size_t)c->comm->world, room = c->bytes / (world * sizeof(float)), most = LONG_COUNT / world;
    const size_t counts[LENGTHS] = {COUNT, room < most ? room : most};
    struct error found = {.code = STATUS_OK}, *at = &found, ignored;
    for (int length = 0; length < LENGTHS && counts[length] <= room; length++) {
        if (check_gather(c, counts[length], at) != STATUS_OK) at = &ignored;
        for (int dtype = 0; dtype < (length == SHORT ? DTYPE_COUNT : 1); dtype++)
            if (check_reduce(c, (enum dtype)dtype, counts[length], at) != STATUS_OK) at = &ignored;
        if (length == SHORT && c->comm->config.ordered && check_ordered(c, COUNT / 2, at) != STATUS_OK) at = &ignored;
    }
    if (found.code != STATUS_OK) *err = found;
    return found.code;
}

enum status transport_check(struct comm *comm, struct device *device, void *memory, size_t bytes, struct error *err)
{
    const size_t shortest = COUNT * (size_t)comm->world;
    const size_t most = (shortest > LONG_COUNT ? shortest : LONG_COUNT) * sizeof(float);
    struct check c = {.comm = comm,
                      .bytes = memory && bytes / 2 < most ? bytes / 2 / ARENA_ALIGN * ARENA_ALIGN : most,
                      .in_place = memory};
    void *own = NULL;
    enum status status = stream_new(device, STREAM_COMM, &c.stream, err);
    if (status == STATUS_OK && !memory) status = device_alloc(device, 2 * c.bytes, &own, err);
    c.send = memory ? memory : own;
    c.recv = (char *)c.send + c.bytes;
    c.host = memory_zeroed(1, c.bytes);
    double lacking = status != STATUS_OK; /* ranks without memory, whose callers tell the others */
    const enum status exchanged = comm_sum(comm, &lacking, 1, status == STATUS_OK ? err : NULL);
    if (status == STATUS_OK) status = exchanged;
    if (status == STATUS_OK && lacking == 0) status = check_all(&c, err);
    if (c.stream && memory) stream_fill_zero(c.stream, memory, 2 * c.bytes);
    stream_free(c.stream);
    device_free(device, own, 2 * c.bytes);
    free(c.host);
    return status;
}
