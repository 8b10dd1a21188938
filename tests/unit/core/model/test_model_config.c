/* SPDX-License-Identifier: Apache-2.0 */
/* test_model_config.c: the model description of a config.json as transformers computes it (tests/golden/names), errors
 * with their words, notices, and exports. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/fsutil.h"
#include "core/model/model_config.h"
#include "core/model/tensor_table.h"

static enum status load(const char *text, struct model_desc *desc, struct error *err)
{
    json_t *config = json_loads(text, JSON_DECODE_ANY, NULL);
    assert_non_null(config);
    enum status status = model_desc_from_json(config, "c.json", desc, err);
    json_decref(config);
    return status;
}

static void load_good(const char *text, struct model_desc *desc)
{
    struct error err;
    if (load(text, desc, &err) != STATUS_OK) fail_msg("%s: %s", text, err.text);
}

/* ---- transformers' own answers ------------------------------------------- */

static void check_tensors(const struct tensor_table *table, const json_t *tensors)
{
    assert_int_equal(table->num_tensors, json_object_size(tensors));
    for (int i = 0; i < table->num_tensors; i++) {
        const struct tensor_info *tensor = &table->tensors[i];
        const json_t *shape = json_object_get(tensors, tensor->name);
        if (!shape) fail_msg("%s is not in transformers' model", tensor->name);
        assert_int_equal(tensor->ndim, json_array_size(shape));
        for (int d = 0; d < tensor->ndim; d++)
            assert_int_equal(tensor->shape[d], json_integer_value(json_array_get(shape, (size_t)d)));
    }
}

/* Equal within four roundings of float32: torch and the C library each have their own powf, whose last bit a blend of
 * llama3 can double. */
static void check_frequency(const float *inv_freq, int64_t i, double want)
{
    if (fabs(inv_freq[i] - want) > 4.8e-7 * want)
        fail_msg("inverse frequency %d: %.9g, %.9g expected", (int)i, inv_freq[i], want);
}

static void check_rope(const struct rope_desc *rope, int64_t length, const json_t *expected)
{
    assert_int_equal(rope->dim / 2, json_array_size(expected));
    float *inv_freq = malloc((size_t)rope->dim / 2 * sizeof *inv_freq);
    model_rope_frequencies(rope, rope->dim, length, inv_freq);
    for (int64_t i = 0; i < rope->dim / 2; i++) {
        check_frequency(inv_freq, i, json_real_value(json_array_get(expected, (size_t)i)));
    }
    free(inv_freq);
}

static void check_case(const json_t *golden)
{
    const json_t *config = json_object_get(golden, "config"), *windows = json_object_get(golden, "windows");
    struct model_desc desc;
    struct tensor_table table;
    struct error err;
    if (model_desc_from_json(config, "golden", &desc, &err) != STATUS_OK) fail_msg("%s", err.text);
    tensor_table_build(&desc, &table);
    check_tensors(&table, json_object_get(golden, "tensors"));
    assert_int_equal(desc.tied, json_is_true(json_object_get(golden, "tied")));
    assert_true(desc.norm_eps == json_number_value(json_object_get(golden, "eps")));
    for (size_t i = 0; i < json_array_size(windows); i++)
        assert_int_equal(desc.layers[i].window, json_integer_value(json_array_get(windows, i)));
    const json_t *nope = json_object_get(golden, "no_rope"), *delta = json_object_get(golden, "delta");
    const json_t *sparse = json_object_get(golden, "sparse"), *experts = json_object_get(golden, "experts");
    assert_int_equal(desc.experts.count, json_integer_value(json_array_get(experts, 0)));
    assert_int_equal(desc.experts.per_token, json_integer_value(json_array_get(experts, 1)));
    for (int64_t i = 0; i < desc.num_layers; i++) {
        assert_int_equal(desc.layers[i].no_rope, json_is_true(json_array_get(nope, (size_t)i)));
        assert_int_equal(desc.layers[i].delta, json_is_true(json_array_get(delta, (size_t)i)));
        assert_int_equal(desc.layers[i].sparse, json_is_true(json_array_get(sparse, (size_t)i)));
    }
    if (desc.rope.kind != ROPE_NONE) {
        const json_t *beyond = json_object_get(golden, "beyond"); /* the frequencies of a longer sequence */
        check_rope(&desc.rope, beyond ? desc.rope.original_max_positions : 0, json_object_get(golden, "inv_freq"));
        if (beyond)
            check_rope(&desc.rope, json_integer_value(json_object_get(beyond, "length")),
                       json_object_get(beyond, "inv_freq"));
        assert_true(fabs(desc.rope.attention_factor - json_number_value(json_object_get(golden, "rope_factor"))) <
                    1e-12);
    }
    const json_t *local = json_object_get(golden, "local_inv_freq");
    assert_int_equal(desc.local_rope.kind != ROPE_NONE, local != NULL);
    if (local) {
        const json_t *factor = json_object_get(golden, "local_rope_factor");
        check_rope(&desc.local_rope, 0, local);
        assert_true(fabs(desc.local_rope.attention_factor - json_number_value(factor)) < 1e-12);
    }
    for (int64_t i = 0; i < desc.num_layers; i++)
        assert_int_equal(desc.layers[i].local_rope, local && desc.layers[i].window > 0);
    const json_t *scale = json_object_get(golden, "scale");
    assert_true(!scale || fabs(desc.attention_scale - json_number_value(scale)) < 1e-12);
    const json_t *caps = json_object_get(golden, "softcaps"), *embedding = json_object_get(golden, "embedding");
    assert_true(desc.attention_softcap == json_number_value(json_array_get(caps, 0)));
    assert_true(desc.logit_softcap == json_number_value(json_array_get(caps, 1)));
    assert_true(!embedding || fabs(desc.embedding_multiplier - json_number_value(embedding)) < 1e-12);
    tensor_table_release(&table);
    model_desc_release(&desc);
}

/* The cases in which the exact value, rounded to float32, is furthest from torch's float32 computation: heads whose
 * size is not a power of two. */
static void test_rope_rounding(void **state)
{
    (void)state;
    static const struct {
        double theta, want; /* want: the value of torch */
        int64_t head_dim, i;
    } cases[] = {{1e4, 0.0022908670362085104, 100, 33},
                 {5e5, 0.001075936364941299, 96, 25},
                 {1e6, 0.000477058463729918, 112, 31},
                 {1e6, 5.3088464483153075e-05, 160, 57}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        float inv_freq[80];
        struct rope_desc rope = {ROPE_PLAIN, .theta = cases[i].theta};
        model_rope_frequencies(&rope, cases[i].head_dim, 0, inv_freq);
        check_frequency(inv_freq, cases[i].i, cases[i].want);
    }
}

static void test_golden(void **state)
{
    (void)state;
    for (int family = 0; family < FAMILY_COUNT; family++) {
        char path[128];
        snprintf(path, sizeof path, "tests/golden/names/%s.json", model_family_name((enum model_family)family));
        json_t *cases = json_load_file(path, 0, NULL);
        assert_true(json_array_size(cases) > 5);
        for (size_t i = 0; i < json_array_size(cases); i++) check_case(json_array_get(cases, i));
        json_decref(cases);
    }
}

/* ---- faults -------------------------------------------------------------- */

#define LLAMA "\"model_type\":\"llama\",\"hidden_size\":32,\"num_attention_heads\":4,\"num_hidden_layers\":2"
#define QWEN2                                                                                                        \
    "\"model_type\":\"qwen2\",\"hidden_size\":32,\"num_attention_heads\":4,\"num_hidden_layers\":2,\"num_key_value_" \
    "heads\":4"
