/* SPDX-License-Identifier: Apache-2.0 */
/* transformer_state.h: the transformer's state, its activations and its matrices, below all of its files:
 *
 *   generate.c               a sequence that grows token by token, and its keys and values
 *   transformer_new.c        creation: tensors by role, shapes of matrices; FLOPs
 *   transformer.c            the order of units in a micro-batch
 *   transformer_layout.c     where activations lie in memory (with a picture), RoPE tables
 *   transformer_prepare.c    announces the matrix products of a step and the sizes of ops to the device
 *   transformer_embedding.c  unit 0: embeddings of tokens, positions and types
 *   block_graphs.c           work of a block as graphs that are launched again
 *   transformer_block.c      units 1 … L: one block, forward and backward
 *   transformer_delta.c      a gated delta rule in the place of its attention
 *   transformer_experts.c    experts in the place of its MLP
 *   transformer_inputs.c     inputs of layers: in unit 0, and what each block makes of its own
 *   transformer_head.c       unit L+1: final norm, pooler, logits and loss in chunks of rows
 *   transformer_adapter.c    LoRA's products
 *   transformer_layers.c     matrix products and norms, as block and head use them
 *   transformer_unit.c       a unit in use: its parameters and gradients, through the four verbs
 *
 * Each file calls only those below it. Letters as in ops.h, KV, D and F those of the block's layer; W = (H + G + 2 KV)
 * D is the width of a row of q | gate | k | v (transformer_width()); I are the inputs of a layer; dt is the compute
 * dtype. */
#pragma once

#include "gpu/model/transformer.h"
#include "gpu/spans.h"

/* The matrices. q, k and v form one, and so do gate and up (fused groups of the tensor table). */
enum linear {
    LINEAR_QKV,
    LINEAR_O,
    LINEAR_UP,
    LINEAR_DOWN,
    LINEAR_DELTA_IN, /* or N = 0, as the next, where no layer has a delta rule */
    LINEAR_DELTA_O,
    LINEAR_LAYER_IN, /* of unit 0, or N = 0, as the next two */
    LINEAR_IN_GATE,
    LINEAR_IN_OUT,
    LINEAR_ROUTER,       /* of layers with experts, or N = 0; LINEAR_UP and _DOWN are of the shared one there */
    LINEAR_SHARED_SCALE, /* or N = 0 */
    LINEAR_HEAD,
    LINEAR_POOLER, /* or N = 0 */
    LINEAR_COUNT
};

struct linear_shape {
    enum tensor_role weight, bias; /* the first tensor of the group; the model may have no bias */
    int64_t N, K;
    bool in_out;
};

/* The adapters on the tensors of a matrix (transformer_adapter.c). */
struct adapter_part {
    const struct tensor_info *a, *b;
    int64_t column; /* of y, where its tensor's outputs begin */
};

struct linear_adapter {
    int count;
    struct adapter_part parts[4];
};

/* Elements; a tile of a GPU's products: see pad_vocabulary(). */
enum { VOCABULARY_ALIGN = 128 };

