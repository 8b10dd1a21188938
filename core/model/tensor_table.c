/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_table.c: the rules that turn a model description into the tensor table, in the order of the flat range. */
#include "core/model/tensor_table.h"

#include "core/memory.h"
#include "core/round_up.h"
#include "core/training/philox.h"

/* Rows and columns of tensors. In a block D, KV and F are the layer's; no other tensor has them. */
#define DIMS(X)                                                 \
    X(1, 1)                                                     \
    X(V, desc->vocab_size)                                      \
    X(P, desc->max_positions)                                   \
    X(C, desc->hidden_size)                                     \
    X(HD, (desc->num_heads * D))                                \
    X(KVD, (KV * D))                                            \
    X(D, D)                                                     \
    X(F, F)                                                     \
    X(W, (desc->num_heads + 2 * KV) * D)                        \
    X(2F, 2 * F)                                                \
    X(LABELS, desc->num_labels)                                 \
    X(S, desc->num_types)                                       \
    X(Q, (desc->gated_attention ? 2 : 1) * desc->num_heads * D) \
    X(CHANNELS, delta_channels(&desc->delta))                   \
    X(TAPS, desc->delta.taps)                                   \
    X(HV, desc->delta.value_heads)                              \
    X(VALUES, desc->delta.value_heads * desc->delta.value_dim)  \
    X(DV, desc->delta.value_dim)                                \
    X(LAYER_V, desc->layer_vocab)                               \
    X(LAYERS_IN, desc->num_layers * desc->layer_inputs)         \
    X(IN, desc->layer_inputs)                                   \
    X(E, desc->experts.count)                                   \
    X(I, desc->experts.inner_size)                              \
    X(2I, 2 * desc->experts.inner_size)                         \
    X(H, desc->num_heads)

#define DIM_ENTRY(name, size) DIM_##name,
enum dim { DIMS(DIM_ENTRY) };

/* What a tensor needs of the description, and when it is there: all of its bits. */
#define NEEDS(X)                                                                                               \
    X(ATTENTION, !delta)                                                                                       \
    X(DELTA, delta)                                                                                            \
    X(FUSED_QKV, !delta && desc->fused_qkv)                                                                    \
    X(SEPARATE_QKV, !delta && !desc->fused_qkv)                                                                \
    X(QKV_BIAS, desc->qkv_bias)                                                                                \
    X(O_BIAS, !delta && desc->o_bias)                                                                          \
    X(HEAD_NORMS, !delta && desc->qk_norm == QK_NORM_HEADS)                                                    \
    X(PROJECTION_NORMS, !delta && desc->qk_norm == QK_NORM_PROJECTION)                                         \
    X(NORM_BIAS, desc->norm_bias)                                                                              \
    X(NORMS_INSIDE, inside)                                                /* before attention and MLP */      \
    X(SECOND_NORM, inside && desc->residual != RESIDUAL_PARALLEL_ONE_NORM) /* the MLP's own */                 \
    X(NORMS_OUTSIDE, outside)                                              /* of what attention and MLP add */ \
    X(NORMS_RESIDUAL, desc->norm_place == NORM_AFTER_RESIDUAL)             /* of the residual stream */        \
    X(FINAL_NORM, desc->norm_place != NORM_AFTER_RESIDUAL)                                                     \
    X(FUSED_GATE_UP, !sparse && gated && desc->fused_gate_up)                                                  \
    X(SEPARATE_GATE_UP, !sparse && gated && !desc->fused_gate_up)                                              \
    X(NO_GATE, !sparse && !gated)                                                                              \
    X(MLP_BIAS, desc->mlp_bias)                                                                                \
    X(POSITIONS, desc->rotary_dim == 0)                                                                        \
    X(TYPES, desc->num_types > 0)                                                                              \
    X(EMBEDDING_NORM, desc->embedding_norm)                                                                    \
    X(POOLER, desc->pooler)                                                                                    \
    X(OWN_HEAD, causal && !desc->tied)                                                                         \
    X(TIED_HEAD, causal && desc->tied)                                                                         \
    X(HEAD_BIAS, causal && desc->head_bias)                                                                    \
    X(SCORE, desc->num_labels > 0)                                                                             \
    X(OWN_K, own)                                                                                              \
    X(OWN_V, own && !layer->v_is_k)                                                                            \
    X(LAYER_INPUTS, desc->layer_inputs > 0)                                                                    \
    X(LAYER_SCALAR, desc->layer_scalar)                                                                        \
    X(MLP, !sparse)                                                                                            \
    X(SPARSE, sparse)                                                                                          \
    X(EXPERTS_APART, sparse && !experts->fused) /* each has tensors of its own */                              \
    X(EXPERTS_FUSED, sparse && experts->fused)                                                                 \
    X(EXPERT_BIAS, sparse && experts->interleaved)                                                             \
    X(CORRECTED, sparse && experts->sigmoid)                                                                   \
    X(SHARED, shared)                                                                                          \
    X(SHARED_SCALE, shared && experts->shared_gate)                                                            \
    X(SINKS, desc->sinks)

#define NEED_PLACE(name, met) PLACE_##name,
enum { NEEDS(NEED_PLACE) };
#define NEED_BIT(name, met) name = 1LL << PLACE_##name,
enum need { NEEDS(NEED_BIT) };

enum tensor_trait {
    RESIDUAL = 1, /* its output is added to the residual stream: scale_residual_init applies */
    JOINED,       /* follows the tensor before it without a gap: a fused group */
    BARE,         /* its name is the module's, and its initial values have no offset */
    PLAIN,        /* the latter only */
    EACH,         /* of every expert, one after the other, with the rules of this trait that follow */
    STACKED       /* of all experts: the dimension E comes first; its name is the module's */
};

