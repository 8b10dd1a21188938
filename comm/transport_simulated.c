/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/transport_simulated.h"

#include "comm/comm_internal.h"
#include "gpu/simulate/simulated_device.h"

/* What NCCL's rings reach of a link with large messages (nccl-tests on eight H100: about 360 of 450 GB/s), and the time
 * to start one, which grows with the ring. */
static const double link_share = 0.8, start_seconds = 15e-6, rank_seconds = 1e-6;

struct transport_simulated {
    struct comm comm; /* first */
    struct comm_link link;
};

/* Seconds of a transfer of a slice from or to each other rank of the group. The slices of other nodes come in through
 * all cards of a node; what goes from rank to rank, as nothing adds it up on the way, through the card of its owner. */
static double simulated_transfer(const struct comm *comm, const struct comm_link *link, const struct data_op *op,
                                 bool ordered)
{
    const struct comm_group group = op->group;
    const bool alone = ordered || group.size < comm->world;
    const int beside = group.stride < link->per_node ? (int)min64(link->per_node / group.stride, group.size) : 1;
    const int per_node = group.size < comm->world ? beside : link->per_node, cards = alone ? 1 : link->per_node;
    const bool nodes = group.size > per_node;
    const double slice = (double)op->count * (double)dtype_size(op->dtype);
    const double neighbours = nodes && (alone || per_node == 1) ? per_node - 1 : group.size - 1;
    const double inside = neighbours * slice / (link->inside * link_share);
    const double network = (group.size - per_node) * slice / cards / (link->network * link_share);
    return nodes ? fmax(inside, network) : inside;
}

static void simulated_submit(const struct data_op *ops, int count, struct stream *stream)
{
    const struct comm *comm = ops->comm;
    const struct comm_link *link = &((const struct transport_simulated *)comm)->link;
    double seconds = 0;
    if (!isfinite(link->inside)) return;
    for (const struct data_op *op = ops; op < ops + count; op++) {
        const double start = start_seconds + rank_seconds * (op->group.size - 1);
        const double transfer = simulated_transfer(comm, link, op, false);
        /* a piece of gradients in order: the owner of a slice receives all contributions and adds them by a kernel */
        const struct sum_ranks_args sum = {.dtype = op->dtype,
                                           .out_dtype = op->recv_dtype,
                                           .n = (int64_t)op->count,
                                           .ranks = op->group.size,
                                           .accumulate = op->accumulate};
        if (op->ordered)
            simulated_device_reduce_ordered(stream, start + simulated_transfer(comm, link, op, true), &sum,
                                            start + transfer);
        else
            seconds = fmax(seconds, start) + transfer;
    }
    if (seconds > 0) simulated_device_communicate(stream, seconds);
}

void transport_simulated_set_link(struct comm *comm, const struct comm_link *link)
{
    ((struct transport_simulated *)comm)->link = *link;
}

struct comm *transport_simulated_open(int world, const struct comm_link *link)
{
    struct transport_simulated *c = memory_zeroed(1, sizeof *c);
    c->comm.world = world;
    c->comm.own_fd = -1;
    c->comm.submit = simulated_submit;
    c->link = *link;
    pthread_mutex_init(&c->comm.mutex, NULL);
    return &c->comm;
}
