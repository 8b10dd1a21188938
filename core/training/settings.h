/* SPDX-License-Identifier: Apache-2.0 */
/* settings.h: sections of the run spec for the modules that compute. Strings and arrays lie in the spec's arena. */
#pragma once

#include "core/dtype.h"
#include "core/string_list.h"

/* `distill`: a teacher's expectations are a part of the loss, (1 - alpha) · cross-entropy + alpha · T² · KL. */
struct distill_settings {
    const char *logps; /* a file of ztrain score --top-k; NULL: there is no teacher */
    double temperature, alpha;
};

/* ---- recomputation ------------------------------------------------------- */

/* How much of a block's activations is computed again in backward instead of being kept since forward. Each policy
 * includes those before it. The bits are the same under every policy, except where a GPU computes SwiGLU inside a
 * matrix product: mlp and attention do not, and agree with the others to rounding.
 *
 *   none        everything is kept
 *   norms       the outputs of norms are computed again
 *   mlp         and the activation inside the MLP
 *   attention   and queries, keys and values, and the attention's output
 *   block       and everything else but the block's input */
#define RECOMPUTE_LIST(X)     \
    X(NONE, "none")           \
    X(NORMS, "norms")         \
    X(MLP, "mlp")             \
    X(ATTENTION, "attention") \
    X(BLOCK, "block")

#define RECOMPUTE_ENTRY(name, word) RECOMPUTE_##name,
enum recompute { RECOMPUTE_LIST(RECOMPUTE_ENTRY) RECOMPUTE_COUNT };

/* The policy's name in the run spec: "none", "norms", … */
LISTED_NAMES(recompute_name, enum recompute, RECOMPUTE_LIST)

/* ---- preferences --------------------------------------------------------- */

#define PREFERENCE_LOSS_LIST(X) \
    X(NONE, "none")             \
    X(SIGMOID, "sigmoid")       \
    X(IPO, "ipo")               \
    X(HINGE, "hinge")           \
    X(ROBUST, "robust")         \
    X(SIMPO, "simpo")           \
    X(ORPO, "orpo")             \
    X(KTO, "kto")               \
    X(APO_ZERO, "apo_zero")     \
    X(APO_DOWN, "apo_down")     \
    X(REWARD, "reward") /* of model.task reward: sigmoid of the answers' rewards */

#define PREFERENCE_ENTRY(name, word) PREFERENCE_##name,
enum preference_loss { PREFERENCE_LOSS_LIST(PREFERENCE_ENTRY) PREFERENCE_LOSS_COUNT };

LISTED_NAMES(preference_name, enum preference_loss, PREFERENCE_LOSS_LIST)

/* What metrics say of them, means over samples. */
#define PREFERENCE_VALUE_LIST(X)                \
    X(REWARDS_CHOSEN, "rewards/chosen")         \
    X(REWARDS_REJECTED, "rewards/rejected")     \
    X(REWARDS_ACCURACIES, "rewards/accuracies") \
    X(REWARDS_MARGINS, "rewards/margins")       \
    X(LOGPS_CHOSEN, "logps/chosen")             \
    X(LOGPS_REJECTED, "logps/rejected")         \
    X(KL, "kl")

#define PREFERENCE_VALUE_ENTRY(name, word) PREFERENCE_##name,
enum preference_value { PREFERENCE_VALUE_LIST(PREFERENCE_VALUE_ENTRY) PREFERENCE_VALUES };

/* `preference`: samples are pairs of a chosen and a rejected document or, for KTO, documents with a label. */
struct preference_settings {
    enum preference_loss loss; /* NONE: samples are text */
    double beta, label_smoothing, gamma, rpo_alpha;
    double desirable_weight, undesirable_weight;
    const char *reference; /* NULL: the model that training starts from, or the base of an adapter */
};

/* Of a sample: chosen and rejected, or KTO's answer and a mismatched one. */
static inline int preference_sequences(const struct preference_settings *settings)
{
    return settings->loss == PREFERENCE_NONE ? 1 : 2;
}

/* ---- the transformer ----------------------------------------------------- */

struct transformer_settings {
    enum recompute recompute; /* activation_checkpointing.policy: the activations that backward computes again */
    bool deterministic;       /* false: the backward pass of a GPU's attention may add in any order */
    double label_smoothing;   /* of the loss, in training and evaluation; 0: none */
    struct distill_settings distill;
    enum dtype logits_dtype; /* DTYPE_F32 or that of parameters (DTYPE_COUNT); the loss is computed in fp32 */
};

