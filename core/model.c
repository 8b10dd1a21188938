/* model.c: config.json -> model_desc.
 *
 * An absent key has the default that it has in transformers (the family table). Every key that would change the
 * mathematics and is not implemented stands in the table of refusals; a key that changes nothing, but whose neglect may
 * surprise, in the table of notices. Other keys are harmless (token ids of generation, cache settings, versions) and
 * are left alone, unless they look like a misspelt key that is read: the reader notes what it asks for, and afterwards
 * these names are compared with the keys that it did not ask for.
 *
 * Reading is sticky: after the first fault the reader's getters return defaults, and the fault is returned at the end,
 * so that the code reads as a list of keys. STATUS_DATA: damaged or ill-typed; STATUS_USAGE: well-formed, but asks for
 * something that ztrain does not have, and whatever is wrong in a run spec's own model.config. */
#include "core/model.h"

#include "core/edit_distance.h"
#include "core/fsutil.h"
#include "core/memory.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- families ------------------------------------------------------------ */

struct family_facts {
    const char *name;         /* model_type */
    const char *architecture; /* the class with the language-model head */
    /* the defaults of transformers' configuration classes for absent keys */
    int64_t vocab_size, hidden_size, intermediate_size, num_layers, num_heads;
    int64_t num_kv_heads; /* 0: num_heads */
    int64_t head_dim;     /* 0: hidden_size / num_heads */
    int64_t max_positions;
    bool tied;
};

/* clang-format off */
static const struct family_facts FAMILIES[] = {
    [FAMILY_GPT2]    = {"gpt2", "GPT2LMHeadModel",          50257,  768,     0, 12, 12,  0,   0,   1024, true},
    [FAMILY_LLAMA]   = {"llama", "LlamaForCausalLM",        32000, 4096, 11008, 32, 32,  0,   0,   2048, false},
    [FAMILY_MISTRAL] = {"mistral", "MistralForCausalLM",    32000, 4096, 14336, 32, 32,  8,   0, 131072, false},
    [FAMILY_QWEN2]   = {"qwen2", "Qwen2ForCausalLM",       151936, 4096, 22016, 32, 32, 32,   0,  32768, false},
    [FAMILY_QWEN3]   = {"qwen3", "Qwen3ForCausalLM",       151936, 4096, 22016, 32, 32, 32, 128,  32768, false},
};
/* clang-format on */
_Static_assert(COUNT_OF(FAMILIES) == FAMILY_COUNT, "every family has its facts");

/* Limits that keep every product of sizes far from overflow (a tensor has at most 2^52 elements, a model 2^62). */
static const int64_t MAX_VOCAB = INT32_MAX, MAX_POSITIONS = INT32_MAX, MAX_HIDDEN = 1 << 20, MAX_INTERMEDIATE = 1 << 22,
                     MAX_LAYERS = 10000, MAX_HEADS = 1 << 16, MAX_HEAD_DIM = 1 << 14;

const char *model_family_name(enum model_family family)
{
    ASSERT((int)family >= 0 && family < FAMILY_COUNT);
    return FAMILIES[family].name;
}

/* ---- reading keys -------------------------------------------------------- */

enum { MAX_ASKED = 64 };

/* The keys that a reader has asked for, each once. */
struct asked_keys {
    const char *names[MAX_ASKED]; /* literals */
    int count;
};

struct reader {
    const json_t *object;
    struct asked_keys *asked;
    bool spec;         /* a run spec's model.config, not a file */
    const char *where; /* the file, for messages */
    const char *scope; /* "" or "rope_parameters." */
    struct error *err;
    enum status status; /* the first fault */
};

__attribute__((format(printf, 3, 4))) static void reader_fail(struct reader *reader, enum status code,
                                                              const char *format, ...)
{
    if (reader->status != STATUS_OK)
        return;
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (reader->spec && code == STATUS_DATA)
        code = STATUS_USAGE;
    reader->status = error_set(reader->err, code, "%s: %s", reader->where, text);
}

static bool is_asked(const struct asked_keys *asked, const char *key)
{
    for (int i = 0; i < asked->count; i++)
        if (strcmp(asked->names[i], key) == 0)
            return true;
    return false;
}

/* The key's value; NULL if it is absent or null. */
static const json_t *get(const struct reader *reader, const char *key)
{
    if (!is_asked(reader->asked, key)) {
        ASSERT(reader->asked->count < MAX_ASKED);
        reader->asked->names[reader->asked->count++] = key;
    }
    const json_t *value = json_object_get(reader->object, key);
    return json_is_null(value) ? NULL : value;
}

