/* model_compare.c: whether two model descriptions compute the same. One table has the fields and their keys in
 * config.json.
 *
 * The table leaves out what a resumed run may change: the initialisation of weights (initializer_range, padding_token),
 * the dtype of files, max_positions with RoPE (where it is a limit; in GPT-2 it is the number of rows of wpe), notices
 * and the source. It also leaves out what follows from model_type and attention_bias: norm, mlp, weights_in_out,
 * o_bias, qk_norm. Descriptions are compared, not files, so that the different keys of transformers 4 and 5 are
 * equivalent. */
#include "core/spec/model_compare.h"

#include "core/spec/spec.h"

enum field_type { FIELD_FAMILY, FIELD_INT, FIELD_REAL, FIELD_BOOL, FIELD_ROPE_TYPE };

/* clang-format off */
static const struct field {
    const char *key, *gpt2_key; /* in config.json; NULL: not a matter of this family */
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
    FIELD("rms_norm_eps", "layer_norm_epsilon", REAL, norm_eps),
    FIELD("attention_bias", NULL, BOOL, qkv_bias),
    FIELD("mlp_bias", NULL, BOOL, mlp_bias),
    FIELD("tie_word_embeddings", "tie_word_embeddings", BOOL, tied),
    FIELD("sliding_window", NULL, INT, sliding_window),
    FIELD("rope_theta", NULL, REAL, rope.theta),
    FIELD("rope_type", NULL, ROPE_TYPE, rope.kind),
    FIELD("rope_scaling.factor", NULL, REAL, rope.factor),
    FIELD("low_freq_factor", NULL, REAL, rope.low_freq_factor),
    FIELD("high_freq_factor", NULL, REAL, rope.high_freq_factor),
    FIELD("original_max_position_embeddings", NULL, INT, rope.original_max_positions),
#undef FIELD
};
/* clang-format on */

/* New reference; NULL where there is none: numbers are 0 then. */
static json_t *value_of(const struct model_desc *desc, const struct field *field)
{
    static const char *const ROPE_TYPES[] = {
        [ROPE_NONE] = "none", [ROPE_PLAIN] = "default", [ROPE_LINEAR] = "linear", [ROPE_LLAMA3] = "llama3"};
    const void *member = (const char *)desc + field->offset;
    switch (field->type) {
    case FIELD_FAMILY: return json_string(model_family_name(*(const enum model_family *)member));
    case FIELD_INT: return *(const int64_t *)member ? json_integer(*(const int64_t *)member) : NULL;
    case FIELD_REAL: return *(const double *)member != 0 ? json_real(*(const double *)member) : NULL;
    case FIELD_BOOL: return json_boolean(*(const bool *)member);
    case FIELD_ROPE_TYPE: return json_string(ROPE_TYPES[*(const enum rope_kind *)member]);
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
