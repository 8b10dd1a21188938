/* SPDX-License-Identifier: Apache-2.0 */
/* transport_nccl.c: see transport_gpu.h. Operations are ncclAllGather and ncclReduceScatter of whole slices: pieces
 * would need a broadcast or a reduction for each rank. An ordered reduce-scatter, of slices or pieces, and what only a
 * group of the ranks takes part in are ncclSend and ncclRecv: each rank receives the contributions to its slice and
 * adds them by a kernel of ztrain's.
 *
 * The communicator is non-blocking: after ncclInProgress the next call waits until the last has ended, the job has
 * failed or time is up. So no call of NCCL's can block a rank forever. Each group of operations takes a thread of
 * NCCL's, one operation alone as well: those that are due together are one group.
 *
 * Threads: the thread that owns the device enqueues operations. The watcher observes the peers, because this rank's
 * host may wait for its GPU while that waits for a dead peer's. `mutex` is held during calls that use the communicator;
 * the thread that sets `aborted` under it owns the communicator alone. */
#include "comm/transport_gpu.h"

#if TRANSPORT_HAS_NCCL

#include "comm/control/watchdog.h"
#include "core/faults.h"
#include "gpu/cuda/device_cuda.h"
#include "gpu/ops.h"

#include <sched.h>

/* How NCCL reaches memory of collectives; the same on all ranks, as has to be the place of a buffer in its window. */
enum memory_way {
    MEMORY_PLAIN,      /* of cudaMalloc: through NCCL's own buffers */
    MEMORY_REGISTERED, /* of ncclMemAlloc, with ncclCommRegister (NCCL 2.19): in place */
    MEMORY_WINDOW      /* with ncclCommWindowRegister (2.27), by all ranks; from 2.28 on gathers use copy engines */
};

struct nccl {
    struct transport_nccl base;
    struct comm *comm;
    struct cuda_device *cuda;
    const struct nccl_functions *nccl;
    double patience; /* seconds that a call may be in progress */
    char name[64];
    enum memory_way way;   /* the best that all ranks have */
    const char *why_plain; /* a reason of this rank; NULL: none */
    void *memory;          /* of ncclMemAlloc; NULL: none */
    void *registration;    /* of `memory`; NULL: none */

    pthread_mutex_t mutex; /* protects the next six members */
    ncclComm_t handle;
    bool ready;           /* all ranks have joined, and this one has not begun to leave */
    bool aborted;         /* by the watcher: the handle is invalid */
    bool registering;     /* then a refusal does not mean a broken GPU: containers, virtual GPUs, no fabric */
    struct error failure; /* NCCL's first error; code STATUS_OK: none */
    int failing;          /* the watcher's looks since `failure` */

    pthread_t watcher;
    bool watching;
    atomic_bool stop, abort_ended;
    struct watchdog *watches; /* (world) owned, used by the watcher */
};

enum { GRACE_LOOKS = 30 };
static const struct timespec until_look = {.tv_nsec = 50 * 1000 * 1000};

/* A call that may wait for a peer or for the GPU. */
#define NCCL_CALL(call) (heartbeat_device_begin(), end_nccl_call(call))

static ncclResult_t end_nccl_call(ncclResult_t result)
{
    heartbeat_device_end();
    return result;
}

/* ---- errors -------------------------------------------------------------- */

static bool nccl_is_fine(ncclResult_t result)
{
    return result == ncclSuccess || result == ncclInProgress;
}

/* Docker gives a container 64 MiB of /dev/shm, and no right to allocate on a socket, without which NCCL uses it. */
static const char container_hint[] = "/dev/shm is too small, or the ranks have different ones: in a container "
                                     "--shm-size=1g or --ipc=host helps, --cap-add SYS_NICE lets NCCL do without; ";

static const char *memory_hint(const struct nccl *n)
{
    return n->registering ? "ZTRAIN_NCCL_MEMORY=plain does without; " : "";
}

