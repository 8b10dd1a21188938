/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/control/control.h"

#include "core/flight/flight.h"

#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <xxhash.h>

#define CONTROL_MAGIC UINT64_C(0x335254434e525a54) /* "TZRNCTR3" */

enum { PAGE_BYTES = 4096, SEGMENT_ALIGN = 2 << 20 };

static const double write_grace = 1.0;                       /* seconds for a failure's text to be written */
static const double join_timeout = 10, join_per_rank = 0.25; /* seconds until all ranks must have come */

/* ---- layout -------------------------------------------------------------- */

static struct control_layout control_layout(int world, int local_world)
{
    const size_t block = sizeof(struct control_block) + (size_t)world * sizeof(struct control_rank);
    struct control_layout at = {.slots = (size_t)round_up((int64_t)block, PAGE_BYTES)};
    at.staging = at.slots + (size_t)world * 2 * CONTROL_SLOT_BYTES;
    at.rings = at.staging + (size_t)local_world * CONTROL_STAGING_BYTES;
    at.segments = (size_t)round_up((int64_t)(at.rings + (size_t)local_world * FLIGHT_RING_BYTES), SEGMENT_ALIGN);
    return at;
}

char *control_slot(const struct control *control, int rank, int turn)
{
    return control->memory + control->at.slots + ((size_t)rank * 2 + (size_t)turn) * CONTROL_SLOT_BYTES;
}

char *control_staging(const struct control *control, int local_rank)
{
    return control->memory + control->at.staging + (size_t)local_rank * CONTROL_STAGING_BYTES;
}

struct flight_ring *control_flight_ring(const struct control *control, int local_rank)
{
    ASSERT(local_rank >= 0 && local_rank < control->local_world);
    return (struct flight_ring *)(void *)(control->memory + control->at.rings) + local_rank;
}

/* ---- making and opening -------------------------------------------------- */

uint64_t control_token(const unsigned char secret[32], int node)
{
    return XXH3_64bits_withSeed(secret, 32, (uint64_t)node);
}

static bool shape_is_possible(const struct control_shape *shape)
{
    return shape->world >= 1 && shape->world <= BOOTSTRAP_MAX_RANKS && shape->num_nodes >= 1 &&
           shape->local_world >= 1 && shape->num_nodes + shape->local_world - 1 <= shape->world &&
           (shape->num_nodes > 1 || shape->local_world == shape->world);
}

static void fill_block(struct control_block *block, const struct control_shape *shape)
{
    block->token = shape->token;
    block->world = (uint32_t)shape->world;
    block->local_world = (uint32_t)shape->local_world;
    block->num_nodes = (uint32_t)shape->num_nodes;
    for (int r = 0; r < shape->world; r++) {
        struct control_rank *entry = &block->ranks[r];
        entry->local_rank = r;
        if (!shape->places) continue;
        const struct rank_place *place = &shape->places[r];
        ASSERT(place->node >= 0 && place->node < shape->num_nodes);
        ASSERT(place->local_rank >= 0 && place->local_rank < shape->world);
        entry->node = place->node;
        entry->local_rank = place->local_rank;
        entry->pid = place->pid;
        snprintf(entry->host, sizeof entry->host, "%s", place->host);
    }
    block->magic = CONTROL_MAGIC;
}

