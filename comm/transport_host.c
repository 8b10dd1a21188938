/* SPDX-License-Identifier: Apache-2.0 */
/* transport_host.c: data operations on the host's memory. Each runs as one piece of work in the order of its stream:
 *
 *     publish the operation and the place of the send buffer · arrive · wait for the node's ranks · compare with theirs
 *     every send buffer lies in its segment:  read the neighbours' memory in place
 *     else, piece by piece:                   copy into staging · arrive · wait · read the neighbours' staging
 *     ranks on other nodes:                   over the network, at the same time
 *     arrive · wait for the node's ranks: the buffers are free again
 *
 * All-gather: each rank copies the others' slices, its right neighbour's first, so that they do not all read the same
 * one. Reduce-scatter: each rank adds up its own slice of all ranks, rank 0's first.
 *
 * Between nodes (topology, net.h):
 * All-gather: every rank sends its slice to its proxy on each other node. A proxy without neighbours receives into the
 * result; others into their staging memory, one half of it while the node's ranks copy from the other:
 *
 *     piece k:    | proxies receive it into half k mod 2 | all meet | all copy it out of the proxies' staging
 *     piece k+1:                                                     | receive into the other half | all meet | …
 *
 * Reduce-scatter: every rank sends its contribution to a slice of another node's rank to that rank, which adds up all
 * in rank order. With reduce_within_node a proxy first adds up its node's contributions and sends the sums; the owner
 * adds up those of all nodes.
 *
 * Progress: a rank leaves the transfer of piece k only when it has received and sent everything up to its end, and only
 * then waits for its neighbours. So the least advanced ranks never wait for bytes of a rank that waits for its
 * neighbours: no deadlock, however pieces differ between nodes. Sending may run ahead. */
#include "comm/comm_internal.h"
#include "core/faults.h"
#include "core/flight/flight.h"

enum {
    SCRATCH_BYTES = 4 << 20,
    SCRATCH_LEAST = 4096, /* bytes for each rank */
    LINE_ELEMENTS = 16
};

/* ---- buffers ------------------------------------------------------------- */

/* Offset of the buffer in this rank's segment; CONTROL_STAGED: not in it. */
static uint64_t host_transport_offset(const struct comm *comm, const void *buffer, size_t bytes)
{
    if (!comm->segments) return CONTROL_STAGED;
    const char *segment = comm->segments + comm->segment_stride * (size_t)comm->topology.local_rank;
    uintptr_t start = (uintptr_t)segment, at = (uintptr_t)buffer;
    if (at < start || at - start > comm->segment_bytes || bytes > comm->segment_bytes - (at - start))
        return CONTROL_STAGED;
    return at - start;
}

static size_t network_scratch_bytes(const struct comm *comm)
{
    return max_size((size_t)comm->world * SCRATCH_LEAST, SCRATCH_BYTES);
}

void transport_host_prepare(struct comm *comm)
{
    const size_t world = (size_t)comm->world;
    comm->scratch = memory_alloc(network_scratch_bytes(comm));
    comm->parts = memory_zeroed(2 * world, sizeof *comm->parts);
    comm->bad = memory_zeroed(2 * world, sizeof *comm->bad);
}

/* ---- between nodes: all-gather ------------------------------------------- */

/* Whether a node has a rank of the group of `rank`. */
static bool node_needs(const struct data_op *op, int rank, int node)
{
    for (int i = 0; i < op->group.size; i++)
        if (op->comm->topology.node_of[group_rank(op->group, rank, i)] == node) return true;
    return false;
}

/* Whether this rank receives remotes[i]'s slice for its node. */
static bool carries_remote(const struct data_op *op, int i)
{
    const struct topology *t = &op->comm->topology;
    return t->proxy_of[i] == t->local_rank && node_needs(op, t->remotes[i], t->node);
}

