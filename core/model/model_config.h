/* SPDX-License-Identifier: Apache-2.0 */
/* model_config.h: a description of a model, in the names of Hugging Face's config.json.
 *
 * A feature that a config asks for and ztrain does not have is refused (STATUS_USAGE) or noted (a line in `notices`),
 * never ignored. A damaged config.json is STATUS_DATA. */
#pragma once

#include "core/training/settings.h"

#include <jansson.h>

__BEGIN_DECLS

#define MODEL_FAMILIES(X) \
    X(GPT2)               \
    X(LLAMA)              \
    X(MISTRAL)            \
    X(QWEN2)              \
    X(QWEN3)              \
    X(PHI3)               \
    X(GRANITE)            \
    X(SMOLLM3)            \
    X(OLMO2)              \
    X(OLMO3)              \
    X(BERT)               \
    X(GEMMA2)             \
    X(GEMMA3)             \
    X(GLM)                \
    X(GLM4)               \
    X(MINISTRAL3)         \
    X(GPTJ)               \
    X(GPT_NEOX)           \
    X(PHI)                \
    X(COHERE)             \
    X(COHERE2)            \
    X(STARCODER2)         \
    X(EXAONE4)            \
    X(SEED_OSS)           \
    X(QWEN3_5)            \
    X(GEMMA4)             \
    X(QWEN3_MOE)          \
    X(QWEN2_MOE)          \
    X(MIXTRAL)            \
    X(OLMOE)              \
    X(GRANITE_MOE)        \
    X(GPT_OSS)            \
    X(GLM4_MOE)

#define MODEL_FAMILY(name) FAMILY_##name,
enum model_family { MODEL_FAMILIES(MODEL_FAMILY) FAMILY_COUNT };
enum model_task { TASK_CAUSAL_LM, TASK_SEQUENCE_CLASSIFICATION, TASK_REWARD };
enum norm_kind { NORM_LAYER, NORM_RMS };
/* Where a block has its norms: on the input of attention and MLP; on their output (OLMo); on both (Gemma); or on the
 * sum of input and output, with no norm left for the end (BERT). */
enum norm_place { NORM_BEFORE, NORM_AFTER, NORM_BOTH, NORM_AFTER_RESIDUAL };
/* What the MLP reads: the residual stream with what attention added, or the block's input, as attention does, through a
 * norm of its own (GPT-NeoX) or through that of attention (GPT-J, Phi-2, Cohere). */
enum residual_kind { RESIDUAL_IN_TURN, RESIDUAL_PARALLEL, RESIDUAL_PARALLEL_ONE_NORM };
/* RMSNorm of q and k before RoPE: of every head (Qwen3, Gemma 3), or over all heads together (OLMo). */
enum qk_norm_kind { QK_NORM_NONE, QK_NORM_HEADS, QK_NORM_PROJECTION };
enum mlp_kind {
    MLP_GELU,     /* gelu_new (tanh form), two matrices */
    MLP_GELU_ERF, /* gelu (erf form), two matrices */
    MLP_SWIGLU,   /* silu(gate) · up, three matrices */
    MLP_GEGLU     /* gelu_new(gate) · up, three matrices */
};
static inline bool mlp_is_gated(enum mlp_kind kind)
{
    return kind == MLP_SWIGLU || kind == MLP_GEGLU;
}
#define ROPE_LIST(X)                                \
    X(NONE, "none") /* learned positions instead */ \
    X(PLAIN, "default")                             \
    X(LINEAR, "linear")                             \
    X(LLAMA3, "llama3")                             \
    X(YARN, "yarn")                                 \
    X(DYNAMIC, "dynamic")                           \
    X(LONGROPE, "longrope")                         \
    X(PROPORTIONAL, "proportional")
#define ROPE_ENTRY(name, word) ROPE_##name,
enum rope_kind { ROPE_LIST(ROPE_ENTRY) };

