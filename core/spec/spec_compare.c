/* SPDX-License-Identifier: Apache-2.0 */
/* spec_compare.c: whether a resumed run is the one that began: its spec, and what its model computes. */
#include "core/spec/spec_keys.h"

/* Appends "'KEY'OF was 1 in the checkpoint and is 2 now" (NULL: unset); refused: with the reason and a hint. */
static void add_spec_difference(struct string_list *list, const char *key, const char *of, const json_t *was,
                                const json_t *now, bool refused)
{
    const char *why =
        refused ? ": that would change the run; hint: set it back, or start a new run under another run.name" : "";
    OWNED char *old = spec_json_text(was), *new = spec_json_text(now);
    OWNED char *line = memory_printf("'%s'%s was %s in the checkpoint and is %s now%s", key, of, old, new, why);
    string_list_add(list, line);
}

/* What a run did whose checkpoint has no such key (new reference): mostly the default. NULL: nothing. */
static json_t *compare_value_before(const struct run_spec *spec, const struct spec_key *key)
{
    if (key->offset == offsetof(struct spec_full, peft_type)) /* all weights were trained */
        return NULL;
    if (key->offset == offsetof(struct spec_full, spec.data.document_mask)) return json_false();
    if (key->offset == offsetof(struct spec_full, spec.transformer.logits_dtype) && spec->dtype != DTYPE_F32 &&
        spec->model.task == TASK_CAUSAL_LM)
        return json_string("fp32");
    return spec_key_default(key);
}

enum status spec_compare(const struct run_spec *spec, const json_t *stored, bool same_model, bool same_data,
                         struct spec_report *report)
{
    const struct spec_full *full = spec_full(spec);
    const int before = report->errors.count;
    for (const struct spec_key *key = spec_keys; key->path; key++) {
        if (!key->size || key->resume == RESUME_SILENT) continue;
        /* of a run with an adapter and one without, one difference is enough */
        if (spec_adapter_has(key) && key->offset != offsetof(struct spec_full, peft_type) &&
            (!spec->adapter.on || !json_object_get(stored, "peft.peft_type")))
            continue;
        if (spec_auto_is_derived(full, key)) continue; /* from the model, which is compared by itself */
        /* a schedule's length that follows from the run's is stored as unset */
        bool follows =
            key->offset == offsetof(struct spec_full, spec.scheduler.total_steps) && !full->given_total_steps;
        json_auto_t *now = follows ? NULL : spec_key_fetch(full, key), *usual = compare_value_before(spec, key);
        const json_t *was = json_object_get(stored, key->path);
        if (key->offset == offsetof(struct spec_full, spec.model.train_pad_token)) { /* "auto" is false */
            json_decref(now);
            now = json_boolean(spec->model.train_pad_token == SPEC_ON);
            was = json_boolean(!was || json_is_true(was)); /* without the key it was trained */
        }
        bool same = (!was && !now) || json_equal(was, now) || (!was && json_equal(now, usual));
        if (json_is_number(was) && json_is_number(now)) /* 10 and 10.0 are the same: other programs may write either */
            same = json_number_value(was) == json_number_value(now);
        bool is_data = key->offset == offsetof(struct spec_full, spec.data.train);
        bool moved = key->resume == RESUME_CONTENTS && (is_data ? same_data : same_model);
        const bool refused = key->resume >= RESUME_CONTENTS && !moved;
        if (!same) add_spec_difference(refused ? &report->errors : &report->notices, key->path, "", was, now, refused);
    }
    return report->errors.count > before ? STATUS_USAGE : STATUS_OK;
}

/* Descriptions are compared, so that keys of transformers 4 and 5 are equivalent. Left out is what a resumed run may
 * change (initialisation, dtypes of files, max_positions with RoPE) or follows from model_type and attention_bias. */

