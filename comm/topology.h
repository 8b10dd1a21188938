/* SPDX-License-Identifier: Apache-2.0 */
/* topology.h: which rank carries which slice between nodes, as the proxy of its node.
 *
 * Local rank l of a node receives, for its node, the slices of all ranks on other nodes whose local rank is l modulo
 * the node's size. It is their proxy. So a slice crosses to each node once, and a node's ranks share the work. */
#pragma once

#include "comm/launch/bootstrap.h"

struct topology {
    int rank, world;
    int node, num_nodes;
    int local_rank, local_world;
    int *locals;  /* (local_world) this node's ranks, ascending */
    int *remotes; /* (num_remotes) the ranks of other nodes, ascending */
    int num_remotes;
    int *proxies;        /* (num_nodes) this rank's proxy on each node; this rank itself on its own node */
    int *proxy_of;       /* (num_remotes) local rank of the proxy of remotes[i] on this node */
    int *index_at_proxy; /* (num_remotes) index of remotes[i] among the remotes that its proxy serves, from 0 */
    int proxied;         /* number of remotes that this rank serves as their proxy */
    int most_carried;    /* the largest number of remotes that one rank of this node serves */
};

/* places: (world); every node has a rank. */
void topology_init(struct topology *topology, int rank, int world, const struct rank_place *places);
void topology_release(struct topology *topology);