struct rope_desc {
    enum rope_kind kind;
    double theta;
    int64_t dim;                              /* of a head the first elements, which it turns */
    double factor;                            /* linear, llama3, yarn, dynamic, proportional */
    double share;                             /* proportional: of the pairs; the others are not turned */
    double low_freq_factor, high_freq_factor; /* llama3 */
    int64_t original_max_positions;           /* all but linear; dynamic: max_positions */
    double beta_fast, beta_slow;              /* yarn: turns within the original length */
    bool untruncated;                         /* yarn: the bounds of the blend are not rounded to whole pairs */
    double attention_factor;                  /* multiplies cosines and sines: 1 but for yarn and longrope */
    /* Ministral 3, else 0: queries times 1 + query_beta · log(1 + position / original_max_positions), rounded down */
    double query_beta;
    json_t *short_factor, *long_factor; /* longrope: owned; rotary_dim / 2 numbers */
};

/* What may differ from layer to layer. */
struct layer_desc {
    int64_t window;       /* 0: none; else a query sees itself and the window-1 positions before it */
    bool no_rope;         /* q and k are not turned (SmolLM 3) */
    bool delta;           /* a gated delta rule takes the place of attention (Qwen3.5) */
    bool local_rope;      /* the description's local_rope turns them (layers with a window of Gemma 3 and OLMo 3) */
    int64_t head_dim;     /* D */
    int64_t num_kv_heads; /* KV: divides H */
    int64_t intermediate_size; /* F; with experts that of the shared one, 0 without */
    bool sparse;               /* it has experts in the place of its MLP */
    int64_t kv_source; /* the layer whose keys and values attention reads: this one, or one before, and it has none */
    bool v_is_k;       /* values are keys before their norm and RoPE: they have no matrix */
};

/* Of the layers with a gated delta rule. */
struct delta_desc {
    int64_t key_heads, value_heads; /* Hk: divides Hv */
    int64_t key_dim, value_dim;     /* Dk, Dv: of a head */
    int64_t taps;                   /* tokens of the convolution */
};

/* Channels of the convolution: q, k and v. */
static inline int64_t delta_channels(const struct delta_desc *delta)
{
    return 2 * delta->key_heads * delta->key_dim + delta->value_heads * delta->value_dim;
}

/* Of the layers with experts. */
struct experts_desc {
    int64_t count, per_token; /* E, k; E 0: no layer has experts */
    int64_t inner_size;       /* I: columns of gate and of up each */
    int64_t shared_size;      /* of the expert that every token goes to; 0: the model has none */
    bool shared_gate;         /* its output is multiplied by the sigmoid of a product of the token (Qwen2) */
    bool fused;               /* gate and up of all experts are one tensor, and down; else each expert has three */
    bool interleaved;         /* gpt-oss: (E, in, out) with the columns gate, up, gate, up, …, biases, and a limit */
    double limit, alpha;
    /* the router, as gpu/ops.h has it (route_args) */
    bool sigmoid; /* with a bias of the choice, which is not trained (GLM-4, DeepSeek-V3) */
    bool normalize;
    double scale;
    int64_t groups, top_groups; /* 1: none */
    bool has_aux;               /* output_router_logits: aux_coef · the load balancing loss is added to the loss */
    double aux_coef, z_coef;    /* z_coef: of the mean square of the routers' log-sum-exp; 0: none */
};

/* Rates of dropout in training, 0 … 1; 0: none. */
struct dropout_rates {
    double embedding; /* GPT-2: of the sum of the embeddings; BERT: of its norm */
    double attention; /* of the weights after the softmax */
    double residual;  /* GPT-2, BERT: of the outputs of attention and MLP */
    double pooled;    /* BERT: of the pooler's output */
};

