/* SPDX-License-Identifier: Apache-2.0 */
/* engine.h: the parts of one rank's run, in the order in which they are built:
 *
 *   model description -> tensor table -> shard layout -> device -> zero, transformer -> plan -> memory -> weights
 *
 * A plan stops before memory is allocated (memory_plan.h). */
#pragma once

#include "ckpt/checkpoint.h"
#include "cmd/engine/memory_plan.h"
#include "cmd/engine/preference_steps.h"
#include "comm/comm.h"
#include "comm/launch/bootstrap.h"
#include "comm/zero/zero.h"
#include "core/core.h"
#include "core/data/token_stream.h"
#include "core/model/end_tokens.h"
#include "core/model/model_config.h"
#include "core/model/shard.h"
#include "core/model/tensor_table.h"
#include "core/spec/spec.h"
#include "core/text/tokenizer.h"
#include "gpu/activation_store.h"
#include "gpu/device.h"
#include "gpu/input_upload.h"
#include "gpu/model/generate.h"
#include "gpu/model/transformer.h"

/* BY_BLOCK: gpu/model/block_graphs.h. BY_STEP: stepper.h. */
enum graph_mode { GRAPHS_NONE, GRAPHS_BY_BLOCK, GRAPHS_BY_STEP };

/* data.train, opened: one stream of shards, or the sources of a mixture. */
struct train_sources {
    int count; /* 1 unless a mixture */
    struct token_source items[SPEC_MAX_SOURCES];
    struct data_fingerprint fingerprint; /* of all data in order, and of the weights or epochs of a mixture */
};

/* Opens data.train, checks samples of every shard, reads labels. STATUS_DATA. The caller always releases `sources`. */
enum status train_sources_open(const struct run_spec *spec, int64_t vocab_size, struct train_sources *sources,
                               struct error *err);
void train_sources_release(struct train_sources *sources); /* all zero: nothing */
bool train_sources_have_mask(const struct train_sources *sources);

/* train.samples: prompts that the model continues at each evaluation, greedily, in the transformer's activations. */
struct engine_samples {
    int count;
    struct token_list *prompts;  /* owned (count) */
    struct tokenizer *tokenizer; /* owned; NULL: all prompts are token ids */
    struct end_tokens ends;
    int64_t max_tokens;          /* of a continuation */
    int64_t capacity;            /* tokens of the longest prompt with its continuation */
    struct generator *generator; /* owned; made when the transformer is */
};

/* What stands in for the machine of a run that is only planned. */
struct simulation {
    struct device *device;   /* owned by the engine from engine_build() on */
    struct comm *comm;       /* borrowed; NULL: memory is laid out, and no step is made */
    const struct disk *disk; /* borrowed; with comm */
};

struct engine {
    struct run_spec *spec; /* borrowed */
    int rank, world;

    /* Several adapters have an engine each. The first one's has the device, its stream, the memory and the base. */
    struct engine *first; /* borrowed; NULL: this is the first */
    struct engine *next; /* of the next adapter; set before engine_build() and borrowed, or else made by it and owned */
    bool is_owned;

    struct comm *comm;                        /* borrowed; NULL while planning */
    const struct bootstrap *boot;             /* set before engine_build, borrowed; NULL while planning */
    const struct cpu_kernels *kernels_before; /* set before engine_build, borrowed: choose_kernels(); may be NULL */
    struct simulation simulation;             /* set before engine_build; all NULL: a run */
    int node_ranks;                           /* set before engine_build: of this rank's node; 0: all are on it */
    bool quiet;                               /* set before engine_build: without notices about the model */
    bool profile;                             /* set before engine_build: ops are timed, for --profile */
    bool scores;                              /* set before engine_build: documents are scored, nothing is trained */

    struct model_desc desc;
    struct tensor_table table;
    struct shard_layout layout;
    struct device *device;
    char why_cpu[320]; /* with train.device auto: what there is no GPU for; empty: one was found, or none looked for */
    struct phase_times *phase_times; /* of the steps; owned */
    struct ops_profiler *profiler;   /* owned; NULL: ops are not timed */
    struct stream *compute;
    struct zero *zero;
    struct activation_store *activations; /* NULL unless cpu_checkpointing */
    struct transformer *transformer;
    struct input_upload *upload;         /* NULL unless steps are graphs */
    struct engine_samples *samples;      /* NULL: train.samples has none */
    struct teacher_file *teacher;        /* owned: the file distill.logps; NULL: no teacher */
    struct preference_steps *preference; /* owned; NULL: the loss is that of tokens */
    enum graph_mode graphs;
    struct memory_plan plan;
    struct checkpoint_base base; /* of an adapter: by engine_weights_load() and engine_weights_check_base() */
    char *base_folder;           /* owned: base.folder */