/* Where a rank's slice is gathered; NULL: it is of another group. */
static char *gathered_slice(const struct data_op *op, int rank)
{
    if (!group_joins(op->group, op->comm->rank, rank)) return NULL;
    return (char *)op->recv + (size_t)group_index(op->group, rank) * op->stride * dtype_size(op->dtype);
}

/* The slice that a rank of the group owns, from element `at` on, in a send buffer of a reduction. */
static const char *sent_slice(const struct data_op *op, const char *send, int rank, size_t at)
{
    return send + ((size_t)group_index(op->group, rank) * op->stride + at) * dtype_size(op->dtype);
}

/* Gathers the slices of other nodes' ranks; after the first call the own slice is on its way to them: the sends come
 * first among the parts. The second leaves staging in use until the next comm_op_barrier(). */
static enum status network_gather_begin(const struct data_op *op, int *sends)
{
    struct comm *comm = op->comm;
    const struct topology *t = &comm->topology;
    *sends = 0;
    for (int i = 1; i < t->num_nodes; i++) { /* the next node first, so that not all ranks send to the same one */
        const int node = (t->node + i) % t->num_nodes;
        if (!node_needs(op, t->rank, node)) continue;
        comm->parts[(*sends)++] = (struct net_part){.peer = t->proxies[node],
                                                    .send = true,
                                                    .data = (char *)op->send,
                                                    .bytes = op->count * dtype_size(op->dtype)};
    }
    return net_transfer(comm->net, comm->parts, *sends);
}

static enum status network_gather(const struct data_op *op, int sends)
{
    struct comm *comm = op->comm;
    const struct topology *t = &comm->topology;
    const size_t bytes = op->count * dtype_size(op->dtype), half = CONTROL_STAGING_BYTES / 2;
    const bool direct = t->local_world == 1;
    size_t piece = direct ? bytes : half / (size_t)t->most_carried;
    if (!direct && piece > 64) piece = piece / 64 * 64;
    int turn = 0;
    for (size_t at = 0; at < bytes; at += piece, turn = !turn) {
        size_t n = min_size(bytes - at, piece);
        int parts = sends;
        for (int i = 0; i < t->num_remotes; i++) {
            if (!carries_remote(op, i)) continue;
            char *to = direct ? gathered_slice(op, t->remotes[i])
                              : control_staging(comm->control, t->local_rank) + (size_t)turn * half +
                                    (size_t)t->index_at_proxy[i] * piece;
            comm->parts[parts++] = (struct net_part){.peer = t->remotes[i], .data = to, .bytes = n, .need = n};
        }
        for (int i = 0; i < sends; i++) comm->parts[i].need = at + n;
        TRY(net_transfer(comm->net, comm->parts, parts));
        if (direct) break;
        TRY(comm_op_barrier(comm, op->kind));
        for (int i = 0; i < t->num_remotes; i++) {
            char *slice = gathered_slice(op, t->remotes[i]);
            const char *from = control_staging(comm->control, t->proxy_of[i]) + (size_t)turn * half +
                               (size_t)t->index_at_proxy[i] * piece;
            if (slice) memcpy(slice + at, from, n);
        }
        heartbeat_beat();
    }
    return STATUS_OK;
}

/* ---- between nodes: reduce-scatter --------------------------------------- */

/* Sends contributions to other nodes' slices, in step with what network_reduce() receives: elements [at, at + count) of
 * the own slice from each of their ranks, to which comm->in points afterwards. */
static enum status network_reduce_begin(const struct data_op *op, int *sends)
{
    struct comm *comm = op->comm;
    const struct topology *t = &comm->topology;
    int first = 0; /* the first remote after this rank */
    while (first < t->num_remotes && t->remotes[first] < t->rank) first++;
    *sends = 0;
    for (int i = 0; i < t->num_remotes; i++) {
        const int owner = t->remotes[(first + i) % t->num_remotes];
        if (!group_joins(op->group, t->rank, owner)) continue;
        comm->parts[(*sends)++] = (struct net_part){.peer = owner,
                                                    .send = true,
                                                    .data = (char *)(uintptr_t)sent_slice(op, op->send, owner, 0),
                                                    .bytes = op->count * dtype_size(op->dtype)};
    }
    return net_transfer(comm->net, comm->parts, *sends);
}

