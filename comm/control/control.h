/* SPDX-License-Identifier: Apache-2.0 */
/* control.h: the memory that the ranks of one node share: state and progress of each rank, and why the job ends.
 *
 * One memfd per node, made by the supervisor or by the node's first rank (control_open): nothing can be left over.
 *
 *     | control block          | exchange slots  | staging            | segments (comm_share)       |
 *     | header, ranks[world]   | world × 2 × 64K | local ranks × 1 MiB| local ranks × the same size |
 *
 * Block and slots are a replica of the whole job's table: the ranks of this node write their own entries, the agent
 * (agent.h) those of all others. Staging and segments belong to this node, in the order of local ranks.
 *
 * Sequences: on each channel (data, control) a rank counts its arrivals, and waits until a peer's count has reached a
 * number. Every collective is built on that. The data channel's counts are visible on their own node only.
 *
 * Failure: the first process to notice one writes code and text into the block (control_fail), and every wait returns.
 * A rank reports its own error; ranks that wait, the supervisor or the agent notice that a peer is gone or silent
 * (watchdog.h).
 *
 * Threads: control_arrive() is used by one thread per channel; the rest by any. The block stays mapped. */
#pragma once

#include "comm/launch/bootstrap.h"

enum { CONTROL_SLOT_BYTES = 65536, CONTROL_STAGING_BYTES = 1 << 20 };

enum host_collectives { CHANNEL_DATA, CHANNEL_CONTROL, CHANNEL_COUNT };

/* RANK_CLOSED: it left in order; RANK_DEAD: it ended otherwise */
enum rank_state { RANK_ABSENT, RANK_JOINED, RANK_CLOSED, RANK_DEAD };

/* As this node's agent sees another node. One that is lost stays lost. */
enum node_condition {
    NODE_FINE,
    NODE_ENDED,      /* its agent's connection ended without a BYE: that process died */
    NODE_SILENT,     /* its machine answers, its agent does not: that process hangs or is stopped */
    NODE_UNREACHABLE /* the network or the machine is gone */
};

enum op_kind { OP_NONE, OP_ALL_GATHER, OP_REDUCE_SCATTER, OP_EXCHANGE, OP_BARRIER, OP_BROADCAST, OP_KIND_COUNT };

/* A rank's next operation on a channel, written before it arrives; peers compare it with theirs. */
struct control_op {
    uint32_t kind;       /* enum op_kind */
    uint32_t dtype;      /* enum dtype */
    uint64_t count;      /* elements, or bytes on the control channel */
    uint64_t offset;     /* of the send buffer in the rank's segment; CONTROL_STAGED: not in it */
    uint64_t slot_bytes; /* control channel: bytes in the rank's slot; may be 0 */
};
#define CONTROL_STAGED UINT64_MAX

struct control_rank {
    _Alignas(128) _Atomic uint64_t progress;
    _Alignas(128) _Atomic uint32_t arrivals[CHANNEL_COUNT]; /* futex words */
    _Atomic uint32_t waiters[CHANNEL_COUNT];                /* number of threads that sleep on arrivals[] */
    _Atomic uint32_t state;                                 /* enum rank_state */
    _Atomic uint32_t heard;                                 /* of a node's first rank: signs of life of its agent; */
    _Atomic uint32_t condition;                             /* … enum node_condition of the node */
    _Atomic uint64_t planned;                               /* bytes of host memory in its plan; 0: not known yet */
    int32_t node, local_rank;
    int32_t pid;
    char host[64];
    struct control_op op[CHANNEL_COUNT][2]; /* even and odd operations: a fast peer is at most one ahead */
};

struct control_block {
    uint64_t magic, token;
    uint32_t world, local_world, num_nodes;
    _Atomic uint32_t bell;         /* futex word: rung when there is news for the agent to pass on */
    _Atomic uint32_t bell_waiters; /* whether the agent sleeps on it */
    _Atomic uint32_t failed;       /* 0; 1: code and text are being written; 2: they are there */
    int32_t code;                  /* of the job's error: enum status, */
    int32_t rank, failure;         /* … error_blame(); FAILURE_ERROR: it is the own error of `rank` */
    char text[2048];
    struct control_rank ranks[]; /* [world] */
};

struct flight_ring;

/* Byte offsets in the memory; the block is at 0. Private memory has no slots and no staging. */
struct control_layout {
    size_t slots, staging, rings;
    size_t segments; /* in the memfd only */
};

/* One process's handle; read by everyone, written by control.c. */
struct control {
    struct control_block *block;
    char *memory; /* block, slots, staging and the flight recorders' rings; for private memory block and ring */
    struct control_layout at;
    int fd;                             /* of the memfd; -1: private memory */
    int rank, world;                    /* rank -1: an observer */
    int node, num_nodes;                /* node: this one */
    int local_world;                    /* ranks of this node */
    double timeout;                     /* seconds */
    double silence;                     /* seconds of silence after which a rank is named, within the timeout */
    int *locals;                        /* (local_world) the ranks of this node */
    int *agents;                        /* (num_nodes) the rank whose process runs a node's agent: its first */
    int *pidfds;                        /* (local_world) -1: none */
    _Atomic uint64_t *private_progress; /* the process's own counter, used before and after */
};

