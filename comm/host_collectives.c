/* SPDX-License-Identifier: Apache-2.0 */
/* host_collectives.c: the bottom of the communicator: the job's sticky status, the point where ranks meet, and the
 * control channel: small values in host memory. The k-th operation uses slot k mod 2 of each rank: a rank writes slot
 * k+2 only after all ranks have arrived at k+1, where they arrive after they have read slot k. Agents (agent.h) fill
 * the slots of ranks on other nodes. */
#include "comm/comm_internal.h"
#include "core/flight/flight.h"

_Static_assert((int)COMM_EXCHANGE_MAX == (int)CONTROL_SLOT_BYTES, "an exchange fits a slot");

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
        if (!operation_matches(comm->control, own, r, &other)) return STATUS_BUG;
        if (peers) peers[i] = other;
    }
    return STATUS_OK;
}

uint64_t comm_flight_begin(const struct data_op *op)
{
    const int64_t bytes = (int64_t)(op->count * dtype_size(op->dtype)) * op->group.size;
    return flight_begin(op->kind == OP_ALL_GATHER ? FLIGHT_ALL_GATHER : FLIGHT_REDUCE_SCATTER, op->unit, bytes,
                        op->number);
}

/* Every rank puts `bytes` of `own` (NULL: nothing) into its slot; on return comm->slots are those of this turn. */
static enum status host_exchange(struct comm *comm, enum op_kind kind, const void *own, size_t bytes, struct error *err)
{
    ASSERT(bytes <= COMM_EXCHANGE_MAX);
    TRY(control_status(comm->control, err));
    int turn = (int)(comm->operations[CHANNEL_CONTROL] % 2);
    for (int r = 0; r < comm->world; r++) comm->slots[r] = control_slot(comm->control, r, turn);
    if (own) memcpy(comm->slots[comm->rank], own, bytes);
    struct control_op op = {.kind = kind, .count = bytes, .offset = CONTROL_STAGED, .slot_bytes = own ? bytes : 0};
    const enum flight_kind recorded = kind == OP_BARRIER     ? FLIGHT_BARRIER
                                      : kind == OP_BROADCAST ? FLIGHT_BROADCAST
                                                             : FLIGHT_EXCHANGE;
    const uint64_t entry = flight_begin(recorded, -1, (int64_t)(bytes * (size_t)comm->world),
                                        (int64_t)comm->operations[CHANNEL_CONTROL] + 1);
    enum status status = comm_start_operation(comm, CHANNEL_CONTROL, &op, NULL);
    if (status == STATUS_OK) flight_end(entry); /* one that has failed stays open: the rank has waited in it */
    heartbeat_beat();
    return status == STATUS_OK ? STATUS_OK : control_status(comm->control, err);
}

enum status comm_barrier(struct comm *comm, struct error *err)
{
    if (comm->world == 1) return control_status(comm->control, err);
    return host_exchange(comm, OP_BARRIER, NULL, 0, err);
}

enum status comm_exchange(struct comm *comm, const void *own, size_t bytes, void *all, struct error *err)
{
    if (comm->world == 1) {
        memcpy(all, own, bytes);
        return control_status(comm->control, err);
    }
    TRY(host_exchange(comm, OP_EXCHANGE, own, bytes, err));
    for (int r = 0; r < comm->world; r++) memcpy((char *)all + (size_t)r * bytes, comm->slots[r], bytes);
    return STATUS_OK;
}

enum status comm_sum(struct comm *comm, double *values, int count, struct error *err)
{
    ASSERT(count >= 0);
    if (comm->world == 1) return control_status(comm->control, err);
    TRY(host_exchange(comm, OP_EXCHANGE, values, (size_t)count * sizeof *values, err));
    for (int i = 0; i < count; i++) {
        double sum = 0;
        for (int r = 0; r < comm->world; r++) sum += ((const double *)comm->slots[r])[i];
        values[i] = sum;
    }
    return STATUS_OK;
}

enum status comm_broadcast(struct comm *comm, void *data, size_t bytes, int root, struct error *err)
{
    ASSERT(root >= 0 && root < comm->world);
    if (comm->world == 1) return control_status(comm->control, err);
    for (size_t at = 0; at < bytes; at += COMM_EXCHANGE_MAX) {
        size_t n = bytes - at < COMM_EXCHANGE_MAX ? bytes - at : COMM_EXCHANGE_MAX;
        TRY(host_exchange(comm, OP_BROADCAST, comm->rank == root ? (char *)data + at : NULL, n, err));
        if (comm->rank != root) memcpy((char *)data + at, comm->slots[root], n);
    }
    return STATUS_OK;
}
