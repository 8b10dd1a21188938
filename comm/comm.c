/* comm.c: the host communicator for ranks of one machine, over the shared memory of control.h.
 *
 * A data operation runs as one piece of work in stream order:
 *
 *     publish what we do and where our send buffer lies · arrive · wait for all · compare with the peers
 *     every send buffer in its segment:  read the peers' memory in place · arrive · wait for all (buffers are free
 * again) else, chunk by chunk:              copy into staging · arrive · wait · read the peers' staging · arrive · wait
 *
 * All-gather: each rank copies the others' slices, starting with its right neighbour, so that they do not all read one.
 * Reduce-scatter: each rank adds up its own slice of all ranks, 0 first. Between a rank's arrival and the end of the
 * operation its send buffer is only read.
 *
 * A control operation (exchange) uses slot k mod 2 of each rank for the k-th: a rank writes slot k+2 only after all
 * have arrived at k+1, and they do that after having read slot k.
 *
 * Threads: data operations on the thread of their stream, control operations on the caller's. */
#include "comm/comm.h"

#include "comm/control.h"
#include "comm/sums.h"
#include "core/progress.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PIECE_BYTES = 1 << 20 /* between two looks at the job's health */, PAGE_BYTES = 4096 };
_Static_assert((int)COMM_EXCHANGE_MAX == (int)CONTROL_SLOT_BYTES, "an exchange fits a slot");

enum op_kind { OP_NONE, OP_ALL_GATHER, OP_REDUCE_SCATTER, OP_EXCHANGE, OP_BARRIER, OP_BROADCAST, OP_KIND_COUNT };
static const char *const op_names[] = {
    [OP_NONE] = "nothing",         [OP_ALL_GATHER] = "an all-gather", [OP_REDUCE_SCATTER] = "a reduce-scatter",
    [OP_EXCHANGE] = "an exchange", [OP_BARRIER] = "a barrier",        [OP_BROADCAST] = "a broadcast"};
_Static_assert(COUNT_OF(op_names) == OP_KIND_COUNT, "every operation has a name");

struct comm {
    int rank, world;
    struct control *control;
    char *segments;       /* world × segment_stride, or NULL */
    size_t segment_bytes; /* of each, as asked for */
    size_t segment_stride;
    uint32_t arrivals[CHANNEL_COUNT];   /* own; each used by its channel's thread */
    uint64_t operations[CHANNEL_COUNT]; /* agreed on so far */
    struct control_op *peers;           /* (world): the ranks' data operation; of the data channel's thread */
    const void **in;                    /* (world): what it adds up */
    char **slots;                       /* (world): of the control channel's thread */
    uint64_t *sizes;                    /* (world) */
    pthread_mutex_t mutex;              /* stats */
    struct comm_stats stats;
};

struct data_op {
    struct comm *comm;
    enum op_kind kind;
    enum dtype dtype;
    const void *send;
    void *recv;
    size_t count;  /* elements of one rank's slice */
    size_t stride; /* elements between two slices */
    bool accumulate;
    int32_t *bad_rank;
};
_Static_assert(sizeof(struct data_op) <= STREAM_ARGUMENT_MAX, "a data operation is a stream argument");

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---------------------------------------------------------------- opening and closing */

enum status comm_open(const struct bootstrap *bootstrap, const struct comm_config *config, struct comm **comm,
                      struct error *err)
{
    ASSERT(config->timeout_seconds > 0);
    enum status status = STATUS_OK;
    *comm = NULL;
    if (bootstrap->world > BOOTSTRAP_MAX_RANKS)
        return error_set(err, STATUS_USAGE, "%d ranks are more than %d", bootstrap->world, BOOTSTRAP_MAX_RANKS);
    struct comm *c = calloc(1, sizeof *c);
    if (!c)
        return error_set(err, STATUS_DEVICE, "out of memory");
    c->rank = bootstrap->rank;
    c->world = bootstrap->world;
    pthread_mutex_init(&c->mutex, NULL);
    size_t world = (size_t)c->world;
    c->peers = calloc(world, sizeof *c->peers);
    c->in = calloc(world, sizeof *c->in);
    c->slots = calloc(world, sizeof *c->slots);
    c->sizes = calloc(world, sizeof *c->sizes);
    if (!c->peers || !c->in || !c->slots || !c->sizes) {
        status = error_set(err, STATUS_DEVICE, "out of memory");
        goto fail;
    }
    TRY_GOTO(control_attach(bootstrap->shared_fd, c->rank, c->world, bootstrap->host, config->timeout_seconds,
                            &c->control, err));
    TRY_GOTO(control_join(c->control, err));
    *comm = c;
    return STATUS_OK;
fail:
    if (c->control && err)
        comm_abort(c, err);
    comm_close(c);
    return status;
}

