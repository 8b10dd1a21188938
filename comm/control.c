/* control.c: see control.h. */
#include "comm/control.h"

#include "core/clock.h"
#include "core/liveness.h"
#include "core/memory.h"
#include "core/round_up.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#define CONTROL_MAGIC UINT64_C(0x325254434e525a54) /* "TZRNCTR2" */

enum {
    PAGE_BYTES = 4096,
    SEGMENT_ALIGN = 2 << 20,
    SPIN_ROUNDS = 200,          /* of a pause instruction each: a few microseconds */
    SLICE_NS = 20 * 1000 * 1000 /* between two looks at the job's health */
};

static const double gone_grace = 0.5;  /* seconds for supervisor or agent to report how a peer died */
static const double write_grace = 1.0; /* seconds for a failure's text to be written */
static const double join_timeout = 10, join_per_rank = 0.25; /* seconds until all ranks must have come */

struct control {
    struct control_block *block;
    char *memory; /* block, slots and staging */
    size_t slots; /* byte offsets in it */
    size_t staging;
    size_t segments;
    int fd, rank, world, node;
    int local_world, num_nodes;
    double timeout;
    int *locals;                        /* (local_world) ranks of this node */
    int *agents;                        /* (num_nodes) first rank of each node */
    int *pidfds;                        /* (local_world) -1: none */
    _Atomic uint64_t *private_progress; /* the process's own counter, used before and after */
};

/* ---- layout -------------------------------------------------------------- */

static size_t block_bytes(int world)
{
    size_t bytes = sizeof(struct control_block) + (size_t)world * sizeof(struct control_rank);
    return (size_t)round_up((int64_t)bytes, PAGE_BYTES);
}

static size_t staging_offset(int world)
{
    return block_bytes(world) + (size_t)world * 2 * CONTROL_SLOT_BYTES;
}

static size_t segments_offset(int world, int local_world)
{
    size_t bytes = staging_offset(world) + (size_t)local_world * CONTROL_STAGING_BYTES;
    return (size_t)round_up((int64_t)bytes, SEGMENT_ALIGN);
}

char *control_slot(const struct control *control, int rank, int turn)
{
    return control->memory + control->slots + ((size_t)rank * 2 + (size_t)turn) * CONTROL_SLOT_BYTES;
}

char *control_staging(const struct control *control, int local_rank)
{
    return control->memory + control->staging + (size_t)local_rank * CONTROL_STAGING_BYTES;
}

size_t control_segments_offset(const struct control *control)
{
    return control->segments;
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
        if (!shape->places)
            continue;
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
    int file = memfd_create("ztrain", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (file < 0)
        return error_set(err, STATUS_DEVICE, "cannot create shared memory: %s", strerror(errno));
    struct control_block *block = MAP_FAILED;
    size_t bytes = block_bytes(shape->world);
    if (ftruncate(file, (off_t)segments_offset(shape->world, shape->local_world)) == 0)
        block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (block == MAP_FAILED) {
        error_set(err, STATUS_DEVICE, "cannot set up shared memory for %d ranks: %s", shape->world, strerror(errno));
        close(file);
        return STATUS_DEVICE;
    }
    fill_block(block, shape);
    munmap(block, bytes);
    *fd = file;
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
        return error_hint(err, "the ranks of a node must run as one user and see each other's processes in /proc");
    }
    /* only a memfd has seals */
    if (fcntl(file, F_GET_SEALS) < 0 || fstat(file, &info) != 0 ||
        (size_t)info.st_size < segments_offset(shape->world, shape->local_world))
        goto fail;
    struct control_block *block = mmap(NULL, PAGE_BYTES, PROT_READ, MAP_SHARED, file, 0);
    if (block == MAP_FAILED)
        goto fail;
    bool good = block->magic == CONTROL_MAGIC && block->token == shape->token &&
                block->world == (uint32_t)shape->world && block->local_world == (uint32_t)shape->local_world &&
                block->num_nodes == (uint32_t)shape->num_nodes;
    munmap(block, PAGE_BYTES);
    if (!good)
        goto fail;
    *fd = file;
    return STATUS_OK;
fail:
    close(file);
    error_set(err, STATUS_USAGE, "'%s' is not the shared memory of this job on this node (%d of %d ranks)", path,
              shape->local_world, shape->world);
    return error_hint(err, "start all ranks with one srun");
}

