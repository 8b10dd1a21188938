/* SPDX-License-Identifier: Apache-2.0 */
/* spec_compare.c: whether a resumed run is the one that began: its spec, and what its model computes. */
#include "core/memory.h"
#include "core/spec/spec_keys.h"

#include <math.h>
#include <stdlib.h>

/* Appends "'KEY'OF was 1 in the checkpoint and is 2 now" (NULL: unset); refused: with the reason and a hint. */
static void add_spec_difference(struct string_list *list, const char *key, const char *of, const json_t *was,
                                const json_t *now, bool refused)
{
    const char *why =
        refused ? ": that would change the run; hint: set it back, or start a new run under another run.name" : "";
    char *old = spec_json_text(was), *new = spec_json_text(now);
    char *line = memory_printf("'%s'%s was %s in the checkpoint and is %s now%s", key, of, old, new, why);
    string_list_add(list, line);
    free(line);
    free(old);
    free(new);
}

/* 10 and 10.0 are the same: other programs may have written either. */
static bool same_spec_value(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b))
        return json_number_value(a) == json_number_value(b);
    return json_equal(a, b);
}

/* What a run did whose checkpoint does not have the key, a new reference: the key's default, or what was done before
 * there was such a key. NULL: nothing. */
static json_t *compare_value_before(const struct run_spec *spec, const struct spec_key *key)
{
    if (key->offset == offsetof(struct spec_full, peft_type)) /* all weights were trained */
        return NULL;
    if (key->offset == offsetof(struct spec_full, spec.data.document_mask))
        return json_false();
    if (key->offset == offsetof(struct spec_full, spec.transformer.logits_dtype) && spec->dtype != DTYPE_F32 &&
        spec->model.task == TASK_CAUSAL_LM)
        return json_string("fp32");
    return spec_key_default(key);
}

enum status spec_compare(const struct run_spec *spec, const json_t *stored, bool same_model, bool same_data,
                         struct spec_report *report)
{
    const struct spec_full *full = spec_full(spec);
    int errors = 0;
    for (const struct spec_key *key = spec_keys; key->path; key++) {
        if (!key->size || key->resume == RESUME_SILENT)
            continue;
        /* of a run with an adapter and one without, one difference is enough */
        if (spec_adapter_has(key) && key->offset != offsetof(struct spec_full, peft_type) &&
            (!spec->adapter.on || !json_object_get(stored, "peft.peft_type")))
            continue;
        /* a schedule's length that follows from the run's is stored as unset */
        bool follows =
            key->offset == offsetof(struct spec_full, spec.scheduler.total_steps) && !full->given_total_steps;
        if (spec_auto_is_derived(full, key)) /* from the model, which is compared by itself */
            continue;
        json_t *now = follows ? NULL : spec_key_fetch(full, key), *usual = compare_value_before(spec, key);
        const json_t *was = json_object_get(stored, key->path);
        bool same =
            (!was && !now) || (was && now && same_spec_value(was, now)) || (!was && usual && json_equal(now, usual));
        bool is_data = key->offset == offsetof(struct spec_full, spec.data.train);
        bool moved = key->resume == RESUME_CONTENTS && (is_data ? same_data : same_model);
        if (!same && key->resume >= RESUME_CONTENTS && !moved) {
            add_spec_difference(&report->errors, key->path, "", was, now, true);
            errors++;
        } else if (!same) {
            add_spec_difference(&report->notices, key->path, "", was, now, false);
        }
        json_decref(usual);
        json_decref(now);
    }
    return errors ? STATUS_USAGE : STATUS_OK;
}

/* ---- the model ----------------------------------------------------------- */

/* Descriptions are compared, so that the keys of transformers 4 and 5 are equivalent. FIELDS leaves out what a resumed
 * run may change (initialisation, dtypes of files, max_positions with RoPE, where it is a limit) and what follows from
 * model_type and attention_bias. */

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
#define ROPE(prefix, factor_prefix, member) \
    FIELD(prefix "rope_type", NULL, ROPE_TYPE, member.kind), \
    FIELD(factor_prefix "factor", NULL, REAL, member.factor), \
    FIELD(prefix "low_freq_factor", NULL, REAL, member.low_freq_factor), \
    FIELD(prefix "high_freq_factor", NULL, REAL, member.high_freq_factor), \
    FIELD(prefix "original_max_position_embeddings", NULL, INT, member.original_max_positions), \
    FIELD(prefix "beta_fast", NULL, REAL, member.beta_fast), \
    FIELD(prefix "beta_slow", NULL, REAL, member.beta_slow), \
    FIELD(prefix "truncate", NULL, BOOL, member.untruncated), \
    FIELD(prefix "attention_factor", NULL, REAL, member.attention_factor)
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
    ROPE("", "rope_scaling.", rope),
    FIELD("rope_local_base_freq", NULL, REAL, local_rope.theta),
    ROPE("sliding_attention.", "sliding_attention.", local_rope),
    FIELD("partial_rotary_factor", NULL, ROTARY_DIM, rotary_dim),
    FIELD("embedding_multiplier", NULL, REAL, embedding_multiplier),
    FIELD("residual_multiplier", NULL, REAL, residual_multiplier),
    FIELD("attention_multiplier", NULL, SCALE, attention_scale),
    FIELD("query_pre_attn_scalar", NULL, QUERY_SCALE, attention_scale),
    FIELD("attn_logit_softcapping", NULL, REAL, attention_softcap),
    FIELD("final_logit_softcapping", NULL, REAL, logit_softcap),
    FIELD("logits_scaling", NULL, REAL, logit_multiplier),
#undef ROPE
#undef FIELD
};
/* clang-format on */

static bool compare_is_gemma(const struct model_desc *desc)
{
    return desc->family == FAMILY_GEMMA2 || desc->family == FAMILY_GEMMA3;
}

/* Of each layer its window, or whether it has RoPE (1 or 0). All alike: the window, NULL for none or for RoPE. */
static json_t *compared_layers_of(const struct model_desc *desc, bool windows)
{
    const int64_t usual = windows ? desc->layers[0].window : 1;
    json_t *list = json_array();
    bool alike = true;
    for (int64_t i = 0; i < desc->num_layers; i++) {
        const int64_t value = windows ? desc->layers[i].window : !desc->layers[i].no_rope;
        alike &= value == usual;
        json_array_append_new(list, json_integer(value));
    }
    if (!alike)
        return list;
    json_decref(list);
    return windows && usual ? json_integer(usual) : NULL;
}

/* New reference; NULL where there is none: numbers are 0 then. */
static json_t *compared_value_of(const struct model_desc *desc, const struct field *field)
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
    case FIELD_WINDOWS: return compared_layers_of(desc, true);
    case FIELD_ROPE_LAYERS: return compared_layers_of(desc, false);
    /* these two follow from head_dim, unless the config says otherwise */
    case FIELD_ROTARY_DIM:
        return desc->rotary_dim == desc->head_dim ? NULL : json_real((double)desc->rotary_dim / (double)desc->head_dim);
    case FIELD_SCALE:
        return compare_is_gemma(desc) || desc->attention_scale == 1 / sqrt((double)desc->head_dim)
                   ? NULL
                   : json_real(desc->attention_scale);
    case FIELD_QUERY_SCALE:
        return compare_is_gemma(desc) ? json_real(rint(1 / (desc->attention_scale * desc->attention_scale))) : NULL;
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
        json_t *old = compared_value_of(was, field), *new = compared_value_of(now, field);
        if (old != new && !json_equal(old, new))
            add_spec_difference(differences, key, " of the model", old, new, true);
        json_decref(old);
        json_decref(new);
    }
}