void comm_close(struct comm *comm)
{
    if (!comm)
        return;
    if (comm->control) {
        if (comm->world > 1 && control_status(comm->control, NULL) == STATUS_OK)
            comm_barrier(comm, NULL);
        control_leave(comm->control);
        control_detach(comm->control);
    }
    if (comm->segments)
        munmap(comm->segments, comm->segment_stride * (size_t)comm->world);
    pthread_mutex_destroy(&comm->mutex);
    free(comm->peers);
    free(comm->in);
    free(comm->slots);
    free(comm->sizes);
    free(comm);
}

int comm_rank(const struct comm *comm)
{
    return comm->rank;
}

int comm_world(const struct comm *comm)
{
    return comm->world;
}

enum status comm_status(struct comm *comm, struct error *err)
{
    return control_status(comm->control, err);
}

void comm_abort(struct comm *comm, const struct error *err)
{
    control_fail(comm->control, comm->rank, err->code, err->text);
}

bool comm_await_end(struct comm *comm, double seconds)
{
    control_leave(comm->control);
    return control_await_end(comm->control, seconds);
}

/* ---------------------------------------------------------------- shared segments */

/* MemAvailable of the machine in bytes, or SIZE_MAX where it cannot be read */
static size_t memory_available(void)
{
    FILE *file = fopen("/proc/meminfo", "r");
    if (!file)
        return SIZE_MAX;
    char line[128];
    uint64_t kib = 0;
    bool found = false;
    while (!found && fgets(line, sizeof line, file))
        found = sscanf(line, "MemAvailable: %" SCNu64 " kB", &kib) == 1;
    fclose(file);
    return found ? (size_t)kib * 1024 : SIZE_MAX;
}

/* Makes the pages of [memory, memory + bytes) exist, in runs, ticking: a segment may be many gigabytes. */
static int populate(char *memory, size_t bytes, int advice)
{
    enum { RUN = 64 << 20 };
    for (size_t at = 0; at < bytes; at += RUN) {
        size_t run = bytes - at < RUN ? bytes - at : RUN;
        if (madvise(memory + at, run, advice) != 0) {
            if (errno != EINVAL)
                return errno;
            for (size_t page = 0; page < run; page += PAGE_BYTES) { /* a kernel before 5.14 */
                volatile char *touched = memory + at + page;
                if (advice == MADV_POPULATE_WRITE)
                    *touched = 0;
                else
                    (void)*touched;
            }
        }
        progress_tick();
    }
    return 0;
}

enum status comm_share(struct comm *comm, size_t bytes, void **memory, struct error *err)
{
    ASSERT(!comm->segments);
    const size_t align = 2 << 20;
    *memory = NULL;
    uint64_t *all = comm->sizes, own = bytes;
    TRY(comm_exchange(comm, &own, sizeof own, all, err));
    for (int r = 0; r < comm->world; r++)
        if (all[r] != own)
            return error_set(err, STATUS_BUG, "rank %d shares %" PRIu64 " bytes, rank %d %" PRIu64, r, all[r],
                             comm->rank, own);
    if (bytes == 0)
        return STATUS_OK;

