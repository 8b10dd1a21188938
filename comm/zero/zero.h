/* zero.h: ZeRO stages 0 to 3 behind the four verbs (gpu/params.h), gradient norm and clipping, the optimizer step on
 * the owned slices (Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020).
 *
 *   stage | parameters            | gradients (fp32)       | master, m, v | after backward       | after the optimizer
 *   0     | whole                 | whole                  | whole        | all-reduce           | -
 *   1     | whole                 | whole                  | own slices   | reduce-scatter       | all-gather
 *   2     | whole                 | own slices + buckets   | own slices   | reduce-scatter/micro | all-gather
 *   3     | own slices + gathered | own slices + buckets   | own slices   | reduce-scatter/micro | -
 *
 * fp32: the parameters are the master weights (no second copy). World 1: all stages are the same: nothing is gathered.
 * Communication runs on a stream of its own, ordered with the compute stream by events: the next unit is gathered while
 * this one computes, a unit's gradients are reduced while backward goes on. The norm adds up slice by slice in double,
 * so every stage gives the same bits at one world size. With accumulation stages 0 and 1 do, and stages 2 and 3: these
 * reduce the gradients of each micro-batch and add up the sums, those add up a rank's micro-batches and reduce once, so
 * the two pairs agree to rounding. */
#ifndef ZTRAIN_COMM_ZERO_ZERO_H
#define ZTRAIN_COMM_ZERO_ZERO_H

#include "comm/comm.h"
#include "core/optimizer_settings.h"
#include "core/shard.h"
#include "core/state_slices.h"
#include "core/tensors.h"
#include "gpu/arena.h"
#include "gpu/ops.h"
#include "gpu/params.h"

struct zero;

struct zero_config {
    int stage;
    enum dtype dtype; /* of parameters in compute */
    bool overlap_comm;
    /* elements: collectives are cut into pieces of at most this (at least SHARD_ALIGN × world); 0: no limit */
    int64_t reduce_bucket_size, allgather_bucket_size;
    struct optimizer_settings optimizer; /* lr and bias_correction come with each step's schedule */
    double clip;                         /* largest gradient norm: scale = clip / (norm + 1e-6) above it; 0: off */
    const struct tensor_table *table;    /* borrowed */
    const struct shard_layout *layout;   /* borrowed; its world is comm's */
    bool tied;                           /* the head uses unit 0 as well */
    bool training;                       /* false: no gradients, m and v (evaluation) */
    struct loss_scaler_rules scaler;     /* of fp16 */
};

enum status zero_new(const struct zero_config *config, struct device *device, struct comm *comm, struct zero **zero,
                     struct error *err);
void zero_free(struct zero *zero);

/* Takes buffers from the rank's arena and from its shared segment (comm_share); dry, then real. For a plan without
 * running ranks, comm may be NULL in zero_new: the layout's world counts. In the shared segment lies what peers read:
 * gradients before their reduction, and parameters from stage 1 on; of world 1 nothing. */
void zero_layout(struct zero *zero, struct arena *local, struct arena *shared);

const struct param_verbs *zero_verbs(struct zero *zero);

/* Own slice (layout->slice[unit] elements, padding included) of `unit`, in device memory. At stage 0, and in fp32, it
 * is a part of the whole array. */
float *zero_slice(struct zero *zero, enum state_kind state, int unit);

/* Access to this rank's slices in host memory, between steps. After writing, call zero_params_changed() once all slices
 * that change are written. On the CPU a slice is the state itself, on a GPU a pinned copy. */
struct state_slices zero_slices(struct zero *zero);

/* The own slices were written (initialisation, import, resume): makes everything else from them (casts, gathers, stage
 * 0's whole copies of master, m, v). Collective. */
enum status zero_params_changed(struct zero *zero, struct stream *compute, struct error *err);

/* Where the ranks' copies differ. */
struct replica_difference {
    int rank;                         /* that holds another value than most, -1: there is no difference */
    int other;                        /* a rank that holds what most hold */
    const char *what;                 /* "parameters", "exp_avg", … */
    const struct unit_info *unit;     /* the first that differs */
    const struct tensor_info *tensor; /* the first of it that differs; NULL: it is between tensors */
};