/* A value as JSON text, shortened for a message. */
static const char *show(const json_t *value, char out[64])
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    snprintf(out, 64, "%.60s", text ? text : "?");
    free(text);
    return out;
}

static int64_t get_int(struct reader *reader, const char *key, int64_t absent, int64_t min, int64_t max)
{
    const json_t *value = get(reader, key);
    char text[64];
    if (!value)
        return absent;
    if (!json_is_integer(value)) {
        reader_fail(reader, STATUS_DATA, "%s%s must be an integer, not %s", reader->scope, key, show(value, text));
        return absent;
    }
    int64_t n = json_integer_value(value);
    if (n < min || n > max) {
        reader_fail(reader, STATUS_DATA, "%s%s is %" PRId64 ", expected %" PRId64 " … %" PRId64, reader->scope, key, n,
                    min, max);
        return absent;
    }
    return n;
}

/* A number greater than 0. */
static double get_positive(struct reader *reader, const char *key, double absent)
{
    const json_t *value = get(reader, key);
    char text[64];
    if (!value)
        return absent;
    double number = json_number_value(value);
    if (!json_is_number(value) || !(number > 0)) {
        reader_fail(reader, STATUS_DATA, "%s%s must be a number above 0, not %s", reader->scope, key,
                    show(value, text));
        return absent;
    }
    return number;
}

static bool get_bool(struct reader *reader, const char *key, bool absent)
{
    const json_t *value = get(reader, key);
    char text[64];
    if (!value)
        return absent;
    if (!json_is_boolean(value)) {
        reader_fail(reader, STATUS_DATA, "%s%s must be true or false, not %s", reader->scope, key, show(value, text));
        return absent;
    }
    return json_is_true(value);
}

static const char *get_string(struct reader *reader, const char *key, const char *absent)
{
    const json_t *value = get(reader, key);
    char text[64];
    if (!value)
        return absent;
    if (!json_is_string(value)) {
        reader_fail(reader, STATUS_DATA, "%s%s must be a string, not %s", reader->scope, key, show(value, text));
        return absent;
    }
    return json_string_value(value);
}

/* Adds a line to desc->notices. */
__attribute__((format(printf, 2, 3))) static void notice(struct model_desc *desc, const char *format, ...)
{
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    string_list_add(&desc->notices, line);
}

/* ---- refusals and notices ------------------------------------------------ */

enum { GPT2 = 1 << FAMILY_GPT2, LLAMA = 1 << FAMILY_LLAMA, MISTRAL = 1 << FAMILY_MISTRAL, QWEN2 = 1 << FAMILY_QWEN2 };
enum { QWEN3 = 1 << FAMILY_QWEN3, ROTARY = LLAMA | MISTRAL | QWEN2 | QWEN3, ALL = GPT2 | ROTARY };

/* Keys whose only supported value is `wanted` (JSON), or null, or absence. */
static const struct refusal {
    const char *key;
    int families;
    const char *wanted;
    const char *hint;
} REFUSALS[] = {
    {"quantization_config", ALL, "null", "use the model's unquantized weights"},
    {"is_encoder_decoder", ALL, "false", "ztrain trains decoders only"},
    {"is_causal", ALL, "true", "ztrain trains causal models only"},
    {"per_layer_config", ALL, "null", "all blocks must be alike"},
    {"pruned_heads", ALL, "{}", "use the unpruned model"},
    {"add_cross_attention", GPT2, "false", "ztrain trains decoders without cross-attention only"},
    {"scale_attn_weights", GPT2, "true", "attention scores are always scaled by 1/sqrt(head size)"},
    {"scale_attn_by_inverse_layer_idx", GPT2, "false", "attention scores are not scaled by the layer's number"},
    {"partial_rotary_factor", ROTARY, "1.0", "RoPE turns whole heads only"},
    {"use_mrope", ROTARY, "false", "multimodal RoPE is not supported"},
};

#define NO_EFFECT "has no effect in this family, as in transformers"