#define MISTRAL "\"model_type\":\"mistral\",\"hidden_size\":32,\"num_attention_heads\":8,\"num_hidden_layers\":2"
#define PHI3 "\"model_type\":\"phi3\",\"hidden_size\":32,\"num_attention_heads\":4,\"num_hidden_layers\":2"
#define SMOLLM3                                                                                                       \
    "\"model_type\":\"smollm3\",\"hidden_size\":32,\"num_attention_heads\":4,\"num_hidden_layers\":2,\"vocab_size\":" \
    "50"
#define BERT "\"model_type\":\"bert\",\"hidden_size\":32,\"num_attention_heads\":4,\"num_hidden_layers\":2"
#define GEMMA2 "\"model_type\":\"gemma2\",\"hidden_size\":32,\"num_attention_heads\":4,\"num_hidden_layers\":2"
#define GEMMA4 "\"model_type\":\"gemma4_text\",\"hidden_size\":32,\"num_attention_heads\":4,\"num_hidden_layers\":4"
#define GEMMA3 "\"model_type\":\"gemma3_text\",\"hidden_size\":32,\"num_attention_heads\":4,\"num_hidden_layers\":2"
#define GPT2 "\"model_type\":\"gpt2\",\"n_embd\":32,\"n_head\":4,\"n_layer\":2"

#define CLASSIFIER LLAMA ",\"architectures\":[\"LlamaForSequenceClassification\"]"

