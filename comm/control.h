/* control.h: the memory that the ranks of one node share: who is there, how far each one is, why the job ends.
 *
 * One memfd per node, made by the supervisor and inherited by its ranks, or made by the node's first rank and opened by
 * the others (control_open). It has no name in any folder, so nothing can be left behind.
 *
 *     | control block          | exchange slots  | staging            | segments (comm_share)       |
 *     | header, ranks[world]   | world × 2 × 64K | local ranks × 1 MiB| local ranks × the same size |
 *
 * Block and slots have a place for every rank of the job: a node's copy is a replica of the whole job's table. The
 * entries of this node's ranks are written by those ranks themselves, the others by the agent (agent.h), which passes
 * on what happens on the control channel. Staging and segments are this node's alone, in the order of local ranks.
 * Pages exist once they are touched.
 *
 * Sequences: on each channel (data, control) a rank counts its arrivals; a rank that needs a peer waits until the
 * peer's count has reached a number. That one primitive carries every collective. The data channel's counts are seen on
 * their own node only. Waiting: a short spin, then a futex in the shared memory with a timeout, after which the waiter
 * looks whether the job has failed.
 *
 * Failure: the first one to notice a failure writes code and text into the control block (once; the first wins). Every
 * wait returns when that is set. What is noticed: a rank that says so (control_fail), a peer whose process is gone
 * (pidfd, or supervisor or agent say so), and silence: a peer that we wait for has not ticked its progress counter
 * (core/progress.h, which lives here while the rank is attached) for nine tenths of the timeout. A rank that waits
 * ticks, so that the culprit is named and not its victims. Silence is counted in the waiter's own slices of time: if
 * the whole job is stopped and continued, nobody is accused. A rank on another node is judged by what its agent says of
 * it; while its node says nothing, it is the node that the agent judges; and if our own agent is silent or gone, that
 * is the culprit.
 *
 * Threads: control_wait and control_arrive are used by one thread per channel; the others by any thread. The block
 * stays mapped until the process ends, because any thread may tick at any time. */
#ifndef ZTRAIN_COMM_CONTROL_H
#define ZTRAIN_COMM_CONTROL_H

#include "comm/launch/bootstrap.h"
#include "core/status.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CONTROL_SLOT_BYTES = 65536, CONTROL_STAGING_BYTES = 1 << 20 };

enum control_channel { CHANNEL_DATA, CHANNEL_CONTROL, CHANNEL_COUNT };

/* RANK_CLOSED: it left in order (comm_close); RANK_DEAD: it ended without that, as supervisor or agent saw */
enum rank_state { RANK_ABSENT, RANK_JOINED, RANK_CLOSED, RANK_DEAD };

/* How another node stands, as our agent sees it. Once it is not fine any more it stays so. */
enum node_condition {
    NODE_FINE,
    NODE_ENDED,      /* its agent's connection ended without a good-bye: that process died */
    NODE_SILENT,     /* its machine answers, its agent says nothing: that process hangs or is stopped */
    NODE_UNREACHABLE /* network or machine are gone */
};

/* What a rank is about to do on a channel, written before it arrives: peers compare it with theirs and find buffers. */
struct control_op {
    uint32_t kind;       /* the owner's enum; for messages and comparison */
    uint32_t dtype;      /* enum dtype */
    uint64_t count;      /* elements, or bytes on the control channel */
    uint64_t offset;     /* of the send buffer in the rank's segment; CONTROL_STAGED: not in it */
    uint64_t slot_bytes; /* control channel: bytes in the rank's slot; 0 where it has nothing to say */
};
#define CONTROL_STAGED UINT64_MAX

struct control_rank {
    _Alignas(128) _Atomic uint64_t progress;
    _Alignas(128) _Atomic uint32_t arrivals[CHANNEL_COUNT]; /* futex words */
    _Atomic uint32_t waiters[CHANNEL_COUNT];                /* how many sleep on arrivals[] */
    _Atomic uint32_t state;                                 /* enum rank_state */
    _Atomic uint32_t heard;     /* a node's first rank: how often its agent gave a sign of life; */
    _Atomic uint32_t condition; /* … enum node_condition */
    int32_t node, local_rank;
    int32_t pid;
    char host[64];
    struct control_op op[CHANNEL_COUNT][2]; /* of even and of odd operations: a fast peer is at most one ahead */
};

struct control_block {
    uint64_t magic, token;
    uint32_t world, local_world, num_nodes;
    _Atomic uint32_t bell;         /* futex word: rung when there is something for the agent to pass on */
    _Atomic uint32_t bell_waiters; /* whether it sleeps on it */
    _Atomic uint32_t failed;       /* 0; 1: code and text are being written; 2: they are there */
    int32_t code;                  /* enum status */
    int32_t speaker;               /* rank that ends with this error of its own; -1: text is about another */
    char text[2048];
    struct control_rank ranks[]; /* [world] */
};

struct control;

/* ---- making and attaching ------------------------------------------------ */

struct control_shape {
    int world, local_world, num_nodes;
    uint64_t token;                  /* what all ranks of the node know of the job (control_token), or 0 */
    const struct rank_place *places; /* (world); NULL: one node, local rank = rank, the rest is yet to be known */
};

/* A number that follows from the job's secret and the node. */
uint64_t control_token(const unsigned char secret[32], int node);

/* Makes the memfd: a control block in which nobody has arrived. */
enum status control_create(const struct control_shape *shape, int *fd, struct error *err);

