/* SPDX-License-Identifier: Apache-2.0 */
/* transformer.h: GPT-2, the Llama family and BERT over the op table, forward and backward, at any ZeRO stage. */
#pragma once

#include "core/data/token_stream.h"
#include "core/model/tensor_table.h"
#include "core/training/settings.h"
#include "gpu/activation_verbs.h"
#include "gpu/arena.h"
#include "gpu/ops.h"
#include "gpu/parameter_verbs.h"

struct transformer_config {
    const struct model_desc *desc;    /* borrowed */
    const struct tensor_table *table; /* borrowed */
    enum dtype dtype;                 /* of parameters and activations */
    struct transformer_settings settings;
    struct batch_limits batch; /* of the micro-batches */
    int64_t max_position;      /* rows of the RoPE tables; 0: batch.max_seq */
    bool training;             /* activations are kept for backward */
    /* where the blocks' inputs are from forward to backward; borrowed; NULL: each block's has memory of its own */
    const struct activation_verbs *activations;
    bool graphs_by_block;         /* training may launch the work of blocks as graphs: transformer_replay() */
    bool graphs_demanded;         /* then work that cannot be captured is an error */
    int32_t inputs;               /* micro-batches that transformer_load() holds at a time; 0: one */
    struct dropout_rates dropout; /* in training */
    double lora_dropout;          /* the same, of the inputs of adapters */
    uint64_t dropout_seed;
    int expert_parallel;    /* ranks that have all experts between them, each a part; 0: 1 */
    int expert_part;        /* which of the parts this rank has */
    bool estimates;         /* the device computes nothing, and tells how long it would */
    double aux_share;       /* 1 / the micro-batches of a step over all ranks: the losses of routers are their mean */
    int64_t teacher_tokens; /* K of a teacher, in training; 0: there is none */
    bool sequences;         /* the loss is one of sequences (struct sequence_loss); evaluation may give those of rows */
    int64_t logit_chunk;    /* rows of logits that exist at a time; 0: chosen (transformer_layout.c) */
};

struct transformer;

/* Small host structures, no device memory. STATUS_USAGE: an adapter of positions, types or inputs of layers. */
enum status transformer_new(const struct transformer_config *config, struct device *device,
                            struct transformer **transformer, struct error *err);
/* Before the stream on which it trained. */
void transformer_free(struct transformer *transformer);
RELEASER(transformer_drop, struct transformer, transformer_free)

/* Takes its buffers from the arena: called with a dry arena for the plan, then with the real one (arena.h). */
void transformer_layout(struct transformer *transformer, struct arena *arena);

/* The upper bounds of its ops' sizes, for ops_workspace_bytes(). */
void transformer_op_limits(const struct transformer *transformer, struct op_limits *limits);

/* ops_prepare() with the products of a step, after the dry layout and before memory is allocated. accumulates: several
 * micro-batches add to the same gradients. matrix_sums: the verb `grads` gives memory for those of blocks' matrices. */
enum status transformer_prepare(const struct transformer *transformer, bool accumulates, bool matrix_sums,
                                struct error *err);

/* Adds the bytes of tokens that this rank gathers and reduces in one step, as zero_theory() counts: none unless ranks
 * share experts. */
void transformer_add_theory(const struct transformer *transformer, int micro_batches, int64_t *gather_bytes,
                            int64_t *reduce_bytes);

/* Fills the constant tables (RoPE). Called after the layout with a real arena. */
enum status transformer_start(struct transformer *transformer, struct stream *stream, struct error *err);

/* Sets a layer's bias (E) of the choice of experts, of a model that has such: it is constant, and in the compute dtype
 * it would choose others. After the layout with a real arena. */
void transformer_set_correction(struct transformer *transformer, int64_t layer, const float *bias,
                                struct stream *stream);

/* Copies a micro-batch's arrays to the device, and makes *batch point to the copies, which are valid until another is
 * loaded as the same `input` (0 … config.inputs - 1). packed: NULL, or host memory like that of transformer_inputs():
 * they are written there instead, and the caller copies all inputs at once. */
void transformer_load(struct transformer *transformer, int input, struct batch *batch, struct stream *stream,
                      void *packed);

/* The device memory of all inputs, in one piece. */
void *transformer_inputs(const struct transformer *transformer, size_t *bytes);

/* The factor of the loss whose gradients are computed: value · *step · *scaler, the last two device scalars or NULL for
 * 1. A graph has the value of its capture: what differs from step to step is *step there. */
struct loss_factor {
    float value;
    const float *step, *scaler;
};

