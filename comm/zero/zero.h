/* SPDX-License-Identifier: Apache-2.0 */
/* zero.h: ZeRO stages 0 to 3 (Rajbhandari et al., 2020) as an implementation of the four verbs
 * (gpu/parameter_verbs.h); gradient norm, clipping and the optimizer's step on the owned slices.
 *
 *   stage | parameters            | gradients (fp32)       | master, m, v | after backward       | after the optimizer
 *   0     | whole                 | whole                  | whole        | all-reduce           | -
 *   1     | whole                 | whole                  | own slices   | reduce-scatter       | all-gather
 *   2     | whole                 | own slices + buckets   | own slices   | reduce-scatter/micro | all-gather
 *   3     | own slices + gathered | own slices + buckets   | own slices   | reduce-scatter/micro | -
 *
 * In fp32 the parameters are the master weights. With world 1 all stages are the same. Communication runs on its own
 * stream: the next unit is gathered while this one computes, and gradients are reduced while backward continues.
 *
 * With the same bits: offload_optimizer (zero_offload.c), offload_param at stage 3 (zero_offload_params.c). Muon:
 * zero_muon.c. A frozen base in 4 or 8 bits: zero_base.c. Other types of gradients than fp32: zero_gather_reduce.c;
 * then every stage has buckets.
 *
 * Experts (tensor_table.h) can be shared by groups of ranks: with config.expert_parallel groups, group g of neighbours
 * has the g-th part of each unit of experts, and the above holds among its ranks. The slices of ranks are the same
 * ones.
 *
 * Bits. The norm adds up slice by slice in double. At one world size all stages agree if there is one micro-batch; with
 * accumulation 0 and 1 do (micro-batches are added up, then reduced), and 2 and 3 (reduced, then added up).
 *
 * config.ordered: all stages and all worlds that divide the number of virtual ranks agree. A rank computes one virtual
 * rank's micro-batch at a time, in turns: in turn t of micro-batch j rank r of N is virtual rank t·N + r. Each gradient
 * is one sum from left to right, in fp32:
 *
 *     micro-batch 0's of virtual ranks 0, 1, … W-1, micro-batch 1's of 0, 1, … W-1, …
 *
 * The owner of a slice adds a turn's N contributions to its sum so far (data_op.ordered): the same additions at every
 * N, without memory for partial sums. Gradients are computed in buckets, at stage 1 they are kept as at stage 2, and at
 * stage 0 the sums are gathered once. Squares are summed by canonical slice, losses by virtual rank. */
#pragma once

#include "comm/comm.h"
#include "core/model/shard.h"
#include "core/model/state_slices.h"
#include "core/model/tensor_table.h"
#include "core/storage/disk.h"
#include "core/training/settings.h"
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
    enum dtype master_dtype, moment_dtype; /* fp32, or bf16 with stochastic rounding; bf16 moments need bf16 master
                                              weights, which need bf16 compute and are the parameters */
    uint64_t rounding_seed;                /* of stochastic rounding */
    struct optimizer_settings optimizer;   /* lr and bias_correction come with each step's schedule */
    double clip;                           /* largest gradient norm: scale = clip / (norm + 1e-6) above it; 0: off */
    const struct tensor_table *table;      /* borrowed */
    const struct shard_layout *layout;     /* borrowed; its world is comm's */
    bool ordered;                          /* virtual ranks (layout->parts of each rank): see above; grad_dtype fp32 */
    bool tied;                             /* the head uses unit 0 as well */
    bool training;                         /* false: no gradients, m and v (evaluation) */
    struct loss_scaler_rules scaler;       /* of fp16 */
    struct aio_settings aio;               /* of what is offloaded to nvme */
    const struct disk *disk;               /* borrowed; of it; NULL: local_disk */
    int extra_sums;                        /* numbers that a step adds up over all ranks, as the loss */
    int expert_parallel;                   /* groups of ranks that share the experts among them; 0: 1 */
    struct zero *base; /* borrowed: keeps the frozen units for this one as well; their layout is the same; or NULL */
};

enum status zero_new(const struct zero_config *config, struct device *device, struct comm *comm, struct zero **zero,
                     struct error *err);
void zero_free(struct zero *zero);
RELEASER(zero_drop, struct zero, zero_free)

/* Takes buffers from the rank's arena, its shared segment (comm_share; what peers read; nothing with world 1) and its
 * host memory (what is offloaded); first dry, then real. A dry layout needs no comm: no streams, no files. */