static const struct {
    const char *config;
    enum status status;
    const char *words; /* in the message */
} FAULTS[] = {
    {"[]", STATUS_DATA, "expected a JSON object"},
    {"{}", STATUS_DATA, "model_type is missing"},
    {"{\"model_type\": 3}", STATUS_DATA, "model_type must be a string, not 3"},
    {"{\"model_type\": \"roberta\"}", STATUS_USAGE, "sequence_classification is not supported yet for 'roberta'"},
    {"{" BERT ",\"hidden_act\":\"relu\"}", STATUS_USAGE, "hidden_act 'relu' is not supported; hint: gelu or gelu_new"},
    {"{" BERT ",\"position_embedding_type\":\"relative_key\"}", STATUS_USAGE,
     "position_embedding_type \"relative_key\" is not supported; hint: positions are absolute"},
    {"{" BERT ",\"is_decoder\":true}", STATUS_USAGE, "is_decoder true is not supported"},
    {"{" BERT ",\"add_cross_attention\":true}", STATUS_USAGE, "add_cross_attention true is not supported"},
    {"{" BERT ",\"type_vocab_size\":0}", STATUS_DATA, "type_vocab_size"},
    {"{" BERT ",\"hidden_dropout_prob\":2}", STATUS_DATA, "hidden_dropout_prob must be a number from 0 to 1"},
    {"{" BERT ",\"num_attention_heads\":5}", STATUS_DATA, "hidden size 32 is not a multiple of the 5 attention heads"},
    {"{" BERT ",\"architectures\":[\"BertForQuestionAnswering\"]}", STATUS_USAGE,
     "is not supported with model_type 'bert'; hint: BertForSequenceClassification or BertForPreTraining is"},
    {"{\"model_type\": \"mamba\"}", STATUS_USAGE,
     "'mamba' is not supported; hint: gpt2, llama, mistral, qwen2, qwen3, phi3, granite, smollm3, olmo2, olmo3, bert, "
     "gemma2, gemma3_text, glm, glm4, ministral3, gptj, gpt_neox, phi, cohere, cohere2, starcoder2, exaone4, "
     "seed_oss, qwen3_5_text, gemma4_text, qwen3_moe, qwen2_moe, mixtral, olmoe, granitemoe, gpt_oss and glm4_moe are"},
    {"{" LLAMA ",\"architectures\":[\"LlamaForTokenClassification\"]}", STATUS_USAGE, "LlamaForCausalLM is"},
    {"{" LLAMA ",\"architectures\":[\"GPT2ForSequenceClassification\"]}", STATUS_USAGE, "LlamaForCausalLM is"},
    {"{" CLASSIFIER ",\"id2label\":{}}", STATUS_USAGE, "a classifier with 0 labels is not supported"},
    {"{\"model_type\":\"granite\",\"architectures\":[\"GraniteForSequenceClassification\"]}", STATUS_USAGE,
     "GraniteForCausalLM is"},
    {"{" CLASSIFIER ",\"id2label\":7}", STATUS_DATA, "id2label must be an object, not 7"},
    {"{" CLASSIFIER ",\"problem_type\":\"regression\"}", STATUS_USAGE, "problem_type \"regression\" is not supported"},
    {"{" LLAMA ",\"architectures\":[\"Qwen2Model\"]}", STATUS_USAGE, "LlamaForCausalLM is"},
    {"{" LLAMA ",\"architectures\":7}", STATUS_DATA, "architectures must be a list"},
    /* sizes */
    {"{" LLAMA ",\"vocab_size\":0}", STATUS_DATA, "vocab_size is 0, expected 1 … 2147483647"},
    {"{" LLAMA ",\"vocab_size\":3000000000}", STATUS_DATA, "vocab_size is 3000000000"},
    {"{" LLAMA ",\"vocab_size\":100.0}", STATUS_DATA, "vocab_size must be an integer, not 100.0"},
    {"{" LLAMA ",\"intermediate_size\":\"64\"}", STATUS_DATA, "intermediate_size must be an integer, not \"64\""},
    {"{\"model_type\":\"llama\",\"hidden_size\":2000000}", STATUS_DATA, "hidden_size is 2000000"},
    {"{\"model_type\":\"llama\",\"num_hidden_layers\":-1}", STATUS_DATA, "num_hidden_layers is -1"},
    {"{\"model_type\":\"llama\",\"hidden_size\":30,\"num_attention_heads\":4}", STATUS_DATA, "not a multiple of the 4"},
    {"{\"model_type\":\"llama\",\"hidden_size\":30,\"num_attention_heads\":4,\"head_dim\":8}", STATUS_DATA, "multiple"},
    {"{" LLAMA ",\"num_key_value_heads\":3}", STATUS_DATA, "not a multiple of num_key_value_heads 3"},
    {"{\"model_type\":\"qwen2\",\"hidden_size\":32,\"num_attention_heads\":4}", STATUS_DATA, "32 (the default of this"},
    {"{" LLAMA ",\"head_dim\":7}", STATUS_DATA, "head_dim is 7, but RoPE needs an even number"},
    {"{\"model_type\":\"qwen3\",\"num_attention_heads\":65536,\"num_key_value_heads\":1,\"head_dim\":16384}",
     STATUS_DATA, "more than the supported"},
    {"{" GPT2 ",\"hidden_size\":48}", STATUS_DATA, "n_embd 32 and hidden_size 48 contradict"},
    {"{" GPT2 ",\"n_inner\":0}", STATUS_DATA, "n_inner is 0"},
    {"{" GPT2 ",\"n_positions\":null,\"n_head\":5}", STATUS_DATA, "hidden size 32 is not a multiple of the 5"},
    /* numbers and switches */
    {"{" LLAMA ",\"rms_norm_eps\":0}", STATUS_DATA, "rms_norm_eps must be a number above 0, not 0"},
    {"{" LLAMA ",\"rms_norm_eps\":\"1e-5\"}", STATUS_DATA, "rms_norm_eps must be a number"},
    {"{" LLAMA ",\"initializer_range\":-1.5}", STATUS_DATA, "initializer_range"},
    {"{" LLAMA ",\"attention_bias\":1}", STATUS_DATA, "attention_bias must be true or false, not 1"},
    {"{" LLAMA ",\"tie_word_embeddings\":\"yes\"}", STATUS_DATA, "tie_word_embeddings must be true or false"},
    {"{" LLAMA ",\"torch_dtype\":16}", STATUS_DATA, "torch_dtype must be a string"},
    {"{" LLAMA ",\"attention_dropout\":2}", STATUS_DATA, "attention_dropout must be a number from 0 to 1"},
    {"{" LLAMA ",\"pad_token_id\":32000}", STATUS_DATA, "pad_token_id is 32000"},
    /* features of transformers that ztrain does not have */
    {"{" LLAMA ",\"hidden_act\":\"gelu\"}", STATUS_USAGE, "hidden_act 'gelu' is not supported; hint: silu"},
    {"{" GPT2 ",\"activation_function\":\"gelu\"}", STATUS_USAGE, "hint: gelu_new or gelu_pytorch_tanh"},
    {"{" GPT2 ",\"scale_attn_weights\":false}", STATUS_USAGE, "scale_attn_weights false is not supported"},
    {"{" GPT2 ",\"scale_attn_by_inverse_layer_idx\":true}", STATUS_USAGE, "scale_attn_by_inverse_layer_idx true"},
    {"{" GPT2 ",\"add_cross_attention\":true}", STATUS_USAGE, "add_cross_attention"},
    {"{" GPT2 ",\"pruned_heads\":{\"0\":[1]}}", STATUS_USAGE, "pruned_heads"},
    {"{" LLAMA ",\"quantization_config\":{\"bits\":4}}", STATUS_USAGE, "quant_method '' is not read"},
    {"{" LLAMA ",\"is_encoder_decoder\":true}", STATUS_USAGE, "is_encoder_decoder"},
    {"{" LLAMA ",\"is_causal\":false}", STATUS_USAGE, "is_causal"},
    {"{" LLAMA ",\"per_layer_config\":{\"0\":{}}}", STATUS_USAGE, "per_layer_config"},
    {"{" LLAMA ",\"partial_rotary_factor\":0.5}", STATUS_USAGE,
     "partial_rotary_factor 0.5 is not supported with model_type 'llama'"},
    {"{" QWEN2 ",\"use_mrope\":true}", STATUS_USAGE, "use_mrope"},
    /* RoPE */
    {"{" LLAMA ",\"rope_theta\":-1}", STATUS_DATA, "rope_theta must be a number above 0"},
    {"{" LLAMA ",\"rope_scaling\":5}", STATUS_DATA, "rope_scaling must be an object, not 5"},
    {"{" LLAMA ",\"rope_scaling\":{\"factor\":2}}", STATUS_DATA, "rope_scaling has a factor but no rope_type"},
    {"{" LLAMA ",\"rope_scaling\":{\"type\":\"linear\"}}", STATUS_DATA, "rope_scaling.factor is missing"},
    {"{" LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}}", STATUS_DATA, "rope_scaling.factor must be"},
    {"{" LLAMA ",\"rope_scaling\":{\"type\":\"dynamic\"}}", STATUS_DATA, "rope_scaling.factor is missing"},
    {"{" LLAMA ",\"head_dim\":2,\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}}", STATUS_DATA,
     "'dynamic' needs heads of more than 2 elements"},
    {"{" LLAMA ",\"rope_parameters\":{\"rope_type\":\"ntk\",\"factor\":2}}", STATUS_USAGE,
     "hint: default, linear, llama3"},
    {"{" LLAMA ",\"rope_parameters\":{\"rope_type\":\"longrope\",\"short_factor\":[1]}}", STATUS_DATA,
     "rope_parameters.short_factor must be a list of 4 numbers above 0"},
    {"{" LLAMA ",\"rope_parameters\":{\"rope_type\":\"longrope\",\"short_factor\":[1,1,1,1]}}", STATUS_DATA,
     "rope_parameters.long_factor must be a list of 4 numbers above 0"},
    {"{" LLAMA
     ",\"rope_parameters\":{\"rope_type\":\"longrope\",\"short_factor\":[1,1,1,1],\"long_factor\":[1,0,1,1]}}",
     STATUS_DATA, "rope_parameters.long_factor must be a list"},
    {"{" LLAMA ",\"rope_parameters\":{\"rope_type\":\"longrope\",\"original_max_position_embeddings\":1}}", STATUS_DATA,
     "original_max_position_embeddings is 1"},
    {"{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"yarn\"}}", STATUS_DATA, "rope_scaling.factor is missing"},
    {"{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2,\"beta_fast\":-1}}", STATUS_DATA,
     "beta_fast must be"},
    {"{" LLAMA ",\"rope_theta\":1,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2}}", STATUS_DATA,
     "other than 1"},
    {"{" PHI3 ",\"rope_scaling\":{\"type\":\"su\"}}", STATUS_DATA, "rope_scaling.short_factor must be a list"},
    {"{" PHI3 ",\"rope_scaling\":{\"type\":\"yarn\",\"short_factor\":[\"a\"]}}", STATUS_DATA,
     "rope_scaling.short_factor must be a list"},
    {"{" PHI3 ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}", STATUS_USAGE,
     "'linear' is not supported; hint: default and longrope are"},
    {"{" PHI3 ",\"partial_rotary_factor\":0.4}", STATUS_DATA, "RoPE would turn 3 elements"},
    {"{" PHI3 ",\"partial_rotary_factor\":1.5}", STATUS_DATA, "RoPE would turn 12 elements"},
    /* layers without RoPE, multipliers */
    {"{" SMOLLM3 ",\"no_rope_layers\":[1]}", STATUS_DATA, "no_rope_layers must be a list of 2 numbers"},
    {"{" SMOLLM3 ",\"no_rope_layers\":[1,2]}", STATUS_DATA, "for each layer, not 2"},
    {"{" SMOLLM3 ",\"no_rope_layer_interval\":0}", STATUS_DATA, "no_rope_layer_interval is 0"},
    {"{\"model_type\":\"granite\",\"logits_scaling\":0}", STATUS_DATA, "logits_scaling must be a number above 0"},
    /* kinds of models */
    {"{\"model_type\":\"ernie4_5_moe\"}", STATUS_USAGE, "'ernie4_5_moe' is a mixture of experts (MoE), which is not"},
    {"{\"model_type\":\"deepseek_v3\"}", STATUS_USAGE,
     "is a model with multi-head latent attention (MLA), which is not"},
    {"{\"model_type\":\"olmoe\",\"clip_qkv\":8}", STATUS_USAGE, "clip_qkv 8 is not supported"},
    {"{\"model_type\":\"mixtral\",\"router_jitter_noise\":0.1}", STATUS_USAGE, "router_jitter_noise 0.1 is not"},
    {"{\"model_type\":\"mixtral\",\"num_local_experts\":513}", STATUS_DATA, "num_local_experts"},
    {"{\"model_type\":\"mixtral\",\"num_local_experts\":4,\"num_experts_per_tok\":5}", STATUS_DATA,
     "num_experts_per_tok"},
    {"{\"model_type\":\"qwen3_moe\",\"mlp_only_layers\":[-1]}", STATUS_DATA,
     "mlp_only_layers must be a list of layers"},
    {"{\"model_type\":\"qwen3_moe\",\"router_aux_loss_coef\":-1}", STATUS_DATA,
     "router_aux_loss_coef must be a number, 0"},
    {"{\"model_type\":\"glm4_moe\",\"head_dim\":128,\"n_group\":3}", STATUS_DATA,
     "128 experts cannot be in n_group 3 groups"},
    {"{\"model_type\":\"glm4_moe\",\"head_dim\":128,\"n_group\":32,\"num_experts_per_tok\":5}", STATUS_DATA,
     "more than the experts of topk_group 1"},
    {"{\"model_type\":\"gemma3\"}", STATUS_DATA, "text_config must be an object with the keys of the text model"},
    {"{\"model_type\":\"gemma3\",\"text_config\":{\"hidden_size\":0}}", STATUS_DATA, "text_config: hidden_size is 0"},
    {"{\"model_type\":\"internvl\",\"text_config\":{\"model_type\":\"llama4\"}}", STATUS_USAGE,
     "text_config: model_type 'llama4' is a mixture of experts"},
    {"{\"model_type\":\"gemma3n\"}", STATUS_USAGE, "'gemma3n' is a multimodal model, which is not supported"},
    {"{" GEMMA3 ",\"architectures\":[\"Gemma3ForConditionalGeneration\"]}", STATUS_USAGE, "hint: Gemma3ForCausalLM is"},
    {"{" GEMMA3 ",\"architectures\":[\"Gemma3ForSequenceClassification\"]}", STATUS_USAGE,
     "hint: Gemma3ForCausalLM is"},
    {"{\"model_type\":\"qwen2_5_vl\",\"architectures\":[\"Qwen2_5_VLForTokenClassification\"]}", STATUS_USAGE,
     "hint: its class …ForConditionalGeneration is"},
    {"{\"model_type\":\"paligemma\"}", STATUS_USAGE, "'paligemma' is a multimodal model, which is not supported"},
    {"{" LLAMA ",\"rope_parameters\":{\"rope_type\":1}}", STATUS_DATA, "rope_parameters.rope_type must be a string"},
    {"{" LLAMA ",\"rope_parameters\":{\"full_attention\":{}}}", STATUS_USAGE, "per layer type is not supported"},
    {"{" LLAMA ",\"rope_parameters\":{\"partial_rotary_factor\":0.25}}", STATUS_USAGE, "partial_rotary_factor 0.25"},
    {"{" LLAMA ",\"rope_parameters\":{\"rope_type\":\"llama3\",\"factor\":8,\"high_freq_factor\":4}}", STATUS_DATA,
     "low_freq_factor is missing"},
    {"{" LLAMA ",\"rope_parameters\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
     "\"high_freq_factor\":4}}",
     STATUS_DATA, "high_freq_factor 4 must be greater than low_freq_factor 4"},
    {"{" LLAMA ",\"rope_parameters\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
     "\"high_freq_factor\":4,\"original_max_position_embeddings\":0}}",
     STATUS_DATA, "rope_parameters.original_max_position_embeddings is 0"},
    /* windows */
    {"{" MISTRAL ",\"sliding_window\":0}", STATUS_DATA, "sliding_window is 0"},
    {"{" GEMMA2 ",\"sliding_window\":null}", STATUS_DATA, "sliding_window is null, but layers of gemma2 have one"},
    {"{" GEMMA2 ",\"layer_types\":[\"full_attention\"]}", STATUS_DATA, "layer_types must be a list of 2 names"},
    /* Gemma */
    {"{" GEMMA2 ",\"hidden_activation\":\"gelu\"}", STATUS_USAGE,
     "hidden_activation 'gelu' is not supported; hint: gelu_pytorch_tanh or gelu_new is"},
    {"{" GEMMA2 ",\"use_bidirectional_attention\":true}", STATUS_USAGE, "use_bidirectional_attention true is not"},
    {"{" GEMMA3 ",\"use_bidirectional_attention\":true}", STATUS_USAGE, "use_bidirectional_attention true is not"},
    {"{" GEMMA3 ",\"sliding_window\":null}", STATUS_DATA, "sliding_window is null, but layers of gemma3_text have one"},
    /* Gemma 4 */
    {"{" GEMMA4 ",\"enable_moe_block\":true}", STATUS_USAGE, "enable_moe_block true is not supported"},
    {"{" GEMMA4 ",\"use_bidirectional_attention\":\"all\"}", STATUS_USAGE,
     "use_bidirectional_attention \"all\" is not"},
    {"{" GEMMA4 ",\"num_kv_shared_layers\":4}", STATUS_DATA, "num_kv_shared_layers is 4"},
    {"{" GEMMA4 ",\"num_kv_shared_layers\":1}", STATUS_DATA, "no layer before has the type of layer 3"},
    {"{" GEMMA4 ",\"global_head_dim\":7}", STATUS_DATA, "layer 3 has 4 heads of size 7 on 4 key/value heads"},
    {"{" GEMMA4 ",\"per_layer_config\":{\"0\":{\"head_dim\":8}}}", STATUS_USAGE, "layers 0 and 1 differ"},
    {"{" GEMMA4 ",\"per_layer_config\":{\"3\":{\"head_dim\":0}}}", STATUS_DATA, "head_dim must be a positive integer"},
    {"{" GEMMA4 ",\"per_layer_config\":{\"3\":{\"num_key_value_heads\":3}}}", STATUS_DATA, "on 3 key/value heads"},
    {"{" GEMMA4 ",\"per_layer_config\":{\"3\":{\"intermediate_size\":8}}}", STATUS_USAGE,
     "per_layer_config: 'intermediate_size' is not supported; hint: head_dim and num_key_value_heads are"},
    {"{" GEMMA4 ",\"per_layer_config\":{\"3\":8}}", STATUS_DATA, "per_layer_config must have objects, not 8"},
    {"{" GEMMA4 ",\"vocab_size_per_layer_input\":8}", STATUS_DATA,
     "vocab_size_per_layer_input 8 is less than vocab_size"},
    {"{" GEMMA4 ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"yarn\",\"factor\":2}}}", STATUS_USAGE,
     "rope_type 'yarn' is not supported; hint: default and proportional are"},
    {"{" GEMMA4 ",\"rope_parameters\":{\"full_attention\":{\"partial_rotary_factor\":2}}}", STATUS_DATA,
     "partial_rotary_factor 2 is more than 1"},
    {"{" GEMMA4 ",\"architectures\":[\"Gemma4TextForSequenceClassification\"]}", STATUS_USAGE, "is not supported with"},
    {"{\"model_type\":\"olmo3\",\"sliding_window\":null}", STATUS_DATA, "but layers of olmo3 have one"},
    {"{" GEMMA3 ",\"sliding_window_pattern\":0}", STATUS_DATA, "sliding_window_pattern is 0"},
    {"{" GEMMA3 ",\"rope_local_base_freq\":0}", STATUS_DATA, "rope_local_base_freq must be a number above 0"},
    {"{" GEMMA3 ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1e6}}", STATUS_DATA,
     "rope_parameters must have the members full_attention and sliding_attention, not"},
    {"{" GEMMA3 ",\"rope_parameters\":{\"full_attention\":{}},\"rope_scaling\":{\"type\":\"linear\",\"factor\":8}}",
     STATUS_DATA, "rope_scaling and rope_parameters contradict each other"},
    {"{" GEMMA3 ",\"rope_parameters\":{\"sliding_attention\":{\"rope_type\":\"ntk\",\"factor\":2}}}", STATUS_USAGE,
     "rope_parameters.sliding_attention: rope_type 'ntk' is not supported"},
    {"{" GEMMA3 ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\"}}}", STATUS_DATA,
     "rope_parameters.full_attention.factor is missing"},
    {"{" GEMMA3 ",\"rope_parameters\":{\"full_attention\":7}}", STATUS_DATA, "full_attention must be an object, not 7"},
    {"{" GEMMA3 ",\"partial_rotary_factor\":0.5}", STATUS_USAGE, "partial_rotary_factor 0.5 is not supported"},
    {"{" GEMMA2 ",\"attn_logit_softcapping\":0}", STATUS_DATA, "attn_logit_softcapping must be a number above 0"},
    {"{" GEMMA2 ",\"final_logit_softcapping\":-1}", STATUS_DATA, "final_logit_softcapping must be a number above 0"},
    {"{" GEMMA2 ",\"query_pre_attn_scalar\":\"8\"}", STATUS_DATA, "query_pre_attn_scalar must be a number above 0"},
    {"{\"model_type\":\"gemma2\",\"hidden_size\":30,\"num_attention_heads\":4}", STATUS_DATA,
     "not a multiple of the 4"},
    {"{" MISTRAL ",\"layer_types\":[\"sliding_attention\",\"full_attention\"]}", STATUS_DATA, "has full attention"},
    {"{" MISTRAL ",\"layer_types\":[\"full_attention\",\"full_attention\"]}", STATUS_DATA, "has full attention"},
    {"{" QWEN2 ",\"layer_types\":[\"sliding_attention\",\"sliding_attention\"]}", STATUS_DATA, "no sliding window"},
    {"{" QWEN2 ",\"layer_types\":[\"full_attention\"]}", STATUS_DATA, "layer_types must be a list of 2 names"},
    {"{" QWEN2 ",\"layer_types\":[\"full_attention\",\"chunked_attention\"]}", STATUS_USAGE, "layer_types [\"full"},
};