static enum status nccl_error(struct nccl *n, ncclResult_t result, const char *what, struct error *err)
{
    const char *last = n->nccl->ncclGetLastError(NULL), *detail = last ? last : "";
    const bool of_cuda = result == ncclUnhandledCudaError, suspect = of_cuda && cuda_text_is_suspect(detail);
    enum status code = !of_cuda || suspect                                 ? STATUS_PEER
                       : n->registering || strstr(detail, "out of memory") ? STATUS_DEVICE
                                                                           : STATUS_BROKEN;
    error_set(err, code, "NCCL: %s: %s%s%.400s", what, n->nccl->ncclGetErrorString(result), *detail ? ": " : "",
              detail);
    if (suspect && err && n->cuda->device.examine) n->cuda->device.examine(&n->cuda->device, err);
    return error_hint(err, "%s%sNCCL_DEBUG=INFO in the environment prints more", memory_hint(n),
                      strstr(detail, "/dev/shm") ? container_hint : "");
}

/* NCCL's error ends the job, unless the control channel has a reason within GRACE_LOOKS: NCCL often notices first that
 * a peer is gone, but not which one and why. Under the mutex. */
static void keep_nccl_failure(struct nccl *n, ncclResult_t result, const char *what)
{
    if (!nccl_is_fine(result) && n->failure.code == STATUS_OK) nccl_error(n, result, what, &n->failure);
}

/* ---- the watcher --------------------------------------------------------- */

/* Whether this thread has to abort the communicator. A thread that holds the mutex for a call checks the job itself. */
static bool look_at_nccl(struct nccl *n)
{
    ncclResult_t result = ncclSuccess;
    if (pthread_mutex_trylock(&n->mutex) != 0) return false;
    if (n->ready && n->nccl->ncclCommGetAsyncError(n->handle, &result) == ncclSuccess)
        keep_nccl_failure(n, result, "a collective failed");
    if (n->failure.code != STATUS_OK && ++n->failing >= GRACE_LOOKS) comm_abort(n->comm, &n->failure);
    bool abort = n->ready && comm_status(n->comm, NULL) != STATUS_OK;
    n->aborted |= abort;
    n->ready &= !abort;
    pthread_mutex_unlock(&n->mutex);
    return abort;
}

static void *abort_nccl(void *argument)
{
    struct nccl *n = argument;
    NCCL_CALL(n->nccl->ncclCommAbort(n->handle)); /* ends kernels that wait for a peer */
    atomic_store(&n->abort_ended, true);
    return NULL;
}

/* An abort ends neither a copy engine's wait for a peer nor, before NCCL 2.29.7, a kernel that works on windows. If it
 * does not return, or this rank's thread waits for its GPU all the time, only the end of the process ends that: after
 * the timeout, as the GPU may still compute. */
static void abort_and_watch(struct nccl *n)
{
    struct error err;
    pthread_t thread;
    if (thread_start(&thread, 0, abort_nccl, n) != 0) {
        abort_nccl(n);
        return;
    }
    double since = seconds_now();
    while (!atomic_load(&n->abort_ended) || !atomic_load(&n->stop)) {
        nanosleep(&until_look, NULL);
        if (atomic_load(&n->abort_ended) && !heartbeat_in_device_call()) since = seconds_now();
        if (seconds_now() - since < n->comm->control->timeout || !n->comm->config.stuck) continue;
        comm_status(n->comm, &err);
        n->comm->config.stuck(n->comm->config.stuck_context, err.text);
    }
    pthread_join(thread, NULL);
}

static void *nccl_watch(void *argument)
{
    struct nccl *n = argument;
    while (!atomic_load(&n->stop)) {
        for (int r = 0; r < n->comm->world; r++)
            if (r != n->comm->rank) watchdog_peek(n->comm->control, &n->watches[r], "a collective of NCCL");
        if (look_at_nccl(n)) {
            abort_and_watch(n);
            break;
        }
        nanosleep(&until_look, NULL);
    }
    return NULL;
}