void zero_layout(struct zero *zero, struct arena *local, struct arena *shared, struct arena *host);

/* Bytes of the rank's files below nvme_path. */
int64_t zero_disk_bytes(const struct zero *zero);

/* Whether the nvme_path of each file exists. STATUS_DEVICE: one does not. */
enum status zero_check_folders(const struct zero *zero, struct error *err);

const struct param_verbs *zero_verbs(struct zero *zero);

/* Whether blocks have matrix_sums. */
bool zero_has_matrix_sums(const struct zero *zero);

/* The own slice of `unit` (padding included) on the device, or in host memory if offloaded. */
void *zero_slice(struct zero *zero, enum state_kind state, int unit);

/* Access to this rank's slices in host memory, between steps; zero_params_changed() follows writing. On the CPU a slice
 * is the state itself, on a GPU a pinned copy; that of a frozen unit that is kept as bytes is its bytes. */
struct state_slices zero_slices(struct zero *zero);

/* A copy of this rank's slices in host memory (zero_snapshot.c). Decide before zero_snapshot_layout(). */
void zero_keep_snapshot(struct zero *zero, bool keep);
bool zero_has_snapshot(const struct zero *zero);
int64_t zero_snapshot_bytes(const struct zero *zero);

/* Takes the snapshot's memory, if there is to be one; first dry, then real. */
void zero_snapshot_layout(struct zero *zero, struct arena *host);

/* Between steps: copies the slices, and waits for that. Not collective. */
enum status zero_take_snapshot(struct zero *zero, struct error *err);

/* The slices as they were copied last, for one thread at a time, until the next zero_take_snapshot(). */
struct state_slices zero_snapshot(struct zero *zero);

/* After the own slices were written (initialisation, import, resume): computes everything else. Collective. */
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

/* Between steps: compares what every rank keeps whole (parameters at stages 0 to 2, state at stage 0) by hashes of all
 * bits. *difference is the same on all ranks. Collective. */
enum status zero_compare_replicas(struct zero *zero, struct replica_difference *difference, struct error *err);

/* A step: zero_begin_step(), zero_begin_micro() before each micro-batch, zero_finish_step(), zero_end_step(). What lies
 * between the first and the last may be a graph (device.h: graph_begin()), except in a process's first step. */

/* Copies the rates to the device. schedule->base: the optimizer steps that are known to be done. */
void zero_begin_step(struct zero *zero, const struct step_schedule *schedule, struct stream *compute);
void zero_begin_micro(struct zero *zero, bool last);

/* Rewinds to just after zero_begin_step(): what was enqueued since was captured, not run. */
void zero_rewind_step(struct zero *zero);

/* The communication stream. */
struct stream *zero_stream(struct zero *zero);

struct zero_result {
    double loss_sum;                      /* over all ranks */
    const double *extra_sums;             /* (config.extra_sums) over all ranks; valid until the next step ends */
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

/* A device scalar: backward multiplies the loss by it. NULL in a dtype that needs none. */
const float *zero_loss_scale(const struct zero *zero);

/* Enqueues a step's end: reductions, norm, clipping, update, gathers. loss_sum (device, layout->parts): this rank's,
 * turn by turn; then those of extra_sums (layout->parts, extra_sums). Collective. */
enum status zero_finish_step(struct zero *zero, const double *loss_sum, struct stream *compute, struct error *err);

/* Enqueues the copy of the step's results to the host, and checks whether anything has failed so far. */
enum status zero_end_step(struct zero *zero, struct stream *compute, struct error *err);

/* Waits for the oldest ended step that was not collected. The results are the same on all ranks. Collective. */
enum status zero_collect(struct zero *zero, struct zero_result *result, struct error *err);

/* Bytes that this rank gathers and reduces in one step by theory, as comm_stats counts them: (N-1)/N of the data,
 * padding included. At every stage the reports (a double for each unit, the loss, extra_sums) are gathered too.
 *
 *   stage 0   reduce the gradients in comm_dtype and gather the sums in grad_dtype (the all-reduce)
 *   stage 1   gather all parameters; reduce all gradients
 *   stage 2   gather all parameters; reduce all gradients in each micro-batch, as ordered ones at any stage
 *   stage 3   as 2, but a unit is gathered when it is acquired and not in its slot (zero_gather_reduce.c)
 *
 * Muon also gathers and reduces the blocks' updates once, in bf16. */
void zero_theory(const struct zero *zero, int micro_batches, int64_t *gather_bytes, int64_t *reduce_bytes);
