/* transport_gpu.h: data operations on the memory of a GPU, which other processes cannot read. Private to the
 * communicator.
 *
 *   NCCL      each rank has its own GPU: the operation runs on the GPU, in the order of the communication stream
 *   staged    ranks share a GPU, in tests: piece by piece through pinned host memory and the host's operation */
#pragma once

#include "comm/transport_nccl.h"

struct transport_gpu {
    struct comm *comm;
    struct device *device;
    struct transport_nccl *nccl; /* NULL: staged */
    char *send, *recv;           /* pinned, BUFFER_BYTES each */
};

/* Chooses one of the two, the same on all ranks; nccl_ctas: see comm_attach_device(); *way describes it for the log.
 * Collective. */
enum status transport_gpu_new(struct comm *comm, struct device *device, bool may_share, int nccl_ctas,
                              struct transport_gpu **out, const char **way, struct error *err);
void transport_gpu_free(struct transport_gpu *gpu);

/* Puts the operation into the stream's order. */
void transport_gpu_submit(const struct data_op *op, struct stream *stream);

/* ---- transport_check.c --------------------------------------------------- */

/* Gathers in fp32 and reduces in each type, 64 elements a rank, then in fp32 8 MiB in all. STATUS_DEVICE if a result is
 * wrong; the job's failure if it has failed. Collective, but ranks may return different results: the caller agrees. */
enum status transport_check(struct comm *comm, struct transport_gpu *gpu, struct device *device, struct error *err);
