/* control.c: see control.h. */
#include "comm/control.h"

#include "core/progress.h"

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

#define CONTROL_MAGIC UINT64_C(0x315254434e525a54) /* "TZRNCTR1" */

enum {
    BLOCK_BYTES = 65536,
    SEGMENT_ALIGN = 2 << 20,
    SPIN_ROUNDS = 200,          /* of a pause instruction each: a few microseconds */
    SLICE_NS = 20 * 1000 * 1000 /* between two looks at the job's health */
};
_Static_assert(sizeof(struct control_block) <= BLOCK_BYTES, "the control block fits its place");

static const double gone_grace = 0.5;  /* seconds for the supervisor to say how a peer died */
static const double write_grace = 1.0; /* seconds for a failure's text to be written */
static const double join_timeout = 10; /* seconds at least until all ranks must have come */

struct control {
    struct control_block *block;
    int fd, rank, world;
    double timeout;
    _Atomic uint64_t *private_progress; /* where the counter was before */
    int pidfds[CONTROL_MAX_RANKS];      /* -1: none */
};

/* ---------------------------------------------------------------- layout */

static size_t round_up(size_t bytes, size_t align)
{
    return (bytes + align - 1) / align * align;
}

size_t control_slot_offset(int rank)
{
    return BLOCK_BYTES + (size_t)rank * 2 * CONTROL_SLOT_BYTES;
}

size_t control_staging_offset(int world, int rank)
{
    return control_slot_offset(world) + (size_t)rank * CONTROL_STAGING_BYTES;
}

size_t control_segments_offset(int world)
{
    return round_up(control_staging_offset(world, world), SEGMENT_ALIGN);
}

/* ---------------------------------------------------------------- making, attaching, leaving */

enum status control_create(int world, int *fd, struct error *err)
{
    ASSERT(world >= 1 && world <= CONTROL_MAX_RANKS);
    *fd = -1;
    int file = memfd_create("ztrain", MFD_CLOEXEC);
    if (file < 0)
        return error_set(err, STATUS_DEVICE, "cannot create shared memory: %s", strerror(errno));
    struct control_block *block = MAP_FAILED;
    if (ftruncate(file, (off_t)control_segments_offset(world)) == 0)
        block = mmap(NULL, BLOCK_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (block == MAP_FAILED) {
        error_set(err, STATUS_DEVICE, "cannot set up shared memory for %d ranks: %s", world, strerror(errno));
        close(file);
        return STATUS_DEVICE;
    }
    block->magic = CONTROL_MAGIC;
    block->world = (uint32_t)world;
    munmap(block, BLOCK_BYTES);
    *fd = file;
    return STATUS_OK;
}

enum status control_attach(int fd, int rank, int world, const char *host, double timeout_seconds,
                           struct control **control, struct error *err)
{
    ASSERT(world >= 1 && world <= CONTROL_MAX_RANKS && rank >= -1 && rank < world);
    ASSERT(fd >= 0 || world == 1);
    *control = NULL;
    struct control *c = calloc(1, sizeof *c);
    if (!c)
        return error_set(err, STATUS_DEVICE, "out of memory");
    *c = (struct control){.fd = fd, .rank = rank, .world = world, .timeout = timeout_seconds};
    for (int r = 0; r < CONTROL_MAX_RANKS; r++)
        c->pidfds[r] = -1;