/* The activations that a block's backward reads, in the arena; blocks share those that are computed again. */
struct block_buffers {
    const struct layer_desc *layer;
    void *res1;           /* dt (M, C) residual stream at the block's input, the input of norm1 */
    void *norm1;          /* dt (M, C); with norms_before, as mean, rstd; else NULL */
    float *mean1, *rstd1; /* (M); mean: LayerNorm only, else NULL */
    void *qkv;            /* dt (M, W) q | (gate) | k | v; q and k after RoPE, unless qk_norm. Delta rule: in_proj's */
    void *qk;          /* dt (M, rotated_ld) q | k after their norms and RoPE (| v after its norm); qk_norm only, else
                        * NULL. A layer whose keys others read has one of its own. */
    float *q_rstd;     /* (M, H), or (M) if one norm has all heads; qk_norm only, else NULL */
    float *k_rstd;     /* (M, KV), or (M) */
    float *v_rstd;     /* (M, KV) with v_norm, else NULL */
    float *dkv;        /* (M, 2 KV D) gradients of k | v from the layers that read them; NULL: none but this one does */
    void *att;         /* dt (M, H D), or (M, Hv Dv) of a delta rule */
    void *gated;       /* dt (M, H D) att times its gate; gated_attention only */
    void *conv, *core; /* dt (M, delta_channels), (M, Hv Dv): the outputs of convolution and delta rule, or NULL */
    float *core_rstd;  /* (M, Hv) of the norm of core */
    float *lse;        /* (H, M) */
    void *res2;        /* dt (M, C) residual stream after attention, the input of norm2 */
    void *norm2;       /* dt (M, C); with second_norm, as mean, rstd; else NULL */
    float *mean2, *rstd2; /* (M) */
    void *inner;          /* dt (M, F) before GELU, or (M, 2F) gate | up */
    void *hidden;         /* dt (M, F) the input of the down matrix */
    /* of a layer with experts, else NULL; inner has k rows of 2 I elements for a token there, and hidden is NULL. With
     * experts that R ranks share inner and places are of R · M tokens, and offsets of this rank's experts. */
    float *probs, *weights, *router_lse;             /* (M, E), (M, k), (M): the last with z_coef only */
    int32_t *choices, *offsets, *places;             /* (M, k), (E + 1), (M · k) */
    float *all_weights;                              /* with experts that R ranks share, of their tokens: (R · M, k) */
    void *shared_inner, *shared_hidden, *shared_out; /* dt (M, 2F), (M, F), (M, C): the last with shared_gate only */
    float *shared_scale;                             /* (M) the same */
    void *out1, *out2;    /* dt (M, C) with norms after, else NULL: the inputs of these norms, which are attention's and
                           * the MLP's output, or (NORM_AFTER_RESIDUAL) the residual stream with it */
    float *post1, *post2; /* (M) rstd of these norms */
    /* with layer_inputs, else NULL */
    void *res3;                     /* dt (M, C) residual stream after the MLP */
    void *in_gate, *in_act;         /* dt (M, I) the gate, later its gradient; its GELU times the layer's input */
    void *out3;                     /* dt (M, C) what that adds, before its norm */
    float *post3;                   /* (M) rstd of that norm */
    float *post1_mean, *post2_mean; /* (M) LayerNorm only, else NULL */
};

/* Cosines and sines of the angles of a RoPE. */
struct rope_table {
    float *cosines, *sines; /* (max_position, R / 2), or NULL */
    int64_t R;              /* elements of a head */
};

/* A micro-batch on the device. (max_tokens) each; seq_start: (max_seqs + 1). */
struct input {
    int32_t *tokens, *targets, *positions, *seq_start;
    int32_t *types;       /* if the model has types, else NULL */
    uint64_t *numbers;    /* with dropout, else NULL */
    int32_t *teacher_ids; /* (max_tokens, K), as the next; NULL: no teacher */
    float *teacher_logps;
};

struct transformer {
    struct transformer_config config;
    struct device *device; /* borrowed; device->ops may change between steps (gpu/spans.h) */
    enum dtype dtype, logits_dtype;
    int64_t C, H, V, L;
    int64_t I;             /* layer_inputs of the description */
    int64_t classes;       /* what the head chooses from: V tokens, or the labels of a classifier */
    int64_t G;             /* heads of the gate between q and k: H with gated_attention, else 0 */
    int64_t sparse_layers; /* layers with experts */
    bool qk_norm;          /* q and k are normed */
    bool k_bias_free;      /* the gradient of k's bias is 0: transformer_new.c */
    bool norms_before;     /* NORM_BEFORE or NORM_BOTH */
    bool norms_after;      /* all but NORM_BEFORE */
    bool post_norm;        /* NORM_AFTER_RESIDUAL */
    bool parallel;         /* the MLP reads the block's input: res2 is of one block at a time */
    bool second_norm;      /* norm2 exists: with norms_before, unless the MLP shares norm1 */
    float eps;
    float embedding_scale;
    const struct tensor_info **tensors;    /* (L + 2, ROLE_COUNT) owned: transformer_tensor() */
    struct linear_shape *linears;          /* (L + 2, LINEAR_COUNT) owned: linear_of() */
    struct linear_adapter *adapters;       /* (L + 2, LINEAR_COUNT) owned; NULL: there are none */
    int first_trained;                     /* backward ends in this unit */
    struct adapter_part embedding_adapter; /* of the token embedding; a NULL: it has none */
    bool bias_summed[LINEAR_COUNT]; /* the op that writes the gradient of the product gives that of its bias as well */

