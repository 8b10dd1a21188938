/* transport_nccl.h: data operations over NCCL, with one GPU for each rank. Private to the communicator. In builds
 * without CUDA or NCCL, transport_nccl_new() fails with that reason.
 *
 * The hosts' control channel remains in use: it carries NCCL's unique id, and a watcher thread observes the peers
 * through it, aborts NCCL when the job has failed, and fails the job when NCCL reports an asynchronous error, so that
 * no rank waits for a dead peer. */
#pragma once

#include "comm/comm_internal.h"

#if defined(ZTRAIN_CUDA)
#include "gpu/cuda/cuda_libraries.h"
#define TRANSPORT_HAS_NCCL ZTRAIN_HAVE_NCCL
#else
#define TRANSPORT_HAS_NCCL 0
#endif

/* What transport_nccl.c has behind it. */
struct transport_nccl {
    /* Enqueues the operation. NCCL chooses the order of its sums, which does not depend on timing but is not the order
     * of the ranks. op->bad_rank is not filled. With op->accumulate, the sum overwrites the rank's own slice of `send`.
     */
    void (*submit)(struct transport_nccl *nccl, const struct data_op *op, struct stream *stream);
    /* Launches a graph in which operations were captured; does nothing once the communicator is aborted. */
    void (*launch)(struct transport_nccl *nccl, struct graph *graph);
    void (*free)(struct transport_nccl *nccl);
};

/* Opens NCCL on all ranks, each of which has another GPU. *way: "NCCL 2.28.3", lives as long as *out. Collective: all
 * ranks fail if one does. ctas: the communicator's maxCTAs; 0: NCCL's own. */
#if TRANSPORT_HAS_NCCL
enum status transport_nccl_new(struct comm *comm, struct device *device, int ctas, struct transport_nccl **out,
                               const char **way, struct error *err);
#else
static inline enum status transport_nccl_new(struct comm *comm, struct device *device, int ctas,
                                             struct transport_nccl **out, const char **way, struct error *err)
{
    (void)comm, (void)device, (void)ctas, (void)way;
    *out = NULL;
    error_set(err, STATUS_DEVICE, "this build of ztrain has no NCCL, which ranks with a GPU each need");
    return error_hint(err, "build where nccl.h is installed");
}
#endif
