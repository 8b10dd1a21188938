/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_table.h: the one table of all parameters. ZeRO's layout, the optimizer's groups, the checkpoint, import,
 * export and the memory plan derive from it.
 *
 * A *unit* is a set of tensors that are gathered together: unit 0 the embedding, 1 … L the blocks, L+1 the head (final
 * norm, and lm_head unless tied). A unit is one flat range of elements:
 *
 *     | tensor | tensor | gap | tensor | …        offsets are multiples of TENSOR_ALIGN elements, except inside a
 *                                                  fused group, whose tensors follow each other without a gap
 *
 * Fused groups: weights of q, k, v and of gate, up, and the biases of each. Their rows are stacked in that order: one
 * row-major (sum of out, in) matrix for the GEMM, as GPT-2's c_attn and Phi-3's qkv_proj and gate_up_proj are already.
 * Gap elements are zero: their gradients are never written. Blocks of one kind of layer have the same layout, unless
 * some are frozen.
 *
 * A *frozen* tensor has parameters in the compute dtype, but no gradient and no optimizer state. The frozen tensors of
 * a unit are a unit of their own after the head: gathered with it, sharded by itself, so that ranks share what is
 * trained:
 *
 *     embedding | block 0 | block 1 | … | head | block 0, gate_up | block 0, down | … | block 0, frozen | …
 *
 * The experts of a block are two units of their own after the head, which are acquired with the block: the matrices of
 * expert e are one range of each, so that ranks can share experts among them (zero.h). Optimizer state: of all units
 * but the frozen ones.
 *
 * With moments in 8 bits offsets are multiples of MOMENT_BLOCK: tensor_has_blocks() says which tensors have such ones.
 *
 * An adapter freezes the table and adds its tensors to the trained part of units (adapter.h). */
#pragma once

#include "core/model/model_config.h"
#include "core/quantization/dynamic_map.h"

enum { TENSOR_ALIGN = 64 }; /* elements: 128 bytes of bf16 */

/* The purpose of a tensor, by which the transformer finds it, and the module of Llama's names whose weight it is; NULL:
 * a bias, or not in Llama. Shapes are (out, in), or (in, out) if weights_in_out.
 *
 * The inputs of layers are in unit 0, which embeds tokens too: a unit of its own would spare a tied head's gather at
 * stage 3, but a second unit of the largest size would be in memory. Experts follow one another: gate 0, up 0, gate 1,
 * …; then down 0, down 1, …. Granite's gate_up (E, 2I, C) is one tensor of all experts; gpt-oss' (E, C, 2I) too. */
