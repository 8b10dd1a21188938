/* SPDX-License-Identifier: Apache-2.0 */
/* flight.h: the flight recorder: what a rank has done last, in a ring of fixed size.
 *
 *     flight_begin() … flight_end()     a piece of work from when to when: a unit's forward pass, a collective, a wait
 *     flight_phase(), flight_step()     what the rank is in as a whole: one of the first kinds, and its step
 *
 * An entry costs two readings of the clock and a dozen stores; any thread may record. The ring outlives the process
 * where other ranks of the node hold it too (comm/control/control.h): what a rank did before SIGKILL can still be read.
 * All of it is relaxed atomic words; a reader leaves out an entry that it catches in the middle, by its check. */
#pragma once

#include "core/status.h"
#include <stdatomic.h>

/* Files have these numbers: new kinds come at the end. Up to FINISH they are phases of a run; then pieces of work;
 * operations of the data and the control channel are numbered from 1. GRAPH: a step without entries of its own. */
/* clang-format off */
#define FLIGHT_KINDS(KIND) \
    KIND(NONE, "nothing") KIND(PREPARE, "preparation") KIND(STEP, "step") KIND(EVALUATION, "evaluation") \
    KIND(CHECKPOINT, "checkpoint") KIND(FINISH, "end of the run") KIND(DATA, "data wait") KIND(FORWARD, "forward") \
    KIND(HEAD, "head") KIND(BACKWARD, "backward") KIND(REDUCE, "reduce") KIND(OPTIMIZER, "optimizer") \
    KIND(COLLECT, "wait for a step's results") KIND(VOTE, "stop vote") KIND(REPLICAS, "comparison of replicas") \
    KIND(SAVE, "writing of a checkpoint") KIND(GRAPH, "launch of the step's graph") KIND(ALL_GATHER, "all-gather") \
    KIND(REDUCE_SCATTER, "reduce-scatter") KIND(BARRIER, "barrier") KIND(EXCHANGE, "exchange") \
    KIND(BROADCAST, "broadcast")
/* clang-format on */
#define FLIGHT_KIND(kind, name) FLIGHT_##kind,
enum flight_kind { FLIGHT_KINDS(FLIGHT_KIND) FLIGHT_KIND_COUNT };
const char *flight_kind_name(enum flight_kind kind); /* "reduce-scatter"; of numbers that are no kind: "?" */
/* 0: an operation of the data channel, 1: of the control channel, -1: another piece of work. */
static inline int flight_channel(int kind)
{
    if (kind == FLIGHT_ALL_GATHER || kind == FLIGHT_REDUCE_SCATTER) return 0;
    return kind >= FLIGHT_BARRIER && kind <= FLIGHT_BROADCAST ? 1 : -1;
}

enum { FLIGHT_ENTRIES = 2048, FLIGHT_ENTRY_WORDS = 8, FLIGHT_STEP_TIMES = 16 };

struct flight_ring {
    _Atomic uint64_t next; /* entries that were begun; entry number n (from 1) is in slot (n - 1) % FLIGHT_ENTRIES */
    _Atomic uint64_t phase, phase_since;            /* enum flight_kind; nanoseconds of the monotonic clock */
    _Atomic uint64_t step, micro;                   /* from 1; 0: none */
    _Atomic uint64_t steps;                         /* steps that are timed: the last of them are in step_times */
    _Atomic uint64_t step_times[FLIGHT_STEP_TIMES]; /* nanoseconds */
    _Atomic uint64_t unused[10];
    _Atomic uint64_t entries[FLIGHT_ENTRIES][FLIGHT_ENTRY_WORDS];
};
enum { FLIGHT_RING_BYTES = sizeof(struct flight_ring) };

/* Records in `ring` (zeroed; borrowed) from now on; NULL, and at the start: nowhere. A ring in use must stay mapped. */
void flight_use(struct flight_ring *ring);
extern _Atomic(struct flight_ring *) flight_ring_in_use;

/* Begins work; returns its number for flight_end(), 0: not recorded. unit, number (of a collective): -1: none. */
uint64_t flight_begin(enum flight_kind kind, int unit, int64_t bytes, int64_t number);
void flight_end(uint64_t entry);

void flight_phase(enum flight_kind phase); /* begins it; the phase before becomes an entry */
/* Begins a step, in phase FLIGHT_STEP; a step right before it is timed. */
void flight_step(int64_t step);
void flight_micro(int64_t micro); /* from 1 */

/* ---- reading ------------------------------------------------------------- */

/* A copy of a ring. */
struct flight_image {
    uint64_t next, phase, phase_since, step, micro, steps, step_times[FLIGHT_STEP_TIMES];
    uint64_t entries[FLIGHT_ENTRIES][FLIGHT_ENTRY_WORDS];
};
void flight_copy(const struct flight_ring *ring, struct flight_image *image);

struct flight_entry {
    uint64_t entry;     /* its number, from 1 */
    int64_t start, end; /* nanoseconds of the rank's monotonic clock; end 0: not over */
    int64_t number, bytes, step;
    int kind, unit, micro; /* kind: of enum flight_kind, or one of a later version */
};
uint64_t flight_check(const uint64_t words[FLIGHT_ENTRY_WORDS]); /* of the other words of an entry */
/* Decodes a slot; false: it is empty, torn or damaged. */
bool flight_decode(const uint64_t words[FLIGHT_ENTRY_WORDS], struct flight_entry *entry);

int64_t flight_median_step(const struct flight_image *image); /* nanoseconds; 0: fewer than three are timed */
int64_t flight_clock(void);                                   /* nanoseconds of the monotonic clock */