static void test_faults(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(FAULTS); i++) {
        struct model_desc desc;
        struct error err = {.text = ""};
        enum status status = load(FAULTS[i].config, &desc, &err);
        if (status != FAULTS[i].status || !strstr(err.text, FAULTS[i].words) || strncmp(err.text, "c.json: ", 8) != 0)
            fail_msg("%s: status %d, '%s'", FAULTS[i].config, (int)status, err.text);
        assert_null(desc.source);
        assert_int_equal(desc.notices.count, 0);
        assert_int_equal(load(FAULTS[i].config, &desc, NULL), FAULTS[i].status);
        json_t *config = json_loads(FAULTS[i].config, JSON_DECODE_ANY, NULL); /* the same in a run spec */
        assert_int_equal(model_desc_from_spec(config, &desc, &err), STATUS_USAGE);
        assert_true(err.code == STATUS_USAGE && strncmp(err.text, "model.config: ", 14) == 0);
        json_decref(config);
    }
}

/* ---- notices ------------------------------------------------------------- */

static const struct {
    const char *config;
    const char *notices; /* all notices, one a line */
} NOTICES[] = {
    {"{" LLAMA ",\"use_cache\":true,\"bos_token_id\":1,\"transformers_version\":\"4.40\",\"attention_dropout\":0.0}",
     ""},
    {"{" LLAMA ",\"attention_dropout\":0.25}", ""},
    {"{" GPT2 ",\"resid_pdrop\":0,\"embd_pdrop\":0.0,\"attn_pdrop\":0}", ""},
    {"{" GPT2 ",\"resid_pdrop\":0.2,\"embd_pdrop\":0.0}",
     "dropout: config.json does not have attn_pdrop, so nothing is dropped there (transformers: 0.1); hint: "
     "model.dropout sets it"},
    {"{" LLAMA ",\"pretraining_tp\":2}",
     "pretraining_tp 2: matrices are not split: the mathematics is the same, the rounding differs"},
    {"{" LLAMA ",\"pretraining_tp\":1}", ""},
    {"{" QWEN2 ",\"attention_bias\":true,\"mlp_bias\":true}",
     "attention_bias true: has no effect in this family, as in transformers\n"
     "mlp_bias true: has no effect in this family, as in transformers"},
    {"{" LLAMA ",\"sliding_window\":8}", "sliding_window 8: has no effect in this family, as in transformers"},
    {"{" LLAMA ",\"final_logit_softcapping\":30.0,\"logits_scaling\":1.0,\"alibi\":false,\"num_experts\":null}",
     "final_logit_softcapping 30.0: has no effect in this family, as in transformers"},
    {"{" MISTRAL ",\"use_sliding_window\":false}",
     "use_sliding_window false: has no effect in this family, as in transformers"},
    {"{" GPT2 ",\"hidden_act\":\"relu\",\"attn_pdrop\":0,\"resid_pdrop\":0,\"embd_pdrop\":0}",
     "hidden_act \"relu\": has no effect in this family, as in transformers"},
    {"{" GEMMA2 ",\"pad_token_id\":null,\"hidden_act\":\"gelu_pytorch_tanh\",\"cache_implementation\":\"hybrid\"}", ""},
    {"{" GEMMA2 ",\"pad_token_id\":null,\"hidden_act\":\"silu\",\"mlp_bias\":true}",
     "mlp_bias true: has no effect in this family, as in transformers\n"
     "hidden_act \"silu\": has no effect in this family, as in transformers"},
    {"{" GEMMA3 ",\"pad_token_id\":null,\"attn_logit_softcapping\":50}",
     "attn_logit_softcapping 50: has no effect in this family, as in transformers"},
    {"{" GEMMA3 ",\"pad_token_id\":null,\"_sliding_window_pattern\":6,\"cache_implementation\":\"hybrid\"}", ""},
    {"{" LLAMA ",\"rope_local_base_freq\":5}",
     "rope_local_base_freq 5: has no effect in this family, as in transformers"},
    {"{" LLAMA ",\"hidden_activation\":\"gelu\"}",
     "hidden_activation \"gelu\": has no effect in this family, as in transformers"},
    {"{" LLAMA ",\"pad_token_id\":0}", ""},
    {"{" GPT2 ",\"pad_token_id\":0,\"attn_pdrop\":0,\"resid_pdrop\":0,\"embd_pdrop\":0}", ""},
};