/* Between steps: compares what every rank keeps a whole copy of (parameters at stages 0 to 2, the optimizer's state at
 * stage 0), bit by bit by a hash. *difference is the same on all ranks. Reads all of it once. Collective. */
enum status zero_compare_replicas(struct zero *zero, struct replica_difference *difference, struct error *err);

/* A step consists of zero_begin_step, micro-batches with zero_begin_micro before each, zero_finish_step, zero_end_step.
 * What lies between the first and the last is the same in every step but the first one of a process: it may be captured
 * (device.h: graph_begin() with the compute stream and zero_stream()) and launched instead. */

/* Gives the device the rates; base: optimizer steps that are known to be made. */
void zero_begin_step(struct zero *zero, const struct step_schedule *schedule, struct stream *compute);
void zero_begin_micro(struct zero *zero, bool last);

/* Back to behind zero_begin_step, as what was enqueued since was captured and not run. */
void zero_rewind_step(struct zero *zero);

/* The communication stream. */
struct stream *zero_stream(struct zero *zero);

struct zero_result {
    double loss_sum;                      /* over all ranks */
    double grad_norm;                     /* unscaled, before clipping */
    double lr, loss_scale;                /* that this step used */
    bool skipped;                         /* non-finite: nothing was updated */
    int bad_rank;                         /* where a non-finite value came from, -1 unknown */
    const struct tensor_info *bad_tensor; /* first such tensor, or NULL */
    int64_t optimizer_step;               /* after this step */
    struct loss_scaler scaler;            /* after this step */
};

/* Steps that may be enqueued before the oldest is collected. */
enum { ZERO_STEPS = STEP_RATES };

/* Where updates and loss scale stand; once, before the first step. */
void zero_set_position(struct zero *zero, int64_t optimizer_step, const struct loss_scaler *scaler,
                       struct stream *compute);

/* Device scalar: what backward multiplies the loss by. NULL in a dtype that needs none. */
const float *zero_loss_scale(const struct zero *zero);

/* Enqueues the work at a step's end: waits for the reductions, norm, clip, update, gather. Nobody waits for the host.
 * `loss_sum` (device): this rank's. Collective. */
enum status zero_finish_step(struct zero *zero, const double *loss_sum, struct stream *compute, struct error *err);

/* Has what the step came to copied to the host, and looks whether anything has failed so far. */
enum status zero_end_step(struct zero *zero, struct stream *compute, struct error *err);

/* Waits for the oldest step that has ended and was not collected, and says what it came to, the same on all ranks.
 * Collective. */
enum status zero_collect(struct zero *zero, struct zero_result *result, struct error *err);

/* Seconds that the compute stream took at steps' ends since the last call, as far as the device has got (stopwatch.h):
 * until all reductions and reports were there; norm and update. Of steps that were launched as a graph: nothing. */
void zero_times(struct zero *zero, double *reduce, double *optimizer);

/* Bytes that this rank should gather and reduce in one step of g micro-batches, by theory, as comm_stats counts them:
 * (N-1)/N of what is gathered, padding included. What is counted must equal it. In every stage the ranks' reports (one
 * double for each unit and one for the loss) are gathered, too.
 *
 *   stage 0   gather and reduce the fp32 gradients (the all-reduce)
 *   stage 1   gather all parameters; reduce all gradients
 *   stage 2   gather all parameters; reduce all gradients in each micro-batch
 *   stage 3   as 2, but parameters are gathered when a unit is acquired that is not in its place: see zero_verbs.c */
void zero_theory(const struct zero *zero, int micro_batches, int64_t *gather_bytes, int64_t *reduce_bytes);

/* Bytes gathered by an evaluation of so many micro-batches right after a step or zero_params_changed() (only stage 3
 * gathers any). */
int64_t zero_theory_evaluation(const struct zero *zero, int micro_batches);

#endif
