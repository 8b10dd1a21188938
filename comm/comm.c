/* SPDX-License-Identifier: Apache-2.0 */
/* comm.c: the communicator's life: opening and closing, attaching a GPU; and its data operations. Each is counted and
 * handed to a transport: the host's (transport_host.c), that of a GPU that is attached (transport_gpu.c), or a
 * simulation's (transport_simulated.c). */
#include "comm/comm.h"

#include "comm/transport_gpu.h"
#include "gpu/spans.h"

#include <sys/mman.h>

enum status comm_open(struct bootstrap *bootstrap, const struct comm_config *config, struct comm **comm,
                      struct error *err)
{
    ASSERT(config->timeout_seconds > 0);
    enum status status = STATUS_OK;
    *comm = NULL;
    if (bootstrap->world > BOOTSTRAP_MAX_RANKS)
        return error_set(err, STATUS_USAGE, "%d ranks are more than %d", bootstrap->world, BOOTSTRAP_MAX_RANKS);
    TRY(bootstrap_connect(bootstrap, config->timeout_seconds, config->interface, err));
    struct comm *c = memory_zeroed(1, sizeof *c);
    c->rank = bootstrap->rank;
    c->world = bootstrap->world;
    c->own_fd = -1;
    c->submit = transport_host_submit;
    c->config = *config;
    pthread_mutex_init(&c->mutex, NULL);
    size_t world = (size_t)c->world;
    topology_init(&c->topology, c->rank, c->world, bootstrap->places);
    c->peers = memory_zeroed(world, sizeof *c->peers);
    c->in = memory_zeroed(world, sizeof *c->in);
    c->slots = memory_zeroed(world, sizeof *c->slots);
    if (bootstrap->launcher && c->world > 1)
        TRY_GOTO(comm_join_nodes(c, bootstrap, err));
    else
        TRY_GOTO(comm_attach_node(c, bootstrap->shared_fd, bootstrap->host, err));
    TRY_GOTO(control_join(c->control, err));
    *comm = c;
    return STATUS_OK;
fail:
    if (c->control && err) comm_abort(c, err);
    comm_close(c);
    return status;
}

void comm_close(struct comm *comm)
{
    if (!comm) return;
    if (comm->control) {
        heartbeat_thread_stop();
        if (comm->world > 1 && control_status(comm->control, NULL) == STATUS_OK) comm_barrier(comm, NULL);
        control_leave(comm->control);
        agent_stop(comm->agent);
        net_free(comm->net);
        control_detach(comm->control);
    }
    if (comm->own_fd >= 0) close(comm->own_fd);
    if (comm->segments) munmap(comm->segments, comm->segment_stride * (size_t)comm->topology.local_world);
    pthread_mutex_destroy(&comm->mutex);
    topology_release(&comm->topology);
    free(comm->peers);
    free(comm->in);
    free(comm->parts);
    free(comm->scratch);
    free(comm->bad);
    free(comm->slots);
    free(comm);
}

enum status comm_attach_device(struct comm *comm, struct device *device, bool may_share, int nccl_ctas,
                               const char **way, struct error *err)
{
    ASSERT(!comm->gpu);
    *way = NULL;
    if (device->kind == DEVICE_CPU || comm->world == 1) return STATUS_OK;
    TRY(transport_gpu_new(comm, device, may_share, nccl_ctas, &comm->gpu, way, err));
    comm->submit = transport_gpu_submit;
    return transport_check(comm, device, NULL, 0, err);
}

void comm_detach_device(struct comm *comm)
{
    transport_gpu_free(comm->gpu);
    comm->gpu = NULL;
    comm->submit = transport_host_submit;
}

bool comm_can_capture(const struct comm *comm)
{
    return comm->world == 1 || (comm->gpu && comm->gpu->nccl);
}

bool comm_takes_pieces(const struct comm *comm)
{
    return comm->submit == transport_host_submit || (comm->gpu && !comm->gpu->nccl); /* a simulated NCCL does not */
}

void comm_launch(struct comm *comm, struct graph *graph)
{
    ASSERT(!comm->gpu || comm->gpu->nccl);
    if (comm->gpu)
        comm->gpu->nccl->launch(comm->gpu->nccl, graph);
    else
        graph_launch(graph);
}

