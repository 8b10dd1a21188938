/* SPDX-License-Identifier: Apache-2.0 */
/* model_rope.c: RoPE's keys in config.json, and the inverse frequencies that follow from them.
 *
 * transformers 4: rope_theta, partial_rotary_factor, and rope_scaling {type or rope_type, factor, …} or null; 5:
 * rope_parameters {rope_type, rope_theta, …}. rope_scaling wins; so do theta and the partial factor inside the object,
 * and original_max_position_embeddings outside. Gemma 3 and OLMo 3 have two RoPEs: rope_parameters has an object for
 * each type of layer, or rope_scaling is of layers without a window and Gemma's rope_local_base_freq the theta of the
 * others, which is 500,000 in OLMo 3 whatever rope_theta says (transformers 5.24).
 *
 * longrope and dynamic depend on the longest sequence. transformers goes by each batch; here the whole run goes by its
 * data.seq_length, so that its numbers do not depend on the micro-batch. */
#include "core/model/config_reader.h"

static bool rope_has_object_member(const json_t *object)
{
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)object, key, value)
        if (json_is_object(value)) return true;
    return false;
}

/* An object with RoPE's parameters while it is read. */
struct rope_object {
    struct config_reader *members;
    const char *key; /* the object's name, for messages */
    const struct rope_facts *facts;
    struct rope_desc *rope; /* which it describes */
};

static void read_rotary_dim(struct config_reader *reader, struct rope_object object, struct model_desc *desc)
{
    double factor = object.facts->partial ? object.facts->partial : 1;
    factor = reader_positive(reader, desc->family == FAMILY_GPT_NEOX ? "rotary_pct" : "partial_rotary_factor", factor);
    if (object.members != reader) factor = reader_positive(object.members, "partial_rotary_factor", factor);
    desc->rotary_dim = desc->head_dim;
    if (factor == 1) return;
    desc->rotary_dim = factor < 1 ? (int64_t)((double)desc->head_dim * factor) : 0;
    if (!object.facts->partial)
        reader_fail(
            object.members, STATUS_USAGE,
            "partial_rotary_factor %g is not supported with model_type '%s'; hint: RoPE turns whole heads there",
            factor, reader->family);
    else if (desc->rotary_dim == 0 || desc->rotary_dim % 2 != 0)
        reader_fail(object.members, STATUS_DATA,
                    "partial_rotary_factor %g: of heads of size %lld RoPE would turn %lld elements, which must be an "
                    "even number up to the whole head",
                    factor, (long long)desc->head_dim, (long long)((double)desc->head_dim * factor));
}

static void read_type(struct rope_object object, struct rope_desc *rope, bool proportional)
{
    static const char *const NAMES[] = {ROPE_LIST(LISTED_WORD)};
    struct config_reader *members = object.members;
    const char *type = reader_string(members, "rope_type", reader_string(members, "type", NULL));
    if (!type && reader_get(members, "factor"))
        reader_fail(members, STATUS_DATA, "%s has a factor but no rope_type", object.key);
    if (!type || strcmp(type, "default") == 0 || strcmp(type, "mrope") == 0) /* all positions of text are equal */
        return;
    if (proportional && strcmp(type, "proportional") == 0) rope->kind = ROPE_PROPORTIONAL;
    const bool early_phi3 = !object.facts->scaling && (strcmp(type, "su") == 0 || strcmp(type, "yarn") == 0);
    if (!proportional && (early_phi3 || strcmp(type, "longrope") == 0)) rope->kind = ROPE_LONGROPE;
    for (int kind = ROPE_LINEAR; kind <= ROPE_DYNAMIC && object.facts->scaling && !proportional; kind++)
        if (strcmp(type, NAMES[kind]) == 0) rope->kind = (enum rope_kind)kind;
    if (rope->kind == ROPE_PLAIN) {
        reader_fail(members, STATUS_USAGE, "%s: rope_type '%.60s' is not supported; hint: %s", object.key, type,
                    proportional            ? "default and proportional are"
                    : object.facts->scaling ? "default, linear, llama3, yarn, dynamic and longrope are"
                                            : "default and longrope are");
        return;
    }
    rope->factor = reader_positive(members, "factor", rope->kind == ROPE_PROPORTIONAL ? 1 : 0);
    if (rope->factor == 0 && rope->kind != ROPE_LONGROPE)
        reader_fail(members, STATUS_DATA, "%s.factor is missing; rope_type '%s' needs it", object.key, type);
}

