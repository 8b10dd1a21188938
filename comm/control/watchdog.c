/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/control/watchdog.h"

static const double gone_grace = 0.5;    /* seconds, for supervisor or agent to report how a peer died */
static const double look_seconds = 0.02; /* between two looks of a rank that waits */

static struct control_rank *watchdog_rank(struct control *control, int rank)
{
    return &control->block->ranks[rank];
}

static struct control_rank *watchdog_agent(struct control *control, int node)
{
    return watchdog_rank(control, control->agents[node]);
}

/* ---- naming the culprit -------------------------------------------------- */

/* "rank 3 on HOST (process 7) HOW while rank 0 waited for it in a barrier; hint: …". waited_for: the rank for which
 * this one waits in `what`; -1: none. */
static void watchdog_fail_culprit(struct control *control, int rank, int waited_for, enum failure failure,
                                  const char *what, const char *how, const char *hint)
{
    const struct control_rank *culprit = watchdog_rank(control, rank);
    char waiting[160] = "";
    if (waited_for == rank)
        snprintf(waiting, sizeof waiting, " while rank %d waited for it in %s", control->rank, what);
    else if (waited_for >= 0)
        snprintf(waiting, sizeof waiting, " while rank %d waited for rank %d in %s", control->rank, waited_for, what);
    control_blame(control, rank, failure, STATUS_PEER, "rank %d on %s (process %d) %s%s; hint: %s", rank, culprit->host,
                  culprit->pid, how, waiting, hint);
}

static void watchdog_fail_silent(struct control *control, int rank, int waited_for, const char *what)
{
    char how[64];
    snprintf(how, sizeof how, "has been silent for %.3g s", control->silence);
    watchdog_fail_culprit(control, rank, waited_for, FAILURE_SILENT, what, how,
                          "it hangs or is stopped; raise comm.timeout_seconds if it is only slow");
}

static void watchdog_fail_gone(struct control *control, int rank, int waited_for, enum failure failure, const char *how,
                               const char *what)
{
    char hint[192];
    snprintf(hint, sizeof hint,
             "its own last words are above this line or in the run folder's log/rank-%d.log; if there are none, it was "
             "killed, perhaps for memory (dmesg, sacct)",
             rank);
    watchdog_fail_culprit(control, rank, waited_for, failure, what, how, hint);
}

void peer_blame_rank(struct control *control, int rank, int waited_for, const char *what)
{
    watchdog_fail_gone(control, rank, waited_for, FAILURE_DIED, "died", what);
}

/* state: RANK_CLOSED, or the rank has died. */
static void watchdog_fail_lost(struct control *control, int rank, uint32_t state, const char *what)
{
    if (state == RANK_CLOSED)
        watchdog_fail_gone(control, rank, rank, FAILURE_LEFT, "left the job", what);
    else
        peer_blame_rank(control, rank, rank, what);
}

void peer_blame_node(struct control *control, int node, int waited_for, const char *what)
{
    int culprit = control->agents[node];
    const struct control_rank *agent = watchdog_rank(control, culprit);
    char how[128], hint[128];
    switch ((enum node_condition)atomic_load(&agent->condition)) {
    case NODE_FINE: break;
    case NODE_ENDED:
        /* if another rank of the node was reported dead before, the launcher ended the rest because of it */
        for (int r = 0; r < (int)control->block->world; r++) {
            struct control_rank *entry = watchdog_rank(control, r);
            if (entry->node == node && entry != agent && atomic_load(&entry->state) == RANK_DEAD) {
                culprit = r;
                break;
            }
        }
        peer_blame_rank(control, culprit, waited_for, what);
        break;
    case NODE_SILENT: watchdog_fail_silent(control, culprit, waited_for, what); break;
    case NODE_UNREACHABLE:
        snprintf(how, sizeof how, "cannot be reached from %s any more", watchdog_agent(control, control->node)->host);
        snprintf(hint, sizeof hint, "the network between the two, or the node %s, is down", agent->host);
        watchdog_fail_culprit(control, culprit, waited_for, FAILURE_UNREACHABLE, what, how, hint);
        break;
    }
}

/* ---- watching ------------------------------------------------------------ */

void watchdog_begin(struct control *control, int peer, struct watchdog *watch)
{
    const struct control_rank *other = watchdog_rank(control, peer);
    *watch = (struct watchdog){.peer = peer};
    watch->progress = atomic_load_explicit(&other->progress, memory_order_relaxed);
    watch->heard = atomic_load(&watchdog_agent(control, other->node)->heard);
    watch->beat = atomic_load(&watchdog_agent(control, control->node)->heard);
    watch->last = seconds_now();
}

/* All news of ranks on other nodes comes through this node's agent: checks that it is alive. */
static void look_at_own_agent(struct control *control, struct watchdog *watch, const char *what, double slice)
{
    int agent = control->agents[control->node];
    if (agent == control->rank) return; /* it is a thread of this process */
    uint32_t beat = atomic_load(&watchdog_rank(control, agent)->heard);
    watch->mute = beat == watch->beat ? watch->mute + slice : 0;
    watch->beat = beat;
    if (watch->mute >= control->silence) watchdog_fail_silent(control, agent, watch->peer, what);
    if (control_process_gone(control, 0) && (watch->gone_self += slice) >= gone_grace)
        peer_blame_rank(control, agent, watch->peer, what);
}

