/* SPDX-License-Identifier: Apache-2.0 */
/* model_config.c: config.json -> model_desc. An absent key has its default in transformers (FAMILIES). A key that would
 * change the mathematics and is not implemented is in REFUSALS; one that changes nothing, but whose neglect may
 * surprise, in REMARKS. Other keys are left alone, unless they look like a misspelt key that is read. */
#include "core/model/model_config.h"

#include "core/kept_files.h"
#include "core/memory.h"
#include "core/model/config_reader.h"
#include "core/model/model_folder.h"

/* ---- families ------------------------------------------------------------ */

struct family_facts {
    const char *name;         /* model_type */
    const char *architecture; /* the class with the language-model head */
    const char *stem;         /* of its other classes, "Llama" of LlamaModel. (Gemma 3's without Text take images.) */
    /* the defaults of transformers' configuration classes for absent keys */
    int64_t vocab_size, hidden_size, intermediate_size, num_layers, num_heads;
    int64_t num_kv_heads; /* 0: num_heads */
    int64_t head_dim;     /* 0: hidden_size / num_heads */
    int64_t max_positions;
    bool tied;
    int64_t padding; /* pad_token_id; -1: none */
    double norm_eps;
    struct rope_facts rope;
    struct layer_facts layers;
};

/* clang-format off */
#define NO_WINDOW {WINDOW_NONE, 0, NOPE_NONE, 0, false, false}
#define ROPE(theta) {theta, 0, true, 0, NULL}
#define PARTIAL_ROPE(factor) {1e4, factor, true, 0, NULL}
static const struct family_facts FAMILIES[] = {
    [FAMILY_GPT2]    = {"gpt2", "GPT2LMHeadModel", "GPT2",             50257,  768,     0, 12, 12,  0,   0,   1024, true,  -1,     1e-5, {0},                NO_WINDOW},
    [FAMILY_LLAMA]   = {"llama", "LlamaForCausalLM", "Llama",          32000, 4096, 11008, 32, 32,  0,   0,   2048, false, -1,     1e-6, ROPE(1e4), NO_WINDOW},
    [FAMILY_MISTRAL] = {"mistral", "MistralForCausalLM", "Mistral",    32000, 4096, 14336, 32, 32,  8,   0, 131072, false, -1,     1e-6, ROPE(1e4), {WINDOW_ALL, 4096, NOPE_NONE, 0, false, false}},
    [FAMILY_QWEN2]   = {"qwen2", "Qwen2ForCausalLM", "Qwen2",         151936, 4096, 22016, 32, 32, 32,   0,  32768, false, -1,     1e-6, ROPE(1e4), {WINDOW_FROM, 4096, NOPE_NONE, 0, false, false}},
    [FAMILY_QWEN3]   = {"qwen3", "Qwen3ForCausalLM", "Qwen3",         151936, 4096, 22016, 32, 32, 32, 128,  32768, false, -1,     1e-6, ROPE(1e4), {WINDOW_FROM, 4096, NOPE_NONE, 0, false, false}},
    [FAMILY_PHI3]    = {"phi3", "Phi3ForCausalLM", "Phi3",             32064, 3072,  8192, 32, 32,  0,   0,   4096, false, 32000,  1e-5, {1e4, 1, false, 0, NULL}, {WINDOW_ALL, 0, NOPE_NONE, 0, false, false}},
    [FAMILY_GRANITE] = {"granite", "GraniteForCausalLM", "Granite",    32000, 4096, 11008, 32, 32,  0,   0,   2048, false, -1,     1e-6, ROPE(1e4), NO_WINDOW},
    [FAMILY_SMOLLM3] = {"smollm3", "SmolLM3ForCausalLM", "SmolLM3",   128256, 2048, 11008, 36, 16,  4,   0,  32768, true,  128004, 1e-6, ROPE(2e6), {WINDOW_NOPE, 0, NOPE_LISTED, 0, false, false}},
    [FAMILY_OLMO2]   = {"olmo2", "Olmo2ForCausalLM", "Olmo2",          50304, 4096, 11008, 32, 32,  0,   0,   2048, false, 1,      1e-5, ROPE(1e4), NO_WINDOW},
    [FAMILY_OLMO3]   = {"olmo3", "Olmo3ForCausalLM", "Olmo3",          50304, 4096, 11008, 32, 32,  0,   0,   2048, false, 1,      1e-5, {5e5, 0, true, 5e5, NULL}, {WINDOW_PATTERN, 4096, NOPE_NONE, 4, false, false}},
    [FAMILY_BERT]    = {"bert", "BertForMaskedLM", "Bert",             30522,  768,  3072, 12, 12,  0,   0,    512, false, 0,     1e-12, {0},                NO_WINDOW},
    [FAMILY_GEMMA2]  = {"gemma2", "Gemma2ForCausalLM", "Gemma2",      256000, 2304,  9216, 26,  8,  4, 256,   8192, true,  0,      1e-6, ROPE(1e4), {WINDOW_PATTERN, 4096, NOPE_NONE, 2, false, false}},
    [FAMILY_GEMMA3]  = {"gemma3_text", "Gemma3ForCausalLM", "Gemma3Text",262208, 2304,  9216, 26,  8,  4, 256, 131072, true,  0,      1e-6, {1e6, 0, true, 1e4, "rope_local_base_freq"}, {WINDOW_PATTERN, 4096, NOPE_NONE, 6, true, false}},
    [FAMILY_GLM]     = {"glm", "GlmForCausalLM", "Glm",               151552, 4096, 13696, 40, 32,  2, 128, 131072, false, 151329, 1.5625e-7, PARTIAL_ROPE(0.5), NO_WINDOW},
    [FAMILY_GLM4]    = {"glm4", "Glm4ForCausalLM", "Glm4",            151552, 4096, 13696, 40, 32,  2, 128, 131072, false, 151329, 1.5625e-7, PARTIAL_ROPE(0.5), NO_WINDOW},
    [FAMILY_MINISTRAL3] = {"ministral3", "Ministral3ForCausalLM", "Ministral3", 131072, 4096, 14336, 34, 32, 8, 128, 262144, false, 11, 1e-5, ROPE(1e4), {WINDOW_ALL, 0, NOPE_NONE, 0, false, false}},
    [FAMILY_GPTJ]    = {"gptj", "GPTJForCausalLM", "GPTJ",             50400, 4096,     0, 28, 16,  0,   0,   2048, false, -1,     1e-5, {1e4, 0, false, 0, NULL}, NO_WINDOW},
    [FAMILY_GPT_NEOX] = {"gpt_neox", "GPTNeoXForCausalLM", "GPTNeoX",  50432, 6144, 24576, 44, 64,  0,   0,   2048, false, -1,     1e-5, PARTIAL_ROPE(0.25), NO_WINDOW},
    [FAMILY_PHI]     = {"phi", "PhiForCausalLM", "Phi",                51200, 2048,  8192, 24, 32,  0,   0,   2048, false, -1,     1e-5, PARTIAL_ROPE(0.5),  NO_WINDOW},
    [FAMILY_COHERE]  = {"cohere", "CohereForCausalLM", "Cohere",      256000, 8192, 22528, 40, 64,  0,   0,   8192, true,  0,      1e-5, ROPE(5e5),          NO_WINDOW},
    [FAMILY_COHERE2] = {"cohere2", "Cohere2ForCausalLM", "Cohere2",   256000, 8192, 22528, 40, 64,  0,   0,   8192, true,  0,      1e-5, ROPE(1e4),          {WINDOW_PATTERN, 4096, NOPE_FULL, 4, true, false}},
    [FAMILY_STARCODER2] = {"starcoder2", "Starcoder2ForCausalLM", "Starcoder2", 49152, 3072, 12288, 30, 24, 2, 0, 4096, true, -1,   1e-5, ROPE(1e4),          {WINDOW_ALL, 0, NOPE_NONE, 0, false, false}},
    [FAMILY_EXAONE4] = {"exaone4", "Exaone4ForCausalLM", "Exaone4",   102400, 4096, 16384, 32, 32, 32,   0,   2048, false, -1,     1e-5, ROPE(1e4),          {WINDOW_PATTERN_OR_NONE, 4096, NOPE_FULL, 4, true, false}},
    [FAMILY_SEED_OSS] = {"seed_oss", "SeedOssForCausalLM", "SeedOss", 155136, 4096, 27648, 64, 80,  8, 128, 524288, false, 1,      1e-6, ROPE(1e4),          NO_WINDOW},
    [FAMILY_QWEN3_5] = {"qwen3_5_text", "Qwen3_5ForCausalLM", "Qwen3_5Text", 248320, 4096, 12288, 32, 16, 4, 256, 32768, false, -1,    1e-6, PARTIAL_ROPE(0.25), {WINDOW_NONE, 0, NOPE_NONE, 4, false, true}},
    [FAMILY_GEMMA4]  = {"gemma4_text", "Gemma4ForCausalLM", "Gemma4Text",262144, 2304,  9216, 30,  8,  4, 256, 131072, true,  0,      1e-6, {1e6, 0, true, 1e4, NULL}, {WINDOW_PATTERN, 512, NOPE_NONE, 6, false, false}},
    [FAMILY_QWEN3_MOE] = {"qwen3_moe", "Qwen3MoeForCausalLM", "Qwen3Moe", 151936, 2048, 6144, 24, 32, 4, 0,  32768, false, -1,      1e-6, ROPE(1e4), {WINDOW_IF_USED, 4096, NOPE_NONE, 0, false, false}},
    [FAMILY_QWEN2_MOE] = {"qwen2_moe", "Qwen2MoeForCausalLM", "Qwen2Moe", 151936, 2048, 5632, 24, 16, 16, 0, 32768, false, -1,      1e-6, ROPE(1e4), {WINDOW_EVEN_UNTIL, 4096, NOPE_NONE, 0, false, false}},
    [FAMILY_MIXTRAL] = {"mixtral", "MixtralForCausalLM", "Mixtral",    32000, 4096, 14336, 32, 32,  8,   0, 131072, false, -1,     1e-5, ROPE(1e6), {WINDOW_ALL, 0, NOPE_NONE, 0, false, false}},
    [FAMILY_OLMOE]   = {"olmoe", "OlmoeForCausalLM", "Olmoe",          50304, 2048,  2048, 16, 16,  0,   0,   4096, false, 1,      1e-5, ROPE(1e4), NO_WINDOW},
    [FAMILY_GRANITE_MOE] = {"granitemoe", "GraniteMoeForCausalLM", "GraniteMoe", 32000, 4096, 11008, 32, 32, 0, 0, 2048, false, -1, 1e-6, ROPE(1e4), NO_WINDOW},
    [FAMILY_GPT_OSS] = {"gpt_oss", "GptOssForCausalLM", "GptOss",     201088, 2880,  2880, 36, 64,  8,  64, 131072, false, -1,     1e-5, ROPE(1.5e5), {WINDOW_PATTERN, 128, NOPE_NONE, 2, false, false}},
    [FAMILY_GLM4_MOE] = {"glm4_moe", "Glm4MoeForCausalLM", "Glm4Moe", 151552, 4096, 10944, 46, 96,  8,   0, 131072, false, -1,     1e-5, PARTIAL_ROPE(0.5), NO_WINDOW},
};
/* clang-format on */
_Static_assert(COUNT_OF(FAMILIES) == FAMILY_COUNT, "every family has its facts");

