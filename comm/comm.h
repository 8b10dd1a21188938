/* comm.h: collectives over the ranks of a job. One interface for ranks on one machine (shared memory), on several (TCP
 * between them) and for GPUs (NCCL).
 *
 * Two channels, each with its own order of operations, the same on every rank:
 *   data     comm_all_gather, comm_reduce_scatter, comm_all_reduce: in the order of a stream (the communication
 * stream); asynchronous; counted control  comm_barrier, comm_exchange, comm_sum, comm_broadcast: small host values,
 * block the calling (main) thread
 *
 * Reductions add the contributions of ranks 0, 1, … N-1 in this order, in fp32, so results depend neither on
 * timing nor on how ranks are spread over nodes (unless comm_config says otherwise).
 *
 * Failure: a peer that dies, stays silent for the timeout (no progress_tick, see core/progress.h), or calls
 * comm_abort() makes every operation that waits return, in all ranks, and comm_status() say who, where and what. After
 * a failure data operations return at once without doing anything; the caller checks comm_status() before it trusts
 * results.
 *
 * Memory: each rank has a shared segment (comm_shared); collectives whose buffers lie in it read peers' memory
 * directly, others are staged through it. World 1: everything is local and nothing is counted. */
#ifndef ZTRAIN_COMM_COMM_H
#define ZTRAIN_COMM_COMM_H

#include "comm/launch/bootstrap.h"
#include "comm/sums.h"
#include "core/dtype.h"
#include "gpu/device.h"

#include <stdbool.h>

struct comm;

struct comm_config {
    double timeout_seconds;
    double io_timeout_seconds; /* of one slow call (core/progress.h); 0: 600 */
    /* This rank is stuck in a slow call, and the job has failed for that (text says what, and which file): its main
     * thread cannot end it. Called by a thread of its own; may end the process. NULL: nobody is asked. */
    void (*stuck)(void *context, const char *text);
    void *stuck_context;
    const char
        *interface; /* the network interface between nodes: name, address or network; NULL or "": the one that fits */
    bool reduce_within_node; /* reductions add up each node's contributions before they cross the network: less traffic,
                                other bits than on one node */
};

/* Connects the ranks (collective): bootstrap_connect(), the memory that each node's ranks share, and TCP connections
 * between nodes. */
enum status comm_open(struct bootstrap *bootstrap, const struct comm_config *config, struct comm **comm,
                      struct error *err);
/* Collective: waits for the others unless the job has failed. */
void comm_close(struct comm *comm);

/* From now on data operations work on the memory of this device, if it has memory of its own (else nothing changes).
 * may_share (the same on all ranks): ranks that have one GPU are meant to; else that is an error. `way` says how, for
 * the log; NULL: there is nothing to say. Collective: all fail if one does. comm_detach_device() before the device is
 * closed. */
enum status comm_attach_device(struct comm *comm, struct device *device, bool may_share, const char **way,
                               struct error *err);
void comm_detach_device(struct comm *comm);

/* Whether data operations may be captured in a graph of the device: not where the host has a part in them. */
bool comm_can_capture(const struct comm *comm);

/* Launches a graph that has data operations in it, unless the job has failed. */
void comm_launch(struct comm *comm, struct graph *graph);

int comm_rank(const struct comm *comm);
int comm_world(const struct comm *comm);

/* Gives this rank a shared segment of `bytes` (the same on every rank; collective; once), zeroed and touched. */
enum status comm_share(struct comm *comm, size_t bytes, void **memory, struct error *err);

/* Slices of `count` elements start `stride` elements apart, stride >= count (0: count), so that a long slice can be
 * sent in pieces. */

/* recv[r × stride …] (count elements) = rank r's send buffer (count), for all r. send may be recv + rank × stride. */
void comm_all_gather(struct comm *comm, const void *send, void *recv, size_t count, size_t stride, enum dtype dtype,
                     struct stream *stream);

/* recv (count fp32) = [recv +] sum over ranks of their send[rank × stride …] (count elements of dtype). recv may be
 * send + rank × stride (fp32, not accumulate). *bad_rank (may be NULL; RANK_NONE before): becomes the lowest rank whose
 * contribution to this slice held a non-finite value, unless it is lower already; read it after the stream is
 * synchronised. */
void comm_reduce_scatter(struct comm *comm, const void *send, float *recv, size_t count, size_t stride,
                         enum dtype dtype, bool accumulate, int32_t *bad_rank, struct stream *stream);

/* In place, fp32, world × count elements: reduce-scatter, then all-gather; same bits as those two. */
void comm_all_reduce(struct comm *comm, float *data, size_t count, int32_t *bad_rank, struct stream *stream);

/* Control channel; blocking. */
enum status comm_barrier(struct comm *comm, struct error *err);
/* all (world × bytes) = every rank's `own` (bytes, at most COMM_EXCHANGE_MAX) in rank order */
enum { COMM_EXCHANGE_MAX = 65536 };
enum status comm_exchange(struct comm *comm, const void *own, size_t bytes, void *all, struct error *err);
/* values[i] = sum over ranks in order */
enum status comm_sum(struct comm *comm, double *values, int count, struct error *err);
enum status comm_broadcast(struct comm *comm, void *data, size_t bytes, int root, struct error *err);

/* STATUS_OK, or why the job cannot go on: a peer's own exit code if it said so, else STATUS_PEER. Any thread. */
enum status comm_status(struct comm *comm, struct error *err);

/* Tells the peers that this rank ends with `err` (its code becomes theirs). Any thread; at most once counts. */
void comm_abort(struct comm *comm, const struct error *err);

/* After a failure, before comm_close(): leaves the job and waits for the others to do so; see control_await_end().
 * false: somebody stays behind, whom only the launcher can end. */
bool comm_await_end(struct comm *comm, double seconds);

/* Bytes this rank sent and received in collectives since the last reset, as a bandwidth-optimal algorithm over a
 * network would: all-gather and reduce-scatter of P bytes: (N-1)/N · P each way. */
struct comm_stats {
    int64_t all_gather_calls, all_gather_bytes;
    int64_t reduce_scatter_calls, reduce_scatter_bytes;
    double seconds; /* busy on the data channel, waiting for peers included */
    /* over the network, in connections with ranks on other nodes: counted at the sockets, and what it had to be */
    int64_t network_sent, network_received, theory_sent, theory_received;
};
void comm_stats_read(struct comm *comm, struct comm_stats *stats, bool reset);

#endif