struct tensor_rule {
    enum tensor_role role, module; /* module: whose name it has, a bias that of its weight */
    enum dim rows, columns;        /* (out, in); columns DIM_1: one dimension */
    int64_t needs;                 /* enum need; 0: every model has it */
    enum tensor_init init;
    enum tensor_trait trait; /* or 0 */
};

/* clang-format off */
static const struct tensor_rule EMBEDDING[] = {
    /* role               module             rows        columns  needs                          init          trait */
    {ROLE_WTE,            ROLE_WTE,          DIM_V,      DIM_C,   0,                             INIT_NORMAL,  0},
    {ROLE_WPE,            ROLE_WPE,          DIM_P,      DIM_C,   POSITIONS,                     INIT_NORMAL,  0},
    {ROLE_WSE,            ROLE_WSE,          DIM_S,      DIM_C,   TYPES,                         INIT_NORMAL,  0},
    {ROLE_LAYER_WTE,      ROLE_LAYER_WTE,    DIM_LAYER_V, DIM_LAYERS_IN, LAYER_INPUTS,           INIT_NORMAL,  0},
    {ROLE_LAYER_IN_W,     ROLE_LAYER_IN_W,   DIM_LAYERS_IN, DIM_C, LAYER_INPUTS,                 INIT_NORMAL,  0},
    {ROLE_LAYER_IN_NORM,  ROLE_LAYER_IN_NORM, DIM_IN,    DIM_1,   LAYER_INPUTS,                  INIT_ONE,     0},
    {ROLE_EMBED_NORM_W,   ROLE_EMBED_NORM_W, DIM_C,      DIM_1,   EMBEDDING_NORM,                INIT_ONE,     0},
    {ROLE_EMBED_NORM_B,   ROLE_EMBED_NORM_W, DIM_C,      DIM_1,   EMBEDDING_NORM | NORM_BIAS,    INIT_ZERO,    0},
    {ROLE_LM_HEAD_B,      ROLE_LM_HEAD,      DIM_V,      DIM_1,   TIED_HEAD | HEAD_BIAS,         INIT_ZERO,    0},
};