static enum status network_reduce(const struct data_op *op, int sends, size_t at, size_t count)
{
    struct comm *comm = op->comm;
    const struct topology *t = &comm->topology;
    const size_t bytes = count * dtype_size(op->dtype);
    int parts = sends;
    for (int i = 0; i < sends; i++) comm->parts[i].need = at * dtype_size(op->dtype) + bytes;
    for (int i = 0; i < t->num_remotes; i++) {
        char *to = (char *)comm->scratch + (size_t)i * bytes;
        if (!group_joins(op->group, t->rank, t->remotes[i])) continue;
        comm->parts[parts++] = (struct net_part){.peer = t->remotes[i], .data = to, .bytes = bytes, .need = bytes};
        comm->in[group_index(op->group, t->remotes[i])] = to;
    }
    return net_transfer(comm->net, comm->parts, parts);
}

/* ---- between nodes: reduce-scatter, within the node first ---------------- */

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
    for (int i = 0; i < parts; i++) comm->parts[i].bytes = comm->parts[i].need = sizeof *heard;
    TRY(net_transfer(comm->net, comm->parts, parts));
    for (int node = 0; node < t->num_nodes; node++)
        if (node != t->node) note_bad(op->bad_rank, heard[node]);
    return STATUS_OK;
}

/* A reduce-scatter that adds up each node's contributions first. Scratch holds a piece of each: the sums of the slices
 * that this rank serves, then the own slice's sums by node. */