static enum status start_watcher(struct nccl *n, struct error *err)
{
    n->watches = memory_zeroed((size_t)n->comm->world, sizeof *n->watches);
    for (int r = 0; r < n->comm->world; r++)
        if (r != n->comm->rank) watchdog_begin(n->comm->control, r, &n->watches[r]);
    if (thread_start(&n->watcher, 0, nccl_watch, n) != 0) return error_set(err, STATUS_DEVICE, "cannot start a thread");
    n->watching = true;
    return STATUS_OK;
}

/* ---- opening and closing ------------------------------------------------- */

static enum status settle_call(struct nccl *n, const char *what, struct error *err)
{
    const struct timespec shortly = {.tv_nsec = 50 * 1000}, pause = {.tv_nsec = 2 * 1000 * 1000};
    enum { YIELDS = 200, SHORT_PAUSES = 400 };
    const double start = seconds_now();
    for (int round = 0;; round++) {
        ncclResult_t result = ncclInProgress, asked = n->nccl->ncclCommGetAsyncError(n->handle, &result);
        if (asked != ncclSuccess) result = asked;
        if (result == ncclSuccess) return STATUS_OK;
        if (result != ncclInProgress) return nccl_error(n, result, what, err);
        TRY(comm_status(n->comm, err));
        if (seconds_now() - start > n->patience) {
            error_set(err, STATUS_PEER, "NCCL: %s: no progress for %.3g s, although all ranks are alive", what,
                      n->patience);
            return error_hint(err,
                              "%sNCCL_DEBUG=INFO in the environment prints more, NCCL_SOCKET_IFNAME names the "
                              "network; raise comm.timeout_seconds if it is only slow",
                              memory_hint(n));
        }
        heartbeat_beat();
        if (round < YIELDS)
            sched_yield();
        else
            nanosleep(round < YIELDS + SHORT_PAUSES ? &shortly : &pause, NULL);
    }
}

static enum status settle_result(struct nccl *n, ncclResult_t result, const char *what, struct error *err)
{
    return nccl_is_fine(result) ? settle_call(n, what, err) : nccl_error(n, result, what, err);
}

struct opening {
    int32_t code;    /* enum status */
    int32_t version; /* of the library */
    int32_t way;     /* enum memory_way */
};

/* The best that the library and ZTRAIN_NCCL_MEMORY allow on this rank. */
static enum status choose_memory_way(struct nccl *n, int version, struct error *err)
{
    static const char *const words[] = {"plain"};
    const struct nccl_functions *f = n->nccl;
    int word;
    TRY(env_choice("ZTRAIN_NCCL_MEMORY", words, COUNT_OF(words), &word, err));
    if (word >= 0)
        n->why_plain = "ZTRAIN_NCCL_MEMORY is plain";
    else if (!f->ncclMemAlloc || !f->ncclMemFree || !f->ncclCommRegister || !f->ncclCommDeregister)
        n->why_plain = "NCCL 2.19 is the first that can do without";
    else if (version < NCCL_VERSION(2, 27, 0) || !f->ncclCommWindowRegister || !f->ncclCommWindowDeregister)
        n->way = MEMORY_REGISTERED;
    else
        n->way = MEMORY_WINDOW;
    return STATUS_OK;
}

/* Without the other ranks. `id` is set on rank 0. */
static enum status begin_alone(struct nccl *n, ncclUniqueId *id, int *version, struct error *err)
{
    TRY(nccl_open(&n->nccl, err));
    n->nccl->ncclGetVersion(version);
    TRY(choose_memory_way(n, *version, err));
    memset(id, 0, sizeof *id);
    ncclResult_t result = n->comm->rank == 0 ? NCCL_CALL(n->nccl->ncclGetUniqueId(id)) : ncclSuccess;
    if (result != ncclSuccess) return nccl_error(n, result, "no unique id", err);
    return start_watcher(n, err);
}