/* Limits that keep every product of sizes far from overflow (a tensor has at most 2^52 elements, a model 2^62). */
static const int64_t MAX_VOCAB = INT32_MAX, MAX_POSITIONS = INT32_MAX, MAX_HIDDEN = 1 << 20, MAX_LAYERS = 10000;

const char *model_family_name(enum model_family family)
{
    ASSERT((int)family >= 0 && family < FAMILY_COUNT);
    return FAMILIES[family].name;
}

/* The names of all families, for messages: "gpt2, llama, … and gemma3_text". */
static const char *model_family_list(char *text, size_t size)
{
    size_t used = 0;
    for (int i = 0; i < FAMILY_COUNT && used < size; i++) {
        const char *glue = i == 0 ? "" : i == FAMILY_COUNT - 1 ? " and " : ", ";
        used += (size_t)snprintf(text + used, size - used, "%s%s", glue, FAMILIES[i].name);
    }
    return text;
}

/* ---- refusals and notices ------------------------------------------------ */

#define FAMILY_BIT(name) name = 1LL << FAMILY_##name,
enum { MODEL_FAMILIES(FAMILY_BIT) };
enum { OLMO = OLMO2 | OLMO3, GEMMA = GEMMA2 | GEMMA3, GEMMAS = GEMMA | GEMMA4, GLMS = GLM | GLM4 };
enum { COHERES = COHERE | COHERE2 };
enum { EXPERTS = QWEN3_MOE | QWEN2_MOE | MIXTRAL | OLMOE | GRANITE_MOE | GPT_OSS | GLM4_MOE };
enum { ALL = (1LL << FAMILY_COUNT) - 1, CAUSAL = ALL & ~BERT, ROTARY = CAUSAL & ~GPT2 };
/* of the model's parts */
enum { LAYER_NORM = GPT2 | BERT | GPTJ | GPT_NEOX | PHI | COHERES | STARCODER2, BIASED = LAYER_NORM & ~COHERES };
enum {
    UNGATED = BIASED,
    OLD_NAMES = GPT2 | GPTJ,
    WITHOUT_WINDOW = BERT | GPT2 | LLAMA | GRANITE | OLMO2 | GLMS | GPTJ | QWEN3_5 | OLMOE | GRANITE_MOE | GLM4_MOE
};
enum {
    ATTENTION_BIAS = LLAMA | QWEN3 | QWEN3_5 | GRANITE | SMOLLM3 | OLMO | GEMMAS | GLMS | GPT_NEOX | COHERES |
                     SEED_OSS | (EXPERTS & ~(QWEN2_MOE | MIXTRAL))
};
enum { MLP_BIAS = LLAMA | GRANITE | SMOLLM3 | SEED_OSS, LAYER_NORM_EPS = BERT | GPT_NEOX | PHI | COHERES };

