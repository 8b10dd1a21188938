/* model_compare.c: whether two model descriptions compute the same. One table has the fields and their keys in
 * config.json.
 *
 * The table leaves out what a resumed run may change: the initialisation of weights (initializer_range, padding_token),
 * the dtype of files, max_positions with RoPE (where it is a limit; in GPT-2 it is the number of rows of wpe), notices
 * and the source. It also leaves out what follows from model_type and attention_bias: norm, mlp, weights_in_out,
 * fused_qkv, fused_gate_up, o_bias, qk_norm. Descriptions are compared, not files, so that the different keys of
 * transformers 4 and 5 are equivalent. */
#include "core/spec/model_compare.h"

#include "core/spec/spec.h"

#include <math.h>

enum field_type {
    FIELD_FAMILY,
    FIELD_INT,
    FIELD_REAL,
    FIELD_BOOL,
    FIELD_ROPE_TYPE,
    FIELD_WINDOWS,
    FIELD_ROPE_LAYERS,
    FIELD_ROTARY_DIM,
    FIELD_SCALE,
    FIELD_QUERY_SCALE,
    FIELD_ACTIVATION,
    FIELD_POSITIONS
};

/* clang-format off */
static const struct field {
    const char *key, *gpt2_key; /* in config.json; NULL: not a matter of this family. Keys of BERT only are absent in
                                 * the descriptions of others */
    enum field_type type;
    size_t offset; /* in struct model_desc */
} FIELDS[] = {
#define FIELD(key, gpt2_key, type, member) {key, gpt2_key, FIELD_##type, offsetof(struct model_desc, member)}
    FIELD("model_type", "model_type", FAMILY, family),
    FIELD("vocab_size", "vocab_size", INT, vocab_size),
    FIELD("hidden_size", "n_embd", INT, hidden_size),
    FIELD("intermediate_size", "n_inner", INT, intermediate_size),
    FIELD("num_hidden_layers", "n_layer", INT, num_layers),
    FIELD("num_attention_heads", "n_head", INT, num_heads),
    FIELD("num_key_value_heads", NULL, INT, num_kv_heads),
    FIELD("head_dim", NULL, INT, head_dim),
    FIELD(NULL, "n_positions", INT, max_positions),
    FIELD("max_position_embeddings", NULL, POSITIONS, max_positions),
    FIELD("rms_norm_eps", "layer_norm_epsilon", REAL, norm_eps),
    FIELD("type_vocab_size", NULL, INT, num_types),
    FIELD("hidden_act", NULL, ACTIVATION, mlp),
    FIELD("attention_bias", NULL, BOOL, qkv_bias),
    FIELD("mlp_bias", NULL, BOOL, mlp_bias),
    FIELD("tie_word_embeddings", "tie_word_embeddings", BOOL, tied),
    FIELD("num_labels", "num_labels", INT, num_labels),
    FIELD("sliding_window", NULL, WINDOWS, layers),
    FIELD("no_rope_layers", NULL, ROPE_LAYERS, layers),
    FIELD("rope_theta", NULL, REAL, rope.theta),
    FIELD("rope_type", NULL, ROPE_TYPE, rope.kind),
    FIELD("rope_scaling.factor", NULL, REAL, rope.factor),
    FIELD("low_freq_factor", NULL, REAL, rope.low_freq_factor),
    FIELD("high_freq_factor", NULL, REAL, rope.high_freq_factor),
    FIELD("original_max_position_embeddings", NULL, INT, rope.original_max_positions),
    FIELD("beta_fast", NULL, REAL, rope.beta_fast),
    FIELD("beta_slow", NULL, REAL, rope.beta_slow),
    FIELD("truncate", NULL, BOOL, rope.untruncated),
    FIELD("attention_factor", NULL, REAL, rope.attention_factor),
    FIELD("rope_local_base_freq", NULL, REAL, local_rope.theta),
    FIELD("sliding_attention.rope_type", NULL, ROPE_TYPE, local_rope.kind),
    FIELD("sliding_attention.factor", NULL, REAL, local_rope.factor),
    FIELD("sliding_attention.low_freq_factor", NULL, REAL, local_rope.low_freq_factor),
    FIELD("sliding_attention.high_freq_factor", NULL, REAL, local_rope.high_freq_factor),
    FIELD("sliding_attention.original_max_position_embeddings", NULL, INT, local_rope.original_max_positions),
    FIELD("sliding_attention.beta_fast", NULL, REAL, local_rope.beta_fast),
    FIELD("sliding_attention.beta_slow", NULL, REAL, local_rope.beta_slow),
    FIELD("sliding_attention.truncate", NULL, BOOL, local_rope.untruncated),
    FIELD("sliding_attention.attention_factor", NULL, REAL, local_rope.attention_factor),
    FIELD("partial_rotary_factor", NULL, ROTARY_DIM, rotary_dim),
    FIELD("embedding_multiplier", NULL, REAL, embedding_multiplier),
    FIELD("residual_multiplier", NULL, REAL, residual_multiplier),
    FIELD("attention_multiplier", NULL, SCALE, attention_scale),
    FIELD("query_pre_attn_scalar", NULL, QUERY_SCALE, attention_scale),
    FIELD("attn_logit_softcapping", NULL, REAL, attention_softcap),
    FIELD("final_logit_softcapping", NULL, REAL, logit_softcap),
    FIELD("logits_scaling", NULL, REAL, logit_multiplier),
#undef FIELD
};
/* clang-format on */

