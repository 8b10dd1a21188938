#include "comm/comm_simulated.h"

#include "comm/comm_internal.h"
#include "gpu/simulate/simulated_device.h"

#include <math.h>
#include <stdlib.h>

/* What NCCL's rings reach of a link with large messages (nccl-tests on eight H100: about 360 of 450 GB/s), and the time
 * to start one, which grows with the ring. */
static const double link_share = 0.8, start_seconds = 15e-6, rank_seconds = 1e-6;

struct comm_plan {
    struct comm_link link;
};

void comm_plan_submit(const struct data_op *op, struct stream *stream)
{
    const struct comm *comm = op->comm;
    const struct comm_link *link = &comm->plan->link;
    const double slice = (double)op->count * (double)dtype_size(op->dtype), others = comm->world - 1;
    if (!isfinite(link->inside))
        return;
    double seconds = others * slice / (link->inside * link_share);
    if (comm->world > link->per_node) { /* the other nodes' slices come in through all cards of a node */
        double through_card = (double)(comm->world - link->per_node) * slice / link->per_node;
        double network = through_card / (link->network * link_share);
        seconds = link->per_node == 1 ? network : fmax(seconds, network);
    }
    device_plan_communicate(stream, start_seconds + rank_seconds * others + seconds);
}

void comm_plan_set_link(struct comm *comm, const struct comm_link *link)
{
    comm->plan->link = *link;
}

enum status comm_plan_new(int world, const struct comm_link *link, struct comm **comm, struct error *err)
{
    *comm = NULL;
    struct comm *c = calloc(1, sizeof *c);
    struct comm_plan *plan = calloc(1, sizeof *plan);
    if (!c || !plan) {
        free(c);
        free(plan);
        return error_set(err, STATUS_DEVICE, "out of memory");
    }
    plan->link = *link;
    c->world = world;
    c->own_fd = -1;
    c->plan = plan;
    *comm = c;
    return STATUS_OK;
}

void comm_plan_free(struct comm *comm)
{
    if (!comm)
        return;
    free(comm->plan);
    free(comm);
}
