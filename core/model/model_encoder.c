#include "core/model/model_encoder.h"

#include <string.h>

/* The forms of GELU by their names in transformers; false: another function. */
static bool activation_of(const char *name, enum mlp_kind *kind)
{
    static const char *const tanh_forms[] = {"gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_python_tanh",
                                             "gelu_accurate"};
    *kind = MLP_GELU_ERF;
    if (strcmp(name, "gelu") == 0 || strcmp(name, "gelu_python") == 0)
        return true;
    *kind = MLP_GELU;
    for (size_t i = 0; i < COUNT_OF(tanh_forms); i++)
        if (strcmp(name, tanh_forms[i]) == 0)
            return true;
    return false;
}

void model_encoder_read(struct config_reader *reader, double norm_eps, struct model_desc *desc)
{
    enum { MOST_TYPES = 1 << 16 };
    const char *activation = reader_string(reader, "hidden_act", "gelu");
    desc->norm = NORM_LAYER;
    desc->norm_place = NORM_AFTER_RESIDUAL;
    desc->norm_eps = reader_positive(reader, "layer_norm_eps", norm_eps);
    desc->num_types = reader_int(reader, "type_vocab_size", 2, 1, MOST_TYPES);
    desc->bidirectional = desc->embedding_norm = desc->pooler = true;
    desc->qkv_bias = desc->o_bias = desc->mlp_bias = true;
    desc->rope.kind = ROPE_NONE;
    if (!activation_of(activation, &desc->mlp))
        reader_fail(reader, STATUS_USAGE, "hidden_act '%.60s' is not supported; hint: gelu or gelu_new is", activation);
}

bool model_encoder_is_base(const char *architecture)
{
    static const char *const names[] = {"BertModel", "BertForMaskedLM", "BertForPreTraining",
                                        "BertForNextSentencePrediction", "BertLMHeadModel"};
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (strcmp(architecture, names[i]) == 0)
            return true;
    return false;
}