static const char *join_notices(const struct model_desc *desc, char *out, size_t size)
{
    out[0] = '\0';
    for (int i = 0; i < desc->notices.count; i++) {
        size_t used = strlen(out);
        snprintf(out + used, size - used, "%s%s", used ? "\n" : "", desc->notices.items[i]);
    }
    return out;
}

static void test_notices(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(NOTICES); i++) {
        struct model_desc desc;
        load_good(NOTICES[i].config, &desc);
        char lines[1024];
        assert_string_equal(join_notices(&desc, lines, sizeof lines), NOTICES[i].notices);
        model_desc_release(&desc);
    }
}

/* ---- misspelt keys ------------------------------------------------------- */

static const struct {
    const char *config;
    const char *words; /* in the notice and in a run spec's error; NULL: neither */
} SPELLINGS[] = {
    {"{\"model_type\":\"llama\",\"num_hiden_layers\":2}",
     "'num_hiden_layers' is not a key of a llama config; hint: did you mean 'num_hidden_layers'?"},
    {"{" LLAMA ",\"intermediate_sz\":64}",
     "'intermediate_sz' is not a key of a llama config; hint: did you mean 'inter"},
    {"{" LLAMA ",\"Tie_Word_Embeddings\":true}", "did you mean 'tie_word_embeddings'?"},
    /* also if the fault is the default of the key that was meant */
    {"{" MISTRAL ",\"num_key_value_haeds\":4,\"quantisation_config\":{}}", "did you mean 'num_key_value_heads'?"},
    {"{" LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2,\"rope_thta\":7}}",
     "'rope_scaling.rope_thta' is not a key of a llama config; hint: did you mean 'rope_scaling.rope_theta'?"},
    {"{\"model_type\":\"gpt2\",\"n_heads\":4}",
     "'n_heads' is not a key of a gpt2 config; hint: did you mean 'n_head'?"},
    /* the family does not read such a key; no key is similar */
    {"{" LLAMA ",\"n_heads\":4,\"clip_qk\":1,\"scale_attn_weight\":1,\"layer_norm_epsilo\":1}", NULL},
    {"{" LLAMA ",\"something\":1,\"\":2}", NULL},
};

