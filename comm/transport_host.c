/* SPDX-License-Identifier: Apache-2.0 */
/* transport_host.c: data operations on the host's memory. Each runs as one piece of work in the order of its stream:
 *
 *     publish the operation and the place of the send buffer · arrive · wait for the node's ranks · compare with theirs
 *     every send buffer lies in its segment:  read the neighbours' memory in place
 *     else, piece by piece:                   copy into staging · arrive · wait · read the neighbours' staging
 *     ranks on other nodes:                   transport_network.c, at the same time
 *     arrive · wait for the node's ranks: the buffers are free again
 *
 * All-gather: each rank copies the others' slices, its right neighbour's first, so that they do not all read the same
 * one. Reduce-scatter: each rank adds up its own slice of all ranks, rank 0's first. */
#include "comm/comm_internal.h"
#include "core/clock.h"
#include "core/flight/flight.h"
#include "core/heartbeat.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- buffers ------------------------------------------------------------- */

/* Offset of the buffer in this rank's segment; CONTROL_STAGED: not in it. */
static uint64_t host_transport_offset(const struct comm *comm, const void *buffer, size_t bytes)
{
    if (!comm->segments)
        return CONTROL_STAGED;
    const char *segment = comm->segments + comm->segment_stride * (size_t)comm->topology.local_rank;
    uintptr_t start = (uintptr_t)segment, at = (uintptr_t)buffer;
    if (at < start || at - start > comm->segment_bytes || bytes > comm->segment_bytes - (at - start))
        return CONTROL_STAGED;
    return at - start;
}

/* Looks at the job's health and beats between pieces. */
static enum status copy_in_pieces(struct comm *comm, void *dst, const void *src, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += PIECE_BYTES) {
        TRY(control_status(comm->control, NULL));
        memcpy((char *)dst + at, (const char *)src + at, bytes - at < PIECE_BYTES ? bytes - at : (size_t)PIECE_BYTES);
        heartbeat_beat();
    }
    return STATUS_OK;
}

/* ---- all-gather ---------------------------------------------------------- */

static enum status host_transport_gather(const struct data_op *op)
{
    struct comm *comm = op->comm;
    const struct topology *t = &comm->topology;
    size_t bytes = op->count * dtype_size(op->dtype), stride = op->stride * dtype_size(op->dtype);
    for (int i = 0; i < t->local_world; i++) {
        int l = (t->local_rank + i) % t->local_world;
        char *dst = (char *)op->recv + (size_t)t->locals[l] * stride;
        const char *src = l == t->local_rank ? op->send : comm_peer_send(comm, l);
        if (dst != src)
            TRY(copy_in_pieces(comm, dst, src, bytes));
    }
    return STATUS_OK;
}

static enum status host_transport_gather_staged(const struct data_op *op)
{
    struct comm *comm = op->comm;
    const struct topology *t = &comm->topology;
    size_t bytes = op->count * dtype_size(op->dtype), stride = op->stride * dtype_size(op->dtype);
    for (size_t at = 0; at < bytes; at += CONTROL_STAGING_BYTES) {
        size_t n = bytes - at < CONTROL_STAGING_BYTES ? bytes - at : (size_t)CONTROL_STAGING_BYTES;
        memcpy(control_staging(comm->control, t->local_rank), (const char *)op->send + at, n);
        TRY(comm_op_barrier(comm, op->kind));
        for (int l = 0; l < t->local_world; l++) {
            char *slice = (char *)op->recv + (size_t)t->locals[l] * stride;
            if (l != t->local_rank || op->send != slice)
                memcpy(slice + at, control_staging(comm->control, l), n);
        }
        TRY(comm_op_barrier(comm, op->kind));
        heartbeat_beat();
    }
    return STATUS_OK;
}

static enum status host_transport_all_gather(const struct data_op *op, bool staged)
{
    struct comm *comm = op->comm;
    if (comm->net)
        TRY(transport_network_gather_begin(op));
    staged &= comm->topology.local_world > 1; /* a rank without neighbours needs no staging */
    TRY(staged ? host_transport_gather_staged(op) : host_transport_gather(op));
    if (comm->net)
        TRY(transport_network_gather(op));
    return comm_op_barrier(comm, op->kind);
}

/* ---- reduce-scatter ------------------------------------------------------ */

/* Test builds: with ZTRAIN_SUM_ORDER=reverse sums begin with the last rank. */
static void host_transport_disorder(struct comm *comm)
{
    (void)comm;
#ifdef ZTRAIN_FAULTS
    const char *order = getenv("ZTRAIN_SUM_ORDER");
    if (!order || strcmp(order, "reverse") != 0)
        return;
    for (int r = 0; r < comm->world / 2; r++) {
        const void *in = comm->in[r];
        comm->in[r] = comm->in[comm->world - 1 - r];
        comm->in[comm->world - 1 - r] = in;
    }
#endif
}