static void read_llama3(struct rope_object object, struct rope_desc *rope)
{
    struct config_reader *members = object.members;
    rope->low_freq_factor = reader_positive(members, "low_freq_factor", 0);
    rope->high_freq_factor = reader_positive(members, "high_freq_factor", 0);
    if (rope->low_freq_factor == 0 || rope->high_freq_factor == 0)
        reader_fail(members, STATUS_DATA, "%s.%s is missing; rope_type 'llama3' needs it", object.key,
                    rope->low_freq_factor == 0 ? "low_freq_factor" : "high_freq_factor");
    else if (rope->high_freq_factor <= rope->low_freq_factor)
        reader_fail(members, STATUS_DATA, "%s: high_freq_factor %g must be greater than low_freq_factor %g", object.key,
                    rope->high_freq_factor, rope->low_freq_factor);
}

static double rope_yarn_magnitude(double factor, double scale)
{
    return factor <= 1 ? 1 : 0.1 * scale * log(factor) + 1;
}

/* The members that only rope_type "yarn" has; see Peng and others 2023. */
static void read_yarn(struct rope_object object, struct rope_desc *rope)
{
    struct config_reader *members = object.members;
    rope->beta_fast = reader_positive(members, "beta_fast", 32);
    rope->beta_slow = reader_positive(members, "beta_slow", 1);
    rope->untruncated = !reader_bool(members, "truncate", true);
    double scale = reader_positive(members, "mscale", 0), all_dim = reader_positive(members, "mscale_all_dim", 0);
    double magnitude = rope_yarn_magnitude(rope->factor, 1);
    if (scale > 0 && all_dim > 0)
        magnitude = rope_yarn_magnitude(rope->factor, scale) / rope_yarn_magnitude(rope->factor, all_dim);
    rope->attention_factor = reader_positive(members, "attention_factor", magnitude);
    if (rope->theta == 1)
        reader_fail(members, STATUS_DATA, "%s: rope_type 'yarn' needs a rope_theta other than 1", object.key);
}

static json_t *read_longrope_factors(struct rope_object object, const char *key, int64_t count)
{
    const json_t *list = reader_get(object.members, key);
    bool good = json_array_size(list) == (size_t)count;
    for (int64_t i = 0; good && i < count; i++) good = json_number_value(json_array_get(list, (size_t)i)) > 0;
    if (!good)
        reader_fail(object.members, STATUS_DATA,
                    "%s.%s must be a list of %lld numbers above 0, half of the elements that RoPE turns", object.key,
                    key, (long long)count);
    return json_incref((json_t *)list);
}

/* The members that only rope_type "longrope" has; see Ding and others 2024. */
static void read_longrope(struct rope_object object, struct rope_desc *rope, const struct model_desc *desc)
{
    const double original = (double)rope->original_max_positions;
    const double factor = rope->factor > 0 ? rope->factor : (double)desc->max_positions / original;
    rope->short_factor = read_longrope_factors(object, "short_factor", desc->rotary_dim / 2);
    rope->long_factor = read_longrope_factors(object, "long_factor", desc->rotary_dim / 2);
    rope->attention_factor =
        reader_positive(object.members, "attention_factor", factor <= 1 ? 1 : sqrt(1 + log(factor) / log(original)));
}