/* ---- the base and an adapter on it --------------------------------------- */

/* Which matrices of the base have 4 or 8 bits: model.quantization_config, and quantization_config of a config.json. */
enum quantization_method { QUANTIZATION_NONE, QUANTIZATION_NF4, QUANTIZATION_FP8, QUANTIZATION_MXFP4 };

struct quantization_settings {
    enum quantization_method method;
    bool decoded;             /* import decodes the matrices, and the run knows no codes */
    bool double_quant;        /* NF4: bnb_4bit_use_double_quant */
    enum dtype compute_dtype; /* NF4: bnb_4bit_compute_dtype; DTYPE_COUNT: not set */
    bool has_skip;            /* else `skip` is the default: the heads */
    struct string_list skip;  /* modules that are not quantized: how their names begin or end */
};

/* Names of modules: one regular expression that has to match a module's whole name (as re.fullmatch), or a list, whose
 * items are the whole name or what follows a dot in it. Neither: none. */
struct module_names {
    const char *expression; /* NULL: the list */
    struct string_list list;
};

/* The first item counts whose expression matches a module's whole name or what follows a dot in it. */
struct pattern_value {
    const char *pattern;
    double value;
};

/* `peft`: an adapter on a frozen base, in the names of PEFT's LoraConfig. */
struct adapter_settings {
    bool on; /* there is an adapter, and the base is frozen */
    int64_t r;
    double lora_alpha, lora_dropout;
    bool use_rslora;                                     /* the scale is lora_alpha / sqrt(r), else lora_alpha / r */
    bool all_linear;                                     /* target_modules: all-linear */
    struct module_names target_modules, exclude_modules; /* targets empty: the family's, as in PEFT */
    struct string_list target_parameters;                /* of experts and routers, which are no modules */
    struct string_list modules_to_save;                  /* trained as a whole */
    struct pattern_value *rank_pattern, *alpha_pattern;
    int num_rank_patterns, num_alpha_patterns;
    int64_t *layers_to_transform;      /* blocks that have adapters */
    int num_layers_to_transform;       /* 0: all */
    struct string_list layers_pattern; /* names of the list of blocks, expressions; empty: any */
    bool ensure_weight_tying;          /* a tied embedding in modules_to_save is trained as one matrix with the head */
    enum dtype base_dtype;             /* in which the frozen tensors are kept; DTYPE_COUNT: that of compute */
};

/* ---- data ---------------------------------------------------------------- */

enum spec_switch { SPEC_AUTO, SPEC_ON, SPEC_OFF };
enum spec_packing { SPEC_PACKING_NONE, SPEC_PACKING_CUT, SPEC_PACKING_FIRST_FIT };

/* The unit of a mixture's amounts. NONE: data.train is not a mixture, and its shards form one stream. */
enum spec_amount { SPEC_AMOUNT_NONE, SPEC_AMOUNT_WEIGHT, SPEC_AMOUNT_EPOCHS };

struct data_settings {
    struct string_list train, validation; /* validation.count 0: none */
    enum spec_amount amount;              /* of data.train */
    double *amounts;                      /* (train.count): of each source, above 0; NULL unless a mixture */
    int64_t seq_length;
    bool shuffle;
    enum spec_packing packing;
    enum spec_switch document_mask; /* AUTO until spec_resolve_document_mask() */
};

/* ---- the optimizer ------------------------------------------------------- */

#define OPTIMIZER_LIST(X)                                                                                      \
    X(ADAMW, "AdamW")         /* weight decay is applied to the weights */                                     \
    X(ADAM, "Adam")           /* weight decay is added to the gradient as L2 (adam_w_mode: false) */           \
    X(LION, "Lion")           /* weight decay as AdamW */                                                      \
    X(SGD, "SGD")             /* torch.optim.SGD: weight decay is added to the gradient */                     \
    X(MUON, "Muon")           /* torch.optim.Muon for the matrices of the blocks, AdamW for everything else */ \
    X(ADAMW8BIT, "AdamW8bit") /* torchao's AdamW8bit: AdamW with moments in 8 bits */
