/* SPDX-License-Identifier: Apache-2.0 */
/* comm.h: collectives over the ranks of a job: on one machine (shared memory), on several (TCP) and for GPUs (NCCL).
 *
 * Two channels, each with its own order of operations, the same on every rank:
 *
 *     data      all-gathers and reduce-scatters: asynchronous, in the order of the communication stream, counted
 *     control   comm_barrier, comm_exchange, comm_sum, comm_broadcast: small host values; block the main thread
 *
 * Reductions add the contributions of ranks 0, 1, … N-1 in this order, in fp32, so results depend neither on timing nor
 * on how ranks are spread over nodes (exceptions: comm_config.reduce_within_node, and NCCL, which has its own order
 * unless data_op.ordered).
 *
 * Failure: a peer that dies, is silent for the timeout (core/heartbeat.h) or calls comm_abort() makes every operation
 * return, in all ranks; comm_status() names the rank, its host and the reason. Check it before trusting results.
 *
 * Memory: collectives whose buffers lie in the ranks' shared segments (comm_share) read the peers' memory directly;
 * others are staged through a buffer of the node. World 1: everything is local and nothing is counted. */
#pragma once

#include "comm/launch/bootstrap.h"
#include "comm/sums.h"
#include "core/dtype.h"
#include "gpu/device.h"

struct comm;

struct comm_config {
    double timeout_seconds;
    double io_timeout_seconds; /* of one slow call (core/heartbeat.h); 0: 600 */
    /* Called by another thread when the main thread is stuck and the job has failed: for that slow call, which `text`
     * names, or before, and the GPU does not come back. May end the process. NULL: not called. */
    void (*stuck)(void *context, const char *text);
    void *stuck_context;
    /* between nodes: a name, address or network; NULL or "": the one that fits */
    const char *interface;
    /* reductions add up each node's contributions first: less traffic, other bits than on one node */
    bool reduce_within_node;
    /* ordered reduce-scatters will come: comm_attach_device() checks one, for which NCCL connects every two ranks */
    bool ordered;
};

/* Connects the ranks, with bootstrap_connect(). Collective. The caller frees *comm with comm_close(). */
enum status comm_open(struct bootstrap *bootstrap, const struct comm_config *config, struct comm **comm,
                      struct error *err);
/* Collective: waits for the other ranks unless the job has failed. NULL is allowed. */
void comm_close(struct comm *comm);

/* Data operations work on the memory of this device from now on, if it is a GPU. may_share (the same on all ranks):
 * several ranks may use one GPU. *way: the path of the data, for the log; NULL on the CPU. nccl_ctas: NCCL's maxCTAs,
 * the most multiprocessors that a collective holds; 0: its own. Collective: all ranks fail if one does. Call
 * comm_detach_device() before the device is closed. */
enum status comm_attach_device(struct comm *comm, struct device *device, bool may_share, int nccl_ctas,
                               const char **way, struct error *err);
void comm_detach_device(struct comm *comm);

/* Whether data operations may be captured in a graph. */
bool comm_can_capture(const struct comm *comm);

/* Whether slices may be sent in pieces (stride > count), after comm_attach_device(). Not over NCCL, which needs no
 * memory of its own for whole slices. Ordered reduce-scatters may always. */
bool comm_takes_pieces(const struct comm *comm);

/* Launches a graph that contains data operations, unless the job has failed. */
void comm_launch(struct comm *comm, struct graph *graph);

int comm_rank(const struct comm *comm);
int comm_world(const struct comm *comm);

/* Gives this rank a shared segment of `bytes` (the same on every rank), zeroed and touched; with a GPU, device memory,
 * until comm_detach_device(). Collective; once. */
enum status comm_share(struct comm *comm, size_t bytes, void **memory, struct error *err);

/* What the values are, for those who count them (comm_log.h, --trace). */
enum comm_purpose {
    COMM_OTHER,
    COMM_PARAMETERS,
    COMM_GRADIENTS,
    COMM_UPDATES, /* Muon's */
    COMM_TOKENS,  /* to experts and back */
    COMM_REPORTS, /* the ranks' sums of squares and losses */
    COMM_PURPOSE_COUNT
};
const char *comm_purpose_name(enum comm_purpose purpose);

/* A part of the ranks: `size` of them, `stride` apart. All ranks call an operation at once, each in its own group:
 *
 *     size 2, stride 1 of 4 ranks: {0, 1}, {2, 3}        size 2, stride 2: {0, 2}, {1, 3}
 *
 * Slices are those of the group's ranks in rising order. size 0: all ranks. */
