/* SPDX-License-Identifier: Apache-2.0 */
/* transport_simulated.h: the communicator of a simulation: data operations only take time on a simulated device
 * (gpu/simulate/simulated_device.h); control operations must not be called. */
#pragma once

#include "comm/comm.h"

/* bytes/s that a rank sends and receives at the same time. Every rank has a network card. */
struct comm_link {
    double inside;  /* a node; INFINITY: operations take no time */
    double network; /* between nodes */
    int per_node;   /* ranks of a node */
};

/* Rank 0 of `world`; comm_close() frees it. */
struct comm *transport_simulated_open(int world, const struct comm_link *link);

void transport_simulated_set_link(struct comm *comm, const struct comm_link *link);