/* ---- making and attaching ------------------------------------------------ */

struct control_shape {
    int world, local_world, num_nodes;
    uint64_t token;                  /* control_token(), the same for all ranks of the node, or 0 */
    const struct rank_place *places; /* (world); NULL: one node, local rank = rank, processes and hosts still unknown */
};

/* A number derived from the job's secret and the node. */
uint64_t control_token(const unsigned char secret[32], int node);

/* Makes the memfd. The caller closes *fd. */
enum status control_create(const struct control_shape *shape, int *fd, struct error *err);

/* Opens descriptor `number` of `pid`, from control_create() with shape (without places). The caller closes *fd. */
enum status control_open(int pid, int number, const struct control_shape *shape, int *fd, struct error *err);

/* rank -1: an observer (the supervisor). World 1 with fd -1: private memory. */
enum status control_attach(int fd, int rank, int world, const char *host, double timeout_seconds,
                           struct control **control, struct error *err);
/* Waits until all ranks are attached: max(timeout, 10) s and 0.25 s for each rank. */
enum status control_join(struct control *control, struct error *err);
/* This rank leaves, after a failure or when all do. */
void control_leave(struct control *control);
/* Frees the handle; the memory stays mapped. */
void control_detach(struct control *control);
RELEASER(control_drop, struct control, control_detach)

/* ---- reading ------------------------------------------------------------- */

/* Opens the process of a local rank, whose pid is known, to see it end; false: it has ended. */
bool control_open_process(struct control *control, int local_rank);
/* Whether the process of a local rank has ended; false for this rank and before it was opened. */
bool control_process_gone(const struct control *control, int local_rank);
/* A rank's slot (CONTROL_SLOT_BYTES) for even (turn 0) or odd operations; a local rank's staging. */
char *control_slot(const struct control *control, int rank, int turn);
char *control_staging(const struct control *control, int local_rank);
/* The ring of a local rank's flight recorder (core/flight/flight.h), also of private memory. */
struct flight_ring *control_flight_ring(const struct control *control, int local_rank);

/* ---- arriving ------------------------------------------------------------ */

/* Counts this rank's arrival and wakes those that wait for it. Returns the count. */
uint32_t control_arrive(struct control *control, enum host_collectives channel);

/* Sleeps until the arrivals of `rank` are not `seen` any more, at most `seconds`. */
void control_arrival_wait(struct control *control, int rank, enum host_collectives channel, uint32_t seen,
                          double seconds);

/* ---- waiting: watchdog.c ------------------------------------------------- */

/* Waits until all peers (data channel: those of this node) have arrived `target` times; every 20 ms it looks whether
 * the peer still lives (watchdog.h). One thread per channel. `what` names the operation for messages. Returns
 * STATUS_OK, or the job's failure (control_status has the text). */
enum status control_wait(struct control *control, enum host_collectives channel, uint32_t target, const char *what);

/* After the job has failed and control_leave(): waits, at most `seconds`, until this rank may end: all ranks have left
 * or are gone, or a lower rank waits for the rest (a node's first rank also waits for its node). */
bool control_await_end(struct control *control, double seconds);

/* ---- failure ------------------------------------------------------------- */

/* STATUS_OK while the job runs; else its code, with the culprit and the reason in err. */
enum status control_status(struct control *control, struct error *err);

/* Ends the job with this error, which names its rank; FAILURE_ERROR: it is that rank's own. The first call wins. */
void control_fail(struct control *control, const struct error *err);
/* The same with an error that it makes. */
void control_blame(struct control *control, int rank, enum failure failure, enum status code, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* Supervisor: notes the process of `rank`, which may never attach. */
void control_expect(struct control *control, int rank, int pid, const char *host);

/* Supervisor: `rank` ended without leaving; fails the job. */
void control_mark_dead(struct control *control, int rank, const struct error *err);

/* ---- operations ---------------------------------------------------------- */

/* "an all-gather"; kinds that do not exist are "nothing" */
const char *operation_name(uint32_t kind);

/* Whether `peer` is in the same operation; if not, the job fails, since that is a bug. */
bool operation_matches(struct control *control, const struct control_op *own, int peer, const struct control_op *other);

/* ---- for the agent ------------------------------------------------------- */

/* Sleeps until the bell has been rung after block->bell was `seen`, at most `seconds`. */
void control_bell_wait(struct control *control, uint32_t seen, double seconds);
void control_ring(struct control *control);
/* Notes an arrival on another node, when its op and slot are in place. */
void control_arrived(struct control *control, int rank, uint32_t count);

/* Another node is lost. Ranks that wait for it fail the job with a message that names their operation; the agent does
 * it a second later (peer_blame_node). */
void control_node_lost(struct control *control, int node, enum node_condition condition);