void watchdog_look(struct control *control, struct watchdog *watch, const char *what)
{
    heartbeat_beat(); /* a rank that waits is alive */
    watchdog_peek(control, watch, what);
}

void watchdog_peek(struct control *control, struct watchdog *watch, const char *what)
{
    struct control_rank *other = watchdog_rank(control, watch->peer);
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
        uint32_t heard = atomic_load(&watchdog_agent(control, other->node)->heard);
        watch->unheard = watch->unheard + slice > 1 ? 1 : watch->unheard + slice;
        silence = heard == watch->heard ? 0 : watch->unheard;
        if (heard != watch->heard) watch->unheard = 0;
        watch->heard = heard;
    }
    uint64_t progress = atomic_load_explicit(&other->progress, memory_order_relaxed);
    watch->silent = progress == watch->progress ? watch->silent + silence : 0;
    watch->progress = progress;
    if (watch->silent >= control->silence) watchdog_fail_silent(control, watch->peer, watch->peer, what);

    uint32_t condition = atomic_load(&watchdog_agent(control, other->node)->condition);
    uint32_t state = atomic_load(&other->state);
    if (!local && condition != NODE_FINE) {
        watch->gone += slice; /* the node's own explanation may still be on its way through another node */
        if (watch->gone >= gone_grace) peer_blame_node(control, other->node, watch->peer, what);
    } else if (state == RANK_CLOSED || state == RANK_DEAD ||
               (local && control_process_gone(control, other->local_rank))) {
        watch->gone += slice; /* supervisor or agent may have a better explanation */
        if (watch->gone >= gone_grace) watchdog_fail_lost(control, watch->peer, state, what);
    }
}

enum status peer_lost(struct control *control, int peer, const char *what, const char *reason)
{
    const int node = watchdog_rank(control, peer)->node;
    struct control_rank *agent = watchdog_agent(control, node);
    const uint32_t heard = atomic_load(&agent->heard);
    const double start = seconds_now();
    while (!atomic_load(&control->block->failed)) {
        /* if the peer's node still reports, the peer is to blame; a silent node is judged by this node's agent */
        bool judged = atomic_load(&agent->heard) != heard || atomic_load(&agent->condition) != NODE_FINE;
        if (seconds_now() - start >= (judged ? gone_grace : control->timeout)) break;
        heartbeat_pause(look_seconds);
    }
    if (atomic_load(&agent->condition) != NODE_FINE) peer_blame_node(control, node, peer, what);
    char how[256];
    uint32_t state = atomic_load(&watchdog_rank(control, peer)->state); /* as its agent may have reported meanwhile */
    snprintf(how, sizeof how, "is out of reach (%s)", reason);
    if (state == RANK_DEAD || state == RANK_CLOSED)
        watchdog_fail_lost(control, peer, state, what);
    else
        watchdog_fail_gone(control, peer, peer, FAILURE_UNREACHABLE, how, what);
    return control_status(control, NULL);
}

/* ---- waiting ------------------------------------------------------------- */

enum { SPIN_ROUNDS = 200 }; /* of a pause instruction each: a few microseconds */

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
        if (wait_reached(atomic_load(arrivals), target)) return STATUS_OK;
        cpu_relax();
    }
    struct watchdog watch;
    watchdog_begin(control, peer, &watch);
    for (;;) {
        if (atomic_load(&block->failed)) return control_status(control, NULL);
        uint32_t count = atomic_load(arrivals);
        if (!wait_reached(count, target)) control_arrival_wait(control, peer, channel, count, look_seconds);
        if (wait_reached(atomic_load(arrivals), target)) return STATUS_OK;
        watchdog_look(control, &watch, what);
    }
}

enum status control_wait(struct control *control, enum host_collectives channel, uint32_t target, const char *what)
{
    const bool node = channel == CHANNEL_DATA;
    for (int i = 0; i < (node ? control->local_world : control->world); i++) {
        const int peer = node ? control->locals[i] : i;
        if (peer != control->rank) TRY(wait_for(control, channel, peer, target, what));
    }
    return STATUS_OK;
}

/* ---- the end of a failed job --------------------------------------------- */

static bool wait_rank_gone(struct control *control, int rank)
{
    const struct control_rank *entry = &control->block->ranks[rank];
    uint32_t state = atomic_load(&entry->state);
    if (state == RANK_CLOSED || state == RANK_DEAD) return true;
    if (control->block->ranks[rank].node == control->node) return control_process_gone(control, entry->local_rank);
    return atomic_load(&control->block->ranks[control->agents[entry->node]].condition) == NODE_ENDED;
}

bool control_await_end(struct control *control, double seconds)
{
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
        if (all || (lower && (node || control->agents[control->node] != self))) return true;
        heartbeat_pause(look_seconds);
    } while (seconds_now() - start < seconds);
    return false;
}