static enum status nccl_check_openings(const struct comm *comm, const struct opening *all, struct error *err)
{
    for (int r = 0; r < comm->world; r++) {
        const char *host = comm->control->block->ranks[r].host;
        if (all[r].code != STATUS_OK) {
            error_set(err, (enum status)all[r].code, "rank %d on %s cannot use NCCL", r, host);
            return error_blame(err, r, FAILURE_NONE);
        }
        if (all[r].version != all[0].version) {
            error_set(err, STATUS_DEVICE, "rank %d on %s has version %d of NCCL, rank 0 on %s has %d", r, host,
                      all[r].version, comm->control->block->ranks[0].host, all[0].version);
            error_blame(err, r, FAILURE_NONE);
            return error_hint(err, "install the same library on all nodes; LD_LIBRARY_PATH and ldconfig choose it");
        }
    }
    return STATUS_OK;
}

/* begin_alone() on all ranks. Collective: all fail if one does. */
static enum status begin_together(struct nccl *n, ncclUniqueId *id, int *version, struct error *err)
{
    struct comm *comm = n->comm;
    struct error own_error = {.code = STATUS_OK};
    struct opening own;
    OWNED struct opening *all = memory_zeroed((size_t)comm->world, sizeof *all);
    own.code = (int32_t)begin_alone(n, id, version, &own_error);
    own.version = *version;
    own.way = (int32_t)n->way;
    enum status status = comm_exchange(comm, &own, sizeof own, all, err);
    if (status == STATUS_OK && own.code != STATUS_OK) {
        *err = own_error;
        status = own_error.code;
    } else if (status == STATUS_OK) {
        status = nccl_check_openings(comm, all, err);
    }
    for (int r = 0; status == STATUS_OK && r < comm->world; r++)
        n->way = all[r].way < (int32_t)n->way ? (enum memory_way)all[r].way : n->way;
    if (n->way == MEMORY_PLAIN && !n->why_plain) n->why_plain = "another rank cannot do without";
    return status;
}

static enum status join(struct nccl *n, ncclUniqueId id, int version, int ctas, struct error *err)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (ctas > 0) config.maxCTAs = ctas;
    (void)version; /* a header before 2.28 */
#ifdef NCCL_CTA_POLICY_ZERO
    if (n->way == MEMORY_WINDOW && version >= NCCL_VERSION(2, 28, 0))
        config.CTAPolicy = NCCL_CTA_POLICY_ZERO; /* gathers in windows run on copy engines where NCCL can */
#endif
    enum status status = settle_result(
        n, NCCL_CALL(n->nccl->ncclCommInitRankConfig(&n->handle, n->comm->world, id, n->comm->rank, &config)),
        "cannot join the communicator", err);
    if (status != STATUS_OK) {
        if (comm_status(n->comm, NULL) == STATUS_OK)
            comm_abort(n->comm, err); /* the other ranks wait in it for this one */
        return status;
    }
    LOCKED(&n->mutex);
    n->ready = true;
    return STATUS_OK;
}

static ncclResult_t deregister(struct nccl *n)
{
    void *registration = n->registration;
    n->registration = NULL;
    if (!registration) return ncclSuccess;
    return NCCL_CALL(n->way == MEMORY_WINDOW ? n->nccl->ncclCommWindowDeregister(n->handle, registration)
                                             : n->nccl->ncclCommDeregister(n->handle, registration));
}

static void free_memory(struct nccl *n)
{
    if (!n->memory) return;
    cuda_disown(n->cuda, n->memory);
    NCCL_CALL(n->nccl->ncclMemFree(n->memory));
    n->memory = NULL;
}

/* In order if all ranks do, by an abort if not. */
static void leave(struct nccl *n)
{
    pthread_mutex_lock(&n->mutex);
    bool well = n->ready && n->failure.code == STATUS_OK && comm_status(n->comm, NULL) == STATUS_OK;
    n->ready = false; /* this thread owns the communicator; the watcher continues to observe the peers */
    pthread_mutex_unlock(&n->mutex);
    if (well) well = nccl_is_fine(deregister(n)) && settle_call(n, "closing", NULL) == STATUS_OK;
    if (well)
        well = nccl_is_fine(NCCL_CALL(n->nccl->ncclCommFinalize(n->handle))) &&
               settle_call(n, "closing", NULL) == STATUS_OK;
    atomic_store(&n->stop, true);
    if (n->watching) pthread_join(n->watcher, NULL);
    if (!n->handle || n->aborted) return;
    NCCL_CALL(well ? n->nccl->ncclCommDestroy(n->handle) : n->nccl->ncclCommAbort(n->handle));
}

