/* comm_collectives.c: the public data operations. Each is counted and handed to its transport: the host's
 * (transport_host.c), that of a GPU that is attached (transport_gpu.c), or a simulation's (transport_simulated.c). */
#include "comm/comm_internal.h"
#include "comm/comm_log.h"
#include "comm/transport_gpu.h"
#include "gpu/spans.h"

static void count_op(const struct data_op *op)
{
    struct comm *comm = op->comm;
    const size_t size = dtype_size(op->dtype);
    int64_t bytes = (int64_t)(op->count * size) * (comm->world - 1);
    bool gathers = op->kind == OP_ALL_GATHER;
    pthread_mutex_lock(&comm->mutex);
    *(gathers ? &comm->stats.all_gather_calls : &comm->stats.reduce_scatter_calls) += 1;
    *(gathers ? &comm->stats.all_gather_bytes : &comm->stats.reduce_scatter_bytes) += bytes;
    pthread_mutex_unlock(&comm->mutex);
}

/* The operation for the sinks of spans (gpu/spans.h); bytes of all ranks' slices together. */
static struct span span_of(const struct data_op *op, struct stream *stream)
{
    static const char *const names[2][COMM_PURPOSE_COUNT] = {
        {"all_gather", "all_gather parameters", "all_gather gradients", "all_gather updates", "all_gather reports"},
        {"reduce_scatter", "reduce_scatter parameters", "reduce_scatter gradients", "reduce_scatter updates",
         "reduce_scatter reports"}};
    const struct comm *comm = op->comm;
    const int reduces = op->kind == OP_REDUCE_SCATTER;
    return (struct span){.kind = SPAN_COLLECTIVE,
                         .what = reduces * COMM_PURPOSE_COUNT + comm->purpose,
                         .unit = comm->unit,
                         .name = names[reduces][comm->purpose],
                         .bytes = (int64_t)(op->count * dtype_size(op->dtype)) * comm->world,
                         .stream = stream};
}

static void data_op_submit(struct data_op *op, struct stream *stream)
{
    struct comm *comm = op->comm;
    if (op->count == 0)
        return;
    op->unit = comm->unit;
    op->number = ++comm->submitted;
    struct span span = span_of(op, stream);
    if (comm->world > 1) {
        count_op(op);
        span_begin(&span);
    }
    comm->submit(op, stream);
    if (comm->world > 1)
        span_end(&span);
}

void comm_all_gather(struct comm *comm, const void *send, void *recv, size_t count, size_t stride, enum dtype dtype,
                     struct stream *stream)
{
    ASSERT(stride == 0 || stride >= count);
    struct data_op op = {.comm = comm,
                         .kind = OP_ALL_GATHER,
                         .send = send,
                         .recv = recv,
                         .count = count,
                         .stride = stride ? stride : count,
                         .dtype = dtype};
    data_op_submit(&op, stream);
}

void comm_reduce_scatter(struct comm *comm, const void *send, void *recv, size_t count, size_t stride, enum dtype dtype,
                         enum dtype recv_dtype, bool accumulate, int32_t *bad_rank, struct stream *stream)
{
    ASSERT(stride == 0 || stride >= count);
    struct data_op op = {.comm = comm,
                         .kind = OP_REDUCE_SCATTER,
                         .send = send,
                         .recv = recv,
                         .count = count,
                         .stride = stride ? stride : count,
                         .dtype = dtype,
                         .recv_dtype = recv_dtype,
                         .accumulate = accumulate,
                         .bad_rank = bad_rank};
    data_op_submit(&op, stream);
}

void comm_all_reduce(struct comm *comm, float *data, size_t count, int32_t *bad_rank, struct stream *stream)
{
    float *slice = data + (size_t)comm->rank * count;
    comm_reduce_scatter(comm, data, slice, count, 0, DTYPE_F32, DTYPE_F32, false, bad_rank, stream);
    comm_all_gather(comm, slice, data, count, 0, DTYPE_F32, stream);
}

void comm_stats_read(struct comm *comm, struct comm_stats *stats, bool reset)
{
    pthread_mutex_lock(&comm->mutex);
    *stats = comm->stats;
    stats->network_sent = comm->moved_sent - comm->network_sent;
    stats->network_received = comm->moved_received - comm->network_received;
    if (reset) {
        comm->stats = (struct comm_stats){0};
        comm->network_sent = comm->moved_sent;
        comm->network_received = comm->moved_received;
    }
    pthread_mutex_unlock(&comm->mutex);
}