    struct block_buffers *blocks; /* [L] owned; their memory: transformer_layout.c */
    void *delta;                  /* dt (M, max(C, H D)) forward: the next summand of the residual stream;
                                   * backward: gradients of norm outputs and of att */
    void *wide;                   /* dt (M, max(W, F, k I)) gradients of qkv, inner, hidden; experts' hidden */
    /* with experts, else NULL */
    void *router_logits;   /* dt (M, E), and their gradients */
    void *routed;          /* dt (M · k, C), or (R · M · k, C): rows of experts, their inputs or outputs */
    float *dweights;       /* (M, k), or (R · M, k) */
    float *row_weights;    /* the same by row: of experts with biases */
    float *correction;     /* (L, E) ROLE_ROUTER_CORRECTION in fp32: the caller has set it */
    int32_t *counts;       /* (E) of the micro-batch */
    double *prob_sums;     /* (E) */
    int32_t *first_choice; /* (M) 0: with shared_gate */
    /* with experts that R ranks share, else NULL */
    int32_t *all_choices, *no_choices; /* (R · M, k); (M, k) -1 */
    void *all_tokens;                 /* dt (R · M, C) their inputs or gradients, then what this rank's experts give */
    float *token_sums, *own_dweights; /* (M, C), (M, k): what all give */
    void *token_inbox;                /* dt (R · M, C) on a GPU, where ranks put what these add up */
    void *dconv;                      /* dt (M, delta_channels) gradient of conv, or NULL */
    void *dkv;                        /* dt (M, 2 KV D) with v_norm: gradients of k | v */
    void *zeros;                      /* dt (D) the weight of v's norm, whose offset is 1 */
    void *layer_in;                   /* dt (M, L I) the inputs of layers; backward writes their gradients over them */
    void *projected;                  /* dt (M, L I) the product in them, before its norm; evaluation: wide */
    float *projected_rstd;            /* (M, L) */
    void *dres;                       /* dt (M, C) gradient of the residual stream; training only */
    float *dres_sums; /* (C) sums of dres over rows, the gradient of the bias of the down matrix of the block
                       * before; where a norm gives it, else NULL */
    void *dbranch;    /* dt (M, C) gradient of what attention or MLP adds to it; where that is not dres */
    void *final_res, *final_norm; /* dt (M, C) input and output of the final norm; with post_norm final_norm is the
                                   * last block's output, and the others are not used */
    float *final_mean, *final_rstd;
    /* embedding_norm only, else NULL */
    void *embedded;                       /* dt (M, C) the sum of the embeddings */
    float *embedded_mean, *embedded_rstd; /* (M) */
    void *embedding_norm_weight;          /* dt (C) as forward read it: backward does not acquire unit 0 */
    /* pooler only, else NULL */
    void *pooled; /* dt (chunk, C) tanh of the pooler's product */
    void *kept;   /* dt (chunk, C) the same after dropout; backward: gradients */
    void *logits; /* logits_dtype (chunk, ld_logits); their gradients are written over them */
    int64_t chunk, ld_logits;
    float *row_losses, *row_scale; /* (M) with config.sequences, else NULL */
    int64_t most_lora_rank;        /* of the adapters of a matrix together */
    void *lora_xa, *lora_dxa;      /* dt (M, most_lora_rank), or (M · k, r) of experts; lora_dxa: training only */
    void *lora_x;                  /* dt (M, K) the input of an adapter after dropout, where there is such */
    struct rope_table rope, local_rope;
    struct rope_table query_rope; /* rope times what queries are multiplied by, if that is not 1 everywhere */
    struct input *inputs;         /* [num_inputs] owned; their arrays lie in the arena, in one piece */
    int num_inputs;
    char *input_memory;
    size_t input_bytes;