static const struct tensor_rule BLOCK[] = {
    {ROLE_NORM1_W,        ROLE_NORM1_W,      DIM_C,      DIM_1,   NORMS_INSIDE,                  INIT_ONE,     0},
    {ROLE_NORM1_B,        ROLE_NORM1_W,      DIM_C,      DIM_1,   NORMS_INSIDE | NORM_BIAS,      INIT_ZERO,    0},
    {ROLE_QKV_W,          ROLE_QKV_W,        DIM_W,      DIM_C,   FUSED_QKV,                     INIT_NORMAL,  0},
    {ROLE_QKV_B,          ROLE_QKV_W,        DIM_W,      DIM_1,   FUSED_QKV | QKV_BIAS,          INIT_ZERO,    0},
    {ROLE_Q_W,            ROLE_Q_W,          DIM_Q,      DIM_C,   SEPARATE_QKV,                  INIT_NORMAL,  0},
    {ROLE_K_W,            ROLE_K_W,          DIM_KVD,    DIM_C,   SEPARATE_QKV | OWN_K,          INIT_NORMAL,  JOINED},
    {ROLE_V_W,            ROLE_V_W,          DIM_KVD,    DIM_C,   SEPARATE_QKV | OWN_V,          INIT_NORMAL,  JOINED},
    {ROLE_Q_B,            ROLE_Q_W,          DIM_Q,      DIM_1,   SEPARATE_QKV | QKV_BIAS,       INIT_ZERO,    0},
    {ROLE_K_B,            ROLE_K_W,          DIM_KVD,    DIM_1,   SEPARATE_QKV | QKV_BIAS | OWN_K, INIT_ZERO,    JOINED},
    {ROLE_V_B,            ROLE_V_W,          DIM_KVD,    DIM_1,   SEPARATE_QKV | QKV_BIAS | OWN_V, INIT_ZERO,    JOINED},
    {ROLE_Q_NORM,         ROLE_Q_NORM,       DIM_D,      DIM_1,   HEAD_NORMS,                    INIT_ONE,     0},
    {ROLE_K_NORM,         ROLE_K_NORM,       DIM_D,      DIM_1,   HEAD_NORMS | OWN_K,            INIT_ONE,     0},
    {ROLE_Q_NORM,         ROLE_Q_NORM,       DIM_HD,     DIM_1,   PROJECTION_NORMS,              INIT_ONE,     0},
    {ROLE_K_NORM,         ROLE_K_NORM,       DIM_KVD,    DIM_1,   PROJECTION_NORMS,              INIT_ONE,     0},
    {ROLE_SINKS,          ROLE_SINKS,        DIM_H,      DIM_1,   SINKS,                          INIT_NORMAL,  BARE},
    {ROLE_O_W,            ROLE_O_W,          DIM_C,      DIM_HD,  ATTENTION,                      INIT_NORMAL,  RESIDUAL},
    {ROLE_O_B,            ROLE_O_W,          DIM_C,      DIM_1,   O_BIAS,                        INIT_ZERO,    0},
    {ROLE_DELTA_QKV_W,    ROLE_DELTA_QKV_W,  DIM_CHANNELS, DIM_C, DELTA,                         INIT_NORMAL,  0},
    {ROLE_DELTA_Z_W,      ROLE_DELTA_Z_W,    DIM_VALUES, DIM_C,   DELTA,                         INIT_NORMAL,  JOINED},
    {ROLE_DELTA_B_W,      ROLE_DELTA_B_W,    DIM_HV,     DIM_C,   DELTA,                         INIT_NORMAL,  JOINED},
    {ROLE_DELTA_A_W,      ROLE_DELTA_A_W,    DIM_HV,     DIM_C,   DELTA,                         INIT_NORMAL,  JOINED},
    {ROLE_DELTA_CONV_W,   ROLE_DELTA_CONV_W, DIM_CHANNELS, DIM_TAPS, DELTA,                      INIT_NORMAL,  0},
    {ROLE_DELTA_DT_BIAS,  ROLE_DELTA_DT_BIAS, DIM_HV,    DIM_1,   DELTA,                         INIT_ONE,     BARE},
    {ROLE_DELTA_A_LOG,    ROLE_DELTA_A_LOG,  DIM_HV,     DIM_1,   DELTA,                         INIT_LOG_UNIFORM, BARE},
    {ROLE_DELTA_NORM_W,   ROLE_DELTA_NORM_W, DIM_DV,     DIM_1,   DELTA,                         INIT_ONE,     PLAIN},
    {ROLE_DELTA_O_W,      ROLE_DELTA_O_W,    DIM_C,      DIM_VALUES, DELTA,                      INIT_NORMAL,  RESIDUAL},
    {ROLE_POST1_W,        ROLE_POST1_W,      DIM_C,      DIM_1,   NORMS_OUTSIDE,                 INIT_ONE,     0},
    {ROLE_POST1_W,        ROLE_POST1_W,      DIM_C,      DIM_1,   NORMS_RESIDUAL,                INIT_ONE,     0},
    {ROLE_POST1_B,        ROLE_POST1_W,      DIM_C,      DIM_1,   NORMS_RESIDUAL | NORM_BIAS,    INIT_ZERO,    0},
    {ROLE_NORM2_W,        ROLE_NORM2_W,      DIM_C,      DIM_1,   SECOND_NORM,                   INIT_ONE,     0},
    {ROLE_NORM2_B,        ROLE_NORM2_W,      DIM_C,      DIM_1,   SECOND_NORM | NORM_BIAS,       INIT_ZERO,    0},
    {ROLE_POST2_W,        ROLE_POST2_W,      DIM_C,      DIM_1,   NORMS_OUTSIDE,                 INIT_ONE,     0},
    {ROLE_GATE_W,         ROLE_GATE_W,       DIM_2F,     DIM_C,   FUSED_GATE_UP,                 INIT_NORMAL,  0},
    {ROLE_GATE_W,         ROLE_GATE_W,       DIM_F,      DIM_C,   SEPARATE_GATE_UP,              INIT_NORMAL,  0},
    {ROLE_UP_W,           ROLE_UP_W,         DIM_F,      DIM_C,   SEPARATE_GATE_UP,              INIT_NORMAL,  JOINED},
    {ROLE_UP_W,           ROLE_UP_W,         DIM_F,      DIM_C,   NO_GATE,                       INIT_NORMAL,  0},
    {ROLE_GATE_B,         ROLE_GATE_W,       DIM_F,      DIM_1,   SEPARATE_GATE_UP | MLP_BIAS,   INIT_ZERO,    0},
    {ROLE_UP_B,           ROLE_UP_W,         DIM_F,      DIM_1,   SEPARATE_GATE_UP | MLP_BIAS,   INIT_ZERO,    JOINED},
    {ROLE_UP_B,           ROLE_UP_W,         DIM_F,      DIM_1,   NO_GATE | MLP_BIAS,            INIT_ZERO,    0},
    {ROLE_DOWN_W,         ROLE_DOWN_W,       DIM_C,      DIM_F,   MLP,                           INIT_NORMAL,  RESIDUAL},
    {ROLE_DOWN_B,         ROLE_DOWN_W,       DIM_C,      DIM_1,   MLP_BIAS,                      INIT_ZERO,    0},
    {ROLE_ROUTER_W,       ROLE_ROUTER_W,     DIM_E,      DIM_C,   SPARSE,                        INIT_NORMAL,  0},
    {ROLE_ROUTER_B,       ROLE_ROUTER_W,     DIM_E,      DIM_1,   SPARSE | EXPERT_BIAS,          INIT_NORMAL,  0},
    {ROLE_ROUTER_CORRECTION, ROLE_ROUTER_CORRECTION, DIM_E, DIM_1, SPARSE | CORRECTED,           INIT_ZERO,    BARE},
    {ROLE_EXPERT_GATE_W,  ROLE_EXPERT_GATE_W, DIM_I,     DIM_C,   SPARSE | EXPERTS_APART,        INIT_NORMAL,  EACH},
    {ROLE_EXPERT_UP_W,    ROLE_EXPERT_UP_W,  DIM_I,      DIM_C,   SPARSE | EXPERTS_APART,        INIT_NORMAL,  EACH},
    {ROLE_EXPERT_GATE_W,  ROLE_EXPERT_GATE_W, DIM_2I,    DIM_C,   SPARSE | EXPERTS_FUSED,        INIT_NORMAL,  STACKED},
    {ROLE_EXPERT_GATE_B,  ROLE_EXPERT_GATE_B, DIM_2I,    DIM_1,   SPARSE | EXPERT_BIAS,          INIT_ZERO,    STACKED},
    {ROLE_EXPERT_DOWN_W,  ROLE_EXPERT_DOWN_W, DIM_C,     DIM_I,   SPARSE | EXPERTS_APART,        INIT_NORMAL,  EACH},
    {ROLE_EXPERT_DOWN_W,  ROLE_EXPERT_DOWN_W, DIM_C,     DIM_I,   SPARSE | EXPERTS_FUSED,        INIT_NORMAL,  STACKED},
    {ROLE_EXPERT_DOWN_B,  ROLE_EXPERT_DOWN_B, DIM_C,     DIM_1,   SPARSE | EXPERT_BIAS,          INIT_ZERO,    STACKED},
    {ROLE_SHARED_GATE_W,  ROLE_SHARED_GATE_W, DIM_F,     DIM_C,   SHARED,                        INIT_NORMAL,  0},
    {ROLE_SHARED_UP_W,    ROLE_SHARED_UP_W,  DIM_F,      DIM_C,   SHARED,                        INIT_NORMAL,  JOINED},
    {ROLE_SHARED_DOWN_W,  ROLE_SHARED_DOWN_W, DIM_C,     DIM_F,   SHARED,                        INIT_NORMAL,  0},
    {ROLE_SHARED_SCALE_W, ROLE_SHARED_SCALE_W, DIM_1, DIM_C, SHARED_SCALE,                 INIT_NORMAL,  0},
    {ROLE_POST2_W,        ROLE_POST2_W,      DIM_C,      DIM_1,   NORMS_RESIDUAL,                INIT_ONE,     0},
    {ROLE_POST2_B,        ROLE_POST2_W,      DIM_C,      DIM_1,   NORMS_RESIDUAL | NORM_BIAS,    INIT_ZERO,    0},
    {ROLE_IN_GATE_W,      ROLE_IN_GATE_W,    DIM_IN,     DIM_C,   LAYER_INPUTS,                  INIT_NORMAL,  0},
    {ROLE_IN_OUT_W,       ROLE_IN_OUT_W,     DIM_C,      DIM_IN,  LAYER_INPUTS,                  INIT_NORMAL,  RESIDUAL},
    {ROLE_POST3_W,        ROLE_POST3_W,      DIM_C,      DIM_1,   LAYER_INPUTS,                  INIT_ONE,     0},
    {ROLE_LAYER_SCALAR,   ROLE_LAYER_SCALAR, DIM_1,      DIM_1,   LAYER_SCALAR,                  INIT_ONE,     BARE},
};