    size_t stride = (bytes + align - 1) / align * align, total = stride * (size_t)comm->world;
    size_t available = memory_available();
    struct error local = {.code = STATUS_OK};
    int fd = control_fd(comm->control);
    if (comm->rank == 0 && total > available)
        error_set(&local, STATUS_DEVICE, "%d ranks need %.1f MiB of shared memory, %.1f MiB are available", comm->world,
                  (double)total / 1048576, (double)available / 1048576);
    else if (comm->rank == 0 && fd >= 0 && ftruncate(fd, (off_t)(control_segments_offset(comm->control) + total)) != 0)
        error_set(&local, STATUS_DEVICE, "cannot make %.1f MiB of shared memory: %s", (double)total / 1048576,
                  strerror(errno));
    if (local.code != STATUS_OK) {
        error_hint(&local, "take a higher ZeRO stage, a smaller model, or fewer ranks on this machine");
        comm_abort(comm, &local);
        if (err)
            *err = local;
        return local.code;
    }
    TRY(comm_barrier(comm, err)); /* the file is long enough for all */

    char *map = mmap(NULL, total, PROT_READ | PROT_WRITE, fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd,
                     fd < 0 ? 0 : (off_t)control_segments_offset(comm->control));
    if (map == MAP_FAILED)
        return error_set(err, STATUS_DEVICE, "cannot map %.1f MiB of shared memory: %s", (double)total / 1048576,
                         strerror(errno));
    comm->segments = map;
    comm->segment_bytes = bytes;
    comm->segment_stride = stride;
    madvise(map, total, MADV_HUGEPAGE); /* where the system allows it for shared memory */
    char *mine = map + stride * (size_t)comm->rank;
    int error = populate(mine, stride, MADV_POPULATE_WRITE);
    if (error)
        return error_set(err, STATUS_DEVICE, "cannot have %.1f MiB of shared memory: %s", (double)stride / 1048576,
                         strerror(error));
    TRY(comm_barrier(comm, err)); /* all pages exist: the peers' can be mapped without making any */
    error = populate(map, total, MADV_POPULATE_READ);
    if (error)
        return error_set(err, STATUS_DEVICE, "cannot map the peers' shared memory: %s", strerror(error));
    *memory = mine;
    return STATUS_OK;
}

/* Offset of [buffer, buffer + bytes) in this rank's segment, or CONTROL_STAGED if it does not lie in it. */
static uint64_t segment_offset(const struct comm *comm, const void *buffer, size_t bytes)
{
    if (!comm->segments)
        return CONTROL_STAGED;
    uintptr_t start = (uintptr_t)(comm->segments + comm->segment_stride * (size_t)comm->rank), at = (uintptr_t)buffer;
    if (at < start || at - start > comm->segment_bytes || bytes > comm->segment_bytes - (at - start))
        return CONTROL_STAGED;
    return at - start;
}

/* ---------------------------------------------------------------- data operations */

/* Arrives on a channel and waits until all others have arrived as often. */
static enum status meet(struct comm *comm, enum control_channel channel, const char *what)
{
    comm->arrivals[channel] = control_arrive(comm->control, channel);
    return control_wait_all(comm->control, channel, comm->arrivals[channel], what);
}

/* Publishes our operation, meets the others, compares. Peers' operations are left in peers[world]. */
static enum status agree(struct comm *comm, enum control_channel channel, const struct control_op *own,
                         struct control_op *peers)
{
    struct control_block *block = control_block(comm->control);
    int turn = (int)(comm->operations[channel]++ % 2);
    block->ranks[comm->rank].op[channel][turn] = *own;
    TRY(meet(comm, channel, op_names[own->kind]));
    for (int r = 0; r < comm->world; r++) {
        struct control_op other = block->ranks[r].op[channel][turn];
        if (other.kind != own->kind || other.dtype != own->dtype || other.count != own->count) {
            char text[256];
            snprintf(text, sizeof text,
                     "rank %d is in %s of %" PRIu64 " elements (type %u) while rank %d is in %s of %" PRIu64
                     " (type %u)",
                     comm->rank, op_names[own->kind], own->count, own->dtype, r,
                     op_names[other.kind < OP_KIND_COUNT ? other.kind : OP_NONE], other.count, other.dtype);
            control_fail(comm->control, -1, STATUS_BUG, text);
            return STATUS_BUG;
        }
        if (peers)
            peers[r] = other;
    }
    return STATUS_OK;
}