    void *memory;                 /* the rank's own arena (memory_plan_allocate()) */
    void *host_memory;            /* the host's arena; may be NULL */
    void *snapshot;               /* NULL: none, or not taken yet (memory_plan.h) */
    size_t snapshot_bytes;        /* by the plan */
    bool snapshot_is_pinned;      /* device_pin() */
    bool host_is_ordinary;        /* not pinned, on a GPU: pin_memory is false */
    int turns;                    /* spec_turns(): virtual ranks that this rank stands for, else 1 */
    int64_t micros;               /* spec_micros(): of a step of this rank; micro-batch i is of turn i % turns */
    double *loss_sum;             /* in the arena (turns): losses of this rank's targets, one step or one evaluation; */
    int extra_sums;               /* then (turns, extra_sums): train_job.expert_sums, then PREFERENCE_SUMS, if any */
    float *grad_scale;            /* in the arena: the factor of the losses of a step that is a graph */
    struct train_sources sources; /* data.train */
    struct mixture mixture;       /* of the sources; order.count is 0 if data.train names one source */
    struct token_source validation; /* set NULL: no validation data */
    uint64_t evaluation_data;       /* a fingerprint of the samples of an evaluation: whether scores compare */
    uint64_t evaluation_part_data;  /* a stricter one, of what is sampled of them all: whether a part continues */
    struct token_stream_config train_config, validation_config;
    bool probed, found_mask; /* data.document_mask was auto: whether data.train has loss masks */
    int64_t steps_per_epoch, total_steps;
};

/* Of loss_sum, with extra_sums. */
static inline size_t engine_sums_bytes(const struct engine *t)
{
    return (size_t)t->turns * (1 + (size_t)t->extra_sums) * sizeof *t->loss_sum;
}

/* Those of a turn, for train_job.expert_sums. */
static inline double *engine_expert_sums(const struct engine *t, int64_t turn)
{
    return t->desc.experts.count ? t->loss_sum + t->turns + turn * t->extra_sums : NULL;
}

/* Among extra_sums. */
static inline int engine_preference_at(const struct engine *t)
{
    return t->extra_sums - PREFERENCE_SUMS;
}

/* Reads the config of the spec's model. notices: logs what ztrain ignores. The caller always releases *desc. */
enum status engine_describe_model(const struct run_spec *spec, bool notices, struct model_desc *desc,
                                  struct error *err);

/* Model, table, layout, device, zero, transformer and the plan for `world` ranks, also of the followers; threads: see
 * device_open(). comm is NULL for a plan; otherwise this is collective, and all ranks fail if one does. */
enum status engine_build(struct engine *engine, struct run_spec *spec, int rank, int world, struct comm *comm,
                         int threads, struct error *err);

/* Reads the spec's prompts into engine->samples (NULL: it has none). STATUS_USAGE, with the prompt's number: a text
 * without a tokenizer; an id outside the vocabulary; one that fills data.seq_length; no causal language model. */
enum status engine_read_samples(struct engine *engine, struct error *err);
void engine_samples_free(struct engine_samples *samples); /* NULL is allowed */

/* After engine_build(): the bytes of activations that each rank would hold under a policy of recomputation. */
enum status engine_activation_bytes(const struct engine *engine, enum recompute policy, size_t *bytes,
                                    struct error *err);

/* ---- what the ranks decide together (choose.c) --------------------------- */

/* Opens engine->device and attaches the communicator: one kind of device for all ranks, a GPU for each rank of a node.
 * train.device cuda: STATUS_DEVICE without a GPU, STATUS_USAGE with more ranks than GPUs; auto: all use the CPU if one
 * has no GPU, with the best kernels that all support. Collective. */
enum status choose_device(struct engine *engine, int threads, struct error *err);