#define OPTIMIZER_ENTRY(name, word) OPTIMIZER_##name,
enum optimizer_type { OPTIMIZER_LIST(OPTIMIZER_ENTRY) OPTIMIZER_COUNT };
LISTED_NAMES(optimizer_name, enum optimizer_type, OPTIMIZER_LIST)

/* Muon's learning rate for a matrix of (rows, columns), as it is stored, is lr times */
enum lr_adjustment {
    ADJUST_ORIGINAL,        /* sqrt(max(1, rows / columns)) */
    ADJUST_MATCH_RMS_ADAMW, /* 0.2 sqrt(max(rows, columns)): lr and weight_decay may be those of AdamW */
    ADJUST_SPECTRAL,        /* sqrt(rows / columns) */
};

struct optimizer_settings {
    enum optimizer_type type;
    double lr;           /* before the schedule */
    double beta1, beta2; /* Adam, Lion; unless the schedule sets them; double on the device as well: see step_rates */
    double eps;          /* Adam */
    double weight_decay;
    double momentum, dampening;      /* SGD; Muon: the former */
    bool nesterov;                   /* SGD, Muon */
    bool bias_correction;            /* Adam */
    bool weight_decay_all;           /* biases and norms decay as well */
    double muon_lr, adam_lr;         /* Muon: of its matrices, and of everything else; 0: lr */
    int64_t ns_steps;                /* Muon: Newton-Schulz iterations */
    enum lr_adjustment adjust_lr_fn; /* Muon */
};

/* The learning rate that the schedule starts from, AdamW's if an optimizer has two; Muon's as its multiple. */
static inline double optimizer_base_lr(const struct optimizer_settings *settings)
{
    return settings->type == OPTIMIZER_MUON && settings->adam_lr > 0 ? settings->adam_lr : settings->lr;
}

static inline double optimizer_muon_factor(const struct optimizer_settings *settings)
{
    const double lr = settings->muon_lr > 0 ? settings->muon_lr : settings->lr, base = optimizer_base_lr(settings);
    return base > 0 ? lr / base : 1;
}

/* Values of state for each parameter, apart from master weights; one of Muon's matrices: the other is zero. */
static inline int optimizer_moments(const struct optimizer_settings *settings)
{
    if (settings->type == OPTIMIZER_SGD) return settings->momentum != 0;
    return settings->type == OPTIMIZER_LION ? 1 : 2;
}

/* ---- ZeRO and its offload ------------------------------------------------ */

enum offload_device { OFFLOAD_NONE, OFFLOAD_CPU, OFFLOAD_NVME };

struct offload_settings {
    enum offload_device device;
    bool pin_memory; /* page-locked host memory, from and to which a GPU copies by itself */
    double ratio;    /* optimizer: the fraction of its state that is offloaded */
    char *nvme_path; /* a folder, or NULL */
    int64_t buffer_count;
    int64_t buffer_size;                /* parameters, nvme: elements of a buffer */
    int64_t max_in_cpu;                 /* parameters, nvme: elements that stay in host memory */
    bool pipeline_read, pipeline_write; /* optimizer */
};

struct zero_settings { /* DeepSpeed's zero_optimization */
    int stage;
    bool overlap_comm;
    /* elements: collectives are cut into pieces of at most this (at least SHARD_ALIGN × world); 0: no limit */
    int64_t reduce_bucket_size, allgather_bucket_size;
    struct offload_settings offload_optimizer, offload_param;
    int64_t sub_group_size; /* elements that an offloaded optimizer updates at a time; 0: SUB_GROUP_MAX, the most */
};

/* Whether state is offloaded to nvme. */
static inline bool zero_uses_disk(const struct zero_settings *zero)
{
    return zero->offload_optimizer.device == OFFLOAD_NVME || zero->offload_param.device == OFFLOAD_NVME;
}

/* The most elements that the optimizer updates at a time where they pass through buffers. */
enum { SUB_GROUP_MAX = 1 << 21 };

/* Asynchronous I/O on the disk of nvme_path (core/storage/async_io.h). */
struct aio_settings {
    int64_t block_size;  /* bytes of a transfer, at least 1; rounded up to ASYNC_IO_ALIGN */
    int64_t queue_depth; /* transfers in flight, 1 … ASYNC_IO_DEPTH_MAX */
};
