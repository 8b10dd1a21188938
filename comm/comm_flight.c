#include "comm/comm_flight.h"

#include "comm/comm_internal.h"

int comm_flight_peers(const struct comm *comm)
{
    return control_local_world(comm->control);
}

struct flight_peer comm_flight_peer(const struct comm *comm, int local_rank)
{
    const int rank = control_local(comm->control, local_rank);
    const struct control_rank *entry = &control_block(comm->control)->ranks[rank];
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

int comm_flight_speaker(const struct comm *comm)
{
    const struct control_block *block = control_block(comm->control);
    return atomic_load(&block->failed) == 2 ? block->speaker : -2;
}

uint64_t comm_flight_begin(const struct data_op *op)
{
    const int64_t bytes = (int64_t)(op->count * dtype_size(op->dtype)) * op->comm->world;
    return flight_begin(op->kind == OP_ALL_GATHER ? FLIGHT_ALL_GATHER : FLIGHT_REDUCE_SCATTER, op->unit, bytes,
                        op->number);
}
