/* comm_nccl.c: see comm_nccl.h.
 *
 * Slices that lie one after the other go through ncclAllGather and ncclReduceScatter; slices with a stride (pieces of a
 * long one) through a group of broadcasts or reductions, which NCCL merges into one launch.
 *
 * Thread rule: operations are enqueued by the thread that owns the device; the watcher only asks and aborts. `mutex` is
 * held over every call that uses the communicator, for an abort must not run beside one. */
#include "comm/comm_nccl.h"

#if COMM_HAS_NCCL

#include "core/progress.h"
#include "gpu/device_cuda.h"
#include "gpu/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct comm_nccl {
    struct comm *comm;
    struct cuda_device *cuda;
    const struct nccl_functions *nccl;
    ncclComm_t handle;
    bool aborted;
    pthread_mutex_t mutex;
    pthread_cond_t stopping;
    bool stop, watching;
    pthread_t watcher;
    char way[64];
};

/* ---------------------------------------------------------------- errors */

static enum status nccl_error(const struct nccl_functions *nccl, ncclResult_t result, const char *what,
                              struct error *err)
{
    error_set(err, STATUS_PEER, "NCCL: %s: %s", what, nccl->ncclGetErrorString(result));
    const char *detail = nccl->ncclGetLastError(NULL);
    return error_hint(err, "%s%sNCCL_DEBUG=INFO prints more", detail ? detail : "", detail && *detail ? "; " : "");
}

/* A failed call ends the job, as a peer's failure would. Holding the mutex. */
static void check(struct comm_nccl *n, ncclResult_t result, const char *what)
{
    if (result == ncclSuccess || result == ncclInProgress || n->aborted)
        return;
    struct error err;
    nccl_error(n->nccl, result, what, &err);
    comm_abort(n->comm, &err);
}

/* ---------------------------------------------------------------- the watcher */

/* Aborts once the job has failed; else looks for asynchronous errors. Holding the mutex. */
static void look(struct comm_nccl *n)
{
    ncclResult_t result = ncclSuccess;
    if (comm_status(n->comm, NULL) == STATUS_OK && n->nccl->ncclCommGetAsyncError(n->handle, &result) == ncclSuccess)
        check(n, result, "a collective failed");
    if (comm_status(n->comm, NULL) != STATUS_OK) {
        n->nccl->ncclCommAbort(n->handle); /* kernels that wait for a peer return */
        n->aborted = true;
    }
}

static void *watch(void *argument)
{
    struct comm_nccl *n = argument;
    pthread_mutex_lock(&n->mutex);
    while (!n->stop && !n->aborted) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += 100 * 1000 * 1000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&n->stopping, &n->mutex, &until);
        if (!n->stop)
            look(n);
    }
    pthread_mutex_unlock(&n->mutex);
    return NULL;
}

/* ---------------------------------------------------------------- opening and closing */

/* Waits until a call that returned ncclInProgress has ended, or the job fails. */
static enum status settle(struct comm_nccl *n, const char *what, struct error *err)
{
    const struct timespec pause = {.tv_nsec = 2 * 1000 * 1000};
    ncclResult_t result = ncclInProgress;
    for (;;) {
        ncclResult_t asked = n->nccl->ncclCommGetAsyncError(n->handle, &result);
        if (asked != ncclSuccess)
            result = asked;
        if (result == ncclSuccess)
            return STATUS_OK;
        if (result != ncclInProgress)
            return nccl_error(n->nccl, result, what, err);
        TRY(comm_status(n->comm, err));
        nanosleep(&pause, NULL);
        progress_tick();
    }
}

enum status comm_nccl_new(struct comm *comm, struct device *device, struct comm_nccl **out, const char **way,
                          struct error *err)
{
    enum status status;
    ncclUniqueId id;
    int version = 0;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    *out = NULL;
    struct comm_nccl *n = calloc(1, sizeof *n);
    if (!n)
        return error_set(err, STATUS_DEVICE, "out of memory");
    n->comm = comm;
    n->cuda = (struct cuda_device *)device->private_;
    pthread_condattr_t monotonic; /* a clock that is set back must not put the watcher to sleep */
    pthread_mutex_init(&n->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&n->stopping, &monotonic);
    pthread_condattr_destroy(&monotonic);
    TRY_GOTO(nccl_open(&n->nccl, err));
    n->nccl->ncclGetVersion(&version);
    memset(&id, 0, sizeof id);
    ncclResult_t result = comm->rank == 0 ? n->nccl->ncclGetUniqueId(&id) : ncclSuccess;
    if (result != ncclSuccess) {
        status = nccl_error(n->nccl, result, "no unique id", err);
        goto fail;
    }
    TRY_GOTO(comm_broadcast(comm, &id, sizeof id, 0, err));
    config.blocking = 0;
    result = n->nccl->ncclCommInitRankConfig(&n->handle, comm->world, id, comm->rank, &config);
    if (result != ncclSuccess && result != ncclInProgress) {
        status = nccl_error(n->nccl, result, "cannot join the communicator", err);
        goto fail;
    }
    TRY_GOTO(settle(n, "cannot join the communicator", err));
    if (pthread_create(&n->watcher, NULL, watch, n) != 0) {
        status = error_set(err, STATUS_DEVICE, "cannot start a thread");
        goto fail;
    }
    n->watching = true;
    snprintf(n->way, sizeof n->way, "NCCL %d.%d.%d", version / 10000, version % 10000 / 100, version % 100);
    *way = n->way;
    *out = n;
    return STATUS_OK;
fail:
    comm_nccl_free(n);
    return status;
}