/* memcpy in pieces with a look at the job's health between them */
static enum status copy_pieces(struct comm *comm, char *dst, const char *src, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += PIECE_BYTES) {
        TRY(control_status(comm->control, NULL));
        memcpy(dst + at, src + at, bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES);
        progress_tick();
    }
    return STATUS_OK;
}

static enum status gather_in_place(const struct data_op *op, const struct control_op *peers)
{
    struct comm *comm = op->comm;
    size_t bytes = op->count * dtype_size(op->dtype), stride = op->stride * dtype_size(op->dtype);
    for (int i = 0; i < comm->world; i++) {
        int r = (comm->rank + i) % comm->world;
        char *dst = (char *)op->recv + (size_t)r * stride;
        const char *src = comm->segments + comm->segment_stride * (size_t)r + peers[r].offset;
        if (dst != src)
            TRY(copy_pieces(comm, dst, src, bytes));
    }
    return meet(comm, CHANNEL_DATA, op_names[op->kind]);
}

static enum status gather_staged(const struct data_op *op)
{
    struct comm *comm = op->comm;
    size_t bytes = op->count * dtype_size(op->dtype), stride = op->stride * dtype_size(op->dtype);
    for (size_t at = 0; at < bytes; at += CONTROL_STAGING_BYTES) {
        size_t n = bytes - at < CONTROL_STAGING_BYTES ? bytes - at : CONTROL_STAGING_BYTES;
        memcpy(control_staging(comm->control, comm->rank), (const char *)op->send + at, n);
        TRY(meet(comm, CHANNEL_DATA, op_names[op->kind]));
        for (int r = 0; r < comm->world; r++)
            if (r != comm->rank || op->send != (char *)op->recv + (size_t)r * stride)
                memcpy((char *)op->recv + (size_t)r * stride + at, control_staging(comm->control, r), n);
        TRY(meet(comm, CHANNEL_DATA, op_names[op->kind]));
        progress_tick();
    }
    return STATUS_OK;
}

/* *lowest may be missing */
static void note_bad(int32_t *lowest, int32_t rank)
{
    if (lowest && rank < *lowest)
        *lowest = rank;
}

static enum status reduce_in_place(const struct data_op *op, const struct control_op *peers)
{
    struct comm *comm = op->comm;
    const size_t size = dtype_size(op->dtype), piece = PIECE_BYTES / sizeof(float);
    const void **in = comm->in;
    int32_t bad = RANK_NONE;
    for (size_t at = 0; at < op->count; at += piece) {
        TRY(control_status(comm->control, NULL));
        size_t n = op->count - at < piece ? op->count - at : piece;
        for (int r = 0; r < comm->world; r++)
            in[r] = comm->segments + comm->segment_stride * (size_t)r + peers[r].offset +
                    ((size_t)comm->rank * op->stride + at) * size;
        note_bad(&bad, sum_ranks((float *)op->recv + at, in, comm->world, n, op->dtype, op->accumulate));
        progress_tick();
    }
    note_bad(op->bad_rank, bad);
    return meet(comm, CHANNEL_DATA, op_names[op->kind]);
}

static enum status reduce_staged(const struct data_op *op)
{
    struct comm *comm = op->comm;
    const size_t size = dtype_size(op->dtype), world = (size_t)comm->world;
    const size_t piece = CONTROL_STAGING_BYTES / (size * world); /* elements of each owner's slice at a time */
    const void **in = comm->in;
    int32_t bad = RANK_NONE;
    for (size_t at = 0; at < op->count; at += piece) {
        size_t n = op->count - at < piece ? op->count - at : piece;
        for (size_t owner = 0; owner < world; owner++)
            memcpy(control_staging(comm->control, comm->rank) + owner * n * size,
                   (const char *)op->send + (owner * op->stride + at) * size, n * size);
        TRY(meet(comm, CHANNEL_DATA, op_names[op->kind]));
        for (int r = 0; r < comm->world; r++)
            in[r] = control_staging(comm->control, r) + (size_t)comm->rank * n * size;
        note_bad(&bad, sum_ranks((float *)op->recv + at, in, comm->world, n, op->dtype, op->accumulate));
        TRY(meet(comm, CHANNEL_DATA, op_names[op->kind]));
        progress_tick();
    }
    note_bad(op->bad_rank, bad);
    return STATUS_OK;
}