/* Of each layer its window (-1: a delta rule), or 1 with RoPE, 0 without. All alike: the window; NULL: none, RoPE. */
static json_t *compared_layers_of(const struct model_desc *desc, bool windows)
{
    const int64_t usual = !windows ? 1 : desc->layers[0].delta ? -1 : desc->layers[0].window;
    json_t *list = json_array();
    bool alike = true;
    for (int64_t i = 0; i < desc->num_layers; i++) {
        const struct layer_desc *layer = &desc->layers[i];
        const int64_t value = !windows ? !layer->no_rope : layer->delta ? -1 : layer->window;
        alike &= value == usual;
        json_array_append_new(list, json_integer(value));
    }
    if (!alike) return list;
    json_decref(list);
    return windows && usual ? json_integer(usual) : NULL;
}

static void add_compared_rope(json_t *config, const struct rope_desc *rope, const char *prefix, const char *factor)
{
    static const char *const types[] = {ROPE_LIST(LISTED_WORD)};
    json_auto_t *keys = json_pack(
        "{ss,sf,sf,sf,sf,sI,sf,sf,sb,sf,sO?,sO?}", "rope_type", types[rope->kind], factor, rope->factor, "proportional",
        rope->share, "low_freq_factor", rope->low_freq_factor, "high_freq_factor", rope->high_freq_factor,
        "original_max_position_embeddings", (json_int_t)rope->original_max_positions, "beta_fast", rope->beta_fast,
        "beta_slow", rope->beta_slow, "truncate", rope->untruncated, "attention_factor", rope->attention_factor,
        "short_factor", rope->short_factor, "long_factor", rope->long_factor);
    const char *key;
    json_t *value;
    json_object_foreach (keys, key, value) {
        OWNED char *whole = memory_printf("%s%s", prefix, key);
        json_object_set(config, whole, value);
    }
}

/* What a description computes, under the keys of GPT-2's config.json. */
static json_t *compared_gpt2(const struct model_desc *d)
{
    return json_pack("{ss,sI,sI,sI,sI,sI,sI,sf,sb,sI}", "model_type", model_family_name(d->family), "vocab_size",
                     (json_int_t)d->vocab_size, "n_embd", (json_int_t)d->hidden_size, "n_inner",
                     (json_int_t)d->intermediate_size, "n_layer", (json_int_t)d->num_layers, "n_head",
                     (json_int_t)d->num_heads, "n_positions", (json_int_t)d->max_positions, "layer_norm_epsilon",
                     d->norm_eps, "tie_word_embeddings", d->tied, "num_labels", (json_int_t)d->num_labels);
}

/* Of Gemma 4, whose layers have sizes of their own, and share keys and values. */
static void add_compared_sizes(json_t *config, const struct model_desc *d)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < d->num_layers; i++) {
        const struct layer_desc *layer = &d->layers[i];
        json_array_append_new(list, json_pack("[IIIIb]", (json_int_t)layer->head_dim, (json_int_t)layer->num_kv_heads,
                                              (json_int_t)layer->intermediate_size, (json_int_t)layer->kv_source,
                                              layer->v_is_k));
    }
    json_object_set_new(config, "per_layer_config", list);
    json_object_set_new(config, "hidden_size_per_layer_input", json_integer(d->layer_inputs));
    json_object_set_new(config, "vocab_size_per_layer_input", json_integer(d->layer_vocab));
}

static void add_compared_experts(json_t *config, const struct model_desc *d)
{
    const struct experts_desc *e = &d->experts;
    json_t *dense = json_array();
    for (int64_t i = 0; i < d->num_layers; i++)
        if (!d->layers[i].sparse) json_array_append_new(dense, json_integer(i));
    json_auto_t *keys =
        json_pack("{so,sI,sI,sI,sI,sb,sf,sI,sI,sf,sf}", "mlp_only_layers", dense, "num_experts", (json_int_t)e->count,
                  "num_experts_per_tok", (json_int_t)e->per_token, "moe_intermediate_size", (json_int_t)e->inner_size,
                  "shared_expert_intermediate_size", (json_int_t)e->shared_size, "norm_topk_prob", e->normalize,
                  "routed_scaling_factor", e->scale, "n_group", (json_int_t)e->groups, "topk_group",
                  (json_int_t)e->top_groups, "swiglu_limit", e->limit, "swiglu_alpha", e->alpha);
    json_object_update(config, keys);
}