/* ---- attaching and leaving ----------------------------------------------- */

/* Reads from the block which ranks are on this node and which is the first of each node. False: the block is wrong. */
static bool read_places(struct control *c)
{
    if (c->num_nodes < 1 || c->num_nodes > c->world || c->local_world < 1 || c->local_world > c->world)
        return false;
    c->locals = memory_alloc((size_t)c->local_world * sizeof *c->locals);
    c->pidfds = memory_alloc((size_t)c->local_world * sizeof *c->pidfds);
    c->agents = memory_alloc((size_t)c->num_nodes * sizeof *c->agents);
    for (int i = 0; i < c->local_world; i++)
        c->locals[i] = c->pidfds[i] = -1;
    for (int n = 0; n < c->num_nodes; n++)
        c->agents[n] = -1;
    c->node = c->rank >= 0 ? c->block->ranks[c->rank].node : 0;
    for (int r = 0; r < c->world; r++) {
        const struct control_rank *entry = &c->block->ranks[r];
        if (entry->node < 0 || entry->node >= c->num_nodes || entry->local_rank < 0)
            return false;
        if (entry->local_rank == 0)
            c->agents[entry->node] = r;
        if (entry->node == c->node && entry->local_rank < c->local_world)
            c->locals[entry->local_rank] = r;
    }
    for (int i = 0; i < c->local_world; i++)
        if (c->locals[i] < 0)
            return false;
    for (int n = 0; n < c->num_nodes; n++)
        if (c->agents[n] < 0)
            return false;
    return true;
}

static enum status not_this_job(int fd, int world, struct error *err)
{
    error_set(err, STATUS_USAGE, "descriptor %d is not the shared memory of a job with %d ranks", fd, world);
    return error_hint(err, "local ranks are started by --local-gpus N, not by hand");
}

/* Maps the block; of shared memory also slots and staging. */
static enum status map_memory(struct control *c, struct error *err)
{
    size_t bytes = block_bytes(c->world);
    if (c->fd >= 0) {
        struct stat info;
        struct control_block head;
        if (fstat(c->fd, &info) != 0 || (size_t)info.st_size < bytes ||
            pread(c->fd, &head, sizeof head, 0) != (ssize_t)sizeof head || head.magic != CONTROL_MAGIC ||
            head.world != (uint32_t)c->world || head.local_world < 1 || head.local_world > head.world)
            return not_this_job(c->fd, c->world, err);
        c->local_world = (int)head.local_world;
        c->num_nodes = (int)head.num_nodes;
        c->slots = bytes;
        c->staging = staging_offset(c->world);
        bytes = c->segments = segments_offset(c->world, c->local_world);
        if ((size_t)info.st_size < bytes)
            return not_this_job(c->fd, c->world, err);
    }
    void *memory = c->fd >= 0 ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, c->fd, 0)
                              : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return error_set(err, STATUS_DEVICE, "cannot map the shared memory: %s", strerror(errno));
    c->memory = memory;
    c->block = memory;
    if (c->fd < 0) {
        const struct control_shape alone = {.world = 1, .local_world = 1, .num_nodes = 1};
        fill_block(c->block, &alone);
        c->local_world = c->num_nodes = 1;
    }
    if (read_places(c))
        return STATUS_OK;
    munmap(memory, bytes);
    return not_this_job(c->fd, c->world, err);
}

static void free_handle(struct control *control)
{
    for (int i = 0; control->pidfds && i < control->local_world; i++)
        if (control->pidfds[i] >= 0)
            close(control->pidfds[i]);
    free(control->locals);
    free(control->agents);
    free(control->pidfds);
    free(control);
}