#ifdef ZTRAIN_FAULTS
/* Test builds: ZTRAIN_COMM_FAULT=RANK:N:SIGNAL sends itself that signal in the middle of its N-th data operation. */
static void fault_in_collective(const struct comm *comm)
{
    static long long count; /* one data thread */
    const char *fault = getenv("ZTRAIN_COMM_FAULT");
    long long at;
    int rank, number;
    if (fault && sscanf(fault, "%d:%lld:%d", &rank, &at, &number) == 3 && rank == comm->rank && ++count == at)
        kill(getpid(), number);
}
#else
static void fault_in_collective(const struct comm *comm)
{
    (void)comm;
}
#endif

/* On the stream's thread. A failure is in the control block, where comm_status() finds it. */
static enum status data_op_meet(const struct data_op *op)
{
    struct comm *comm = op->comm;
    TRY(control_status(comm->control, NULL));
    size_t last = op->kind == OP_REDUCE_SCATTER ? op->stride * (size_t)(comm->world - 1) : 0;
    size_t sent = (last + op->count) * dtype_size(op->dtype);
    struct control_op own = {.kind = op->kind, .dtype = op->dtype, .count = op->count}, *peers = comm->peers;
    own.offset = segment_offset(comm, op->send, sent);
    TRY(agree(comm, CHANNEL_DATA, &own, peers));
    fault_in_collective(comm);
    bool staged = false;
    for (int r = 0; r < comm->world; r++)
        staged |= peers[r].offset == CONTROL_STAGED;
    if (op->kind == OP_ALL_GATHER)
        return staged ? gather_staged(op) : gather_in_place(op, peers);
    return staged ? reduce_staged(op) : reduce_in_place(op, peers);
}

static void data_op_run(void *argument)
{
    const struct data_op *op = argument;
    double start = seconds_now();
    data_op_meet(op);
    pthread_mutex_lock(&op->comm->mutex);
    op->comm->stats.seconds += seconds_now() - start;
    pthread_mutex_unlock(&op->comm->mutex);
}

/* World 1: there is nobody to meet. */
static void data_op_run_alone(void *argument)
{
    const struct data_op *op = argument;
    if (op->kind == OP_ALL_GATHER) {
        if (op->recv != op->send)
            memcpy(op->recv, op->send, op->count * dtype_size(op->dtype));
    } else {
        const void *in[] = {op->send};
        note_bad(op->bad_rank, sum_ranks(op->recv, in, 1, op->count, op->dtype, op->accumulate));
    }
    progress_tick();
}

static void data_op_submit(const struct data_op *op, struct stream *stream)
{
    struct comm *comm = op->comm;
    if (op->count == 0)
        return;
    if (comm->world == 1) {
        stream_submit(stream, data_op_run_alone, op, sizeof *op);
        return;
    }
    int64_t bytes = (int64_t)(op->count * dtype_size(op->dtype)) * (comm->world - 1);
    pthread_mutex_lock(&comm->mutex);
    if (op->kind == OP_ALL_GATHER) {
        comm->stats.all_gather_calls++;
        comm->stats.all_gather_bytes += bytes;
    } else {
        comm->stats.reduce_scatter_calls++;
        comm->stats.reduce_scatter_bytes += bytes;
    }
    pthread_mutex_unlock(&comm->mutex);
    stream_submit(stream, data_op_run, op, sizeof *op);
}

void comm_all_gather(struct comm *comm, const void *send, void *recv, size_t count, size_t stride, enum dtype dtype,
                     struct stream *stream)
{
    ASSERT(stride == 0 || stride >= count);
    struct data_op op = {.comm = comm,
                         .kind = OP_ALL_GATHER,
                         .send = send,
                         .recv = recv,
                         .count = count,
                         .stride = stride ? stride : count,
                         .dtype = dtype};
    data_op_submit(&op, stream);
}