void comm_nccl_free(struct comm_nccl *n)
{
    if (!n)
        return;
    if (n->watching) {
        pthread_mutex_lock(&n->mutex);
        n->stop = true;
        pthread_cond_signal(&n->stopping);
        pthread_mutex_unlock(&n->mutex);
        pthread_join(n->watcher, NULL);
    }
    if (n->handle && !n->aborted) {
        bool well = n->watching && comm_status(n->comm, NULL) == STATUS_OK;
        if (well && n->nccl->ncclCommFinalize(n->handle) <= ncclInProgress && settle(n, "closing", NULL) == STATUS_OK)
            n->nccl->ncclCommDestroy(n->handle);
        else
            n->nccl->ncclCommAbort(n->handle);
    }
    pthread_cond_destroy(&n->stopping);
    pthread_mutex_destroy(&n->mutex);
    free(n);
}

/* ---------------------------------------------------------------- operations */

static ncclDataType_t type_of(enum dtype dtype)
{
    return dtype == DTYPE_F32 ? ncclFloat32 : dtype == DTYPE_BF16 ? ncclBfloat16 : ncclFloat16;
}

/* Nothing else may be enqueued before a call that is in progress has ended. Holding the mutex. */
static void finish(struct comm_nccl *n, ncclResult_t result, const char *what)
{
    struct error err;
    if (result != ncclInProgress)
        check(n, result, what);
    else if (settle(n, what, &err) != STATUS_OK)
        comm_abort(n->comm, &err);
}

static ncclResult_t gather(struct comm_nccl *n, const struct data_op *op, cudaStream_t stream)
{
    const struct nccl_functions *f = n->nccl;
    if (op->stride == op->count)
        return f->ncclAllGather(op->send, op->recv, op->count, type_of(op->dtype), n->handle, stream);
    ncclResult_t result = f->ncclGroupStart();
    for (int r = 0; r < n->comm->world && (result == ncclSuccess || result == ncclInProgress); r++)
        result = f->ncclBroadcast(op->send, (char *)op->recv + (size_t)r * op->stride * dtype_size(op->dtype),
                                  op->count, type_of(op->dtype), r, n->handle, stream);
    ncclResult_t ended = f->ncclGroupEnd();
    return result == ncclSuccess || result == ncclInProgress ? ended : result;
}

/* The sums of the slices, each on its owner, in place of its own contribution or in `recv`. */
static ncclResult_t reduce(struct comm_nccl *n, const struct data_op *op, float *recv, cudaStream_t stream)
{
    const struct nccl_functions *f = n->nccl;
    if (op->stride == op->count)
        return f->ncclReduceScatter(op->send, recv, op->count, type_of(op->dtype), ncclSum, n->handle, stream);
    ncclResult_t result = f->ncclGroupStart();
    for (int r = 0; r < n->comm->world && (result == ncclSuccess || result == ncclInProgress); r++)
        result = f->ncclReduce((const char *)op->send + (size_t)r * op->stride * dtype_size(op->dtype), recv, op->count,
                               type_of(op->dtype), ncclSum, r, n->handle, stream);
    ncclResult_t ended = f->ncclGroupEnd();
    return result == ncclSuccess || result == ncclInProgress ? ended : result;
}

void comm_nccl_submit(struct comm_nccl *n, const struct data_op *op, struct stream *stream)
{
    cudaStream_t handle = cuda_stream_of(stream)->handle;
    float *slice = (float *)(uintptr_t)op->send + (size_t)n->comm->rank * op->stride;
    float *recv = op->accumulate ? slice : op->recv;
    pthread_mutex_lock(&n->mutex);
    if (!n->aborted && comm_status(n->comm, NULL) == STATUS_OK) {
        if (op->kind == OP_ALL_GATHER)
            finish(n, gather(n, op, handle), "an all-gather");
        else
            finish(n, reduce(n, op, recv, handle), "a reduce-scatter");
    }
    pthread_mutex_unlock(&n->mutex);
    if (op->kind == OP_REDUCE_SCATTER && op->accumulate) {
        ASSERT(op->dtype == DTYPE_F32);
        struct add_args add = {.dtype = DTYPE_F32, .n = (int64_t)op->count, .y = op->recv, .a = op->recv, .b = slice};
        n->cuda->device.ops->add(stream, &add);
    }
}

#endif