/* Opens descriptor `number` of process `pid` of this node, which made the memory with control_create(); refuses
 * anything else. shape.places is not looked at. */
enum status control_open(int pid, int number, const struct control_shape *shape, int *fd, struct error *err);

/* Maps it. rank -1: an observer (the supervisor). World 1 with fd -1: private memory. */
enum status control_attach(int fd, int rank, int world, const char *host, double timeout_seconds,
                           struct control **control, struct error *err);
/* Waits until all ranks are attached: max(timeout, 10) s and a quarter of a second for each rank. With several nodes
 * the agents must have started. */
enum status control_join(struct control *control, struct error *err);
/* Says that this rank leaves in order (after a failure or when all have agreed to). */
void control_leave(struct control *control);
/* Frees the handle; the memory stays mapped. */
void control_detach(struct control *control);

/* ---- what there is ------------------------------------------------------- */

struct control_block *control_block(struct control *control);
int control_fd(const struct control *control);
double control_timeout(const struct control *control);
double control_silence(const struct control *control); /* seconds of it that are too many: named within the timeout */
int control_self(const struct control *control);       /* this process's rank, -1: an observer */
int control_node(const struct control *control);       /* this node */
int control_local_world(const struct control *control);
/* The rank that is number `local_rank` on this node; the rank whose process has a node's agent (its first). */
int control_local(const struct control *control, int local_rank);
int control_agent(const struct control *control, int node);
bool control_is_local(const struct control *control, int rank);
/* A rank's slot for even (turn 0) and odd operations, CONTROL_SLOT_BYTES; a local rank's staging; where the segments
 * start in the memfd, in bytes. Not for private memory. */
char *control_slot(const struct control *control, int rank, int turn);
char *control_staging(const struct control *control, int local_rank);
size_t control_segments_offset(const struct control *control);

/* ---- arriving and waiting ------------------------------------------------ */

/* Counts this rank's arrival on a channel and wakes who waits for it. Returns the count. */
uint32_t control_arrive(struct control *control, enum control_channel channel);

/* Waits until `peer` has arrived `target` times. `what` names our operation for messages. Returns STATUS_OK, or the
 * job's failure (control_status has the text). */
enum status control_wait(struct control *control, enum control_channel channel, int peer, uint32_t target,
                         const char *what);
/* The same for all peers; for those of this node. */
enum status control_wait_all(struct control *control, enum control_channel channel, uint32_t target, const char *what);
enum status control_wait_node(struct control *control, enum control_channel channel, uint32_t target, const char *what);

/* An eye on a peer that somebody waits for in another way than control_wait(), a socket say. Look every 20 to 100 ms
 * while nothing comes: ticks, and fails the job if the peer is gone or silent for too long. */
struct control_watch {
    int peer;
    uint64_t progress;      /* the peer's at the last look */
    uint32_t heard, beat;   /* signs of life of the peer's node and of our own agent at the last look */
    double silent;          /* seconds that the peer did not tick */
    double unheard, mute;   /* that its node, that our own agent gave no sign */
    double gone, gone_self; /* that the peer's process, our own agent's process is gone */
    double last;            /* seconds_now() at the last look */
};
void control_watch_begin(struct control *control, int peer, struct control_watch *watch);
void control_watch_look(struct control *control, struct control_watch *watch, const char *what);
/* The same by a thread that does not speak for the rank: without the tick. */
void control_watch_peek(struct control *control, struct control_watch *watch, const char *what);

/* The connection with a peer broke in operation `what`: gives those who may know more half a second, or, while the
 * peer's node is silent, the time until our agent says why; then fails the job with "rank R on HOST …: REASON". Returns
 * the job's failure. */
enum status control_peer_lost(struct control *control, int peer, const char *what, const char *reason);

/* ---- failure ------------------------------------------------------------- */

/* STATUS_OK while the job goes on; else its code, and who and what in err. */
enum status control_status(struct control *control, struct error *err);

/* Ends the job. speaker: the rank whose own error this is, or -1 if the text is about another. First one wins. */
void control_fail(struct control *control, int speaker, enum status code, const char *text);

/* After the job has failed and control_leave(): waits until this rank may go and leave the rest to others. true: all
 * ranks have left or are gone, or a lower rank is there to see to the rest (and, in a node's first rank, whose agent
 * has to pass that on, the other ranks of this node are gone). false: after so many seconds somebody is still there who
 * does not leave by itself. */
bool control_await_end(struct control *control, double seconds);

/* Supervisor: `rank` was started as this process: who it is, should it never attach. */
void control_expect(struct control *control, int rank, int pid, const char *host);

/* Supervisor: `rank` ended without leaving in order; sets its state and fails the job with `text`. */
void control_mark_dead(struct control *control, int rank, enum status code, const char *text);

/* ---- for the agent ------------------------------------------------------- */

/* Sleeps until the bell was rung since `seen` was read from block->bell, at most so many seconds. */
void control_bell_wait(struct control *control, uint32_t seen, double seconds);
void control_ring(struct control *control);
/* A rank of another node has arrived on the control channel; op and slot are in place. */
void control_arrived(struct control *control, int rank, uint32_t count);

/* A rank of this node ended without leaving, another node is lost: written down, so that those who wait for it name it
 * with what they wait in. The agent gives them a second, then names it itself (control_blame_…). */
void control_rank_ended(struct control *control, int rank);
void control_node_lost(struct control *control, int node, enum node_condition condition);
void control_blame_rank(struct control *control, int rank);
void control_blame_node(struct control *control, int node);

#endif