static enum status network_reduce_within_node(const struct data_op *op, bool staged)
{
    struct comm *comm = op->comm;
    const struct topology *t = &comm->topology;
    const size_t size = dtype_size(op->dtype), world = (size_t)t->world;
    size_t piece = network_scratch_bytes(comm) / ((size_t)(t->most_carried + t->num_nodes) * sizeof(float));
    piece = min_size(piece / LINE_ELEMENTS * LINE_ELEMENTS, PIECE_BYTES / sizeof(float));
    if (staged) piece = min_size(piece, CONTROL_STAGING_BYTES / (size * world));
    float *nodes = comm->scratch + (size_t)t->proxied * piece;
    for (int i = 0; i < t->num_remotes; i++) comm->bad[i] = RANK_NONE;
    for (size_t at = 0; at < op->count; at += piece) {
        TRY(control_status(comm->control, NULL));
        size_t n = min_size(op->count - at, piece);
        if (staged) {
            char *staging = control_staging(comm->control, t->local_rank);
            for (size_t owner = 0; owner < world; owner++)
                memcpy(staging + owner * n * size, (const char *)op->send + (owner * op->stride + at) * size, n * size);
            TRY(comm_op_barrier(comm, op->kind));
        }
        int parts = 0;
        for (int i = 0; i < t->num_remotes; i++) {
            if (t->proxy_of[i] != t->local_rank) continue;
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
        for (int i = 0; i < parts; i++) comm->parts[i].bytes = comm->parts[i].need = n * sizeof(float);
        TRY(net_transfer(comm->net, comm->parts, parts));
        for (int node = 0; node < t->num_nodes; node++) comm->in[node] = nodes + (size_t)node * piece;
        sum_ranks(data_op_recv(op, at), op->recv_dtype, comm->in, t->num_nodes, n, DTYPE_F32, data_op_start(op));
        if (staged) TRY(comm_op_barrier(comm, op->kind));
        heartbeat_beat();
    }
    TRY(network_exchange_bad(op));
    return staged ? STATUS_OK : comm_op_barrier(comm, op->kind);
}

/* ---- all-gather ---------------------------------------------------------- */

static enum status host_transport_gather(const struct data_op *op)
{
    struct comm *comm = op->comm;
    const struct topology *t = &comm->topology;
    const size_t bytes = op->count * dtype_size(op->dtype);
    for (int i = 0; i < t->local_world; i++) {
        int l = (t->local_rank + i) % t->local_world;
        char *dst = gathered_slice(op, t->locals[l]);
        const char *src = l == t->local_rank ? op->send : comm_peer_send(comm, l);
        for (size_t at = 0; dst && dst != src && at < bytes; at += PIECE_BYTES) {
            TRY(control_status(comm->control, NULL));
            memcpy(dst + at, src + at, min_size(bytes - at, PIECE_BYTES));
            heartbeat_beat();
        }
    }
    return STATUS_OK;
}

static enum status host_transport_gather_staged(const struct data_op *op)
{
    struct comm *comm = op->comm;
    const struct topology *t = &comm->topology;
    const size_t bytes = op->count * dtype_size(op->dtype);
    for (size_t at = 0; at < bytes; at += CONTROL_STAGING_BYTES) {
        size_t n = min_size(bytes - at, CONTROL_STAGING_BYTES);
        memcpy(control_staging(comm->control, t->local_rank), (const char *)op->send + at, n);
        TRY(comm_op_barrier(comm, op->kind));
        for (int l = 0; l < t->local_world; l++) {
            char *slice = gathered_slice(op, t->locals[l]);
            if (slice && (l != t->local_rank || op->send != slice))
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
    int sends = 0;
    if (comm->net) TRY(network_gather_begin(op, &sends));
    staged &= comm->topology.local_world > 1; /* a rank without neighbours needs no staging */
    TRY(staged ? host_transport_gather_staged(op) : host_transport_gather(op));
    if (comm->net) TRY(network_gather(op, sends));
    return comm_op_barrier(comm, op->kind);
}

/* ---- reduce-scatter ------------------------------------------------------ */

/* In instrumented builds only. */
static void host_transport_disorder(struct comm *comm, int ranks)
{
    for (int r = 0; r < ranks / 2; r++) {
        const void *in = comm->in[r];
        comm->in[r] = comm->in[ranks - 1 - r];
        comm->in[ranks - 1 - r] = in;
    }
}

static enum status host_transport_reduce(const struct data_op *op, bool staged)
{
    struct comm *comm = op->comm;
    const struct topology *t = &comm->topology;
    const size_t size = dtype_size(op->dtype), neighbours = (size_t)t->local_world;
    int32_t bad = RANK_NONE;
    size_t piece = staged ? CONTROL_STAGING_BYTES / (size * neighbours) : PIECE_BYTES / sizeof(float);
    int sends = 0;
    if (comm->net) {
        size_t most = network_scratch_bytes(comm) / ((size_t)t->num_remotes * size);
        piece = min_size(piece, most / LINE_ELEMENTS * LINE_ELEMENTS);
        TRY(network_reduce_begin(op, &sends));
    }
    for (size_t at = 0; at < op->count; at += piece) {
        TRY(control_status(comm->control, NULL));
        size_t n = min_size(op->count - at, piece);
        if (staged) {
            char *staging = control_staging(comm->control, t->local_rank);
            for (size_t l = 0; l < neighbours; l++)
                if (group_joins(op->group, t->rank, t->locals[l]))
                    memcpy(staging + l * n * size, sent_slice(op, op->send, t->locals[l], at), n * size);
            TRY(comm_op_barrier(comm, op->kind));
        }
        if (comm->net) TRY(network_reduce(op, sends, at, n));
        for (int l = 0; l < t->local_world; l++)
            if (group_joins(op->group, t->rank, t->locals[l]))
                comm->in[group_index(op->group, t->locals[l])] =
                    staged ? control_staging(comm->control, l) + (size_t)t->local_rank * n * size
                           : sent_slice(op, comm_peer_send(comm, l), t->rank, at);
        if (faults_reverse_sums()) host_transport_disorder(comm, op->group.size);
        note_bad(&bad, sum_ranks(data_op_recv(op, at), op->recv_dtype, comm->in, op->group.size, n, op->dtype,
                                 data_op_start(op)));
        if (staged) TRY(comm_op_barrier(comm, op->kind));
        heartbeat_beat();
    }
    if (bad != RANK_NONE) note_bad(op->bad_rank, group_rank(op->group, t->rank, bad));
    return staged ? STATUS_OK : comm_op_barrier(comm, op->kind);
}

/* ---- running and submitting ---------------------------------------------- */

static bool adds_within_node(const struct data_op *op)
{
    const struct comm *comm = op->comm;
    return comm->net && comm->config.reduce_within_node && op->group.size == comm->world;
}

/* On the stream's thread. comm_status() has the failure. */
static enum status host_transport_barrier(const struct data_op *op)
{
    struct comm *comm = op->comm;
    TRY(control_status(comm->control, NULL));
    size_t last = op->kind == OP_REDUCE_SCATTER ? op->stride * (size_t)(op->group.size - 1) : 0;
    size_t sent = (last + op->count) * dtype_size(op->dtype);
    struct control_op own = {.kind = op->kind, .dtype = op->dtype, .count = op->count};
    own.offset = host_transport_offset(comm, op->send, sent);
    TRY(comm_start_operation(comm, CHANNEL_DATA, &own, comm->peers));
    faults_signal(comm->rank);
    if (comm->net) net_begin(comm->net, &own);
    bool staged = false;
    for (int l = 0; l < comm->topology.local_world; l++) staged |= comm->peers[l].offset == CONTROL_STAGED;
    if (op->kind == OP_ALL_GATHER) return host_transport_all_gather(op, staged);
    return adds_within_node(op) ? network_reduce_within_node(op, staged) : host_transport_reduce(op, staged);
}

/* Adds the bytes that this rank sends and receives over the network. */
static void host_transport_count(const struct data_op *op, struct comm_stats *stats)
{
    const struct topology *t = &op->comm->topology;
    const int64_t bytes = (int64_t)(op->count * dtype_size(op->dtype));
    const int64_t sums = (int64_t)(op->count * sizeof(float) + sizeof(int32_t)); /* and a node's lowest bad rank */
    int64_t nodes = 0, carried = 0, peers = 0;
    for (int node = 0; node < t->num_nodes; node++) nodes += node != t->node && node_needs(op, t->rank, node);
    for (int i = 0; i < t->num_remotes; i++) {
        carried += carries_remote(op, i);
        peers += group_joins(op->group, t->rank, t->remotes[i]);
    }
    const bool gathers = op->kind == OP_ALL_GATHER, within_node = adds_within_node(op);
    stats->theory_sent += gathers ? bytes * nodes : within_node ? sums * carried : bytes * peers;
    stats->theory_received += gathers ? bytes * carried : within_node ? sums * nodes : bytes * peers;
}

static void host_transport_run(void *argument)
{
    const struct data_op *op = argument;
    double start = seconds_now();
    struct comm *comm = op->comm;
    const bool runs = control_status(comm->control, NULL) == STATUS_OK;
    uint64_t entry = runs ? comm_flight_begin(op) : 0;
    if (host_transport_barrier(op) == STATUS_OK) flight_end(entry);
    LOCKED(&comm->mutex);
    comm->stats.seconds += seconds_now() - start;
    if (comm->net) { /* traffic and theory grow together, when the operation is over: neither is ahead of the other */
        host_transport_count(op, &comm->stats);
        net_counts(comm->net, &comm->moved_sent, &comm->moved_received);
    }
}

static void host_transport_run_alone(void *argument)
{
    const struct data_op *op = argument;
    if (op->kind == OP_ALL_GATHER) {
        if (op->recv != op->send) memcpy(op->recv, op->send, op->count * dtype_size(op->dtype));
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
