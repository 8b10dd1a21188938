/* SPDX-License-Identifier: Apache-2.0 */
/* control_wait.c: waiting until other ranks have arrived, or until the ranks of a failed job have left. */
#include "comm/control/watchdog.h"

#include "core/clock.h"
#include "core/heartbeat.h"

#include <time.h>

enum { SPIN_ROUNDS = 200 }; /* of a pause instruction each: a few microseconds */

static const double slice = 0.02; /* seconds between two looks at the job's health */

/* Counts wrap around; ranks are never more than a few arrivals apart. */
static bool wait_reached(uint32_t count, uint32_t target)
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

static enum status wait_for(struct control *control, enum host_collectives channel, int peer, uint32_t target,
                            const char *what)
{
    struct control_block *block = control->block;
    const _Atomic uint32_t *arrivals = &block->ranks[peer].arrivals[channel];
    for (int i = 0; i < SPIN_ROUNDS; i++) {
        if (wait_reached(atomic_load(arrivals), target))
            return STATUS_OK;
        cpu_relax();
    }
    struct watchdog watch;
    watchdog_begin(control, peer, &watch);
    for (;;) {
        if (atomic_load(&block->failed))
            return control_status(control, NULL);
        uint32_t count = atomic_load(arrivals);
        if (!wait_reached(count, target))
            control_arrival_wait(control, peer, channel, count, slice);
        if (wait_reached(atomic_load(arrivals), target))
            return STATUS_OK;
        watchdog_look(control, &watch, what);
    }
}

enum status control_wait(struct control *control, enum host_collectives channel, uint32_t target, const char *what)
{
    const bool node = channel == CHANNEL_DATA;
    for (int i = 0; i < (node ? control->local_world : control->world); i++) {
        const int peer = node ? control->locals[i] : i;
        if (peer != control->rank)
            TRY(wait_for(control, channel, peer, target, what));
    }
    return STATUS_OK;
}

/* ---- the end of a failed job --------------------------------------------- */

static bool wait_rank_gone(struct control *control, int rank)
{
    const struct control_rank *entry = &control->block->ranks[rank];
    uint32_t state = atomic_load(&entry->state);
    if (state == RANK_CLOSED || state == RANK_DEAD)
        return true;
    if (control->block->ranks[rank].node == control->node)
        return control_process_gone(control, entry->local_rank);
    return atomic_load(&control->block->ranks[control->agents[entry->node]].condition) == NODE_ENDED;
}

bool control_await_end(struct control *control, double seconds)
{
    const struct timespec pause = {.tv_nsec = (long)(slice * 1e9)};
    const int self = control->rank, world = (int)control->block->world;
    const double start = seconds_now();
    do {
        bool all = true, node = true, lower = false;
        for (int r = 0; r < world; r++) {
            bool gone = r == self || wait_rank_gone(control, r);
            all &= gone;
            node &= gone || !(control->block->ranks[r].node == control->node);
            lower |= r < self && atomic_load(&control->block->ranks[r].state) == RANK_CLOSED;
        }
        if (all || (lower && (node || control->agents[control->node] != self)))
            return true;
        nanosleep(&pause, NULL);
        heartbeat_beat();
    } while (seconds_now() - start < seconds);
    return false;
}