/* The key that is meant is present or null: a file gets no notice; in a spec --set may have added the other one. */
static void test_spelling_beside(void **state)
{
    (void)state;
    static const char *const texts[] = {"{" LLAMA ",\"hidden_sizes\":64}",
                                        "{" LLAMA ",\"rope_theta\":null,\"rope_teta\":1}"};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        struct model_desc desc;
        struct error err;
        load_good(texts[i], &desc);
        assert_int_equal(desc.notices.count, 0);
        model_desc_release(&desc);
        json_t *config = json_loads(texts[i], 0, NULL);
        assert_int_equal(model_desc_from_spec(config, &desc, &err), STATUS_USAGE);
        assert_non_null(strstr(err.text, i ? "did you mean 'rope_theta'?" : "did you mean 'hidden_size'?"));
        json_decref(config);
    }
}

/* Keys that the folders of real models have in addition to those of their family, all of them null. */
static const char REAL_KEYS[] =
    "return_dict output_hidden_states output_attentions torchscript use_bfloat16 "
    "tf_legacy_loss chunk_size_feed_forward is_decoder cross_attention_hidden_size tie_encoder_decoder "
    "max_length min_length do_sample early_stopping num_beams "
    "num_beam_groups diversity_penalty temperature top_k top_p "
    "typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size "
    "bad_words_ids num_return_sequences output_scores return_dict_in_generate forced_bos_token_id "
    "forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens "
    "finetuning_task id2label label2id tokenizer_class prefix "
    "bos_token_id eos_token_id sep_token_id unk_token_id decoder_start_token_id "
    "task_specific_params problem_type _name_or_path transformers_version use_cache "
    "gradient_checkpointing output_past n_ctx summary_type summary_activation "
    "summary_first_dropout summary_proj_to_labels summary_use_proj reorder_and_upcast_attn auto_map "
    "attn_implementation _attn_implementation_autoset unsloth_version unsloth_fixed rope_interleaved "
    "is_llama_config max_sequence_length max_seq_len pretraining_tp neftune_noise_alpha "
    "use_flash_attn seq_length embedding_dropout hidden_dropout num_heads "
    "num_layers qkv_bias mlp_dim hidden_dim tokenizer_vocab_size";

static void test_real_keys(void **state)
{
    (void)state;
    for (int family = 0; family < FAMILY_COUNT; family++) {
        json_t *config = json_pack("{s:s}", "model_type", model_family_name((enum model_family)family));
        char keys[sizeof REAL_KEYS], *rest = keys;
        memcpy(keys, REAL_KEYS, sizeof keys);
        for (char *key; (key = strsep(&rest, " "));) json_object_set_new(config, key, json_null());
        if (family == FAMILY_GLM4_MOE) /* by default its heads have 42 2/3 elements */
            json_object_set_new(config, "head_dim", json_integer(128));
        struct model_desc desc;
        struct error err;
        if (model_desc_from_spec(config, &desc, &err) != STATUS_OK) fail_msg("%s", err.text);
        model_desc_release(&desc);
        json_decref(config);
    }
}

static void test_spelling(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(SPELLINGS); i++) {
        const char *words = SPELLINGS[i].words;
        struct model_desc desc;
        struct error err = {.text = ""};
        json_t *config = json_loads(SPELLINGS[i].config, 0, NULL);
        enum status status = model_desc_from_spec(config, &desc, &err);
        if (status != (words ? STATUS_USAGE : STATUS_OK) || (words && !strstr(err.text, words)))
            fail_msg("%s: status %d, '%s'", SPELLINGS[i].config, (int)status, err.text);
        model_desc_release(&desc);
        if (model_desc_from_json(config, "c.json", &desc, &err) == STATUS_OK) {
            char lines[1024];
            join_notices(&desc, lines, sizeof lines);
            if (!strstr(lines, "is not a key") != !words || (words && !strstr(lines, words)))
                fail_msg("%s: notices '%s'", SPELLINGS[i].config, lines);
        }
        model_desc_release(&desc);
        json_decref(config);
    }
}

/* ---- multimodal folders -------------------------------------------------- */

static void test_multimodal(void **state)
{
    (void)state;
    struct model_desc desc;
    char name[96];
    /* transformers ties by the whole config, and by a true of text_config */
    static const struct {
        const char *whole, *text;
        bool tied;
    } TIES[] = {{"", "", false},    {"true", "", true},   {"true", "false", true},  {"false", "true", true},
                {"", "true", true}, {"", "false", false}, {"false", "false", false}};
    for (size_t i = 0; i < COUNT_OF(TIES); i++) {
        char config[256];
        snprintf(config, sizeof config, "{\"model_type\":\"llava\",\"text_config\":{\"model_type\":\"qwen2\"%s%s}%s%s}",
                 *TIES[i].text ? ",\"tie_word_embeddings\":" : "", TIES[i].text,
                 *TIES[i].whole ? ",\"tie_word_embeddings\":" : "", TIES[i].whole);
        load_good(config, &desc);
        assert_true(desc.multimodal && desc.family == FAMILY_QWEN2 && desc.tied == TIES[i].tied);
        model_desc_release(&desc);
    }
    /* the defaults are those of the class */
    load_good("{\"model_type\":\"qwen2_5_vl\",\"hidden_size\":64,\"num_attention_heads\":8}", &desc);
    assert_true(desc.rope.theta == 1e6 && desc.norm_eps == 1e-5 && desc.num_kv_heads == 8 && desc.num_layers == 80);
    model_desc_release(&desc);
    load_good("{\"model_type\":\"qwen3_vl\",\"text_config\":{\"model_type\":\"qwen3_vl_text\",\"rope_scaling\":"
              "{\"type\":\"mrope\",\"mrope_section\":[24,20,20]}},\"dtype\":\"bfloat16\"}",
              &desc);
    assert_true(desc.family == FAMILY_QWEN3 && desc.rope.kind == ROPE_PLAIN && desc.rope.theta == 5e5);
    assert_true(desc.max_positions == 128000 && desc.has_torch_dtype && desc.torch_dtype == DTYPE_BF16);
    json_t *exported = model_desc_export_config(&desc, DTYPE_BF16);
    assert_true(json_equal(exported, desc.source));
    json_decref(exported);
    model_desc_release(&desc);

    assert_string_equal(model_multimodal_name("language_model.model.norm.weight", name, sizeof name),
                        "model.language_model.norm.weight");
    assert_string_equal(model_multimodal_name("model.visual.norm.weight", name, sizeof name),
                        "model.visual.norm.weight");
    assert_string_equal(model_multimodal_name("language_model.lm_head.weight", name, sizeof name), "lm_head.weight");
    assert_string_equal(model_multimodal_name("model.layers.0.x", name, 10), "model.layers.0.x"); /* no room */
    assert_true(model_multimodal_is_text("lm_head.weight") && !model_multimodal_is_text("model.visual.norm.weight"));
}

/* ---- details that the golden cases do not show --------------------------- */