/* Keys that transformers ignores in these families, or that change nothing in ztrain: a notice if not `usual`. */
static const struct remark {
    const char *key;
    int families;
    const char *usual;
    const char *text;
} REMARKS[] = {
    {"pretraining_tp", ROTARY, "1", "matrices are not split: the mathematics is the same, the rounding differs"},
    /* keys that another of the families reads */
    {"attention_bias", MISTRAL | QWEN2, "false", NO_EFFECT},
    {"mlp_bias", MISTRAL | QWEN2 | QWEN3, "false", NO_EFFECT},
    {"sliding_window", GPT2 | LLAMA, "null", NO_EFFECT},
    {"use_sliding_window", GPT2 | LLAMA, "false", NO_EFFECT},
    {"use_sliding_window", MISTRAL, "true", NO_EFFECT},
    {"hidden_act", GPT2, "null", NO_EFFECT},
    {"intermediate_size", GPT2, "null", NO_EFFECT},
    {"num_key_value_heads", GPT2, "null", NO_EFFECT},
    {"head_dim", GPT2, "null", NO_EFFECT},
    {"rope_theta", GPT2, "null", NO_EFFECT},
    {"rope_scaling", GPT2, "null", NO_EFFECT},
    {"rope_parameters", GPT2, "null", NO_EFFECT},
    {"rms_norm_eps", GPT2, "null", NO_EFFECT},
    {"activation_function", ROTARY, "null", NO_EFFECT},
    {"n_inner", ROTARY, "null", NO_EFFECT},
    {"layer_norm_epsilon", ROTARY, "null", NO_EFFECT},
    /* keys with which other families change the mathematics */
    {"layer_norm_eps", ALL, "null", NO_EFFECT},
    {"attn_logit_softcapping", ALL, "null", NO_EFFECT},
    {"final_logit_softcapping", ALL, "null", NO_EFFECT},
    {"query_pre_attn_scalar", ALL, "null", NO_EFFECT},
    {"logit_scale", ALL, "1", NO_EFFECT},
    {"logits_scaling", ALL, "1", NO_EFFECT},
    {"attention_multiplier", ALL, "1", NO_EFFECT},
    {"embedding_multiplier", ALL, "1", NO_EFFECT},
    {"residual_multiplier", ALL, "1", NO_EFFECT},
    {"clip_qkv", ALL, "null", NO_EFFECT},
    {"qk_layernorm", ALL, "false", NO_EFFECT},
    {"use_qk_norm", ALL & ~QWEN3, "false", NO_EFFECT},
    {"use_parallel_residual", ALL, "false", NO_EFFECT},
    {"alibi", ALL, "false", NO_EFFECT},
    {"rotary_pct", ALL, "1", NO_EFFECT},
    {"no_rope_layers", ALL, "null", NO_EFFECT},
    {"attention_chunk_size", ALL, "null", NO_EFFECT},
    {"num_experts", ALL, "null", NO_EFFECT},
    {"num_local_experts", ALL, "null", NO_EFFECT},
};

/* Whether a value equals the JSON text `wanted`; 1 and 1.0 are the same number. */
static bool json_is(const json_t *value, const char *wanted)
{
    json_t *other = json_loads(wanted, JSON_DECODE_ANY, NULL);
    ASSERT(other);
    bool same = json_is_number(value) && json_is_number(other) ? json_number_value(value) == json_number_value(other)
                                                               : json_equal(value, other);
    json_decref(other);
    return same;
}

/* These keys do not count as asked for, so that a key similar to one of them is not its misspelling
 * (tie_encoder_decoder). */
static void check_tables(struct reader *reader, struct model_desc *desc)
{
    char text[64];
    for (size_t i = 0; i < COUNT_OF(REFUSALS); i++) {
        const struct refusal *refusal = &REFUSALS[i];
        const json_t *value = json_object_get(reader->object, refusal->key);
        if (value && !json_is_null(value) && refusal->families & 1 << desc->family && !json_is(value, refusal->wanted))
            reader_fail(reader, STATUS_USAGE, "%s %s is not supported; hint: %s", refusal->key, show(value, text),
                        refusal->hint);
    }
    for (size_t i = 0; i < COUNT_OF(REMARKS); i++) {
        const struct remark *remark = &REMARKS[i];
        const json_t *value = json_object_get(reader->object, remark->key);
        if (value && !json_is_null(value) && remark->families & 1 << desc->family && !json_is(value, remark->usual))
            notice(desc, "%s %s: %s", remark->key, show(value, text), remark->text);
    }
}

/* Dropout is never applied: one line names the keys, including those whose default is not 0 in transformers. */
static void check_dropout(struct reader *reader, struct model_desc *desc)
{
    static const struct {
        const char *key;
        int families;
        double absent;
    } KEYS[] = {
        {"resid_pdrop", GPT2, 0.1},
        {"embd_pdrop", GPT2, 0.1},
        {"attn_pdrop", GPT2, 0.1},
        {"attention_dropout", ROTARY, 0},
    };
    char list[256] = "", text[64];
    for (size_t i = 0; i < COUNT_OF(KEYS); i++) {
        if (!(KEYS[i].families & 1 << desc->family))
            continue;
        const json_t *value = get(reader, KEYS[i].key);
        double rate = value ? json_number_value(value) : KEYS[i].absent;
        if (value && (!json_is_number(value) || rate < 0 || rate > 1))
            reader_fail(reader, STATUS_DATA, "%s must be a number from 0 to 1, not %s", KEYS[i].key, show(value, text));
        else if (rate > 0)
            snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s %g%s", *list ? ", " : "", KEYS[i].key, rate,
                     value ? "" : " by default");
    }
    if (*list)
        notice(desc, "dropout (%s) is not applied", list);
}