static const struct tensor_rule HEAD[] = {
    {ROLE_FINAL_NORM_W,   ROLE_FINAL_NORM_W, DIM_C,      DIM_1,   FINAL_NORM,                    INIT_ONE,     0},
    {ROLE_FINAL_NORM_B,   ROLE_FINAL_NORM_W, DIM_C,      DIM_1,   FINAL_NORM | NORM_BIAS,        INIT_ZERO,    0},
    {ROLE_LM_HEAD,        ROLE_LM_HEAD,      DIM_V,      DIM_C,   OWN_HEAD,                      INIT_NORMAL,  0},
    {ROLE_LM_HEAD_B,      ROLE_LM_HEAD,      DIM_V,      DIM_1,   OWN_HEAD | HEAD_BIAS,          INIT_ZERO,    0},
    {ROLE_POOLER_W,       ROLE_POOLER_W,     DIM_C,      DIM_C,   POOLER,                        INIT_NORMAL,  0},
    {ROLE_POOLER_B,       ROLE_POOLER_W,     DIM_C,      DIM_1,   POOLER,                        INIT_ZERO,    0},
    {ROLE_SCORE_W,        ROLE_SCORE_W,      DIM_LABELS, DIM_C,   SCORE,                         INIT_NORMAL,  0},
    {ROLE_SCORE_B,        ROLE_SCORE_W,      DIM_LABELS, DIM_1,   SCORE | POOLER,                INIT_ZERO,    0},
};
/* clang-format on */

