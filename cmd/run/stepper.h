/* SPDX-License-Identifier: Apache-2.0 */
/* stepper.h: enqueues an optimizer step on the device: all its micro-batches, then the update.
 *
 * Op by op, or, on a GPU, captured once as a graph and launched as one piece from then on (train.cuda_graphs), with the
 * same bits. The first step of a process is never a graph: it loads kernels, and libraries choose algorithms in it.
 * Outside a graph stay tokens, the number of targets, learning rates, and the host's reads. */
#pragma once

#include "cmd/engine/engine.h"

/* What a step asks of its caller; both are collective. */
struct stepper_calls {
    /* Between the micro-batches of a step that is not a graph: sets *stop to break it off. */
    enum status (*look)(void *context, bool *stop, struct error *err);
    /* Before the update of a step computed twice: compares the passes. losses: this rank's sums (2, turns). */
    enum status (*compare)(void *context, const double *losses, struct error *err);
    void *context;
};

/* A step that the device computes, the step before it, whose end is its beginning, and one that is enqueued. */
enum { TIMED_STEPS = ZERO_STEPS + 1 };

struct stepper {
    struct engine *engine;      /* borrowed */
    bool graphs;                /* steps are launched as graphs */
    bool blocks;                /* else those of the blocks are, also once a step could not be captured */
    bool warm;                  /* a step was enqueued already */
    struct trace_file *trace;   /* borrowed; NULL: none */
    bool eager;                 /* set by the caller: the next step is enqueued op by op all the same */
    struct stepper_calls calls; /* set by the caller before the first step */
    int64_t checked;            /* set by the caller: the next step, of this number, is computed twice; 0: once */
    struct graph *graph;        /* owned; NULL: not captured */
    struct batch *batches;      /* (engine->micros) owned, with graphs: loaded */
    int64_t tokens;             /* of each captured micro-batch */
    struct event *looks[2];     /* owned; where the compute stream was at the last two looks */
    int64_t num_looks;
    struct event *began[TIMED_STEPS], *ended[TIMED_STEPS]; /* owned, timed; of step i: i mod TIMED_STEPS */
    int64_t num_ended, num_timed; /* steps that are enqueued as a whole; whose time stepper_seconds() has returned */
};

/* Collective. */
enum status stepper_init(struct stepper *stepper, struct engine *engine, struct error *err);
void stepper_release(struct stepper *stepper); /* before the engine's release */

/* Waits until the device has reached the previous look: a host far ahead would vote to stop much later. */
void stepper_keep_up(struct stepper *stepper);

struct train_step {
    struct stepper *stepper; /* set by the caller, as the next two; the rest is 0, and filled by stepper_enqueue() */
    struct token_stream *stream;
    int64_t made;        /* steps known to be done */
    struct batch last;   /* its last micro-batch */
    double data_seconds; /* spent waiting for tokens */
    bool untimed;        /* what its parts took is not known: they were launched as a graph, or are the first's */
    bool broken_off;     /* by a look: nothing was updated, device and communicator are idle, no step may follow */
    bool counted;        /* the communicator has counted its operations, which it does not for a launched graph */
};

/* Enqueues the next step of a token stream; or those of several adapters (TRAIN_JOBS at most), not as a graph nor
 * twice, side by side, so that each unit of the base is gathered once. All are broken off, or none. Collective. */
enum status stepper_enqueue(struct train_step *steps, int count, struct error *err);

/* Seconds on the device of the oldest step that is done and was not asked for: from its own beginning, after a pause,
 * or the end of the step before. NaN: the device does not know. */
double stepper_seconds(struct stepper *stepper, bool after_pause);
