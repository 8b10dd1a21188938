/* SPDX-License-Identifier: Apache-2.0 */
/* comm_internal.h: what the files of the communicator share. Below them: comm/control. */
#pragma once

#include "comm/comm.h"
#include "comm/control/agent.h"
#include "comm/control/control.h"
#include "comm/control/net.h"
#include "core/core.h"

enum { PIECE_BYTES = 1 << 20 /* of memory between two looks at the job's health */ };

/* Which rank carries which slice between nodes, as the proxy of its node: local rank l of a node receives, for its
 * node, the slices of all ranks on other nodes whose local rank is l modulo the node's size. So a slice crosses to each
 * node once, and a node's ranks share the work. */
struct topology {
    int rank, world;
    int node, num_nodes;
    int *node_of; /* (world) */
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

struct comm {
    int rank, world;
    /* the transport of data operations: puts one or a group into the stream's order */
    void (*submit)(const struct data_op *ops, int count, struct stream *stream);
    struct topology topology;
    struct control *control;
    struct net *net;           /* NULL: one node */
    struct agent *agent;       /* NULL: one node, or not its first rank */
    struct transport_gpu *gpu; /* NULL: data operations work on the host's memory */
    struct comm_log *log;      /* owned; NULL: operations are not recorded (comm_log.h) */
    struct comm_config config;
    int own_fd;           /* the node's memory, unless a supervisor made it; else -1 */
    char *segments;       /* local_world × segment_stride, or NULL */
    size_t segment_bytes; /* of each, as the caller of comm_share() asked for */
    size_t segment_stride;
    uint32_t arrivals[CHANNEL_COUNT];   /* this rank's; each used by its channel's thread */
    uint64_t operations[CHANNEL_COUNT]; /* started so far */
    int64_t submitted;                  /* data operations */

    /* the data channel's thread only */
    struct control_op *peers; /* (local_world): the data operations of this node's ranks */
    const void **in;          /* (world): the summands of a reduction */
    struct net_part *parts;   /* (2 × world) */
    float *scratch;           /* SCRATCH_BYTES, with several nodes: summands that came over the network */
    int32_t *bad;             /* (2 × world): lowest bad ranks, to be sent and received */

    /* the control channel's thread only */
    char **slots; /* (world) */

    pthread_mutex_t mutex; /* guards the statistics */
    struct comm_stats stats;
    int64_t moved_sent, moved_received;     /* net_counts() at the end of the last operation */
    int64_t network_sent, network_received; /* the same at the last comm_stats_take() */
};

_Static_assert(sizeof(struct data_op) <= STREAM_ARGUMENT_MAX, "a data operation is a stream argument");

static inline char *data_op_recv(const struct data_op *op, size_t at)
{
    return (char *)op->recv + at * dtype_size(op->recv_dtype);
}

static inline enum sum_start data_op_start(const struct data_op *op)
{
    return !op->accumulate ? SUM_ALONE : op->ordered ? SUM_FROM_OUT : SUM_THEN_OUT;
}

/* A rank's place in its group. */
static inline int group_index(struct comm_group group, int rank)
{
    return rank % (group.size * group.stride) / group.stride;
}

/* The i-th rank of the group of `rank`. */
static inline int group_rank(struct comm_group group, int rank, int i)
{
    return rank + (i - group_index(group, rank)) * group.stride;
}

/* Whether two ranks are in one group. */
static inline bool group_joins(struct comm_group group, int a, int b)
{
    return group_rank(group, a, 0) == group_rank(group, b, 0);
}

/* Where local rank l's send buffer is, if it lies in its segment. */
static inline const char *comm_peer_send(const struct comm *comm, int l)
{
    return comm->segments + comm->segment_stride * (size_t)l + comm->peers[l].offset;
}

/* *lowest (NULL: not wanted) becomes `rank` if that is lower. */
static inline void note_bad(int32_t *lowest, int32_t rank)
{
    if (lowest && rank < *lowest) *lowest = rank;
}

/* ---- host_collectives.c -------------------------------------------------- */

/* Publishes this rank's operation, waits for all ranks of the channel (data: this node's) and compares. peers: their
 * operations (NULL: not wanted). */
enum status comm_start_operation(struct comm *comm, enum host_collectives channel, const struct control_op *own,
                                 struct control_op *peers);
/* Arrives on the data channel and waits for this node's ranks. */
enum status comm_op_barrier(struct comm *comm, enum op_kind kind);
/* flight_begin() for a data operation. */
uint64_t comm_flight_begin(const struct data_op *op);

/* ---- comm_nodes.c -------------------------------------------------------- */

/* places: (world); every node has a rank. */
void topology_init(struct topology *topology, int rank, int world, const struct rank_place *places);
void topology_release(struct topology *topology);

/* Attaches to the node's memory (fd) and watches this rank's slow calls. */
enum status comm_attach_node(struct comm *comm, int fd, const char *host, struct error *err);

/* For ranks of a launcher: makes the node's memory and the connections; sets control, net and agent. Collective. */
enum status comm_join_nodes(struct comm *comm, struct bootstrap *boot, struct error *err);

/* ---- transport_host.c ---------------------------------------------------- */

void transport_host_submit(const struct data_op *ops, int count, struct stream *stream);
/* Allocates scratch, parts and bad, with several nodes (comm->net). */
void transport_host_prepare(struct comm *comm);