#define LLAMA_MODULE(role, module) [ROLE_##role] = module,
/* The names of modules, by the role of their weight. What a family lacks is in its base, and then in Llama. */
static const char *const MODULES[FAMILY_COUNT][ROLE_COUNT] = {
    [FAMILY_LLAMA] = {TENSOR_ROLES(LLAMA_MODULE)},
    [FAMILY_PHI3] = {[ROLE_GATE_W] = "mlp.gate_up_proj"},
    [FAMILY_GLM4] = {[ROLE_POST1_W] = "post_self_attn_layernorm", [ROLE_POST2_W] = "post_mlp_layernorm"},
    [FAMILY_GEMMA2] = {[ROLE_NORM2_W] = "pre_feedforward_layernorm"},
    [FAMILY_STARCODER2] = {[ROLE_UP_W] = "mlp.c_fc", [ROLE_DOWN_W] = "mlp.c_proj"},
    [FAMILY_QWEN2_MOE] = {[ROLE_SHARED_GATE_W] = "mlp.shared_expert.gate_proj",
                          [ROLE_SHARED_UP_W] = "mlp.shared_expert.up_proj",
                          [ROLE_SHARED_DOWN_W] = "mlp.shared_expert.down_proj",
                          [ROLE_SHARED_SCALE_W] = "mlp.shared_expert_gate"},
    [FAMILY_MIXTRAL] = {[ROLE_ROUTER_W] = "block_sparse_moe.gate",
                        [ROLE_EXPERT_GATE_W] = "block_sparse_moe.experts.*.w1",
                        [ROLE_EXPERT_UP_W] = "block_sparse_moe.experts.*.w3",
                        [ROLE_EXPERT_DOWN_W] = "block_sparse_moe.experts.*.w2"},
    [FAMILY_GRANITE_MOE] = {[ROLE_ROUTER_W] = "block_sparse_moe.router.layer",
                            [ROLE_EXPERT_GATE_W] = "block_sparse_moe.input_linear.weight",
                            [ROLE_EXPERT_DOWN_W] = "block_sparse_moe.output_linear.weight"},
    [FAMILY_GPT_OSS] = {[ROLE_SINKS] = "self_attn.sinks",
                        [ROLE_ROUTER_W] = "mlp.router",
                        [ROLE_EXPERT_GATE_W] = "mlp.experts.gate_up_proj",
                        [ROLE_EXPERT_GATE_B] = "mlp.experts.gate_up_proj_bias",
                        [ROLE_EXPERT_DOWN_W] = "mlp.experts.down_proj",
                        [ROLE_EXPERT_DOWN_B] = "mlp.experts.down_proj_bias"},
    [FAMILY_PHI] = {[ROLE_O_W] = "self_attn.dense",
                    [ROLE_UP_W] = "mlp.fc1",
                    [ROLE_DOWN_W] = "mlp.fc2",
                    [ROLE_FINAL_NORM_W] = "model.final_layernorm"},
    [FAMILY_GPT2] = {[ROLE_WTE] = "transformer.wte",
                     [ROLE_WPE] = "transformer.wpe",
                     [ROLE_NORM1_W] = "ln_1",
                     [ROLE_QKV_W] = "attn.c_attn",
                     [ROLE_O_W] = "attn.c_proj",
                     [ROLE_NORM2_W] = "ln_2",
                     [ROLE_UP_W] = "mlp.c_fc",
                     [ROLE_DOWN_W] = "mlp.c_proj",
                     [ROLE_FINAL_NORM_W] = "transformer.ln_f"},
    [FAMILY_GPTJ] = {[ROLE_Q_W] = "attn.q_proj",
                     [ROLE_K_W] = "attn.k_proj",
                     [ROLE_V_W] = "attn.v_proj",
                     [ROLE_O_W] = "attn.out_proj",
                     [ROLE_UP_W] = "mlp.fc_in",
                     [ROLE_DOWN_W] = "mlp.fc_out"},
    [FAMILY_GPT_NEOX] = {[ROLE_WTE] = "gpt_neox.embed_in",
                         [ROLE_QKV_W] = "attention.query_key_value",
                         [ROLE_O_W] = "attention.dense",
                         [ROLE_UP_W] = "mlp.dense_h_to_4h",
                         [ROLE_DOWN_W] = "mlp.dense_4h_to_h",
                         [ROLE_FINAL_NORM_W] = "gpt_neox.final_layer_norm"},
    [FAMILY_BERT] = {[ROLE_WTE] = "bert.embeddings.word_embeddings",
                     [ROLE_WPE] = "bert.embeddings.position_embeddings",
                     [ROLE_WSE] = "bert.embeddings.token_type_embeddings",
                     [ROLE_EMBED_NORM_W] = "bert.embeddings.LayerNorm",
                     [ROLE_Q_W] = "attention.self.query",
                     [ROLE_K_W] = "attention.self.key",
                     [ROLE_V_W] = "attention.self.value",
                     [ROLE_O_W] = "attention.output.dense",
                     [ROLE_POST1_W] = "attention.output.LayerNorm",
                     [ROLE_UP_W] = "intermediate.dense",
                     [ROLE_DOWN_W] = "output.dense",
                     [ROLE_POST2_W] = "output.LayerNorm",
                     [ROLE_POOLER_W] = "bert.pooler.dense",
                     [ROLE_SCORE_W] = "classifier"},
};

static enum model_family base_family(enum model_family family)
{
    switch (family) {
    case FAMILY_GLM:
    case FAMILY_GLM4: return FAMILY_PHI3;
    case FAMILY_GEMMA3:
    case FAMILY_GEMMA4: return FAMILY_GEMMA2;
    case FAMILY_GPTJ: return FAMILY_GPT2;
    default: return FAMILY_LLAMA;
    }
}

/* The list whose elements are the blocks. */
static const char *blocks_name(enum model_family family)
{
    return family == FAMILY_GPT2 || family == FAMILY_GPTJ ? "transformer.h"
           : family == FAMILY_GPT_NEOX                    ? "gpt_neox.layers"
           : family == FAMILY_BERT                        ? "bert.encoder.layer"
                                                          : "model.layers";
}

static const char *module_name(const struct model_desc *desc, enum tensor_role module)
{
    enum model_family family = desc->family;
    while (!MODULES[family][module]) {
        ASSERT(family != FAMILY_LLAMA);
        family = base_family(family);
    }
    return MODULES[family][module];
}

/* layer: NULL outside of the blocks, where no tensor has its sizes. */
static int64_t tensor_dim(const struct model_desc *desc, const struct layer_desc *layer, enum dim dim)
{
    const int64_t D = layer ? layer->head_dim : 0, KV = layer ? layer->num_kv_heads : 0;
    const int64_t F = layer ? layer->intermediate_size : 0;
#define DIM_SIZE(name, size) size,
    const int64_t sizes[] = {DIMS(DIM_SIZE)};
    return sizes[dim];
}

