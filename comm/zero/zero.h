/* zero.h: ZeRO stages 0 to 3 as an implementation of the four verbs (gpu/parameter_verbs.h); gradient norm and
 * clipping; the optimizer step on the owned slices (Rajbhandari et al., "ZeRO: memory optimizations toward training
 * trillion parameter models", 2020).
 *
 *   stage | parameters            | gradients (fp32)       | master, m, v | after backward       | after the optimizer
 *   0     | whole                 | whole                  | whole        | all-reduce           | -
 *   1     | whole                 | whole                  | own slices   | reduce-scatter       | all-gather
 *   2     | whole                 | own slices + buckets   | own slices   | reduce-scatter/micro | all-gather
 *   3     | own slices + gathered | own slices + buckets   | own slices   | reduce-scatter/micro | -
 *
 * With offload_optimizer master, m and v of the own slices, and at stages 2 and 3 their gradients, are in host memory
 * instead (zero_offload.c), at the same stages with the same bits.
 *
 * In fp32 the parameters are the master weights (no second copy). With world 1 all stages are the same: nothing is
 * gathered. Communication runs on its own stream, ordered with the compute stream by events: the next unit is gathered
 * while this one computes, and a unit's gradients are reduced while backward continues.
 *
 * offload_param (stage 3): the own slices of the parameters are in host memory, and a unit's slice is copied to the
 * device before the unit is gathered, with world 1 as well (zero_offload_params.c). In fp32 these are the master
 * weights.
 *
 * With the optimizer Muon the updates of a block's matrices are gathered and made orthogonal by one rank: zero_muon.c.
 *
 * Gradients are fp32 unless comm_dtype (on their way to their owner) or grad_dtype (where they are accumulated; then
 * every stage has buckets) names another type: see zero_precision.c.
 *
 * Bits. The norm adds up slice by slice in double, so every stage gives the same bits at one world size if there is one
 * micro-batch. With accumulation stages 0 and 1 give the same bits, and so do stages 2 and 3: stages 0 and 1 add up a
 * rank's micro-batches and reduce once, stages 2 and 3 reduce the gradients of each micro-batch and add up the sums. So
 * the two pairs agree to rounding. */
#pragma once

#include "comm/comm.h"
#include "core/model/shard.h"
#include "core/model/state_slices.h"
#include "core/model/tensor_table.h"
#include "core/storage/disk.h"
#include "core/training/optimizer_settings.h"
#include "core/training/zero_settings.h"
#include "gpu/arena.h"
#include "gpu/ops.h"
#include "gpu/parameter_verbs.h"

struct zero;

struct zero_config {
    struct zero_settings zero;
    enum dtype dtype;      /* of parameters in compute */
    enum dtype comm_dtype; /* in which gradients are reduced */
    float comm_factor;     /* gradients are multiplied by it before they are rounded to comm_dtype; 0: 1 */
    enum dtype grad_dtype; /* in which they are accumulated: DTYPE_F32 or DTYPE_BF16 */
    enum dtype master_dtype, moment_dtype; /* of the states: fp32, or bf16 with stochastic rounding; bf16 moments need
                                              bf16 master weights, which need bf16 compute and are the parameters */
    uint64_t rounding_seed;                /* of stochastic rounding */
    struct optimizer_settings optimizer;   /* lr and bias_correction come with each step's schedule */
    double clip;                           /* largest gradient norm: scale = clip / (norm + 1e-6) above it; 0: off */
    const struct tensor_table *table;      /* borrowed */
    const struct shard_layout *layout;     /* borrowed; its world is comm's */
    bool tied;                             /* the head uses unit 0 as well */
    bool training;                         /* false: no gradients, m and v (evaluation) */
    struct loss_scaler_rules scaler;       /* of fp16 */
    struct aio_settings aio;               /* of what is offloaded to nvme */
    const struct disk *disk;               /* borrowed; of it; NULL: local_disk */
};

enum status zero_new(const struct zero_config *config, struct device *device, struct comm *comm, struct zero **zero,
                     struct error *err);
void zero_free(struct zero *zero);

/* Takes buffers from the rank's arena, from its shared segment (comm_share), and from its host memory
 * (device_alloc_host); first dry, then real. For a dry layout comm may be NULL in zero_new(): without streams and
 * files, in the layout's world. The shared segment holds the buffers that peers read: gradients before their reduction,
 * and parameters from stage 1 on; nothing with world 1. The host memory holds what is offloaded; nothing without
 * offload.
 */
void zero_layout(struct zero *zero, struct arena *local, struct arena *shared, struct arena *host);

/* Bytes of the rank's files below nvme_path. */
int64_t zero_disk_bytes(const struct zero *zero);

/* Whether the nvme_path of each file exists. STATUS_DEVICE: one does not. */
enum status zero_check_folders(const struct zero *zero, struct error *err);

const struct param_verbs *zero_verbs(struct zero *zero);

/* Whether blocks have matrix_sums. */
bool zero_has_matrix_sums(const struct zero *zero);

/* The own slice of `unit` (layout->slice[unit] elements, padding included) in device memory, or in host memory if it is
 * offloaded. At stage 0, and in fp32 without offload, it is a part of the whole array. */
void *zero_slice(struct zero *zero, enum state_kind state, int unit);

/* Access to this rank's slices in host memory, between steps. After writing, call zero_params_changed() once all slices
 * that change are written. On the CPU a slice is the state itself, on a GPU a pinned copy. */
struct state_slices zero_slices(struct zero *zero);