struct model_desc {
    enum model_family family;
    int64_t vocab_size;        /* V */
    int64_t hidden_size;       /* C */
    int64_t intermediate_size; /* F: columns of the inner layer (of gate and up each); as KV and D, of usual layers */
    int64_t num_layers;        /* L */
    int64_t num_heads;         /* H */
    int64_t num_kv_heads;      /* KV: divides H */
    int64_t head_dim;          /* D */
    int64_t rotary_dim;        /* the first elements of a head are turned by RoPE; even; 0: learned positions */
    int64_t max_positions;     /* P: longest sequence; rows of wpe where positions are learned */
    int64_t num_types;         /* S: rows of the embedding of token types (segments); 0: there is none */
    bool bidirectional;        /* attention sees all tokens of a sequence, not only those before */
    bool embedding_norm;       /* the sum of the embeddings is normed */
    bool pooler; /* a classifier has biases, and predicts from the first token by a matrix and tanh; else the last */
    enum norm_kind norm;
    enum norm_place norm_place;
    bool norm_bias;
    enum residual_kind residual;
    double norm_eps;
    double norm_offset; /* added to the weights of all norms: 1 in Gemma, else 0 */
    enum mlp_kind mlp;
    bool weights_in_out; /* GPT-2's Conv1D: matrices of blocks are stored (in, out); else (out, in) */
    bool fused_qkv;      /* q, k and v are one tensor (GPT-2, Phi-3) */
    bool qkv_by_head;    /* which has q, k and v of the first head, then those of the second, … (GPT-NeoX) */
    bool fused_gate_up;  /* gate and up are one tensor (Phi-3) */
    bool qkv_bias, o_bias, mlp_bias;
    bool gated_attention; /* q's matrix has the rows of a head's q, then those of its gate: attention · sigmoid(gate) */
    struct delta_desc delta; /* taps 0: no layer has one */
    struct experts_desc experts;
    bool sinks;        /* a logit of each head joins the softmax, and its share is dropped (gpt-oss) */
    bool v_norm;       /* values go through an RMSNorm of heads without a weight */
    bool layer_scalar; /* a block's output is multiplied by a number in the folder, which is not trained */
    /* Each layer adds a gate of `layer_inputs` elements of the token, which come from an embedding of layer_vocab rows
     * and a matrix on the model's input; 0: none does. */
    int64_t layer_inputs, layer_vocab;
    bool head_bias; /* of a language model's head (GPT-J, Phi-2) */
    enum qk_norm_kind qk_norm;
    bool tied;       /* the head uses the token embedding as its matrix */
    bool rope_pairs; /* RoPE turns elements 2i and 2i + 1; else i and i + rotary_dim / 2 */
    struct rope_desc rope;
    struct rope_desc local_rope; /* of the layers that have it; ROPE_NONE: no layer has */
    struct layer_desc *layers;   /* [L] owned */
    double embedding_multiplier; /* of the embedding's rows; 1 but for Granite and Gemma */
    bool embedding_rounds;       /* the multiplier is rounded to the compute dtype before it is used (Gemma) */
    double residual_multiplier;  /* of what attention and MLP add to the residual stream; 1, as the next, but Granite */
    double logit_multiplier;     /* of the logits */
    double logit_softcap;        /* c: the logits become c · tanh(logit / c); 0: none, as the next, but for Gemma */
    double attention_softcap;    /* the same of the scores of attention */
    double attention_scale;      /* of the scores: 1/sqrt(D), unless the config has another */
    double initializer_range;
    bool scale_residual_init; /* GPT-2: c_proj weights ~ N(0, initializer_range / sqrt(2 L)) */
    bool has_torch_dtype;
    enum dtype torch_dtype;
    struct quantization_settings quantization; /* of the folder's weights; its list is owned */
    int64_t num_labels; /* rows of a classifier's head; 0: a language model, or a model without a head */
    bool new_head;      /* model_desc_classify() made it a classifier: folders of this config have no head for it */
    struct dropout_rates dropout;
    int64_t padding_token; /* pad_token_id, but GPT-2's: its embedding starts as zeros; -1: none */
    bool trains_padding;   /* its embedding gets a gradient from the lookup; else from a tied head only */
    bool multimodal;       /* the text model of a folder that takes images too, which `source` describes as a whole */
    json_t *source;        /* config.json as it was read (owned), for export */
    struct string_list notices; /* lines for the user ("logit_scale 2: this key has no effect") */
};

/* Reads config.json at `path` (a file, or a folder with one; at most 1 MiB). On success *desc owns its members. */
enum status model_desc_load(const char *path, struct model_desc *desc, struct error *err);

/* For a supervisor: model_desc_load() of this path reads the same text from now on (core/kept_files.h). */
enum status model_desc_keep(const char *path, struct error *err);

