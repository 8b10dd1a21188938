/* SPDX-License-Identifier: Apache-2.0 */
/* transport_network.c: the part of the data operations that crosses the network. See comm.h, comm_internal.h, net.h.
 *
 * All-gather. Every rank sends its slice to its proxy on each other node. A proxy without neighbours receives into the
 * result; others into their staging memory, one half of it while the node's ranks copy from the other:
 *
 *     piece k:    | proxies receive it into half k mod 2 | all meet | all copy it out of the proxies' staging
 *     piece k+1:                                                     | receive into the other half | all meet | …
 *
 * Reduce-scatter. Every rank sends its contribution to a slice of another node's rank to that rank, which adds up all
 * in rank order. With reduce_within_node a proxy first adds up its node's contributions and sends the sums; the owner
 * adds up those of all nodes.
 *
 * Progress. A rank leaves the transfer of piece k only when it has received and sent everything up to its end, and only
 * then waits for its neighbours. So the least advanced ranks never wait for bytes of a rank that waits for its
 * neighbours: no deadlock, however pieces differ between nodes. Sending may run ahead. */
#include "comm/comm_internal.h"
#include "core/heartbeat.h"
#include "core/memory.h"

#include <string.h>

enum {
    SCRATCH_BYTES = 4 << 20,
    SCRATCH_LEAST = 4096, /* bytes for each rank */
    LINE_ELEMENTS = 16
};

static size_t network_scratch_bytes(const struct comm *comm)
{
    size_t least = (size_t)comm->world * SCRATCH_LEAST;
    return least > SCRATCH_BYTES ? least : (size_t)SCRATCH_BYTES;
}

void transport_network_prepare(struct comm *comm)
{
    const size_t world = (size_t)comm->world;
    comm->scratch = memory_alloc(network_scratch_bytes(comm));
    comm->parts = memory_zeroed(2 * world, sizeof *comm->parts);
    comm->bad = memory_zeroed(2 * world, sizeof *comm->bad);
}

static size_t network_round_down(size_t value, size_t unit)
{
    return value / unit * unit;
}