/* A copy of this rank's slices in host memory, of zero_snapshot_bytes() bytes: zero_snapshot.c. Whether there
 * is one is decided before zero_snapshot_layout(). */
void zero_keep_snapshot(struct zero *zero, bool keep);
bool zero_has_snapshot(const struct zero *zero);
int64_t zero_snapshot_bytes(const struct zero *zero);

/* Takes the snapshot's memory, if there is to be one, from the host's arena; first dry, then real. */
void zero_snapshot_layout(struct zero *zero, struct arena *host);

/* Between steps: copies the slices, and returns when all of them are copied. Not collective. */
enum status zero_take_snapshot(struct zero *zero, struct error *err);

/* The slices as they were copied last, to be read by one thread at a time: a background thread may do it,
 * until the next zero_take_snapshot(). */
struct state_slices zero_snapshot(struct zero *zero);

/* Call it after the own slices were written (initialisation, import, resume): computes everything else from them
 * (casts, gathers, stage 0's whole copies of master, m, v). Collective. */
enum status zero_params_changed(struct zero *zero, struct stream *compute, struct error *err);

/* The first difference between the ranks' copies. */
struct replica_difference {
    int rank;                         /* a rank whose value differs from that of most ranks; -1: no difference */
    int other;                        /* a rank with the value of most ranks */
    bool majority;                    /* more than half of the ranks have that value; else nobody knows who is right */
    const char *what;                 /* "parameters", "exp_avg", … */
    const struct unit_info *unit;     /* the first unit that differs */
    const struct tensor_info *tensor; /* its first tensor that differs; NULL: the difference is between tensors */
};

/* Between steps: compares the data of which every rank keeps a whole copy (parameters at stages 0 to 2, the optimizer's
 * state at stage 0), all bits by a hash. *difference is the same on all ranks. Reads all of the data once. Collective.
 */
enum status zero_compare_replicas(struct zero *zero, struct replica_difference *difference, struct error *err);

/* A step consists of zero_begin_step(), the micro-batches with zero_begin_micro() before each, zero_finish_step() and
 * zero_end_step(). The work between the first and the last is the same in every step except the first one of a process:
 * it may be captured (device.h: graph_begin() with the compute stream and zero_stream()) and launched instead. */

/* Copies the rates to the device. schedule->base: the optimizer steps that are known to be done. */
void zero_begin_step(struct zero *zero, const struct step_schedule *schedule, struct stream *compute);
void zero_begin_micro(struct zero *zero, bool last);

/* Rewinds to just after zero_begin_step(): the work enqueued since then was captured, not run. */
void zero_rewind_step(struct zero *zero);

/* The communication stream. */
struct stream *zero_stream(struct zero *zero);

struct zero_result {
    double loss_sum;                      /* over all ranks */
    double grad_norm;                     /* unscaled, before clipping */
    double lr, loss_scale;                /* used in this step */
    bool skipped;                         /* a value was not finite: nothing was updated */
    int bad_rank;                         /* the rank that contributed the non-finite value; -1: unknown */
    const struct tensor_info *bad_tensor; /* the first tensor with such a value, or NULL */
    int64_t optimizer_step;               /* after this step */
    struct loss_scaler scaler;            /* after this step */
};

/* The number of steps that may be enqueued before the oldest is collected. */
enum { ZERO_STEPS = STEP_RATES };

/* Sets the number of updates and the loss scale; once, before the first step. */
void zero_set_position(struct zero *zero, int64_t optimizer_step, const struct loss_scaler *scaler,
                       struct stream *compute);

/* A device scalar: the factor by which backward multiplies the loss. NULL in a dtype that needs none. */
const float *zero_loss_scale(const struct zero *zero);

/* Enqueues the work at a step's end: waits for the reductions, then norm, clipping, update, gathers. The device does
 * not wait for the host. loss_sum (device): this rank's. Collective. */
enum status zero_finish_step(struct zero *zero, const double *loss_sum, struct stream *compute, struct error *err);

/* Enqueues the copy of the step's results to the host, and checks whether anything has failed so far. */
enum status zero_end_step(struct zero *zero, struct stream *compute, struct error *err);

/* Waits for the oldest step that has ended and was not collected yet, and returns its results, the same on all ranks.
 * Collective. */
enum status zero_collect(struct zero *zero, struct zero_result *result, struct error *err);

/* Bytes that this rank gathers and reduces by theory in one step of micro_batches, as comm_stats counts them: (N-1)/N
 * of the gathered data, padding included. The counts of comm_stats must equal it. In every stage the ranks' reports (a
 * double for each unit and one for the loss) are gathered as well.
 *
 *   stage 0   reduce the gradients in comm_dtype and gather the sums in grad_dtype (the all-reduce)
 *   stage 1   gather all parameters; reduce all gradients
 *   stage 2   gather all parameters; reduce all gradients in each micro-batch
 *   stage 3   as 2, but a unit's parameters are gathered when it is acquired and not in its slot
 *             (zero_gather_reduce.c)
 *
 * With Muon the blocks' updates in bf16 are gathered once (before they are orthogonal, at stage 0 after that) and
 * reduced once as well. */
void zero_theory(const struct zero *zero, int micro_batches, int64_t *gather_bytes, int64_t *reduce_bytes);

/* Bytes gathered by an evaluation of `micro_batches` right after a step or zero_params_changed() (0 below stage 3). */
int64_t zero_theory_evaluation(const struct zero *zero, int micro_batches);