/* The members of the object; `reader` reads what stands outside of it. */
static void read_object(struct config_reader *reader, struct rope_object object, struct model_desc *desc)
{
    struct rope_desc *rope = object.rope;
    rope->theta = reader_positive(object.members, "rope_theta", rope->theta);
    const bool whole = desc->family == FAMILY_GEMMA4; /* its pairs are of the whole head */
    if (whole) rope->share = reader_positive(object.members, "partial_rotary_factor", 1);
    if (rope->share > 1)
        reader_fail(object.members, STATUS_DATA, "%s.partial_rotary_factor %g is more than 1", object.key, rope->share);
    if (!whole) read_rotary_dim(reader, object, desc);
    read_type(object, rope, whole);
    if (rope->kind == ROPE_LLAMA3)
        read_llama3(object, rope);
    else if (rope->kind == ROPE_YARN)
        read_yarn(object, rope);
    if (desc->family == FAMILY_MINISTRAL3) {
        rope->query_beta = reader_positive(object.members, "llama_4_scaling_beta", 0);
        if (rope->query_beta == 0)
            reader_fail(object.members, STATUS_DATA, "%s.llama_4_scaling_beta is missing", object.key);
    }
    if (rope->kind == ROPE_DYNAMIC) rope->original_max_positions = desc->max_positions;
    if (rope->kind == ROPE_DYNAMIC && desc->rotary_dim == 2)
        reader_fail(object.members, STATUS_DATA, "%s: rope_type 'dynamic' needs heads of more than 2 elements",
                    object.key);
    if (rope->kind != ROPE_LLAMA3 && rope->kind != ROPE_YARN && rope->kind != ROPE_LONGROPE && rope->query_beta == 0)
        return;
    enum { PHI3 = 4096 }; /* its configuration has this default, which wins over the object */
    const char *key = "original_max_position_embeddings";
    const int64_t least = rope->kind == ROPE_LONGROPE ? 2 : 1; /* its logarithm divides */
    const int64_t inside = reader_int(object.members, key, desc->max_positions, least, INT32_MAX);
    rope->original_max_positions = reader_int(reader, key, object.facts->scaling ? inside : PHI3, least, INT32_MAX);
    if (rope->kind == ROPE_LONGROPE && object.members->status == STATUS_OK) read_longrope(object, rope, desc);
    if (object.members->status == STATUS_OK) object.members->status = reader->status;
}

/* Reads one RoPE from `parameters`, the object of config.json's `key` (NULL: absent). theta: where it has none. */
static void read_rope(struct config_reader *reader, const struct rope_facts *facts, const char *key,
                      const json_t *parameters, double theta, struct model_desc *desc, struct rope_desc *rope)
{
    char text[64], scope[64];
    *rope = (struct rope_desc){.kind = ROPE_PLAIN, .theta = theta, .share = 1, .attention_factor = 1};
    if (!parameters)
        read_rotary_dim(reader, (struct rope_object){reader, "", facts, rope}, desc);
    else if (!json_is_object(parameters))
        reader_fail(reader, STATUS_DATA, "%s must be an object, not %s", key, reader_show(parameters, text));
    else if (rope_has_object_member(parameters))
        reader_fail(reader, STATUS_USAGE,
                    "%s per layer type is not supported; hint: use one set of parameters for all layers", key);
    if (!json_is_object(parameters) || rope_has_object_member(parameters)) return;
    snprintf(scope, sizeof scope, "%s.", key);
    struct asked_keys asked = {.count = 0};
    struct config_reader members = {parameters, &asked,         reader->spec, reader->where,
                                    scope,      reader->family, reader->err,  reader->status};
    read_object(reader, (struct rope_object){&members, key, facts, rope}, desc);
    reader_check_spelling(&members, desc);
    reader->status = members.status;
}

static const json_t *rope_object_of_type(const json_t *parameters, const char *type)
{
    const json_t *object = json_object_get(parameters, type);
    return json_is_null(object) ? NULL : object;
}

#define GEMMA4_ROPE "{\"rope_type\":\"proportional\",\"partial_rotary_factor\":0.25}" /* where it has none */

