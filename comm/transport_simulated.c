/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/transport_simulated.h"

#include "comm/comm_internal.h"
#include "core/memory.h"
#include "gpu/simulate/simulated_device.h"

#include <math.h>

/* What NCCL's rings reach of a link with large messages (nccl-tests on eight H100: about 360 of 450 GB/s), and the time
 * to start one, which grows with the ring. */
static const double link_share = 0.8, start_seconds = 15e-6, rank_seconds = 1e-6;

struct transport_simulated {
    struct comm comm; /* first */
    struct comm_link link;
};

static void simulated_submit(const struct data_op *ops, int count, struct stream *stream)
{
    const struct comm *comm = ops->comm;
    const struct comm_link *link = &((const struct transport_simulated *)comm)->link;
    const double others = comm->world - 1;
    double seconds = start_seconds + rank_seconds * others;
    if (!isfinite(link->inside))
        return;
    for (int i = 0; i < count; i++) {
        const double slice = (double)ops[i].count * (double)dtype_size(ops[i].dtype);
        double inside = others * slice / (link->inside * link_share), network = 0;
        if (comm->world > link->per_node) { /* the other nodes' slices come in through all cards of a node */
            double through_card = (double)(comm->world - link->per_node) * slice / link->per_node;
            network = through_card / (link->network * link_share);
            inside = link->per_node == 1 ? 0 : inside;
        }
        seconds += fmax(inside, network);
    }
    simulated_device_communicate(stream, seconds);
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