static void nccl_free(struct transport_nccl *base)
{
    struct nccl *n = (struct nccl *)base;
    leave(n);
    free_memory(n);
    pthread_mutex_destroy(&n->mutex);
    free(n->watches);
    free(n);
}

/* ---- operations ---------------------------------------------------------- */

static ncclDataType_t nccl_type_of(enum dtype dtype)
{
    return dtype == DTYPE_F32 ? ncclFloat32 : dtype == DTYPE_BF16 ? ncclBfloat16 : ncclFloat16;
}

/* Waits for a call in progress. Under the mutex. */
static void finish_call(struct nccl *n, ncclResult_t result, const char *what)
{
    keep_nccl_failure(n, result, what);
    if (result == ncclInProgress && comm_status(n->comm, NULL) == STATUS_OK) {
        struct error err;
        if (settle_call(n, what, &err) != STATUS_OK && n->failure.code == STATUS_OK) n->failure = err;
    }
    if (n->failure.code == STATUS_OK) return;
    for (int i = 0; i < GRACE_LOOKS && comm_status(n->comm, NULL) == STATUS_OK; i++) {
        nanosleep(&until_look, NULL);
        heartbeat_beat();
    }
    comm_abort(n->comm, &n->failure); /* before anyone uses memory that was not gathered or reduced */
}

static bool is_usable(const struct nccl *n)
{
    return n->ready && n->failure.code == STATUS_OK && comm_status(n->comm, NULL) == STATUS_OK;
}

static void nccl_launch(struct transport_nccl *base, struct graph *graph)
{
    struct nccl *n = (struct nccl *)base;
    LOCKED(&n->mutex);
    if (is_usable(n)) graph_launch(graph);
}

/* NCCL adds up neither into other values nor into another dtype. */
static bool adds_afterwards(const struct data_op *op)
{
    return op->kind == OP_REDUCE_SCATTER && (op->accumulate || op->dtype != op->recv_dtype);
}

/* Of what a reduce-scatter sends. index: of the owner in its group. */
static char *slice_of(const struct data_op *op, int index)
{
    return (char *)(uintptr_t)op->send + (size_t)index * op->stride * dtype_size(op->dtype);
}

static ncclResult_t enqueue(struct nccl *n, const struct data_op *op, cudaStream_t stream)
{
    const ncclDataType_t type = nccl_type_of(op->dtype);
    ASSERT(op->stride == op->count); /* comm_takes_pieces() */
    if (op->kind == OP_ALL_GATHER)
        return n->nccl->ncclAllGather(op->send, op->recv, op->count, type, n->handle, stream);
    void *recv = adds_afterwards(op) ? slice_of(op, n->comm->rank) : op->recv;
    return n->nccl->ncclReduceScatter(op->send, recv, op->count, type, ncclSum, n->handle, stream);
}

/* Under the mutex. */
static void enqueue_group(struct nccl *n, const struct data_op *ops, int count, cudaStream_t stream)
{
    const char *what = ops->kind == OP_ALL_GATHER ? "an all-gather" : "a reduce-scatter";
    ncclResult_t result = ncclSuccess, ended;
    if (count == 1) {
        finish_call(n, enqueue(n, ops, stream), what);
        return;
    }
    n->nccl->ncclGroupStart();
    for (int i = 0; i < count && nccl_is_fine(result); i++) result = enqueue(n, &ops[i], stream);
    ended = n->nccl->ncclGroupEnd();
    finish_call(n, nccl_is_fine(result) ? ended : result, what);
}

static void submit_group(struct nccl *n, const struct data_op *ops, int count, struct stream *stream)
{
    pthread_mutex_lock(&n->mutex);
    heartbeat_device_begin();
    if (is_usable(n)) enqueue_group(n, ops, count, cuda_stream_of(stream)->handle);
    heartbeat_device_end();
    pthread_mutex_unlock(&n->mutex);
    for (const struct data_op *op = ops; op < ops + count; op++) {
        if (!adds_afterwards(op)) continue;
        RUN_OP(n->cuda->device.ops, accumulate, stream, .dst_dtype = op->recv_dtype, .src_dtype = op->dtype,
               .n = (int64_t)op->count, .dst = op->recv, .src = slice_of(op, n->comm->rank), .scale = 1,
               .accumulate = op->accumulate);
    }
}