static void test_details(void **state)
{
    (void)state;
    struct model_desc desc;
    /* rope_scaling wins over rope_parameters; the theta inside wins over the one outside; a null theta is ignored */
    load_good("{" LLAMA ",\"rope_theta\":7,\"rope_scaling\":{\"type\":\"linear\",\"factor\":3},"
              "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":9}}",
              &desc);
    assert_int_equal(desc.rope.kind, ROPE_LINEAR);
    assert_true(desc.rope.theta == 7 && desc.rope.factor == 3);
    model_desc_release(&desc);
    load_good("{" LLAMA ",\"rope_theta\":7,\"rope_scaling\":{},\"rope_parameters\":{\"rope_theta\":9}}", &desc);
    assert_int_equal(desc.rope.kind, ROPE_PLAIN);
    assert_true(desc.rope.theta == 9);
    model_desc_release(&desc);
    load_good("{" LLAMA ",\"rope_theta\":null,\"rope_scaling\":null}", &desc);
    assert_true(desc.rope.theta == 10000);
    model_desc_release(&desc);
    /* llama3: the original length outside wins, else the one inside, else max_position_embeddings */
    const char *llama3 = "{" LLAMA ",%s\"max_position_embeddings\":99,\"rope_scaling\":{\"rope_type\":\"llama3\","
                         "\"factor\":8,\"low_freq_factor\":1,%s\"high_freq_factor\":4}}";
    const char *inside[] = {"", "\"original_max_position_embeddings\":50,"};
    for (int i = 0; i < 3; i++) {
        char text[512];
        snprintf(text, sizeof text, llama3, i == 2 ? "\"original_max_position_embeddings\":20," : "", inside[i > 0]);
        load_good(text, &desc);
        assert_int_equal(desc.rope.original_max_positions, i == 2 ? 20 : i == 1 ? 50 : 99);
        model_desc_release(&desc);
    }
    /* a negative padding token counts from the end */
    load_good("{" LLAMA ",\"vocab_size\":50,\"pad_token_id\":-1}", &desc);
    assert_int_equal(desc.padding_token, 49);
    assert_int_equal(model_desc_untrained_token(&desc), 49);
    desc.trains_padding = true;
    assert_int_equal(model_desc_untrained_token(&desc), -1);
    model_desc_release(&desc);
    /* dtypes in both dialects */
    load_good("{" LLAMA ",\"torch_dtype\":\"float16\",\"dtype\":\"bfloat16\"}", &desc);
    assert_true(desc.has_torch_dtype && desc.torch_dtype == DTYPE_BF16);
    model_desc_release(&desc);
    load_good("{" LLAMA ",\"torch_dtype\":\"torch.float16\"}", &desc);
    assert_true(desc.has_torch_dtype && desc.torch_dtype == DTYPE_F16);
    model_desc_release(&desc);
    load_good("{" LLAMA ",\"torch_dtype\":\"float64\"}", &desc);
    assert_false(desc.has_torch_dtype);
    model_desc_release(&desc);
    /* the other names of the activations */
    load_good("{" GPT2 ",\"activation_function\":\"gelu_pytorch_tanh\"}", &desc);
    assert_int_equal(desc.intermediate_size, 128);
    assert_true(desc.weights_in_out && desc.scale_residual_init && desc.tied);
    model_desc_release(&desc);
    load_good("{" GPT2 ",\"activation_function\":\"gelu_accurate\"}", &desc);
    model_desc_release(&desc);
    load_good("{" LLAMA ",\"hidden_act\":\"swish\",\"architectures\":[]}", &desc);
    model_desc_release(&desc);
}

/* Folders that were saved from the model without its head. */
static void test_classes_without_a_head(void **state)
{
    (void)state;
    static const char *const configs[][2] = {
        {"{" LLAMA ",\"architectures\":[\"LlamaModel\"]}", "LlamaForCausalLM"},
        {"{" GPT2 ",\"architectures\":[\"GPT2Model\"]}", "GPT2LMHeadModel"},
        {"{" GEMMA3 ",\"architectures\":[\"Gemma3TextModel\"]}", "Gemma3ForCausalLM"},
    };
    for (size_t i = 0; i < COUNT_OF(configs); i++) {
        struct model_desc desc;
        load_good(configs[i][0], &desc);
        assert_int_equal(desc.num_labels, 0);
        json_t *exported = model_desc_export_config(&desc, DTYPE_F32);
        assert_string_equal(json_string_value(json_array_get(json_object_get(exported, "architectures"), 0)),
                            configs[i][1]);
        json_decref(exported);
        model_desc_release(&desc);
    }
}

static void test_export_config(void **state)
{
    (void)state;
    static const struct {
        const char *keys, *torch_dtype, *dtype;
    } cases[] = {
        {"", NULL, "bfloat16"},
        {",\"torch_dtype\":\"float32\"", "bfloat16", NULL},
        {",\"dtype\":\"float32\"", NULL, "bfloat16"},
        {",\"dtype\":\"float32\",\"torch_dtype\":\"float32\"", "bfloat16", "bfloat16"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char text[256];
        snprintf(text, sizeof text, "{" LLAMA ",\"something\":[1,2]%s}", cases[i].keys);
        struct model_desc desc;
        load_good(text, &desc);
        json_t *config = model_desc_export_config(&desc, DTYPE_BF16);
        const char *torch_dtype = json_string_value(json_object_get(config, "torch_dtype"));
        const char *dtype = json_string_value(json_object_get(config, "dtype"));
        assert_true(!torch_dtype == !cases[i].torch_dtype && (!torch_dtype || !strcmp(torch_dtype, "bfloat16")));
        assert_true(!dtype == !cases[i].dtype && (!dtype || !strcmp(dtype, "bfloat16")));
        assert_string_equal(json_string_value(json_array_get(json_object_get(config, "architectures"), 0)),
                            "LlamaForCausalLM");
        assert_int_equal(json_array_size(json_object_get(config, "something")), 2);
        json_decref(config);
        model_desc_release(&desc);
    }
}

/* ---- classifiers --------------------------------------------------------- */

static const char *text_of(const json_t *object, const char *key, const char *member)
{
    const json_t *value = json_object_get(object, key);
    return json_string_value(json_is_array(value) ? json_array_get(value, 0) : json_object_get(value, member));
}

static void test_classifier_of_a_language_model(void **state)
{
    (void)state;
    struct model_desc desc;
    struct error err;
    load_good("{" LLAMA ",\"tie_word_embeddings\":true,\"eos_token_id\":[5,6],\"num_labels\":9}", &desc);
    assert_true(desc.tied && desc.num_labels == 0);
    assert_int_equal(model_desc_classify(&desc, 3, &err), STATUS_OK);
    assert_true(!desc.tied && desc.new_head);
    assert_int_equal(desc.num_labels, 3);
    assert_int_equal(model_desc_padding(&desc), 5);
    json_t *names = json_loads("{\"0\":\"a\",\"1\":\"b\",\"2\":\"c\"}", 0, NULL);
    json_t *others = json_loads("{\"0\":\"b\",\"1\":\"a\",\"2\":\"c\"}", 0, NULL);
    json_t *two = json_loads("{\"0\":\"b\",\"1\":\"a\"}", 0, NULL);
    assert_string_equal(text_of(desc.source, "id2label", "2"), "LABEL_2");
    assert_int_equal(model_desc_name_labels(&desc, two, &err), STATUS_USAGE);
    assert_non_null(strstr(err.text, "the data have 2 labels, the model has 3"));
    assert_int_equal(model_desc_name_labels(&desc, names, &err), STATUS_OK);
    assert_int_equal(model_desc_name_labels(&desc, names, &err), STATUS_OK);
    assert_int_equal(model_desc_name_labels(&desc, others, &err), STATUS_USAGE);
    assert_non_null(strstr(err.text, "the data name their labels otherwise"));

    json_t *config = model_desc_export_config(&desc, DTYPE_F32);
    assert_string_equal(text_of(config, "architectures", NULL), "LlamaForSequenceClassification");
    assert_string_equal(text_of(config, "id2label", "2"), "c");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(config, "label2id"), "c")), 2);
    struct model_desc again;
    assert_int_equal(model_desc_from_json(config, "again", &again, &err), STATUS_OK);
    assert_int_equal(again.num_labels, 3);
    assert_true(!again.new_head && !again.tied);
    assert_int_equal(model_desc_classify(&again, 4, &err), STATUS_USAGE);
    assert_non_null(strstr(err.text, "a classifier with 3 labels, not 4"));
    assert_int_equal(model_desc_classify(&again, 3, &err), STATUS_OK);
    assert_false(again.new_head);
    json_decref(config);
    json_decref(names);
    json_decref(others);
    json_decref(two);
    model_desc_release(&again);
    model_desc_release(&desc);
}