enum status control_attach(int fd, int rank, int world, const char *host, double timeout_seconds,
                           struct control **control, struct error *err)
{
    ASSERT(world >= 1 && world <= BOOTSTRAP_MAX_RANKS && rank >= -1 && rank < world);
    ASSERT(fd >= 0 || world == 1);
    *control = NULL;
    struct control *c = calloc(1, sizeof *c);
    if (!c)
        return error_set(err, STATUS_DEVICE, "out of memory");
    *c = (struct control){.fd = fd, .rank = rank, .world = world, .timeout = timeout_seconds};
    enum status status = map_memory(c, err);
    if (status != STATUS_OK) {
        free_handle(c);
        return status;
    }
    if (rank >= 0) {
        struct control_rank *own = &c->block->ranks[rank];
        own->pid = getpid();
        snprintf(own->host, sizeof own->host, "%s", host);
        c->private_progress = atomic_exchange(&liveness_counter, &own->progress);
        atomic_store(&own->state, RANK_JOINED);
        control_ring(c);
    }
    *control = c;
    return STATUS_OK;
}

static bool process_is_gone(const struct control *control, int local_rank)
{
    struct pollfd death = {.fd = control->pidfds[local_rank], .events = POLLIN};
    return death.fd >= 0 && poll(&death, 1, 0) > 0;
}

/* Waits until `rank` has attached; fails the job when the limit is over. */
static void await_rank(struct control *control, int rank, double start, double limit)
{
    const struct timespec pause = {.tv_nsec = 2 * 1000 * 1000};
    struct control_rank *peer = &control->block->ranks[rank];
    bool local = peer->node == control->node;
    char text[256];
    while (atomic_load(&peer->state) == RANK_ABSENT && atomic_load(&control->block->failed) != 2) {
        nanosleep(&pause, NULL);
        liveness_tick();
        const char *host = peer->host[0] ? peer->host : "?";
        if (seconds_now() - start > limit) {
            snprintf(text, sizeof text,
                     "rank %d on %s (process %d) has not joined the job within %.3g s; hint: it hangs or is "
                     "stopped; raise comm.timeout_seconds if it is only slow",
                     rank, host, peer->pid, limit);
            control_fail(control, -1, STATUS_PEER, text);
        } else if (!local && process_is_gone(control, 0)) { /* without its agent this node gets no news */
            const struct control_rank *agent = &control->block->ranks[control->agents[control->node]];
            snprintf(text, sizeof text, "rank %d on %s (process %d) died at the start", control->agents[control->node],
                     agent->host, agent->pid);
            control_fail(control, -1, STATUS_PEER, text);
        }
    }
    if (!local || rank == control->rank || atomic_load(&peer->state) == RANK_ABSENT)
        return;
    int *pidfd = &control->pidfds[peer->local_rank];
    *pidfd = (int)syscall(SYS_pidfd_open, peer->pid, 0);
    if (*pidfd < 0 && errno == ESRCH) {
        snprintf(text, sizeof text, "rank %d on %s (process %d) died at the start", rank, peer->host, peer->pid);
        control_fail(control, -1, STATUS_PEER, text);
    }
}

enum status control_join(struct control *control, struct error *err)
{
    ASSERT(control->rank >= 0);
    const double start = seconds_now();
    double limit = control->timeout > join_timeout ? control->timeout : join_timeout;
    limit += join_per_rank * control->world;
    for (int i = 0; i < control->local_world; i++)
        await_rank(control, control->locals[i], start, limit);
    for (int r = 0; r < control->world; r++)
        if (control->block->ranks[r].node != control->node)
            await_rank(control, r, start, limit);
    return control_status(control, err);
}

void control_leave(struct control *control)
{
    if (control->rank < 0)
        return;
    atomic_store(&control->block->ranks[control->rank].state, RANK_CLOSED);
    control_ring(control);
}

void control_detach(struct control *control)
{
    if (!control)
        return;
    if (control->private_progress)
        atomic_store(&liveness_counter, control->private_progress);
    free_handle(control);
}

