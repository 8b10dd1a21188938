/* trainer.h: everything that one rank's run consists of, built in the order in which the pieces need each other:
 *
 *   model description -> tensor table -> shard layout -> device -> zero, transformer -> plan -> memory -> weights
 *
 * The same construction serves training, evaluation and planning; a plan stops before memory is allocated. */
#ifndef ZTRAIN_CMD_TRAIN_TRAINER_H
#define ZTRAIN_CMD_TRAIN_TRAINER_H

#include "ckpt/checkpoint.h"
#include "comm/comm.h"
#include "comm/launch/bootstrap.h"
#include "comm/zero/zero.h"
#include "core/data/token_stream.h"
#include "core/metrics.h"
#include "core/model.h"
#include "core/shard.h"
#include "core/spec/spec.h"
#include "core/tensors.h"
#include "gpu/arena.h"
#include "gpu/device.h"
#include "gpu/model/transformer.h"

/* The bytes that one rank will hold, exactly. */
struct memory_plan {
    struct arena local;  /* dry: the rank's own arena, workspace included */
    struct arena shared; /* dry: its segment that peers read */
    size_t workspace;    /* part of local */
};

struct trainer {
    struct run_spec *spec; /* borrowed */
    int rank, world;
    struct comm *comm;                        /* borrowed; NULL while planning */
    const struct bootstrap *boot;             /* set before trainer_build, borrowed; NULL while planning */
    const struct cpu_kernels *kernels_before; /* set before trainer_build, borrowed: choose_kernels.h; may be NULL */
    bool profile;                             /* set before trainer_build: ops are timed (ops_profile_read) */

    struct model_desc desc;
    struct tensor_table table;
    struct shard_layout layout;
    struct device *device;
    struct stream *compute;
    struct zero *zero;
    struct transformer *transformer;
    bool graphs; /* steps are to be launched as graphs: stepper.h */
    struct memory_plan plan;

    void *memory;     /* the arena: plan.local.used bytes */
    double *loss_sum; /* in the arena: sum of losses of this rank's targets, one step or one evaluation */
    struct token_set *train_set, *validation_set; /* validation may be NULL */
    struct token_stream_config train_config, validation_config;
    int64_t steps_per_epoch, total_steps;
    uint64_t data_fingerprint; /* of the training data */
};

/* Reads the model's config as the spec names it. `notices`: prints what the config asks for and is not done. */
enum status trainer_describe_model(const struct run_spec *spec, bool notices, struct model_desc *desc,
                                   struct error *err);

/* Model, table, layout, device, zero, transformer and the plan for `world` ranks; `threads` as device_open takes them.
 * comm may be NULL (a plan only), else it is collective: all ranks fail if one does. */
enum status trainer_build(struct trainer *trainer, struct run_spec *spec, int rank, int world, struct comm *comm,
                          int threads, struct error *err);

/* Opens the token shards; fills steps_per_epoch, total_steps and data_fingerprint. */
enum status trainer_open_data(struct trainer *trainer, struct error *err);

/* Allocates what the plan says and lays everything out. */
enum status trainer_allocate(struct trainer *trainer, struct error *err);

/* This rank's share of the weights by initialisation, or from the Hugging Face folder the spec names, or from a
 * checkpoint (not NULL). */
enum status trainer_load_weights(struct trainer *trainer, const struct checkpoint *checkpoint, struct error *err);

/* Then: what the ranks have loaded becomes the parameters that they compute with (collective). */
enum status trainer_spread_weights(struct trainer *trainer, struct error *err);

void trainer_release(struct trainer *trainer);

/* Fills mfu and of_ceiling of a step whose tokens_per_s is known. */
void trainer_utilisation(const struct trainer *trainer, struct step_metrics *m);

/* "parameters 497.8 MB …", by kind, through log_info. */
void trainer_print_plan(const struct trainer *trainer);

#endif