/* Keys of these families that have one supported value. */
struct limited_key {
    const char *keys[3];
    int64_t families;
    const char *value; /* JSON; null and absence are accepted as well */
    const char *why;
};

/* Another value is an error, with a hint. */
static const struct limited_key REFUSALS[] = {
    {{"is_encoder_decoder"}, ALL, "false", "ztrain trains decoders only"},
    {{"is_causal"}, CAUSAL, "true", "ztrain trains causal models only"},
    {{"is_causal"}, BERT, "false", "BERT looks both ways"},
    {{"is_decoder"}, BERT, "false", "BERT is trained as an encoder"},
    {{"position_embedding_type"}, BERT, "\"absolute\"", "positions are absolute in BERT"},
    {{"per_layer_config"}, ALL & ~GEMMA4, "null", "all blocks must be alike"},
    {{"pruned_heads"}, ALL, "{}", "use the unpruned model"},
    {{"add_cross_attention"}, GPT2 | BERT, "false", "ztrain trains decoders without cross-attention only"},
    {{"scale_attn_weights"}, GPT2, "true", "attention scores are always scaled by 1/sqrt(head size)"},
    {{"scale_attn_by_inverse_layer_idx"}, GPT2, "false", "attention scores are not scaled by the layer's number"},
    {{"use_mrope"}, ROTARY, "false", "multimodal RoPE is not supported"},
    {{"use_bidirectional_attention"}, GEMMA, "false", "ztrain trains causal models only"},
    {{"enable_moe_block"}, GEMMA4, "false", "Gemma 4 without experts is"},
    {{"attn_output_gate"}, QWEN3_5, "true", "attention has a gate"},
    {{"qk_layernorm"}, PHI, "false", "norms of q and k are not supported here"},
    {{"use_qk_norm"}, COHERE, "false", "norms of q and k are not supported here"},
    {{"clip_qkv"}, OLMOE, "null", "q, k and v are not clipped"},
    {{"router_jitter_noise"}, MIXTRAL, "0", "routers without noise are supported"},
};

#define NO_EFFECT "has no effect in this family, as in transformers"

/* Another value is a notice: transformers ignores the key in these families, or it changes nothing in ztrain. */
static const struct limited_key REMARKS[] = {
    {{"pretraining_tp"}, ROTARY, "1", "matrices are not split: the mathematics is the same, the rounding differs"},
    /* keys that another of the families reads */
    {{"attention_bias"}, ALL & ~ATTENTION_BIAS & ~(BERT | OLD_NAMES), "false", NO_EFFECT},
    {{"attention_out_bias"}, ALL & ~SEED_OSS, "false", NO_EFFECT},
    {{"mlp_bias"}, ALL & ~MLP_BIAS & ~(BERT | GPT2), "false", NO_EFFECT},
    {{"use_bias"}, ALL & ~STARCODER2, "true", NO_EFFECT},
    {{"sliding_window"}, WITHOUT_WINDOW | GPT_NEOX | PHI | SEED_OSS | COHERE, "null", NO_EFFECT},
    {{"use_sliding_window"}, WITHOUT_WINDOW, "false", NO_EFFECT},
    {{"use_sliding_window"},
     ROTARY & ~(WITHOUT_WINDOW | QWEN2 | QWEN3 | SMOLLM3 | QWEN2_MOE | QWEN3_MOE),
     "true",
     NO_EFFECT},
    {{"hidden_act"}, OLD_NAMES, "null", NO_EFFECT},
    {{"hidden_act"}, GEMMAS, "\"gelu_pytorch_tanh\"", NO_EFFECT},
    {{"hidden_activation"}, ALL & ~GEMMAS, "null", NO_EFFECT},
    {{"intermediate_size"}, OLD_NAMES, "null", NO_EFFECT},
    {{"num_key_value_heads", "head_dim"}, OLD_NAMES | BERT | GPT_NEOX, "null", NO_EFFECT},
    {{"rope_theta", "rope_scaling", "rope_parameters"}, OLD_NAMES | BERT, "null", NO_EFFECT},
    {{"rope_theta", "partial_rotary_factor"}, GPT_NEOX, "null", NO_EFFECT},
    {{"rope_theta", "rope_scaling"}, GEMMA4, "null", NO_EFFECT},
    {{"rms_norm_eps"}, LAYER_NORM, "null", NO_EFFECT},
    {{"activation_function", "n_inner", "layer_norm_epsilon"}, ALL & ~OLD_NAMES, "null", NO_EFFECT},
    /* keys with which other families change the mathematics */
    {{"layer_norm_eps"}, ALL & ~LAYER_NORM_EPS, "null", NO_EFFECT},
    {{"norm_epsilon"}, ALL & ~STARCODER2, "null", NO_EFFECT},
    {{"attn_logit_softcapping"}, ALL & ~GEMMA2, "null", NO_EFFECT},
    {{"final_logit_softcapping"}, ALL & ~GEMMAS, "null", NO_EFFECT},
    {{"query_pre_attn_scalar"}, ALL & ~GEMMA, "null", NO_EFFECT},
    {{"logit_scale"}, ALL & ~COHERES, "1", NO_EFFECT},
    {{"logits_scaling", "attention_multiplier"}, ALL & ~(GRANITE | GRANITE_MOE), "1", NO_EFFECT},
    {{"embedding_multiplier", "residual_multiplier"}, ALL & ~(GRANITE | GRANITE_MOE), "1", NO_EFFECT},
    {{"clip_qkv"}, ALL & ~OLMOE, "null", NO_EFFECT},
    {{"qk_layernorm"}, ALL & ~PHI, "false", NO_EFFECT},
    {{"use_qk_norm"}, ALL & ~(QWEN3 | COHERES | GLM4_MOE), "false", NO_EFFECT},
    {{"use_parallel_residual"}, ALL & ~GPT_NEOX, "false", NO_EFFECT},
    {{"rotary_dim"}, ALL & ~GPTJ, "null", NO_EFFECT},
    {{"rotary_pct", "rotary_emb_base"}, ALL & ~GPT_NEOX, "1", NO_EFFECT},
    {{"alibi"}, ALL, "false", NO_EFFECT},
    {{"no_rope_layers"}, ALL & ~SMOLLM3, "null", NO_EFFECT},
    {{"rope_local_base_freq"}, ALL & ~GEMMA3, "null", NO_EFFECT},
    {{"sliding_window_pattern"}, ALL & ~(GEMMA3 | COHERE2 | EXAONE4), "null", NO_EFFECT},
    {{"num_experts", "num_local_experts"}, ALL & ~EXPERTS, "null", NO_EFFECT},
    {{"attention_chunk_size"}, ALL, "null", NO_EFFECT},
};