/* ---- from rank to rank --------------------------------------------------- */

/* The place of a contribution in the inbox, which is that in the sum. */
static int turn_of(const struct data_op *op, int index)
{
    return faults_reverse_sums() ? op->group.size - 1 - index : index;
}

/* Where rank `index` of the group puts what it sends here. */
static char *receive_place(const struct data_op *op, int index)
{
    const size_t size = dtype_size(op->dtype);
    return op->kind == OP_ALL_GATHER ? (char *)op->recv + (size_t)index * op->stride * size
                                     : (char *)op->inbox + (size_t)turn_of(op, index) * op->count * size;
}

/* Each rank begins with its right neighbour, so that not all send to the same one. Under the mutex. */
static void exchange_slices(struct nccl *n, const struct data_op *op, cudaStream_t stream)
{
    const int ranks = op->group.size, own = group_index(op->group, n->comm->rank);
    const bool gathers = op->kind == OP_ALL_GATHER;
    const ncclDataType_t type = nccl_type_of(op->dtype);
    ncclResult_t result = ncclSuccess, ended;
    n->nccl->ncclGroupStart();
    for (int i = 1; i < ranks && nccl_is_fine(result); i++) {
        const int to = (own + i) % ranks, from = (own + ranks - i) % ranks;
        result = n->nccl->ncclSend(gathers ? op->send : slice_of(op, to), op->count, type,
                                   group_rank(op->group, n->comm->rank, to), n->handle, stream);
        if (nccl_is_fine(result))
            result = n->nccl->ncclRecv(receive_place(op, from), op->count, type,
                                       group_rank(op->group, n->comm->rank, from), n->handle, stream);
    }
    ended = n->nccl->ncclGroupEnd();
    finish_call(n, nccl_is_fine(result) ? ended : result, gathers ? "an all-gather" : "an ordered reduce-scatter");
}

static void submit_exchange(struct nccl *n, const struct data_op *op, struct stream *stream)
{
    const int own = group_index(op->group, n->comm->rank);
    pthread_mutex_lock(&n->mutex);
    heartbeat_device_begin();
    if (is_usable(n) && op->group.size > 1) exchange_slices(n, op, cuda_stream_of(stream)->handle);
    heartbeat_device_end();
    pthread_mutex_unlock(&n->mutex);
    if (op->kind == OP_ALL_GATHER) {
        if (receive_place(op, own) != op->send)
            stream_copy(stream, receive_place(op, own), op->send, op->count * dtype_size(op->dtype));
        return;
    }
    ASSERT(op->ordered && op->inbox);
    RUN_OP(n->cuda->device.ops, sum_ranks, stream, .dtype = op->dtype, .out_dtype = op->recv_dtype,
           .n = (int64_t)op->count, .ranks = op->group.size, .rank = turn_of(op, own), .out = op->recv,
           .own = slice_of(op, own), .inbox = op->inbox, .accumulate = op->accumulate);
}

/* Ordered ones follow each other, as they may share an inbox. */
static void nccl_submit(struct transport_nccl *base, const struct data_op *ops, int count, struct stream *stream)
{
    struct nccl *n = (struct nccl *)base;
    struct data_op whole[COMM_GROUP_MAX];
    int wholes = 0;
    for (const struct data_op *op = ops; op < ops + count; op++)
        if (!op->ordered && op->group.size == n->comm->world) whole[wholes++] = *op;
    if (wholes) submit_group(n, whole, wholes, stream);
    for (const struct data_op *op = ops; op < ops + count; op++)
        if (op->ordered || op->group.size < n->comm->world) submit_exchange(n, op, stream);
}

/* ---- memory -------------------------------------------------------------- */