    struct block_graphs *graphs; /* owned; NULL unless config.graphs_by_block */
    bool replays;                /* transformer_replay() */
};

/* Ranks that have all experts between them. */
static inline int64_t transformer_expert_ranks(const struct transformer *t)
{
    return t->config.expert_parallel > 1 ? t->config.expert_parallel : 1;
}

/* The tensor of that role in a unit of the model; NULL: it has none. */
static inline const struct tensor_info *transformer_tensor(const struct transformer *t, int unit, enum tensor_role role)
{
    return role == ROLE_COUNT ? NULL : t->tensors[unit * ROLE_COUNT + (int)role];
}

/* The shape of a matrix in a unit. That of the head's is in every unit: a tied one is in unit 0. */
static inline const struct linear_shape *linear_of(const struct transformer *t, int unit, enum linear which)
{
    return &t->linears[unit * LINEAR_COUNT + (int)which];
}

/* Whether attention reads the layer's own keys and values. */
static inline bool transformer_owns_kv(const struct transformer *t, const struct layer_desc *layer)
{
    return layer->kv_source == layer - t->config.desc->layers;
}

/* Elements of a row of q | gate | k | v. */
static inline int64_t transformer_width(const struct transformer *t, const struct layer_desc *layer)
{
    const int64_t products = !transformer_owns_kv(t, layer) ? 0 : layer->v_is_k ? 1 : 2;
    return (t->H + t->G + products * layer->num_kv_heads) * layer->head_dim;
}

/* The matrix whose product attention, or the delta rule in its place, adds to the residual stream. */
static inline enum linear transformer_mixes(const struct layer_desc *layer)
{
    return layer->delta ? LINEAR_DELTA_O : LINEAR_O;
}

/* The blocks before `block` with a delta rule: its place in a cache. */
static inline int64_t transformer_place(const struct transformer *t, int64_t block)
{
    int64_t place = 0;
    for (int64_t other = 0; other < block; other++) place += t->config.desc->layers[other].delta;
    return place;
}

/* The elements of a token's keys in a cache that come before those of `block`; L: of all. */
static inline int64_t transformer_keys_before(const struct transformer *t, int64_t block)
{
    const struct layer_desc *layers = t->config.desc->layers;
    int64_t elements = 0;
    for (const struct layer_desc *layer = layers; layer < layers + block; layer++)
        if (!layer->delta && transformer_owns_kv(t, layer)) elements += layer->num_kv_heads * layer->head_dim;
    return elements;
}

/* Whether the MLP has a gate. */
static inline bool transformer_gates(const struct transformer *t)
{
    return mlp_is_gated(t->config.desc->mlp);
}

/* Whether backward computes SwiGLU or GeGLU of `inner` again. Forward then uses the same op, not the product's, which
 * may take gate and up before they are rounded. */
static inline bool transformer_gates_again(const struct transformer *t)
{
    const enum recompute policy = t->config.settings.recompute;
    return transformer_gates(t) && (policy == RECOMPUTE_MLP || policy == RECOMPUTE_ATTENTION);
}

/* Whether anything is dropped in training. */
static inline bool transformer_drops(const struct transformer *t)
{
    const struct dropout_rates *rates = &t->config.dropout;
    return t->config.training && (rates->embedding > 0 || rates->attention > 0 || rates->residual > 0 ||
                                  rates->pooled > 0 || t->config.lora_dropout > 0);
}

/* The address of a row of `width` elements of dt. */
static inline void *row_at(const struct transformer *t, void *base, int64_t row, int64_t width)
{
    return (char *)base + (size_t)(row * width) * dtype_size(t->dtype);
}