/* These keys do not count as asked for: a key similar to one of them is not its misspelling (tie_encoder_decoder). */
static void config_check_limited(struct config_reader *reader, struct model_desc *desc, const struct limited_key *row,
                                 bool refuses)
{
    char text[64];
    for (size_t i = 0; i < COUNT_OF(row->keys) && row->keys[i] && row->families & 1LL << desc->family; i++) {
        const json_t *value = json_object_get(reader->object, row->keys[i]);
        if (!value || json_is_null(value) || reader_value_is(value, row->value)) continue;
        if (refuses)
            reader_fail(reader, STATUS_USAGE, "%s %s is not supported; hint: %s", row->keys[i],
                        reader_show(value, text), row->why);
        else
            config_notice(desc, "%s %s: %s", row->keys[i], reader_show(value, text), row->why);
    }
}

/* The keys of dropout. absent: the rate of transformers where config.json has no key, which ztrain does not apply. */
static const struct dropout_key {
    const char *key;
    int64_t families;
    size_t offset; /* of the rate in struct dropout_rates */
    double absent;
} DROPOUT_KEYS[] = {
    {"resid_pdrop", GPT2, offsetof(struct dropout_rates, residual), 0.1},
    {"embd_pdrop", GPT2, offsetof(struct dropout_rates, embedding), 0.1},
    {"attn_pdrop", GPT2, offsetof(struct dropout_rates, attention), 0.1},
    {"resid_pdrop", PHI3 | GPTJ | PHI, offsetof(struct dropout_rates, residual), 0},
    {"embd_pdrop", GPTJ | PHI, offsetof(struct dropout_rates, embedding), 0},
    {"attn_pdrop", GPTJ, offsetof(struct dropout_rates, attention), 0},
    {"attention_dropout", ROTARY & ~(GPTJ | SEED_OSS), offsetof(struct dropout_rates, attention), 0},
    {"attention_dropout", SEED_OSS, offsetof(struct dropout_rates, attention), 0.1},
    {"hidden_dropout", GPT_NEOX, offsetof(struct dropout_rates, embedding), 0},
    {"hidden_dropout", GPT_NEOX, offsetof(struct dropout_rates, residual), 0},
    {"embedding_dropout", STARCODER2, offsetof(struct dropout_rates, embedding), 0},
    {"residual_dropout", STARCODER2, offsetof(struct dropout_rates, residual), 0},
    {"residual_dropout", SEED_OSS, offsetof(struct dropout_rates, residual), 0.1},
    {"hidden_dropout_prob", BERT, offsetof(struct dropout_rates, embedding), 0.1},
    {"hidden_dropout_prob", BERT, offsetof(struct dropout_rates, residual), 0},
    {"attention_probs_dropout_prob", BERT, offsetof(struct dropout_rates, attention), 0.1},
    {"classifier_dropout", BERT, offsetof(struct dropout_rates, pooled), 0}, /* null: hidden_dropout_prob */
};

#define DROPOUT_NOTICE "dropout: config.json does not have "

/* A rate that is written applies; one line names the absent ones whose default is not 0 in transformers. */
static void read_dropout(struct config_reader *reader, struct model_desc *desc)
{
    char list[256] = "", text[64];
    for (size_t i = 0; i < COUNT_OF(DROPOUT_KEYS); i++) {
        const struct dropout_key *row = &DROPOUT_KEYS[i];
        if (!(row->families & 1LL << desc->family)) continue;
        const json_t *value = reader_get(reader, row->key);
        const double rate = json_number_value(value);
        if (value && (!json_is_number(value) || rate < 0 || rate > 1))
            reader_fail(reader, STATUS_DATA, "%s must be a number from 0 to 1, not %s", row->key,
                        reader_show(value, text));
        else if (value)
            *(double *)(void *)((char *)&desc->dropout + row->offset) = rate;
        else if (row->absent > 0)
            snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", *list ? ", " : "", row->key);
    }
    if (desc->family == FAMILY_PHI3) reader_get(reader, "embd_pdrop"); /* transformers does not use it */
    if (!reader_get(reader, "classifier_dropout")) desc->dropout.pooled = desc->pooler ? desc->dropout.residual : 0;
    if (*list)
        config_notice(desc,
                      DROPOUT_NOTICE "%s, so nothing is dropped there (transformers: 0.1); hint: model.dropout sets it",
                      list);
}

void model_desc_set_dropout(struct model_desc *desc, double rate)
{
    for (size_t i = 0; i < COUNT_OF(DROPOUT_KEYS); i++)
        if (DROPOUT_KEYS[i].families & 1LL << desc->family)
            *(double *)(void *)((char *)&desc->dropout + DROPOUT_KEYS[i].offset) = rate;
    for (int i = desc->notices.count - 1; i >= 0; i--) {
        if (strncmp(desc->notices.items[i], DROPOUT_NOTICE, strlen(DROPOUT_NOTICE)) != 0) continue;
        free(desc->notices.items[i]);
        memmove(&desc->notices.items[i], &desc->notices.items[i + 1],
                (size_t)(desc->notices.count - i - 1) * sizeof *desc->notices.items);
        desc->notices.count--;
    }
}

/* ---- parts of a description ---------------------------------------------- */

bool model_family_classifies(enum model_family family)
{
    return (1LL << family & ~(GRANITE | OLMO | COHERES | QWEN3_5 | GEMMA4 | EXPERTS)) != 0;
}

#define CLASSIFIER "ForSequenceClassification"

/* Whether the class is the family's with this end: "LlamaModel", "LlamaForSequenceClassification". */
static bool config_class(const char *architecture, enum model_family family, const char *end)
{
    const size_t stem = strlen(FAMILIES[family].stem);
    return strncmp(architecture, FAMILIES[family].stem, stem) == 0 && strcmp(architecture + stem, end) == 0;
}

/* Whether a folder was saved from the model without its head, or is of an encoder without a classifier's. */
static bool config_is_base(enum model_family family, const char *architecture)
{
    static const char *const encoder[] = {"ForMaskedLM", "ForPreTraining", "ForNextSentencePrediction", "LMHeadModel"};
    for (size_t i = 0; family == FAMILY_BERT && i < COUNT_OF(encoder); i++)
        if (config_class(architecture, family, encoder[i])) return true;
    return config_class(architecture, family, "Model");
}

void model_desc_class(const struct model_desc *desc, char name[MODEL_CLASS_MAX])
{
    if (desc->num_labels > 0)
        snprintf(name, MODEL_CLASS_MAX, "%s" CLASSIFIER, FAMILIES[desc->family].stem);
    else
        snprintf(name, MODEL_CLASS_MAX, "%s", FAMILIES[desc->family].architecture);
}

/* The labels of a …ForSequenceClassification folder, as transformers counts them: id2label, else num_labels, else 2. */
static void config_num_labels(struct config_reader *reader, struct model_desc *desc)
{
    enum { USUAL = 2, MOST = 1 << 20 };
    const json_t *names = reader_get(reader, "id2label"), *problem = reader_get(reader, "problem_type");
    char text[64];
    if (problem && !reader_value_is(problem, "\"single_label_classification\""))
        reader_fail(reader, STATUS_USAGE, "problem_type %s is not supported; hint: single_label_classification is",
                    reader_show(problem, text));
    desc->num_labels = reader_int(reader, "num_labels", USUAL, 1, MOST);
    if (names && !json_is_object(names))
        reader_fail(reader, STATUS_DATA, "id2label must be an object, not %s", reader_show(names, text));
    else if (names)
        desc->num_labels = (int64_t)json_object_size(names);
    if (desc->num_labels < 1 || desc->num_labels > MOST)
        reader_fail(reader, STATUS_USAGE, "a classifier with %" PRId64 " labels is not supported", desc->num_labels);
}