void comm_reduce_scatter(struct comm *comm, const void *send, float *recv, size_t count, size_t stride,
                         enum dtype dtype, bool accumulate, int32_t *bad_rank, struct stream *stream)
{
    ASSERT(stride == 0 || stride >= count);
    struct data_op op = {.comm = comm,
                         .kind = OP_REDUCE_SCATTER,
                         .send = send,
                         .recv = recv,
                         .count = count,
                         .stride = stride ? stride : count,
                         .dtype = dtype,
                         .accumulate = accumulate,
                         .bad_rank = bad_rank};
    data_op_submit(&op, stream);
}

void comm_all_reduce(struct comm *comm, float *data, size_t count, int32_t *bad_rank, struct stream *stream)
{
    float *slice = data + (size_t)comm->rank * count;
    comm_reduce_scatter(comm, data, slice, count, 0, DTYPE_F32, false, bad_rank, stream);
    comm_all_gather(comm, slice, data, count, 0, DTYPE_F32, stream);
}

void comm_stats_read(struct comm *comm, struct comm_stats *stats, bool reset)
{
    pthread_mutex_lock(&comm->mutex);
    *stats = comm->stats;
    if (reset)
        comm->stats = (struct comm_stats){0};
    pthread_mutex_unlock(&comm->mutex);
}

/* ---------------------------------------------------------------- control operations */

/* Every rank puts `bytes` of `own` (NULL: nothing) into its slot; on return comm->slots are those of this turn. */
static enum status exchange(struct comm *comm, enum op_kind kind, const void *own, size_t bytes, struct error *err)
{
    ASSERT(bytes <= COMM_EXCHANGE_MAX);
    TRY(control_status(comm->control, err));
    int turn = (int)(comm->operations[CHANNEL_CONTROL] % 2);
    for (int r = 0; r < comm->world; r++)
        comm->slots[r] = control_slot(comm->control, r, turn);
    if (own)
        memcpy(comm->slots[comm->rank], own, bytes);
    struct control_op op = {.kind = kind, .count = bytes, .offset = CONTROL_STAGED, .slot_bytes = own ? bytes : 0};
    enum status status = agree(comm, CHANNEL_CONTROL, &op, NULL);
    progress_tick();
    return status == STATUS_OK ? STATUS_OK : control_status(comm->control, err);
}

enum status comm_barrier(struct comm *comm, struct error *err)
{
    if (comm->world == 1)
        return control_status(comm->control, err);
    return exchange(comm, OP_BARRIER, NULL, 0, err);
}

enum status comm_exchange(struct comm *comm, const void *own, size_t bytes, void *all, struct error *err)
{
    char **slots = comm->slots;
    if (comm->world == 1) {
        memcpy(all, own, bytes);
        return control_status(comm->control, err);
    }
    TRY(exchange(comm, OP_EXCHANGE, own, bytes, err));
    for (int r = 0; r < comm->world; r++)
        memcpy((char *)all + (size_t)r * bytes, slots[r], bytes);
    return STATUS_OK;
}

enum status comm_sum(struct comm *comm, double *values, int count, struct error *err)
{
    char **slots = comm->slots;
    ASSERT(count >= 0);
    if (comm->world == 1)
        return control_status(comm->control, err);
    TRY(exchange(comm, OP_EXCHANGE, values, (size_t)count * sizeof *values, err));
    for (int i = 0; i < count; i++) {
        double sum = 0;
        for (int r = 0; r < comm->world; r++)
            sum += ((const double *)slots[r])[i];
        values[i] = sum;
    }
    return STATUS_OK;
}

enum status comm_broadcast(struct comm *comm, void *data, size_t bytes, int root, struct error *err)
{
    char **slots = comm->slots;
    ASSERT(root >= 0 && root < comm->world);
    if (comm->world == 1)
        return control_status(comm->control, err);
    for (size_t at = 0; at < bytes; at += COMM_EXCHANGE_MAX) {
        size_t n = bytes - at < COMM_EXCHANGE_MAX ? bytes - at : COMM_EXCHANGE_MAX;
        TRY(exchange(comm, OP_BROADCAST, comm->rank == root ? (char *)data + at : NULL, n, err));
        if (comm->rank != root)
            memcpy((char *)data + at, slots[root], n);
    }
    return STATUS_OK;
}
