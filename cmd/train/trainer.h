/* trainer.h: the parts of one rank's run, built in the order in which they need each other:
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
#include "core/tensor_table.h"
#include "gpu/arena.h"
#include "gpu/device.h"
#include "gpu/model/transformer.h"

/* The exact number of bytes that one rank will hold. */
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
    struct device *planned;                   /* set before trainer_build, owned then: a plan of speed; may be NULL */
    struct comm *planned_comm;                /* with it, borrowed: its ranks (comm_plan.h) */
    bool quiet;                               /* set before trainer_build: notices about the model are not printed */
    bool profile;                             /* set before trainer_build: ops are timed (ops_profile_read) */

    struct model_desc desc;
    struct tensor_table table;
    struct shard_layout layout;
    struct device *device;
    struct stream *compute;
    struct zero *zero;
    struct transformer *transformer;
    bool graphs; /* steps are launched as graphs: stepper.h */
    struct memory_plan plan;

    void *memory;     /* the arena: plan.local.used bytes */
    double *loss_sum; /* in the arena: sum of losses of this rank's targets, one step or one evaluation */
    struct token_set *train_set, *validation_set; /* validation may be NULL */
    struct token_stream_config train_config, validation_config;
    int64_t steps_per_epoch, total_steps;
    uint64_t data_fingerprint; /* of the training data */
};

/* Reads the config of the model that the spec names. `notices`: logs what the config asks for and ztrain ignores. */
enum status trainer_describe_model(const struct run_spec *spec, bool notices, struct model_desc *desc,
                                   struct error *err);

/* Model, table, layout, device, zero, transformer and the plan for `world` ranks; threads: see device_open().
 * comm is NULL for a plan; otherwise this is collective, and all ranks fail if one does. */
enum status trainer_build(struct trainer *trainer, struct run_spec *spec, int rank, int world, struct comm *comm,
                          int threads, struct error *err);

/* Opens the token shards; fills steps_per_epoch, total_steps and data_fingerprint. */
enum status trainer_open_data(struct trainer *trainer, struct error *err);

/* Allocates the plan's memory and lays everything out in it. */
enum status trainer_allocate(struct trainer *trainer, struct error *err);

/* Fills this rank's share of the weights: from `checkpoint` if it is not NULL, else from the Hugging Face folder that
 * the spec names, else by initialisation. */
enum status trainer_load_weights(struct trainer *trainer, const struct checkpoint *checkpoint, struct error *err);

/* Collective, after that: turns the loaded shares into the parameters that the ranks compute with. */
enum status trainer_spread_weights(struct trainer *trainer, struct error *err);

void trainer_release(struct trainer *trainer);

/* Fills mfu and of_ceiling of a step whose tokens_per_s is known. */
void trainer_utilisation(const struct trainer *trainer, struct step_metrics *m);

/* Logs the memory plan, a line for each kind: "parameters 497.8 MB …". */
void trainer_print_plan(const struct trainer *trainer);

#endif