/* A block of NCCL's kernels holds a multiprocessor until the collective has ended, and a product that counts on all
 * waits for it. So NCCL gets at most *ctas blocks: 16, or 24 if all GPUs have compute capability 10; cublasLt as many
 * multiprocessors fewer. 0: no limit (train.sm_count_target, the smallest GPU; auto: never with train.virtual_ranks).
 * Collective in a run. STATUS_USAGE, on all ranks: the key is true on the CPU or a GPU that is too small. */
enum status choose_sm_target(const struct engine *engine, int *ctas, struct error *err);

/* Sets engine->graphs by train.cuda_graphs: by step where possible, else by block; with auto only if launching a
 * micro-batch takes the host about as long as the GPU needs for it. STATUS_USAGE: true, but neither is possible. */
enum status choose_graphs(struct engine *engine, struct error *err);

/* From now on device_check() asks gpu_fault.c, for GPU `index` of those that this process sees. One device at a time.
 */
void gpu_fault_watch(struct device *device, int index);
void gpu_fault_unwatch(struct device *device); /* before it is closed; may be NULL, or another one */

/* ---- data and weights ---------------------------------------------------- */

/* Opens the shards; fills steps_per_epoch and total_steps. STATUS_DATA: they do not fit. engine_release() closes. */
enum status engine_open_data(struct engine *engine, struct error *err);
void engine_close_data(struct engine *engine);

/* In place of engine_open_data(), with engine->scores: data.train, whose samples are documents. */
enum status engine_open_scored(struct engine *engine, struct error *err);

/* What preference.reference names. START: the model that training starts from, or an adapter's base. */
struct reference {
    enum { REFERENCE_NONE, REFERENCE_START, REFERENCE_FILE, REFERENCE_FOLDER } kind;
    char folder[FS_PATH_MAX]; /* FOLDER: of a model, a checkpoint or a run */
};

enum status engine_find_reference(const struct engine *engine, struct reference *found, struct error *err);

/* Source `number` of those that have references: data.train's, then data.validation; NULL: there are no more. */
struct token_source *engine_reference_source(struct engine *engine, int number);

/* REFERENCE_FILE: the path of a source's file. That of data.validation lies beside the shard as PREFIX.logps. An error:
 * there is no such file. */
enum status engine_reference_file(const struct engine *engine, int number, char path[FS_PATH_MAX], struct error *err);

/* Gives a source its numbers from a file of ztrain score. STATUS_DATA: a document of a sample has no finite one. */
enum status engine_read_reference(const struct engine *engine, const char *path, struct token_source *source,
                                  struct error *err);

/* STATUS_USAGE: `config`, or that of a folder (NULL), is of another model; the error begins with what and folder. */
enum status engine_check_model(const struct engine *engine, const char *what, const char *folder, const json_t *config,
                               struct error *err);

/* Whether the reference is there; files are read. */
enum status engine_check_reference(struct engine *engine, struct error *err);

/* Once the sources have references: streams read them from then on. */
void engine_use_references(struct engine *engine);

/* Returns `status`. The error of one of several adapters begins with its name. */
enum status engine_name_error(const struct engine *engine, enum status status, struct error *err);

/* Whether data.train has a loss mask, by the names and headers of its files. Data that cannot be opened have none. */
bool engine_probe_mask(const struct run_spec *spec);

/* *labels: of a classifier's data.train, the most that any source has. */
enum status engine_count_labels(const struct run_spec *spec, int64_t *labels, struct error *err);

/* Fills this rank's slices from `checkpoint`, or (NULL) the Hugging Face folder, or by initialisation; an adapter's
 * base never from the checkpoint, an adapter without one from model.adapter. The bits depend on neither world size nor
 * ZeRO stage. zero_params_changed() is next. */
enum status engine_weights_load(struct engine *engine, const struct checkpoint *checkpoint, struct error *err);

/* The same with the weights that preferences are compared with, without an adapter: those of a Hugging Face folder, of
 * a checkpoint or the best of a run, or (NULL) those with which the run began. */
enum status engine_weights_load_reference(struct engine *engine, const char *dir, struct error *err);

/* After engine_weights_load(): fills engine->base. STATUS_CHECKPOINT: it was written on another base. Collective. */
enum status engine_weights_check_base(struct engine *engine, const struct checkpoint *checkpoint, struct error *err);

/* huggingface_check() of the folder that the spec names, if it names one, and peft_check() of model.adapter. */
enum status engine_weights_check(const struct engine *engine, bool *absent, struct error *err);

/* Followers that are borrowed go first. */
void engine_release(struct engine *engine);
