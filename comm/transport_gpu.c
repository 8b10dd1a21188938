/* SPDX-License-Identifier: Apache-2.0 */
/* transport_gpu.c: see transport_gpu.h. A staged operation, for pieces of a slice that fit the pinned buffers:
 *
 *     send (device) ─copy─► send (pinned) ─host operation─► recv (pinned) ─copy─► recv (device)
 *
 * all in the order of one stream, so that one pair of buffers is enough. The host computes the sums, with the same bits
 * as on the CPU device. */
#include "comm/transport_gpu.h"

#include "core/flight/flight.h"

enum { BUFFER_BYTES = 8 << 20 };

static enum status find_shared_gpu(struct comm *comm, const struct device *device, int *first, int *second,
                                   struct error *err)
{
    size_t bytes = sizeof device->id;
    OWNED char *all = memory_alloc((size_t)comm->world * bytes);
    *first = *second = -1;
    TRY(comm_exchange(comm, device->id, bytes, all, err));
    for (int a = 1; a < comm->world && *first < 0; a++)
        for (int b = 0; b < a && *first < 0; b++)
            if (memcmp(all + (size_t)a * bytes, all + (size_t)b * bytes, bytes) == 0) {
                *first = b;
                *second = a;
            }
    return STATUS_OK;
}

/* Without NCCL a GPU for each rank is an error: staging would be silently slow. */
static enum status choose_transport(struct transport_gpu *gpu, bool may_share, int nccl_ctas, const char **way,
                                    struct error *err)
{
    int first, second;
    TRY(find_shared_gpu(gpu->comm, gpu->device, &first, &second, err));
    if (first < 0) return transport_nccl_new(gpu->comm, gpu->device, nccl_ctas, &gpu->nccl, way, err);
    if (!may_share) {
        error_set(err, STATUS_DEVICE, "ranks %d and %d have the same GPU, %s", first, second, gpu->device->name);
        return error_hint(
            err, "NCCL needs a whole GPU for each rank, not a part of one (MIG); if ranks do not see each other's "
                 "processes (containers), set CUDA_VISIBLE_DEVICES or use srun --gpus-per-task=1");
    }
    *way = "through host memory: ranks share a GPU";
    return STATUS_OK;
}

enum status transport_gpu_new(struct comm *comm, struct device *device, bool may_share, int nccl_ctas,
                              struct transport_gpu **out, const char **way, struct error *err)
{
    void *send = NULL, *recv = NULL;
    RELEASED(transport_gpu_drop) struct transport_gpu *gpu = memory_zeroed(1, sizeof *gpu);
    gpu->comm = comm;
    gpu->device = device;
    TRY(choose_transport(gpu, may_share, nccl_ctas, way, err));
    if (!gpu->nccl) {
        TRY(device_alloc_host(device, BUFFER_BYTES, &send, err));
        gpu->send = send;
        TRY(device_alloc_host(device, BUFFER_BYTES, &recv, err));
        gpu->recv = recv;
    }
    *out = TAKEN(gpu);
    return STATUS_OK;
}

void transport_gpu_free(struct transport_gpu *gpu)
{
    if (!gpu) return;
    if (gpu->nccl) gpu->nccl->free(gpu->nccl);
    device_free(gpu->device, gpu->memory, gpu->memory_bytes);
    if (gpu->send) device_free_host(gpu->device, gpu->send, BUFFER_BYTES);
    if (gpu->recv) device_free_host(gpu->device, gpu->recv, BUFFER_BYTES);
    free(gpu);
}

enum status transport_gpu_share(struct transport_gpu *gpu, size_t bytes, void **memory, struct error *err)
{
    ASSERT(!gpu->memory);
    *memory = NULL;
    if (gpu->nccl) TRY(gpu->nccl->share(gpu->nccl, bytes, memory, err));
    if (*memory) return STATUS_OK;
    TRY(device_alloc(gpu->device, bytes, memory, err));
    gpu->memory = *memory;
    gpu->memory_bytes = bytes;
    return STATUS_OK;
}

/* Elements [at, at + count) of every slice: a gather sends one and receives all, a reduction the other way round. */
static void stage_piece(struct transport_gpu *gpu, const struct data_op *op, size_t at, size_t count,
                        struct stream *stream)
{
    const bool gathers = op->kind == OP_ALL_GATHER;
    const size_t size = dtype_size(op->dtype), bytes = count * size, sum_bytes = count * dtype_size(op->recv_dtype);
    struct data_op piece = *op;
    piece.send = gpu->send;
    piece.recv = gpu->recv;
    piece.count = piece.stride = count;
    for (int r = 0; r < (gathers ? 1 : op->group.size); r++)
        stream_copy(stream, gpu->send + (size_t)r * bytes,
                    (const char *)op->send + ((size_t)r * op->stride + at) * size, bytes);
    if (op->accumulate) stream_copy(stream, gpu->recv, data_op_recv(op, at), sum_bytes);
    transport_host_submit(&piece, 1, stream);
    if (!gathers) stream_copy(stream, data_op_recv(op, at), gpu->recv, sum_bytes);
    for (int r = 0; gathers && r < op->group.size; r++) {
        char *to = (char *)op->recv + ((size_t)r * op->stride + at) * size;
        if (to != (const char *)op->send + at * size) stream_copy(stream, to, gpu->recv + (size_t)r * bytes, bytes);
    }
}

void transport_gpu_submit(const struct data_op *ops, int count, struct stream *stream)
{
    struct transport_gpu *gpu = ops->comm->gpu;
    const size_t most = BUFFER_BYTES / ((size_t)gpu->comm->world * sizeof(float));
    ASSERT(stream_device(stream) == gpu->device);
    for (const struct data_op *op = ops; op < ops + count; op++) {
        if (gpu->nccl) flight_end(comm_flight_begin(op)); /* when it was enqueued: the host does not see its end */
        for (size_t at = 0; !gpu->nccl && at < op->count; at += most)
            stage_piece(gpu, op, at, op->count - at < most ? op->count - at : most, stream);
    }
    if (gpu->nccl) gpu->nccl->submit(gpu->nccl, ops, count, stream);
}