/* The same under the keys of all others. */
static json_t *compared_config(const struct model_desc *d)
{
    static const char *const activations[] = {
        [MLP_GELU] = "gelu_new", [MLP_GELU_ERF] = "gelu", [MLP_SWIGLU] = "silu", [MLP_GEGLU] = "gelu_pytorch_tanh"};
    const bool gemma = d->family == FAMILY_GEMMA2 || d->family == FAMILY_GEMMA3;
    const bool usual_scale = d->attention_scale == 1 / sqrt((double)d->head_dim);
    json_t *config = json_pack(
        "{ss,sI,sI,sI,sI,sI,sI,sI,sI,sf,sI,ss,sb,sb,sb,sI,so?,so?,sf,sf,so?,sf,sf,so?,so?,sf,sf,sf}", "model_type",
        model_family_name(d->family), "vocab_size", (json_int_t)d->vocab_size, "hidden_size",
        (json_int_t)d->hidden_size, "intermediate_size", (json_int_t)d->intermediate_size, "num_hidden_layers",
        (json_int_t)d->num_layers, "num_attention_heads", (json_int_t)d->num_heads, "num_key_value_heads",
        (json_int_t)d->num_kv_heads, "head_dim", (json_int_t)d->head_dim, "max_position_embeddings",
        (json_int_t)(d->rope.kind == ROPE_NONE ? d->max_positions : 0), "rms_norm_eps", d->norm_eps, "type_vocab_size",
        (json_int_t)d->num_types, "hidden_act", activations[d->mlp], "attention_bias", d->qkv_bias, "mlp_bias",
        d->mlp_bias, "tie_word_embeddings", d->tied, "num_labels", (json_int_t)d->num_labels, "sliding_window",
        compared_layers_of(d, true), "no_rope_layers", compared_layers_of(d, false), "rope_theta", d->rope.theta,
        "rope_local_base_freq", d->local_rope.theta, "partial_rotary_factor",
        d->rotary_dim == d->head_dim ? NULL : json_real((double)d->rotary_dim / (double)d->head_dim),
        "embedding_multiplier", d->embedding_multiplier, "residual_multiplier", d->residual_multiplier,
        "attention_multiplier", gemma || usual_scale ? NULL : json_real(d->attention_scale), "query_pre_attn_scalar",
        gemma ? json_real(rint(1 / (d->attention_scale * d->attention_scale))) : NULL, "attn_logit_softcapping",
        d->attention_softcap, "final_logit_softcapping", d->logit_softcap, "logits_scaling", d->logit_multiplier);
    json_object_set_new(config, "use_parallel_residual", json_integer(d->residual));
    json_object_set_new(config, "llama_4_scaling_beta", json_real(d->rope.query_beta));
    json_object_set_new(config, "linear_num_key_heads", json_integer(d->delta.key_heads));
    json_object_set_new(config, "linear_num_value_heads", json_integer(d->delta.value_heads));
    json_object_set_new(config, "pad_token_id",
                        d->padding_token < 0 ? json_null() : json_sprintf("%lld", (long long)d->padding_token));
    if (d->family == FAMILY_GEMMA4) add_compared_sizes(config, d);
    if (d->experts.count) add_compared_experts(config, d);
    add_compared_rope(config, &d->rope, "", "rope_scaling.factor");
    add_compared_rope(config, &d->local_rope, "sliding_attention.", "factor");
    return config;
}

/* NULL: it is unset, or 0. */
static const json_t *compared_value(const json_t *config, const char *key)
{
    const json_t *value = json_object_get(config, key);
    return json_is_null(value) || (json_is_number(value) && json_number_value(value) == 0) ? NULL : value;
}

void model_desc_compare(const struct model_desc *was, const struct model_desc *now, struct string_list *differences)
{
    const bool gpt2 = now->family == FAMILY_GPT2;
    json_auto_t *old = gpt2 ? compared_gpt2(was) : compared_config(was);
    json_auto_t *new = gpt2 ? compared_gpt2(now) : compared_config(now);
    const char *key = "";
    json_t *value = NULL;
    ASSERT(old && new);
    json_object_foreach (new, key, value) {
        const json_t *before = compared_value(old, key), *after = compared_value(new, key);
        if (before != after && !json_equal(before, after))
            add_spec_difference(differences, key, " of the model", before, after, true);
    }
}