/* layer: NULL outside of the blocks. */
static int64_t needs_met(const struct model_desc *desc, const struct layer_desc *layer)
{
    const bool delta = layer && layer->delta, own = layer && layer->kv_source == layer - desc->layers;
    const bool inside = desc->norm_place == NORM_BEFORE || desc->norm_place == NORM_BOTH;
    const bool outside = desc->norm_place == NORM_AFTER || desc->norm_place == NORM_BOTH;
    const struct experts_desc *experts = &desc->experts;
    const bool sparse = layer && layer->sparse, shared = sparse && experts->shared_size > 0;
    const bool gated = mlp_is_gated(desc->mlp), causal = desc->num_labels == 0 && !desc->bidirectional;
#define NEED_MET(name, met) | ((met) ? name : 0)
    return 0 NEEDS(NEED_MET);
}

static void take_tensor(const struct tensor_table *table, struct unit_info *unit, struct tensor_info *tensor)
{
    tensor->offset = tensor->joined ? unit->numel : round_up(unit->numel, tensor_table_align(table));
    unit->numel = tensor->offset + tensor->numel;
    unit->num_tensors++;
}

struct unit_rules {
    const char *unit, *prefix;
    const struct tensor_rule *rules;
    size_t count;
    const struct layer_desc *layer; /* of a block */
};

/* Writes the module's name, with the expert's number in place of its star. */
static void name_tensor(const struct model_desc *desc, const char *prefix, const struct tensor_rule *rule,
                        int64_t expert, struct tensor_info *tensor)
{
    char plain[sizeof tensor->name], number[24];
    const bool bare = rule->trait == BARE || rule->trait == STACKED;
    const char *kind = bare ? "" : rule->role == rule->module ? ".weight" : ".bias";
    const char *module = module_name(desc, rule->module), *star = strchr(module, '*');
    const int before = star ? (int)(star - module) : (int)strlen(module);
    snprintf(number, sizeof number, "%lld", (long long)expert);
    int n = snprintf(plain, sizeof plain, "%s%.*s%s%s%s", prefix, before, module, star ? number : "",
                     star ? star + 1 : "", kind);
    ASSERT(n > 0 && n < (int)sizeof plain);
    memcpy(tensor->name, plain, sizeof plain);
    if (desc->multimodal) model_multimodal_name(plain, tensor->name, sizeof tensor->name);
}

static void shape_tensor(const struct model_desc *desc, const struct layer_desc *layer, const struct tensor_rule *rule,
                         struct tensor_info *tensor)
{
    const bool matrix = rule->columns != DIM_1, stacked = rule->trait == STACKED;
    const bool in_out = matrix && (stacked ? desc->experts.interleaved : layer && desc->weights_in_out);
    tensor->shape[0] = tensor->shape[1] = tensor->shape[2] = 1;
    if (stacked) tensor->shape[0] = desc->experts.count;
    tensor->shape[stacked + in_out] = tensor_dim(desc, layer, rule->rows);
    if (matrix) tensor->shape[stacked + !in_out] = tensor_dim(desc, layer, rule->columns);
    tensor->ndim = stacked + matrix + 1;
    tensor->numel = tensor->shape[0] * tensor->shape[1] * tensor->shape[2];
    if (rule->columns == DIM_TAPS) { /* as torch.nn.Conv1d: groups of one channel */
        tensor->ndim = 3;
        tensor->shape[2] = tensor->shape[1];
        tensor->shape[1] = 1;
    }
}

/* expert: whose it is; else 0. */
static void add_tensor(struct tensor_table *table, const struct model_desc *desc, const struct unit_rules *rules,
                       const struct tensor_rule *rule, int64_t expert)
{
    struct tensor_info *tensor = &table->tensors[table->num_tensors++];
    name_tensor(desc, rules->prefix, rule, expert, tensor);
    shape_tensor(desc, rules->layer, rule, tensor);
    tensor->role = rule->role;
    tensor->unit = table->num_units;
    tensor->joined = rule->trait == JOINED || (rule->trait == EACH && (expert > 0 || rule[-1].trait == EACH));
    tensor->number = table->num_tensors - 1;
    const bool offset = rule->init == INIT_ONE && rule->trait < BARE && desc->norm_offset == 1;
    tensor->init = offset ? INIT_ZERO : rule->init;
    tensor->init_std = rule->init == INIT_NORMAL ? desc->initializer_range : 0;
    if (rule->trait == RESIDUAL && desc->scale_residual_init) tensor->init_std /= sqrt(2.0 * (double)desc->num_layers);
    tensor->zero_row = rule->role == ROLE_WTE || rule->role == ROLE_LAYER_WTE ? desc->padding_token : -1;
    table->num_params += tensor->numel;
    take_tensor(table, &table->units[table->num_units], tensor);
}

/* Appends a unit and its tensors to the table, which has room for them. */
static void add_unit(struct tensor_table *table, const struct model_desc *desc, struct unit_rules rules)
{
    const int64_t met = needs_met(desc, rules.layer);
    struct unit_info *unit = &table->units[table->num_units];
    snprintf(unit->name, sizeof unit->name, "%s", rules.unit);
    unit->first_tensor = table->num_tensors;
    const struct tensor_rule *end = rules.rules + rules.count, *next;
    for (const struct tensor_rule *rule = rules.rules; rule < end; rule = next) {
        next = rule + 1;
        while (rule->trait == EACH && next < end && next->trait == EACH) next++;
        if (rule->needs & ~met) continue;
        for (int64_t expert = 0; expert < (rule->trait == EACH ? desc->experts.count : 1); expert++)
            for (const struct tensor_rule *of = rule; of < next; of++) add_tensor(table, desc, &rules, of, expert);
    }
    unit->owner = table->num_units++;
}