/* ---- reading ------------------------------------------------------------- */

struct control_block *control_block(struct control *control)
{
    return control->block;
}

int control_fd(const struct control *control)
{
    return control->fd;
}

double control_timeout(const struct control *control)
{
    return control->timeout;
}

double control_silence(const struct control *control)
{
    return 0.9 * control->timeout;
}

int control_self(const struct control *control)
{
    return control->rank;
}

int control_node(const struct control *control)
{
    return control->node;
}

int control_local_world(const struct control *control)
{
    return control->local_world;
}

int control_local(const struct control *control, int local_rank)
{
    ASSERT(local_rank >= 0 && local_rank < control->local_world);
    return control->locals[local_rank];
}

int control_agent(const struct control *control, int node)
{
    ASSERT(node >= 0 && node < control->num_nodes);
    return control->agents[node];
}

bool control_is_local(const struct control *control, int rank)
{
    return control->block->ranks[rank].node == control->node;
}

/* ---- failure ------------------------------------------------------------- */

enum status control_status(struct control *control, struct error *err)
{
    struct control_block *block = control->block;
    uint32_t failed = atomic_load(&block->failed);
    if (failed == 0)
        return STATUS_OK;
    /* the text is being written: wait for it, unless the writer has died meanwhile */
    const struct timespec pause = {.tv_nsec = 1000 * 1000};
    for (double waited = 0; failed == 1 && waited < write_grace; waited += 1e-3) {
        nanosleep(&pause, NULL);
        failed = atomic_load(&block->failed);
    }
    if (failed == 1)
        return error_set(err, STATUS_PEER, "a rank died while it reported an error");
    if (block->speaker >= 0 && block->speaker != control->rank)
        return error_set(err, (enum status)block->code, "rank %d on %s ended: %.1900s", block->speaker,
                         block->ranks[block->speaker].host, block->text);
    return error_set(err, (enum status)block->code, "%.1900s", block->text);
}

void control_fail(struct control *control, int speaker, enum status code, const char *text)
{
    struct control_block *block = control->block;
    uint32_t none = 0;
    if (!atomic_compare_exchange_strong(&block->failed, &none, 1))
        return;
    block->code = code;
    block->speaker = speaker;
    snprintf(block->text, sizeof block->text, "%s", text);
    atomic_store(&block->failed, 2);
    control_ring(control);
}

static bool rank_is_gone(const struct control *control, int rank)
{
    const struct control_rank *entry = &control->block->ranks[rank];
    uint32_t state = atomic_load(&entry->state);
    if (state == RANK_CLOSED || state == RANK_DEAD)
        return true;
    if (entry->node == control->node)
        return process_is_gone(control, entry->local_rank);
    return atomic_load(&control->block->ranks[control->agents[entry->node]].condition) == NODE_ENDED;
}

bool control_await_end(struct control *control, double seconds)
{
    const struct timespec pause = {.tv_nsec = SLICE_NS};
    const double start = seconds_now();
    do {
        bool all = true, node = true, lower = false;
        for (int r = 0; r < control->world; r++) {
            bool gone = r == control->rank || rank_is_gone(control, r);
            all &= gone;
            node &= gone || !control_is_local(control, r);
            lower |= r < control->rank && atomic_load(&control->block->ranks[r].state) == RANK_CLOSED;
        }
        if (all || (lower && (node || control->agents[control->node] != control->rank)))
            return true;
        nanosleep(&pause, NULL);
        liveness_tick();
    } while (seconds_now() - start < seconds);
    return false;
}

void control_expect(struct control *control, int rank, int pid, const char *host)
{
    struct control_rank *entry = &control->block->ranks[rank];
    if (atomic_load(&entry->state) != RANK_ABSENT) /* the rank was faster and has written the same */
        return;
    entry->pid = pid;
    snprintf(entry->host, sizeof entry->host, "%s", host);
}

