/* comm_nccl.h: data operations over NCCL, one GPU a rank. Private to the communicator; in builds without CUDA and NCCL
 * comm_nccl_new() says so.
 *
 * The control channel stays the host's: NCCL's unique id goes through it, and a watcher thread looks after the peers,
 * aborts NCCL when the job has failed, and fails the job when NCCL reports an asynchronous error, so that nobody waits
 * for a dead peer. */
#ifndef ZTRAIN_COMM_COMM_NCCL_H
#define ZTRAIN_COMM_COMM_NCCL_H

#include "comm/comm_internal.h"

#if defined(ZTRAIN_CUDA)
#include "gpu/cuda/cuda_libraries.h"
#define COMM_HAS_NCCL ZTRAIN_HAVE_NCCL
#else
#define COMM_HAS_NCCL 0
#endif

struct comm_nccl;

#if COMM_HAS_NCCL
/* `way` gets "NCCL 2.28.3". Collective: all fail if one does; every rank's device differs. */
enum status comm_nccl_new(struct comm *comm, struct device *device, struct comm_nccl **out, const char **way,
                          struct error *err);
void comm_nccl_free(struct comm_nccl *nccl);

/* Enqueues the operation. Sums are NCCL's: their order does not depend on timing, but is not that of the ranks, and
 * op->bad_rank is not filled. With op->accumulate the own slice of `send` is overwritten by the sum. */
void comm_nccl_submit(struct comm_nccl *nccl, const struct data_op *op, struct stream *stream);

/* Launches a graph that operations were captured in; not with a communicator that is aborted. */
void comm_nccl_launch(struct comm_nccl *nccl, struct graph *graph);

#else
static inline enum status comm_nccl_new(struct comm *comm, struct device *device, struct comm_nccl **out,
                                        const char **way, struct error *err)
{
    (void)comm;
    (void)device;
    (void)way;
    *out = NULL;
    error_set(err, STATUS_DEVICE, "this build of ztrain has no NCCL, which ranks with a GPU each need");
    return error_hint(err, "build where nccl.h is installed");
}

static inline void comm_nccl_free(struct comm_nccl *nccl)
{
    (void)nccl;
}

static inline void comm_nccl_launch(struct comm_nccl *nccl, struct graph *graph)
{
    (void)nccl;
    (void)graph;
    BUG("no NCCL in this build");
}

static inline void comm_nccl_submit(struct comm_nccl *nccl, const struct data_op *op, struct stream *stream)
{
    (void)nccl;
    (void)op;
    (void)stream;
    BUG("no NCCL in this build");
}
#endif

#endif