/* The key of the object that is nearest to a wanted one, among those that were not asked for; NULL: none is similar.
 * Keys of other families and of other software are more than two letters away. */
static const char *misspelt(const struct reader *reader, const char *wanted)
{
    enum { MOST_LETTERS = 2 };
    const char *best = NULL, *key;
    int best_distance = MOST_LETTERS + 1;
    json_t *value;
    json_object_foreach((json_t *)reader->object, key, value)
    {
        if (llabs((long long)strlen(key) - (long long)strlen(wanted)) > MOST_LETTERS || is_asked(reader->asked, key))
            continue;
        int distance = edit_distance(key, wanted);
        if (distance < best_distance && distance <= edit_distance_limit(key)) {
            best = key;
            best_distance = distance;
        }
    }
    return best;
}

/* Called once all keys have been asked for. In a run spec the error replaces an earlier one, which the missing value of
 * the misspelt key may have caused; there the right key may be present as well, because --set adds the misspelt one. */
static void check_spelling(struct reader *reader, struct model_desc *desc)
{
    for (int i = 0; i < reader->asked->count; i++) {
        const char *key = reader->asked->names[i], *scope = reader->scope;
        const char *close = misspelt(reader, key);
        if (!close || (json_object_get(reader->object, key) && !reader->spec))
            continue;
        char text[256];
        snprintf(text, sizeof text, "'%s%.70s' is not a key of a %s config; hint: did you mean '%s%s'?", scope, close,
                 FAMILIES[desc->family].name, scope, key);
        if (!reader->spec) {
            notice(desc, "%s", text);
            continue;
        }
        reader->status = STATUS_OK;
        reader_fail(reader, STATUS_USAGE, "%s", text);
        return;
    }
}

/* ---- parts of a description ---------------------------------------------- */

static void read_family(struct reader *reader, struct model_desc *desc)
{
    const char *type = get_string(reader, "model_type", NULL);
    if (!type) {
        reader_fail(reader, STATUS_DATA, "model_type is missing; hint: a Hugging Face config.json names it");
        return;
    }
    int family = 0;
    while (family < FAMILY_COUNT && strcmp(type, FAMILIES[family].name) != 0)
        family++;
    if (family == FAMILY_COUNT) {
        reader_fail(reader, STATUS_USAGE,
                    "model_type '%.100s' is not supported; hint: gpt2, llama, mistral, qwen2 and qwen3 are", type);
        return;
    }
    desc->family = (enum model_family)family;

    const json_t *list = get(reader, "architectures");
    char text[64];
    if (!list || (json_is_array(list) && json_array_size(list) == 0))
        return;
    const json_t *first = json_array_get(list, 0);
    if (!json_is_string(first))
        reader_fail(reader, STATUS_DATA, "architectures must be a list of names, not %s", show(list, text));
    else if (strcmp(json_string_value(first), FAMILIES[family].architecture) != 0)
        reader_fail(reader, STATUS_USAGE, "architectures %s is not supported with model_type '%s'; hint: %s is",
                    show(list, text), type, FAMILIES[family].architecture);
}

/* GPT-2 has its own names for sizes; transformers accepts the general ones as well. */
static int64_t get_size(struct reader *reader, bool gpt2, const char *gpt2_key, const char *key, int64_t absent,
                        int64_t max)
{
    if (!gpt2)
        return get_int(reader, key, absent, 1, max);
    int64_t general = get_int(reader, key, absent, 1, max), own = get_int(reader, gpt2_key, general, 1, max);
    if (get(reader, key) && own != general)
        reader_fail(reader, STATUS_DATA, "%s %" PRId64 " and %s %" PRId64 " contradict each other", gpt2_key, own, key,
                    general);
    return own;
}