void control_mark_dead(struct control *control, int rank, enum status code, const char *text)
{
    atomic_store(&control->block->ranks[rank].state, RANK_DEAD);
    control_fail(control, -1, code, text);
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
    if (atomic_load(&block->bell_waiters))
        futex(&block->bell, FUTEX_WAKE, 1, NULL);
}

void control_bell_wait(struct control *control, uint32_t seen, double seconds)
{
    struct control_block *block = control->block;
    struct timespec limit = {.tv_sec = (time_t)seconds};
    limit.tv_nsec = (long)((seconds - (double)limit.tv_sec) * 1e9);
    atomic_store(&block->bell_waiters, 1);
    if (atomic_load(&block->bell) == seen)
        futex(&block->bell, FUTEX_WAIT, seen, &limit);
    atomic_store(&block->bell_waiters, 0);
}

static void wake_waiters(struct control_rank *entry, enum control_channel channel)
{
    if (atomic_load(&entry->waiters[channel]))
        futex(&entry->arrivals[channel], FUTEX_WAKE, INT_MAX, NULL);
}

uint32_t control_arrive(struct control *control, enum control_channel channel)
{
    struct control_rank *own = &control->block->ranks[control->rank];
    uint32_t count = atomic_fetch_add(&own->arrivals[channel], 1) + 1;
    if (channel == CHANNEL_CONTROL && control->num_nodes > 1)
        control_ring(control);
    wake_waiters(own, channel);
    return count;
}

void control_arrived(struct control *control, int rank, uint32_t count)
{
    struct control_rank *entry = &control->block->ranks[rank];
    atomic_store(&entry->arrivals[CHANNEL_CONTROL], count);
    wake_waiters(entry, CHANNEL_CONTROL);
}

/* ---- watching a peer ----------------------------------------------------- */

void control_watch_begin(struct control *control, int peer, struct control_watch *watch)
{
    struct control_rank *ranks = control->block->ranks;
    *watch = (struct control_watch){.peer = peer};
    watch->progress = atomic_load_explicit(&ranks[peer].progress, memory_order_relaxed);
    watch->heard = atomic_load(&ranks[control->agents[ranks[peer].node]].heard);
    watch->beat = atomic_load(&ranks[control->agents[control->node]].heard);
    watch->last = seconds_now();
}

/* Writes " while rank 3 waited for it in a barrier". waited_for: the rank for which this one waits; -1: none. */
static void print_waiting(const struct control *control, int culprit, int waited_for, const char *what, char text[160])
{
    if (waited_for < 0)
        text[0] = 0;
    else if (waited_for == culprit)
        snprintf(text, 160, " while rank %d waited for it in %s", control->rank, what);
    else
        snprintf(text, 160, " while rank %d waited for rank %d in %s", control->rank, waited_for, what);
}

static void fail_silent(struct control *control, int rank, int waited_for, const char *what)
{
    const struct control_rank *culprit = &control->block->ranks[rank];
    char text[512], waiting[160];
    print_waiting(control, rank, waited_for, what, waiting);
    snprintf(text, sizeof text,
             "rank %d on %s (process %d) has been silent for %.3g s%s; "
             "hint: it hangs or is stopped; raise comm.timeout_seconds if it is only slow",
             rank, culprit->host, culprit->pid, control_silence(control), waiting);
    control_fail(control, -1, STATUS_PEER, text);
}

static void fail_gone(struct control *control, int rank, int waited_for, const char *how, const char *what)
{
    const struct control_rank *culprit = &control->block->ranks[rank];
    char text[512], waiting[160];
    print_waiting(control, rank, waited_for, what, waiting);
    snprintf(text, sizeof text,
             "rank %d on %s (process %d) %s%s; hint: its own last words are above this line or in the run folder's "
             "log/rank-%d.log; if there are none, it was killed, perhaps for memory (dmesg, sacct)",
             rank, culprit->host, culprit->pid, how, waiting, rank);
    control_fail(control, -1, STATUS_PEER, text);
}

