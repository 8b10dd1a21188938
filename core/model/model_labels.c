/* SPDX-License-Identifier: Apache-2.0 */
/* model_labels.c: the description of a classifier: its number of labels, their names, the token that pads its input. */
#include "core/model/model_config.h"

/* id2label of `count` labels without names, as transformers calls them. */
static json_t *default_label_names(int64_t count)
{
    json_t *names = json_object();
    for (int64_t i = 0; i < count; i++) {
        char id[24];
        snprintf(id, sizeof id, "%" PRId64, i);
        json_object_set_new(names, id, json_sprintf("LABEL_%s", id));
    }
    return names;
}

static void set_names(struct model_desc *desc, const json_t *id2label)
{
    json_t *label2id = json_object();
    for (int64_t i = 0; i < desc->num_labels; i++) {
        char id[24];
        snprintf(id, sizeof id, "%" PRId64, i);
        json_object_set_new(label2id, json_string_value(json_object_get(id2label, id)), json_integer(i));
    }
    json_object_set_new(desc->source, "id2label", json_deep_copy(id2label));
    json_object_set_new(desc->source, "label2id", label2id);
    json_object_del(desc->source, "num_labels"); /* transformers counts id2label */
}

int64_t model_desc_padding(const struct model_desc *desc)
{
    const json_t *id = json_object_get(desc->source, "pad_token_id");
    int64_t token = json_is_integer(id) ? json_integer_value(id) : -1;
    return token >= 0 && token < desc->vocab_size ? token : -1;
}

/* transformers finds the last token of a padded sample by pad_token_id. */
static void label_padding(struct model_desc *desc)
{
    const json_t *end = json_object_get(desc->source, "eos_token_id");
    if (model_desc_padding(desc) >= 0 || desc->pooler) /* a pooler takes the first token */
        return;
    if (json_is_array(end)) end = json_array_get(end, 0);
    if (json_is_integer(end)) json_object_set(desc->source, "pad_token_id", (json_t *)end);
    if (model_desc_padding(desc) < 0)
        string_list_add(&desc->notices, "the config has neither pad_token_id nor eos_token_id: transformers will take "
                                        "the exported classifier's input one sample at a time");
}

enum status model_desc_classify(struct model_desc *desc, int64_t num_labels, struct error *err)
{
    ASSERT(num_labels >= 1);
    char class[MODEL_CLASS_MAX];
    if (desc->num_labels > 0 && desc->num_labels != num_labels)
        return error_set(err, STATUS_USAGE,
                         "the model is a classifier with %" PRId64 " labels, not %" PRId64
                         "; hint: start from the language model, or use data with the same labels",
                         desc->num_labels, num_labels);
    if (desc->num_labels > 0) return STATUS_OK;
    if (!model_family_classifies(desc->family) || desc->multimodal)
        return error_set(
            err, STATUS_USAGE,
            "model.task: sequence_classification is not supported yet for '%s'; hint: " MODEL_CLASSIFYING_FAMILIES
            " classify",
            desc->multimodal ? json_string_value(json_object_get(desc->source, "model_type"))
                             : model_family_name(desc->family));
    desc->num_labels = num_labels;
    desc->new_head = true;
    desc->tied = false;
    desc->logit_softcap = 0;
    model_desc_class(desc, class);
    json_object_set_new(desc->source, "architectures", json_pack("[s]", class));
    json_auto_t *names = default_label_names(num_labels);
    set_names(desc, names);
    label_padding(desc);
    string_list_add(&desc->notices, desc->pooler ? "the head 'classifier' starts from random values (run.seed)"
                                                 : "the head 'score' starts from random values (run.seed)");
    return STATUS_OK;
}

enum status model_desc_check_causal(const struct model_desc *desc, struct error *err)
{
    if (!desc->bidirectional) return STATUS_OK;
    error_set(err, STATUS_USAGE, "model_type '%s' looks both ways, so it cannot be trained as a causal language model",
              model_family_name(desc->family));
    return error_hint(err, "model.task: sequence_classification trains it as a classifier");
}

enum status model_desc_name_labels(struct model_desc *desc, const json_t *id2label, struct error *err)
{
    const json_t *have = json_object_get(desc->source, "id2label");
    json_auto_t *unnamed = default_label_names(desc->num_labels);
    bool free = !have || json_equal(have, unnamed), same = have && json_equal(have, id2label);
    ASSERT(desc->num_labels > 0);
    if ((int64_t)json_object_size(id2label) != desc->num_labels)
        return error_set(err, STATUS_USAGE,
                         "the data have %zu labels, the model has %" PRId64
                         "; hint: model.num_labels, or ztrain-tokenize --labels-from PREFIX",
                         json_object_size(id2label), desc->num_labels);
    if (!free && !same)
        return error_set(err, STATUS_USAGE,
                         "the data name their labels otherwise than the model's id2label; hint: the labels of the data "
                         "must be in the order of the model's, or start from a model without labels");
    if (!same) set_names(desc, id2label);
    return STATUS_OK;
}