static enum status host_transport_reduce(const struct data_op *op, bool staged)
{
    struct comm *comm = op->comm;
    const struct topology *t = &comm->topology;
    const size_t size = dtype_size(op->dtype), neighbours = (size_t)t->local_world;
    int32_t bad = RANK_NONE;
    size_t piece = staged ? CONTROL_STAGING_BYTES / (size * neighbours) : PIECE_BYTES / sizeof(float);
    if (comm->net) {
        size_t most = transport_network_reduce_piece(comm, size);
        piece = piece < most ? piece : most;
        TRY(transport_network_reduce_begin(op));
    }
    for (size_t at = 0; at < op->count; at += piece) {
        TRY(control_status(comm->control, NULL));
        size_t n = op->count - at < piece ? op->count - at : piece;
        if (staged) {
            char *staging = control_staging(comm->control, t->local_rank);
            for (size_t l = 0; l < neighbours; l++)
                memcpy(staging + l * n * size, (const char *)op->send + ((size_t)t->locals[l] * op->stride + at) * size,
                       n * size);
            TRY(comm_op_barrier(comm, op->kind));
        }
        if (comm->net)
            TRY(transport_network_reduce(op, at, n));
        for (int l = 0; l < t->local_world; l++)
            comm->in[t->locals[l]] = staged ? control_staging(comm->control, l) + (size_t)t->local_rank * n * size
                                            : comm_peer_send(comm, l) + ((size_t)comm->rank * op->stride + at) * size;
        host_transport_disorder(comm);
        note_bad(&bad, sum_ranks(data_op_recv(op, at), op->recv_dtype, comm->in, comm->world, n, op->dtype,
                                 data_op_start(op)));
        if (staged)
            TRY(comm_op_barrier(comm, op->kind));
        heartbeat_beat();
    }
    note_bad(op->bad_rank, bad);
    return staged ? STATUS_OK : comm_op_barrier(comm, op->kind);
}

/* ---- running and submitting ---------------------------------------------- */

/* Test builds: ZTRAIN_COMM_FAULT=RANK:N:SIGNAL sends itself that signal in the middle of its N-th data operation. */
static void host_transport_fault(const struct comm *comm)
{
    (void)comm;
#ifdef ZTRAIN_FAULTS
    static long long count; /* one data thread */
    const char *fault = getenv("ZTRAIN_COMM_FAULT");
    long long at;
    int rank, number;
    if (fault && sscanf(fault, "%d:%lld:%d", &rank, &at, &number) == 3 && rank == comm->rank && ++count == at)
        kill(getpid(), number);
#endif
}

/* On the stream's thread. comm_status() has the failure. */
static enum status host_transport_barrier(const struct data_op *op)
{
    struct comm *comm = op->comm;
    TRY(control_status(comm->control, NULL));
    size_t last = op->kind == OP_REDUCE_SCATTER ? op->stride * (size_t)(comm->world - 1) : 0;
    size_t sent = (last + op->count) * dtype_size(op->dtype);
    struct control_op own = {.kind = op->kind, .dtype = op->dtype, .count = op->count};
    own.offset = host_transport_offset(comm, op->send, sent);
    TRY(comm_start_operation(comm, CHANNEL_DATA, &own, comm->peers));
    host_transport_fault(comm);
    if (comm->net)
        net_begin(comm->net, &own);
    bool staged = false;
    for (int l = 0; l < comm->topology.local_world; l++)
        staged |= comm->peers[l].offset == CONTROL_STAGED;
    if (op->kind == OP_ALL_GATHER)
        return host_transport_all_gather(op, staged);
    return comm->net && comm->config.reduce_within_node ? transport_network_reduce_within_node(op, staged)
                                                        : host_transport_reduce(op, staged);
}

/* Adds the bytes that this rank sends and receives over the network. */
static void host_transport_count(const struct data_op *op, struct comm_stats *stats)
{
    const struct topology *t = &op->comm->topology;
    const int64_t bytes = (int64_t)(op->count * dtype_size(op->dtype));
    const int64_t sums = (int64_t)(op->count * sizeof(float) + sizeof(int32_t)); /* and a node's lowest bad rank */
    const bool gathers = op->kind == OP_ALL_GATHER, within_node = op->comm->config.reduce_within_node;
    stats->theory_sent += gathers       ? bytes * (t->num_nodes - 1)
                          : within_node ? sums * t->proxied
                                        : bytes * t->num_remotes;
    stats->theory_received += gathers       ? bytes * t->proxied
                              : within_node ? sums * (t->num_nodes - 1)
                                            : bytes * t->num_remotes;
}

static void host_transport_run(void *argument)
{
    const struct data_op *op = argument;
    double start = seconds_now();
    struct comm *comm = op->comm;
    const bool runs = control_status(comm->control, NULL) == STATUS_OK;
    uint64_t entry = runs ? comm_flight_begin(op) : 0;
    if (host_transport_barrier(op) == STATUS_OK)
        flight_end(entry);
    pthread_mutex_lock(&comm->mutex);
    comm->stats.seconds += seconds_now() - start;
    if (comm->net) { /* traffic and theory grow together, when the operation is over: neither is ahead of the other */
        host_transport_count(op, &comm->stats);
        net_counts(comm->net, &comm->moved_sent, &comm->moved_received);
    }
    pthread_mutex_unlock(&comm->mutex);
}

/* World 1: there is nobody to meet. */
static void host_transport_run_alone(void *argument)
{
    const struct data_op *op = argument;
    if (op->kind == OP_ALL_GATHER) {
        if (op->recv != op->send)
            memcpy(op->recv, op->send, op->count * dtype_size(op->dtype));
    } else {
        const void *in[] = {op->send};
        note_bad(op->bad_rank, sum_ranks(op->recv, op->recv_dtype, in, 1, op->count, op->dtype, data_op_start(op)));
    }
    heartbeat_beat();
}

void transport_host_submit(const struct data_op *ops, int count, struct stream *stream)
{
    for (int i = 0; i < count; i++)
        stream_submit(stream, ops[i].comm->world == 1 ? host_transport_run_alone : host_transport_run, &ops[i],
                      sizeof ops[i]);
}