/* Fails the job for the loss of a node, and names the culprit. */
static void fail_node(struct control *control, int node, int waited_for, const char *what)
{
    int culprit = control->agents[node];
    const struct control_rank *agent = &control->block->ranks[culprit];
    char text[512], waiting[160];
    switch ((enum node_condition)atomic_load(&agent->condition)) {
    case NODE_FINE: break;
    case NODE_ENDED:
        /* if another rank of the node was reported dead before, the launcher ended the rest because of it */
        for (int r = 0; r < control->world; r++) {
            struct control_rank *entry = &control->block->ranks[r];
            if (entry->node == node && entry != agent && atomic_load(&entry->state) == RANK_DEAD) {
                culprit = r;
                break;
            }
        }
        fail_gone(control, culprit, waited_for, "died", what);
        break;
    case NODE_SILENT: fail_silent(control, culprit, waited_for, what); break;
    case NODE_UNREACHABLE:
        print_waiting(control, culprit, waited_for, what, waiting);
        snprintf(text, sizeof text,
                 "rank %d on %s (process %d) cannot be reached from %s any more%s; hint: the network between the two, "
                 "or the node %s, is down",
                 culprit, agent->host, agent->pid, control->block->ranks[control->agents[control->node]].host, waiting,
                 agent->host);
        control_fail(control, -1, STATUS_PEER, text);
        break;
    }
}

void control_rank_ended(struct control *control, int rank)
{
    uint32_t joined = RANK_JOINED;
    if (atomic_compare_exchange_strong(&control->block->ranks[rank].state, &joined, RANK_DEAD))
        control_ring(control);
}

void control_node_lost(struct control *control, int node, enum node_condition condition)
{
    atomic_store(&control->block->ranks[control->agents[node]].condition, (uint32_t)condition);
}

void control_blame_rank(struct control *control, int rank)
{
    fail_gone(control, rank, -1, "died", NULL);
}

void control_blame_node(struct control *control, int node)
{
    fail_node(control, node, -1, NULL);
}

/* All news of ranks on other nodes comes through this node's agent: checks that it is alive. */
static void look_at_own_agent(struct control *control, struct control_watch *watch, const char *what, double slice)
{
    int agent = control->agents[control->node];
    struct control_rank *entry = &control->block->ranks[agent];
    if (agent == control->rank)
        return; /* it is a thread of this process */
    uint32_t beat = atomic_load(&entry->heard);
    watch->mute = beat == watch->beat ? watch->mute + slice : 0;
    watch->beat = beat;
    if (watch->mute >= control_silence(control))
        fail_silent(control, agent, watch->peer, what);
    if (process_is_gone(control, 0) && (watch->gone_self += slice) >= gone_grace)
        fail_gone(control, agent, watch->peer, "died", what);
}

void control_watch_look(struct control *control, struct control_watch *watch, const char *what)
{
    liveness_tick(); /* a rank that waits is alive */
    control_watch_peek(control, watch, what);
}

void control_watch_peek(struct control *control, struct control_watch *watch, const char *what)
{
    struct control_rank *other = &control->block->ranks[watch->peer];
    const double now = seconds_now();
    double slice = now - watch->last;
    watch->last = now;
    const double most = 0.1; /* a longer slice means that this process itself was stopped or starved */
    slice = slice > most ? most : slice;

    bool local = other->node == control->node;
    double silence = slice;
    if (!local) {
        /* a report covers the time since the previous one; of the time without reports at most a second counts */
        look_at_own_agent(control, watch, what, slice);
        uint32_t heard = atomic_load(&control->block->ranks[control->agents[other->node]].heard);
        watch->unheard = watch->unheard + slice > 1 ? 1 : watch->unheard + slice;
        silence = heard == watch->heard ? 0 : watch->unheard;
        if (heard != watch->heard)
            watch->unheard = 0;
        watch->heard = heard;
    }
    uint64_t progress = atomic_load_explicit(&other->progress, memory_order_relaxed);
    watch->silent = progress == watch->progress ? watch->silent + silence : 0;
    watch->progress = progress;
    if (watch->silent >= control_silence(control))
        fail_silent(control, watch->peer, watch->peer, what);

    uint32_t condition = atomic_load(&control->block->ranks[control->agents[other->node]].condition);
    uint32_t state = atomic_load(&other->state);
    if (!local && condition != NODE_FINE) {
        watch->gone += slice; /* the node's own explanation may still be on its way through another node */
        if (watch->gone >= gone_grace)
            fail_node(control, other->node, watch->peer, what);
    } else if (state == RANK_CLOSED || state == RANK_DEAD || (local && process_is_gone(control, other->local_rank))) {
        watch->gone += slice; /* supervisor or agent may have a better explanation */
        if (watch->gone >= gone_grace)
            fail_gone(control, watch->peer, watch->peer, state == RANK_CLOSED ? "left the job" : "died", what);
    }
}