/* Kinds of models that are known and not supported, by a part of their model_type. */
static const struct unsupported {
    const char *parts[8], *kind, *hint;
} UNSUPPORTED[] = {
    {{"deepseek_v2", "deepseek_v3", "kimi", "glm4_moe_lite", "longcat"},
     "a model with multi-head latent attention (MLA)",
     "of mixtures of experts qwen3_moe, qwen2_moe, mixtral, olmoe, granitemoe, gpt_oss and glm4_moe are"},
    {{"moe", "llama4", "dbrx", "qwen3_next"},
     "a mixture of experts (MoE)",
     "qwen3_moe, qwen2_moe, mixtral, olmoe, granitemoe, gpt_oss and glm4_moe are"},
    {{"gemma3n", "_vl", "llava", "mllama", "pixtral", "phi4_multimodal", "paligemma"},
     "a multimodal model",
     "the text of gemma3, gemma4, qwen2_5_vl, qwen3_vl, qwen3_5, mistral3, llava and internvl is"},
};

static void config_refuse_type(struct config_reader *reader, const char *type)
{
    static const char *const encoders[] = {"roberta",    "xlm-roberta", "distilbert", "albert",
                                           "deberta-v2", "electra",     "camembert",  "modernbert"};
    char list[512];
    for (size_t i = 0; i < COUNT_OF(encoders); i++)
        if (strcmp(type, encoders[i]) == 0)
            reader_fail(
                reader, STATUS_USAGE,
                "model.task: sequence_classification is not supported yet for '%s', whose attention looks both ways; "
                "hint: " MODEL_CLASSIFYING_FAMILIES " classify",
                type);
    for (const struct unsupported *row = UNSUPPORTED; row < UNSUPPORTED + COUNT_OF(UNSUPPORTED); row++)
        for (size_t i = 0; i < COUNT_OF(row->parts) && row->parts[i]; i++)
            if (strstr(type, row->parts[i]))
                reader_fail(reader, STATUS_USAGE, "model_type '%.100s' is %s, which is not supported; hint: %s", type,
                            row->kind, row->hint);
    reader_fail(reader, STATUS_USAGE, "model_type '%.100s' is not supported; hint: %s are", type,
                model_family_list(list, sizeof list));
}

static void read_family(struct config_reader *reader, struct model_desc *desc)
{
    const char *type = reader_string(reader, "model_type", NULL);
    int family = 0;
    while (type && family < FAMILY_COUNT && strcmp(type, FAMILIES[family].name) != 0) family++;
    if (!type)
        reader_fail(reader, STATUS_DATA, "model_type is missing; hint: a Hugging Face config.json names it");
    else if (family == FAMILY_COUNT)
        config_refuse_type(reader, type);
    if (reader->status != STATUS_OK) return;
    desc->family = (enum model_family)family;
    reader->family = FAMILIES[family].name;

    const json_t *list = reader_get(reader, "architectures");
    char text[64];
    if (!list || (json_is_array(list) && json_array_size(list) == 0)) return;
    const json_t *first = json_array_get(list, 0);
    if (!json_is_string(first))
        reader_fail(reader, STATUS_DATA, "architectures must be a list of names, not %s", reader_show(list, text));
    else if (model_family_classifies(desc->family) && config_class(json_string_value(first), desc->family, CLASSIFIER))
        config_num_labels(reader, desc);
    else if (config_is_base(desc->family, json_string_value(first)))
        return;
    else if (strcmp(json_string_value(first), FAMILIES[family].architecture) != 0)
        reader_fail(reader, STATUS_USAGE, "architectures %s is not supported with model_type '%s'; hint: %s is",
                    reader_show(list, text), type,
                    family == FAMILY_BERT ? "BertForSequenceClassification or BertForPreTraining"
                                          : FAMILIES[family].architecture);
}

/* GPT-2 has its own names for sizes; transformers accepts the general ones as well. */
static int64_t config_get_size(struct config_reader *reader, bool gpt2, const char *gpt2_key, const char *key,
                               int64_t absent, int64_t max)
{
    if (!gpt2) return reader_int(reader, key, absent, 1, max);
    int64_t general = reader_int(reader, key, absent, 1, max), own = reader_int(reader, gpt2_key, general, 1, max);
    if (reader_get(reader, key) && own != general)
        reader_fail(reader, STATUS_DATA, "%s %" PRId64 " and %s %" PRId64 " contradict each other", gpt2_key, own, key,
                    general);
    return own;
}

static void read_sizes(struct config_reader *reader, struct model_desc *desc)
{
    const struct family_facts *facts = &FAMILIES[desc->family];
    const bool gpt2 = 1LL << desc->family & OLD_NAMES;
    desc->vocab_size = reader_int(reader, "vocab_size", facts->vocab_size, 1, MAX_VOCAB);
    desc->hidden_size = config_get_size(reader, gpt2, "n_embd", "hidden_size", facts->hidden_size, MAX_HIDDEN);
    desc->num_layers = config_get_size(reader, gpt2, "n_layer", "num_hidden_layers", facts->num_layers, MAX_LAYERS);
    desc->num_heads = config_get_size(reader, gpt2, "n_head", "num_attention_heads", facts->num_heads, MAX_HEADS);
    desc->max_positions =
        config_get_size(reader, gpt2, "n_positions", "max_position_embeddings", facts->max_positions, MAX_POSITIONS);
    desc->intermediate_size =
        gpt2 ? reader_int(reader, "n_inner", 4 * desc->hidden_size, 1, MAX_INTERMEDIATE)
             : reader_int(reader, "intermediate_size", facts->intermediate_size, 1, MAX_INTERMEDIATE);
    if (gpt2 || 1LL << desc->family & (BERT | GPT_NEOX)) {
        desc->num_kv_heads = desc->num_heads;
    } else {
        /* an explicit null means num_attention_heads; an absent key, the family's default */
        bool null = json_is_null(json_object_get(reader->object, "num_key_value_heads"));
        int64_t absent = facts->num_kv_heads && !null ? facts->num_kv_heads : desc->num_heads;
        desc->num_kv_heads = reader_int(reader, "num_key_value_heads", absent, 1, MAX_HEADS);
        if (desc->family != FAMILY_COHERE2) /* transformers overwrites it */
            desc->head_dim = reader_int(reader, "head_dim", reader_is_null(reader, "head_dim") ? 0 : facts->head_dim, 1,
                                        MAX_HEAD_DIM);
    }
    if (reader->status != STATUS_OK) return;
    int64_t C = desc->hidden_size, H = desc->num_heads;
    /* transformers requires this of some families in any case */
    if (C % H != 0 && (desc->head_dim == 0 || 1LL << desc->family & (LLAMA | GEMMA)))
        reader_fail(reader, STATUS_DATA, "hidden size %" PRId64 " is not a multiple of the %" PRId64 " attention heads",
                    C, H);
    if (desc->head_dim == 0) desc->head_dim = C / H;
    if (H % desc->num_kv_heads != 0)
        reader_fail(reader, STATUS_DATA,
                    "num_attention_heads %" PRId64 " is not a multiple of num_key_value_heads %" PRId64 "%s", H,
                    desc->num_kv_heads,
                    reader_get(reader, "num_key_value_heads") ? "" : " (the default of this model_type)");
    if (1LL << desc->family & ROTARY && desc->head_dim % 2 != 0)
        reader_fail(reader, STATUS_DATA, "head_dim is %" PRId64 ", but RoPE needs an even number", desc->head_dim);
    if (H * desc->head_dim > MAX_INTERMEDIATE)
        reader_fail(reader, STATUS_DATA, "%" PRId64 " heads of size %" PRId64 " are more than the supported %" PRId64,
                    H, desc->head_dim, MAX_INTERMEDIATE);
}

