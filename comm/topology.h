/* topology.h: which rank carries what between nodes.
 *
 * Rank number l of a node takes, for its node, the slices of all ranks elsewhere whose local rank is l modulo the
 * node's size: so a slice crosses to each node once, and the ranks of a node share the work. It is their carrier. */
#ifndef ZTRAIN_COMM_TOPOLOGY_H
#define ZTRAIN_COMM_TOPOLOGY_H

#include "comm/launch/bootstrap.h"

#include <stdint.h>

struct topology {
    int rank, world;
    int node, num_nodes;
    int local_rank, local_world;
    int *locals;  /* (local_world) this node's ranks, ascending */
    int *remotes; /* (num_remotes) all others, ascending */
    int num_remotes;
    int *carriers; /* (num_nodes) the rank of each node that carries for this rank; this rank for its own node */
    int *carried;  /* (num_remotes) local rank that carries for remotes[i] here */
    int *berths;   /* (num_remotes) the how many-th it is of those that its carrier carries, from 0 */
    int carries;   /* how many remotes this rank carries for */
    int most;      /* the most that a rank of this node carries for */
};

/* places: (world); every node from 0 to its largest number has a rank. NULL: all ranks are on one node. */
enum status topology_init(struct topology *topology, int rank, int world, const struct rank_place *places,
                          struct error *err);
void topology_release(struct topology *topology);

/* Bytes that this rank sends and receives over the network in an all-gather of `bytes` from each rank; in a
 * reduce-scatter of `count` elements of `size` bytes for each rank, each rank's contribution by itself or the fp32 sums
 * of nodes. */
struct traffic {
    int64_t sent, received;
};
struct traffic topology_all_gather(const struct topology *topology, size_t bytes);
struct traffic topology_reduce_scatter(const struct topology *topology, size_t count, size_t size, bool within_node);

#endif