static void read_sizes(struct reader *reader, struct model_desc *desc)
{
    const struct family_facts *facts = &FAMILIES[desc->family];
    bool gpt2 = desc->family == FAMILY_GPT2;
    desc->vocab_size = get_int(reader, "vocab_size", facts->vocab_size, 1, MAX_VOCAB);
    desc->hidden_size = get_size(reader, gpt2, "n_embd", "hidden_size", facts->hidden_size, MAX_HIDDEN);
    desc->num_layers = get_size(reader, gpt2, "n_layer", "num_hidden_layers", facts->num_layers, MAX_LAYERS);
    desc->num_heads = get_size(reader, gpt2, "n_head", "num_attention_heads", facts->num_heads, MAX_HEADS);
    desc->max_positions =
        get_size(reader, gpt2, "n_positions", "max_position_embeddings", facts->max_positions, MAX_POSITIONS);
    desc->intermediate_size = gpt2
                                  ? get_int(reader, "n_inner", 4 * desc->hidden_size, 1, MAX_INTERMEDIATE)
                                  : get_int(reader, "intermediate_size", facts->intermediate_size, 1, MAX_INTERMEDIATE);
    if (gpt2) {
        desc->num_kv_heads = desc->num_heads;
    } else {
        /* an explicit null means num_attention_heads; an absent key, the family's default */
        bool null = json_is_null(json_object_get(reader->object, "num_key_value_heads"));
        int64_t absent = facts->num_kv_heads && !null ? facts->num_kv_heads : desc->num_heads;
        desc->num_kv_heads = get_int(reader, "num_key_value_heads", absent, 1, MAX_HEADS);
        desc->head_dim = get_int(reader, "head_dim", facts->head_dim, 1, MAX_HEAD_DIM);
    }
    if (reader->status != STATUS_OK)
        return;
    int64_t C = desc->hidden_size, H = desc->num_heads;
    /* transformers requires the first for Llama in any case */
    if (C % H != 0 && (desc->head_dim == 0 || desc->family == FAMILY_LLAMA))
        reader_fail(reader, STATUS_DATA, "hidden size %" PRId64 " is not a multiple of the %" PRId64 " attention heads",
                    C, H);
    if (desc->head_dim == 0)
        desc->head_dim = C / H;
    if (H % desc->num_kv_heads != 0)
        reader_fail(reader, STATUS_DATA,
                    "num_attention_heads %" PRId64 " is not a multiple of num_key_value_heads %" PRId64 "%s", H,
                    desc->num_kv_heads, get(reader, "num_key_value_heads") ? "" : " (the default of this model_type)");
    if (!gpt2 && desc->head_dim % 2 != 0)
        reader_fail(reader, STATUS_DATA, "head_dim is %" PRId64 ", but RoPE needs an even number", desc->head_dim);
    if (H * desc->head_dim > MAX_INTERMEDIATE)
        reader_fail(reader, STATUS_DATA, "%" PRId64 " heads of size %" PRId64 " are more than the supported %" PRId64,
                    H, desc->head_dim, MAX_INTERMEDIATE);
}

/* The activation function must have one of these names (NULL-terminated). */
static void check_activation(struct reader *reader, const char *key, const char *const *names)
{
    const char *value = get_string(reader, key, names[0]);
    const char *const *name = names;
    while (*name && strcmp(value, *name) != 0)
        name++;
    if (!*name)
        reader_fail(reader, STATUS_USAGE, "%s '%.60s' is not supported; hint: %s or %s is", key, value, names[0],
                    names[1]);
}

static bool has_object_member(const json_t *object)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        if (json_is_object(value))
            return true;
    }
    return false;
}

/* rope_type and what every type needs: factor for all but "default". `key` is the object's name, for messages. */
static void read_rope_type(struct reader *inner, const char *key, struct rope_desc *rope)
{
    const char *type = get_string(inner, "rope_type", get_string(inner, "type", NULL));
    char text[64];
    if (!type && get(inner, "factor"))
        reader_fail(inner, STATUS_DATA, "%s has a factor but no rope_type", key);
    const json_t *partial = get(inner, "partial_rotary_factor");
    if (partial && !json_is(partial, "1"))
        reader_fail(inner, STATUS_USAGE, "%s.partial_rotary_factor %s is not supported; hint: RoPE turns whole heads",
                    key, show(partial, text));
    if (!type || strcmp(type, "default") == 0)
        return;
    if (strcmp(type, "linear") != 0 && strcmp(type, "llama3") != 0) {
        reader_fail(inner, STATUS_USAGE, "%s: rope_type '%.60s' is not supported; hint: default, linear and llama3 are",
                    key, type);
        return;
    }
    rope->kind = strcmp(type, "linear") == 0 ? ROPE_LINEAR : ROPE_LLAMA3;
    rope->factor = get_positive(inner, "factor", 0);
    if (rope->factor == 0)
        reader_fail(inner, STATUS_DATA, "%s.factor is missing; rope_type '%s' needs it", key, type);
}