enum status control_create(const struct control_shape *shape, int *fd, struct error *err)
{
    ASSERT(shape_is_possible(shape) && (shape->places || shape->num_nodes == 1));
    *fd = -1;
    RELEASED(fs_close) int file = memfd_create("ztrain", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (file < 0) return error_set(err, STATUS_DEVICE, "cannot create shared memory: %s", strerror(errno));
    struct control_block *block = MAP_FAILED;
    const struct control_layout at = control_layout(shape->world, shape->local_world);
    if (ftruncate(file, (off_t)at.segments) == 0)
        block = mmap(NULL, at.slots, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (block == MAP_FAILED)
        return error_set(err, STATUS_DEVICE, "cannot set up shared memory for %d ranks: %s", shape->world,
                         strerror(errno));
    fill_block(block, shape);
    munmap(block, at.slots);
    *fd = file;
    file = -1;
    return STATUS_OK;
}

enum status control_open(int pid, int number, const struct control_shape *shape, int *fd, struct error *err)
{
    ASSERT(shape_is_possible(shape));
    char path[64];
    struct stat info;
    *fd = -1;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, number);
    int file = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (file < 0) {
        error_set(err, STATUS_DEVICE, "cannot open the node's shared memory '%s': %s", path, strerror(errno));
        return error_hint(err, "the ranks of a node must run as one user and see each other's processes in "
                               "/proc (containers: one for all ranks, or --pid=host)");
    }
    struct control_block head;
    if (fcntl(file, F_GET_SEALS) >= 0 && /* only a memfd has seals */
        fstat(file, &info) == 0 && (size_t)info.st_size >= control_layout(shape->world, shape->local_world).segments &&
        pread(file, &head, sizeof head, 0) == (ssize_t)sizeof head && head.magic == CONTROL_MAGIC &&
        head.token == shape->token && head.world == (uint32_t)shape->world &&
        head.local_world == (uint32_t)shape->local_world && head.num_nodes == (uint32_t)shape->num_nodes) {
        *fd = file;
        return STATUS_OK;
    }
    close(file);
    error_set(err, STATUS_USAGE, "'%s' is not the shared memory of this job on this node (%d of %d ranks)", path,
              shape->local_world, shape->world);
    return error_hint(err, "start all ranks with one srun");
}

/* ---- attaching and leaving ----------------------------------------------- */

static bool read_places(struct control *c)
{
    if (c->num_nodes < 1 || c->num_nodes > c->world || c->local_world < 1 || c->local_world > c->world) return false;
    c->locals = memory_alloc((size_t)c->local_world * sizeof *c->locals);
    c->pidfds = memory_alloc((size_t)c->local_world * sizeof *c->pidfds);
    c->agents = memory_alloc((size_t)c->num_nodes * sizeof *c->agents);
    memset(c->locals, -1, (size_t)c->local_world * sizeof *c->locals);
    memset(c->pidfds, -1, (size_t)c->local_world * sizeof *c->pidfds);
    memset(c->agents, -1, (size_t)c->num_nodes * sizeof *c->agents);
    c->node = c->rank >= 0 ? c->block->ranks[c->rank].node : 0;
    for (int r = 0; r < c->world; r++) {
        const struct control_rank *entry = &c->block->ranks[r];
        if (entry->node < 0 || entry->node >= c->num_nodes || entry->local_rank < 0) return false;
        if (entry->local_rank == 0) c->agents[entry->node] = r;
        if (entry->node == c->node && entry->local_rank < c->local_world) c->locals[entry->local_rank] = r;
    }
    for (int i = 0; i < c->local_world; i++)
        if (c->locals[i] < 0) return false;
    for (int n = 0; n < c->num_nodes; n++)
        if (c->agents[n] < 0) return false;
    return true;
}

static enum status not_this_control_block(int fd, int world, struct error *err)
{
    error_set(err, STATUS_USAGE, "descriptor %d is not the shared memory of a job with %d ranks", fd, world);
    return error_hint(err, "local ranks are started by --local-gpus N, not by hand");
}

static enum status map_memory(struct control *c, struct error *err)
{
    size_t bytes = control_layout(c->world, 1).slots;
    if (c->fd < 0) {
        c->at.rings = bytes;
        bytes += FLIGHT_RING_BYTES;
    } else {
        struct stat info;
        struct control_block head;
        if (fstat(c->fd, &info) != 0 || (size_t)info.st_size < bytes ||
            pread(c->fd, &head, sizeof head, 0) != (ssize_t)sizeof head || head.magic != CONTROL_MAGIC ||
            head.world != (uint32_t)c->world || head.local_world < 1 || head.local_world > head.world)
            return not_this_control_block(c->fd, c->world, err);
        c->local_world = (int)head.local_world;
        c->num_nodes = (int)head.num_nodes;
        c->at = control_layout(c->world, c->local_world);
        bytes = c->at.segments;
        if ((size_t)info.st_size < bytes) return not_this_control_block(c->fd, c->world, err);
    }
    void *memory = c->fd >= 0 ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, c->fd, 0)
                              : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return error_set(err, STATUS_DEVICE, "cannot map the shared memory: %s", strerror(errno));
    c->memory = memory;
    c->block = memory;
    if (c->fd < 0) {
        const struct control_shape alone = {.world = 1, .local_world = 1, .num_nodes = 1};
        fill_block(c->block, &alone);
        c->local_world = c->num_nodes = 1;
    }
    if (read_places(c)) return STATUS_OK;
    munmap(memory, bytes);
    return not_this_control_block(c->fd, c->world, err);
}

enum status control_attach(int fd, int rank, int world, const char *host, double timeout_seconds,
                           struct control **control, struct error *err)
{
    ASSERT(world >= 1 && world <= BOOTSTRAP_MAX_RANKS && rank >= -1 && rank < world);
    ASSERT(fd >= 0 || world == 1);
    *control = NULL;
    RELEASED(control_drop) struct control *c = memory_zeroed(1, sizeof *c);
    *c = (struct control){
        .fd = fd, .rank = rank, .world = world, .timeout = timeout_seconds, .silence = 0.9 * timeout_seconds};
    TRY(map_memory(c, err));
    if (rank >= 0) {
        struct control_rank *own = &c->block->ranks[rank];
        own->pid = getpid();
        snprintf(own->host, sizeof own->host, "%s", host);
        c->private_progress = atomic_exchange(&heartbeat_counter, &own->progress);
        atomic_store(&own->state, RANK_JOINED);
        control_ring(c);
    }
    *control = TAKEN(c);
    return STATUS_OK;
}