struct comm_group {
    int size, stride;
};

/* Slices start `stride` elements apart, so that a long one can be sent in pieces. */
struct data_op {
    const void *send;
    void *recv;
    size_t count;  /* elements of one rank's slice */
    size_t stride; /* elements between two slices, stride >= count; 0: count */
    enum dtype dtype;
    enum comm_purpose purpose;
    int unit; /* of the model; -1: none */
    struct comm_group group;

    /* of a reduce-scatter */
    enum dtype recv_dtype;
    bool accumulate;
    bool ordered; /* recv = (([recv +] rank 0's) + rank 1's) + …, with these bits on every transport; of a part of
                     the ranks it has to be */
    void *inbox;  /* of an ordered one on a GPU: device memory for the contributions to this rank's slice (world ×
                     count, dtype), which NCCL writes; NULL on the CPU */
    int32_t *bad_rank; /* becomes the lowest rank with a non-finite value in this slice, unless lower already; the
                          caller sets RANK_NONE first. Valid once the stream is synchronised. May be NULL. GPUs do
                          not fill it, unless they are shared */

    /* set by the communicator */
    struct comm *comm;
    uint32_t kind;  /* enum op_kind */
    int64_t number; /* from 1: the same on all ranks */
};

/* recv[r × stride …] (count elements) = rank r's send buffer (count), for all r. send may be recv + rank × stride. */
void comm_all_gather_group(struct comm *comm, const struct data_op *ops, int count, struct stream *stream);

/* recv (count, recv_dtype) = [recv +] sum over ranks of their send[rank × stride …] (count, dtype), added up in fp32
 * and rounded once. recv may be send + rank × stride (equal dtypes, not accumulate). NCCL adds up in dtype, in its own
 * order, and overwrites the own slice of send. An ordered one is sent to its owner, who adds in fp32. */
void comm_reduce_scatter_group(struct comm *comm, const struct data_op *ops, int count, struct stream *stream);

/* The operations of a call do not depend on each other: NCCL launches them as one, but ordered ones, and those of a
 * part of the ranks, one after the other. */
enum { COMM_GROUP_MAX = 16 };

/* Control channel; blocking. */
enum status comm_barrier(struct comm *comm, struct error *err);
/* all (world × bytes) = every rank's `own` (bytes, at most COMM_EXCHANGE_MAX) in rank order */
enum { COMM_EXCHANGE_MAX = 65536 };
enum status comm_exchange(struct comm *comm, const void *own, size_t bytes, void *all, struct error *err);
/* values[i] = sum over ranks in order */
enum status comm_sum(struct comm *comm, double *values, int count, struct error *err);
enum status comm_broadcast(struct comm *comm, void *data, size_t bytes, int root, struct error *err);

/* bytes: of host memory in this rank's plan, for whoever explains its end. */
void comm_note_plan(struct comm *comm, uint64_t bytes);

/* STATUS_OK, or why the job cannot continue: a peer's error, or STATUS_PEER. Any thread. */
enum status comm_status(struct comm *comm, struct error *err);

/* Ends the job with this rank's `err`, whose code becomes that of its peers. The first call counts. Any thread. */
void comm_abort(struct comm *comm, const struct error *err);

/* After a failure, before comm_close(): see control_await_end(). */
bool comm_await_end(struct comm *comm, double seconds);

/* Since they were taken last, as a bandwidth-optimal algorithm would: (N-1)/N · P each way for P bytes. */
struct comm_stats {
    int64_t all_gather_calls, all_gather_bytes;
    int64_t reduce_scatter_calls, reduce_scatter_bytes;
    double seconds; /* busy on the data channel, waiting for peers included */
    /* bytes in connections with ranks on other nodes: counted at the sockets, and by theory */
    int64_t network_sent, network_received, theory_sent, theory_received;
};
void comm_stats_take(struct comm *comm, struct comm_stats *stats);

/* ---- flight recorders ---------------------------------------------------- */

/* Ranks record in memory of their node, so that a neighbour can write the record of one that was killed. */
struct flight_ring;

/* A rank of this node. */
struct flight_peer {
    int rank, pid;
    const char *host; /* mapped until this process ends, as is the ring */
    const struct flight_ring *ring;
    bool left; /* the job, in order */
};

int comm_flight_peers(const struct comm *comm);
struct flight_peer comm_flight_peer(const struct comm *comm, int local_rank);

/* This rank's; mapped until the process ends. */
struct flight_ring *comm_flight_ring(const struct comm *comm);