enum status control_peer_lost(struct control *control, int peer, const char *what, const char *reason)
{
    const struct timespec pause = {.tv_nsec = SLICE_NS};
    const int node = control->block->ranks[peer].node;
    struct control_rank *agent = &control->block->ranks[control->agents[node]];
    const uint32_t heard = atomic_load(&agent->heard);
    const double start = seconds_now();
    while (!atomic_load(&control->block->failed)) {
        /* if the peer's node still reports, the peer is to blame; a silent node is judged by this node's agent */
        bool judged = atomic_load(&agent->heard) != heard || atomic_load(&agent->condition) != NODE_FINE;
        double waited = seconds_now() - start;
        if (waited >= (judged ? gone_grace : control->timeout))
            break;
        nanosleep(&pause, NULL);
        liveness_tick();
    }
    if (atomic_load(&agent->condition) != NODE_FINE)
        fail_node(control, node, peer, what);
    char how[256];
    uint32_t state = atomic_load(&control->block->ranks[peer].state); /* as its agent may have reported meanwhile */
    if (state == RANK_DEAD || state == RANK_CLOSED)
        snprintf(how, sizeof how, "%s", state == RANK_DEAD ? "died" : "left the job");
    else
        snprintf(how, sizeof how, "is out of reach (%s)", reason);
    fail_gone(control, peer, peer, how, what);
    return control_status(control, NULL);
}

/* ---- waiting ------------------------------------------------------------- */

/* Counts wrap around; ranks are never more than a few arrivals apart. */
static bool reached(uint32_t count, uint32_t target)
{
    return (int32_t)(count - target) >= 0;
}

static inline void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

enum status control_wait(struct control *control, enum control_channel channel, int peer, uint32_t target,
                         const char *what)
{
    struct control_rank *other = &control->block->ranks[peer];
    _Atomic uint32_t *word = &other->arrivals[channel];
    for (int i = 0; i < SPIN_ROUNDS; i++) {
        if (reached(atomic_load(word), target))
            return STATUS_OK;
        cpu_relax();
    }
    struct control_watch watch;
    control_watch_begin(control, peer, &watch);
    const struct timespec slice = {.tv_nsec = SLICE_NS};
    for (;;) {
        if (atomic_load(&control->block->failed))
            return control_status(control, NULL);
        atomic_fetch_add(&other->waiters[channel], 1);
        uint32_t count = atomic_load(word);
        if (!reached(count, target))
            futex(word, FUTEX_WAIT, count, &slice);
        atomic_fetch_sub(&other->waiters[channel], 1);
        if (reached(atomic_load(word), target))
            return STATUS_OK;
        control_watch_look(control, &watch, what);
    }
}

enum status control_wait_all(struct control *control, enum control_channel channel, uint32_t target, const char *what)
{
    for (int r = 0; r < control->world; r++)
        if (r != control->rank)
            TRY(control_wait(control, channel, r, target, what));
    return STATUS_OK;
}

enum status control_wait_node(struct control *control, enum control_channel channel, uint32_t target, const char *what)
{
    for (int i = 0; i < control->local_world; i++)
        if (control->locals[i] != control->rank)
            TRY(control_wait(control, channel, control->locals[i], target, what));
    return STATUS_OK;
}