/* The names of the tanh form of GELU but for two. */
#define GELU_TANH "gelu_fast", "gelu_python_tanh", "gelu_accurate"

/* The names that an activation has in config.json; the first one of a family is its default. */
static const struct activation {
    int64_t families;
    const char *key;
    enum mlp_kind kind;
    const char *names[5];
} ACTIVATIONS[] = {
    {OLD_NAMES, "activation_function", MLP_GELU, {"gelu_new", "gelu_pytorch_tanh", GELU_TANH}},
    {OLD_NAMES & ~GPT2, "activation_function", MLP_GELU_ERF, {"gelu", "gelu_python"}},
    {BERT | GPT_NEOX, "hidden_act", MLP_GELU_ERF, {"gelu", "gelu_python"}},
    {BERT | GPT_NEOX | PHI, "hidden_act", MLP_GELU, {"gelu_new", "gelu_pytorch_tanh", GELU_TANH}},
    {STARCODER2, "hidden_act", MLP_GELU, {"gelu_pytorch_tanh", "gelu_new", GELU_TANH}},
    {PHI | STARCODER2, "hidden_act", MLP_GELU_ERF, {"gelu", "gelu_python"}},
    {GEMMAS, "hidden_activation", MLP_GEGLU, {"gelu_pytorch_tanh", "gelu_new", GELU_TANH}},
    {ALL & ~(GEMMAS | UNGATED), "hidden_act", MLP_SWIGLU, {"silu", "swish"}},
};

static void read_activation(struct config_reader *reader, struct model_desc *desc)
{
    const struct activation *first = ACTIVATIONS;
    while (!(first->families & 1LL << desc->family)) first++;
    const char *name = reader_string(reader, first->key, first->names[0]), *other = first->names[1];
    for (const struct activation *row = first; row < ACTIVATIONS + COUNT_OF(ACTIVATIONS); row++) {
        if (!(row->families & 1LL << desc->family)) continue;
        other = row == first ? other : row->names[0];
        for (size_t i = 0; i < COUNT_OF(row->names) && row->names[i]; i++) {
            if (strcmp(name, row->names[i]) != 0) continue;
            desc->mlp = row->kind;
            return;
        }
    }
    reader_fail(reader, STATUS_USAGE, "%s '%.60s' is not supported; hint: %s or %s is", first->key, name,
                first->names[0], other);
}

/* The names of dtypes in config.json. */
static const char *const DTYPE_NAMES[] = {[DTYPE_F32] = "float32", [DTYPE_BF16] = "bfloat16", [DTYPE_F16] = "float16"};

static void read_dtype(struct config_reader *reader, struct model_desc *desc)
{
    const char *name = reader_string(reader, "dtype", reader_string(reader, "torch_dtype", NULL));
    if (!name) return;
    if (strncmp(name, "torch.", 6) == 0) name += 6;
    for (int i = 0; i < DTYPE_COUNT; i++)
        if (strcmp(name, DTYPE_NAMES[i]) == 0) {
            desc->has_torch_dtype = true;
            desc->torch_dtype = (enum dtype)i;
        }
}

/* pad_token_id: torch's Embedding starts that row as zeros, without a gradient. A negative one counts from the end. */
static void read_padding(struct config_reader *reader, struct model_desc *desc)
{
    int64_t V = desc->vocab_size, absent = FAMILIES[desc->family].padding;
    desc->padding_token = -1;
    bool by_default = absent >= 0 && absent < V && !json_object_get(reader->object, "pad_token_id");
    if (1LL << desc->family & (OLD_NAMES | GPT_NEOX) || (!reader_get(reader, "pad_token_id") && !by_default)) return;
    int64_t id = reader_int(reader, "pad_token_id", absent, -V, V - 1);
    desc->padding_token = id < 0 ? id + V : id;
}

int64_t model_desc_untrained_token(const struct model_desc *desc)
{
    return desc->trains_padding ? -1 : desc->padding_token;
}

/* Granite's. attention_multiplier takes the place of 1/sqrt(head_dim). */
static void read_multipliers(struct config_reader *reader, struct model_desc *desc)
{
    desc->embedding_multiplier = reader_positive(reader, "embedding_multiplier", 1);
    desc->residual_multiplier = reader_positive(reader, "residual_multiplier", 1);
    desc->attention_scale = reader_positive(reader, "attention_multiplier", 1);
    desc->logit_multiplier = 1 / reader_positive(reader, "logits_scaling", 1);
}

static double config_softcap(struct config_reader *reader, const char *key, double absent)
{
    return reader_positive(reader, key, reader_is_null(reader, key) ? 0 : absent);
}

/* Gemma's. Its query_pre_attn_scalar takes the place of head_dim in 1/sqrt(head_dim). */
static void read_gemma(struct config_reader *reader, struct model_desc *desc)
{
    desc->norm_offset = 1;
    desc->embedding_multiplier = sqrt((double)desc->hidden_size);
    desc->embedding_rounds = true;
    desc->attention_scale = 1 / sqrt(reader_positive(reader, "query_pre_attn_scalar", 256));
    if (desc->family == FAMILY_GEMMA2) desc->attention_softcap = config_softcap(reader, "attn_logit_softcapping", 50);
    double softcap = config_softcap(reader, "final_logit_softcapping", desc->family == FAMILY_GEMMA2 ? 30 : 0);
    desc->logit_softcap = desc->num_labels ? 0 : softcap; /* a classifier has none */
}