void comm_note_plan(struct comm *comm, uint64_t bytes)
{
    atomic_store(&comm->control->block->ranks[comm->rank].planned, bytes);
}

bool comm_await_end(struct comm *comm, double seconds)
{
    control_leave(comm->control);
    return control_await_end(comm->control, seconds);
}

/* ---- data operations ----------------------------------------------------- */

/* The operation for the sinks of spans (gpu/spans.h); bytes of all ranks' slices together. */
static struct span span_of_collective(const struct data_op *op, struct stream *stream)
{
    static const char *const names[2][COMM_PURPOSE_COUNT] = {
        {"all_gather", "all_gather parameters", "all_gather gradients", "all_gather updates", "all_gather tokens",
         "all_gather reports"},
        {"reduce_scatter", "reduce_scatter parameters", "reduce_scatter gradients", "reduce_scatter updates",
         "reduce_scatter tokens", "reduce_scatter reports"}};
    const int reduces = op->kind == OP_REDUCE_SCATTER;
    return (struct span){.kind = SPAN_COLLECTIVE,
                         .what = reduces * COMM_PURPOSE_COUNT + op->purpose,
                         .unit = op->unit,
                         .name = names[reduces][op->purpose],
                         .bytes = (int64_t)(op->count * dtype_size(op->dtype)) * op->group.size,
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
        if (what->count == 0) continue;
        *op = *what;
        op->stride = op->stride ? op->stride : op->count;
        if (!op->group.size) op->group = (struct comm_group){comm->world, 1};
        ASSERT(comm->world % (op->group.size * op->group.stride) == 0);
        op->comm = comm;
        op->kind = kind;
        op->number = ++comm->submitted;
        spans[submitted] = span_of_collective(op, stream);
        if (comm->world > 1) {
            const bool gathers = kind == OP_ALL_GATHER;
            pthread_mutex_lock(&comm->mutex);
            *(gathers ? &comm->stats.all_gather_calls : &comm->stats.reduce_scatter_calls) += 1;
            *(gathers ? &comm->stats.all_gather_bytes : &comm->stats.reduce_scatter_bytes) +=
                (int64_t)(op->count * dtype_size(op->dtype)) * (op->group.size - 1);
            pthread_mutex_unlock(&comm->mutex);
            span_begin(&spans[submitted]);
        }
        submitted++;
    }
    if (submitted > 0) comm->submit(ops, submitted, stream);
    while (--submitted >= 0 && comm->world > 1) span_end(&spans[submitted]);
}

void comm_all_gather_group(struct comm *comm, const struct data_op *ops, int count, struct stream *stream)
{
    data_ops_submit(comm, OP_ALL_GATHER, ops, count, stream);
}

void comm_reduce_scatter_group(struct comm *comm, const struct data_op *ops, int count, struct stream *stream)
{
    data_ops_submit(comm, OP_REDUCE_SCATTER, ops, count, stream);
}

void comm_stats_take(struct comm *comm, struct comm_stats *stats)
{
    LOCKED(&comm->mutex);
    *stats = comm->stats;
    stats->network_sent = comm->moved_sent - comm->network_sent;
    stats->network_received = comm->moved_received - comm->network_received;
    comm->stats = (struct comm_stats){0};
    comm->network_sent = comm->moved_sent;
    comm->network_received = comm->moved_received;
}

/* ---- flight recorders ---------------------------------------------------- */

int comm_flight_peers(const struct comm *comm)
{
    return comm->control->local_world;
}

struct flight_peer comm_flight_peer(const struct comm *comm, int local_rank)
{
    const int rank = comm->control->locals[local_rank];
    const struct control_rank *entry = &comm->control->block->ranks[rank];
    return (struct flight_peer){.rank = rank,
                                .pid = entry->pid,
                                .host = entry->host,
                                .ring = control_flight_ring(comm->control, local_rank),
                                .left = atomic_load(&entry->state) == RANK_CLOSED};
}

struct flight_ring *comm_flight_ring(const struct comm *comm)
{
    return control_flight_ring(comm->control, comm->topology.local_rank);
}