#define TENSOR_ROLES(X)                                                                                                \
    X(WTE, "model.embed_tokens") /* (V, C) */                                                                          \
    X(WPE, NULL)                 /* (P, C) */                                                                          \
    X(WSE, NULL)                 /* (S, C): the embedding of token types */                                            \
    X(EMBED_NORM_W, NULL)        /* (C), as the norms that follow */                                                   \
    X(EMBED_NORM_B, NULL)                                                                                              \
    X(NORM1_W, "input_layernorm")                                                                                      \
    X(NORM1_B, NULL)                                                                                                   \
    X(POST1_W, "post_attention_layernorm") /* of what attention adds, or of the residual stream after that */          \
    X(POST1_B, NULL)                                                                                                   \
    X(POST2_W, "post_feedforward_layernorm") /* of what the MLP adds, or of the residual stream after that */          \
    X(POST2_B, NULL)                                                                                                   \
    X(QKV_W, "self_attn.qkv_proj")         /* ((H + 2 KV) D, C); GPT-2: (C, 3C) */                                     \
    X(QKV_B, NULL)                         /* (3C) */                                                                  \
    X(Q_W, "self_attn.q_proj")             /* (H D, C); first of the fused group q, k, v */                            \
    X(K_W, "self_attn.k_proj")             /* (KV D, C) */                                                             \
    X(V_W, "self_attn.v_proj")             /* (KV D, C) */                                                             \
    X(Q_B, NULL)                           /* (H D) */                                                                 \
    X(K_B, NULL)                           /* (KV D) */                                                                \
    X(V_B, NULL)                           /* (KV D) */                                                                \
    X(Q_NORM, "self_attn.q_norm")          /* (D), or (H D) */                                                         \
    X(K_NORM, "self_attn.k_norm")          /* (D), or (KV D) */                                                        \
    X(O_W, "self_attn.o_proj")             /* (C, H D) */                                                              \
    X(O_B, NULL)                           /* (C) */                                                                   \
    X(NORM2_W, "post_attention_layernorm") /* (C) */                                                                   \
    X(NORM2_B, NULL)                       /* (C) */                                                                   \
    X(GATE_W, "mlp.gate_proj")             /* (F, C); first of the fused group gate, up; Phi-3: both, (2F, C) */       \
    X(UP_W, "mlp.up_proj")                 /* (F, C); GPT-2's c_fc, (C, F) */                                          \
    X(GATE_B, NULL)                        /* (F) */                                                                   \
    X(UP_B, NULL)                          /* (F) */                                                                   \
    X(DOWN_W, "mlp.down_proj")             /* (C, F); GPT-2's mlp.c_proj, (F, C) */                                    \
    X(DOWN_B, NULL)                        /* (C) */                                                                   \
    X(FINAL_NORM_W, "model.norm")          /* (C) */                                                                   \
    X(FINAL_NORM_B, NULL)                  /* (C) */                                                                   \
    X(LM_HEAD, "lm_head")                  /* (V, C); absent if tied, and in a classifier */                           \
    X(POOLER_W, NULL)                      /* (C, C) of the first token's state, before the head of a classifier */    \
    X(POOLER_B, NULL)                      /* (C) */                                                                   \
    X(SCORE_W, "score")                    /* (num_labels, C) the head of a classifier */                              \
    X(SCORE_B, NULL)                       /* (num_labels) */                                                          \
    X(LM_HEAD_B, NULL)                     /* (V) */                                                                   \
    /* of a layer with a gated delta rule, in place of those of attention; Hk, Hv, Dk, Dv as in ops.h */               \
    X(DELTA_QKV_W, "linear_attn.in_proj_qkv") /* (2 Hk Dk + Hv Dv, C); first of the fused group q | k | v, z, b, a */  \
    X(DELTA_Z_W, "linear_attn.in_proj_z")     /* (Hv Dv, C): the gate of the output */                                 \
    X(DELTA_B_W, "linear_attn.in_proj_b")     /* (Hv, C) */                                                            \
    X(DELTA_A_W, "linear_attn.in_proj_a")     /* (Hv, C) */                                                            \
    X(DELTA_CONV_W, "linear_attn.conv1d")     /* (2 Hk Dk + Hv Dv, 1, taps) */                                         \
    X(DELTA_DT_BIAS, "linear_attn.dt_bias")   /* (Hv) */                                                               \
    X(DELTA_A_LOG, "linear_attn.A_log")       /* (Hv) */                                                               \
    X(DELTA_NORM_W, "linear_attn.norm")       /* (Dv) */                                                               \
    X(DELTA_O_W, "linear_attn.out_proj")      /* (C, Hv Dv) */                                                         \
    /* of the inputs of layers (layer_inputs, I, of layer_vocab, V') */                                                \
    X(LAYER_WTE, "model.embed_tokens_per_layer")        /* (V', L I) */                                                \
    X(LAYER_IN_W, "model.per_layer_model_projection")   /* (L I, C) on the model's input */                            \
    X(LAYER_IN_NORM, "model.per_layer_projection_norm") /* (I) */                                                      \
    X(IN_GATE_W, "per_layer_input_gate")                /* (I, C) of a block, as those that follow */                  \
    X(IN_OUT_W, "per_layer_projection")                 /* (C, I) */                                                   \
    X(POST3_W, "post_per_layer_input_norm")             /* (C): the norm of what it adds */                            \
    X(LAYER_SCALAR, "layer_scalar")                     /* (1): constant */                                            \
    /* of a layer with experts, in place of its MLP's; E experts, I as in experts_desc */                              \
    X(ROUTER_W, "mlp.gate")                                  /* (E, C) */                                              \
    X(ROUTER_B, NULL)                                        /* (E) */                                                 \
    X(ROUTER_CORRECTION, "mlp.gate.e_score_correction_bias") /* (E): constant; of the choice */                        \
    X(EXPERT_GATE_W, "mlp.experts.*.gate_proj")              /* (I, C); first of the group of all experts' gate, up */ \
    X(EXPERT_UP_W, "mlp.experts.*.up_proj")                  /* (I, C) */                                              \
    X(EXPERT_GATE_B, NULL)                                   /* (E, 2I) */                                             \
    X(EXPERT_DOWN_W, "mlp.experts.*.down_proj")              /* (C, I); first of the group of all */                   \
    X(EXPERT_DOWN_B, NULL)                                   /* (E, C) */                                              \
    X(SHARED_GATE_W, "mlp.shared_experts.gate_proj")         /* (F, C); first of the fused group gate, up */           \
    X(SHARED_UP_W, "mlp.shared_experts.up_proj")             /* (F, C) */                                              \
    X(SHARED_DOWN_W, "mlp.shared_experts.down_proj")         /* (C, F) */                                              \
    X(SHARED_SCALE_W, NULL)                                  /* (1, C) */                                              \
    X(SINKS, NULL)                                           /* (H) */