/* BERT's: from a folder without a head, with the rates of dropout as transformers reads them. */
static void test_classifier_of_an_encoder(void **state)
{
    (void)state;
    static const char *const base[] = {"BertModel", "BertForMaskedLM", "BertForPreTraining"};
    for (size_t i = 0; i < COUNT_OF(base); i++) {
        char text[256], lines[1024];
        struct model_desc desc;
        struct error err;
        snprintf(text, sizeof text, "{" BERT ",\"architectures\":[\"%s\"]}", base[i]);
        load_good(text, &desc);
        assert_true(desc.num_labels == 0 && !desc.tied && desc.bidirectional && desc.pooler && desc.num_types == 2);
        assert_int_equal(model_desc_check_causal(&desc, &err), STATUS_USAGE);
        assert_non_null(strstr(err.text, "cannot be trained as a causal language model; hint: model.task: sequence_"));
        assert_int_equal(model_desc_classify(&desc, 3, &err), STATUS_OK);
        assert_true(desc.new_head && desc.num_labels == 3);
        json_t *exported = model_desc_export_config(&desc, DTYPE_F32);
        assert_string_equal(json_string_value(json_array_get(json_object_get(exported, "architectures"), 0)),
                            "BertForSequenceClassification");
        assert_non_null(strstr(join_notices(&desc, lines, sizeof lines),
                               "the head 'classifier' starts from random values (run.seed)"));
        assert_non_null(strstr(lines, "dropout: config.json does not have hidden_dropout_prob, "
                                      "attention_probs_dropout_prob, so nothing is dropped there"));
        json_decref(exported);
        model_desc_release(&desc);
    }
}

static void check_rates(const char *keys, double hidden, double attention, double pooled)
{
    char text[256];
    struct model_desc desc;
    snprintf(text, sizeof text, "{" BERT "%s}", keys);
    load_good(text, &desc);
    assert_true(desc.dropout.embedding == hidden && desc.dropout.residual == hidden);
    assert_true(desc.dropout.attention == attention && desc.dropout.pooled == pooled);
    model_desc_set_dropout(&desc, 0.3);
    assert_true(desc.dropout.embedding == 0.3 && desc.dropout.residual == 0.3);
    assert_true(desc.dropout.attention == 0.3 && desc.dropout.pooled == 0.3);
    model_desc_release(&desc);
}

static void test_dropout_of_an_encoder(void **state)
{
    (void)state;
    check_rates("", 0, 0, 0);
    check_rates(",\"hidden_dropout_prob\":0.25,\"attention_probs_dropout_prob\":0.5", 0.25, 0.5, 0.25);
    check_rates(",\"hidden_dropout_prob\":0.25,\"classifier_dropout\":null", 0.25, 0, 0.25);
    check_rates(",\"hidden_dropout_prob\":0.25,\"classifier_dropout\":0.0", 0.25, 0, 0);
    check_rates(",\"classifier_dropout\":0.125", 0, 0, 0.125);
}

static void test_classifier_folders(void **state)
{
    (void)state;
    struct model_desc desc;
    struct error err;
    load_good("{" CLASSIFIER "}", &desc); /* transformers leaves out two labels without names */
    assert_int_equal(desc.num_labels, 2);
    assert_int_equal(model_desc_padding(&desc), -1);
    model_desc_release(&desc);
    load_good("{" CLASSIFIER ",\"pad_token_id\":7,\"id2label\":{\"0\":\"x\",\"1\":\"y\",\"2\":\"z\"}}", &desc);
    assert_int_equal(desc.num_labels, 3);
    assert_int_equal(model_desc_padding(&desc), 7);
    model_desc_release(&desc);
    load_good("{\"model_type\":\"granite\"}", &desc);
    assert_int_equal(model_desc_classify(&desc, 2, &err), STATUS_USAGE);
    assert_non_null(strstr(err.text, "sequence_classification is not supported yet for 'granite'; hint: gpt2, llama"));
    model_desc_release(&desc);
    load_good("{" LLAMA "}", &desc);
    assert_int_equal(model_desc_classify(&desc, 2, &err), STATUS_OK);
    const char *last = desc.notices.items[0];
    assert_string_equal(last,
                        "the config has neither pad_token_id nor eos_token_id: transformers will take the exported "
                        "classifier's input one sample at a time");
    model_desc_release(&desc);
}

/* ---- files --------------------------------------------------------------- */

static void expect_file_fault(const char *path, const char *words)
{
    struct model_desc desc;
    struct error err;
    assert_int_equal(model_desc_load(path, &desc, &err), STATUS_DATA);
    if (!strstr(err.text, words)) fail_msg("'%s' expected, not '%s'", words, err.text);
}

static void test_files(void **state)
{
    (void)state;
    char folder[] = "/tmp/ztrain-model-XXXXXX", path[64];
    struct error err;
    struct model_desc desc;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/config.json", folder);
    expect_file_fault(folder, "config.json': No such file or directory; hint: a Hugging Face model folder");
    expect_file_fault("", "cannot open ''");
    static const struct {
        const char *text, *words;
    } bad[] = {
        {"", "config.json:1:0: not valid JSON"},
        {"{\"model_type\": \"llama\",", "config.json:1:23: not valid JSON"},
        {"{\"model_type\": \"llama\", \"model_type\": \"gpt2\"}", "duplicate object key"},
        {"{\"model_type\": \"llama\"} x", "end of file expected"},
        {"\x7f\x45\x4c\x46\xff\xfe", "not valid JSON"},
        {"{\"rms_norm_eps\": NaN}", "not valid JSON"},
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        assert_int_equal(fs_write_file(path, bad[i].text, strlen(bad[i].text), STATUS_DATA, &err), STATUS_OK);
        expect_file_fault(folder, bad[i].words);
    }
    size_t size = (1 << 20) + 1;
    char *big = malloc(size);
    memset(big, '[', size);
    assert_int_equal(fs_write_file(path, big, size, STATUS_DATA, &err), STATUS_OK);
    expect_file_fault(folder, "has 1048577 bytes, at most 1048576 expected");
    assert_int_equal(fs_write_file(path, big, size - 1, STATUS_DATA, &err), STATUS_OK);
    expect_file_fault(path, "maximum parsing depth reached");
    free(big);
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0); /* it has no writer: opening must not wait */
    expect_file_fault(folder, "it is not a regular file");
    unlink(path);
    assert_int_equal(fs_write_file(path, "{" GPT2 "}", strlen("{" GPT2 "}"), STATUS_DATA, &err), STATUS_OK);
    assert_int_equal(model_desc_load(folder, &desc, &err), STATUS_OK);
    model_desc_release(&desc);
    assert_int_equal(model_desc_load(path, &desc, &err), STATUS_OK);
    model_desc_release(&desc);
    unlink(path);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_rope_rounding),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_notices),
        cmocka_unit_test(test_details),
        cmocka_unit_test(test_export_config),
        cmocka_unit_test(test_classes_without_a_head),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_spelling),
        cmocka_unit_test(test_spelling_beside),
        cmocka_unit_test(test_classifier_of_a_language_model),
        cmocka_unit_test(test_classifier_folders),
        cmocka_unit_test(test_classifier_of_an_encoder),
        cmocka_unit_test(test_dropout_of_an_encoder),
        cmocka_unit_test(test_real_keys),
        cmocka_unit_test(test_multimodal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