static void read_gemma4(struct config_reader *reader, struct model_desc *desc)
{
    const json_t *both_ways = reader_get(reader, "use_bidirectional_attention");
    char text[64];
    desc->embedding_multiplier = sqrt((double)desc->hidden_size);
    desc->embedding_rounds = true;
    desc->attention_scale = 1;
    desc->v_norm = desc->layer_scalar = true;
    desc->logit_softcap = config_softcap(reader, "final_logit_softcapping", 0);
    const int64_t inputs = reader_is_null(reader, "hidden_size_per_layer_input") ? 0 : 256;
    desc->layer_inputs = reader_int(reader, "hidden_size_per_layer_input", inputs, 0, MAX_HIDDEN);
    desc->layer_vocab = reader_int(reader, "vocab_size_per_layer_input", 262144, 1, MAX_VOCAB);
    if (desc->layer_inputs && desc->layer_vocab < desc->vocab_size)
        reader_fail(reader, STATUS_DATA, "vocab_size_per_layer_input %" PRId64 " is less than vocab_size %" PRId64,
                    desc->layer_vocab, desc->vocab_size);
    if (desc->layer_inputs * desc->num_layers > MAX_INTERMEDIATE)
        reader_fail(reader, STATUS_DATA,
                    "hidden_size_per_layer_input %" PRId64 " in %" PRId64 " layers is more than the supported %" PRId64,
                    desc->layer_inputs, desc->num_layers, MAX_INTERMEDIATE);
    if (both_ways && !reader_value_is(both_ways, "\"vision\"")) /* which is of tokens of images */
        reader_fail(reader, STATUS_USAGE,
                    "use_bidirectional_attention %s is not supported; hint: ztrain trains causal models only",
                    reader_show(both_ways, text));
}

static double config_norm_eps(struct config_reader *reader, const struct model_desc *desc)
{
    const int64_t family = 1LL << desc->family;
    const char *key = family & OLD_NAMES        ? "layer_norm_epsilon"
                      : family & LAYER_NORM_EPS ? "layer_norm_eps"
                      : family & STARCODER2     ? "norm_epsilon"
                                                : "rms_norm_eps";
    return reader_positive(reader, key, FAMILIES[desc->family].norm_eps);
}

static void read_biases(struct config_reader *reader, struct model_desc *desc)
{
    const int64_t family = 1LL << desc->family;
    desc->norm_bias = family & BIASED;
    desc->head_bias = family & (GPTJ | PHI);
    desc->qkv_bias = family & (BIASED & ~GPTJ) || family & QWEN2;
    desc->mlp_bias = family & BIASED;
    if (family & STARCODER2) desc->qkv_bias = desc->mlp_bias = reader_bool(reader, "use_bias", true);
    if (family & QWEN2_MOE) desc->qkv_bias = reader_bool(reader, "qkv_bias", true);
    if (family & ATTENTION_BIAS)
        desc->qkv_bias = reader_bool(reader, "attention_bias", family & (GLMS | GPT_NEOX | SEED_OSS | GPT_OSS));
    if (family & MLP_BIAS) desc->mlp_bias = reader_bool(reader, "mlp_bias", false);
    desc->o_bias = desc->qkv_bias && !(family & (QWEN2 | GLMS | SEED_OSS | QWEN2_MOE | GLM4_MOE));
    if (family & SEED_OSS) desc->o_bias = reader_bool(reader, "attention_out_bias", false);
}

/* Qwen3.5's layers with a gated delta rule, and the gate of the others. */
static void read_delta(struct config_reader *reader, struct model_desc *desc)
{
    struct delta_desc *delta = &desc->delta;
    delta->key_heads = reader_int(reader, "linear_num_key_heads", 16, 1, MAX_HEADS);
    delta->value_heads = reader_int(reader, "linear_num_value_heads", 32, 1, MAX_HEADS);
    delta->key_dim = reader_int(reader, "linear_key_head_dim", 128, 1, MAX_HEAD_DIM);
    delta->value_dim = reader_int(reader, "linear_value_head_dim", 128, 1, MAX_HEAD_DIM);
    delta->taps = reader_int(reader, "linear_conv_kernel_dim", 4, 1, 4);
    desc->norm_offset = 1;
    desc->gated_attention = true;
    if (delta->value_heads % delta->key_heads != 0)
        reader_fail(reader, STATUS_DATA,
                    "linear_num_value_heads %" PRId64 " is not a multiple of linear_num_key_heads %" PRId64,
                    delta->value_heads, delta->key_heads);
    if (delta_channels(delta) > MAX_INTERMEDIATE)
        reader_fail(reader, STATUS_DATA,
                    "the linear heads' sizes add up to %" PRId64 ", more than the supported %" PRId64,
                    delta_channels(delta), MAX_INTERMEDIATE);
}

static void config_blocks(struct config_reader *reader, struct model_desc *desc)
{
    const int64_t family = 1LL << desc->family;
    desc->norm = family & LAYER_NORM ? NORM_LAYER : NORM_RMS;
    desc->norm_eps = config_norm_eps(reader, desc);
    desc->norm_place = family & (OLMO | EXAONE4)  ? NORM_AFTER
                       : family & (GEMMAS | GLM4) ? NORM_BOTH
                       : family & BERT            ? NORM_AFTER_RESIDUAL
                                                  : NORM_BEFORE;
    desc->residual = family & (GPTJ | PHI | COHERES) ? RESIDUAL_PARALLEL_ONE_NORM : RESIDUAL_IN_TURN;
    if (family & GPT_NEOX && reader_bool(reader, "use_parallel_residual", true)) desc->residual = RESIDUAL_PARALLEL;
    const bool head_norms = family & (QWEN3 | QWEN3_5 | GEMMA3 | GEMMA4 | EXAONE4 | QWEN3_MOE) ||
                            (family & GLM4_MOE && reader_bool(reader, "use_qk_norm", false));
    desc->qk_norm = head_norms ? QK_NORM_HEADS : family & (OLMO | OLMOE) ? QK_NORM_PROJECTION : QK_NORM_NONE;
    desc->weights_in_out = desc->scale_residual_init = family & GPT2;
    desc->fused_qkv = family & (GPT2 | PHI3 | GPT_NEOX);
    desc->qkv_by_head = family & GPT_NEOX;
    desc->fused_gate_up = family & (PHI3 | GLMS);
    desc->rope_pairs = family & (GLMS | GPTJ | COHERES);
    desc->bidirectional = desc->embedding_norm = desc->pooler = family & BERT;
    read_biases(reader, desc);
    read_activation(reader, desc);
    if (family & BERT) desc->num_types = reader_int(reader, "type_vocab_size", 2, 1, 1 << 16);
    if (family & (GRANITE | GRANITE_MOE)) read_multipliers(reader, desc);
    if (family & COHERES) desc->logit_multiplier = reader_positive(reader, "logit_scale", 0.0625);
    if (family & GEMMA) read_gemma(reader, desc);
    if (family & GEMMA4) read_gemma4(reader, desc);
    if (family & QWEN3_5) read_delta(reader, desc);
    if (family & EXPERTS) model_experts_read(reader, desc);
    desc->sinks = family & GPT_OSS;
    if (family & ROTARY) model_rope_read(reader, &FAMILIES[desc->family].rope, desc);
}