/* The members that only rope_type "llama3" has. */
static void read_rope_llama3(struct reader *inner, const char *key, int64_t max_positions, struct rope_desc *rope)
{
    rope->low_freq_factor = get_positive(inner, "low_freq_factor", 0);
    rope->high_freq_factor = get_positive(inner, "high_freq_factor", 0);
    if (rope->low_freq_factor == 0 || rope->high_freq_factor == 0)
        reader_fail(inner, STATUS_DATA, "%s.%s is missing; rope_type 'llama3' needs it", key,
                    rope->low_freq_factor == 0 ? "low_freq_factor" : "high_freq_factor");
    else if (rope->high_freq_factor <= rope->low_freq_factor)
        reader_fail(inner, STATUS_DATA, "%s: high_freq_factor %g must be greater than low_freq_factor %g", key,
                    rope->high_freq_factor, rope->low_freq_factor);
    rope->original_max_positions = get_int(inner, "original_max_position_embeddings", max_positions, 1, MAX_POSITIONS);
}

/* RoPE in both dialects. transformers 4: rope_theta, and rope_scaling {type or rope_type, factor, …} or null.
 * transformers 5: rope_parameters {rope_type, rope_theta, …}. rope_scaling wins where both are present; a theta inside
 * the object wins over one outside, and original_max_position_embeddings outside over one inside. */
static void read_rope(struct reader *reader, struct model_desc *desc)
{
    struct rope_desc *rope = &desc->rope;
    char text[64];
    const json_t *scaling = get(reader, "rope_scaling");
    const char *key =
        scaling && !(json_is_object(scaling) && json_object_size(scaling) == 0) ? "rope_scaling" : "rope_parameters";
    const json_t *parameters = get(reader, key);
    rope->kind = ROPE_PLAIN;
    rope->theta = get_positive(reader, "rope_theta", 10000.0);
    if (!parameters)
        return;
    if (!json_is_object(parameters)) {
        reader_fail(reader, STATUS_DATA, "%s must be an object, not %s", key, show(parameters, text));
        return;
    }
    if (has_object_member(parameters)) {
        reader_fail(reader, STATUS_USAGE,
                    "%s per layer type is not supported; hint: use one set of parameters for all layers", key);
        return;
    }

    char scope[32];
    snprintf(scope, sizeof scope, "%s.", key);
    struct asked_keys asked = {.count = 0};
    struct reader inner = *reader;
    inner.object = parameters;
    inner.asked = &asked;
    inner.scope = scope;
    rope->theta = get_positive(&inner, "rope_theta", rope->theta);
    read_rope_type(&inner, key, rope);
    if (rope->kind == ROPE_LLAMA3) {
        read_rope_llama3(&inner, key, desc->max_positions, rope);
        reader->status = inner.status;
        rope->original_max_positions =
            get_int(reader, "original_max_position_embeddings", rope->original_max_positions, 1, MAX_POSITIONS);
        inner.status = reader->status;
    }
    check_spelling(&inner, desc);
    reader->status = inner.status;
}

/* Returns the window after layer_types: all layers have it, or none. `off`: "full_attention" may turn it off. */
static int64_t window_of_layer_types(struct reader *reader, const json_t *types, int64_t num_layers, int64_t window,
                                     bool off)
{
    char text[64];
    size_t sliding = 0, full = 0, count = json_array_size(types);
    if (count != (size_t)num_layers) { /* 0 if it is not an array */
        reader_fail(reader, STATUS_DATA, "layer_types must be a list of %" PRId64 " names, not %s", num_layers,
                    show(types, text));
        return 0;
    }
    for (size_t i = 0; i < count; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        sliding += type && strcmp(type, "sliding_attention") == 0;
        full += type && strcmp(type, "full_attention") == 0;
    }
    if (sliding + full != count)
        reader_fail(reader, STATUS_USAGE,
                    "layer_types %s is not supported; hint: full_attention and sliding_attention are",
                    show(types, text));
    else if (sliding > 0 && full > 0)
        reader_fail(reader, STATUS_USAGE,
                    "layer_types mixes full and sliding attention: partial windows are not "
                    "supported; hint: all layers must be alike");
    else if (sliding > 0 && window == 0)
        reader_fail(reader, STATUS_DATA, "layer_types has sliding attention, but there is no sliding window");
    else if (full > 0 && window > 0 && !off)
        reader_fail(reader, STATUS_DATA, "layer_types has full attention, but there is a sliding window");
    return sliding > 0 ? window : 0;
}

/* sliding_window, and which layers have it: all or none are supported. Mistral has it in every layer; in Qwen2 and
 * Qwen3 use_sliding_window turns it on for the layers from max_window_layers, or as layer_types says. */