    struct stat info;
    if (fd >= 0 && (fstat(fd, &info) != 0 || (size_t)info.st_size < control_segments_offset(world))) {
        error_set(err, STATUS_USAGE, "descriptor %d is not the shared memory of a job with %d ranks", fd, world);
        error_hint(err, "local ranks are started by --local-gpus N, not by hand");
        goto fail;
    }
    c->block =
        mmap(NULL, BLOCK_BYTES, PROT_READ | PROT_WRITE, fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
    if (c->block == MAP_FAILED) {
        error_set(err, STATUS_DEVICE, "cannot map the control block: %s", strerror(errno));
        goto fail;
    }
    if (fd < 0) {
        c->block->magic = CONTROL_MAGIC;
        c->block->world = 1;
    }
    if (c->block->magic != CONTROL_MAGIC || c->block->world != (uint32_t)world) {
        munmap(c->block, BLOCK_BYTES);
        error_set(err, STATUS_USAGE, "descriptor %d is not the shared memory of a job with %d ranks", fd, world);
        error_hint(err, "local ranks are started by --local-gpus N, not by hand");
        goto fail;
    }
    if (rank >= 0) {
        struct control_rank *own = &c->block->ranks[rank];
        own->pid = getpid();
        snprintf(own->host, sizeof own->host, "%s", host);
        c->private_progress = atomic_exchange(&progress_counter, &own->progress);
        atomic_store(&own->state, RANK_JOINED);
    }
    *control = c;
    return STATUS_OK;
fail:
    free(c);
    return err ? err->code : STATUS_DEVICE;
}

enum status control_join(struct control *control, struct error *err)
{
    ASSERT(control->rank >= 0);
    const struct timespec pause = {.tv_nsec = 2 * 1000 * 1000};
    struct timespec start, now;
    double limit = control->timeout > join_timeout ? control->timeout : join_timeout;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int r = 0; r < control->world; r++) {
        struct control_rank *peer = &control->block->ranks[r];
        while (atomic_load(&peer->state) == RANK_ABSENT && atomic_load(&control->block->failed) != 2) {
            nanosleep(&pause, NULL);
            progress_tick();
            clock_gettime(CLOCK_MONOTONIC, &now);
            double waited = (double)(now.tv_sec - start.tv_sec) + 1e-9 * (double)(now.tv_nsec - start.tv_nsec);
            if (waited > limit) {
                char text[256];
                snprintf(text, sizeof text,
                         "rank %d on %s (process %d) has not joined the job within %.3g s; hint: it hangs or is "
                         "stopped; raise comm.timeout_seconds if it is only slow",
                         r, peer->host[0] ? peer->host : "?", peer->pid, limit);
                control_fail(control, -1, STATUS_PEER, text);
            }
        }
        if (r == control->rank || atomic_load(&peer->state) == RANK_ABSENT)
            continue;
        control->pidfds[r] = (int)syscall(SYS_pidfd_open, peer->pid, 0);
        if (control->pidfds[r] < 0 && errno == ESRCH) {
            char text[128];
            snprintf(text, sizeof text, "rank %d on %s (process %d) died at the start", r, peer->host, peer->pid);
            control_fail(control, -1, STATUS_PEER, text);
        }
    }
    return control_status(control, err);
}

void control_leave(struct control *control)
{
    if (control->rank < 0)
        return;
    atomic_store(&control->block->ranks[control->rank].state, RANK_CLOSED);
}

void control_detach(struct control *control)
{
    if (!control)
        return;
    if (control->private_progress)
        atomic_store(&progress_counter, control->private_progress);
    for (int r = 0; r < CONTROL_MAX_RANKS; r++)
        if (control->pidfds[r] >= 0)
            close(control->pidfds[r]);
    free(control);
}

struct control_block *control_block(struct control *control)
{
    return control->block;
}

int control_fd(const struct control *control)
{
    return control->fd;
}

/* ---------------------------------------------------------------- failure */

enum status control_status(struct control *control, struct error *err)
{
    struct control_block *block = control->block;
    uint32_t failed = atomic_load(&block->failed);
    if (failed == 0)
        return STATUS_OK;
    /* someone is writing: a moment, unless the writer died over it */
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
}

void control_expect(struct control *control, int rank, int pid, const char *host)
{
    struct control_rank *entry = &control->block->ranks[rank];
    if (atomic_load(&entry->state) != RANK_ABSENT) /* it was faster, and has written the same */
        return;
    entry->pid = pid;
    snprintf(entry->host, sizeof entry->host, "%s", host);
}

void control_mark_dead(struct control *control, int rank, enum status code, const char *text)
{
    atomic_store(&control->block->ranks[rank].state, RANK_DEAD);
    control_fail(control, -1, code, text);
}

/* ---------------------------------------------------------------- arriving and waiting */

static long futex(_Atomic uint32_t *word, int operation, uint32_t value, const struct timespec *timeout)
{
    return syscall(SYS_futex, word, operation, value, timeout, NULL, 0);
}

uint32_t control_arrive(struct control *control, enum control_channel channel)
{
    struct control_rank *own = &control->block->ranks[control->rank];
    uint32_t count = atomic_fetch_add(&own->arrivals[channel], 1) + 1;
    if (atomic_load(&own->waiters[channel]))
        futex(&own->arrivals[channel], FUTEX_WAKE, INT_MAX, NULL);
    return count;
}

/* counts wrap around; the distance between ranks never exceeds a few */
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

/* The state of a wait that did not end at once. */
struct patience {
    uint64_t seen;       /* the peer's progress at the last look */
    double silent, gone; /* seconds that it did not tick; that its process is gone */
    struct timespec last;
};

/* Looks after the peer that we wait for; fails the job if it is gone or silent for too long. */
static void look_after(struct control *control, int peer, const char *what, struct patience *patience)
{
    struct control_rank *other = &control->block->ranks[peer];
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double slice = (double)(now.tv_sec - patience->last.tv_sec) + 1e-9 * (double)(now.tv_nsec - patience->last.tv_nsec);
    if (slice > 2e-9 * SLICE_NS) /* we were stopped ourselves, or starved */
        slice = 2e-9 * SLICE_NS;
    patience->last = now;

    char text[512];
    uint64_t progress = atomic_load_explicit(&other->progress, memory_order_relaxed);
    patience->silent = progress == patience->seen ? patience->silent + slice : 0;
    patience->seen = progress;
    if (patience->silent >= control->timeout) {
        snprintf(text, sizeof text,
                 "rank %d on %s (process %d) has been silent for %.3g s while rank %d waited for it in %s; "
                 "hint: it hangs or is stopped; raise comm.timeout_seconds if it is only slow",
                 peer, other->host, other->pid, control->timeout, control->rank, what);
        control_fail(control, -1, STATUS_PEER, text);
    }

    struct pollfd death = {.fd = control->pidfds[peer], .events = POLLIN};
    bool closed = atomic_load(&other->state) == RANK_CLOSED;
    if (closed || (death.fd >= 0 && poll(&death, 1, 0) > 0)) {
        patience->gone += slice; /* the supervisor, if there is one, knows more */
        if (patience->gone >= gone_grace) {
            snprintf(text, sizeof text, "rank %d on %s (process %d) %s while rank %d waited for it in %s", peer,
                     other->host, other->pid, closed ? "left the job" : "died", control->rank, what);
            control_fail(control, -1, STATUS_PEER, text);
        }
    }
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
    struct patience patience = {.seen = atomic_load(&other->progress)};
    clock_gettime(CLOCK_MONOTONIC, &patience.last);
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
        progress_tick(); /* a rank that waits is alive */
        look_after(control, peer, what, &patience);
    }
}

enum status control_wait_all(struct control *control, enum control_channel channel, uint32_t target, const char *what)
{
    for (int r = 0; r < control->world; r++)
        if (r != control->rank)
            TRY(control_wait(control, channel, r, target, what));
    return STATUS_OK;
}
