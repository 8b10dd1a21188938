/* control.h: the memory that the ranks of one machine share: who is there, how far each one is, why the job ends.
 *
 * One memfd, made by the supervisor and inherited by its ranks. It has no name, so nothing can be left behind.
 *
 *     | control block | exchange slots | staging      | segments (comm_share)        |
 *     | below         | world × 2 × 64K| world × 1 MiB| world × the same size        |
 *
 * Sequences: on each channel (data, control) a rank counts its arrivals; a rank that needs a peer waits until the
 * peer's count has reached a number. That one primitive carries every collective. Waiting: a short spin, then a futex
 * in the shared memory with a timeout, after which the waiter looks whether the job has failed.
 *
 * Failure: the first one to notice a failure writes code and text into the control block (once; the first wins). Every
 * wait returns when that is set. What is noticed: a rank that says so (control_abort), a peer whose process is gone
 * (pidfd, or the supervisor says how it died), and silence: a peer that we wait for has not ticked its progress counter
 * (core/progress.h, which lives here while the rank is attached) for the timeout. A rank that waits ticks, so that the
 * culprit is named and not its victims. Silence is counted in the waiter's own slices of time: if the whole job is
 * stopped and continued, nobody is accused.
 *
 * Threads: control_wait and control_arrive are used by one thread per channel; the others by any thread. The block
 * stays mapped until the process ends, because any thread may tick at any time. */
#ifndef ZTRAIN_COMM_CONTROL_H
#define ZTRAIN_COMM_CONTROL_H

#include "core/status.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CONTROL_MAX_RANKS = 64, /* bits of a bad_ranks mask */
    CONTROL_SLOT_BYTES = 65536,
    CONTROL_STAGING_BYTES = 1 << 20
};

enum control_channel { CHANNEL_DATA, CHANNEL_CONTROL, CHANNEL_COUNT };

/* RANK_CLOSED: it left in order (comm_close); RANK_DEAD: the supervisor saw it end without that */
enum rank_state { RANK_ABSENT, RANK_JOINED, RANK_CLOSED, RANK_DEAD };

/* What a rank is about to do on a channel, written before it arrives: peers compare it with theirs and find buffers. */
struct control_op {
    uint32_t kind;   /* the owner's enum; for messages and comparison */
    uint32_t dtype;  /* enum dtype */
    uint64_t count;  /* elements, or bytes on the control channel */
    uint64_t offset; /* of the send buffer in the rank's segment; CONTROL_STAGED: not in it */
};
#define CONTROL_STAGED UINT64_MAX

struct control_rank {
    _Alignas(128) _Atomic uint64_t progress;
    _Alignas(128) _Atomic uint32_t arrivals[CHANNEL_COUNT]; /* futex words */
    _Atomic uint32_t waiters[CHANNEL_COUNT];                /* how many sleep on arrivals[] */
    _Atomic uint32_t state;                                 /* enum rank_state */
    int32_t pid;
    char host[64];
    struct control_op op[CHANNEL_COUNT][2]; /* of even and of odd operations: a fast peer is at most one ahead */
};

struct control_block {
    uint64_t magic;
    uint32_t world;
    _Atomic uint32_t failed; /* 0; 1: code and text are being written; 2: they are there */
    int32_t code;            /* enum status */
    int32_t speaker;         /* rank that ends with this error of its own; -1: text is about another */
    char text[2048];
    struct control_rank ranks[CONTROL_MAX_RANKS];
};

struct control;

/* Makes the memfd for `world` ranks: an empty control block. */
enum status control_create(int world, int *fd, struct error *err);

/* Maps it. rank -1: an observer (the supervisor). World 1 with fd -1: private memory. */
enum status control_attach(int fd, int rank, int world, const char *host, double timeout_seconds,
                           struct control **control, struct error *err);
/* Waits until all ranks are attached. */
enum status control_join(struct control *control, struct error *err);
/* Says that this rank leaves in order (after a failure or when all have agreed to). */
void control_leave(struct control *control);
/* Frees the handle; the block stays mapped. */
void control_detach(struct control *control);

struct control_block *control_block(struct control *control);
int control_fd(const struct control *control);
/* Byte offsets in the memfd: rank's exchange slots (2), rank's staging, the segments. */
size_t control_slot_offset(int rank);
size_t control_staging_offset(int world, int rank);
size_t control_segments_offset(int world);

/* Counts this rank's arrival on a channel and wakes who waits for it. Returns the count. */
uint32_t control_arrive(struct control *control, enum control_channel channel);

/* Waits until `peer` has arrived `target` times. `what` names our operation for messages. Returns STATUS_OK, or the
 * job's failure (control_status has the text). */
enum status control_wait(struct control *control, enum control_channel channel, int peer, uint32_t target,
                         const char *what);
/* The same for all peers. */
enum status control_wait_all(struct control *control, enum control_channel channel, uint32_t target, const char *what);

/* STATUS_OK while the job goes on; else its code, and who and what in err. */
enum status control_status(struct control *control, struct error *err);

/* Ends the job. speaker: the rank whose own error this is, or -1 if the text is about another. First one wins. */
void control_fail(struct control *control, int speaker, enum status code, const char *text);

/* Supervisor: `rank` was started as this process: who it is, should it never attach. */
void control_expect(struct control *control, int rank, int pid, const char *host);

/* Supervisor: `rank` ended without leaving in order; sets its state and fails the job with `text`. */
void control_mark_dead(struct control *control, int rank, enum status code, const char *text);

#endif
