/* SPDX-License-Identifier: Apache-2.0 */
/* transport_gpu.h: data operations on the memory of a GPU, which other processes cannot read. Private to the
 * communicator.
 *
 *   NCCL      each rank has its own GPU: the operation runs on the GPU, in the order of the communication stream
 *   staged    ranks share a GPU, in tests: piece by piece through pinned host memory and the host's operation */
#pragma once

#include "comm/comm_internal.h"

#if defined(ZTRAIN_CUDA)
#include "gpu/cuda/cuda_libraries.h"
#define TRANSPORT_HAS_NCCL ZTRAIN_HAVE_NCCL
#else
#define TRANSPORT_HAS_NCCL 0
#endif

struct transport_gpu {
    struct comm *comm;
    struct device *device;
    struct transport_nccl *nccl; /* NULL: staged */
    char *send, *recv;           /* pinned, BUFFER_BYTES each */
    void *memory;                /* of transport_gpu_share(), unless it is NCCL's; NULL: none */
    size_t memory_bytes;
};

/* Chooses one of the two, the same on all ranks; see comm_attach_device(). Collective. */
enum status transport_gpu_new(struct comm *comm, struct device *device, bool may_share, int nccl_ctas,
                              struct transport_gpu **out, const char **way, struct error *err);
void transport_gpu_free(struct transport_gpu *gpu);
RELEASER(transport_gpu_drop, struct transport_gpu, transport_gpu_free)

/* Puts operations, which do not depend on each other, into the stream's order. */
void transport_gpu_submit(const struct data_op *ops, int count, struct stream *stream);

/* Zeroed device memory for collectives, until transport_gpu_free(); `bytes`: the same on all ranks. Collective. */
enum status transport_gpu_share(struct transport_gpu *gpu, size_t bytes, void **memory, struct error *err);

/* ---- transport_check.c --------------------------------------------------- */

/* Gathers in fp32 and reduces in each type, 64 elements a rank, then in fp32 8 MiB in all; with comm_config.ordered
 * also reduces 32 elements a rank in order. STATUS_DEVICE: a result is wrong. Collective, but ranks may return
 * different results. `memory` (bytes; zeros before and after): for the buffers; NULL: allocates its own. */
enum status transport_check(struct comm *comm, struct device *device, void *memory, size_t bytes, struct error *err);

/* ---- transport_nccl.c ---------------------------------------------------- */

/* A watcher thread observes the peers through the control channel, aborts NCCL when the job has failed, and fails the
 * job when NCCL reports an error, so that no rank waits for a dead peer. */
struct transport_nccl {
    /* See comm_reduce_scatter_group(): the order of sums is NCCL's unless op->ordered; op->bad_rank is not filled. */
    void (*submit)(struct transport_nccl *nccl, const struct data_op *ops, int count, struct stream *stream);
    /* Launches a graph in which operations were captured; does nothing once the communicator is aborted. */
    void (*launch)(struct transport_nccl *nccl, struct graph *graph);
    /* transport_gpu_share() with memory that NCCL reads and writes at its place; *memory NULL: it does so with none. */
    enum status (*share)(struct transport_nccl *nccl, size_t bytes, void **memory, struct error *err);
    void (*free)(struct transport_nccl *nccl);
};

/* *way: "NCCL 2.28.3", lives as long as *out. Collective: all ranks fail if one does. ctas: maxCTAs; 0: NCCL's own. */
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