static bool allocate_memory(struct nccl *n, size_t bytes)
{
    struct error ignored;
    SLOW("allocating memory with NCCL", NULL, -1);
    if (n->nccl->ncclMemAlloc(&n->memory, bytes) != ncclSuccess) {
        cudaGetLastError(); /* not a failure of the device */
        n->memory = NULL;
    } else if (cuda_adopt(n->cuda, n->memory, bytes, &ignored) != STATUS_OK) {
        n->nccl->ncclMemFree(n->memory);
        n->memory = NULL;
    }
    return n->memory;
}

static ncclResult_t register_by_way(struct nccl *n, size_t bytes)
{
    if (n->way == MEMORY_REGISTERED)
        return NCCL_CALL(n->nccl->ncclCommRegister(n->handle, n->memory, bytes, &n->registration));
    return NCCL_CALL(n->nccl->ncclCommWindowRegister(n->handle, n->memory, bytes, (ncclWindow_t *)&n->registration,
                                                     NCCL_WIN_COLL_SYMMETRIC));
}

/* n->registration stays NULL if NCCL cannot do that here. bytes 0: ends the registration, if there is one. */
static enum status register_memory(struct nccl *n, size_t bytes, struct error *err)
{
    LOCKED(&n->mutex);
    enum status status = comm_status(n->comm, err); /* if it is fine, the watcher has not aborted */
    if (status == STATUS_OK) {
        n->registering = true;
        status = settle_result(n, bytes ? register_by_way(n, bytes) : deregister(n), "cannot register memory", err);
        n->registering = false;
    }
    return status;
}

/* Each rank takes the way that all can take. */
static enum status nccl_share(struct transport_nccl *base, size_t bytes, void **memory, struct error *err)
{
    static const char *const names[] = {"through buffers of its own: ", "in place", "in place, as a window"};
    struct nccl *n = (struct nccl *)base;
    const char *missing = "it gives no memory of its own";
    double lacking = n->way == MEMORY_PLAIN || !allocate_memory(n, bytes);
    TRY(comm_sum(n->comm, &lacking, 1, err));
    if (lacking > 0) n->way = MEMORY_PLAIN;
    while (n->way > MEMORY_PLAIN) {
        TRY(register_memory(n, bytes, err));
        lacking = !n->registration;
        TRY(comm_sum(n->comm, &lacking, 1, err));
        if (lacking == 0) break;
        TRY(register_memory(n, 0, err));
        n->way--;
        missing = "it registers none";
    }
    if (n->way == MEMORY_PLAIN) free_memory(n);
    *memory = n->memory;
    if (n->comm->rank == 0)
        log_detail("collectives: NCCL moves %.1f MiB of parameters and gradients %s%s", (double)bytes / (1 << 20),
                   names[n->way],
                   n->way > MEMORY_PLAIN ? ""
                   : n->why_plain        ? n->why_plain
                                         : missing);
    return STATUS_OK;
}

enum status transport_nccl_new(struct comm *comm, struct device *device, int ctas, struct transport_nccl **out,
                               const char **way, struct error *err)
{
    enum status status;
    ncclUniqueId id;
    int version = 0;
    struct nccl *n = memory_zeroed(1, sizeof *n);
    n->base = (struct transport_nccl){nccl_submit, nccl_launch, nccl_share, nccl_free};
    n->comm = comm;
    n->cuda = (struct cuda_device *)device->private_;
    n->patience = 6 * comm->control->timeout + 0.25 * comm->world; /* NCCL searches for the paths between GPUs */
    pthread_mutex_init(&n->mutex, NULL);
    TRY_GOTO(begin_together(n, &id, &version, err));
    TRY_GOTO(comm_broadcast(comm, &id, sizeof id, 0, err));
    TRY_GOTO(join(n, id, version, ctas, err));
    snprintf(n->name, sizeof n->name, "NCCL %d.%d.%d", version / 10000, version % 10000 / 100, version % 100);
    *way = n->name;
    *out = &n->base;
    return STATUS_OK;
fail:
    nccl_free(&n->base);
    return status;
}

#endif
