/* SPDX-License-Identifier: Apache-2.0 */
/* comm_share.c: what peers read: on a GPU memory of its transport; else the shared segments, one for each rank of a
 * node, one after the other in the node's shared memory.
 *
 *     first rank of the node   is there enough memory? makes the file long enough      barrier
 *     every rank               maps all segments, touches the pages of its segment     barrier
 *     every rank               maps the pages of its neighbours, which exist by now
 *
 * So no rank touches memory that another one should have touched first (NUMA), and none makes pages twice. */
#include "comm/transport_gpu.h"

#include <sys/mman.h>

/* Linux 5.14; glibc names them from version 2.35 on. An older kernel answers EINVAL. */
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

enum { PAGE_BYTES = 4096, SEGMENT_ALIGN = 2 << 20 };

static double shared_mebibytes(size_t bytes)
{
    return (double)bytes / (1 << 20);
}

/* The node's first rank makes room for `total` bytes of segments. A failure ends the job for all ranks. */
static enum status extend_share(struct comm *comm, size_t total, struct error *err)
{
    struct machine_memory machine;
    struct error local = {.code = STATUS_OK};
    int fd = comm->control->fd;
    machine_memory("", &machine);
    if (total > machine.available)
        error_set(&local, STATUS_DEVICE, "%d ranks on one node need %.1f MiB of shared memory, %.1f MiB are available",
                  comm->topology.local_world, shared_mebibytes(total), shared_mebibytes(machine.available));
    else if (fd >= 0 && ftruncate(fd, (off_t)(comm->control->at.segments + total)) != 0)
        error_set(&local, STATUS_DEVICE, "cannot allocate %.1f MiB of shared memory: %s", shared_mebibytes(total),
                  strerror(errno));
    if (local.code == STATUS_OK) return STATUS_OK;
    error_hint(&local, "take a higher ZeRO stage, a smaller model, or fewer ranks on this node; of a container raise "
                       "--memory (--shm-size is NCCL's)");
    comm_abort(comm, &local);
    if (err) *err = local;
    return local.code;
}

/* Without a file (world 1) the memory is private. */
static enum status share_segments(struct comm *comm, size_t bytes, size_t stride, struct error *err)
{
    const size_t total = stride * (size_t)comm->topology.local_world;
    int fd = comm->control->fd;
    void *map = fd < 0 ? mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                       : mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)comm->control->at.segments);
    if (map == MAP_FAILED)
        return error_set(err, STATUS_DEVICE, "cannot map %.1f MiB of shared memory: %s", shared_mebibytes(total),
                         strerror(errno));
    comm->segments = map;
    comm->segment_bytes = bytes;
    comm->segment_stride = stride;
    madvise(map, total, MADV_HUGEPAGE); /* where the system allows it for shared memory */
    return STATUS_OK;
}

/* Touches the pages, a run at a time with a heartbeat after each. Returns 0 or errno. */
static int populate_shared(char *memory, size_t bytes, int advice)
{
    enum { RUN = 64 << 20 };
    for (size_t at = 0; at < bytes; at += RUN) {
        size_t run = bytes - at < RUN ? bytes - at : RUN;
        if (madvise(memory + at, run, advice) != 0) {
            if (errno != EINVAL) return errno;
            for (size_t page = 0; page < run; page += PAGE_BYTES) { /* a kernel before 5.14 */
                volatile char *touched = memory + at + page;
                if (advice == MADV_POPULATE_WRITE)
                    *touched = 0;
                else
                    (void)*touched;
            }
        }
        heartbeat_beat();
    }
    return 0;
}

enum status comm_share(struct comm *comm, size_t bytes, void **memory, struct error *err)
{
    ASSERT(!comm->segments);
    *memory = NULL;
    const uint64_t size = bytes;
    OWNED uint64_t *all = memory_alloc((size_t)comm->world * sizeof *all);
    TRY(comm_exchange(comm, &size, sizeof size, all, err));
    for (int r = 0; r < comm->world; r++)
        if (all[r] != size) {
            error_set(err, STATUS_BUG, "rank %d shares %" PRIu64 " bytes, rank %d shares %" PRIu64, r, all[r],
                      comm->rank, size);
            return error_blame(err, r, FAILURE_NONE);
        }
    if (bytes == 0) return STATUS_OK;
    if (comm->gpu) {
        TRY(transport_gpu_share(comm->gpu, bytes, memory, err));
        const bool own_way = *memory != comm->gpu->memory; /* NCCL has other kernels for it */
        return own_way ? transport_check(comm, comm->gpu->device, *memory, bytes, err) : STATUS_OK;
    }
    const struct topology *t = &comm->topology;
    const size_t stride = (size_t)round_up((int64_t)bytes, SEGMENT_ALIGN), total = stride * (size_t)t->local_world;
    if (t->local_rank == 0) TRY(extend_share(comm, total, err));
    TRY(comm_barrier(comm, err)); /* the file is long enough for all */

    TRY(share_segments(comm, bytes, stride, err));
    char *own = comm->segments + stride * (size_t)t->local_rank;
    int error = populate_shared(own, stride, MADV_POPULATE_WRITE);
    if (error)
        return error_set(err, STATUS_DEVICE, "cannot allocate %.1f MiB of shared memory: %s", shared_mebibytes(stride),
                         strerror(error));
    TRY(comm_barrier(comm, err)); /* all pages exist: the peers' can be mapped without making any */
    error = populate_shared(comm->segments, total, MADV_POPULATE_READ);
    if (error) return error_set(err, STATUS_DEVICE, "cannot map the peers' shared memory: %s", strerror(error));
    *memory = own;
    return STATUS_OK;
}