static void read_both(struct config_reader *reader, const struct rope_facts *facts, const json_t *scaling,
                      struct model_desc *desc)
{
    const json_t *types = reader_get(reader, "rope_parameters");
    const json_t *full = rope_object_of_type(types, "full_attention"),
                 *local = rope_object_of_type(types, "sliding_attention");
    const bool gemma4 = desc->family == FAMILY_GEMMA4;
    double theta = gemma4 ? facts->theta : reader_positive(reader, "rope_theta", facts->theta);
    double local_theta = facts->local_key ? reader_positive(reader, facts->local_key, facts->local) : facts->local;
    char text[64];
    if (types &&
        (!json_is_object(types) || json_object_size(types) != (size_t)(!!json_object_get(types, "full_attention") +
                                                                       !!json_object_get(types, "sliding_attention"))))
        reader_fail(reader, STATUS_DATA,
                    "rope_parameters must have the members full_attention and sliding_attention, not %s",
                    reader_show(types, text));
    else if (types && scaling)
        reader_fail(reader, STATUS_DATA, "rope_scaling and rope_parameters contradict each other; hint: remove one");
    if (reader->status != STATUS_OK) return;
    json_auto_t *absent = gemma4 && !full ? json_loads(GEMMA4_ROPE, 0, NULL) : NULL;
    read_rope(reader, facts, types ? "rope_parameters.full_attention" : "rope_scaling",
              absent  ? absent
              : types ? full
                      : scaling,
              theta, desc, &desc->rope);
    read_rope(reader, facts, "rope_parameters.sliding_attention", local, local_theta, desc, &desc->local_rope);
}

/* What transformers takes where Ministral 3 has none. */
#define MINISTRAL3_ROPE                                                                                    \
    "{\"rope_type\":\"yarn\",\"rope_theta\":1e6,\"factor\":16,\"original_max_position_embeddings\":16384," \
    "\"mscale\":1,\"mscale_all_dim\":1,\"llama_4_scaling_beta\":0.1}"
#define GPT_OSS_ROPE \
    "{\"rope_type\":\"yarn\",\"factor\":32,\"original_max_position_embeddings\":4096,\"truncate\":false}"

/* GPT-J has its own key, and no scaling. */
static void read_rotary_elements(struct config_reader *reader, const struct rope_facts *facts, struct model_desc *desc)
{
    desc->rope = (struct rope_desc){.kind = ROPE_PLAIN, .theta = facts->theta, .attention_factor = 1};
    desc->rotary_dim = reader_int(reader, "rotary_dim", 64, 2, desc->head_dim);
    if (desc->rotary_dim % 2 != 0)
        reader_fail(reader, STATUS_DATA, "rotary_dim is %lld, but RoPE needs an even number",
                    (long long)desc->rotary_dim);
}

static void read_ropes(struct config_reader *reader, const struct rope_facts *facts, struct model_desc *desc)
{
    const json_t *scaling = desc->family == FAMILY_GEMMA4 ? NULL : reader_get(reader, "rope_scaling");
    if (json_is_object(scaling) && json_object_size(scaling) == 0) scaling = NULL;
    if (facts->local > 0) {
        read_both(reader, facts, scaling, desc);
        return;
    }
    const char *key = scaling ? "rope_scaling" : "rope_parameters";
    const char *base = desc->family == FAMILY_GPT_NEOX ? "rotary_emb_base" : "rope_theta";
    json_auto_t *absent = desc->family == FAMILY_MINISTRAL3 ? json_loads(MINISTRAL3_ROPE, 0, NULL)
                          : desc->family == FAMILY_GPT_OSS  ? json_loads(GPT_OSS_ROPE, 0, NULL)
                                                            : NULL;
    const json_t *given = reader_get(reader, key);
    read_rope(reader, facts, key, given ? given : absent, reader_positive(reader, base, facts->theta), desc,
              &desc->rope);
}

void model_rope_read(struct config_reader *reader, const struct rope_facts *facts, struct model_desc *desc)
{
    desc->rotary_dim = desc->head_dim;
    if (desc->family == FAMILY_GPTJ)
        read_rotary_elements(reader, facts, desc);
    else
        read_ropes(reader, facts, desc);
    desc->rope.dim = desc->local_rope.dim = desc->rotary_dim;
}

/* ---- frequencies --------------------------------------------------------- */