static void read_window(struct reader *reader, struct model_desc *desc)
{
    bool qwen = desc->family == FAMILY_QWEN2 || desc->family == FAMILY_QWEN3;
    const json_t *types = get(reader, "layer_types");
    int64_t window = 0;
    if (desc->family == FAMILY_MISTRAL || (qwen && get_bool(reader, "use_sliding_window", false))) {
        bool null = json_is_null(json_object_get(reader->object, "sliding_window"));
        window = get_int(reader, "sliding_window", null ? 0 : 4096, 1, INT32_MAX);
    }
    int64_t from = qwen ? get_int(reader, "max_window_layers", 28, INT32_MIN, INT32_MAX) : 0;
    if (types) {
        window = window_of_layer_types(reader, types, desc->num_layers, window, qwen);
    } else if (window > 0 && from > 0) {
        if (from < desc->num_layers)
            reader_fail(reader, STATUS_USAGE,
                        "max_window_layers %" PRId64 " of %" PRId64 " layers: partial windows are not supported; hint: "
                        "all layers must be alike",
                        from, desc->num_layers);
        window = 0;
    }
    desc->sliding_window = window;
}

static void read_dtype(struct reader *reader, struct model_desc *desc)
{
    static const char *const NAMES[] = {[DTYPE_F32] = "float32", [DTYPE_BF16] = "bfloat16", [DTYPE_F16] = "float16"};
    const char *name = get_string(reader, "dtype", get_string(reader, "torch_dtype", NULL));
    if (!name)
        return;
    if (strncmp(name, "torch.", 6) == 0)
        name += 6;
    for (int i = 0; i < DTYPE_COUNT; i++) {
        if (strcmp(name, NAMES[i]) == 0) {
            desc->has_torch_dtype = true;
            desc->torch_dtype = (enum dtype)i;
        }
    }
}

/* pad_token_id: torch's Embedding starts that row as zeros and gives it no gradient. A negative one counts from the
 * end. */
static void read_padding(struct reader *reader, struct model_desc *desc)
{
    int64_t V = desc->vocab_size;
    desc->padding_token = -1;
    if (desc->family == FAMILY_GPT2 || !get(reader, "pad_token_id"))
        return;
    int64_t id = get_int(reader, "pad_token_id", 0, -V, V - 1);
    desc->padding_token = id < 0 ? id + V : id;
    notice(desc, "pad_token_id %" PRId64 ": its embedding is trained like the others", id);
}

static void read_gpt2(struct reader *reader, struct model_desc *desc)
{
    desc->norm = NORM_LAYER;
    desc->norm_eps = get_positive(reader, "layer_norm_epsilon", 1e-5);
    desc->mlp = MLP_GELU;
    desc->weights_in_out = true;
    desc->qkv_bias = desc->o_bias = desc->mlp_bias = true;
    desc->scale_residual_init = true;
    desc->rope.kind = ROPE_NONE;
    static const char *const activations[] = {"gelu_new",         "gelu_pytorch_tanh", "gelu_fast",
                                              "gelu_python_tanh", "gelu_accurate",     NULL};
    check_activation(reader, "activation_function", activations);
}

static void read_llama_family(struct reader *reader, struct model_desc *desc)
{
    desc->norm = NORM_RMS;
    desc->norm_eps = get_positive(reader, "rms_norm_eps", 1e-6);
    desc->mlp = MLP_SWIGLU;
    static const char *const activations[] = {"silu", "swish", NULL};
    check_activation(reader, "hidden_act", activations);
    switch (desc->family) {
    case FAMILY_LLAMA:
        desc->qkv_bias = desc->o_bias = get_bool(reader, "attention_bias", false);
        desc->mlp_bias = get_bool(reader, "mlp_bias", false);
        break;
    case FAMILY_QWEN2: desc->qkv_bias = true; break;
    case FAMILY_QWEN3:
        desc->qkv_bias = desc->o_bias = get_bool(reader, "attention_bias", false);
        desc->qk_norm = true;
        break;
    default: break;
    }
    read_rope(reader, desc);
}

static enum status read_config(const json_t *config, bool spec, const char *where, struct model_desc *desc,
                               struct error *err)
{
    memset(desc, 0, sizeof *desc);
    struct asked_keys asked = {.count = 0};
    struct reader reader = {config, &asked, spec, where, "", err, STATUS_OK};
    if (!json_is_object(config))
        reader_fail(&reader, STATUS_DATA, "expected a JSON object with a model's configuration");
    else
        read_family(&reader, desc);
    if (reader.status != STATUS_OK)
        return reader.status;

