/* SPDX-License-Identifier: Apache-2.0 */
/* model_multimodal.c: the text model's config and names in the folders of models that take images too. */
#include "core/model/config_reader.h"

/* clang-format off */
#define QWEN2_VL "{\"vocab_size\":152064,\"hidden_size\":8192,\"intermediate_size\":29568,\"num_hidden_layers\":80," \
                 "\"num_attention_heads\":64,\"num_key_value_heads\":8,\"rms_norm_eps\":1e-5,\"rope_theta\":1e6," \
                 "\"max_window_layers\":80}"
static const struct multimodal_facts {
    const char *type;     /* model_type of the folder */
    const char *family;   /* of its text model */
    bool chosen;          /* text_config.model_type names it, and this is the default */
    bool flat;            /* transformers 4 has the keys of the text model beside the others */
    const char *defaults; /* of the text model's class in transformers where they are not the family's */
} MULTIMODAL[] = {
    {"gemma3",     "gemma3_text", false, false, "{}"},
    {"gemma4",     "gemma4_text", false, false, "{}"},
    {"qwen2_vl",   "qwen2",       false, true,  QWEN2_VL},
    {"qwen2_5_vl", "qwen2",       false, true,  QWEN2_VL},
    {"qwen3_vl",   "qwen3",       false, false, "{\"max_position_embeddings\":128000,\"rope_theta\":5e5}"},
    {"qwen3_5",    "qwen3_5_text", false, false, "{}"},
    {"mistral3",   "mistral",     true,  false, "{}"},
    {"llava",      "llama",       true,  false, "{}"},
    {"llava_next", "llama",       true,  false, "{}"},
    {"internvl",   "qwen2",       true,  false, "{}"},
};
/* clang-format on */

static void multimodal_check(struct config_reader *reader, const struct multimodal_facts *facts)
{
    const json_t *text = json_object_get(reader->object, "text_config");
    const char *class = json_string_value(json_array_get(json_object_get(reader->object, "architectures"), 0));
    if (class && strstr(class, "For") && !strstr(class, "ForConditionalGeneration"))
        reader_fail(reader, STATUS_USAGE,
                    "architectures \"%.100s\" is not supported with model_type '%s'; hint: its class "
                    "…ForConditionalGeneration is",
                    class, facts->type);
    if (json_object_get(reader->object, "quantization_config") || json_object_get(text, "quantization_config"))
        reader_fail(reader, STATUS_USAGE,
                    "quantization_config is not supported with model_type '%s'; hint: use the original weights",
                    facts->type);
    if (!facts->flat && !json_is_object(text))
        reader_fail(reader, STATUS_DATA, "text_config must be an object with the keys of the text model");
}

json_t *model_multimodal_text(struct config_reader *reader)
{
    static const char *const shared[] = {"tie_word_embeddings", "dtype", "torch_dtype"};
    const json_t *config = reader->object, *part = json_object_get(config, "text_config");
    const char *type = json_string_value(json_object_get(config, "model_type"));
    const struct multimodal_facts *facts = MULTIMODAL, *end = MULTIMODAL + COUNT_OF(MULTIMODAL);
    while (type && facts < end && strcmp(type, facts->type) != 0) facts++;
    if (!type || facts == end) return NULL;
    multimodal_check(reader, facts);
    json_auto_t *defaults = json_loads(facts->defaults, 0, NULL);
    json_t *text = json_deep_copy(json_is_object(part) ? part : config);
    if (!facts->chosen || !json_object_get(text, "model_type"))
        json_object_set_new(text, "model_type", json_string(facts->family));
    json_object_del(text, "architectures");
    /* those of the whole config, but for a text_config that ties, as before transformers 5 */
    for (size_t i = 0; i < COUNT_OF(shared); i++)
        if (json_object_get(config, shared[i]) && !json_is_true(json_object_get(text, shared[i])))
            json_object_set(text, shared[i], json_object_get(config, shared[i]));
    json_object_update_missing(text, defaults);
    return text;
}

/* ---- names --------------------------------------------------------------- */

#define TEXT "model.language_model."

const char *model_multimodal_name(const char *name, char *out, size_t size)
{
    static const char *const prefixes[][2] = {
        {"language_model.model.", TEXT},
        {"language_model.lm_head.", "lm_head."},
        {"language_model.", TEXT},
        {"model.embed_tokens.", TEXT "embed_tokens."},
        {"model.layers.", TEXT "layers."},
        {"model.norm.", TEXT "norm."},
        {"model.embed_tokens_per_layer.", TEXT "embed_tokens_per_layer."},
        {"model.per_layer_", TEXT "per_layer_"},
    };
    for (size_t i = 0; i < COUNT_OF(prefixes); i++) {
        const size_t length = strlen(prefixes[i][0]);
        if (strncmp(name, prefixes[i][0], length) == 0)
            return snprintf(out, size, "%s%s", prefixes[i][1], name + length) < (int)size ? out : name;
    }
    return name;
}

bool model_multimodal_is_text(const char *name)
{
    return strncmp(name, TEXT, strlen(TEXT)) == 0 || strncmp(name, "lm_head.", strlen("lm_head.")) == 0;
}