/* llama3: by the number of turns within the original length: few: slowed down; many: kept; in between: a blend. */
static float llama3_frequency(const struct rope_desc *rope, float f)
{
    const float two_pi = 6.283185307179586F, original = (float)rope->original_max_positions;
    const float low = (float)rope->low_freq_factor, span = (float)(rope->high_freq_factor - rope->low_freq_factor);
    float wavelength = two_pi * (1 / f), factor = (float)rope->factor;
    float keep = (original * (1 / wavelength) - low) / span;
    if (keep <= 0) return f / factor;
    return keep < 1 ? (1 - keep) * f / factor + keep * f : f;
}

/* yarn: the pair, counted from 0, that makes `turns` turns within the original length; a fraction. */
static double yarn_pair(const struct rope_desc *rope, int64_t dim, double turns)
{
    const double two_pi = 6.283185307179586;
    return (double)dim * log((double)rope->original_max_positions / (turns * two_pi)) / (2 * log(rope->theta));
}

/* yarn: pairs up to `first` keep their frequency, the factor slows down those from `last` on; between, a blend. */
struct yarn_range {
    float first, span;
};

static struct yarn_range yarn_range_of(const struct rope_desc *rope, int64_t dim)
{
    double first = yarn_pair(rope, dim, rope->beta_fast), last = yarn_pair(rope, dim, rope->beta_slow);
    if (!rope->untruncated) {
        first = floor(first);
        last = ceil(last);
    }
    first = fmax(first, 0);
    last = fmin(last, (double)dim - 1);
    if (first == last) last += 0.001;
    return (struct yarn_range){(float)first, (float)(last - first)};
}

static float yarn_frequency(const struct rope_desc *rope, struct yarn_range range, float power, int64_t pair)
{
    float ramp = ((float)pair - range.first) / range.span;
    ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
    float keep = 1 - ramp;
    return 1 / ((float)rope->factor * power) * (1 - keep) + 1 / power * keep;
}

bool model_rope_is_stretched(const struct rope_desc *rope, int64_t length)
{
    return (rope->kind == ROPE_DYNAMIC || rope->kind == ROPE_LONGROPE) && length > rope->original_max_positions;
}

int64_t model_desc_longest(const struct model_desc *desc)
{
    return desc->rope.kind == ROPE_DYNAMIC ? INT32_MAX : desc->max_positions;
}

/* dynamic: the base grows with the length. */
static float dynamic_base(const struct rope_desc *rope, int64_t dim, int64_t length)
{
    const float base = (float)rope->theta, turned = (float)dim / (float)(dim - 2);
    if (!model_rope_is_stretched(rope, length)) return base;
    const float times = (float)rope->factor * (float)length / (float)rope->original_max_positions;
    return base * powf(times - (float)(rope->factor - 1), turned);
}

/* In float32, operation by operation as torch: models were trained with its roundings. */
void model_rope_frequencies(const struct rope_desc *rope, int64_t dim, int64_t length, float *inv_freq)
{
    ASSERT(rope->kind != ROPE_NONE && dim > 0 && dim % 2 == 0);
    struct yarn_range range = {0, 1};
    const json_t *factors = model_rope_is_stretched(rope, length) ? rope->long_factor : rope->short_factor;
    const float base = rope->kind == ROPE_DYNAMIC ? dynamic_base(rope, dim, length) : (float)rope->theta;
    if (rope->kind == ROPE_YARN) range = yarn_range_of(rope, dim);
    for (int64_t i = 0; i < dim / 2; i++) {
        float power = powf(base, (float)(2 * i) / (float)dim), f = 1 / power;
        switch (rope->kind) {
        case ROPE_LINEAR: f /= (float)rope->factor; break;
        case ROPE_PROPORTIONAL: f = i < (int64_t)(rope->share * (double)dim / 2) ? f / (float)rope->factor : 0; break;
        case ROPE_LLAMA3: f = llama3_frequency(rope, f); break;
        case ROPE_YARN: f = yarn_frequency(rope, range, power, i); break;
        case ROPE_LONGROPE: f = 1 / ((float)json_number_value(json_array_get(factors, (size_t)i)) * power); break;
        default: break;
        }
        inv_freq[i] = f;
    }
}
