/* comm_internal.h: what the files of the communicator share. comm.c opens, closes and has the control channel;
 * comm_open.c brings several nodes together; comm_collectives.c has the data operations, comm_network.c what of them
 * goes over the network. */
#ifndef ZTRAIN_COMM_COMM_INTERNAL_H
#define ZTRAIN_COMM_COMM_INTERNAL_H

#include "comm/agent.h"
#include "comm/comm.h"
#include "comm/control.h"
#include "comm/net.h"
#include "comm/operation.h"
#include "comm/topology.h"

#include <pthread.h>

enum { PIECE_BYTES = 1 << 20 /* of memory between two looks at the job's health */ };

struct comm {
    int rank, world;
    struct topology topology;
    struct control *control;
    struct net *net;         /* NULL: one node */
    struct agent *agent;     /* NULL: one node, or not its first rank */
    struct comm_device *gpu; /* NULL: data operations work on the host's memory */
    bool reduce_within_node;
    int own_fd;           /* of the node's memory, if no supervisor made it; else -1 */
    char *segments;       /* local_world × segment_stride, or NULL */
    size_t segment_bytes; /* of each, as asked for */
    size_t segment_stride;
    void (*stuck)(void *context, const char *text); /* comm_config's */
    void *stuck_context;
    uint32_t arrivals[CHANNEL_COUNT];   /* own; each used by its channel's thread */
    uint64_t operations[CHANNEL_COUNT]; /* agreed on so far */

    /* of the data channel's thread */
    struct control_op *peers; /* (local_world): the node's ranks' data operation */
    const void **in;          /* (world): what it adds up */
    struct net_part *parts;   /* (2 × world) */
    float *scratch;           /* SCRATCH_BYTES, where there are several nodes: what came over the network to be added */
    int32_t *bad;             /* (2 × world): lowest bad ranks on their way */

    /* of the control channel's thread */
    char **slots;    /* (world) */
    uint64_t *sizes; /* (world) */

    pthread_mutex_t mutex; /* stats */
    struct comm_stats stats;
    int64_t moved_sent, moved_received;     /* net_counts() when the last operation was over */
    int64_t network_sent, network_received; /* the same at the last reset */
};

struct data_op {
    struct comm *comm;
    enum op_kind kind;
    enum dtype dtype;
    const void *send;
    void *recv;
    size_t count;  /* elements of one rank's slice */
    size_t stride; /* elements between two slices */
    bool accumulate;
    int32_t *bad_rank;
};
_Static_assert(sizeof(struct data_op) <= STREAM_ARGUMENT_MAX, "a data operation is a stream argument");

/* Puts an operation on the host's memory into the stream's order. */
void comm_host_submit(const struct data_op *op, struct stream *stream);

/* Publishes our operation on the channel, meets those who share it (data: this node's ranks; control: all) and
 * compares. The operations of this node's ranks are left in peers[local_world] (NULL: not). */
enum status comm_agree(struct comm *comm, enum control_channel channel, const struct control_op *own,
                       struct control_op *peers);
/* Arrives on the data channel and waits for this node's ranks. */
enum status comm_meet(struct comm *comm, enum op_kind kind);

/* memcpy in pieces with a look at the job's health between them */
enum status comm_copy(struct comm *comm, void *dst, const void *src, size_t bytes);

/* Where local rank l's send buffer is, if it lies in its segment. */
static inline const char *comm_peer_send(const struct comm *comm, int l)
{
    return comm->segments + comm->segment_stride * (size_t)l + comm->peers[l].offset;
}

/* *lowest (NULL: nobody asks) becomes rank if that is lower. */
static inline void note_bad(int32_t *lowest, int32_t rank)
{
    if (lowest && rank < *lowest)
        *lowest = rank;
}

/* Attaches to the node's memory (fd), and starts the watch over this rank's slow calls. */
enum status comm_attach_control(struct comm *comm, int fd, const char *host, const struct comm_config *config,
                                struct error *err);

/* Makes the memory of the node and the connections with other nodes, for ranks that a launcher started: control, net,
 * agent. Collective. */
enum status comm_meet_nodes(struct comm *comm, struct bootstrap *boot, const struct comm_config *config,
                            struct error *err);

/* ---- comm_network.c: where comm->net is ---------------------------------- */

/* Allocates scratch and parts. */
enum status network_prepare(struct comm *comm, struct error *err);

/* Gathers the slices of other nodes' ranks; the own slice is on its way to them when the first call returns. The second
 * leaves buffers in use that comm_meet() frees. */
enum status network_gather_begin(const struct data_op *op);
enum status network_gather(const struct data_op *op);

/* Elements of a slice that can be reduced at a time. */
size_t network_reduce_piece(const struct comm *comm, size_t size);
/* Sends away the contributions to other nodes' slices, in step with what is received: elements [at, at + count) of the
 * own slice from each rank of other nodes, to which comm->in points then. */
enum status network_reduce_begin(const struct data_op *op);
enum status network_reduce(const struct data_op *op, size_t at, size_t count);

/* A reduce-scatter that adds up each node's contributions first. */
enum status network_reduce_within_node(const struct data_op *op, bool staged);

#endif
