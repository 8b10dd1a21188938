/* SPDX-License-Identifier: Apache-2.0 */
/* test_model_compare.c: the comparison of two model descriptions finds every key that changes the computation, names it
 * with both values, and reports nothing else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "core/spec/spec.h"

#define SIZES "\"hidden_size\":32,\"num_attention_heads\":4,\"num_hidden_layers\":2,\"num_key_value_heads\":4"
#define NEOX "\"model_type\":\"gpt_neox\",\"hidden_size\":32,\"num_attention_heads\":4,\"num_hidden_layers\":2"
#define QWEN3_5                                                                                             \
    "\"model_type\":\"qwen3_5_text\",\"hidden_size\":32,\"num_attention_heads\":4,\"num_hidden_layers\":2," \
    "\"num_key_value_heads\":2,\"head_dim\":16,\"linear_num_key_heads\":2,\"linear_num_value_heads\":4,"    \
    "\"linear_key_head_dim\":8,\"linear_value_head_dim\":8,\"full_attention_interval\":2"
#define LLAMA "\"model_type\":\"llama\"," SIZES
#define MISTRAL "\"model_type\":\"mistral\"," SIZES
#define QWEN2 "\"model_type\":\"qwen2\"," SIZES
#define QWEN3 "\"model_type\":\"qwen3\"," SIZES
#define GPT2 "\"model_type\":\"gpt2\",\"n_embd\":32,\"n_head\":4,\"n_layer\":2"
#define LLAMA3                                                                                               \
    ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4," \
    "\"original_max_position_embeddings\":100}"
#define LONGROPE(factors) \
    ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1,1,1],\"long_factor\":" factors "}"

/* Two configs: `base` followed by `was` or `now`; expected: the differences as "key: was -> now, …". */
static const struct {
    const char *base, *was, *now, *expected;
} CASES[] = {
    /* each key */
    {LLAMA, ",\"vocab_size\":50", ",\"vocab_size\":51", "vocab_size: 50 -> 51"},
    {LLAMA, ",\"head_dim\":8", ",\"hidden_size\":64", "hidden_size: 32 -> 64, head_dim: 8 -> 16"},
    {LLAMA, ",\"intermediate_size\":50", ",\"intermediate_size\":51", "intermediate_size: 50 -> 51"},
    {LLAMA, "", ",\"num_hidden_layers\":3", "num_hidden_layers: 2 -> 3"},
    {LLAMA, ",\"head_dim\":8", ",\"head_dim\":8,\"num_attention_heads\":8", "num_attention_heads: 4 -> 8"},
    {LLAMA, "", ",\"num_key_value_heads\":2", "num_key_value_heads: 4 -> 2"},
    {LLAMA, "", ",\"head_dim\":16", "head_dim: 8 -> 16"},
    {LLAMA, "", ",\"rms_norm_eps\":1e-5", "rms_norm_eps: 1e-6 -> 1e-5"},
    {LLAMA, "", ",\"attention_bias\":true", "attention_bias: false -> true"},
    {QWEN3, ",\"attention_bias\":true", "", "attention_bias: true -> false"},
    {LLAMA, "", ",\"mlp_bias\":true", "mlp_bias: false -> true"},
    {LLAMA, "", ",\"tie_word_embeddings\":true", "tie_word_embeddings: false -> true"},
    {MISTRAL, "", ",\"sliding_window\":8", "sliding_window: 4096 -> 8"},
    {MISTRAL, ",\"sliding_window\":8", ",\"sliding_window\":null", "sliding_window: 8 -> unset"},
    {QWEN2, "", ",\"use_sliding_window\":true,\"sliding_window\":8,\"max_window_layers\":0",
     "sliding_window: unset -> 8"},
    {LLAMA, ",\"rope_theta\":10000", ",\"rope_theta\":500000", "rope_theta: 10000.0 -> 500000.0"},
    {LLAMA, "", ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":5e5}",
     "rope_theta: 10000.0 -> 500000.0"},
    {LLAMA, "", ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}",
     "rope_type: \"default\" -> \"linear\", rope_scaling.factor: unset -> 2.0"},
    {LLAMA, LLAMA3, LLAMA3 ",\"original_max_position_embeddings\":99", "original_max_position_embeddings: 100 -> 99"},
    {LLAMA, LLAMA3,
     ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":9,\"low_freq_factor\":2,\"high_freq_factor\":5,"
     "\"original_max_position_embeddings\":100}",
     "rope_scaling.factor: 8.0 -> 9.0, low_freq_factor: 1.0 -> 2.0, high_freq_factor: 4.0 -> 5.0"},
    {GPT2, "", ",\"n_positions\":512", "n_positions: 1024 -> 512"},
    {GPT2, "", ",\"n_inner\":64", "n_inner: 128 -> 64"},
    {GPT2, "", ",\"n_embd\":64,\"n_inner\":128", "n_embd: 32 -> 64"},
    {GPT2, "", ",\"n_head\":8", "n_head: 4 -> 8"},
    {GPT2, "", ",\"n_layer\":3", "n_layer: 2 -> 3"},
    {GPT2, "", ",\"layer_norm_epsilon\":1e-6", "layer_norm_epsilon: 1e-5 -> 1e-6"},
    {GPT2, "", ",\"tie_word_embeddings\":false", "tie_word_embeddings: true -> false"},
    /* the family */
    {LLAMA, ",\"model_type\":\"smollm3\"", ",\"model_type\":\"smollm3\",\"no_rope_layers\":[0,1]",
     "no_rope_layers: unset -> [0,1]"},
    {LLAMA, ",\"model_type\":\"granite\"",
     ",\"model_type\":\"granite\",\"residual_multiplier\":0.5,\"attention_multiplier\":0.25",
     "residual_multiplier: 1.0 -> 0.5, attention_multiplier: 1.0 -> 0.25"},
    {LLAMA, ",\"model_type\":\"phi3\"", ",\"model_type\":\"phi3\",\"partial_rotary_factor\":0.5",
     "partial_rotary_factor: unset -> 0.5"},
    {LLAMA, ",\"model_type\":\"gemma2\"",
     ",\"model_type\":\"gemma2\",\"query_pre_attn_scalar\":8,\"attn_logit_softcapping\":20,"
     "\"final_logit_softcapping\":null",
     "query_pre_attn_scalar: 256.0 -> 8.0, attn_logit_softcapping: 50.0 -> 20.0, final_logit_softcapping: 30.0 -> "
     "unset"},
    {LLAMA, ",\"model_type\":\"gemma3_text\"",
     ",\"model_type\":\"gemma3_text\",\"rope_local_base_freq\":5,\"rope_theta\":7,\"sliding_window_pattern\":2",
     "sliding_window: 4096 -> [4096,0], rope_theta: 1000000.0 -> 7.0, rope_local_base_freq: 10000.0 -> 5.0"},
    {LLAMA, ",\"model_type\":\"gemma3_text\",\"rope_theta\":7",
     ",\"model_type\":\"gemma3_text\",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":7},\"sliding_attention\":"
     "{"
     "\"rope_type\":\"linear\",\"factor\":2}}",
     "sliding_attention.rope_type: \"default\" -> \"linear\", sliding_attention.factor: unset -> 2.0"},
    {LLAMA, ",\"model_type\":\"gemma4_text\",\"per_layer_config\":{}",
     ",\"model_type\":\"gemma4_text\",\"per_layer_config\":{\"1\":{\"head_dim\":8}},\"hidden_size_per_layer_input\":9,"
     "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"proportional\",\"partial_rotary_factor\":0.5}}",
     "per_layer_config: [[256,4,9216,0,false],[256,4,9216,1,false]] -> [[256,4,9216,0,false],[8,4,9216,1,false]], "
     "hidden_size_per_layer_input: 256 -> 9, proportional: 0.25 -> 0.5"},
    {LLAMA, "", ",\"model_type\":\"mistral\",\"intermediate_size\":11008,\"sliding_window\":null",
     "model_type: \"llama\" -> \"mistral\""},
    {QWEN2, "", ",\"model_type\":\"llama\",\"intermediate_size\":22016,\"vocab_size\":151936",
     "model_type: \"qwen2\" -> \"llama\", attention_bias: true -> false"},
    {LLAMA, ",\"vocab_size\":50257,\"intermediate_size\":128,\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":true",
     ",\"vocab_size\":50257,\"model_type\":\"gpt2\"", "model_type: \"llama\" -> \"gpt2\", n_positions: 2048 -> 1024"},
    {LLAMA, ",\"architectures\":[\"LlamaForSequenceClassification\"]",
     ",\"architectures\":[\"LlamaForSequenceClassification\"],\"id2label\":{\"0\":\"a\",\"1\":\"b\",\"2\":\"c\"}",
     "num_labels: 2 -> 3"},
    {LLAMA, "", ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}",
     "rope_type: \"default\" -> \"dynamic\", rope_scaling.factor: unset -> 2.0, "
     "original_max_position_embeddings: unset -> 2048"},
    {LLAMA, LONGROPE("[1,1,1,2]"), LONGROPE("[1,1,1,3]"), "long_factor: [1,1,1,2] -> [1,1,1,3]"},
    /* differences that do not change the computation */
    {LLAMA, "", "", ""},
    {GPT2, "", ",\"hidden_size\":32,\"n_inner\":null", ""},
    {LLAMA, "", ",\"rope_theta\":1e4,\"rms_norm_eps\":0.000001,\"head_dim\":8", ""},
    {LLAMA, "",
     ",\"architectures\":[\"LlamaForCausalLM\"],\"torch_dtype\":\"bfloat16\",\"attention_dropout\":0.5,"
     "\"initializer_range\":0.1,\"bos_token_id\":2,\"_name_or_path\":\"x\","
     "\"max_position_embeddings\":4096,\"hidden_act\":\"swish\",\"sliding_window\":9",
     ""},
    {LLAMA, "", ",\"pad_token_id\":1", "pad_token_id: unset -> \"1\""},
    {NEOX, "", ",\"use_parallel_residual\":false", "use_parallel_residual: 1 -> unset"},
    {QWEN3_5, "", ",\"linear_num_key_heads\":1,\"linear_key_head_dim\":16", "linear_num_key_heads: 2 -> 1"},
    {QWEN3_5, "", ",\"full_attention_interval\":1", "sliding_window: [-1,0] -> unset"},
    {GPT2, "", ",\"rope_theta\":7,\"activation_function\":\"gelu_pytorch_tanh\"", ""},
    /* transformers 4 and 5 */
    {LLAMA, ",\"rope_theta\":500000.0,\"rope_scaling\":null",
     ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":500000}", ""},
    {LLAMA, ",\"rope_theta\":7" LLAMA3,
     ",\"dtype\":\"float32\",\"rope_parameters\":{\"rope_type\":\"llama3\",\"rope_theta\":7.0,\"factor\":8.0,"
     "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"original_max_position_embeddings\":100}",
     ""},
    {QWEN2, ",\"use_sliding_window\":true,\"sliding_window\":8,\"max_window_layers\":0",
     ",\"use_sliding_window\":true,\"sliding_window\":8,\"layer_types\":[\"sliding_attention\",\"sliding_attention\"]",
     ""},
};