static size_t network_lesser(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- all-gather ---------------------------------------------------------- */

/* The sends come first among the parts. */
enum status transport_network_gather_begin(const struct data_op *op)
{
    struct comm *comm = op->comm;
    const struct topology *t = &comm->topology;
    struct net_part *part = comm->parts;
    for (int i = 1; i < t->num_nodes; i++) /* the next node first, so that not all ranks send to the same one */
        *part++ = (struct net_part){.peer = t->proxies[(t->node + i) % t->num_nodes],
                                    .send = true,
                                    .data = (char *)op->send,
                                    .bytes = op->count * dtype_size(op->dtype)};
    return net_transfer(comm->net, comm->parts, t->num_nodes - 1);
}

static void network_sends_need(struct comm *comm, int sends, size_t bytes)
{
    for (int i = 0; i < sends; i++)
        comm->parts[i].need = bytes;
}

enum status transport_network_gather(const struct data_op *op)
{
    struct comm *comm = op->comm;
    const struct topology *t = &comm->topology;
    const size_t bytes = op->count * dtype_size(op->dtype), stride = op->stride * dtype_size(op->dtype);
    const size_t half = CONTROL_STAGING_BYTES / 2;
    const bool direct = t->local_world == 1;
    size_t piece = direct ? bytes : half / (size_t)t->most_carried;
    if (!direct && piece > 64)
        piece = network_round_down(piece, 64);
    int sends = t->num_nodes - 1, turn = 0;
    for (size_t at = 0; at < bytes; at += piece, turn = !turn) {
        size_t n = network_lesser(bytes - at, piece);
        int parts = sends;
        for (int i = 0; i < t->num_remotes; i++) {
            if (t->proxy_of[i] != t->local_rank)
                continue;
            char *to = direct ? (char *)op->recv + (size_t)t->remotes[i] * stride
                              : control_staging(comm->control, t->local_rank) + (size_t)turn * half +
                                    (size_t)t->index_at_proxy[i] * piece;
            comm->parts[parts++] = (struct net_part){.peer = t->remotes[i], .data = to, .bytes = n, .need = n};
        }
        network_sends_need(comm, sends, at + n);
        TRY(net_transfer(comm->net, comm->parts, parts));
        if (direct)
            break;
        TRY(comm_op_barrier(comm, op->kind));
        for (int i = 0; i < t->num_remotes; i++)
            memcpy((char *)op->recv + (size_t)t->remotes[i] * stride + at,
                   control_staging(comm->control, t->proxy_of[i]) + (size_t)turn * half +
                       (size_t)t->index_at_proxy[i] * piece,
                   n);
        heartbeat_beat();
    }
    return STATUS_OK;
}

/* ---- reduce-scatter ------------------------------------------------------ */

size_t transport_network_reduce_piece(const struct comm *comm, size_t size)
{
    return network_round_down(network_scratch_bytes(comm) / ((size_t)comm->topology.num_remotes * size), LINE_ELEMENTS);
}

enum status transport_network_reduce_begin(const struct data_op *op)
{
    struct comm *comm = op->comm;
    const struct topology *t = &comm->topology;
    const size_t size = dtype_size(op->dtype);
    int first = 0; /* the first remote after this rank */
    while (first < t->num_remotes && t->remotes[first] < t->rank)
        first++;
    for (int i = 0; i < t->num_remotes; i++) {
        int owner = t->remotes[(first + i) % t->num_remotes];
        comm->parts[i] = (struct net_part){.peer = owner,
                                           .send = true,
                                           .data = (char *)op->send + (size_t)owner * op->stride * size,
                                           .bytes = op->count * size};
    }
    return net_transfer(comm->net, comm->parts, t->num_remotes);
}

enum status transport_network_reduce(const struct data_op *op, size_t at, size_t count)
{
    struct comm *comm = op->comm;
    const struct topology *t = &comm->topology;
    const size_t bytes = count * dtype_size(op->dtype);
    network_sends_need(comm, t->num_remotes, at * dtype_size(op->dtype) + bytes);
    for (int i = 0; i < t->num_remotes; i++) {
        char *to = (char *)comm->scratch + (size_t)i * bytes;
        comm->parts[t->num_remotes + i] =
            (struct net_part){.peer = t->remotes[i], .data = to, .bytes = bytes, .need = bytes};
        comm->in[t->remotes[i]] = to;
    }
    return net_transfer(comm->net, comm->parts, 2 * t->num_remotes);
}

/* ---- reduce-scatter, within the node first ------------------------------- */

/* out = sum over this node's ranks of [at, at + n) of owner's slice. Returns the lowest rank that is not finite. */
static int32_t network_sum_node(const struct data_op *op, bool staged, int owner, size_t at, size_t n, float *out)
{
    struct comm *comm = op->comm;
    const struct topology *t = &comm->topology;
    const size_t size = dtype_size(op->dtype);
    for (int l = 0; l < t->local_world; l++)
        comm->in[l] = staged ? control_staging(comm->control, l) + (size_t)owner * n * size
                             : comm_peer_send(comm, l) + ((size_t)owner * op->stride + at) * size;
    int32_t bad = sum_ranks(out, DTYPE_F32, comm->in, t->local_world, n, op->dtype, SUM_ALONE);
    return bad == RANK_NONE ? RANK_NONE : t->locals[bad];
}

static enum status network_exchange_bad(const struct data_op *op)
{
    struct comm *comm = op->comm;
    const struct topology *t = &comm->topology;
    int parts = 0;
    for (int i = 0; i < t->num_remotes; i++)
        if (t->proxy_of[i] == t->local_rank)
            comm->parts[parts++] =
                (struct net_part){.peer = t->remotes[i], .send = true, .data = (char *)&comm->bad[i]};
    int32_t *heard = comm->bad + t->world;
    for (int node = 0; node < t->num_nodes; node++)
        if (node != t->node)
            comm->parts[parts++] = (struct net_part){.peer = t->proxies[node], .data = (char *)&heard[node]};
    for (int i = 0; i < parts; i++)
        comm->parts[i].bytes = comm->parts[i].need = sizeof *heard;
    TRY(net_transfer(comm->net, comm->parts, parts));
    for (int node = 0; node < t->num_nodes; node++)
        if (node != t->node)
            note_bad(op->bad_rank, heard[node]);
    return STATUS_OK;
}

/* Scratch holds a piece of each: the sums of the slices that this rank serves, then the own slice's sums by node. */
enum status transport_network_reduce_within_node(const struct data_op *op, bool staged)
{
    struct comm *comm = op->comm;
    const struct topology *t = &comm->topology;
    const size_t size = dtype_size(op->dtype), world = (size_t)t->world;
    size_t piece = network_scratch_bytes(comm) / ((size_t)(t->most_carried + t->num_nodes) * sizeof(float));
    piece = network_lesser(network_round_down(piece, LINE_ELEMENTS), PIECE_BYTES / sizeof(float));
    if (staged)
        piece = network_lesser(piece, CONTROL_STAGING_BYTES / (size * world));
    float *nodes = comm->scratch + (size_t)t->proxied * piece;
    for (int i = 0; i < t->num_remotes; i++)
        comm->bad[i] = RANK_NONE;
    for (size_t at = 0; at < op->count; at += piece) {
        TRY(control_status(comm->control, NULL));
        size_t n = network_lesser(op->count - at, piece);
        if (staged) {
            char *staging = control_staging(comm->control, t->local_rank);
            for (size_t owner = 0; owner < world; owner++)
                memcpy(staging + owner * n * size, (const char *)op->send + (owner * op->stride + at) * size, n * size);
            TRY(comm_op_barrier(comm, op->kind));
        }
        int parts = 0;
        for (int i = 0; i < t->num_remotes; i++) {
            if (t->proxy_of[i] != t->local_rank)
                continue;
            float *sum = comm->scratch + (size_t)parts * piece;
            note_bad(&comm->bad[i], network_sum_node(op, staged, t->remotes[i], at, n, sum));
            comm->parts[parts++] = (struct net_part){.peer = t->remotes[i], .send = true, .data = (char *)sum};
        }
        for (int node = 0; node < t->num_nodes; node++) {
            float *sum = nodes + (size_t)node * piece;
            if (node == t->node)
                note_bad(op->bad_rank, network_sum_node(op, staged, t->rank, at, n, sum));
            else
                comm->parts[parts++] = (struct net_part){.peer = t->proxies[node], .data = (char *)sum};
        }
        for (int i = 0; i < parts; i++)
            comm->parts[i].bytes = comm->parts[i].need = n * sizeof(float);
        TRY(net_transfer(comm->net, comm->parts, parts));
        for (int node = 0; node < t->num_nodes; node++)
            comm->in[node] = nodes + (size_t)node * piece;
        sum_ranks(data_op_recv(op, at), op->recv_dtype, comm->in, t->num_nodes, n, DTYPE_F32, data_op_start(op));
        if (staged)
            TRY(comm_op_barrier(comm, op->kind));
        heartbeat_beat();
    }
    TRY(network_exchange_bad(op));
    return staged ? STATUS_OK : comm_op_barrier(comm, op->kind);
}