    read_sizes(&reader, desc);
    check_tables(&reader, desc);
    check_dropout(&reader, desc);
    if (desc->family == FAMILY_GPT2)
        read_gpt2(&reader, desc);
    else
        read_llama_family(&reader, desc);
    read_window(&reader, desc);
    read_padding(&reader, desc);
    read_dtype(&reader, desc);
    desc->tied = get_bool(&reader, "tie_word_embeddings", FAMILIES[desc->family].tied);
    desc->initializer_range = get_positive(&reader, "initializer_range", 0.02);
    check_spelling(&reader, desc);
    if (reader.status == STATUS_OK && !(desc->source = json_deep_copy(config)))
        reader_fail(&reader, STATUS_DEVICE, "out of memory for a copy of the configuration");
    if (reader.status != STATUS_OK)
        model_desc_release(desc);
    return reader.status;
}

enum status model_desc_from_json(const json_t *config, const char *where, struct model_desc *desc, struct error *err)
{
    return read_config(config, false, where, desc, err);
}

enum status model_desc_from_spec(const json_t *config, struct model_desc *desc, struct error *err)
{
    return read_config(config, true, "model.config", desc, err);
}

enum status model_desc_load(const char *path, struct model_desc *desc, struct error *err)
{
    memset(desc, 0, sizeof *desc);
    char file[FS_PATH_MAX];
    if (fs_is_dir(path))
        TRY(fs_join(file, path, "config.json", STATUS_DATA, err));
    else if (snprintf(file, sizeof file, "%s", path) >= (int)sizeof file)
        return error_set(err, STATUS_DATA, "path too long: '%.200s…'", path);
    char *text;
    size_t size;
    if (fs_read_file(file, 1 << 20, STATUS_DATA, &text, &size, err) != STATUS_OK)
        return error_hint(err, "a Hugging Face model folder holds config.json");
    json_error_t parse;
    json_t *config = json_loadb(text, size, JSON_REJECT_DUPLICATES, &parse);
    free(text);
    if (!config)
        return error_set(err, STATUS_DATA, "%s:%d:%d: not valid JSON: %s", file, parse.line, parse.column, parse.text);
    enum status status = model_desc_from_json(config, file, desc, err);
    json_decref(config);
    return status;
}

void model_desc_release(struct model_desc *desc)
{
    json_decref(desc->source);
    string_list_release(&desc->notices);
    memset(desc, 0, sizeof *desc);
}

json_t *model_desc_export_config(const struct model_desc *desc, enum dtype dtype)
{
    static const char *const NAMES[] = {[DTYPE_F32] = "float32", [DTYPE_BF16] = "bfloat16", [DTYPE_F16] = "float16"};
    json_t *config = json_deep_copy(desc->source);
    bool old_name = json_object_get(config, "torch_dtype") != NULL;
    if (old_name)
        json_object_set_new(config, "torch_dtype", json_string(NAMES[dtype]));
    if (!old_name || json_object_get(config, "dtype"))
        json_object_set_new(config, "dtype", json_string(NAMES[dtype]));
    json_object_set_new(config, "architectures", json_pack("[s]", FAMILIES[desc->family].architecture));
    json_object_set_new(config, "model_type", json_string(FAMILIES[desc->family].name));
    return config;
}

/* In float32, operation by operation as torch computes it: a rounding here changes the angle at every position, and
 * models were trained with torch's roundings. */
void model_rope_frequencies(const struct model_desc *desc, float *inv_freq)
{
    const struct rope_desc *rope = &desc->rope;
    ASSERT(rope->kind != ROPE_NONE && desc->head_dim % 2 == 0);
    const float theta = (float)rope->theta, factor = (float)rope->factor, two_pi = 6.283185307179586F;
    const float original = (float)rope->original_max_positions;
    const float low = (float)rope->low_freq_factor, span = (float)(rope->high_freq_factor - rope->low_freq_factor);
    for (int64_t i = 0; i < desc->head_dim / 2; i++) {
        float f = 1 / powf(theta, (float)(2 * i) / (float)desc->head_dim);
        if (rope->kind == ROPE_LINEAR) {
            f /= factor;
        } else if (rope->kind == ROPE_LLAMA3) {
            /* by the number of turns within the original length: few: slowed down; many: kept; in between: a blend */
            float wavelength = two_pi * (1 / f);
            float keep = (original * (1 / wavelength) - low) / span;
            if (keep <= 0)
                f /= factor;
            else if (keep < 1)
                f = (1 - keep) * f / factor + keep * f;
        }
        inv_freq[i] = f;
    }
}