static void load(const char *base, const char *more, struct model_desc *desc)
{
    char text[1024];
    struct error err;
    snprintf(text, sizeof text, "{%s%s}", base, more);
    json_t *config = json_loads(text, 0, NULL); /* the last value of a key counts */
    assert_non_null(config);
    if (model_desc_from_json(config, "c.json", desc, &err) != STATUS_OK) fail_msg("%s", err.text);
    json_decref(config);
}

/* The lines that "key: was -> now, …" stands for. */
static void check_lines(const struct string_list *lines, const char *expected)
{
    char rest[256], line[512];
    int count = 0;
    snprintf(rest, sizeof rest, "%s", expected);
    for (char *next = rest, *key; next && *next; count++) {
        key = next;
        char *was = strstr(key, ": "), *now = strstr(key, " -> ");
        assert_true(was && now);
        if ((next = strstr(now, ", "))) *next = 0, next += 2;
        snprintf(
            line, sizeof line,
            "'%.*s' of the model was %.*s in the checkpoint and is %s now: that would change the run; hint: set it "
            "back, or start a new run under another run.name",
            (int)(was - key), key, (int)(now - was - 2), was + 2, now + 4);
        if (count >= lines->count) fail_msg("not found: %s", line);
        assert_string_equal(lines->items[count], line);
    }
    if (lines->count > count) fail_msg("expected '%s', but there is also: %s", expected, lines->items[count]);
}

static void test_compare(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        struct model_desc was, now;
        struct spec_report report = {0};
        load(CASES[i].base, CASES[i].was, &was);
        load(CASES[i].base, CASES[i].now, &now);
        model_desc_compare(&was, &now, &report.errors);
        check_lines(&report.errors, CASES[i].expected);
        spec_report_release(&report);
        model_desc_release(&was);
        model_desc_release(&now);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_compare)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