/* Appends the tensors of the old table's unit that `takes` names to one of the new table; false: there are none. */
static bool move_tensors(struct tensor_table *table, const struct tensor_table *old, int from, int to,
                         bool (*takes)(const struct tensor_info *tensor, int which), int which)
{
    struct unit_info *unit = &table->units[to];
    unit->first_tensor = table->num_tensors;
    for (int i = 0; i < old->units[from].num_tensors; i++) {
        const struct tensor_info *tensor = &old->tensors[old->units[from].first_tensor + i];
        ASSERT(!tensor->joined || takes(tensor, which) == takes(&tensor[-1], which));
        if (!takes(tensor, which)) continue;
        struct tensor_info *moved = &table->tensors[table->num_tensors++];
        *moved = *tensor;
        moved->unit = to;
        take_tensor(table, unit, moved);
    }
    return unit->num_tensors > 0;
}

static bool is_of_part(const struct tensor_info *tensor, int part)
{
    return role_part(tensor->role) == part;
}

/* Moves the experts of blocks to units of their own, and numbers tensors in this order. */
static void split_experts(struct tensor_table *table)
{
    static const char *const names[UNIT_PARTS] = {"", ", gate_up", ", down"};
    RELEASED(tensor_table_release) struct tensor_table old = *table;
    table->units = memory_zeroed(UNIT_PARTS * (size_t)old.num_units, sizeof *table->units);
    table->tensors = memory_zeroed((size_t)old.num_tensors, sizeof *table->tensors);
    table->num_tensors = 0;
    for (int u = 0; u < old.num_units; u++) {
        table->units[u] = (struct unit_info){.owner = u};
        memcpy(table->units[u].name, old.units[u].name, sizeof old.units[u].name);
        move_tensors(table, &old, u, u, is_of_part, UNIT_SELF);
    }
    for (int u = 0; u < old.num_units; u++) {
        for (int part = UNIT_GATE_UP, last = u; part < UNIT_PARTS; part++) {
            struct unit_info *unit = &table->units[table->num_units];
            if (!move_tensors(table, &old, u, table->num_units, is_of_part, part)) continue;
            snprintf(unit->name, sizeof unit->name, "%.16s%s", old.units[u].name, names[part]);
            unit->owner = u;
            table->units[last].next = table->num_units;
            last = table->num_units++;
            table->num_experts++;
        }
    }
    for (int i = 0; i < table->num_tensors; i++) table->tensors[i].number = i;
}

void tensor_table_build_for(const struct model_desc *desc, bool moment_blocks, struct tensor_table *table)
{
    memset(table, 0, sizeof *table);
    table->moment_blocks = moment_blocks;
    size_t units = (size_t)desc->num_layers + 2;
    const size_t of_block = COUNT_OF(BLOCK) + (desc->experts.fused ? 0 : 3 * (size_t)desc->experts.count);
    const size_t tensors = COUNT_OF(EMBEDDING) + (size_t)desc->num_layers * of_block + COUNT_OF(HEAD);
    table->units = memory_zeroed(units, sizeof *table->units);
    table->tensors = memory_zeroed(tensors, sizeof *table->tensors);
    add_unit(table, desc, (struct unit_rules){"embedding", "", EMBEDDING, COUNT_OF(EMBEDDING), NULL});
    for (int layer = 0; layer < desc->num_layers; layer++) {
        char name[32], prefix[64];
        snprintf(name, sizeof name, "block %d", layer);
        snprintf(prefix, sizeof prefix, "%s.%d.", blocks_name(desc->family), layer);
        add_unit(table, desc, (struct unit_rules){name, prefix, BLOCK, COUNT_OF(BLOCK), &desc->layers[layer]});
    }
    add_unit(table, desc, (struct unit_rules){"head", "", HEAD, COUNT_OF(HEAD), NULL});
    ASSERT((size_t)table->num_units == units);
    if (desc->experts.count) split_experts(table);
}

/* Appends those of `added` that belong to the unit; number: of the first one. */
static void add_tensors(struct tensor_table *table, int to, const struct tensor_info *added, int num_added, int number)
{
    for (int i = 0; i < num_added; i++) {
        if (added[i].unit != to) continue;
        struct tensor_info *tensor = &table->tensors[table->num_tensors++];
        *tensor = added[i];
        tensor->number = number + i;
        if (tensor->ndim < 3) tensor->shape[2] = 1;
        tensor->numel = tensor->shape[0] * tensor->shape[1] * tensor->shape[2];
        tensor->zero_row = -1;
        table->num_params += tensor->numel;
        take_tensor(table, &table->units[to], tensor);
    }
}

static bool is_kept_frozen(const struct tensor_info *tensor, int frozen)
{
    return tensor->frozen == frozen;
}

void tensor_table_freeze(struct tensor_table *table, bool (*is_frozen)(void *context, const struct tensor_info *tensor),
                         void *context, const struct tensor_info *added, int num_added)
{
    RELEASED(tensor_table_release) struct tensor_table old = *table;
    ASSERT(old.num_frozen == 0);
    table->units = memory_zeroed(2 * (size_t)old.num_units, sizeof *table->units);
    table->tensors = memory_zeroed((size_t)(old.num_tensors + num_added), sizeof *table->tensors);
    table->num_tensors = 0;
    for (int i = 0; i < old.num_tensors; i++) {
        old.tensors[i].frozen = is_frozen(context, &old.tensors[i]);
        table->frozen_params += old.tensors[i].frozen ? old.tensors[i].numel : 0;
    }
    for (int u = 0; u < old.num_units; u++) {
        table->units[u] = (struct unit_info){.next = old.units[u].next, .owner = old.units[u].owner};
        memcpy(table->units[u].name, old.units[u].name, sizeof old.units[u].name);
        move_tensors(table, &old, u, u, is_kept_frozen, false);
        add_tensors(table, u, added, num_added, old.num_tensors);
    }
    for (int u = 0; u < old.num_units; u++) {
        struct unit_info *unit = &table->units[table->num_units];
        if (!move_tensors(table, &old, u, table->num_units, is_kept_frozen, true)) continue;
        snprintf(unit->name, sizeof unit->name, "%.23s, frozen", old.units[u].name);
        unit->owner = old.units[u].owner;
        table->units[u].frozen = table->num_units++;
        table->num_frozen++;
    }
}

