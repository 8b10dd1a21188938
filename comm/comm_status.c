/* SPDX-License-Identifier: Apache-2.0 */
/* comm_status.c: the bottom of the communicator: its rank, the job's sticky status, and the point where ranks meet. */
#include "comm/comm_internal.h"
#include "core/flight/flight.h"

int comm_rank(const struct comm *comm)
{
    return comm->rank;
}

int comm_world(const struct comm *comm)
{
    return comm->world;
}

enum status comm_status(struct comm *comm, struct error *err)
{
    return comm->control ? control_status(comm->control, err) : STATUS_OK; /* without a control plane nothing fails */
}

void comm_abort(struct comm *comm, const struct error *err)
{
    struct error own = *err;
    error_blame(&own, comm->rank, FAILURE_ERROR);
    control_fail(comm->control, &own);
}

/* Arrives on a channel and waits until all ranks that share it have arrived as often. */
static enum status arrive_and_wait(struct comm *comm, enum host_collectives channel, enum op_kind kind)
{
    uint32_t count = comm->arrivals[channel] = control_arrive(comm->control, channel);
    return control_wait(comm->control, channel, count, operation_name(kind));
}

enum status comm_op_barrier(struct comm *comm, enum op_kind kind)
{
    return arrive_and_wait(comm, CHANNEL_DATA, kind);
}

enum status comm_start_operation(struct comm *comm, enum host_collectives channel, const struct control_op *own,
                                 struct control_op *peers)
{
    struct control_block *block = comm->control->block;
    const struct topology *t = &comm->topology;
    int turn = (int)(comm->operations[channel]++ % 2), count = channel == CHANNEL_DATA ? t->local_world : t->world;
    block->ranks[comm->rank].op[channel][turn] = *own;
    TRY(arrive_and_wait(comm, channel, own->kind));
    for (int i = 0; i < count; i++) {
        int r = channel == CHANNEL_DATA ? t->locals[i] : i;
        struct control_op other = block->ranks[r].op[channel][turn];
        if (!operation_matches(comm->control, own, r, &other))
            return STATUS_BUG;
        if (peers)
            peers[i] = other;
    }
    return STATUS_OK;
}

uint64_t comm_flight_begin(const struct data_op *op)
{
    const int64_t bytes = (int64_t)(op->count * dtype_size(op->dtype)) * op->comm->world;
    return flight_begin(op->kind == OP_ALL_GATHER ? FLIGHT_ALL_GATHER : FLIGHT_REDUCE_SCATTER, op->unit, bytes,
                        op->number);
}
