/* stepper.h: an optimizer step as work for the device: all its micro-batches, then the update.
 *
 * The work is enqueued op by op, or, on a GPU, captured once as a graph and launched as one piece from then on
 * (train.cuda_graphs): where the kernels are shorter than the time that it takes to launch them, the GPU would wait for
 * the host. The bits are the same. The first step of a process is never a graph: it loads kernels and libraries make
 * their choices in it. Around a graph, not in it: tokens (loaded for all micro-batches first), the rates of the
 * schedule, what the host reads of the step. */
#ifndef ZTRAIN_CMD_STEPPER_H
#define ZTRAIN_CMD_STEPPER_H

#include "cmd/trainer.h"

struct stepper {
    struct trainer *trainer; /* borrowed */
    struct zero_update update;
    bool graphs;             /* steps are to be launched as graphs */
    bool warm;               /* a step was enqueued already */
    struct graph *graph;     /* owned; NULL: not captured */
    struct batch *batches;   /* (gradient_accumulation_steps) owned, with graphs: loaded */
    int64_t tokens, targets; /* of each captured micro-batch; of the step */
};

/* Collective. */
enum status stepper_init(struct stepper *stepper, struct trainer *trainer, struct error *err);
void stepper_release(struct stepper *stepper); /* before the trainer's release */

/* How a step was given to the device. */
struct step_enqueued {
    struct batch last;   /* its last micro-batch */
    double data_seconds; /* waiting for tokens */
    bool launched;       /* as a graph: its parts are not timed */
    bool counted;        /* the communicator has counted its operations: not those of a graph that was there already */
};

/* Enqueues the next step of the token stream. `made`: optimizer steps that are known to be made. Collective. */
enum status stepper_enqueue(struct stepper *stepper, struct token_stream *stream, int64_t made,
                            struct step_enqueued *enqueued, struct error *err);

#endif