void tensor_table_release(struct tensor_table *table)
{
    free(table->units);
    free(table->stored);
    free(table->tensors);
    memset(table, 0, sizeof *table);
}

void tensor_base_prefix(enum model_family family, char *prefix, size_t size)
{
    const char *blocks = blocks_name(family);
    snprintf(prefix, size, "%.*s", (int)strcspn(blocks, "."), blocks);
}

bool tensor_units_alike(const struct tensor_table *table, int a, int b)
{
    const struct unit_info *one = &table->units[a], *other = &table->units[b];
    bool alike = one->num_tensors == other->num_tensors && one->numel == other->numel;
    for (int i = 0; alike && i < one->num_tensors; i++) {
        const struct tensor_info *x = &table->tensors[one->first_tensor + i];
        const struct tensor_info *y = &table->tensors[other->first_tensor + i];
        alike = x->offset == y->offset && x->numel == y->numel;
    }
    return alike;
}

static bool unit_is_trained(const struct tensor_table *table, int unit)
{
    const struct unit_info *info = &table->units[unit];
    return info->num_tensors > 0 || (info->next && unit_is_trained(table, info->next));
}

int tensor_table_first_trained(const struct tensor_table *table)
{
    int unit = 0;
    while (!unit_is_trained(table, unit)) unit++;
    return unit;
}

const struct tensor_info *tensor_find_part(const struct tensor_table *table, int unit, enum tensor_role role,
                                           enum tensor_part part)
{
    ASSERT(unit >= 0 && unit < table->num_units);
    const struct unit_info *info = &table->units[unit];
    const struct tensor_info *tensors = table->tensors + info->first_tensor, *found = NULL;
    for (int i = 0; i < info->num_tensors; i++)
        if (tensors[i].role == role && tensors[i].part == part) return &tensors[i];
    if (info->frozen) found = tensor_find_part(table, info->frozen, role, part);
    return !found && info->next ? tensor_find_part(table, info->next, role, part) : found;
}

const struct tensor_info *tensor_find(const struct tensor_table *table, int unit, enum tensor_role role)
{
    return tensor_find_part(table, unit, role, PART_BASE);
}

const char *shape_text(int ndim, const int64_t *shape, char text[SHAPE_TEXT])
{
    int used = 0;
    for (int d = 0; d < ndim; d++)
        used += snprintf(text + used, SHAPE_TEXT - (size_t)used, "%s%" PRId64, d ? ", " : "(", shape[d]);
    snprintf(text + used, SHAPE_TEXT - (size_t)used, ndim ? ")" : "()");
    return text;
}

const struct tensor_info *tensor_at(const struct tensor_table *table, int unit, int64_t offset)
{
    ASSERT(unit >= 0 && unit < table->num_units && offset >= 0);
    const struct tensor_info *tensors = table->tensors + table->units[unit].first_tensor;
    for (int i = 0; i < table->units[unit].num_tensors; i++)
        if (offset < tensors[i].offset + tensors[i].numel) return offset >= tensors[i].offset ? &tensors[i] : NULL;
    return NULL;
}

/* In [-bound, bound), in steps of bound / 2^23. */
static float init_uniform(uint64_t seed, uint64_t stream, int64_t index, float bound)
{
    const int64_t bits = (int64_t)(philox_u64(seed, stream, (uint64_t)index) >> 40);
    return (float)(bits - (1 << 23)) * 0x1p-23f * bound;
}

void tensor_init_range(const struct tensor_table *table, int tensor, uint64_t seed, int64_t first, int64_t count,
                       float *out)
{
    ASSERT(tensor >= 0 && tensor < table->num_tensors);
    const struct tensor_info *info = &table->tensors[tensor];
    ASSERT(first >= 0 && count >= 0 && first + count <= info->numel);
    const uint64_t stream = 0x696e697400000000u /* "init" */ + (uint64_t)info->number;
    const float std = (float)info->init_std;
    if (info->init != INIT_NORMAL) {
        for (int64_t i = 0; i < count; i++)
            out[i] = info->init == INIT_UNIFORM       ? init_uniform(seed, stream, first + i, std)
                     : info->init == INIT_LOG_UNIFORM ? logf(8.005f + init_uniform(seed, stream, first + i, 7.995f))
                     : info->init == INIT_ONE         ? 1.0f
                                                      : 0.0f;
        return;
    }
    /* In pieces that stay in the cache between the generator and the scaling. */
    for (int64_t done = 0; done < count;) {
        int64_t n = count - done < 4096 ? count - done : 4096;
        philox_normal(seed, stream, first + done, n, out + done);
        for (int64_t i = done; i < done + n; i++) out[i] *= std;
        done += n;
    }
    if (info->zero_row >= 0) {
        int64_t begin = info->zero_row * info->shape[1], end = begin + info->shape[1];
        for (int64_t i = begin > first ? begin : first; i < end && i < first + count; i++) out[i - first] = 0.0f;
    }
}