/* model_desc_load() from parsed JSON (borrowed); `where` names the source in messages. */
enum status model_desc_from_json(const json_t *config, const char *where, struct model_desc *desc, struct error *err);

/* The same from a run spec's model.config: a misspelt key is an error, not a notice, and faults are STATUS_USAGE. */
enum status model_desc_from_spec(const json_t *config, struct model_desc *desc, struct error *err);

void model_desc_release(struct model_desc *desc);

/* The name that a tensor of a multimodal folder's text model has in the classes of transformers 5, and in the tensor
 * table: "model.language_model.norm.weight", "lm_head.weight". It is in `out`, or `name`. Whether it is such a name. */
const char *model_multimodal_name(const char *name, char *out, size_t size);
bool model_multimodal_is_text(const char *name);

/* Whether the family's classifier is supported: the family's blocks and the matrix `score`, or BERT's. */
bool model_family_classifies(enum model_family family);
#define MODEL_CLASSIFYING_FAMILIES                                                                                \
    "gpt2, llama, mistral, qwen2, qwen3, phi3, smollm3, bert, gemma2, gemma3_text, glm, glm4, ministral3, gptj, " \
    "gpt_neox, phi, starcoder2, exaone4 and seed_oss"

/* STATUS_USAGE, with a hint, if the description cannot be trained as a causal language model: it looks both ways. */
enum status model_desc_check_causal(const struct model_desc *desc, struct error *err);

/* Makes the description of a language model that of a classifier with num_labels labels, LABEL_0, LABEL_1, …: the head
 * is the matrix `score` (BERT: `classifier`), untied, and the source gets architectures, id2label, label2id and
 * pad_token_id (by default the end-of-text token; without one a notice). STATUS_USAGE: it is a classifier with another
 * number of labels, or the family does not classify. */
enum status model_desc_classify(struct model_desc *desc, int64_t num_labels, struct error *err);

/* Gives a classifier the names of `id2label`. STATUS_USAGE: the source has other names than LABEL_0, LABEL_1, …. */
enum status model_desc_name_labels(struct model_desc *desc, const json_t *id2label, struct error *err);

/* The id of the token that transformers takes for padding in a classifier's input; -1: none. */
int64_t model_desc_padding(const struct model_desc *desc);

/* The id of the token whose embedding gets no gradient from the lookup; -1: none. */
int64_t model_desc_untrained_token(const struct model_desc *desc);

/* "LlamaForSequenceClassification"; in other causal folders: "LlamaForCausalLM", "GPT2LMHeadModel". */
enum { MODEL_CLASS_MAX = 64 };
void model_desc_class(const struct model_desc *desc, char name[MODEL_CLASS_MAX]);

/* Sets all rates that the family has; the notices no longer speak of dropout. */
void model_desc_set_dropout(struct model_desc *desc, double rate);

/* What a run says about its routers' losses in place of config.json: aux 1: there is the auxiliary loss, 0: there is
 * none, -1: as the config says; aux_coef < 0: as it says. STATUS_USAGE: the model does not have such a loss. */
enum status model_desc_set_router_losses(struct model_desc *desc, int aux, double aux_coef, double z_coef,
                                         struct error *err);

/* "gpt2", "llama", …: config.json's model_type */
const char *model_family_name(enum model_family family);

/* The source's keys without quantization_config, with architectures, model_type and the dtype of the written weights
 * ("torch_dtype" if the source used that name, else "dtype"). Caller decrefs. */
json_t *model_desc_export_config(const struct model_desc *desc, enum dtype dtype);

/* inv_freq (rotary_dim / 2): inverse frequencies with scaling, in transformers' roundings to float32. The longest
 * sequence has `length` positions: beyond the original length, which model_rope_is_stretched() tells, dynamic and
 * longrope have other frequencies, at every position. */
void model_rope_frequencies(const struct rope_desc *rope, int64_t rotary_dim, int64_t length, float *inv_freq);
bool model_rope_is_stretched(const struct rope_desc *rope, int64_t length);

/* The most positions that a sequence may have. */
int64_t model_desc_longest(const struct model_desc *desc);

__END_DECLS