bool control_open_process(struct control *control, int local_rank)
{
    int *pidfd = &control->pidfds[local_rank];
    if (*pidfd < 0) *pidfd = (int)syscall(SYS_pidfd_open, control->block->ranks[control->locals[local_rank]].pid, 0);
    return *pidfd >= 0 || errno != ESRCH;
}

bool control_process_gone(const struct control *control, int local_rank)
{
    ASSERT(local_rank >= 0 && local_rank < control->local_world);
    struct pollfd death = {.fd = control->pidfds[local_rank], .events = POLLIN};
    return death.fd >= 0 && poll(&death, 1, 0) > 0;
}

static void control_died_at_start(struct control *control, int rank)
{
    const struct control_rank *entry = &control->block->ranks[rank];
    control_blame(control, rank, FAILURE_DIED, STATUS_PEER, "rank %d on %s (process %d) died at the start", rank,
                  entry->host, entry->pid);
}

/* Fails the job when the limit is over. */
static void control_await_rank(struct control *control, int rank, double start, double limit)
{
    struct control_rank *peer = &control->block->ranks[rank];
    bool local = peer->node == control->node;
    while (atomic_load(&peer->state) == RANK_ABSENT && atomic_load(&control->block->failed) != 2) {
        heartbeat_pause(0.002);
        if (seconds_now() - start > limit) {
            control_blame(control, rank, FAILURE_ABSENT, STATUS_PEER,
                          "rank %d on %s (process %d) has not joined the job within %.3g s; hint: it hangs or is "
                          "stopped; raise comm.timeout_seconds if it is only slow",
                          rank, peer->host[0] ? peer->host : "?", peer->pid, limit);
        } else if (!local && control_process_gone(control, 0)) { /* without its agent this node gets no news */
            control_died_at_start(control, control->agents[control->node]);
        }
    }
    if (local && rank != control->rank && atomic_load(&peer->state) != RANK_ABSENT &&
        !control_open_process(control, peer->local_rank))
        control_died_at_start(control, rank);
}

enum status control_join(struct control *control, struct error *err)
{
    ASSERT(control->rank >= 0);
    const double start = seconds_now();
    double limit = control->timeout > join_timeout ? control->timeout : join_timeout;
    limit += join_per_rank * control->world;
    for (int i = 0; i < control->local_world; i++) control_await_rank(control, control->locals[i], start, limit);
    for (int r = 0; r < control->world; r++)
        if (control->block->ranks[r].node != control->node) control_await_rank(control, r, start, limit);
    return control_status(control, err);
}

void control_leave(struct control *control)
{
    if (control->rank < 0) return;
    atomic_store(&control->block->ranks[control->rank].state, RANK_CLOSED);
    control_ring(control);
}

void control_detach(struct control *control)
{
    if (!control) return;
    if (control->private_progress) atomic_store(&heartbeat_counter, control->private_progress);
    for (int i = 0; control->pidfds && i < control->local_world; i++)
        if (control->pidfds[i] >= 0) close(control->pidfds[i]);
    free(control->locals);
    free(control->agents);
    free(control->pidfds);
    free(control);
}

/* ---- failure ------------------------------------------------------------- */

enum status control_status(struct control *control, struct error *err)
{
    struct control_block *block = control->block;
    uint32_t failed = atomic_load(&block->failed);
    if (failed == 0) return STATUS_OK;
    /* the text is being written: wait for it, unless the writer has died meanwhile */
    for (double waited = 0; failed == 1 && waited < write_grace; waited += 1e-3) {
        heartbeat_pause(1e-3);
        failed = atomic_load(&block->failed);
    }
    if (failed == 1) return error_set(err, STATUS_PEER, "a rank died while it reported an error");
    if (block->failure == FAILURE_ERROR && block->rank != control->rank)
        error_set(err, (enum status)block->code, "rank %d on %s ended: %.1900s", block->rank,
                  block->ranks[block->rank].host, block->text);
    else
        error_set(err, (enum status)block->code, "%.1900s", block->text);
    error_blame(err, block->rank, (enum failure)block->failure);
    return (enum status)block->code;
}

void control_fail(struct control *control, const struct error *err)
{
    struct control_block *block = control->block;
    uint32_t none = 0;
    if (!atomic_compare_exchange_strong(&block->failed, &none, 1)) return;
    block->code = err->code;
    block->rank = err->rank;
    block->failure = (int32_t)err->failure;
    snprintf(block->text, sizeof block->text, "%s", err->text);
    atomic_store(&block->failed, 2);
    control_ring(control);
}

