/* SPDX-License-Identifier: Apache-2.0 */
/* comm_collectives.c: the public data operations. Each is counted and handed to its transport: the host's
 * (transport_host.c), that of a GPU that is attached (transport_gpu.c), or a simulation's (transport_simulated.c). */
#include "comm/comm_internal.h"
#include "comm/comm_log.h"
#include "gpu/spans.h"

static void count_collective(const struct data_op *op)
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
static struct span span_of_collective(const struct data_op *op, struct stream *stream)
{
    static const char *const names[2][COMM_PURPOSE_COUNT] = {
        {"all_gather", "all_gather parameters", "all_gather gradients", "all_gather updates", "all_gather reports"},
        {"reduce_scatter", "reduce_scatter parameters", "reduce_scatter gradients", "reduce_scatter updates",
         "reduce_scatter reports"}};
    const struct comm *comm = op->comm;
    const int reduces = op->kind == OP_REDUCE_SCATTER;
    return (struct span){.kind = SPAN_COLLECTIVE,
                         .what = reduces * COMM_PURPOSE_COUNT + op->purpose,
                         .unit = op->unit,
                         .name = names[reduces][op->purpose],
                         .bytes = (int64_t)(op->count * dtype_size(op->dtype)) * comm->world,
                         .stream = stream};
}

/* Each operation of a group is a span as long as the group. */
static void data_ops_submit(struct comm *comm, enum op_kind kind, const struct data_op *whats, int count,
                            struct stream *stream)
{
    struct data_op ops[COMM_GROUP_MAX];
    struct span spans[COMM_GROUP_MAX];
    int submitted = 0;
    ASSERT(count <= COMM_GROUP_MAX);
    for (const struct data_op *what = whats; what < whats + count; what++) {
        struct data_op *op = &ops[submitted];
        ASSERT(what->stride == 0 || what->stride >= what->count);
        if (what->count == 0)
            continue;
        *op = *what;
        op->stride = op->stride ? op->stride : op->count;
        op->comm = comm;
        op->kind = kind;
        op->number = ++comm->submitted;
        spans[submitted] = span_of_collective(op, stream);
        if (comm->world > 1) {
            count_collective(op);
            span_begin(&spans[submitted]);
        }
        submitted++;
    }
    if (submitted > 0)
        comm->submit(ops, submitted, stream);
    while (--submitted >= 0 && comm->world > 1)
        span_end(&spans[submitted]);
}

void comm_all_gather_group(struct comm *comm, const struct data_op *ops, int count, struct stream *stream)
{
    data_ops_submit(comm, OP_ALL_GATHER, ops, count, stream);
}

void comm_reduce_scatter_group(struct comm *comm, const struct data_op *ops, int count, struct stream *stream)
{
    data_ops_submit(comm, OP_REDUCE_SCATTER, ops, count, stream);
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