/* The keys that depend on the family; the sizes are known. */
static void config_parts(struct config_reader *reader, struct model_desc *desc)
{
    desc->embedding_multiplier = desc->residual_multiplier = desc->logit_multiplier = 1;
    desc->attention_scale = 1 / sqrt((double)desc->head_dim);
    desc->layers = memory_zeroed((size_t)desc->num_layers, sizeof *desc->layers);
    for (size_t i = 0; i < COUNT_OF(REFUSALS); i++) config_check_limited(reader, desc, &REFUSALS[i], true);
    for (size_t i = 0; i < COUNT_OF(REMARKS); i++) config_check_limited(reader, desc, &REMARKS[i], false);
    config_blocks(reader, desc);
    read_dropout(reader, desc);
    model_layers_read(reader, &FAMILIES[desc->family].layers, desc);
    read_padding(reader, desc);
    read_dtype(reader, desc);
    model_quantization_read(reader, desc);
}

static enum status read_config(const json_t *config, bool spec, const char *where, struct model_desc *desc,
                               struct error *err)
{
    memset(desc, 0, sizeof *desc);
    struct asked_keys asked = {.count = 0};
    struct config_reader reader = {config, &asked, spec, where, "", NULL, err, STATUS_OK};
    if (!json_is_object(config))
        reader_fail(&reader, STATUS_DATA, "expected a JSON object with a model's configuration");
    else
        read_family(&reader, desc);
    if (reader.status != STATUS_OK) return reader.status;

    read_sizes(&reader, desc);
    config_parts(&reader, desc);
    desc->tied = reader_bool(&reader, "tie_word_embeddings", FAMILIES[desc->family].tied);
    const double usual = desc->family == FAMILY_STARCODER2 ? 0.018042 : 0.02;
    desc->initializer_range = reader_positive(&reader, "initializer_range", usual);
    desc->tied = desc->tied && desc->num_labels == 0 && !desc->bidirectional; /* a classifier's head is its own */
    reader_check_spelling(&reader, desc);
    if (reader.status == STATUS_OK)
        desc->source = json_deep_copy(config);
    else
        model_desc_release(desc);
    return reader.status;
}

/* Of a multimodal folder the text model is read. */
static enum status read_whole_config(const json_t *config, bool spec, const char *where, struct model_desc *desc,
                                     struct error *err)
{
    struct config_reader reader = {config, NULL, spec, where, "", NULL, err, STATUS_OK};
    json_auto_t *text = model_multimodal_text(&reader);
    OWNED char *part = memory_printf("%s%s", where, json_object_get(config, "text_config") ? ": text_config" : "");
    memset(desc, 0, sizeof *desc);
    if (reader.status == STATUS_OK)
        reader.status = read_config(text ? text : config, spec, text ? part : where, desc, err);
    if (text && reader.status == STATUS_OK && desc->experts.count) {
        reader.where = part;
        reader_fail(&reader, STATUS_USAGE,
                    "model_type '%s' is a mixture of experts (MoE), which is not supported in a multimodal folder; "
                    "hint: a text model is",
                    FAMILIES[desc->family].name);
        model_desc_release(desc);
    }
    if (text && reader.status == STATUS_OK) {
        desc->multimodal = true;
        json_decref(desc->source);
        desc->source = json_deep_copy(config);
    }
    return reader.status;
}

enum status model_desc_from_json(const json_t *config, const char *where, struct model_desc *desc, struct error *err)
{
    return read_whole_config(config, false, where, desc, err);
}

enum status model_desc_from_spec(const json_t *config, struct model_desc *desc, struct error *err)
{
    return read_whole_config(config, true, "model.config", desc, err);
}

/* The config.json of a folder, which is kept or is there, or the file that `path` is. */
static enum status find_config(const char *path, char file[FS_PATH_MAX], struct error *err)
{
    size_t size;
    TRY(fs_join(file, path, "config.json", STATUS_DATA, err));
    OWNED char *kept = kept_files_read(file, &size);
    if (kept || fs_is_dir(path)) return STATUS_OK;
    if (snprintf(file, FS_PATH_MAX, "%s", path) >= FS_PATH_MAX)
        return error_set(err, STATUS_DATA, "path too long: '%.200s…'", path);
    return STATUS_OK;
}

enum status model_desc_keep(const char *path, struct error *err)
{
    char file[FS_PATH_MAX];
    TRY(find_config(path, file, err));
    return kept_files_add(file, err);
}

enum status model_desc_load(const char *path, struct model_desc *desc, struct error *err)
{
    memset(desc, 0, sizeof *desc);
    char file[FS_PATH_MAX], adapter[FS_PATH_MAX];
    size_t size;
    TRY(find_config(path, file, err));
    TRY(fs_join(adapter, path, "adapter_config.json", STATUS_DATA, err));
    if (!fs_exists(file) && fs_exists(adapter))
        return error_set(err, STATUS_USAGE,
                         "'%s' holds a LoRA adapter (adapter_config.json), not a model; hint: model.adapter takes it, "
                         "and model.pretrained the folder of its base model",
                         path);
    OWNED char *text = kept_files_read(file, &size);
    if (!text && !fs_exists(path) && model_folder_is_name(path)) return model_folder_missing(path, STATUS_DATA, err);
    if (!text && fs_read_file(file, 1 << 20, STATUS_DATA, &text, &size, err) != STATUS_OK)
        return error_hint(err, "a Hugging Face model folder holds config.json");
    json_error_t parse;
    json_auto_t *config = json_loadb(text, size, JSON_REJECT_DUPLICATES, &parse);
    if (!config)
        return error_set(err, STATUS_DATA, "%s:%d:%d: not valid JSON: %s", file, parse.line, parse.column, parse.text);
    return model_desc_from_json(config, file, desc, err);
}

void model_desc_release(struct model_desc *desc)
{
    free(desc->layers);
    for (struct rope_desc *rope = &desc->rope; rope; rope = rope == &desc->rope ? &desc->local_rope : NULL) {
        json_decref(rope->short_factor);
        json_decref(rope->long_factor);
    }
    json_decref(desc->source);
    string_list_release(&desc->notices);
    string_list_release(&desc->quantization.skip);
    memset(desc, 0, sizeof *desc);
}

static void config_set_dtype(json_t *config, enum dtype dtype)
{
    bool old_name = json_object_get(config, "torch_dtype") != NULL;
    if (old_name) json_object_set_new(config, "torch_dtype", json_string(DTYPE_NAMES[dtype]));
    if (!old_name || json_object_get(config, "dtype"))
        json_object_set_new(config, "dtype", json_string(DTYPE_NAMES[dtype]));
}

json_t *model_desc_export_config(const struct model_desc *desc, enum dtype dtype)
{
    json_t *config = json_deep_copy(desc->source), *text = json_object_get(config, "text_config");
    json_object_del(config, "quantization_config");
    config_set_dtype(config, dtype);
    if (desc->multimodal && (json_object_get(text, "torch_dtype") || json_object_get(text, "dtype")))
        config_set_dtype(text, dtype);
    if (desc->multimodal) return config;
    char class[MODEL_CLASS_MAX];
    model_desc_class(desc, class);
    json_object_set_new(config, "architectures", json_pack("[s]", class));
    json_object_set_new(config, "model_type", json_string(FAMILIES[desc->family].name));
    return config;
}