void control_blame(struct control *control, int rank, enum failure failure, enum status code, const char *format, ...)
{
    struct error err = {.code = code, .rank = rank, .failure = failure};
    WITH_ARGS(format, vsnprintf(err.text, sizeof err.text, format, args));
    control_fail(control, &err);
}

void control_expect(struct control *control, int rank, int pid, const char *host)
{
    struct control_rank *entry = &control->block->ranks[rank];
    if (atomic_load(&entry->state) != RANK_ABSENT) /* the rank was faster and has written the same */
        return;
    entry->pid = pid;
    snprintf(entry->host, sizeof entry->host, "%s", host);
}

void control_mark_dead(struct control *control, int rank, const struct error *err)
{
    atomic_store(&control->block->ranks[rank].state, RANK_DEAD);
    control_fail(control, err);
}

void control_node_lost(struct control *control, int node, enum node_condition condition)
{
    atomic_store(&control->block->ranks[control->agents[node]].condition, (uint32_t)condition);
}

/* ---- operations ---------------------------------------------------------- */

const char *operation_name(uint32_t kind)
{
    static const char *const names[] = {
        [OP_NONE] = "nothing",         [OP_ALL_GATHER] = "an all-gather", [OP_REDUCE_SCATTER] = "a reduce-scatter",
        [OP_EXCHANGE] = "an exchange", [OP_BARRIER] = "a barrier",        [OP_BROADCAST] = "a broadcast"};
    _Static_assert(COUNT_OF(names) == OP_KIND_COUNT, "every operation has a name");
    return names[kind < OP_KIND_COUNT ? kind : OP_NONE];
}

bool operation_matches(struct control *control, const struct control_op *own, int peer, const struct control_op *other)
{
    if (other->kind == own->kind && other->dtype == own->dtype && other->count == own->count) return true;
    control_blame(control, -1, FAILURE_NONE, STATUS_BUG,
                  "rank %d is in %s of %" PRIu64 " elements (type %u) while rank %d is in %s of %" PRIu64 " (type %u)",
                  control->rank, operation_name(own->kind), own->count, own->dtype, peer, operation_name(other->kind),
                  other->count, other->dtype);
    return false;
}

/* ---- arriving ------------------------------------------------------------ */

static long futex(_Atomic uint32_t *word, int operation, uint32_t value, const struct timespec *timeout)
{
    return syscall(SYS_futex, word, operation, value, timeout, NULL, 0);
}

void control_ring(struct control *control)
{
    struct control_block *block = control->block;
    atomic_fetch_add(&block->bell, 1);
    if (atomic_load(&block->bell_waiters)) futex(&block->bell, FUTEX_WAKE, 1, NULL);
}

static void wait_for_change(_Atomic uint32_t *word, _Atomic uint32_t *waiters, uint32_t seen, double seconds)
{
    struct timespec limit = {.tv_sec = (time_t)seconds};
    limit.tv_nsec = (long)((seconds - (double)limit.tv_sec) * 1e9);
    atomic_fetch_add(waiters, 1);
    if (atomic_load(word) == seen) futex(word, FUTEX_WAIT, seen, &limit);
    atomic_fetch_sub(waiters, 1);
}

void control_bell_wait(struct control *control, uint32_t seen, double seconds)
{
    wait_for_change(&control->block->bell, &control->block->bell_waiters, seen, seconds);
}

static void control_wake(struct control_rank *entry, enum host_collectives channel)
{
    if (atomic_load(&entry->waiters[channel])) futex(&entry->arrivals[channel], FUTEX_WAKE, INT_MAX, NULL);
}

uint32_t control_arrive(struct control *control, enum host_collectives channel)
{
    struct control_rank *own = &control->block->ranks[control->rank];
    uint32_t count = atomic_fetch_add(&own->arrivals[channel], 1) + 1;
    if (channel == CHANNEL_CONTROL && control->num_nodes > 1) control_ring(control);
    control_wake(own, channel);
    return count;
}

void control_arrival_wait(struct control *control, int rank, enum host_collectives channel, uint32_t seen,
                          double seconds)
{
    struct control_rank *entry = &control->block->ranks[rank];
    wait_for_change(&entry->arrivals[channel], &entry->waiters[channel], seen, seconds);
}

void control_arrived(struct control *control, int rank, uint32_t count)
{
    struct control_rank *entry = &control->block->ranks[rank];
    atomic_store(&entry->arrivals[CHANNEL_CONTROL], count);
    control_wake(entry, CHANNEL_CONTROL);
}