/* Whether the config has query_pre_attn_scalar instead of a multiplier. */
static bool is_gemma(const struct model_desc *desc)
{
    return desc->family == FAMILY_GEMMA2 || desc->family == FAMILY_GEMMA3;
}

/* The window that all layers have, a list if they differ, NULL if there is none. */
static json_t *windows_of(const struct model_desc *desc)
{
    json_t *list = json_array();
    bool alike = true;
    for (int64_t i = 0; i < desc->num_layers; i++) {
        alike &= desc->layers[i].window == desc->layers[0].window;
        json_array_append_new(list, json_integer(desc->layers[i].window));
    }
    if (!alike)
        return list;
    json_decref(list);
    return desc->layers[0].window ? json_integer(desc->layers[0].window) : NULL;
}

/* 1 for each layer with RoPE, 0 for one without; NULL if all have it. */
static json_t *rope_layers_of(const struct model_desc *desc)
{
    json_t *list = json_array();
    bool all = true;
    for (int64_t i = 0; i < desc->num_layers; i++) {
        all &= !desc->layers[i].no_rope;
        json_array_append_new(list, json_integer(!desc->layers[i].no_rope));
    }
    if (!all)
        return list;
    json_decref(list);
    return NULL;
}

/* New reference; NULL where there is none: numbers are 0 then. */
static json_t *value_of(const struct model_desc *desc, const struct field *field)
{
    static const char *const ROPE_TYPES[] = {[ROPE_NONE] = "none",
                                             [ROPE_PLAIN] = "default",
                                             [ROPE_LINEAR] = "linear",
                                             [ROPE_LLAMA3] = "llama3",
                                             [ROPE_YARN] = "yarn"};
    static const char *const ACTIVATIONS[] = {
        [MLP_GELU] = "gelu_new", [MLP_GELU_ERF] = "gelu", [MLP_SWIGLU] = "silu", [MLP_GEGLU] = "gelu_pytorch_tanh"};
    const void *member = (const char *)desc + field->offset;
    switch (field->type) {
    case FIELD_FAMILY: return json_string(model_family_name(*(const enum model_family *)member));
    case FIELD_INT: return *(const int64_t *)member ? json_integer(*(const int64_t *)member) : NULL;
    case FIELD_REAL: return *(const double *)member != 0 ? json_real(*(const double *)member) : NULL;
    case FIELD_BOOL: return json_boolean(*(const bool *)member);
    case FIELD_ROPE_TYPE: return json_string(ROPE_TYPES[*(const enum rope_kind *)member]);
    case FIELD_ACTIVATION: return json_string(ACTIVATIONS[*(const enum mlp_kind *)member]);
    case FIELD_POSITIONS: /* the rows of an embedding, or only a limit */
        return desc->rope.kind == ROPE_NONE ? json_integer(*(const int64_t *)member) : NULL;
    case FIELD_WINDOWS: return windows_of(desc);
    case FIELD_ROPE_LAYERS: return rope_layers_of(desc);
    /* these two follow from head_dim, unless the config says otherwise */
    case FIELD_ROTARY_DIM:
        return desc->rotary_dim == desc->head_dim ? NULL : json_real((double)desc->rotary_dim / (double)desc->head_dim);
    case FIELD_SCALE:
        return is_gemma(desc) || desc->attention_scale == 1 / sqrt((double)desc->head_dim)
                   ? NULL
                   : json_real(desc->attention_scale);
    case FIELD_QUERY_SCALE:
        return is_gemma(desc) ? json_real(rint(1 / (desc->attention_scale * desc->attention_scale))) : NULL;
    }
    return NULL;
}

void model_desc_compare(const struct model_desc *was, const struct model_desc *now, struct string_list *differences)
{
    for (size_t i = 0; i < COUNT_OF(FIELDS); i++) {
        const struct field *field = &FIELDS[i];
        const char *key = now->family == FAMILY_GPT2 ? field->gpt2_key : field->key;
        if (!key)
            continue;
        json_t *old = value_of(was, field), *new = value_of(now, field);
        if (old != new && !json_equal(old, new))
            spec_add_difference(differences, key, " of the model", old, new, true);
        json_decref(old);
        json_decref(new);
    }
}