/* A loss of sequences in place of the sum of targets' losses: the head passes over all rows, weigh() turns their losses
 * into the gradients by them, and the head passes over the rows again. Collective; called without tokens, too. */
struct sequence_loss {
    float *row_losses; /* host (max_tokens): -log p of the targets, 0 without one */
    float *row_scale;  /* host (max_tokens): weigh() writes it */
    enum status (*weigh)(void *context, const struct batch *batch, struct error *err);
    void *context;
};

/* A micro-batch to train on; the pointers are borrowed. */
struct train_job {
    struct transformer *transformer;
    const struct batch *batch; /* one that is not loaded is loaded as input 0 */
    struct loss_factor factor;
    const struct param_verbs *verbs;
    double *loss_sum;                      /* device scalar: += the sum of the losses of its targets */
    const struct sequence_loss *sequences; /* with config.sequences, which leaves *loss_sum undefined; else NULL */
    /* with experts: device (1 + E), += this micro-batch's part of the mean auxiliary loss, and of each expert's number
     * of tokens in all layers; NULL: not */
    double *expert_sums;
};

enum { TRAIN_JOBS = 16 };

/* Forward and backward of `count` micro-batches (1 to TRAIN_JOBS) side by side: all pass a unit before any is in the
 * next. Each has a transformer of its own of the same model, an adapter of one base. The gradients are of the factor
 * times the losses. With num_tokens 0, the verbs are called in the same order, and gradients that would be overwritten
 * become 0. */
enum status transformer_train(const struct train_job *jobs, int count, struct stream *stream, struct error *err);

/* Whether training launches the work of blocks as graphs (block_graphs.h). Off at first, without
 * config.graphs_by_block, and while the stream is captured as a whole. */
void transformer_replay(struct transformer *transformer, bool on);

/* What an evaluation gives of each row besides the sum of losses: host memory, or NULL. */
struct row_results {
    float *losses; /* (num_tokens), with config.sequences, valid after stream_sync() */
    /* the head's products, logits before scale and cap, in fp32: those of some rows at a time, ld apart, for take() */
    float *logits; /* (transformer_logit_rows(), transformer_ld_logits()) */
    enum status (*take)(void *context, int64_t first, int64_t rows, struct error *err);
    void *context;
};
int64_t transformer_logit_rows(const struct transformer *transformer);
int64_t transformer_ld_logits(const struct transformer *transformer);

/* Forward only: *loss_sum (device scalar) += the sum of the losses. logits: NULL, or host memory (num_targets, classes)
 * for the logits (in DTYPE_F32) of the rows with a target in their order, valid after stream_sync(); the batch's arrays
 * are then those of the stream, not of transformer_load(). classes: the model's labels, or its vocabulary. rows: may be
 * NULL. */
enum status transformer_evaluate(struct transformer *transformer, const struct batch *batch,
                                 const struct param_verbs *verbs, struct stream *stream, double *loss_sum,
                                 float *logits, const struct row_results *rows, struct error *err);

/* What a sequence that is being generated has (generate.h): keys and values; where layers have a delta rule, the last
 * inputs of their convolutions and their states, zeros before the first token. */
struct kv_cache {
    void *keys, *values; /* dt (layers with keys of their own, KV, capacity, D) */
    void *inputs;        /* dt (layers with a delta rule, taps, delta_channels) */
    float *states;       /* (layers with a delta rule, Hv, Dk, Dv) */
    size_t inputs_bytes, states_bytes;
    int64_t capacity; /* tokens */
    int64_t held;     /* tokens so far */
};

/* Forward of the batch's one sequence, which continues that of the cache; its positions begin at cache->held, which is
 * the caller's to raise. logits: host memory for the `classes` logits of the last token, in the dtype of logits, as the
 * head's matrix gives them; valid after stream_sync(). */
enum status transformer_continue(struct transformer *transformer, const struct batch *batch,
                                 const struct kv_cache *cache, const struct param_verbs *verbs, struct stream *stream,
                                 void *logits, struct error *err);

/* FLOPs per token in training, forward and backward, as in the formula of MFU: 6 · matmul parameters + 6 · layers · H ·
 * D · T (causal; twice that if attention looks both ways). The head counts as a matmul even if it is tied; the
 * embedding does not. A pooler and the head after it count once for the seq_length tokens of a sample. Frozen matrices
 * of the table (NULL: none is frozen) count 4, and units before the first that is trained 2. */
double transformer_flops_per_token(const struct model_desc *desc, const struct tensor_table *table, int64_t seq_length);