#define TENSOR_ROLE(role, module) ROLE_##role,
enum tensor_role { TENSOR_ROLES(TENSOR_ROLE) ROLE_COUNT };

/* A matrix of experts. */
static inline bool role_is_expert(enum tensor_role role)
{
    return role == ROLE_EXPERT_GATE_W || role == ROLE_EXPERT_UP_W || role == ROLE_EXPERT_DOWN_W;
}

/* The units that are acquired together: a block, and those of its experts; other units have the first only. */
enum { UNIT_SELF, UNIT_GATE_UP, UNIT_DOWN, UNIT_PARTS };

static inline int role_part(enum tensor_role role)
{
    return !role_is_expert(role) ? UNIT_SELF : role == ROLE_EXPERT_DOWN_W ? UNIT_DOWN : UNIT_GATE_UP;
}

static inline bool role_is_embedding(enum tensor_role role)
{
    return role == ROLE_WTE || role == ROLE_WPE || role == ROLE_WSE || role == ROLE_LAYER_WTE;
}

/* Never trained: it has no gradient, as a gap, and no weight decay. */
static inline bool role_is_constant(enum tensor_role role)
{
    return role == ROLE_LAYER_SCALAR || role == ROLE_ROUTER_CORRECTION;
}

/* LOG_UNIFORM: the logarithm of values between 0.01 and 16. */
enum tensor_init { INIT_ZERO, INIT_ONE, INIT_NORMAL, INIT_UNIFORM, INIT_LOG_UNIFORM };

/* A tensor of the model, or of an adapter on the one that has the same role (adapter.h). */
enum tensor_part { PART_BASE, PART_LORA_A, PART_LORA_B };

struct tensor_info {
    char name[96]; /* Hugging Face's, with GPT-2's "transformer."; of an adapter without "base_model.model." */
    enum tensor_role role;
    enum tensor_part part;
    double lora_scale; /* PART_LORA_A and _B: of what the two add */
    int unit;
    bool joined;      /* follows the tensor before it without a gap */
    bool frozen;      /* it is not trained */
    int number;       /* in the order of the model: decides its initial values */
    int ndim;         /* 1 to 3 */
    int64_t shape[3]; /* 1 from ndim on */
    int64_t numel;    /* elements */
    int64_t offset;   /* elements from the unit's start */
    enum tensor_init init;
    double init_std;  /* INIT_NORMAL; mean 0. INIT_UNIFORM: between -init_std and init_std */
    int64_t zero_row; /* this row starts as zeros (the embedding of pad_token_id), -1: none */
};

struct unit_info {
    char name[32];                 /* "embedding", "block 0", …, "head" */
    int first_tensor, num_tensors; /* in the table, in order of offset */
    int64_t numel;                 /* elements with gaps, without the shard padding; 0 if all tensors are frozen */
    int frozen;                    /* the unit of its frozen tensors; 0: none */
    int next;                      /* the next of those acquired together; 0: none */
    int owner;                     /* the unit that is acquired: itself, or whose experts or frozen tensors it has */
    int64_t stored_bytes;          /* of a frozen unit that is kept as bytes (stored_base.h); 0: it is elements */
};

struct stored_tensor;

struct tensor_table {
    int num_tensors, num_units;
    struct tensor_info *tensors;
    struct unit_info *units;
    int64_t num_params;           /* elements of all tensors, without gaps; tied ones once */
    int64_t frozen_params;        /* of these, not trained */
    int num_frozen;               /* of the units, the last ones: the frozen tensors of others */
    int num_experts;              /* of the units, those before them: experts of blocks */
    struct stored_tensor *stored; /* [num_tensors] (stored_base.h); NULL: no unit is kept as bytes */
    int64_t word;                 /* with stored: bytes of an element in the compute dtype */
    bool adapted;                 /* they are the base of an adapter: checkpoints hold a hash of them only */
    bool moment_blocks;           /* the optimizer's moments are in 8 bits (core/quantization/dynamic_map.h) */
};

