/* comm.c: opening and closing a communicator, shared segments, the control channel.
 *
 * A control operation (exchange) uses slot k mod 2 of each rank for the k-th: a rank writes slot k+2 only after all
 * have arrived at k+1, and they do that after having read slot k. What ranks of other nodes say comes through the
 * agents (agent.h), which write it where the ranks of one node would.
 *
 * Threads: data operations on the thread of their stream (comm_collectives.c), control operations on the caller's. */
#include "comm/comm.h"

#include "comm/comm_device.h"
#include "comm/comm_internal.h"
#include "core/machine.h"
#include "core/progress.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE_BYTES = 4096 };
_Static_assert((int)COMM_EXCHANGE_MAX == (int)CONTROL_SLOT_BYTES, "an exchange fits a slot");

/* ---- opening and closing ------------------------------------------------- */

static void end_stuck(const char *text, void *context)
{
    struct comm *comm = context;
    control_fail(comm->control, comm->rank, STATUS_PEER, text);
    if (comm->stuck)
        comm->stuck(comm->stuck_context, text);
}

enum status comm_attach_control(struct comm *comm, int fd, const char *host, const struct comm_config *config,
                                struct error *err)
{
    const double most = 0.2, limit = config->io_timeout_seconds > 0 ? config->io_timeout_seconds : 600;
    TRY(control_attach(fd, comm->rank, comm->world, host, config->timeout_seconds, &comm->control, err));
    if (comm->world == 1) /* nobody waits for it */
        return STATUS_OK;
    double tick = config->timeout_seconds / 10 < most ? config->timeout_seconds / 10 : most;
    int error = progress_watch_start(tick, limit, end_stuck, comm);
    return error ? error_set(err, STATUS_DEVICE, "cannot start a thread: %s", strerror(error)) : STATUS_OK;
}

enum status comm_open(struct bootstrap *bootstrap, const struct comm_config *config, struct comm **comm,
                      struct error *err)
{
    ASSERT(config->timeout_seconds > 0);
    enum status status = STATUS_OK;
    *comm = NULL;
    if (bootstrap->world > BOOTSTRAP_MAX_RANKS)
        return error_set(err, STATUS_USAGE, "%d ranks are more than %d", bootstrap->world, BOOTSTRAP_MAX_RANKS);
    TRY(bootstrap_connect(bootstrap, config->timeout_seconds, config->interface, err));
    struct comm *c = calloc(1, sizeof *c);
    if (!c)
        return error_set(err, STATUS_DEVICE, "out of memory");
    c->rank = bootstrap->rank;
    c->world = bootstrap->world;
    c->own_fd = -1;
    c->reduce_within_node = config->reduce_within_node;
    c->stuck = config->stuck;
    c->stuck_context = config->stuck_context;
    pthread_mutex_init(&c->mutex, NULL);
    size_t world = (size_t)c->world;
    TRY_GOTO(topology_init(&c->topology, c->rank, c->world, bootstrap->places, err));
    c->peers = calloc(world, sizeof *c->peers);
    c->in = calloc(world, sizeof *c->in);
    c->slots = calloc(world, sizeof *c->slots);
    c->sizes = calloc(world, sizeof *c->sizes);
    if (!c->peers || !c->in || !c->slots || !c->sizes) {
        status = error_set(err, STATUS_DEVICE, "out of memory");
        goto fail;
    }
    if (bootstrap->launcher && c->world > 1)
        TRY_GOTO(comm_meet_nodes(c, bootstrap, config, err));
    else
        TRY_GOTO(comm_attach_control(c, bootstrap->shared_fd, bootstrap->host, config, err));
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
    progress_watch_stop();
    if (comm->control) {
        if (comm->world > 1 && control_status(comm->control, NULL) == STATUS_OK)
            comm_barrier(comm, NULL);
        control_leave(comm->control);
        agent_stop(comm->agent);
        net_free(comm->net);
        control_detach(comm->control);
    }
    if (comm->own_fd >= 0)
        close(comm->own_fd);
    if (comm->segments)
        munmap(comm->segments, comm->segment_stride * (size_t)comm->topology.local_world);
    pthread_mutex_destroy(&comm->mutex);
    topology_release(&comm->topology);
    free(comm->peers);
    free(comm->in);
    free(comm->parts);
    free(comm->scratch);
    free(comm->bad);
    free(comm->slots);
    free(comm->sizes);
    free(comm);
}

enum status comm_attach_device(struct comm *comm, struct device *device, bool may_share, const char **way,
                               struct error *err)
{
    ASSERT(!comm->gpu);
    *way = NULL;
    if (device->kind == DEVICE_CPU || comm->world == 1)
        return STATUS_OK;
    return comm_device_new(comm, device, may_share, &comm->gpu, way, err);
}

void comm_detach_device(struct comm *comm)
{
    comm_device_free(comm->gpu);
    comm->gpu = NULL;
}

bool comm_can_capture(const struct comm *comm)
{
    return comm->world == 1 || (comm->gpu && comm_device_can_capture(comm->gpu));
}

void comm_launch(struct comm *comm, struct graph *graph)
{
    if (comm->gpu)
        comm_device_launch(comm->gpu, graph);
    else
        graph_launch(graph);
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

/* ---- shared segments ----------------------------------------------------- */

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

    const struct topology *t = &comm->topology;
    size_t stride = (bytes + align - 1) / align * align, total = stride * (size_t)t->local_world;
    struct machine_memory machine;
    machine_memory("", &machine);
    struct error local = {.code = STATUS_OK};
    int fd = control_fd(comm->control);
    if (t->local_rank == 0 && total > machine.available)
        error_set(&local, STATUS_DEVICE, "%d ranks on one node need %.1f MiB of shared memory, %.1f MiB are available",
                  t->local_world, (double)total / 1048576, (double)machine.available / 1048576);
    else if (t->local_rank == 0 && fd >= 0 &&
             ftruncate(fd, (off_t)(control_segments_offset(comm->control) + total)) != 0)
        error_set(&local, STATUS_DEVICE, "cannot make %.1f MiB of shared memory: %s", (double)total / 1048576,
                  strerror(errno));
    if (local.code != STATUS_OK) {
        error_hint(&local, "take a higher ZeRO stage, a smaller model, or fewer ranks on this node");
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
    char *mine = map + stride * (size_t)t->local_rank;
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

/* ---- control operations -------------------------------------------------- */

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
    enum status status = comm_agree(comm, CHANNEL_CONTROL, &op, NULL);
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
