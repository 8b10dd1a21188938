/* comm_simulated.h: ranks that exist on paper, for plans of speed: data operations take time on a planned device
 * (gpu/simulate/simulated_device.h) and do nothing; control operations are not made. */
#pragma once

#include "comm/comm.h"

/* What connects the ranks: bytes/s that one sends and receives at the same time. Nodes have the same number of ranks,
 * and every rank has a network card. */
struct comm_link {
    double inside;  /* a node; INFINITY: operations take no time */
    double network; /* between nodes */
    int per_node;   /* ranks of a node */
};

/* Rank 0 of `world`; comm_plan_free() frees it. */
enum status comm_plan_new(int world, const struct comm_link *link, struct comm **comm, struct error *err);
void comm_plan_free(struct comm *comm);

void comm_plan_set_link(struct comm *comm, const struct comm_link *link);

/* Puts the operation into the stream's order: a part of comm_all_gather() and comm_reduce_scatter(). */
struct data_op;
void comm_plan_submit(const struct data_op *op, struct stream *stream);