void tensor_table_build_for(const struct model_desc *desc, bool moment_blocks, struct tensor_table *table);
static inline void tensor_table_build(const struct model_desc *desc, struct tensor_table *table)
{
    tensor_table_build_for(desc, false, table);
}
void tensor_table_release(struct tensor_table *table);

/* Freezes the tensors that `is_frozen` names, all or none of a fused group; called once, before anything is derived.
 * A bias is trained with its matrix. Then appends `added` (NULL: none), in their order, to the trained part of their
 * units: unit, name, role, part, joined, shape and initial values are the caller's. */
void tensor_table_freeze(struct tensor_table *table, bool (*is_frozen)(void *context, const struct tensor_info *tensor),
                         void *context, const struct tensor_info *added, int num_added);

/* Elements of the unit in the shard layout; of bytes, words. */
static inline int64_t unit_words(const struct tensor_table *table, int unit)
{
    const struct unit_info *info = &table->units[unit];
    return info->stored_bytes ? (info->stored_bytes + table->word - 1) / table->word : info->numel;
}

/* The units that have optimizer state: the first ones. */
static inline int tensor_table_trained(const struct tensor_table *table)
{
    return table->num_units - table->num_frozen;
}

/* The next of the units that are acquired together; -1: none. */
static inline int unit_next(const struct tensor_table *table, int unit)
{
    const int next = table->units[unit].next;
    return next ? next : -1;
}

/* The last unit that is acquired: the head. */
static inline int tensor_table_head(const struct tensor_table *table)
{
    return tensor_table_trained(table) - table->num_experts - 1;
}

/* "model", "transformer": what the names of a model without its head lack. */
void tensor_base_prefix(enum model_family family, char *prefix, size_t size);

/* Whether the tensors of two units lie at the same offsets. */
bool tensor_units_alike(const struct tensor_table *table, int a, int b);

/* The tensor of that role in that unit, those acquired with it or their frozen tensors, or NULL. */
const struct tensor_info *tensor_find(const struct tensor_table *table, int unit, enum tensor_role role);
const struct tensor_info *tensor_find_part(const struct tensor_table *table, int unit, enum tensor_role role,
                                           enum tensor_part part);

/* "(768, 2304)" */
enum { SHAPE_TEXT = 192 };
const char *shape_text(int ndim, const int64_t *shape, char text[SHAPE_TEXT]);

/* The first unit of those acquired that has a tensor that is trained: backward ends there. */
int tensor_table_first_trained(const struct tensor_table *table);

/* The tensor that owns element `offset` of `unit`, or NULL (a gap, or padding). */
const struct tensor_info *tensor_at(const struct tensor_table *table, int unit, int64_t offset);

/* The elements that offsets and slices are multiples of. */
static inline int64_t tensor_table_align(const struct tensor_table *table)
{
    return table->moment_blocks ? MOMENT_BLOCK : TENSOR_ALIGN;
}

/* Whether moments in 8 bits are so for a tensor at this offset, which in a group may be inside a block. */
static inline bool moments_fit_blocks(int64_t offset, int64_t numel)
{
    return numel >= MOMENT_LEAST_NUMEL && numel % MOMENT_BLOCK == 0 && offset % MOMENT_BLOCK == 0;
}

static inline bool tensor_has_blocks(const struct tensor_table *table, const struct tensor_info *tensor)
{
    return table->moment_blocks && !tensor->frozen && moments_fit_blocks(tensor->offset, tensor->numel);
}

/* Whether it is the matrix of products, or all experts': tensor_matrices() of shape[ndim - 2, ndim - 1]. */
static inline bool tensor_is_matrix(const struct tensor_info *tensor)
{
    const bool bias = tensor->role == ROLE_EXPERT_GATE_B || tensor->role == ROLE_EXPERT_DOWN_B;
    return tensor->ndim == 3 ? role_is_expert(tensor->role) : tensor->ndim == 2 && !bias;
}

static inline int64_t tensor_matrices(const struct tensor_info *tensor)
{
    return tensor->ndim == 3 ? tensor->shape[0] : 1;
}

/* Whether the optimizer decays the tensor: it has two dimensions, or decay_all; and is trained. */
static inline bool tensor_decays(const struct tensor_info *tensor, bool decay_all)
{
    return !role_is_constant(tensor->role) && (decay_all || tensor->ndim >= 2);
}

/* Elements [first, first + count) of a tensor's initial values in fp32: a function of seed, tensor and element. */
void tensor_init_range(const struct tensor_table *table, int tensor, uint64_t seed, int64_t first, int64_t count,
                       float *out);
