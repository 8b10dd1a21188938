/* comm_flight.h: the flight recorders (core/flight/flight.h) of the ranks of a node.
 *
 * Each rank records in memory that all ranks of its node share, so that a neighbour can write the record of a rank that
 * was killed or stands still. */
#pragma once

#include "comm/comm.h"
#include "core/flight/flight.h"

/* A rank of this node. */
struct flight_peer {
    int rank, pid;
    const char *host; /* mapped until this process ends, as is the ring */
    const struct flight_ring *ring;
    bool left; /* the job, in order */
};

/* Ranks on this node, and the one with that local rank. */
int comm_flight_peers(const struct comm *comm);
struct flight_peer comm_flight_peer(const struct comm *comm, int local_rank);

/* The ring of this rank, mapped until the process ends. */
struct flight_ring *comm_flight_ring(const struct comm *comm);

/* Of a job that has failed: the rank whose own error it is; -1: the text is about another rank. -2: it has not failed.
 */
int comm_flight_speaker(const struct comm *comm);
